package redistier

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// holdSenders makes calls that are answered after half a second, until no sender is left that may
// send another one. The first is for a key.
func holdSenders(t *testing.T, tier *Tier, fake *fakeRedis, key string) {
	fake.slow(250 * time.Millisecond)
	for i := range maxLate {
		_, from := takeFrom(t, tier, key, 1)
		require.Equal(t, FromFallback, from)
		key = fmt.Sprint("held", i)
	}
	l := tier.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, maxLate, l.late)
}

// TestLane_EndedByLease: a group that has ended before anybody could send it is not served from a
// lease that comes then: nobody waits in it any more.
func TestLane_EndedByLease(t *testing.T) {
	limit := sluice.PerMinute(6000).WithBurst(1000)
	bubble(t, TierConfig{Lease: Lease{Max: 100, Life: 10 * time.Second}}, limit, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		takeFrom(t, tier, "a", 1)
		holdSenders(t, tier, fake, "a") // which asks for a lease
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		require.Zero(t, tier.Stats().Lent)
		time.Sleep(time.Second)
		require.Equal(t, uint64(1), tier.Stats().Lent)
		fake.slow(0)
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromLease, from, "the unit is for who comes now")
	})
}

// TestLane_EndedUnsent: nobody joins a group that has ended before anybody could send it: each call
// waits for Redis as long as any, and counts for the breaker.
func TestLane_EndedUnsent(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		holdSenders(t, tier, fake, "a")
		for i := maxLate; i < breakerCalls; i++ {
			require.Equal(t, ModeShared, tier.Mode())
			begin := time.Now()
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromFallback, from)
			require.Equal(t, tier.wait, time.Since(begin), "call %d", i)
		}
		require.Equal(t, ModeDegraded, tier.Mode())
		require.Equal(t, uint64(breakerCalls), tier.Stats().Late)
	})
}
