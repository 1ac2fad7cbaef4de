package sluice

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/test/depth"
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
			r, err := l.Key("k").Reserve(1, time.Minute)
			require.NoError(t, err)
			require.Equal(t, delay, r.Delay(), "%v", a)
			all = append(all, r)
		}
		if a == LeakyBucket {
			_, err := l.Key("k").Reserve(1, time.Minute)
			require.ErrorIs(t, err, ErrQueueFull)
		} else {
			_, err := l.Key("k").Reserve(1, 4*sec-1)
			require.ErrorIs(t, err, ErrWouldExceedDeadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.False(t, l.Allow("k"))
		clock.Advance(sec / 2)
		for _, r := range all[1:] {
			r.Cancel()
			r.Cancel()
		}
		require.Equal(t, sec/2, l.Key("k").Peek(0).ResetAfter, "%v", a)
		all[0].Settle(3)
		require.Equal(t, 5*sec/2, l.Key("k").Peek(0).ResetAfter, "%v", a)
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

// TestReservation_DelayCountsFromNow to the slot, which does not move.
func TestReservation_DelayCountsFromNow(t *testing.T) {
	for a, spent := range map[Algorithm]int{GCRA: 3, TokenBucket: 3, LeakyBucket: 1} {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(3)})
		key := l.Key("k")
		require.True(t, key.AllowN(spent))
		slots, err := reserveAll(time.Minute, Charge{key, 1})
		require.NoError(t, err)
		r, err := key.Reserve(1, time.Minute)
		require.NoError(t, err)
		slots = append(slots, r)
		now := clock.Now()
		for i, r := range slots {
			require.Equal(t, now+int64(i+1)*int64(sec), r.begins, "%v", a)
		}
		clock.Advance(sec / 4)
		require.Equal(t, 3*sec/4, slots[0].Delay(), "%v", a)
		require.Equal(t, 7*sec/4, slots[1].Delay(), "%v", a)
		clock.Advance(time.Minute)
		require.Zero(t, r.Delay(), "%v: it began long ago", a)
		require.Equal(t, now+int64(2*sec), r.begins, "%v", a)
	}
	l, clock := newFrozen(t, Config{Limit: PerHour(1), Shadow: true})
	for _, wouldDeny := range []bool{false, true} {
		r, err := l.Key("k").Reserve(1, 0)
		require.NoError(t, err)
		require.Equal(t, wouldDeny, r.WouldDeny())
		require.Equal(t, clock.Now(), r.begins)
		require.Zero(t, r.Delay())
	}
}

// Settle reads the clock; before it gives anything back, the unit comes back by itself and is
// taken by another call.
func TestSettle_GivesNothingBackThatHasBeenTakenMeanwhile(t *testing.T) {
	for _, a := range bucketAlgorithms {
		now, hook := start.UnixNano(), func() {}
		l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(2), Clock: clockFunc(func() int64 {
			read, h := now, hook
			hook = func() {}
			h()
			return read
		})})
		for used := range 2 {
			r, err := l.Key("k").Reserve(2, 0)
			require.NoError(t, err)
			hook = func() {
				now += int64(time.Second)
				require.True(t, l.AllowN("k", 2))
			}
			r.Settle(used)
			require.False(t, l.Allow("k"), "%v, %d used", a, used)
			now += int64(time.Second)
		}
	}
}

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
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(9)})
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
					if d := l.Key("k").Peek(1); a != LeakyBucket {
						return d.RetryAfter
					}
					return l.Key("k").Peek(0).ResetAfter
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
				require.NoError(t, clock.sleepUntil(t.Context(), nil, at))
				order = append(order, at)
			}()
			go func() { require.ErrorIs(t, clock.sleepUntil(ctx, nil, at), context.Canceled) }()
		}
		synctest.Wait()
		require.NoError(t, clock.sleepUntil(t.Context(), nil, 0))
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

// TestReserve_TheLastTurn: a call that begins at the last nanosecond of a limiter's clock, of as much
// as a bucket can hold at all, is charged up to the last tick that a word can tell.
func TestReserve_TheLastTurn(t *testing.T) {
	const longest = 1 << 62 // ns
	for _, a := range bucketAlgorithms {
		for _, burst := range []int{1, 1 << 20} {
			c := Config{Algorithm: a, Limit: Per(1, longest/time.Duration(burst)).WithBurst(burst), TTL: math.MaxInt64}
			s, _ := mustNew(t, c).policyOf(0).bucket().turns()
			c.Clock = NewManualClock(time.Unix(0, s.end))
			l := mustNew(t, c)
			mustReserve(t, l.Key("one"), burst)
			_, err := reserveAll(0, Charge{l.Key("all"), burst})
			require.NoError(t, err, "%v, burst %d", a, burst)
			for _, key := range []string{"one", "all"} {
				require.Equal(t, s.most, l.policyOf(0).bucket().full(wordOf(l, l.Key(key).id)), "%v, burst %d", a, burst)
				_, err = l.Key(key).Reserve(1, math.MaxInt64)
				require.Error(t, err)
			}
		}
	}
}

// TestReserve_UnlimitedHasItNoLonger: whoever has come by Unlimited, which the key no longer has, comes again.
func TestReserve_UnlimitedHasItNoLonger(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: Unlimited})
	p, k := l.policyOf(0), l.Key("k")
	done, err := l.reserveUnlimited(p, k.id, clock.Now(), 0)
	require.True(t, done)
	require.NoError(t, err)
	require.NoError(t, l.SetLimit(PerSecond(1)))
	require.True(t, k.Allow())
	for _, k := range []Key{k, l.Key("not tracked")} {
		done, _ = l.reserveUnlimited(p, k.id, clock.Now(), 0)
		require.False(t, done)
	}
}

// TestReserve_AfterTheLastTick: a hostile snapshot says that more is charged than a word can tell. A
// word tells as much as it can, and there is no turn after that.
func TestReserve_AfterTheLastTick(t *testing.T) {
	for _, a := range bucketAlgorithms {
		c := Config{Algorithm: a, Limit: Per(1, 1<<62), Hash: HashStable, Clock: NewManualClock(start), TTL: math.MaxInt64}
		l := restoredFrom(t, c, hostile(t, c, reserved-1))
		k, b := l.KeyHash(1), l.policyOf(0).bucket()
		s, _ := b.turns()
		require.Equal(t, s.most, b.full(wordOf(l, k.id)), "%v", a)
		_, err := k.Reserve(1, Never)
		require.Error(t, err)
		_, err = reserveAll(Never, Charge{k, 1})
		require.Error(t, err)
		require.Equal(t, s.most, b.full(wordOf(l, k.id)), "%v", a)
	}
}
