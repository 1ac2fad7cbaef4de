package sluice

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable_Sizes: a table has room for more than it is made for, and is not too full with them.
func TestTable_Sizes(t *testing.T) {
	for _, shards := range []int{1, 64, 1 << 16} {
		for _, share := range []int{1, 2, 100, 1000, fullIDs, fullIDs + 1, 16_384, 156_250, math.MaxInt / 2} {
			st := &store{homes: math.MaxUint64, most: mostIDs(share)}
			depth := uint(bits.TrailingZeros(uint(shards)))
			for n := 0; n <= min(3000, share); n += 1 + n/100 {
				made := st.tableFor(&policy{}, depth, n, share)
				slots, limit := len(made.slots), made.limit
				require.GreaterOrEqual(t, limit, n)
				require.LessOrEqual(t, limit*8, slots*7, "more than 7/8 full")
				require.GreaterOrEqual(t, slots, minSlots)
				if n <= st.most {
					require.LessOrEqual(t, limit, max(minLimit, st.most), "%d ids of %d", n, share)
				}
				if n < min(st.most, share)*2/3 {
					require.Greater(t, 2*limit, 3*n-3, "%d ids of %d: room for half as many again", n, share)
				}
				if limit == share {
					require.LessOrEqual(t, limit*5, slots*4, "more than 4/5 full with all of the share")
				}
				if slots < sparseSlots/shards {
					require.LessOrEqual(t, limit*4, slots, "a small table is a quarter full")
				}
				if slots > sparseSlots/shards+sparseSlots/shards/8 && n > 100 && limit != share {
					require.Less(t, slots, 2*n+2*n/5, "%d ids of %d", n, share) // 3/2 * 8/7, and what memory comes in
				}
				if slots > sparseSlots/shards+sparseSlots/shards/8 && limit < min(st.most, share-1) {
					require.Equal(t, slots*maxLoadNum/maxLoadDen, limit, "%d ids of %d: what memory comes in is used", n, share)
				}
			}
		}
	}
}

func TestTable_MostIDs(t *testing.T) {
	for share, want := range map[int]int{1: 1, 1000: 1000, fullIDs: fullIDs, fullIDs + 1: 1008, 16_384: 1152, 156_250: 1372} {
		require.Equal(t, want, mostIDs(share), share)
	}
	st := &store{most: 1000}
	for units, want := range map[int]int{10: 1000, 100: 327, 1000: fewIDs, 1 << 20: fewIDs} {
		l := mustNew(t, Config{Algorithm: SlidingLog, Limit: PerDay(units)})
		require.Equal(t, want, st.mostOf(l.policyOf(0)), units)
	}
}

// TestTable_OccupiedCanStop at any slot.
func TestTable_OccupiedCanStop(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), Shards: 1})
	fill(l, "key", 100)
	tab := l.tableOf(0)
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
	l, err := newLimiter(c, 1, math.MaxInt)
	require.NoError(t, err)
	require.Len(t, l.shards, 1)
	for range 3 {
		fill(l, "key", 200)
	}
	require.Equal(t, 200, l.Len())
	for i := range 200 {
		require.Zero(t, l.Key(fmt.Sprint("key", i)).Peek(0).Remaining)
	}
	require.Equal(t, 1, fill(l, "other", 1))
}

// TestTable_SharesThatDifferByOne: MaxKeys is no multiple of the shards, and no shard needs a second table.
func TestTable_SharesThatDifferByOne(t *testing.T) {
	if crowded() || splits() {
		return // one shard, or tables of a few keys
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: 100_000, Shards: 64, Overflow: OverflowDenyNew})
	for i := range uint64(150_000) {
		l.KeyUint64(i).Allow()
	}
	require.Greater(t, l.Len(), 99_000)
	require.Len(t, tablesOf(l), 64)
}
