package sluice

import (
	"runtime"
	"sync/atomic"
)

// Allow charges one unit to key and reports whether it was admitted.
func (l *Limiter) Allow(key string) bool {
	if l == nil || !l.direct {
		return l.AllowN(key, 1)
	}
	id := l.hash.Seeded(key) // one frame less than AllowN
	l.ahead(id)
	return l.allowAt(id, l.now(), 1)
}

// AllowN charges cost units to key and reports whether they were admitted, all or
// none. See Take for costs below 1 or above the burst.
func (l *Limiter) AllowN(key string, cost int) bool {
	id := l.made().hash.String(key)
	l.ahead(id)
	return l.allowAt(id, l.now(), cost) || l.deny(id, key, cost)
}

// Take charges cost units to key and describes the decision.
//
// The charge is all or nothing: without BlockFor and CountDenied a denied call leaves
// the key as it was, and a key that is not tracked stays untracked. A cost of 0 charges
// nothing; the decision is then the one for one unit, as if there were always room at MaxKeys. A
// negative cost, or one above the burst and Config.Soft, is denied with RetryAfter Never. Take
// does not retain key.
func (l *Limiter) Take(key string, cost int) (d Decision) {
	id := l.made().hash.String(key)
	l.ahead(id)
	l.key(id).decide(&d, l.now(), cost)
	if !d.Allowed || l.soft > 0 {
		l.finish(&d, id, key, cost)
	}
	return d
}

// Allow is Limiter.Allow for this key.
func (k Key) Allow() bool { return k.AllowN(1) }

// AllowN is Limiter.AllowN for this key.
func (k Key) AllowN(cost int) bool {
	l := k.lim.made()
	if k.terms != nil { // checked first, so that it need not stay in a register
		return k.AllowAt(l.now(), cost)
	}
	l.ahead(k.id)
	return l.allowAt(k.id, l.now(), cost) || l.deny(k.id, "", cost)
}

// Take is Limiter.Take for this key.
func (k Key) Take(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.decide(&d, k.lim.now(), cost)
	if !d.Allowed || k.lim.soft > 0 {
		k.lim.finish(&d, k.id, "", cost)
	}
	return d
}

// AllowAt is AllowN at now, the caller's own reading of the limiter's clock in
// Unix nanoseconds, so that one reading can serve a batch. It must come from that
// clock, since the clock decides which keys are idle: with recorded times, give the
// limiter a ManualClock and move it along. A now far ahead of the clock spends the
// key's units in that future.
//
// An older now than the key has seen is safe: a call that would be denied at the
// newest time is denied, and an admitted call is charged in full, as at the newest
// time. A negative now counts as 0.
func (k Key) AllowAt(now int64, cost int) bool {
	l := k.lim.made()
	if k.terms != nil {
		return k.decide(nil, now, cost) || l.deny(k.id, "", cost)
	}
	return l.allowAt(k.id, now, cost) || l.deny(k.id, "", cost)
}

// TakeAt is Take at now; see AllowAt.
func (k Key) TakeAt(now int64, cost int) (d Decision) {
	k.lim.made()
	k.decide(&d, now, cost)
	if !d.Allowed || k.lim.soft > 0 {
		k.lim.finish(&d, k.id, "", cost)
	}
	return d
}

// allowAt decides nearly every call in this one frame: a call for a tracked key, under
// a one-word algorithm, if no other call changes the word meanwhile. It changes nothing
// for other calls, and leaves them to other functions.
func (l *Limiter) allowAt(id uint64, now int64, cost int) bool {
	// If it came from the table, the policy would be known three loads later.
	if p := l.current.Load(); uint64(cost)-1 < p.plain && now >= 0 {
		t := l.guide.tableOf(id)
		e, end := t.lookup(id)
		switch {
		case t.policy != p:
		case e == nil:
			return l.allowNew(p, id, now, cost, gap{t, end})
		default:
			if word := e.word.Load(); word < reserved {
				next, ok := p.alg.charge(word, now, cost)
				if !ok {
					return false
				}
				if e.word.CompareAndSwap(word, next) {
					return true
				}
			}
		}
	}
	return l.key(id).decide(nil, now, cost)
}

// allowNew is decide for a key that a table of p does not have, without a second lookup there.
func (l *Limiter) allowNew(p *policy, id uint64, now int64, cost int, seen gap) bool {
	own, _, out := l.key(id).chargeCell(nil, now, cost)
	if own == nil {
		_, out = l.insert(p, id, now, cost, nil, seen)
	}
	if !out.decided() {
		return l.key(id).decide(nil, now, cost)
	}
	l.count(id, out)
	return out.allowed()
}

