package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestReturn_Share: when Redis is back, others may not have told it yet what they were admitted. So until they must have, a process
// gets its share of what Redis admits, and no lease. What Redis denies does not count against the share.
func TestReturn_Share(t *testing.T) {
	bubble(t, TierConfig{Replicas: 4, MaxStale: 1, Lease: Lease{Max: 100}}, sluice.PerHour(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		other := newLimiter(t, fake.client(), tier.shared.config)
		defer other.link.client.Close()
		breaks(tier, "a")
		require.Equal(t, ModeDegraded, tier.Mode())
		time.Sleep(firstPause)
		for range 25 {
			d, from := takeFrom(t, tier, "a", 1)
			require.True(t, d.Allowed)
			require.Equal(t, FromRedis, from)
		}
		d, from := takeFrom(t, tier, "a", 1)
		require.False(t, d.Allowed)
		require.Equal(t, FromFallback, from)
		require.Equal(t, 100, d.Limit)
		d, _ = takeFrom(t, tier, "a", 30)
		require.LessOrEqual(t, d.RetryAfter, returnPause, "more than the share: when Redis decides again")
		require.Zero(t, tier.Stats().Lent)
		take(t, other, "b", 90)
		for range 3 {
			d, from = takeFrom(t, tier, "b", 20)
			require.False(t, d.Allowed)
			require.Equal(t, FromRedis, from)
			time.Sleep(time.Millisecond)
		}
		d, _ = takeFrom(t, tier, "b", 10)
		require.True(t, d.Allowed, "the share has been given back what Redis has denied")
		require.Equal(t, ModeDegraded, tier.Mode())
		time.Sleep(returnPause)
		require.Equal(t, ModeShared, tier.Mode())
		d, from = takeFrom(t, tier, "a", 70)
		require.True(t, d.Allowed)
		require.Equal(t, FromRedis, from)
	})
}

// TestReturn_Fails: a call that fails while Redis is only just back is charged to the share, once, and is told to Redis. As many failures as begin an
// outage let it go on, as one outage; fewer do not.
func TestReturn_Fails(t *testing.T) {
	bubble(t, TierConfig{Replicas: 4}, sluice.PerHour(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		breaks(tier, "a")
		time.Sleep(firstPause)
		fails := func() (waited time.Duration) {
			begin := time.Now()
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromFallback, from)
			return time.Since(begin)
		}
		fake.slow(time.Second)
		for i := range breakerRun {
			require.NotZero(t, fails(), "Redis is asked, although %d calls have failed", i)
		}
		require.Zero(t, fails(), "Redis is not asked")
		d, _ := takeFrom(t, tier, "a", 25-breakerRun)
		require.False(t, d.Allowed, "each call is charged once")
		d, _ = takeFrom(t, tier, "a", 25-breakerRun-1)
		require.True(t, d.Allowed)
		fake.slow(0)
		time.Sleep(firstPause + longestPause)
		require.True(t, tier.router.first.returning.Load())
		fake.slow(time.Second)
		for range breakerRun - 1 {
			fails()
		}
		fake.slow(0)
		time.Sleep(returnPause)
		require.Equal(t, ModeShared, tier.Mode(), "it ends when it would have ended without these failures")
		require.Equal(t, uint64(1), tier.Stats().Outages)
	})
}
