package sluice

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spend charges all that is left of the key k.
func spend(t *testing.T, l *Limiter) {
	t.Helper()
	require.True(t, l.AllowN("k", l.Key("k").Peek(0).Remaining))
}

// inBubble runs f for each layout with a clock of each kind that follows a bubble.
func inBubble(t *testing.T, f func(t *testing.T, l *Limiter)) {
	t.Helper()
	forEveryLayout(t, func(t *testing.T, c Config) {
		synctest.Test(t, func(t *testing.T) { f(t, mustNew(t, c)) })
	})
}

// TestWait_InOrderOfArrival: bursts stay bursts under GCRA and the token bucket, and the
// leaky bucket spaces calls evenly.
func TestWait_InOrderOfArrival(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			burst, want := 5, []time.Duration{0, 0, 0, 1, 2}
			if a == LeakyBucket {
				burst, want = 7, []time.Duration{0, 1, 3, 4, 6}
			}
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(10).WithBurst(burst)})
			begin := time.Now()
			var mu sync.Mutex
			var done []int
			var at []time.Duration
			for i := range 5 {
				go func() {
					assert.NoError(t, l.Wait(t.Context(), "k", 1+i%2))
					mu.Lock()
					defer mu.Unlock()
					done, at = append(done, i), append(at, time.Since(begin)/(sec/10))
				}()
				synctest.Wait()
			}
			time.Sleep(5 * sec)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, []int{0, 1, 2, 3, 4}, done)
			require.Equal(t, want, at, "%v", a)
			require.Zero(t, openReservations(l))
		})
	}
}

// TestWait_IsAdmittedAtRetryAfter, to the nanosecond, under all algorithms.
func TestWait_IsAdmittedAtRetryAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		spend(t, l)
		for _, cost := range []int{1, 0, 7, burstOf(l)} {
			d := l.Key("k").Peek(cost)
			wait := d.RetryAfter
			if l.Config().Algorithm == LeakyBucket {
				if cost > d.Remaining {
					require.ErrorIs(t, l.Wait(t.Context(), "k", cost), ErrQueueFull)
					time.Sleep(wait)
				}
				wait = l.Key("k").Peek(0).ResetAfter
			}
			begin := time.Now()
			require.NoError(t, l.Wait(t.Context(), "k", cost))
			require.Equal(t, wait, time.Since(begin), "cost %d", cost)
		}
	})
}

// TestWait_FailsAtOnce if the deadline is too soon, charging nothing.
func TestWait_FailsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		if l.holds() {
			return // units may come back at any time
		}
		spend(t, l)
		cost := 2
		if l.Config().Algorithm == LeakyBucket {
			time.Sleep(l.Key("k").Peek(cost).RetryAfter)
		}
		before, begin := l.Key("k").Peek(0), time.Now()
		wait := l.Key("k").Peek(cost).RetryAfter
		if l.Config().Algorithm == LeakyBucket {
			wait = before.ResetAfter
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait-1)
		defer cancel()
		for range 3 {
			err := l.Wait(ctx, "k", cost)
			require.ErrorIs(t, err, ErrWouldExceedDeadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, time.Since(begin))
			require.Equal(t, before, l.Key("k").Peek(0))
		}
		later, cancel := context.WithTimeout(t.Context(), wait+1)
		defer cancel()
		require.NoError(t, l.Wait(later, "k", cost))
		require.Equal(t, wait, time.Since(begin))

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Wait(gone, "other", 1), context.Canceled)
		require.Equal(t, 1, l.Len(), "a caller that has gone is charged nothing")
	})
}

// TestWait_Counted: those that wait are in Stats, also under a limit that the key brings, and until they have
// been admitted or have gone.
func TestWait_Counted(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		spend(t, l)
		if l.Config().Algorithm == LeakyBucket {
			l.Key("k").Refund(100)
		}
		other := mustNew(t, Config{Limit: PerHour(10)})
		brought, err := other.Key("k").WithLimit(PerHour(1))
		require.NoError(t, err)
		require.True(t, brought.AllowN(1))
		require.Zero(t, l.Stats().Waiting, "nobody has waited")
		ctx, cancel := context.WithCancel(t.Context())
		go l.Wait(ctx, "k", 3)
		go WaitAll(ctx, Charge{Key: brought, Cost: 1}, Charge{Key: other.Key("l"), Cost: 1})
		go brought.Wait(ctx, 1)
		synctest.Wait()
		require.Equal(t, 1, l.Stats().Waiting)
		require.Equal(t, 2, other.Stats().Waiting)
		cancel()
		synctest.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.Zero(t, other.Stats().Waiting)
		require.NoError(t, l.Wait(t.Context(), "k", 3))
		require.Zero(t, l.Stats().Waiting)
	})
}

