package sluice

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStats_SweptCountsKeys(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), Shards: 1})
	fill(l, "key", 10)
	require.Zero(t, l.Sweep())
	require.Zero(t, l.Stats().Swept)
	clock.Advance(time.Second)
	require.Equal(t, 10, l.Sweep())
	require.Equal(t, Stats{Swept: 10}, l.Stats())
}

func TestStats_CountsCallsThatChargeOrWouldHave(t *testing.T) {
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			c.Stats = true
			l, _ := newFrozen(t, c)
			burst := burstOf(l)
			require.True(t, l.Allow("k"))
			require.True(t, l.AllowN("k", burst-2))
			require.True(t, l.Key("k").TakeAt(start.UnixNano(), 1).Allowed)
			require.False(t, l.Allow("k"))
			require.False(t, l.Take("k", 2).Allowed)
			require.False(t, l.AllowN("k", burst+1), "a cost above the burst is a denied call")
			require.False(t, l.Take("k", -1).Allowed, "and so is a negative one")
			require.True(t, l.Take("other", burst).Allowed)
			want := Stats{Keys: 2, Admitted: 4, Denied: 4}
			require.Equal(t, want, l.Stats())

			l.AllowN("k", 0)
			l.Take("new", 0)
			for _, cost := range []int{-1, 0, 1, burst, burst + 1} {
				l.Key("k").Peek(cost)
				l.Key("new").Peek(cost)
			}
			l.Key("k").Reset()
			require.Equal(t, want, l.Stats(), "cost 0, Peek and Reset are not counted")
		})
	}
}

func TestStats_WithoutConfigStatsOnlyEventsAreCounted(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, clock *ManualClock) {
		for i := range 100 {
			l.AllowN(fmt.Sprint(i), burstOf(l))
			l.Allow(fmt.Sprint(i))
		}
		clock.Advance(2 * l.Config().Limit.Period)
		l.Sweep()
		s := l.Stats()
		require.Zero(t, s.Admitted)
		require.Zero(t, s.Denied)
		require.Equal(t, uint64(100), s.Swept)
		require.Zero(t, s.Evicted+s.Untracked)
	})
}

func TestStats_CountsOverflow(t *testing.T) {
	for name, c := range everyFew {
		for overflow, want := range map[Overflow]Stats{
			OverflowEvictSoonest: {Keys: 4, Admitted: 20, Evicted: 16},
			OverflowDenyNew:      {Keys: 4, Admitted: 4, Denied: 16, Untracked: 16},
			OverflowAdmitNew:     {Keys: 4, Admitted: 20, Untracked: 16},
		} {
			if !slices.Contains(overflowsOf(c), overflow) {
				continue
			}
			c.Overflow, c.MaxKeys, c.Shards, c.Stats = overflow, 4, 1, true
			l, _ := newFrozen(t, c)
			for i := range 20 {
				require.Equal(t, i < 4 || overflow != OverflowDenyNew, l.Allow(fmt.Sprint(i)))
			}
			require.Equal(t, want, l.Stats(), "%s %v", name, overflow)
		}
	}
}

// TestStats_OutliveALimitOfAKey: counters do not fall when the last key leaves a limit.
func TestStats_OutliveALimitOfAKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Stats, c.BlockFor = true, time.Minute
		for _, c.Shards = range []int{1, 0} {
			l, _ := newFrozen(t, c)
			require.NoError(t, l.Key("k").SetLimit(Per(3, c.Limit.Period)))
			for range 5 {
				l.Allow("k")
			}
			l.Allow("other")
			l.Key("k").Reset()
			require.Equal(t, 1, l.Sweep())
			before := l.Stats()
			require.Equal(t, [3]uint64{4, 2, 1}, [3]uint64{before.Admitted, before.Denied, before.Blocked})
			l.Key("k").ClearLimit()
			require.Equal(t, before, l.Stats())
		}
	})
}

// TestStats_BlockedByEveryCall: whatever the cost, the limit and the call, a denied call of a blocked key is counted as blocked.
func TestStats_BlockedByEveryCall(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Stats = true
		for _, limit := range []Limit{{}, Unlimited, DenyAll} {
			l, _ := newFrozen(t, c)
			k, burst := l.Key("k"), burstOf(l)
			require.True(t, k.Allow())
			require.True(t, k.Block(time.Hour))
			if limit != (Limit{}) {
				require.NoError(t, l.SetLimit(limit))
			}
			soon, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, cost := range []int{1, burst, burst + 1, math.MaxInt, -1} {
				for name, call := range map[string]func() bool{
					"AllowN":   func() bool { return k.AllowN(cost) },
					"Take":     func() bool { return k.Take(cost).Allowed },
					"TakeUpTo": func() bool { _, d := k.TakeUpTo(max(cost, 1)); return d.Allowed },
					"TakeAll":  func() bool { return TakeAll(Charge{k, cost}).Allowed },
					"Acquire":  func() bool { _, err := k.Acquire(cost); return err == nil },
					"Wait":     func() bool { return k.Wait(soon, cost) == nil },
					"WaitAll":  func() bool { return waitAll(soon, Charge{k, cost}) == nil },
					"Reserve":  func() bool { _, err := k.Reserve(cost, 0); return err == nil },
				} {
					before := l.Stats()
					require.False(t, call(), "%s of %d", name, cost)
					s, want := l.Stats(), uint64(1)
					if s.Denied == before.Denied && strings.HasPrefix(name, "Reserve") || name == "Acquire" && c.Algorithm != InFlight {
						want = 0 // of no algorithm with turns, or with units to give back
					}
					require.Equal(t, before.Denied+want, s.Denied, "%s of %d under %v", name, cost, limit)
					require.Equal(t, before.Blocked+want, s.Blocked, "%s of %d under %v", name, cost, limit)
				}
			}
			before := l.Stats().Blocked
			l.Allow("other")
			l.AllowN("other", -1)
			k.AllowN(0)
			require.Equal(t, before, l.Stats().Blocked, "the others have no block, and a cost of 0 is not counted")
		}
	})
}