// decide charges a call, in every case, and reports whether it is
// admitted. Unless d is nil it describes the decision in d, which is zero. (A Decision as a result would
// be copied through memory in each frame.)
func (k Key) decide(d *Decision, now int64, cost int) (allowed bool) {
	now = max(now, 0)
	l, id := k.lim, k.id
	p := l.current.Load()
	word, out := uint64(0), retrying
	if k.terms != nil {
		p = nil // policyFor finds it below
	} else if p.fits(cost) { // as in nearly all calls: decided without a frame of charge
		t := l.guide.tableOf(id)
		if e, i := t.lookup(id); e != nil && t.policy == p {
			if p.wide == nil {
				word, out = l.chargeWord(p, e, now, cost)
			} else if word := e.word.Load(); word != elsewhere { // a mark has no tail
				out = l.chargeTail(p, e, state{word, t.tails.Of(i)}, now, cost, d)
			}
		}
	}
	for !out.decided() {
		if p != nil {
			if word, out = l.charge(d, p, id, now, cost); out.decided() {
				break
			}
		}
		if own, left, how := k.chargeCell(d, now, cost); how.decided() {
			p, word, out = own, left, how
			break
		}
		if d != nil {
			*d = Decision{} // an attempt that met a change may have set fields
		}
		was := p
		if p = k.policyFor(true); out == unfit && p == was {
			if done, allowed := k.edge(d, p, now, cost); done {
				return allowed
			}
		}
	}
	if d != nil {
		p.tell(d, word, out, now, cost)
	}
	l.count(id, out)
	return out.allowed()
}

// tell describes a call that left its key with word, under a one-word algorithm. Under a wide
// algorithm d has the numbers of the call already.
func (p *policy) tell(d *Decision, word uint64, out outcome, now int64, cost int) {
	d.Limit = int(p.burst)
	d.Allowed = out.allowed()
	switch {
	case out == waved: // the key stays fresh
		d.Remaining, d.RetryAfter, d.ResetAfter = d.Limit, 0, 0
	case out == refused:
		d.Remaining, d.RetryAfter, d.ResetAfter = 0, p.limit.interval(), 0
	case p.wide != nil:
	case word < reserved:
		d.Remaining, d.RetryAfter, d.ResetAfter = p.alg.describe(word, now, cost, d.Allowed)
	default:
		d.block(p.blockedUntil(state{word: word}), now)
	}
}

// charge decides one call under p. It returns the word of the key after the call, if it has no tail. Under a wide
// algorithm, unless d is nil, it writes the numbers of the decision to d.
func (st *store) charge(d *Decision, p *policy, id uint64, now int64, cost int) (word uint64, out outcome) {
	if !p.fits(cost) {
		return 0, unfit
	}
	for t := st.guide.tableOf(id); ; t = st.tableOf(id) {
		e, i := t.lookup(id)
		var tail []atomic.Uint64
		switch {
		case e == nil || t.policy != p || e.word.Load() == elsewhere: // a mark has no tail
			if e, tail, word, out = st.slotOrInsert(p, id, now, cost, d, e, gap{t, i}); e == nil {
				if d != nil {
					d.RetryAfter = 0 // insert set it for one more unit
				}
				return word, out
			}
		case p.wide != nil:
			tail = t.tails.Of(i)
		}
		if p.wide != nil {
			out = st.chargeTail(p, e, state{e.word.Load(), tail}, now, cost, d)
		} else {
			word, out = st.chargeWord(p, e, now, cost)
		}
		if out != retrying {
			return word, out
		}
		st.awaitMove(id)
	}
}

// chargeWord decides on the word of a slot, under p, whose algorithm has one word. It returns the word of the key
// after the call, and retrying if the word is moved or elsewhere.
func (st *store) chargeWord(p *policy, e *slot, now int64, cost int) (uint64, outcome) {
	for {
		word := e.word.Load()
		from := word
		if word >= reserved {
			switch {
			case word == moved || word == elsewhere:
				return word, retrying
			case word == held:
				runtime.Gosched()
				continue
			case p.blockedUntil(state{word: word}) > uint64(now):
				return word, blocked
			}
			from = 0
		}
		next, ok := p.alg.charge(from, now, cost)
		out := admitted
		if !ok {
			if !p.denies {
				return word, denied
			}
			next, out = p.deny(state{word: word}, now, cost), denied
		}
		if e.word.CompareAndSwap(word, next) {
			return next, out
		}
		st.lostRaces.Inc()
	}
}

