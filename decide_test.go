package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

func TestLimiter_AllowIsTheAllowedOfTake(t *testing.T) {
	for name, c := range everyFew {
		rng := seeded.Rand(t)
		clock := NewManualClock(start)
		c.Clock = clock
		a, b := mustNew(t, c), mustNew(t, c)
		for range 2000 {
			cost := rng.IntN(c.Limit.burst()+2) - 1
			require.Equal(t, a.Take("k", cost).Allowed, b.AllowN("k", cost), name)
			clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / 4)))
		}
	}
}

func TestLimiter_DeniedCallsInsertNothing(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, _ *ManualClock) {
		for _, cost := range []int{0, -1, int(l.policyOf(0).burst) + 1, math.MaxInt, math.MinInt} {
			require.Equal(t, cost == 0, l.AllowN("k", cost), "cost %d", cost)
			d := l.Take("k", cost)
			require.Equal(t, cost == 0, d.Allowed)
			require.Equal(t, int(l.policyOf(0).burst), d.Remaining, "cost %d", cost)
			require.Zero(t, d.ResetAfter)
			if cost != 0 {
				require.Equal(t, Never, d.RetryAfter, "cost %d", cost)
			}
		}
		require.Zero(t, l.Len())
	})
}

func TestLimiter_CostZeroSaysWhetherOneUnitWouldPass(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, clock *ManualClock) {
		require.True(t, l.AllowN("k", int(l.policyOf(0).burst)))
		d, one := l.Take("k", 0), l.Take("k", 1)
		require.Equal(t, one, d, "denied as a call of one unit is, with the same RetryAfter")
		require.False(t, l.AllowN("k", 0))
		clock.Advance(d.RetryAfter)
		require.True(t, l.AllowN("k", 0))
		left := l.Take("k", 0).Remaining
		require.Positive(t, left)
		require.Equal(t, left, l.Take("k", 0).Remaining, "and nothing has been charged")
		require.True(t, l.AllowN("k", left))
		require.False(t, l.AllowN("k", 0))
	})
}
