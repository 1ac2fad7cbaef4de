package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/seeded"
)

// TestShard_ManyKeysThroughGrowthAndSweeps compares thousands of keys with their
// model while tables grow and are swept under them.
func TestShard_ManyKeysThroughGrowthAndSweeps(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		keys := depth.Of(1000, 3000, 3000)
		if crowded() {
			keys = 300
		}
		rng := seeded.Rand(t)
		model := newOracle(c)
		clock := NewManualClock(start)
		c.Clock, c.TTL, c.MaxKeys, c.Shards = clock, time.Second, -1, 1
		l := mustNew(t, c)
		largest := 0
		for i := range 10 * keys {
			// Keys come up in a slowly moving range, so that old ones become idle.
			key := fmt.Sprint("key", i/20+rng.IntN(keys/2))
			cost := 1 + rng.IntN(int(l.policyOf(0).burst))
			want := fromOracle(model.Take(key, clock.Now(), int64(cost)))
			require.Equal(t, want, l.Take(key, cost), "call %d", i)
			largest = max(largest, slotsOf(l))
			clock.Advance(time.Duration(rng.Int64N(int64(10*time.Minute) / int64(keys))))
			if rng.IntN(keys) == 0 {
				l.Sweep()
			}
		}
		require.Positive(t, l.Stats().Swept)
		require.Greater(t, largest, minSlots, "no table has grown")
	})
}

// checkTables asserts what every table must be at rest.
func checkTables(t *testing.T, l *Limiter) {
	t.Helper()
	for i := range l.shards {
		s := &l.shards[i]
		tab := s.table.Load()
		seen, used := map[uint64]bool{}, 0
		for j := range tab.slots {
			id, word := tab.slots[j].id.Load(), tab.slots[j].word.Load()
			if id == 0 {
				require.Zero(t, word, "a word without an id")
				continue
			}
			used++
			require.False(t, seen[id], "id %x twice", id)
			seen[id] = true
			require.NotEqual(t, uint64(moved), word, "a moved word in a live table")
			require.Same(t, s, l.shardOf(id), "id in another shard")
			at, found := tab.find(id)
			require.True(t, found && at == uint64(j), "id out of its probe's reach")
		}
		require.Equal(t, used, s.len())
		require.LessOrEqual(t, used, tab.limit)
		require.LessOrEqual(t, used, s.share)
		require.LessOrEqual(t, tab.limit*8, max(1, len(tab.slots))*7, "more than 7/8 full")
	}
}

func TestShard_TablesHoldTheirInvariants(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		clock := NewManualClock(start)
		c.Clock, c.MaxKeys, c.Shards = clock, 500, 4
		l := mustNew(t, c)
		for i := range 3000 {
			l.AllowN(fmt.Sprint("key", rng.IntN(i/4+1)), 1+rng.IntN(3))
			if rng.IntN(200) == 0 {
				clock.Advance(time.Duration(rng.Int64N(int64(2 * c.Limit.Period))))
				l.Sweep()
			}
			if rng.IntN(100) == 0 {
				checkTables(t, l)
			}
		}
		checkTables(t, l)
	})
}

func TestShard_TableSizes(t *testing.T) {
	for _, c := range []struct{ shards, n, share, limit, slots int }{
		{64, 0, 1000, 2, 8}, {64, 1, 1000, 2, 8}, {64, 2, 1000, 4, 16}, {64, 40, 1000, 61, 244}, // a quarter full
		{64, 50, 1000, 76, 256}, {64, 140, 1000, 211, 256}, {64, 160, 1000, 241, 276}, // up to 7/8 full
		{1, 140, 1000, 211, 844}, {1, 4000, 10_000, 6001, 16_384}, {1024, 20, 1000, 31, 36},
		{64, 1, 1, 2, 8}, {64, 350, 400, 400, 458}, {64, 400, 400, 400, 458}, {64, 401, 400, 401, 459}, // the share
		{64, 1000, math.MaxInt, 1501, 1716}, {1 << 16, 1, math.MaxInt, 2, 8},
	} {
		st := &store{shards: make([]shard, c.shards), homes: math.MaxUint64}
		made := st.tableFor(&policy{}, c.n, c.share)
		require.Equal(t, c.limit, made.limit, "%d ids of %d", c.n, c.share)
		require.Len(t, made.slots, c.slots, "%d ids of %d", c.n, c.share)
	}
}

// TestShard_SharesAddUpToMaxKeys, whatever the number of shards.
func TestShard_SharesAddUpToMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 3, 5, 63, 64, 65, 1000, 100_003, 1 << 20} {
		for _, shards := range []int{0, 1, 2, 3, 7, 64, 1000} {
			l, err := New(Config{Limit: PerSecond(1), MaxKeys: maxKeys, Shards: shards})
			require.NoError(t, err)
			sum := 0
			for i := range l.shards {
				require.Positive(t, l.shards[i].share)
				sum += l.shards[i].share
			}
			require.Equal(t, maxKeys, sum)
			require.Equal(t, pow2(len(l.shards)), len(l.shards))
			if shards > 0 && shards <= maxKeys/2 {
				require.Equal(t, pow2(shards), len(l.shards))
			}
		}
	}
}

// TestShard_KeysSpreadOverShards: with the seeded and the stable hash alike, by
// the high bits of the id.
func TestShard_KeysSpreadOverShards(t *testing.T) {
	if crowded() {
		return // one shard then
	}
	for _, h := range []Hash{HashSeeded, HashStable} {
		l := mustNew(t, Config{Limit: PerSecond(1), Hash: h, Shards: 64, Clock: NewManualClock(start)})
		fill(l, "key", 64_000)
		for i := range l.shards {
			require.InDelta(t, 1000, l.shards[i].len(), 250, "%v, shard %d", h, i) // 8 sigma
		}
	}
}
