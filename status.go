package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// A Status is how a key stands at one instant, for those who tell clients, or watch. All
// times are relative to that instant, and hold if nothing else happens to the key.
type Status struct {
	// Limit is the limit that calls for the key go by, as Key.Limit says.
	Limit Limit

	// Remaining is the cost that could be admitted now, as in the Decision of Peek.
	Remaining int

	// NextAfter is the least wait after which more than Remaining is there, exact to the
	// nanosecond: the time to the next unit. It is 0 if nothing is missing, and Never if no
	// more will come. Where the units of Config.Soft are used up as well, it is the wait for
	// the first of those. For a key that is blocked, the block has ended then.
	NextAfter time.Duration

	// WindowAfter is the time to the end of the window that a charge would be counted in
	// now, above 0: under FixedWindow and SlidingWindow. With AnchorFirstCharge, if no window
	// has begun, that is the one which would begin now. With RefillInterval it is the time
	// to the next boundary. It is 0 under all else, which has no windows, and under Unlimited
	// and DenyAll; and Never beyond the range of the clock.
	WindowAfter time.Duration

	// ResetAfter is the time until the key is as if it had never been charged, as in Decision.
	ResetAfter time.Duration
}

// Status returns how key stands. It charges nothing and tracks nothing, like Peek.
func (l *Limiter) Status(key string) Status {
	id := l.made().hash.string(key)
	l.ahead(id)
	return l.statusAt(id, l.now())
}

// Status is Limiter.Status for this key.
func (k Key) Status() Status {
	k.lim.made().ahead(k.id)
	return k.lim.statusAt(k.id, k.lim.now())
}

// StatusAt is Status at now; see AllowAt.
func (k Key) StatusAt(now int64) Status { return k.lim.made().statusAt(k.id, now) }

// statusAt finds the key as peekAt does.
func (l *Limiter) statusAt(id uint64, now int64) Status {
	now = max(now, 0)
	for {
		at, tm := l.lookUp(id)
		var s Status
		var ok bool
		switch p := at.policy; {
		case p.of != tm:
			var key state
			if p, key, ok = l.core.readUnder(at, tm); ok {
				s = p.status(key, now, p.blockedUntil(key), l.soft)
			}
		case at.slot == nil:
			s, ok = p.status(state{}, now, 0, l.soft), true
		case p.wide != nil:
			s, ok = p.statusTail(at.slot, at.tail, now, l.soft)
		default:
			if word := at.slot.released(); word < elsewhere {
				s, ok = p.status(state{word: word}, now, p.blockedUntil(state{word: word}), l.soft), true
			}
		}
		if ok {
			return s
		}
		l.core.awaitMove(id)
	}
}

// statusTail is status for a key whose tail others write. It fails if the word has gone.
func (p *policy) statusTail(e *slot, tail []atomic.Uint64, now int64, soft int) (s Status, ok bool) {
	for {
		word, ok := e.unlocked()
		if !ok {
			return Status{}, false
		}
		blocked, whole := uint64(0), true
		if word&blockedTail != 0 {
			blocked, whole = blockEnd(tail)
		}
		s = p.status(state{word &^ blockedTail, tail}, now, blocked, soft)
		if whole && e.word.Load() == word {
			return s, true
		}
	}
}

// status describes a key that is, or was, blocked until then, or never if that is 0.
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
		_, there, _, s.ResetAfter = p.judge(key, now, 1, false)
		s.Remaining = max(0, there-soft)
		next := 1
		if there > 0 {
			next = max(there, soft) + 1
		}
		if p.fits(next) {
			_, _, s.NextAfter, _ = p.judge(key, now, next, false)
		}
	}
	if w, ok := p.adopter().(windowEnder); ok && !p.limit.constant() {
		s.WindowAfter = until(w.windowEnd(key, now), now)
	}
	return s
}
