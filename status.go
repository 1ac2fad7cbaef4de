package sluice

import (
	"math"
	"time"
)

// A Status describes a key at one instant, for messages to clients and for monitoring. All
// times are relative to that instant, and hold if nothing else happens to the key.
type Status struct {
	// Limit is the limit that calls for the key go by, as Key.Limit says.
	Limit Limit

	// Remaining is the cost that could be admitted now, as in the Decision of Peek with a cost of 0.
	Remaining int

	// NextAfter is the least wait after which more than Remaining is there, exact to the
	// nanosecond: the time to the next unit. It is 0 if no unit is missing, and Never if no
	// more will come. If the units of Config.Soft are used up as well, it is the wait for
	// the first soft unit. For a blocked key, it is the wait until the block ends.
	NextAfter time.Duration

	// WindowAfter is the time, above 0, to the end of the window in which a charge would be counted
	// now, under the fixed windows and SlidingWindow. Under FixedWindowFirstCharge, if no window
	// has begun, it is the window that would begin now. Under TokenBucketInterval WindowAfter is the
	// time to the next boundary. It is 0 under algorithms without windows, and under Unlimited
	// and DenyAll; and Never beyond the range of the clock.
	WindowAfter time.Duration

	// ResetAfter is the time until the key is as if it had never been charged, as in Decision.
	ResetAfter time.Duration
}

// Status describes the key as it is now. It charges nothing and tracks nothing, like Peek.
func (k Key) Status() Status {
	k.lim.made().ahead(k.id)
	return k.statusAt(k.lim.now())
}

func (k Key) statusAt(now int64) (s Status) {
	now = max(now, 0)
	for {
		p, e, key, blocked := k.glance()
		if s = p.status(key, now, blocked, k.lim.soft); e.still(key) {
			return s
		}
	}
}

// status describes a key that is, or was, blocked until the time blocked; 0 means no block.
func (p *policy) status(key state, now int64, blocked uint64, soft int) Status {
	if blocked > 0 {
		key.word = 0
	}
	s := Status{Limit: p.limit, Remaining: math.MaxInt}
	switch {
	case blocked > uint64(now) && !p.denyAll():
		wait := until(blocked, now)
		s.Remaining, s.NextAfter, s.ResetAfter = 0, wait, wait
	case p.denyAll():
		s.Remaining, s.NextAfter = 0, Never
	case !p.unlimited():
		var there int
		_, _, there, _, s.ResetAfter = p.judge(key, now, 1, false)
		s.Remaining = max(0, there-soft)
		next := 1
		if there > 0 {
			next = max(there, soft) + 1
		}
		if p.fits(next) {
			_, _, _, s.NextAfter, _ = p.judge(key, now, next, false)
		}
	}
	a := p.sliding()
	if w, ok := p.arith.(windowEnder); ok && !p.limit.constant() && (a == nil || !a.whole) {
		s.WindowAfter = until(w.windowEnd(key, now), now)
	}
	return s
}
