package sluice

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A crowd is calls that wait for a key, while their contexts end as their units come. Beside the limiter is a twin, which
// has the same calls but for those that wait.
type crowd struct {
	l, twin *Limiter
	unit    int           // what each call waits for
	held    [2]*Permit    // of both, the units that may be released
	wait    time.Duration // until the first call can be admitted
	passed  atomic.Int64  // calls that returned nil
	refused atomic.Int64  // calls that were told that they cannot be admitted before their deadline
	joint   bool          // WaitAll
}

func newCrowd(t *testing.T, c Config, blocked bool) *crowd {
	t.Helper()
	w := &crowd{l: mustNew(t, c), twin: mustNew(t, c)}
	burst := burstOf(w.l)
	w.unit = burst / 10
	for i, l := range []*Limiter{w.l, w.twin} {
		spent := burst
		if c.Algorithm == LeakyBucket {
			spent = burst / 2 // the rest is room to wait in
		}
		w.held[i], _ = l.Acquire("k", w.unit)
		require.True(t, l.AllowN("k", spent-w.unit))
		if w.wait = l.Key("k").Peek(w.unit).RetryAfter; c.Algorithm == LeakyBucket {
			w.wait = l.Key("k").Peek(0).ResetAfter
		}
		if blocked {
			require.True(t, l.Key("k").Block(sec))
			w.wait = l.Key("k").Peek(w.unit).RetryAfter
		}
	}
	return w
}

// call waits, and checks the error.
func (w *crowd) call(t *testing.T, ctx context.Context) {
	var err error
	if w.joint {
		err = waitAll(ctx, Charge{w.l.Key("k"), w.unit})
	} else {
		err = w.l.Wait(ctx, "k", w.unit)
	}
	switch err {
	case nil:
		w.passed.Add(1)
	case ErrWouldExceedDeadline: // after a sleep that was over first
		w.refused.Add(1)
	default:
		assert.Equal(t, ctx.Err(), err)
	}
}

// check compares both limiters when all calls have returned.
func (w *crowd) check(t *testing.T) {
	t.Helper()
	passed := int(w.passed.Load())
	require.Equal(t, w.twin.Key("k").Peek(0).Remaining-passed*w.unit, w.l.Key("k").Peek(0).Remaining, "%d calls returned nil", passed)
	require.Equal(t, w.twin.Stats().Admitted+uint64(passed), w.l.Stats().Admitted)
	require.EqualValues(t, w.refused.Load(), w.l.Stats().Denied)
	require.Zero(t, openReservations(w.l))
	require.Zero(t, listeners(w.l))
	require.Zero(t, w.l.Stats().Waiting)
}

// eachCrowd runs f often for each layout, with Wait and with WaitAll, for a key that is blocked, and for one that is not.
func eachCrowd(t *testing.T, f func(t *testing.T, rng *rand.Rand, c Config, blocked, joint bool)) {
	rng := seeded.Rand(t)
	for name, c := range everyMany {
		c.Stats = true
		t.Run("layout="+name, func(t *testing.T) {
			for i := range 80 {
				synctest.Test(t, func(t *testing.T) { f(t, rng, c, i%2 == 0, i%4 < 2) })
			}
		})
	}
}

// TestWait_ANilIsACharge: of the calls whose context is cancelled as the clock moves to their time, or as units come back, as
// many return nil as are charged; the others return the error of the context, and are not counted.
func TestWait_ANilIsACharge(t *testing.T) {
	nils, ended := int64(0), int64(0)
	eachCrowd(t, func(t *testing.T, rng *rand.Rand, c Config, blocked, joint bool) {
		clock := NewManualClock(start)
		c.Clock = clock
		w := newCrowd(t, c, blocked)
		w.joint = joint
		ctx, cancel := context.WithCancel(t.Context())
		calls := 1 + rng.IntN(4)
		wait := goDo(calls, func(int) { w.call(t, ctx) })
		synctest.Wait()
		come := func() { clock.Advance(w.wait) }
		if c.Algorithm == InFlight && !blocked && rng.IntN(4) > 0 {
			come = func() {
				require.NoError(t, w.held[0].Release())
				require.NoError(t, w.held[1].Release())
			}
		}
		both := []func(){come, cancel}
		first := rng.IntN(2)
		if rng.IntN(2) == 0 {
			goDo(2, func(i int) { both[i]() })()
		} else {
			both[first]()
			both[1-first]()
		}
		wait()
		w.check(t)
		require.Zero(t, w.refused.Load())
		nils += w.passed.Load()
		ended += int64(calls) - w.passed.Load()
	})
	require.Positive(t, nils)
	require.Positive(t, ended)
}

// TestWait_ANilIsACharge_AtTheDeadline: the same for deadlines at the nanosecond at which the wait is over, or a unit
// comes back.
func TestWait_ANilIsACharge_AtTheDeadline(t *testing.T) {
	nils, ended := int64(0), int64(0)
	eachCrowd(t, func(t *testing.T, rng *rand.Rand, c Config, blocked, joint bool) {
		w := newCrowd(t, c, blocked)
		w.joint = joint
		begin, at := time.Now(), w.wait
		if c.Algorithm == InFlight && !blocked && rng.IntN(4) > 0 {
			at = w.wait / 2
			time.AfterFunc(at, func() {
				assert.NoError(t, w.held[0].Release())
				assert.NoError(t, w.held[1].Release())
			})
		}
		calls := 1 + rng.IntN(4)
		goDo(calls, func(int) {
			ctx, cancel := context.WithTimeout(t.Context(), at)
			defer cancel()
			w.call(t, ctx)
		})()
		time.Sleep(at - time.Since(begin))
		synctest.Wait()
		w.check(t)
		nils += w.passed.Load()
		ended += int64(calls) - w.passed.Load()
	})
	require.Positive(t, nils)
	require.Positive(t, ended)
}
