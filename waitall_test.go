package sluice

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWaitAll_ChargesForOneKeyAddUp, and are given back one by one.
func TestWaitAll_ChargesForOneKeyAddUp(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10)})
		other, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(2)})
		k, o := l.KeyHash(1), other.KeyHash(1) // of one id, and two keys all the same
		require.True(t, o.AllowN(2))
		_, err := reserveAll(time.Hour, Charge{k, 5}, Charge{o, 1}, Charge{k, 6})
		require.ErrorIs(t, err, ErrCostExceedsBurst)
		all, err := reserveAll(time.Hour, Charge{k, 4}, Charge{o, 2}, Charge{k, 3}, Charge{k, 0})
		require.NoError(t, err)
		for _, r := range all {
			require.Equal(t, 2*sec, r.Delay(), "%v", a)
		}
		require.Equal(t, 9*sec, k.Peek(0).ResetAfter, "from the slot on")
		require.Equal(t, 4*sec, o.Peek(0).ResetAfter)
		all[0].Settle(1)
		require.Equal(t, 6*sec, k.Peek(0).ResetAfter)
		all[2].Cancel()
		all[3].Cancel()
		require.Equal(t, 3*sec, k.Peek(0).ResetAfter)
		all[0].Cancel()
		all[1].Cancel()
		require.Equal(t, 2*sec, o.Peek(0).ResetAfter)
	}
}

// TestWaitAll_Errors charge nothing, track nothing, and count whom they are of.
func TestWaitAll_Errors(t *testing.T) {
	plain := Config{Limit: PerSecond(1).WithBurst(2), Stats: true}
	full := Config{Limit: PerSecond(1), MaxKeys: 1, Shards: 1, Overflow: OverflowDenyNew}
	deny, unlimited := Config{Limit: DenyAll}, Config{Limit: Unlimited}
	for _, c := range []struct {
		other Config
		cost  int
		most  time.Duration
		want  error
	}{
		{plain, -1, time.Hour, ErrNegativeCost},
		{plain, 3, time.Hour, ErrCostExceedsBurst},
		{plain, math.MaxInt, time.Hour, ErrCostExceedsBurst},
		{deny, 1, time.Hour, ErrCostExceedsBurst},
		{full, 1, time.Hour, ErrNoRoom},
		{plain, 1, -1, ErrWouldExceedDeadline},
		{unlimited, 1, -1, ErrWouldExceedDeadline},
	} {
		l, _ := newFrozen(t, plain)
		other, _ := newFrozen(t, c.other)
		if c.want == ErrNoRoom {
			require.True(t, other.Allow("there already"))
		}
		_, err := reserveAll(c.most, Charge{l.Key("k"), 1}, Charge{other.Key("k"), c.cost})
		require.ErrorIs(t, err, c.want)
		if c.want != ErrNoRoom { // which is found when keys are tracked
			require.Zero(t, l.Len())
		}
		require.Equal(t, 2, l.Key("k").Peek(0).Remaining)
		require.Zero(t, openReservations(l)+openReservations(other))
		require.Zero(t, l.Stats().Admitted)
		require.Error(t, waitAll(t.Context(), Charge{l.Key("k"), 1}, Charge{other.Key("k"), -1}))
	}
	_, err := reserveAll(0)
	require.NoError(t, err)
	require.NoError(t, waitAll(t.Context()))
}

// TestWaitAll_ShadowHasAReservation: a limiter that is being tried out keeps nobody waiting.
func TestWaitAll_ShadowHasAReservation(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(5)})
	shadow, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1), Shadow: true, Stats: true})
	for i := range 3 {
		all, err := reserveAll(0, Charge{l.Key("k"), 1}, Charge{shadow.Key("k"), 1})
		require.NoError(t, err)
		require.Zero(t, all[0].Delay())
		require.False(t, all[0].WouldDeny())
		require.Equal(t, i > 0, all[1].WouldDeny())
	}
	require.Equal(t, sec, shadow.Key("k").Peek(0).ResetAfter, "what has no slot is not charged")
	require.Equal(t, uint64(2), shadow.Stats().WouldDeny)
}

