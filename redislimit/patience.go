package redislimit

import (
	"sync/atomic"
	"time"
)

// A patience is how long a call waits for Redis: until its deadline. A process that gets no processor hears of no answer, and its
// timers fire late: then the answer may be in the socket already, and is taken. Redis may be as badly off, on the same machine. So the
// call waits for as long again as a timer has been late within a second, and for a budget at most.
//
// So a call whose budget is B returns within B of a process that runs. Where timers are up to L late, L being more than usualDelay, its
// deadline is min(L, B) later in all, and the timer for it may be late, too. A caller's context ends the wait whenever it ends.
type patience struct {
	began    time.Time
	deadline time.Time
	extended time.Duration // how long callers wait after late timers, in all
	most     time.Duration // of extended
	timers   *lateness
}

// usualDelay is how late a timer may be on a machine that is idle: the system wakes a Go process at whole milliseconds.
const usualDelay = time.Millisecond

// extend is called when the timer for the deadline has fired. It reports whether the call is to wait on, for a deadline that is later.
func (p *patience) extend(now time.Time) bool {
	more := min(p.timers.late(p.deadline, now), p.most) - p.extended
	if more <= 0 {
		return false
	}
	p.extended += more
	p.deadline = now.Add(more)
	return true
}

// patience returns the patience of a call that begins now.
func (c *core) patience(now time.Time) patience {
	return patience{began: now, deadline: now.Add(c.wait), most: c.budget, timers: &c.timers}
}

// A lateness is how late timers have been. It is safe for concurrent use: of two that are late together either may be kept.
type lateness struct {
	began     time.Time    // times in ns are since then
	by, until atomic.Int64 // ns
}

// lateFor is how long a late timer counts.
const lateFor = time.Second

// late notes that a timer has fired now that was due. It returns how late timers have been within the last second, or 0 if
// that is not more than usual.
func (l *lateness) late(due, now time.Time) time.Duration {
	late := now.Sub(due)
	if before := l.recent(now); late <= usualDelay || late < before {
		return before
	}
	l.by.Store(int64(late))
	l.until.Store(int64(now.Sub(l.began) + lateFor))
	return late
}

// recent is late without a timer.
func (l *lateness) recent(now time.Time) time.Duration {
	if int64(now.Sub(l.began)) >= l.until.Load() {
		return 0
	}
	return time.Duration(l.by.Load())
}