// chargeCell is charge for a key in a cell, if the cell is under the terms that the call goes by and its word
// is neither moved nor elsewhere. Else the call is not decided, and fields of d may be set. It returns the
// cell's policy, or nil if there is no cell.
func (k Key) chargeCell(d *Decision, now int64, cost int) (p *policy, word uint64, out outcome) {
	c := k.lim.shardOf(k.id).cell(k.id)
	if c == nil {
		return nil, 0, retrying
	}
	p = c.policy
	switch {
	case p.of != k.termsOf(c) || !p.fits(cost):
		return p, 0, retrying
	case p.wide != nil:
		return p, 0, k.lim.chargeTail(p, &c.slot, c.state(c.word.Load()), now, cost, d)
	}
	word, out = k.lim.chargeWord(p, &c.slot, now, cost)
	return p, word, out
}

// slotOrInsert returns the slot and the tail of a key that a lookup in a table of p has not found. If
// the key is not tracked, it decides the call and returns no slot.
func (st *store) slotOrInsert(p *policy, id uint64, now int64, cost int, d *Decision, e *slot, seen gap) (_ *slot, tail []atomic.Uint64, word uint64, out outcome) {
	for {
		at := spot{policy: p} // true at no single instant; insert looks again
		c := st.shardOf(id).cell(id)
		if c != nil && c.policy != p {
			return nil, nil, 0, retrying
		}
		if seen.table.policy != p || e != nil || c != nil {
			at = st.locate(id)
		}
		if at.slot != nil {
			if at.policy != p {
				return nil, nil, 0, retrying
			}
			return at.slot, at.tail, 0, retrying
		}
		if word, out := st.insert(p, id, now, cost, d, seen); out != retrying || !at.admits(p) {
			return nil, nil, word, out
		}
		seen.table = st.tableOf(id)
		if e, seen.slot = seen.table.lookup(id); e != nil && seen.table.policy == p && e.word.Load() != elsewhere {
			return e, seen.table.tail(seen.slot), 0, retrying
		}
	}
}

// chargeTail decides on the tail as it has read it. A denial is valid if the word is
// still the same afterwards. A write is valid because the swap that locks the word
// succeeds only then.
func (st *store) chargeTail(p *policy, e *slot, key state, now int64, cost int, d *Decision) outcome {
	wide := p.wide
	for ; ; key.word = e.word.Load() {
		if word := key.word; word >= blockedTail {
			switch {
			case word == moved || word == elsewhere:
				return retrying
			case word&locked != 0:
				runtime.Gosched()
			case p.stillBlocked(e, key, now, d):
				return blocked
			}
			continue
		}
		var ok bool
		if d != nil {
			ok, d.Remaining, d.RetryAfter, d.ResetAfter = wide.describe(key, now, cost, true)
		} else {
			ok = wide.admit(key, now, cost)
		}
		if !ok {
			if p.denies && st.denyTail(p, e, key, now, cost, d) || !p.denies && e.word.Load() == key.word {
				return denied
			}
			continue
		}
		if e.word.CompareAndSwap(key.word, key.word|locked) {
			e.word.Store(wide.commit(key, now, cost))
			return admitted
		}
		st.lostRaces.Inc()
	}
}

// stillBlocked reports, and describes, that a key with a blocked word is blocked at now.
// If its block is over it makes the key fresh.
func (p *policy) stillBlocked(e *slot, key state, now int64, d *Decision) bool {
	at, ok := blockEnd(key.tail)
	if !ok {
		return false
	}
	if at > uint64(now) {
		if d != nil {
			d.block(at, now)
		}
		return e.word.Load() == key.word
	}
	if e.word.CompareAndSwap(key.word, key.word|locked) {
		key, _ = p.admissible(key, now) // the block can have become longer
		e.word.Store(key.word)
	}
	return false
}

// denyTail changes the key as a denied call does, unless the call is admitted after all: a
// refund can have made room, and left the word as it was.
func (st *store) denyTail(p *policy, e *slot, key state, now int64, cost int, d *Decision) bool {
	if !e.word.CompareAndSwap(key.word, key.word|locked) {
		st.lostRaces.Inc()
		return false
	}
	if p.wide.admit(key, now, cost) {
		e.word.Store(key.word)
		return false
	}
	key.word = p.deny(key, now, cost)
	if d != nil {
		_, _, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, cost, false)
	}
	e.word.Store(key.word)
	return true
}

// finish ends a call once decide has described it: it notes a denial, and applies
// Config.Soft and Config.Shadow to the Decision.
func (l *Limiter) finish(d *Decision, id uint64, name string, cost int) {
	if !d.Allowed {
		l.deny(id, name, cost)
	}
	d.amend(l.soft, l.shadow, cost)
}

// deny ends a decision that the state denies: it notes the key for TopDenied, and returns
// whether the call passes all the same, under Shadow.
func (l *Limiter) deny(id uint64, name string, cost int) bool {
	if l.top != nil && cost != 0 {
		l.sampleDenial(id, name)
	}
	return l.shadow
}