// TestWait_CancelledLeavesNothing: no charge and no goroutine, which the bubble would not
// end with; nor a sleeper of the clock.
func TestWait_CancelledLeavesNothing(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, manual := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				clock := NewManualClock(start)
				if c.Clock = nil; manual {
					c.Clock = clock
				}
				l := mustNew(t, c)
				spend(t, l)
				before := l.Key("k").Peek(0)
				if c.Algorithm == LeakyBucket { // there must be room to wait in
					l.Key("k").Refund(100)
					before = l.Key("k").Peek(0)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var failed atomic.Int64
				for range 5 {
					go func() {
						assert.ErrorIs(t, l.Wait(ctx, "k", 3), context.Canceled)
						failed.Add(1)
					}()
				}
				synctest.Wait()
				cancel()
				synctest.Wait()
				require.Equal(t, int64(5), failed.Load())
				require.Equal(t, before, l.Key("k").Peek(0))
				require.Zero(t, openReservations(l))
				require.Empty(t, clock.sleepers)
			})
		}
	})
}

// TestWait_CancelledAmongOthers: the others move up, and a new call comes after them.
func TestWait_CancelledAmongOthers(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(4)})
			begin := time.Now()
			spent := 4
			if a == LeakyBucket {
				spent = 1
				require.NoError(t, l.SetLimit(PerSecond(1).WithBurst(9)))
			}
			require.True(t, l.AllowN("k", spent))
			var mu sync.Mutex
			var at []time.Duration
			call := func(ctx context.Context) {
				go func() {
					if l.Wait(ctx, "k", 1) == nil {
						mu.Lock()
						defer mu.Unlock()
						at = append(at, time.Since(begin))
					}
				}()
				synctest.Wait()
			}
			ctx, cancel := context.WithCancel(t.Context())
			call(ctx)
			call(t.Context())
			call(t.Context())
			cancel()
			synctest.Wait()
			call(t.Context())
			time.Sleep(10 * sec)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, []time.Duration{sec, 2 * sec, 3 * sec}, at, "%v", a)
		})
	}
}

// oneASecond lets one call pass, and the next one wait.
func oneASecond(a Algorithm) Limit {
	if a == LeakyBucket {
		return PerSecond(1).WithBurst(2)
	}
	return PerSecond(1).WithBurst(1)
}

// TestWait_Blocked: a block is waited out, if it ends; nothing is reserved meanwhile.
func TestWait_Blocked(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		require.True(t, l.Key("k").Block(sec))
		_, err := l.Key("k").Reserve(1, time.Hour)
		if l.policyOf(0).bucket() != nil {
			require.ErrorIs(t, err, ErrBlocked)
		} else {
			require.ErrorIs(t, err, ErrNotReservable)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), sec-1)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), ErrWouldExceedDeadline)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		require.Equal(t, sec, time.Since(begin))

		go func() {
			time.Sleep(sec / 2)
			l.Key("k").Block(3 * sec) // longer, while it is waited for
		}()
		require.True(t, l.Key("k").Block(sec))
		begin = time.Now()
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		require.GreaterOrEqual(t, time.Since(begin), 7*sec/2)

		require.True(t, l.Key("k").Block(math.MaxInt64))
		require.ErrorIs(t, l.Wait(t.Context(), "k", 1), ErrWouldExceedDeadline, "it never ends")
	})
}

// TestWait_BlockedBeforeItsSlot: the key is blocked while the call waits for its slot, which
// is then lost; the call waits for the end of the block, if it can.
func TestWait_BlockedBeforeItsSlot(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(3)})
			k := l.Key("k")
			require.NoError(t, k.Wait(t.Context(), 1))
			if a != LeakyBucket {
				spend(t, l)
			}
			begin := time.Now()
			go func() {
				time.Sleep(sec / 2)
				k.Block(5 * sec)
			}()
			hurry := goDo(1, func(int) {
				ctx, cancel := context.WithTimeout(t.Context(), 4*sec)
				defer cancel()
				assert.ErrorIs(t, k.Wait(ctx, 1), ErrWouldExceedDeadline)
				assert.GreaterOrEqual(t, time.Since(begin), sec)
			})
			require.NoError(t, k.Wait(t.Context(), 1))
			require.Equal(t, 11*sec/2, time.Since(begin), "%v", a)
			hurry()
			require.Equal(t, 2, k.Peek(0).Remaining, "%v: what the block has made fresh does not come back", a)
			require.Zero(t, openReservations(l))
		})
	}
}

