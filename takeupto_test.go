package sluice

import (
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTakeUpTo_ByHand: 5 an hour.
func TestTakeUpTo_ByHand(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := int(l.policyOf(0).burst)
		for cost, allowed := range map[int]bool{0: true, -1: false, math.MinInt: false} {
			n, d := l.TakeUpTo("k", cost)
			require.Zero(t, n)
			require.Equal(t, l.Take("k", cost), d)
			require.Equal(t, allowed, d.Allowed)
		}
		require.Zero(t, l.Len())
		n, d := l.TakeUpTo("new", math.MaxInt)
		require.Equal(t, burst, n)
		require.True(t, d.Allowed)
		n, d = l.Key("k").TakeUpTo(burst - 2)
		require.Equal(t, burst-2, n)
		require.Equal(t, 2, d.Remaining)
		n, d = l.TakeUpTo("k", 7)
		require.Equal(t, 2, n)
		require.True(t, d.Allowed && d.Remaining == 0 && d.RetryAfter == 0)
		n, d = l.TakeUpTo("k", 7)
		require.Zero(t, n)
		require.Equal(t, l.Take("k", 1), d)
	})
}

// TestTakeUpTo_WhereNothingIsCounted, or nobody is denied, or there is no room.
func TestTakeUpTo_WhereNothingIsCounted(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: Unlimited, Stats: true})
	n, d := l.TakeUpTo("k", 7)
	require.Equal(t, 7, n)
	require.Equal(t, Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, d)
	l, _ = newFrozen(t, Config{Limit: DenyAll, Stats: true})
	n, d = l.TakeUpTo("k", 7)
	require.Zero(t, n)
	require.Equal(t, Decision{RetryAfter: Never}, d)
	require.Equal(t, uint64(1), l.Stats().Denied)
	for _, a := range algorithms {
		l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), Shadow: true})
		for _, would := range []bool{false, true, true} {
			n, d = l.TakeUpTo("k", 4)
			require.Equal(t, 4, n)
			require.True(t, d.Allowed)
			require.Equal(t, would, d.WouldDeny)
		}
		l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), Soft: 2})
		n, d = l.TakeUpTo("k", 9)
		require.Equal(t, 7, n)
		require.True(t, d.OverSoft)
		for o, want := range map[Overflow]int{OverflowEvictSoonest: 5, OverflowDenyNew: 0, OverflowAdmitNew: 5} {
			l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), MaxKeys: 1, Overflow: o})
			require.True(t, l.AllowN("other", 5))
			n, d = l.TakeUpTo("k", 9)
			require.Equal(t, want, n, "%v", o)
			require.Equal(t, want > 0, d.Allowed)
		}
	}
}

// TestConcurrent_TakeUpToTakesWhatThereIs: whoever gets less than was asked for has left
// nothing, and together they get the burst.
func TestConcurrent_TakeUpToTakesWhatThereIs(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Clock = NewManualClock(start)
		for range 50 {
			l := mustNew(t, c)
			yieldBeforeSwap(l)
			burst := int(l.policyOf(0).burst)
			ask := burst/7 + 1
			var got atomic.Int64
			var partial atomic.Int64
			goDo(3, func(int) {
				for range 5 {
					n, d := l.TakeUpTo("k", ask)
					got.Add(int64(n))
					if 0 < n && n < ask {
						partial.Add(1)
					}
					if n < ask && d.Remaining != 0 || d.Allowed != (n > 0) {
						t.Errorf("took %d of %d, %+v", n, ask, d)
					}
				}
			})()
			require.Equal(t, int64(burst), got.Load())
			require.LessOrEqual(t, partial.Load(), int64(1))
		}
	})
}
