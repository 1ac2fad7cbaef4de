package redistier

import (
	"math/rand/v2"
	"time"
)

// A breaker says whether a primary is asked. It opens when at least half of at least 20
// calls within a second have failed: a number of failures alone would open it on noise.
// After a while, 100 ms at first and twice as long each time, up to 5 s, one probe goes
// out, and closes it or not.
//
// Libraries of breakers guard calls, and need a call to find out; this one guards batches,
// has to say when it will ask again, and doubles its pauses.
//
// Its owner's lock guards it.
type breaker struct {
	open    bool
	probing bool
	until   time.Time // of the pause, if open
	pause   time.Duration

	began         time.Time // of the second that is counted
	calls, failed int
}

const (
	breakerWindow = time.Second
	breakerCalls  = 20
	firstPause    = 100 * time.Millisecond
	longestPause  = 5 * time.Second
)

// asks reports whether a call may go out, and whether it is the probe, whose outcome must
// be reported.
func (b *breaker) asks(now time.Time) (yes, probe bool) {
	switch {
	case !b.open:
		return true, false
	case b.probing || now.Before(b.until):
		return false, false
	}
	b.probing = true
	return true, true
}

// note counts the outcome of calls that were no probe, and reports whether the breaker opens.
func (b *breaker) note(now time.Time, calls int, ok bool) (opens bool) {
	if b.open {
		return false
	}
	if now.Sub(b.began) >= breakerWindow {
		b.began, b.calls, b.failed = now, 0, 0
	}
	b.calls += calls
	if !ok {
		b.failed += calls
	}
	if b.calls < breakerCalls || 2*b.failed < b.calls {
		return false
	}
	b.open, b.pause = true, 0
	b.wait(now)
	return true
}

// probed ends the probe, and reports whether the breaker closes.
func (b *breaker) probed(now time.Time, ok bool) (closes bool) {
	if !b.probing {
		return false
	}
	b.probing = false
	if ok {
		*b = breaker{}
		return true
	}
	b.wait(now)
	return false
}

// wait begins the next pause: between three quarters and all of its length, so that
// replicas do not probe together.
func (b *breaker) wait(now time.Time) {
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	b.until = now.Add(b.pause - rand.N(b.pause/4))
}

// left returns how long it is until the next probe, at least a millisecond.
func (b *breaker) left(now time.Time) time.Duration {
	return max(b.until.Sub(now), time.Millisecond)
}
