package sluice

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/stretchr/testify/require"
)

// The tests in this file are about a call that waits and the clock it waits by.

// TestWait_ManualClockRacesRegistration: the clock is moved once, just far enough, while
// the call is about to go to sleep. Were it not woken the bubble would be stuck.
func TestWait_ManualClockRacesRegistration(t *testing.T) {
	rounds := depth.Of(300, 300, 2000)
	for _, a := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			for i := range rounds {
				clock := NewManualClock(time.Unix(1_790_000_100, 0))
				l := mustNew(t, Config{Algorithm: a, Limit: oneASecond(a), Clock: clock, Shards: 1, MaxKeys: 4})
				require.True(t, l.Allow("k"))
				wait := goDo(2, func(int) { require.NoError(t, l.Wait(t.Context(), "k", 0)) })
				for range i % 5 {
					runtime.Gosched()
				}
				if i%2 == 0 {
					clock.Advance(2 * sec)
				} else {
					clock.Set(time.Unix(1_790_000_102, 0))
				}
				wait()
				require.Empty(t, clock.sleepers)
			}
		})
	}
}

// TestWait_ManualClockWakesAtTheNanosecond, and only who is due.
func TestWait_ManualClockWakesAtTheNanosecond(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			clock := NewManualClock(start)
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(9), Clock: clock})
			spent := 1
			if a != LeakyBucket {
				spent = 9
			}
			require.True(t, l.AllowN("k", spent))
			var woken atomic.Int32
			for range 3 {
				go func() {
					require.NoError(t, l.Wait(t.Context(), "k", 1))
					woken.Add(1)
				}()
			}
			synctest.Wait()
			for n := range int32(3) {
				clock.Advance(sec - 1)
				synctest.Wait()
				require.Equal(t, n, woken.Load())
				clock.Advance(1)
				synctest.Wait()
				require.Equal(t, n+1, woken.Load())
			}
			time.Sleep(time.Hour) // real time means nothing to this clock
		})
	}
}

// A slowClock runs at a fraction of real time.
func slowClock(base time.Time, part int64) Clock {
	return clockFunc(func() int64 { return start.UnixNano() + int64(time.Since(base))/part })
}

// TestWait_ByTheLimitersClock, whatever its speed.
func TestWait_ByTheLimitersClock(t *testing.T) {
	for _, a := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			base := time.Now()
			slow := mustNew(t, Config{Algorithm: a, Limit: oneASecond(a), Clock: slowClock(base, 7)})
			coarse := mustNew(t, Config{Algorithm: a, Limit: oneASecond(a), Clock: NewCoarseClock(time.Millisecond)})
			for range 3 {
				left := func(l *Limiter) time.Duration {
					if d := l.Peek("k", 1); a != LeakyBucket {
						return d.RetryAfter
					}
					return l.Peek("k", 0).ResetAfter
				}
				began, retry := slow.clock.Now(), int64(left(slow))
				require.NoError(t, slow.Wait(t.Context(), "k", 1))
				require.Equal(t, began+retry, slow.clock.Now(), "%v: neither too early nor too late", a)

				exact, retryCoarse := time.Now(), left(coarse)
				require.NoError(t, coarse.Wait(t.Context(), "k", 1))
				late := time.Since(exact) - retryCoarse
				require.LessOrEqual(t, max(late, -late), 2*time.Millisecond, "%v", a)
			}
		})
	}
}

// TestManualClock_SleepersAreIndependent: a caller that is cancelled does not wake the others.
func TestManualClock_SleepersAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewManualClock(time.Unix(0, 0))
		ctx, cancel := context.WithCancel(t.Context())
		var order []uint64
		for _, at := range []uint64{30, 10, 20} {
			go func() {
				require.NoError(t, clock.sleepUntil(t.Context(), at))
				order = append(order, at)
			}()
			go func() { require.ErrorIs(t, clock.sleepUntil(ctx, at), context.Canceled) }()
		}
		synctest.Wait()
		require.NoError(t, clock.sleepUntil(t.Context(), 0))
		cancel()
		synctest.Wait()
		require.Len(t, clock.sleepers, 3)
		for range 30 {
			clock.Advance(1)
			synctest.Wait()
		}
		require.True(t, slices.IsSorted(order))
		require.Len(t, order, 3)
	})
}
