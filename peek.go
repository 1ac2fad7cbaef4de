package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// Peek returns the Decision that Take would return, but charges nothing and tracks nothing.
// It does not consider MaxKeys for a key that is not tracked. For a call that would be denied it
// does not consider the effects of the denial on the key (BlockFor, CountDenied). Its Remaining
// is the cost left after the call; for the cost left now, Peek with a cost of 0, or use Status.
func (k Key) Peek(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.peekAt(&d, k.lim.now(), cost)
	return d
}

// PeekAt is Peek at now; see AllowAt.
func (k Key) PeekAt(now int64, cost int) (d Decision) {
	k.lim.made()
	k.peekAt(&d, now, cost)
	return d
}

// peekAt is PeekAt. It writes the Decision to d, which is zero.
func (k Key) peekAt(d *Decision, now int64, cost int) {
	now = max(now, 0)
	l := k.lim
	for ok := k.terms == nil && l.peekTable(d, k.id, now, cost); !ok; {
		*d = Decision{} // an earlier attempt may have set fields
		p, e, key, blocked := k.glance()
		p.peek(d, key, blocked, now, cost)
		ok = e.still(key)
	}
	if !d.Allowed || l.soft > 0 {
		d.amend(l.soft, l.shadow, cost)
	}
}

// peekTable is peekAt for nearly all calls: for a cost that the state decides, and a key that
// is in the table and not being moved.
func (l *Limiter) peekTable(d *Decision, id uint64, now int64, cost int) (ok bool) {
	t := l.guide.tableOf(id)
	p := t.policy
	if !p.fits(cost) {
		return false
	}
	e, i := t.lookup(id)
	if e == nil {
		return false
	}
	word := e.word.Load()
	d.Limit = int(p.burst)
	switch {
	case word >= elsewhere: // elsewhere, held or moved
		return false
	case p.wide != nil:
		return p.peekTail(d, e, t.tails.Of(i), now, cost)
	}
	_, d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{word: word}, now, cost, true)
	return true
}

// peekTail is peek for a key whose tail other calls may write meanwhile, and a cost that its state decides.
// It fails if the word is moved or elsewhere.
func (p *policy) peekTail(d *Decision, e *slot, tail []atomic.Uint64, now int64, cost int) (ok bool) {
	for {
		word, blocked, ok := e.glance(tail)
		switch {
		case !ok:
			return false
		case blocked > uint64(now):
			d.Allowed = false
			d.block(blocked, now)
		case blocked > 0: // a fresh key
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{}, now, cost, true)
		default:
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{word, tail}, now, cost, true)
		}
		if e.word.Load() == word {
			return true
		}
	}
}

// peek describes in d, which is zero, a call for a key that is, or was, blocked until the time blocked; 0 means
// no block. A cost that the key's state does not decide charges nothing; the numbers are the ones for one unit.
func (p *policy) peek(d *Decision, key state, blocked uint64, now int64, cost int) {
	if blocked > 0 {
		key.word = 0
	}
	d.Limit = int(p.burst)
	fits := p.fits(cost)
	switch {
	case p.unlimited():
		d.unlimited(blocked, now)
	case p.denyAll():
	case blocked > uint64(now):
		d.block(blocked, now)
	case fits:
		_, d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, cost, true)
	default:
		_, d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, 1, false)
	}
	if cost < 0 || cost > 0 && !fits && !p.unlimited() || p.denyAll() {
		d.Allowed, d.RetryAfter = false, Never
	}
}

// glance reads the key's state under the limit that calls through k go by.
func (k Key) glance() (p *policy, e *slot, key state, blocked uint64) {
	for {
		at, tm := k.lookUp()
		if at.policy.of == tm {
			if key, blocked, ok := at.glance(); ok {
				return at.policy, at.slot, key, blocked
			}
		} else if p, key, ok := k.lim.readUnder(at, tm); ok {
			return p, nil, key, p.blockedUntil(key)
		}
		k.lim.awaitMove(k.id)
	}
}

// readUnder returns a copy of the state of a key as it would be under other terms than its
// own, and their policy. It fails if the word is moved or elsewhere.
func (l *Limiter) readUnder(at spot, tm *terms) (p *policy, key state, ok bool) {
	e, ok := at.read()
	if !ok {
		return nil, state{}, false
	}
	clock := max(l.clock.Now(), 0)
	if at.policy.idleBy(e, clock) {
		e.word = 0
	}
	p = tm.policyFor(at.policy, e, clock)
	return p, p.adopted(at.policy, e, clock), true
}

// edge decides the calls that charge nothing in any state of the key: costs below
// 1 or above the burst, and all calls under Unlimited and DenyAll. It describes the
// decision in d, which is zero, unless d is nil. It fails if p is no longer the key's policy.
func (k Key) edge(d *Decision, p *policy, now int64, cost int) (ok, allowed bool) {
	var own Decision
	if d == nil {
		d = &own
	}
	var blocked uint64
	for {
		var key state
		at := k.lim.locate(k.id)
		if at.policy != p && (at.slot != nil || !at.admits(p)) {
			return false, false
		}
		if key, blocked, ok = at.glance(); !ok {
			k.lim.awaitMove(k.id)
			continue
		}
		if p.peek(d, key, blocked, now, cost); at.slot.still(key) {
			break
		}
		*d = Decision{}
	}
	if cost != 0 {
		k.lim.count(k.id, edgeOutcome(d, blocked, now))
	}
	return true, d.Allowed
}

// edgeOutcome returns the outcome of a call that no state of the key decides, with a cost other than 0. until is when
// the key's block ends, or 0.
func edgeOutcome(d *Decision, until uint64, now int64) outcome {
	switch {
	case d.Allowed:
		return admitted
	case until > uint64(now):
		return blocked
	}
	return denied
}

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
