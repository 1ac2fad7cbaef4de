package redislimit

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
		forgives(tier)
	}
	l := tier.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, maxLate, l.late)
}

// forgives has the breaker forget what has failed, so that it does not open.
func forgives(t *Tier) {
	l := t.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaker = breaker{}
}

// breaks has the breaker of a tier open, by a call for a key.
func breaks(t *Tier, key string) {
	l := t.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	r := t.shared.request(t.shared.plan.Load(), key)
	l.outcome(&group{request: r, waiters: make([]*waiter, 1000*breakerCalls)}, errLate, time.Now())
}

// withoutSenders waits until a lane has no sender, and lets none start before startSenders.
func withoutSenders(tb testing.TB, l *lane) {
	tb.Helper()
	await(tb, "no sender is left", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		none := l.senders == 0
		if none {
			l.senders = maxSenders
		}
		return none
	})
}

// startSenders has what waits sent.
func startSenders(l *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.senders = 0
	l.send()
}

// TestLane_Closed: a call that comes to a lane which has been closed since it looked gets ErrClosed, and does not go on
// without Redis.
func TestLane_Closed(t *testing.T) {
	bubble(t, TierConfig{OnUnavailable: FailOpen}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		tier.router.first.close()
		_, err := tier.Take(t.Context(), "a", 1)
		require.Equal(t, ErrClosed, err)
		_, err = tier.Debit(t.Context(), "a", 1)
		require.Equal(t, ErrClosed, err)
		require.Equal(t, ErrClosed, tier.Refund(t.Context(), "a", 1))
		require.Equal(t, ErrClosed, tier.Reset(t.Context(), "a"))
		require.Zero(t, tier.Stats())
	})
}

// TestLane_Open: a call that Redis is not asked about is neither late nor failed.
func TestLane_Open(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		breaks(tier, "a")
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		require.Equal(t, Stats{Fallback: 1, Outages: 1, Unasked: 1, Unshared: 1, Owed: 1}, tier.Stats())
		require.Zero(t, fake.count())
		time.Sleep(time.Second)
		require.NotZero(t, fake.count(), "probes go out without calls")
		require.Equal(t, ModeShared, tier.Mode())
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
	})
}
