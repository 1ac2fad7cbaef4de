package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

func TestPeek_ChargesAndInsertsNothing(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, clock *ManualClock) {
		burst := l.Take("spent", 1).Limit
		require.True(t, l.AllowN("spent", burst-1))
		for _, cost := range []int{1, 0, burst, burst + 1, -1} {
			for range 3 {
				// The same again, from a key that is not tracked and from one that is.
				assert.Equal(t, l.Peek("fresh", cost), l.Peek("fresh", cost))
				assert.Equal(t, l.Peek("spent", cost), l.Peek("spent", cost))
			}
		}
		require.Equal(t, 1, l.Len(), "only the key that was charged")
		require.Equal(t, l.Peek("fresh", burst), l.Take("fresh", burst), "peeks have charged nothing")
		require.False(t, l.Peek("spent", 1).Allowed)
		clock.Advance(l.Peek("spent", 1).RetryAfter)
		require.True(t, l.Peek("spent", 1).Allowed)
		require.True(t, l.Allow("spent"))
	})
}

func TestPeek_DescribesTheNextTake(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, clock *ManualClock) {
		rng := seeded.Rand(t)
		burst := int(l.policyOf(0).burst)
		for range 2000 {
			cost := rng.IntN(burst+3) - 1
			if rng.IntN(2) == 0 {
				cost = rng.IntN(4) - 1
			}
			require.Equal(t, l.Peek("k", cost), l.Take("k", cost), "cost %d", cost)
			clock.Advance(time.Duration(rng.Int64N(int64(l.policyOf(0).limit.Period) / 4)))
		}
	})
}