// TestWait_Errors that the state has no part in.
func TestWait_Errors(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		reservable := l.policyOf(0).bucket() != nil
		both := func(l *Limiter, cost int, wait, reserve error) {
			t.Helper()
			require.Equal(t, wait, l.Wait(t.Context(), "k", cost))
			require.Equal(t, wait, l.Key("k").Wait(t.Context(), cost))
			_, err := l.Key("k").Reserve(cost, 0)
			require.Equal(t, reserve, err)
		}
		both(l, -1, ErrNegativeCost, ErrNegativeCost)
		both(l, math.MinInt, ErrNegativeCost, ErrNegativeCost)
		both(l, burst+1, ErrCostExceedsBurst, ErrCostExceedsBurst)
		both(l, math.MaxInt, ErrCostExceedsBurst, ErrCostExceedsBurst)
		require.Zero(t, l.Len())
		free := error(nil)
		if !reservable {
			free = ErrNotReservable
		}
		both(l, 0, nil, free)
		require.Zero(t, l.Len(), "nothing has been charged")

		require.NoError(t, l.SetLimit(DenyAll))
		both(l, 1, ErrCostExceedsBurst, ErrCostExceedsBurst)
		both(l, 0, ErrCostExceedsBurst, ErrCostExceedsBurst)
		require.NoError(t, l.SetLimit(Unlimited))
		both(l, 1, nil, nil)
		both(l, math.MaxInt, nil, nil)
		both(l, -1, ErrNegativeCost, ErrNegativeCost)
		require.Zero(t, l.Len())

		for _, o := range untracking {
			full := c
			full.Overflow, full.MaxKeys, full.Shards = o, 1, 1
			l, _ := newFrozen(t, full)
			require.True(t, l.Allow("other"))
			want := map[Overflow]error{OverflowDenyNew: ErrNoRoom}[o]
			both(l, 1, want, map[bool]error{true: want, false: ErrNotReservable}[reservable])
		}
	})
}

// TestWait_Shadow: nobody waits, and what enforcement would have denied is counted.
func TestWait_Shadow(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shadow, c.Stats = true, true
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		require.NoError(t, l.Wait(t.Context(), "k", burst))
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), context.DeadlineExceeded)
		require.Zero(t, l.Stats().WouldDeny)
		for _, cost := range []int{burst + 1, -1} {
			require.NoError(t, l.Wait(t.Context(), "k", cost))
		}
		require.Equal(t, uint64(2), l.Stats().WouldDeny)
		if l.policyOf(0).bucket() == nil {
			require.NoError(t, l.Wait(t.Context(), "k", 1))
			require.Equal(t, uint64(3), l.Stats().WouldDeny)
			return
		}
		owed := l.Key("k").Peek(0).ResetAfter
		r, err := l.Key("k").Reserve(1, 0)
		require.NoError(t, err)
		require.Zero(t, r.Delay())
		require.Equal(t, uint64(3), l.Stats().WouldDeny)
		r.Settle(100)
		require.Equal(t, owed, l.Key("k").Peek(0).ResetAfter, "what has no slot is not charged")
		if c.Algorithm != LeakyBucket {
			r, err = l.Key("k").Reserve(1, time.Hour)
			require.NoError(t, err)
			require.Zero(t, r.Delay())
			require.Greater(t, l.Key("k").Peek(0).ResetAfter, owed, "it has taken its slot")
			r.Cancel()
			require.Equal(t, owed, l.Key("k").Peek(0).ResetAfter)
		}
	})
}

// TestWait_IsCounted once, as admitted or denied, and named among the denied.
func TestWait_IsCounted(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		synctest.Test(t, func(t *testing.T) {
			c := c
			c.Stats, c.TopDenied = true, 3
			l := mustNew(t, c)
			require.NoError(t, l.Wait(t.Context(), "k", 1))
			require.NoError(t, l.Wait(t.Context(), "k", 1))
			require.NoError(t, l.Wait(t.Context(), "k", 0))
			require.Error(t, l.Wait(t.Context(), "k", -1))
			s := l.Stats()
			require.Equal(t, []uint64{2, 1}, []uint64{s.Admitted, s.Denied})
		})
	})
}

