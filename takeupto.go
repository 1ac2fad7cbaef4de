package sluice

import (
	"runtime"
	"sync/atomic"
)

// TakeUpTo charges as many of cost units to key as there are at one instant, and returns
// how many that is: from 1 to cost, or 0 if there is none. The decision is that of Take
// for the units taken; or if there is none, that of Take for one unit, which is denied,
// with all that a denial does. A cost below 1 takes nothing: see Take.
//
// Under Unlimited that is all of cost. So it is under Shadow: what is charged is what
// there was, and WouldDeny says whether that was less. A new key without room at MaxKeys
// gets up to its burst under OverflowAdmitNew.
func (l *Limiter) TakeUpTo(key string, cost int) (taken int, d Decision) {
	id := l.made().hash.string(key)
	l.ahead(id)
	taken = l.takeUpToAt(&d, id, key, l.now(), cost)
	return taken, d
}

// TakeUpTo is Limiter.TakeUpTo for this key.
func (k Key) TakeUpTo(cost int) (taken int, d Decision) {
	k.lim.made().ahead(k.id)
	taken = k.lim.takeUpToAt(&d, k.id, "", k.lim.now(), cost)
	return taken, d
}

// TakeUpToAt is TakeUpTo at now; see AllowAt.
func (k Key) TakeUpToAt(now int64, cost int) (taken int, d Decision) {
	taken = k.lim.made().takeUpToAt(&d, k.id, "", now, cost)
	return taken, d
}

// takeUpToAt describes the decision in d, which is zero.
func (l *Limiter) takeUpToAt(d *Decision, id uint64, name string, now int64, cost int) (taken int) {
	now = max(now, 0)
	asked := cost
	if cost > 0 {
		taken = l.takeSome(d, id, now, cost)
		asked = max(taken, 1)
	} else {
		l.takeAt(d, id, now, cost)
	}
	if !d.Allowed || l.soft > 0 {
		l.finish(d, id, name, asked)
	}
	if l.shadow && taken < cost {
		d.WouldDeny = true
		return cost
	}
	return taken
}

// takeSome charges id as many of cost > 0 units as there are.
func (l *Limiter) takeSome(d *Decision, id uint64, now int64, cost int) (taken int) {
	core := l.core
	for {
		p := l.policyFor(id)
		if p.burst == 0 { // all or nothing, whatever there is
			if core.edge(d, p, id, now, cost) {
				if d.Allowed {
					return cost
				}
				return 0
			}
		} else if n, out := core.takeSomeUnder(d, p, id, now, cost); out != retrying {
			if l.tally != nil {
				l.tally.count(id>>core.shift, out)
			}
			return n
		}
		*d = Decision{}
	}
}

// takeSomeUnder is takeSome under p, if that is the key's policy.
func (l *Limiter) takeSomeUnder(d *Decision, p *policy, id uint64, now int64, cost int) (taken int, out outcome) {
	d.Limit = int(p.burst)
	s := l.shardOf(id)
	for {
		at := s.locate(id)
		switch {
		case at.slot == nil:
			taken, out = l.takeNew(d, s, p, id, now, min(cost, d.Limit))
		case at.policy != p:
			return 0, retrying
		case p.wide != nil:
			taken, out = l.takeSomeTail(d, p, at.slot, at.tail, now, cost)
		default:
			taken, out = l.takeSomeWord(d, p, at.slot, now, cost)
		}
		if out != retrying {
			d.Allowed = out.allowed()
			return taken, out
		}
		if at.slot == nil {
			return 0, retrying // perhaps it has another policy now
		}
		l.awaitMove(s)
	}
}

// takeNew charges a key that was not tracked, which has all that is asked for.
func (l *Limiter) takeNew(d *Decision, s *shard, p *policy, id uint64, now int64, cost int) (taken int, out outcome) {
	word, out := l.insert(s, p, id, now, cost, d)
	switch {
	case out == waved:
		d.Remaining = d.Limit
	case out == refused:
		d.RetryAfter = p.limit.interval()
		return 0, out
	case out == admitted && p.wide == nil:
		d.Remaining, d.RetryAfter, d.ResetAfter = p.describe(word, now, cost, true)
	}
	d.RetryAfter = 0
	return cost, out
}

// takeSomeWord charges a word. It is retrying if the word has been moved.
func (st *store) takeSomeWord(d *Decision, p *policy, e *slot, now int64, cost int) (taken int, out outcome) {
	for {
		word := e.released()
		if word == moved || word == elsewhere {
			return 0, retrying
		}
		from, until := p.admissible(state{word: word}, now)
		if until > 0 {
			d.block(until, now)
			return 0, blocked
		}
		there, _, _ := p.alg.describe(from.word, now, 1, true)
		taken, out = min(cost, there), admitted
		next, _ := p.alg.charge(from.word, now, max(taken, 1))
		if taken == 0 {
			if out = denied; !p.denies {
				d.Remaining, d.RetryAfter, d.ResetAfter = p.describe(from.word, now, 1, false)
				return 0, out
			}
			next = p.deny(from, now, 1)
		}
		if e.word.CompareAndSwap(word, next) {
			d.Remaining, d.RetryAfter, d.ResetAfter = p.describe(next, now, max(taken, 1), taken > 0)
			return taken, out
		}
		st.lostRaces.Inc()
	}
}

// takeSomeTail charges a word with a tail, as chargeTail does.
func (st *store) takeSomeTail(d *Decision, p *policy, e *slot, tail []atomic.Uint64, now int64, cost int) (taken int, out outcome) {
	for {
		word := e.word.Load()
		if word >= blockedTail {
			switch {
			case word == moved || word == elsewhere:
				return 0, retrying
			case word&locked != 0:
				runtime.Gosched()
			case p.stillBlocked(e, state{word, tail}, now, d):
				return 0, blocked
			}
			continue
		}
		var ok bool
		ok, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{word, tail}, now, 1, false)
		switch {
		case ok && e.word.CompareAndSwap(word, word|locked):
			// A refund may have left the word as it was: there is as much or more now.
			_, there, _, _ := p.wide.describe(state{word, tail}, now, 1, false)
			taken = min(cost, there)
			_, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{word, tail}, now, taken, true)
			e.word.Store(p.wide.commit(state{word, tail}, now, taken))
			return taken, admitted
		case ok:
			st.lostRaces.Inc()
		case p.denies && st.denyTail(p, e, state{word, tail}, now, 1, d) || !p.denies && e.word.Load() == word:
			return 0, denied
		}
	}
}
