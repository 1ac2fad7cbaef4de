package sluice

import (
	"runtime"
	"sync/atomic"
)

// peekAt describes in d, which is zero, what takeAt would.
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
			l.core.awaitMove(l.core.shardOf(id))
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
	t := l.shardOf(id).table.Load()
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
	e, ok := at.read()
	if !ok {
		return false
	}
	clock := max(l.clock.Now(), 0)
	if at.policy.idleBy(e, clock) {
		e.word = 0
	}
	p := tm.policyFor(l, at.policy, e, clock)
	tail := make([]atomic.Uint64, p.tailLen())
	word := p.adopt(at.policy, e, tail, clock)
	d.Limit = int(p.burst)
	switch {
	case p.unlimited():
		d.unlimited(p.blockedUntil(state{word, tail}), now)
		p.settleEdge(d, cost)
	case p.denyAll():
		p.settleEdge(d, cost)
	case p.fits(cost):
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{word, tail}, now, cost, true)
	default:
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(state{word, tail}, now, 1, false)
		p.settleEdge(d, cost)
	}
	return true
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
		l.awaitMove(l.shardOf(id))
	}
	return ok
}

// peekTail describes a call in d without charging it. It fails if the word has gone.
func (p *policy) peekTail(d *Decision, e *slot, tail []atomic.Uint64, now int64, cost int, charges bool) bool {
	for {
		word := e.word.Load()
		if word == moved || word == elsewhere {
			return false
		}
		if word&locked != 0 {
			runtime.Gosched()
			continue
		}
		at, ok := uint64(0), true
		if word&blockedTail != 0 {
			at, ok = blockEnd(tail)
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
		if ok && e.word.Load() == word {
			return true
		}
	}
}