// TestConcurrent_WaitAllInAnyOrder of the keys: nobody waits for ever, and no part of one
// is charged without the rest, while limits change and keys are evicted from elsewhere.
func TestConcurrent_WaitAllInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1_000_000), Shards: 2})
		m, _ := newFrozen(t, Config{Algorithm: GCRA, Limit: PerSecond(1).WithBurst(1_000_000), Shards: 1})
		keys := []Key{l.Key("a"), l.Key("b"), m.Key("a"), m.Key("b")}
		stop := churnAll([]*Limiter{l, m})
		goDo(4, func(g int) {
			for i := range 150 {
				var charges []Charge
				for j := range keys {
					charges = append(charges, Charge{keys[(i*(g+1)+j*(1+2*(g%2)))%len(keys)], 1 + j})
				}
				all, err := reserveAll(math.MaxInt64, charges...)
				if !assert.NoError(t, err) {
					return
				}
				switch {
				case i%10 == 0 && g == 0:
					assert.NoError(t, l.SetLimit(PerSecond(1).WithBurst(1_000_000+i)))
				case i%10 == 5 && g == 1:
					assert.NoError(t, keys[0].SetLimit(PerSecond(1).WithBurst(900_000+i)))
				}
				for j := range all {
					all[(j+g)%len(all)].Cancel()
				}
			}
		})()
		stop()
		for _, k := range keys {
			require.Zero(t, k.Peek(0).ResetAfter)
		}
		require.Zero(t, openReservations(l)+openReservations(m))
	}
}

// TestWaitAll_PassesAtTheLatestSlot, is cancelled without a trace, and waits for blocks.
func TestWaitAll_PassesAtTheLatestSlot(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), Stats: true})
			tokens := mustNew(t, Config{Limit: PerSecond(100).WithBurst(100)})
			charges := []Charge{{l.Key("k"), 1}, {tokens.Key("k"), 100}}
			begin := time.Now()
			for range 3 {
				require.NoError(t, waitAll(t.Context(), charges...))
			}
			require.Equal(t, 2*sec, time.Since(begin), "%v", a)
			require.Zero(t, openReservations(l)+openReservations(tokens))

			ctx, cancel := context.WithTimeout(t.Context(), sec-1)
			defer cancel()
			require.ErrorIs(t, waitAll(ctx, charges...), ErrWouldExceedDeadline)
			ctx, cancel = context.WithCancel(t.Context())
			go func() {
				time.Sleep(sec / 2)
				cancel()
			}()
			require.ErrorIs(t, waitAll(ctx, charges...), context.Canceled)
			require.ErrorIs(t, waitAll(ctx, charges...), context.Canceled)
			require.Equal(t, sec/2, tokens.Key("k").Peek(0).ResetAfter)
			require.Equal(t, uint64(3), l.Stats().Admitted)

			go func() {
				time.Sleep(sec / 4)
				l.Key("k").Block(5 * sec)
			}()
			begin = time.Now()
			require.NoError(t, waitAll(t.Context(), charges...))
			require.Equal(t, 21*sec/4, time.Since(begin), "%v: it was blocked when its slot began", a)
			l.Key("k").Block(sec)
			ctx, cancel = context.WithTimeout(t.Context(), sec/2)
			defer cancel()
			require.ErrorIs(t, waitAll(ctx, charges...), ErrWouldExceedDeadline)
		})
	}
}

// TestWaitAll_Shadow: nobody waits for the slot of a limiter that is being tried out.
func TestWaitAll_Shadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: PerSecond(1).WithBurst(1)})
		shadow := mustNew(t, Config{Limit: PerHour(1).WithBurst(1), Shadow: true})
		charges := []Charge{{l.Key("k"), 1}, {shadow.Key("k"), 1}}
		begin := time.Now()
		for range 3 {
			require.NoError(t, waitAll(t.Context(), charges...))
		}
		require.Equal(t, 2*sec, time.Since(begin))
	})
}

// TestWaitAll_CountsABlockThatTakesItsSlot as Wait does: the call is denied in the end.
func TestWaitAll_CountsABlockThatTakesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: PerSecond(1).WithBurst(1), Stats: true})
		other := mustNew(t, Config{Limit: PerSecond(1).WithBurst(1), Stats: true})
		require.True(t, l.Allow("k"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			time.Sleep(sec / 2)
			l.Key("k").Block(time.Hour)
		}()
		require.ErrorIs(t, waitAll(ctx, Charge{other.Key("k"), 1}, Charge{l.Key("k"), 1}), ErrWouldExceedDeadline)
		require.Equal(t, uint64(1), l.Stats().Denied)
		require.Zero(t, other.Stats().Denied+other.Stats().Admitted)
	})
}

