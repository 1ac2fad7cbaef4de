package redislimit

import (
	"math/rand/v2"
	"time"
)

// A breaker decides whether a primary is asked. It opens when at least half of at least 20
// calls within a second have failed: a number of failures alone would open it on noise. If calls
// are few, it also opens when 5 have failed one after another, each made after the failure of the one before.
//
// While it is open, probes go out, after 100 ms at first and every 250 ms at last, with or without
// calls. A probe that is answered in time lets calls out again, and begins the return. The return is as long as
// other processes may need to find out, and to tell Redis which units they have admitted. Until it ends, this
// process keeps to its share as well; see core.within.
//
//	closed -> open        by failures
//	open -> returning     by a probe
//	returning -> open     by failures, as many as in closed
//	returning -> closed   by time
//
// One rule decides on failures, before an outage, in the return and after it, so that answers of which a few are late
// keep no breaker open that they would not have opened.
//
// The bound of an outage needs no failure to end the return. The units that a process admits before its breaker
// closes is within its share: a call that fails in the return is decided by the share, which has it charged once, and Redis
// is told of it. So all processes are admitted one burst more than WorstCase, or a unit each. If probes of a process
// are late for so long that another process closes first, add what the share of the late process admits until it
// returns. TestComeback and TestComeback_Noise measure both.
//
// Breaker libraries guard calls, and need a call to find out whether the other side is back. This breaker guards
// batches, and has to say when the primary will be asked again.
//
// The lock of its owner guards it.
type breaker struct {
	state breakerState
	until time.Time // end of the pause, or of the return
	pause time.Duration

	began         time.Time // start of the second that is counted
	calls, failed int

	run   int       // calls that have failed one after another
	runAt time.Time // the last of these failures
}

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerReturning
)

const (
	breakerWindow = time.Second
	breakerCalls  = 20
	breakerRun    = 5
	firstPause    = 100 * time.Millisecond
	longestPause  = 250 * time.Millisecond
	returnPause   = 2 * longestPause
)

// note counts the outcome of calls that were made at the time made, and reports whether the breaker opens.
func (b *breaker) note(now, made time.Time, calls int, ok bool) (opens bool) {
	if b.state == breakerOpen {
		return false
	}
	if now.Sub(b.began) >= breakerWindow {
		b.began, b.calls, b.failed = now, 0, 0
	}
	b.calls += calls
	switch {
	case ok:
		b.run = 0
	case b.run == 0 || !made.Before(b.runAt):
		b.run++
		b.runAt = now
	}
	if !ok {
		b.failed += calls
	}
	if b.run < breakerRun && (b.calls < breakerCalls || 2*b.failed < b.calls) {
		return false
	}
	b.open(now)
	return true
}

func (b *breaker) open(now time.Time) {
	*b = breaker{state: breakerOpen}
	b.wait(now)
}

// wait begins the next pause: between three quarters and all of its length, so that
// replicas do not probe together.
func (b *breaker) wait(now time.Time) {
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	b.until = now.Add(b.pause - rand.N(b.pause/4))
}

// returns begins the return of an open breaker.
func (b *breaker) returns(now time.Time) {
	*b = breaker{state: breakerReturning, until: now.Add(returnPause)}
}

// closes ends a return. What has been counted in it goes on counting.
func (b *breaker) closes() { b.state, b.until = breakerClosed, time.Time{} }

// left returns how long it is until the next probe, or until the return is over; at least a millisecond.
func (b *breaker) left(now time.Time) time.Duration {
	return max(b.until.Sub(now), time.Millisecond)
}
