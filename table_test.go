package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

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

func TestTable_HoldsItsInvariants(t *testing.T) {
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

func TestTable_Sizes(t *testing.T) {
	for _, c := range []struct{ shards, n, share, limit, slots int }{
		{64, 0, 1000, 2, 8}, {64, 1, 1000, 2, 8}, {64, 2, 1000, 4, 16}, {64, 40, 1000, 61, 244}, // a quarter full
		{64, 50, 1000, 76, 256}, {64, 140, 1000, 211, 256}, {64, 160, 1000, 241, 276}, // up to 7/8 full
		{1, 140, 1000, 211, 844}, {1, 4000, 10_000, 6001, 16_384}, {1024, 20, 1000, 31, 36},
		{64, 1, 1, 2, 8}, {64, 350, 400, 400, 500}, {64, 400, 400, 400, 500}, {64, 401, 400, 401, 459}, // the share
		{64, 1000, math.MaxInt, 1501, 1716}, {1 << 16, 1, math.MaxInt, 2, 8},
	} {
		st := &store{shards: make([]shard, c.shards), homes: math.MaxUint64}
		made := st.tableFor(&policy{}, c.n, c.share)
		require.Equal(t, c.limit, made.limit, "%d ids of %d", c.n, c.share)
		require.Len(t, made.slots, c.slots, "%d ids of %d", c.n, c.share)
	}
}

// TestTable_OccupiedCanStop at any slot.
func TestTable_OccupiedCanStop(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerHour(5), Shards: 1})
	fill(l, "key", 100)
	tab := l.shards[0].table.Load()
	for most := 1; most <= 100; most++ {
		seen, last := 0, uint64(0)
		for i, id := range tab.occupied {
			require.True(t, seen == 0 || i > last, "in order")
			require.Equal(t, id, tab.slots[i].id.Load())
			last = i
			if seen++; seen == most {
				break
			}
		}
		require.Equal(t, most, seen)
	}
}

// TestTable_CrowdedHomesChangeNoDecision, of one shard, as tests make them.
func TestTable_CrowdedHomesChangeNoDecision(t *testing.T) {
	c := Config{Limit: PerHour(2), Clock: NewManualClock(start)}
	l, err := newLimiter(c, 1)
	require.NoError(t, err)
	require.Len(t, l.shards, 1)
	for range 3 {
		fill(l, "key", 200)
	}
	require.Equal(t, 200, l.Len())
	checkTables(t, l)
	for i := range 200 {
		require.Zero(t, l.Peek(fmt.Sprint("key", i), 0).Remaining)
	}
	require.Equal(t, 1, fill(l, "other", 1))
}