// TestWaitAll_ABlockEndsAtItsNanosecond, with a limit and without one.
func TestWaitAll_ABlockEndsAtItsNanosecond(t *testing.T) {
	for _, limit := range []Limit{PerSecond(10), Unlimited} {
		l, clock := newFrozen(t, Config{Limit: limit})
		other := mustNew(t, Config{Limit: PerSecond(10), Clock: clock})
		require.True(t, l.Key("k").Block(time.Hour))
		clock.Advance(time.Hour - 1)
		_, err := reserveAll(0, Charge{l.Key("k"), 1}, Charge{other.Key("k"), 1})
		require.ErrorIs(t, err, ErrWouldExceedDeadline, "%v", limit)
		clock.Advance(1)
		_, err = reserveAll(0, Charge{l.Key("k"), 1}, Charge{other.Key("k"), 1})
		require.NoError(t, err, "%v", limit)
	}
}

// turnless are the layouts that have no turns to reserve, at a rate of 2 in 10 seconds.
func turnless(f func(c Config)) {
	for _, c := range []Config{
		{Algorithm: FixedWindow},
		{Algorithm: FixedWindowFirstCharge},
		{Algorithm: SlidingLog},
		{Algorithm: TokenBucketInterval},
	} {
		c.Limit, c.Stats = Per(2, 10*sec), true
		f(c)
	}
}

// TestWaitAll_AsksAgain where there are no slots, as Wait does: all are charged, or none.
func TestWaitAll_AsksAgain(t *testing.T) {
	turnless(func(c Config) {
		for _, a := range bucketAlgorithms {
			synctest.Test(t, func(t *testing.T) {
				requests, tokens := mustNew(t, c), mustNew(t, Config{Algorithm: a, Limit: PerSecond(10).WithBurst(100), Stats: true})
				charges := []Charge{{tokens.Key("k"), 30}, {requests.Key("k"), 1}, {tokens.Key("k"), 10}}
				begin := time.Now()
				left := func(request, token int) {
					t.Helper()
					require.Equal(t, request, requests.Key("k").Peek(0).Remaining)
					require.Equal(t, token, tokens.Key("k").Peek(0).Remaining)
					require.Zero(t, openReservations(requests)+openReservations(tokens))
				}
				require.NoError(t, waitAll(t.Context(), charges...))
				left(1, 60)
				if a == LeakyBucket { // whose calls are spaced
					require.NoError(t, waitAll(t.Context(), charges...))
					require.Equal(t, 4*sec, time.Since(begin))
					left(0, 60)
				} else {
					require.NoError(t, waitAll(t.Context(), charges...))
					require.Zero(t, time.Since(begin))
					left(0, 20)
				}

				ctx, cancel := context.WithDeadline(t.Context(), begin.Add(10*sec-1))
				defer cancel()
				require.ErrorIs(t, waitAll(ctx, charges...), ErrWouldExceedDeadline, "known beforehand")
				require.Less(t, time.Since(begin), 5*sec)
				require.Equal(t, uint64(1), requests.Stats().Denied)
				require.Zero(t, tokens.Stats().Denied, "it is not the one that is late")

				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(sec, cancel)
				require.ErrorIs(t, waitAll(ctx, charges...), context.Canceled)
				require.Equal(t, uint64(1), requests.Stats().Denied)
				require.Equal(t, uint64(2), requests.Stats().Admitted)

				require.NoError(t, waitAll(t.Context(), charges...))
				require.Equal(t, 10*sec, time.Since(begin))
				if a == LeakyBucket && c.Algorithm == SlidingLog {
					left(0, 60) // the second one counts until 14 s
				} else {
					left(1, 60)
				}
				require.Equal(t, uint64(1), requests.Stats().Denied, "asking is not counted")
				require.Equal(t, uint64(6), tokens.Stats().Admitted)

				// The tokens are the ones to wait for, and then the requests again.
				if a != LeakyBucket { // which has 40 to drain already
					require.True(t, tokens.AllowN("k", 60))
				}
				require.NoError(t, waitAll(t.Context(), charges...))
				require.Equal(t, 14*sec, time.Since(begin))
				require.NoError(t, waitAll(t.Context(), charges...))
				require.Equal(t, 20*sec, time.Since(begin))
			})
		}
	})
}

