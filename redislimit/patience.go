package redislimit

import "time"

// A patience is how long a call waits for Redis: until its deadline. A process that gets no processor hears of no answer, and its
// timers fire late: then the answer may be in the socket already, and is taken. The time by which the timer was late
// is added to the deadline once more, since Redis may have been as badly off, up to a budget in all.
//
// So a call whose budget is B returns within B of a process that runs. If the timer fires L late, L being more than usualDelay, it
// returns at most min(L, B) after that. A caller's context ends the wait whenever it ends.
type patience struct {
	began    time.Time
	deadline time.Time
	extended time.Duration // how long callers wait after late timers, in all
	most     time.Duration // of extended
}

// usualDelay is how late a timer may be on a machine that is idle: the system wakes a Go process at whole milliseconds.
const usualDelay = time.Millisecond

// extend is called when the timer for the deadline has fired. It reports whether the call is to wait on, for a deadline that is later.
func (p *patience) extend(now time.Time) bool {
	late := now.Sub(p.deadline)
	more := min(late, p.most-p.extended)
	if late <= usualDelay || more <= 0 {
		return false
	}
	p.extended += more
	p.deadline = now.Add(more)
	return true
}

// patience returns the patience of a call that begins now.
func (c *core) patience(now time.Time) patience {
	return patience{began: now, deadline: now.Add(c.wait), most: c.budget}
}
