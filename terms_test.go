package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSetKeyLimit_WhereTheLimiterHasNoAlgorithm: a limiter that has been Unlimited or
// DenyAll from the start can take back a key that has spent something.
func TestSetKeyLimit_WhereTheLimiterHasNoAlgorithm(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		limit := c.Limit
		for _, c.Limit = range []Limit{Unlimited, DenyAll} {
			l, _ := newFrozen(t, c)
			require.NoError(t, l.SetKeyLimit("other", DenyAll))
			require.NoError(t, l.SetKeyLimit("k", limit))
			require.True(t, l.AllowN("k", 300))
			l.ClearKeyLimit("k")
			require.Equal(t, c.Limit == Unlimited, l.AllowN("k", 1))
			require.NoError(t, l.SetKeyLimit("k", DenyAll))
			require.False(t, l.Allow("k"))
			require.NoError(t, l.SetKeyLimit("k", limit))
			require.Equal(t, 300, spentOf(l, "k"))
			l.ClearKeyLimit("k")
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, 300, spentOf(l, "k"))
		}
	})
}

// TestSetKeyLimit_CountsWhatOthersCould: a limit of a key that was first used when the
// limiter's was small keeps what a key has spent under a larger one.
func TestSetKeyLimit_CountsWhatOthersCould(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		small, large := Per(10, c.Limit.Period), Per(4000, c.Limit.Period)
		require.NoError(t, l.SetLimit(small))
		require.NoError(t, l.SetKeyLimit("early", Per(5, c.Limit.Period)))
		require.True(t, l.AllowN("early", 5))
		require.NoError(t, l.SetLimit(large))
		require.True(t, l.AllowN("k", 3000))
		require.NoError(t, l.SetKeyLimit("k", Per(5, c.Limit.Period)))
		l.ClearKeyLimit("k")
		require.Equal(t, 3000, spentOf(l, "k"))
		require.False(t, l.Allow("early"))
	})
}

// TestSetKeyLimit_UnlimitedKeepsTheRateOfTheKey: units go on coming back as they did
// before, whatever the limiter's rate was when such a limit was first used.
func TestSetKeyLimit_UnlimitedKeepsTheRateOfTheKey(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, constant := range []Limit{Unlimited, DenyAll} {
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1000)})
			require.NoError(t, l.SetKeyLimit("other", constant))
			require.NoError(t, l.SetKeyLimit("k", PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k", 1000))
			require.NoError(t, l.SetKeyLimit("k", constant))
			clock.Advance(5 * time.Second)
			require.NoError(t, l.SetKeyLimit("k", PerSecond(1).WithBurst(1000)))
			require.Equal(t, 500, spentOf(l, "k"), "under a limit of its own before")

			require.NoError(t, l.SetLimit(PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k2", 1000))
			require.NoError(t, l.SetKeyLimit("k2", constant))
			clock.Advance(5 * time.Second)
			l.ClearKeyLimit("k2")
			require.Equal(t, 500, spentOf(l, "k2"), "under the limiter's limit before")
		}
	}
}