// TestWaitAll_AsksWithoutBlocking: a call that waits is no offence, and blocks are waited for.
func TestWaitAll_AsksWithoutBlocking(t *testing.T) {
	turnless(func(c Config) {
		synctest.Test(t, func(t *testing.T) {
			c.BlockFor = time.Hour
			requests, tokens := mustNew(t, c), mustNew(t, Config{Limit: PerSecond(10).WithBurst(100), BlockFor: time.Hour})
			charges := []Charge{{requests.Key("k"), 1}, {tokens.Key("k"), 90}}
			begin := time.Now()
			require.True(t, requests.AllowN("k", 2))
			require.NoError(t, waitAll(t.Context(), charges...))
			require.Equal(t, 10*sec, time.Since(begin), "%v", c.Algorithm)

			for _, l := range []*Limiter{requests, tokens} {
				now := time.Now()
				l.Key("k").Block(25 * sec)
				ctx, cancel := context.WithTimeout(t.Context(), 25*sec-1)
				defer cancel()
				require.ErrorIs(t, waitAll(ctx, charges...), ErrWouldExceedDeadline)
				require.Equal(t, now, time.Now(), "known beforehand")
				require.NoError(t, waitAll(t.Context(), charges...))
				require.Equal(t, now.Add(25*sec), time.Now())
			}
			requests.Key("k").Block(sec)
			tokens.Key("k").Block(Never)
			now := time.Now()
			require.ErrorIs(t, waitAll(t.Context(), charges...), ErrWouldExceedDeadline)
			require.Equal(t, now, time.Now(), "no block is waited for in vain")
		})
	})
}

// TestWaitAll_FailsAtOnce where no time helps, though a key is blocked or late.
func TestWaitAll_FailsAtOnce(t *testing.T) {
	turnless(func(c Config) {
		synctest.Test(t, func(t *testing.T) {
			requests, tokens := mustNew(t, c), mustNew(t, Config{Limit: PerSecond(10).WithBurst(100)})
			full := mustNew(t, Config{Limit: PerSecond(1), MaxKeys: 1, Shards: 1, Overflow: OverflowDenyNew})
			c.MaxKeys, c.Shards, c.Overflow = 1, 1, OverflowDenyNew
			window := mustNew(t, c)
			require.True(t, full.Allow("there already") && window.Allow("there already"))
			begin := time.Now()
			for range 2 {
				for _, f := range []struct {
					charge Charge
					want   error
				}{
					{Charge{tokens.Key("k"), 101}, ErrCostExceedsBurst},
					{Charge{tokens.Key("k"), -1}, ErrNegativeCost},
					{Charge{requests.Key("k"), 2}, ErrCostExceedsBurst}, // and one
					{Charge{requests.Key("other"), -1}, ErrNegativeCost},
				} {
					require.ErrorIs(t, waitAll(t.Context(), Charge{requests.Key("k"), 1}, f.charge), f.want)
				}
				require.Equal(t, begin, time.Now())
				requests.Key("k").Block(sec)
			}
			for _, k := range []Key{full.Key("k"), window.Key("k")} {
				require.ErrorIs(t, waitAll(t.Context(), Charge{requests.Key("free"), 1}, Charge{k, 1}), ErrNoRoom)
				require.Equal(t, 2, requests.Key("free").Peek(0).Remaining)
			}
		})
	})
}

// TestWaitAll_ShadowIsNotAskedAgain: it keeps nobody waiting, and is charged if it admits.
func TestWaitAll_ShadowIsNotAskedAgain(t *testing.T) {
	turnless(func(c Config) {
		synctest.Test(t, func(t *testing.T) {
			c.Shadow = true
			shadow, tokens := mustNew(t, c), mustNew(t, Config{Limit: PerSecond(1).WithBurst(10)})
			begin := time.Now()
			for range 4 {
				require.NoError(t, waitAll(t.Context(), Charge{shadow.Key("k"), 1}, Charge{tokens.Key("k"), 1}))
			}
			require.Equal(t, begin, time.Now())
			require.Zero(t, shadow.Key("k").Peek(0).Remaining)
			require.Equal(t, uint64(2), shadow.Stats().WouldDeny)
			require.Equal(t, 6, tokens.Key("k").Peek(0).Remaining)
		})
	})
}

// TestConcurrent_WaitAllAsksAgain: many that ask at once all pass, as many a window as fit.
func TestConcurrent_WaitAllAsksAgain(t *testing.T) {
	turnless(func(c Config) {
		synctest.Test(t, func(t *testing.T) {
			requests, tokens := mustNew(t, c), mustNew(t, Config{Limit: PerSecond(10).WithBurst(100)})
			begin := time.Now()
			goDo(9, func(g int) {
				charges := []Charge{{requests.Key("k"), 1}, {tokens.Key("k"), 20}}
				if g%2 == 0 {
					charges[0], charges[1] = charges[1], charges[0]
				}
				assert.NoError(t, waitAll(t.Context(), charges...))
			})()
			require.Equal(t, 40*sec, time.Since(begin), "two each 10 s: %v", c.Algorithm)
			require.Equal(t, uint64(9), requests.Stats().Admitted)
			require.Zero(t, requests.Stats().Denied)
		})
	})
}

