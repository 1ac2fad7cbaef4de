package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// Peek returns what Take would return, but charges nothing and tracks nothing. For
// a key that is not tracked it does not consider MaxKeys; nor, for a call that would be
// denied, what the denial would do to the key (BlockFor, CountDenied).
func (l *Limiter) Peek(key string, cost int) (d Decision) {
	id := l.made().hash.string(key)
	l.ahead(id)
	l.peekAt(&d, id, l.now(), cost)
	if !d.Allowed || l.soft > 0 {
		d.amend(l.soft, l.shadow, cost)
	}
	return d
}

// Peek is Limiter.Peek for this key.
func (k Key) Peek(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.lim.peekAt(&d, k.id, k.lim.now(), cost)
	if !d.Allowed || k.lim.soft > 0 {
		d.amend(k.lim.soft, k.lim.shadow, cost)
	}
	return d
}

// PeekAt is Peek at now; see AllowAt.
func (k Key) PeekAt(now int64, cost int) (d Decision) {
	k.lim.made().peekAt(&d, k.id, now, cost)
	if !d.Allowed || k.lim.soft > 0 {
		d.amend(k.lim.soft, k.lim.shadow, cost)
	}
	return d
}

// peekAt describes in d, which is zero, what decide would.
func (l *Limiter) peekAt(d *Decision, id uint64, now int64, cost int) {
	now = max(now, 0)
	if l.under == nil && l.peekTable(d, id, now, cost) {
		return
	}
	for {
		at, tm := l.lookUp(id)
		p := at.policy
		switch {
		case p.of != tm:
			if l.core.peekUnder(d, at, tm, now, cost) {
				return
			}
			l.core.awaitMove(id)
		case !p.fits(cost):
			if l.core.judgeEdge(d, p, id, now, cost) {
				return
			}
		case l.core.inspectAt(d, p, at, id, now, cost, true):
			return
		}
		*d = Decision{}
	}
}

// peekTable is peekAt for nearly all calls: of a cost that the state decides, for a key that
// is in the table and not being moved.
func (l *Limiter) peekTable(d *Decision, id uint64, now int64, cost int) (ok bool) {
	t := l.guide.tableOf(id)
	p := t.policy
	if !p.fits(cost) {
		return false
	}
	i, found := t.find(id)
	if !found {
		return false
	}
	e := &t.slots[i]
	word := e.word.Load()
	switch {
	case word >= elsewhere: // or moved, or held
		return false
	case p.wide != nil:
		ok = p.peekTail(d, e, t.tails.of(i), now, cost, true)
	default:
		ok = true
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{word: word}, now, cost, true)
	}
	d.Limit = int(p.burst)
	return ok
}

// peekUnder describes in d a call under other terms than the key's, which it is left under.
// It fails if the word has gone.
func (l *Limiter) peekUnder(d *Decision, at spot, tm *terms, now int64, cost int) (ok bool) {
	p, key, ok := l.readUnder(at, tm)
	if !ok {
		return false
	}
	d.Limit = int(p.burst)
	switch {
	case p.unlimited():
		d.unlimited(p.blockedUntil(key), now)
		p.settleEdge(d, cost)
	case p.denyAll():
		p.settleEdge(d, cost)
	case p.fits(cost):
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, cost, true)
	default:
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, 1, false)
		p.settleEdge(d, cost)
	}
	return true
}

// readUnder returns a copy of the state of a key as it would be under other terms than its
// own, and their policy. It fails if the word has gone.
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
	tail := make([]atomic.Uint64, p.tailLen())
	return p, state{p.adopt(at.policy, e, tail, clock), tail}, true
}

// inspectAt describes a call of a cost from 1 to the burst for id, which has been found
// there, without charging it. With charges, an admitted call is described as if it had been
// charged. It fails if p is no longer the policy, or the key is no longer there.
func (l *Limiter) inspectAt(d *Decision, p *policy, at spot, id uint64, now int64, cost int, charges bool) (ok bool) {
	d.Limit = int(p.burst)
	switch {
	case at.slot == nil && !at.admits(p) || at.slot != nil && at.policy != p:
		return false
	case at.slot == nil:
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{}, now, cost, charges)
		return true
	case p.wide != nil:
		ok = p.peekTail(d, at.slot, at.tail, now, cost, charges)
	default:
		word := at.slot.released()
		ok = word < elsewhere
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{word: word}, now, cost, charges)
	}
	if !ok {
		l.awaitMove(id)
	}
	return ok
}

// peekTail describes a call in d without charging it. It fails if the word has gone.
func (p *policy) peekTail(d *Decision, e *slot, tail []atomic.Uint64, now int64, cost int, charges bool) bool {
	for {
		word, ok := e.unlocked()
		if !ok {
			return false
		}
		at, whole := uint64(0), true
		if word&blockedTail != 0 {
			at, whole = blockEnd(tail)
		}
		switch {
		case at > uint64(now):
			d.Allowed = false
			d.block(at, now)
		case at > 0: // a fresh key
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{}, now, cost, charges)
		default:
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{word &^ blockedTail, tail}, now, cost, charges)
		}
		if whole && e.word.Load() == word {
			return true
		}
	}
}

// edge decides the calls that charge nothing whatever the key's state: costs
// below 1 or above the burst, and all calls under Unlimited and DenyAll. It describes
// the decision in d, which is zero, unless d is nil. It fails if p is no longer the
// key's policy.
func (l *Limiter) edge(d *Decision, p *policy, id uint64, now int64, cost int) (ok, allowed bool) {
	var e Decision
	if d == nil {
		d = &e
	}
	if !l.judgeEdge(d, p, id, now, cost) {
		return false, false
	}
	if cost != 0 {
		out := denied
		switch {
		case d.Allowed:
			out = admitted
		case p.unlimited() && cost > 0:
			out = blocked
		}
		l.count(id, out)
	}
	return true, d.Allowed
}

func (l *Limiter) judgeEdge(d *Decision, p *policy, id uint64, now int64, cost int) (ok bool) {
	switch {
	case p.unlimited():
		until, ok := l.blockOf(p, id)
		if !ok {
			return false
		}
		d.unlimited(until, now)
	case !p.denyAll() && !l.inspectAt(d, p, l.locate(id), id, now, 1, false):
		return false
	}
	p.settleEdge(d, cost)
	return true
}

// settleEdge puts into a decision on one unit what a cost makes of it that is not for the
// key's state to decide.
func (p *policy) settleEdge(d *Decision, cost int) {
	if cost < 0 || cost > 0 && !p.unlimited() || p.denyAll() {
		d.Allowed, d.RetryAfter = false, Never
	}
}

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