// TestAllocs_NoneForWait that is admitted at once.
func TestAllocs_NoneForWait(t *testing.T) {
	skipUnderRace(t)
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, sec} {
			c.Stats, c.BlockFor = block == 0, block
			l, clock := newFrozen(t, c)
			k, ctx := l.Key("k"), t.Context()
			require.NoError(t, k.Wait(ctx, 1))
			failed := false
			requireNoAllocs(t, "Wait", func() {
				clock.Advance(time.Minute)
				failed = failed || k.Wait(ctx, 0) != nil || l.Wait(ctx, "k", 1) != nil
			})
			require.False(t, failed)
			requireNoAllocs(t, "a Wait that cannot be met", func() { failed = k.Wait(ctx, -1) == nil || k.Wait(ctx, math.MaxInt) == nil })
			require.False(t, failed)
		}
	})
}

// TestWait_ABlockEndsAtItsNanosecond: a turn that begins then is not taken by it.
func TestWait_ABlockEndsAtItsNanosecond(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.Block(sec))
		clock.Advance(sec - 1)
		require.True(t, l.blocked(k.id))
		clock.Advance(1)
		require.False(t, l.blocked(k.id))
	})
}

// TestWait_ATurnThatHasBegun by the time it is reserved: nobody waits for it, or finds a block
// that comes later.
func TestWait_ATurnThatHasBegun(t *testing.T) {
	for _, a := range bucketAlgorithms {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1), Clock: clock})
		k := l.Key("k")
		require.True(t, k.Allow())
		block := func() { k.Block(time.Hour) }
		pass := func() { clock.Advance(sec); clock.hook.Store(&block) }
		attempt := func() { clock.hook.Store(&pass) }
		clock.hook.Store(&attempt)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, k.Wait(ctx, 1), "%v", a)
		require.True(t, l.blocked(k.id), "%v: since the turn began", a)
	}
}

// TestWait_KeepsItsTime whatever becomes of the limit and of what the key has spent. Later callers
// are admitted first. Then a turn has come, and what has no turns asks again. (A refund moves turns up.)
func TestWait_KeepsItsTime(t *testing.T) {
	doubled := func(l *Limiter) Limit {
		limit := l.Config().Limit
		return Per(2*limit.Rate, limit.Period).WithBurst(2 * limit.Burst)
	}
	changes := map[string]func(l *Limiter) error{
		"SetLimit":     func(l *Limiter) error { return l.SetLimit(doubled(l)) },
		"Key.SetLimit": func(l *Limiter) error { return l.Key("k").SetLimit(doubled(l)) },
		"Unlimited":    func(l *Limiter) error { return l.SetLimit(Unlimited) },
		"DenyAll":      func(l *Limiter) error { return l.SetLimit(DenyAll) },
		"Reset":        func(l *Limiter) error { l.Key("k").Reset(); return nil },
		"Refund":       func(l *Limiter) error { l.Key("k").Refund(burstOf(l)); return nil },
	}
	for name, change := range changes {
		t.Run("change="+name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *Limiter) {
				if l.holds() && (name == "Reset" || name == "Refund") {
					return // gives units back, which the call is waiting for
				}
				turns := l.policyOf(0).bucket() != nil
				if turns && name == "Refund" {
					return
				}
				spend(t, l)
				wait := l.Key("k").Peek(1).RetryAfter
				if l.Config().Algorithm == LeakyBucket {
					time.Sleep(wait)
					wait = l.Key("k").Peek(0).ResetAfter
				}
				var err error
				var waited atomic.Bool
				go func() {
					err = l.Wait(t.Context(), "k", 1)
					waited.Store(true)
				}()
				synctest.Wait()
				require.NoError(t, change(l))
				require.Equal(t, name != "DenyAll", l.Allow("k"), "a later caller")
				time.Sleep(wait - 1)
				synctest.Wait()
				require.False(t, waited.Load())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.True(t, waited.Load())
				if name == "DenyAll" && !turns {
					require.ErrorIs(t, err, ErrCostExceedsBurst)
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}
