package sluice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReserve_HandsOutSlotsInOrder(t *testing.T) {
	for a, want := range map[Algorithm][]time.Duration{
		GCRA:        {0, 0, 0, sec, 2 * sec, 3 * sec},
		TokenBucket: {0, 0, 0, sec, 2 * sec, 3 * sec},
		LeakyBucket: {0, sec, 2 * sec},
	} {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(3)})
		var all []*Reservation
		for _, delay := range want {
			r, err := l.Reserve("k", 1, time.Minute)
			require.NoError(t, err)
			require.Equal(t, delay, r.Delay(), "%v", a)
			all = append(all, r)
		}
		if a == LeakyBucket {
			_, err := l.Reserve("k", 1, time.Minute)
			require.ErrorIs(t, err, ErrQueueFull)
		} else {
			_, err := l.Reserve("k", 1, 4*sec-1)
			require.ErrorIs(t, err, ErrWouldExceedDeadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.False(t, l.Allow("k"))
		clock.Advance(sec / 2)
		for _, r := range all[1:] {
			r.Cancel()
			r.Cancel()
		}
		require.Equal(t, sec/2, l.Peek("k", 0).ResetAfter, "%v", a)
		all[0].Settle(3)
		require.Equal(t, 5*sec/2, l.Peek("k", 0).ResetAfter, "%v", a)
	}
}

func TestWait_ShapesAndCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Algorithm: LeakyBucket, Limit: PerSecond(10).WithBurst(5)})
		begin := time.Now()
		var at [5]time.Duration
		wait := goDo(5, func(g int) {
			require.NoError(t, l.Wait(context.Background(), "k", 1))
			at[g] = time.Since(begin)
		})
		synctest.Wait()
		require.ErrorIs(t, l.Wait(context.Background(), "k", 1), ErrQueueFull)
		wait()
		seen := map[time.Duration]bool{}
		for _, d := range at {
			seen[d] = true
		}
		require.Len(t, seen, 5)
		for i := range 5 {
			require.True(t, seen[time.Duration(i)*sec/10])
		}
		time.Sleep(sec)
		require.NoError(t, l.Wait(context.Background(), "k", 5))
		ctx, cancel := context.WithTimeout(context.Background(), sec/4)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), ErrQueueFull)
	})
}