// newAtTheEnd makes a limiter whose clock is a minute before the end of time.
func newAtTheEnd(t *testing.T, shadow bool) *Limiter {
	return mustNew(t, Config{Limit: PerSecond(1000), Shadow: shadow, TTL: math.MaxInt64, Clock: NewManualClock(time.Unix(0, math.MaxInt64).Add(-time.Minute))})
}

// TestWaitAll_AfterTheEndOfTime: the turn of all is that of the slowest key. If the clock of another
// one does not get there, nobody is charged.
func TestWaitAll_AfterTheEndOfTime(t *testing.T) {
	late := newAtTheEnd(t, false)
	slow, _ := newFrozen(t, Config{Limit: Per(1, time.Hour)})
	a, b := slow.Key("a"), late.Key("b")
	all, err := reserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.NoError(t, err, "at once there is time enough")
	require.Len(t, all, 2)
	left := b.Peek(0)
	_, err = reserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.ErrorIs(t, err, ErrWouldExceedDeadline)
	require.Equal(t, left, b.Peek(0))
	require.Equal(t, time.Hour, a.Peek(1).RetryAfter)
}

// TestWaitAll_ShadowKeepsNobodyWaiting: a key in Shadow whose clock does not get to the turn is passed
// over, which its reservation says, and gives nothing back.
func TestWaitAll_ShadowKeepsNobodyWaiting(t *testing.T) {
	late := newAtTheEnd(t, true)
	slow, _ := newFrozen(t, Config{Limit: Per(1, time.Hour)})
	a, b := slow.Key("a"), late.Key("b")
	require.True(t, a.Allow())
	require.True(t, b.Allow())
	left := b.Peek(0)
	all, err := reserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.NoError(t, err)
	require.Equal(t, time.Hour, all[0].Delay())
	require.False(t, all[0].WouldDeny())
	require.True(t, all[1].WouldDeny())
	require.Equal(t, left, b.Peek(0))
	all[1].Cancel()
	require.Equal(t, left, b.Peek(0))
}

// TestWaitAll_AdmittedWithoutState: for a key that there is no room for, OverflowAdmitNew gives a
// turn now, which charges nobody.
func TestWaitAll_AdmittedWithoutState(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerMinute(10), MaxKeys: 1, Shards: 1, Overflow: OverflowAdmitNew})
		require.True(t, l.Allow("first"))
		all, err := reserveAll(0, Charge{l.Key("first"), 1}, Charge{l.Key("second"), 2})
		if a == LeakyBucket { // whose queue has one ahead
			all, err = reserveAll(time.Minute, Charge{l.Key("first"), 1}, Charge{l.Key("second"), 2})
		}
		require.NoError(t, err)
		require.Equal(t, 1, l.Len())
		require.Equal(t, 8, l.Key("first").Peek(0).Remaining)
		all[1].Cancel()
		require.Equal(t, 10, l.Key("second").Peek(0).Remaining)
		all[0].Cancel()
		require.Equal(t, 9, l.Key("first").Peek(0).Remaining)
	}
}

// TestWaitAll_WhileATableIsRebuilt: who comes while its word is in no table waits for the next one.
func TestWaitAll_WhileATableIsRebuilt(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), Shards: 1})
		k := l.Key("k")
		require.True(t, k.Allow())
		var done atomic.Bool
		var all []*Reservation
		var err error
		s := &l.shards[0]
		s.mu.Lock()
		l.rebuildLocked(s, k.id, 1, func(*policy, state) bool {
			go func() {
				all, err = reserveAll(time.Minute, Charge{k, 2})
				done.Store(true)
			}()
			for range 5000 {
				runtime.Gosched()
			}
			return false
		})
		require.False(t, done.Load())
		s.mu.Unlock()
		for !done.Load() {
			runtime.Gosched()
		}
		require.NoError(t, err)
		require.Equal(t, 3, spentOf(l, "k"), "%v", a)
		all[0].Cancel()
		require.Equal(t, 1, spentOf(l, "k"), "%v", a)
	}
}

// reserveAll is WaitAll up to where it would wait, for a turn within maxWait.
func reserveAll(maxWait time.Duration, charges ...Charge) ([]*Reservation, error) {
	j := newJoint(charges, maxWait)
	all, err := j.reserve()
	if err != errNotYet {
		j.count(err)
	}
	if j.waiter != nil {
		j.waiter.leave()
	}
	return all, err
}

// waitAll is WaitAll for callers that use what they have asked for.
func waitAll(ctx context.Context, charges ...Charge) error {
	all, err := WaitAll(ctx, charges...)
	for i, r := range all {
		r.Settle(charges[i].Cost)
	}
	return err
}
