package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// spentOf is what counts against a key now.
func spentOf(l *Limiter, key string) int {
	d := l.Peek(key, 0)
	return d.Limit - d.Remaining
}

func TestSetLimit_KeepsWhatHasBeenSpent(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("k", 300))
		scale := func(n int) Limit {
			if c.Limit.Burst != 0 {
				return c.Limit.WithBurst(n)
			}
			return Per(n, c.Limit.Period)
		}
		for _, burst := range []int{1000, 400, 301, 300, 500, 100_000, 350} {
			require.NoError(t, l.SetLimit(scale(burst)))
			require.Equal(t, scale(burst), l.Config().Limit)
			require.Equal(t, 300, spentOf(l, "k"), "burst %d", burst)
			require.Equal(t, burst, l.Peek("new", 0).Remaining)
		}
		require.NoError(t, l.SetLimit(scale(100)))
		require.Zero(t, l.Peek("k", 0).Remaining)
		require.False(t, l.Allow("k"))
		require.NoError(t, l.SetLimit(scale(1000)))
		require.Equal(t, 300, spentOf(l, "k"), "lowering the limit has forgotten nothing")
		for _, limit := range []Limit{Unlimited, DenyAll} {
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, limit == Unlimited, l.Allow("k"))
		}
		require.NoError(t, l.SetLimit(scale(1000)))
		require.Equal(t, 300, spentOf(l, "k"))
		require.Error(t, l.SetLimit(Limit{Rate: 1}))
		require.Equal(t, scale(1000), l.Config().Limit)
	})
}

func TestSetKeyLimit_KeepsWhatHasBeenSpent(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		require.True(t, l.AllowN("vip", 300))
		require.True(t, l.AllowN("other", 200))
		more := Per(5000, c.Limit.Period)
		require.NoError(t, l.SetKeyLimit("vip", more))
		require.Equal(t, more, l.Key("vip").Limit())
		require.Equal(t, Decision{Allowed: true, Limit: 5000, Remaining: 4699}.Remaining, l.Take("vip", 1).Remaining)
		require.True(t, l.AllowN("vip", 4699), "a cost above the others' burst")
		require.False(t, l.Allow("vip"))
		require.Equal(t, int(l.policyOf(0).burst)-200, l.Peek("other", 0).Remaining)
		require.Equal(t, 1, l.Len())
		d := TakeAll(Charge{l.Key("other"), 1}, Charge{l.Key("vip"), 1})
		require.Equal(t, 1, d.Denied)
		l.Refund("vip", 4900)
		require.Equal(t, 4900, l.Peek("vip", 0).Remaining)
		l.ClearKeyLimit("vip")
		require.Equal(t, 100, spentOf(l, "vip"))
		require.Equal(t, 2, l.Len())

		require.NoError(t, l.SetKeyLimit("vip", DenyAll))
		require.False(t, l.Allow("vip"))
		require.NoError(t, l.SetKeyLimit("vip", Unlimited))
		require.True(t, l.AllowN("vip", 1<<30))
		l.ClearKeyLimit("vip")
		require.Equal(t, 100, spentOf(l, "vip"))
		require.True(t, l.Block("vip", time.Hour))
		require.NoError(t, l.SetKeyLimit("vip", more))
		require.Equal(t, time.Hour, l.Take("vip", 1).RetryAfter)
		clock.Advance(time.Hour)
		require.Equal(t, 4999, l.Take("vip", 1).Remaining)
		l.Reset("vip")
		require.Equal(t, 5000, l.Peek("vip", 0).Remaining)
	})
}

// TestSetKeyLimit_ExemptsAKeyBesideSoft: Unlimited and DenyAll have nothing beyond them.
func TestSetKeyLimit_ExemptsAKeyBesideSoft(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerMinute(60), Soft: 10})
	require.True(t, l.AllowN("k", 65))
	require.NoError(t, l.SetKeyLimit("k", Unlimited))
	require.Equal(t, Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, l.Take("k", 1))
	require.NoError(t, l.SetKeyLimit("k", DenyAll))
	require.Equal(t, Decision{RetryAfter: Never}, l.Take("k", 1))
	require.NoError(t, l.SetLimit(Unlimited))
	l.ClearKeyLimit("k")
	require.NoError(t, l.SetLimit(PerMinute(60)))
	d := l.Take("k", 1)
	require.True(t, d.OverSoft)
	require.Equal(t, 60, d.Limit)
}
