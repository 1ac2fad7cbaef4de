package sluice

import (
	"sync/atomic"
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
	p = tm.variantFor(at.policy, e, clock)
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
