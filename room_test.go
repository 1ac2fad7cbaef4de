package sluice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/room"
)

// Whoever waits for room is woken at the nanosecond at which the call would be admitted, has charged nothing, and has been counted
// as nothing.
func TestRoom_AwaitEndsWhenTheCallWouldBeAdmitted(t *testing.T) {
	for _, algorithm := range []Algorithm{GCRA, TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog} {
		synctest.Test(t, func(t *testing.T) {
			clock := NewManualClock(time.Unix(1_790_000_123, 456_789_012))
			l := Must(New(Config{Algorithm: algorithm, Limit: PerMinute(6), Clock: clock, Stats: true}))
			k := l.Key("k")
			require.True(t, k.Take(6).Allowed)
			wait := k.Peek(3).RetryAfter
			require.Positive(t, wait)
			done := make(chan error, 1)
			go func() { done <- room.Await(t.Context(), k, 3) }()
			synctest.Wait()
			clock.Advance(wait - 1)
			synctest.Wait()
			require.Empty(t, done, algorithm)
			clock.Advance(1)
			synctest.Wait()
			require.NoError(t, <-done, algorithm)
			assert.EqualValues(t, 1, l.Stats().Admitted)
			assert.Zero(t, l.Stats().Denied)
			assert.True(t, k.Take(3).Allowed, algorithm)
		})
	}
}

func TestRoom_AwaitIsWokenByUnitsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New(Config{Algorithm: InFlight, Limit: AtOnce(2, time.Hour)}))
		first, err := l.Acquire("k", 1)
		require.NoError(t, err)
		second, err := l.Acquire("k", 1)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- room.Await(t.Context(), l.Key("k"), 2) }()
		synctest.Wait()
		require.NoError(t, first.Release())
		synctest.Wait()
		require.Empty(t, done, "it needs two")
		require.NoError(t, second.Release())
		synctest.Wait()
		require.NoError(t, <-done)
	})
}

func TestRoom_AwaitEndsWithTheContextAndWhereNoWaitHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New(Config{Limit: PerHour(1)}))
		require.True(t, l.Allow("k"))
		require.NoError(t, room.Await(t.Context(), l.Key("k"), 2), "above the burst")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, room.Await(ctx, l.Key("k"), 1), context.DeadlineExceeded)
		require.ErrorIs(t, room.Await(ctx, l.Key("fresh"), 1), context.DeadlineExceeded)
	})
}

func TestRoom_DenyCounts(t *testing.T) {
	l := Must(New(Config{Limit: PerHour(1), Stats: true}))
	room.Deny(l.Key("k"), 1)
	assert.EqualValues(t, 1, l.Stats().Denied)
	assert.True(t, l.Allow("k"), "it has charged nothing")
}
