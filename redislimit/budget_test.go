package redislimit

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestTier_Budget: a call waits for Redis until there is just enough time left to answer it.
func TestTier_Budget(t *testing.T) {
	for _, c := range []struct{ budget, wait time.Duration }{
		{100 * time.Microsecond, 87_500},
		{time.Millisecond, 875 * time.Microsecond},
		{0, 4375 * time.Microsecond},
		{16 * time.Millisecond, 14 * time.Millisecond},
		{time.Minute, time.Minute - 2*time.Millisecond},
	} {
		t.Run(c.budget.String(), func(t *testing.T) {
			bubble(t, TierConfig{Budget: c.budget}, sluice.PerHour(1_000_000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
				demand := func(key string, source Source, waited time.Duration) {
					begin := time.Now()
					d, from, err := tier.TakeSource(context.Background(), key, 1)
					if assert.NoError(t, err) {
						assert.True(t, d.Allowed)
						assert.Equal(t, source, from)
						assert.Equal(t, waited, time.Since(begin))
					}
				}
				if c.wait > 1 {
					fake.slow((c.wait - 1) / 2)
					demand("quick", FromRedis, (c.wait-1)/2*2)
				}
				fake.slow(c.wait)
				demand("slow", FromFallback, c.wait)
			})
		})
	}
}

// TestTier_BudgetShared: the first caller of a group says when all of them leave.
func TestTier_BudgetShared(t *testing.T) {
	bubble(t, TierConfig{Budget: 16 * time.Millisecond}, sluice.PerHour(1_000_000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		fake.slow(time.Second)
		var wg sync.WaitGroup
		took := make([]time.Duration, 5)
		for i := range took {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				begin := time.Now()
				_, from, err := tier.TakeSource(context.Background(), "a", 1)
				took[i] = time.Since(begin)
				assert.NoError(t, err)
				assert.Equal(t, FromFallback, from)
			})
		}
		wg.Wait()
		// The first two go out alone. Both pipelines are under way then, so that the others
		// wait for one, together.
		require.Equal(t, []time.Duration{14, 14, 14, 13, 12}, func() (ms []time.Duration) {
			for _, d := range took {
				ms = append(ms, d/time.Millisecond)
			}
			return ms
		}())
	})
}
