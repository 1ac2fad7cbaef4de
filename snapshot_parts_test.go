package sluice

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestSnapshot_EachKeyOnce while tables split and merge and keys go into cells and back, from one table
// to the next, and between the look at which table it is and its copy.
func TestSnapshot_EachKeyOnce(t *testing.T) {
	if crowded() || splits() {
		return // probes of 20,000 slots, or as many changes as there are tables of a few keys
	}
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("limits of their own=%v", own), func(t *testing.T) { snapshotsHaveEachKeyOnce(t, own) })
	}
}

func snapshotsHaveEachKeyOnce(t *testing.T, own bool) {
	clock := &hookedClock{ManualClock: NewManualClock(start)}
	l := mustNew(t, Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1, Hash: HashStable, TTL: 1, Clock: clock})
	rng := seeded.Rand(t)
	live := make([]Key, 4000)
	for i := range live {
		live[i] = l.KeyUint64(uint64(i))
		require.True(t, live[i].Allow())
	}
	round := 0
	change := func() {
		round++
		for i := range uint64(20_000) {
			k := l.KeyUint64(1<<32 + i)
			if round%6 == 2 {
				k.Allow()
			} else if round%6 == 5 {
				k.Reset()
			}
		}
		l.Sweep()
		for n := 0; own && n < 200; n++ {
			switch k := live[rng.IntN(len(live))]; rng.IntN(4) {
			case 0:
				require.NoError(t, k.SetLimit(PerHour(10+rng.IntN(3))))
			case 1, 2:
				k.ClearLimit()
			default:
				brings, err := k.WithLimit(PerHour(20 + rng.IntN(3)))
				require.NoError(t, err)
				brings.Allow()
			}
		}
	}
	for range 5 {
		var cells copies
		var keys copied
		times, tables := map[uint64]int{}, 0
		count := func(c *copied) {
			for at := 0; at < len(c.Bytes); at += 16 {
				times[binary.LittleEndian.Uint64(c.Bytes[at:])]++
			}
		}
		for id := uint64(0); ; id++ {
			if l.shards[0].cells.Load() == nil && (round == 0 || rng.IntN(2) == 0) { // else the clock is read under the lock
				clock.hook.Store(&change)
			} else {
				change()
			}
			id = l.copyKeys(id, &keys, &cells)
			count(&keys)
			if tables++; id == math.MaxUint64 {
				break
			}
		}
		require.Greater(t, tables, 6, "the tables have split and merged meanwhile")
		for _, some := range cells.of {
			for _, c := range some {
				count(c)
			}
		}
		for _, k := range live {
			require.Equal(t, 1, times[hashOf(k)])
			delete(times, hashOf(k))
		}
		require.Equal(t, own, l.shards[0].cells.Load() != nil)
		for _, n := range times {
			require.Equal(t, 1, n, "of keys that have come or gone meanwhile")
		}
	}
}

// TestSnapshot_LocksAWordForItsCopyOnly: nobody writes the tail meanwhile, and whoever wants to does not
// wait for an allocation.
func TestSnapshot_LocksAWordForItsCopyOnly(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		p := l.policyOf(0)
		if p.wide == nil {
			return // a word is read in one go
		}
		k := l.Key("k")
		require.True(t, k.Allow())
		var keys copied
		met := 0
		setAlgorithm(l, nil, lookedAtWide{p.wide, func() {
			met++
			require.NotZero(t, slotOf(k).word.Load()&locked)
			require.GreaterOrEqual(t, cap(keys.Bytes)-len(keys.Bytes), 16+8*p.tailLen())
		}})
		_, end := covers(k.id, l.tableOf(k.id).depth)
		require.Equal(t, end, l.copyKeys(k.id, &keys, new(copies)))
		require.Equal(t, 1, met)
		require.Equal(t, 1, keys.N)
	})
}

// TestSnapshot_LimitsOfIdleKeys: a key keeps its limit, swept or not.
func TestSnapshot_LimitsOfIdleKeys(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c = small(c)
		l, clock := newFrozen(t, c)
		require.NoError(t, l.Key("k").SetLimit(Per(3, c.Limit.Period)))
		require.True(t, l.Allow("k"))
		clock.Advance(c.Limit.Period * 10)
		for range 2 {
			require.Len(t, limitsOf(restoredFrom(t, c, snapshotOf(t, l))), 1)
			l.Sweep()
		}
		require.Zero(t, l.keptLive.Load())
	})
}

// TestSnapshot_OfManyCells: they are copied some at a time, also where all are of one table; and a sweep
// finds them all.
func TestSnapshot_OfManyCells(t *testing.T) {
	if crowded() || splits() {
		return // probes of 20,000 places, or as many tables
	}
	const kept, tracked = 20_000, 500
	l, clock := newFrozen(t, Config{Limit: PerSecond(5), MaxKeys: 1000, Shards: 1, Hash: HashStable})
	for i := range uint64(kept) {
		require.NoError(t, l.KeyUint64(i).SetLimit(PerSecond(7)))
		require.True(t, l.KeyUint64(i).Allow())
	}
	fill(l, "key", tracked)
	require.Len(t, tablesOf(l), 1)
	var keys copied
	var cells copies
	before, inTable := 0, 0
	for id := uint64(0); ; id++ {
		id = l.copyKeys(id, &keys, &cells)
		inTable += keys.N
		all := 0
		for _, some := range cells.of {
			for _, c := range some {
				require.LessOrEqual(t, len(c.Bytes), enough+16, "a large one would be moved to grow")
				all += c.N
			}
		}
		require.LessOrEqual(t, all-before, fullIDs)
		if before = all; id == math.MaxUint64 {
			break
		}
	}
	require.Equal(t, []int{kept, tracked}, []int{before, inTable})
	clock.Advance(time.Second)
	require.Equal(t, kept+tracked, l.Sweep())
	require.Zero(t, l.Len())
	require.Zero(t, l.keptLive.Load())
}
