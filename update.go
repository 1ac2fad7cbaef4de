package sluice

import "sync/atomic"

// update puts what f makes of it in the place of the word of id, if id is tracked, and
// reports whether it is. The tail is nil for one-word algorithms. f may be called several
// times.
func (st *store) update(id uint64, f func(p *policy, word uint64, tail []atomic.Uint64) uint64) (tracked bool) {
	s := st.shardOf(id)
	for {
		t := s.table.Load()
		p, e, tail := t.policy, t.lookup(id), []atomic.Uint64(nil) // as of nearly all keys
		if e == nil || e.word.Load() == elsewhere || p.wide != nil {
			at := st.locate(s, id)
			if p, e, tail = at.policy, at.slot, at.tail; e == nil {
				return false
			}
		}
		if e.update(p, tail, f) {
			return true
		}
		st.awaitMove(s)
	}
}

// update fails if the word, which is of p, has gone.
func (e *slot) update(p *policy, tail []atomic.Uint64, f func(p *policy, word uint64, tail []atomic.Uint64) uint64) (ok bool) {
	if p.wide != nil {
		word, ok := e.lock()
		if ok {
			e.word.Store(f(p, word, tail))
		}
		return ok
	}
	for {
		word := e.released()
		if word == moved || word == elsewhere {
			return false
		}
		if e.word.CompareAndSwap(word, f(p, word, nil)) {
			return true
		}
	}
}

// reset makes id fresh. The key stays in its table, where the next sweep finds it
// idle.
func (l *Limiter) reset(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	l.core.update(id, (*policy).reset)
	rec.forget()
}

// block blocks id until then at least. It fails where the key cannot be tracked.
func (l *Limiter) block(id uint64, now int64, until uint64) bool {
	for {
		tracked := l.core.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
			return p.block(word, tail, until)
		})
		if tracked {
			return true
		}
		p := l.policyFor(id)
		if _, out := l.core.insert(l.core.shardOf(id), p, id, now, 0, nil); out == waved || out == refused {
			return false
		}
	}
}

// blockOf returns when the block of id ends, 0 if it has none. It fails if p is not the
// policy of the key.
func (st *store) blockOf(p *policy, id uint64) (until uint64, ok bool) {
	s := st.shardOf(id)
	for {
		at := st.locate(s, id)
		switch {
		case at.slot == nil:
			return 0, at.admits(p)
		case at.policy != p:
			return 0, false
		case p.wide == nil:
			if word := at.slot.released(); word < elsewhere {
				return p.blockedUntil(word, nil), true
			}
		case at.slot.word.Load() < blockedTail:
			return 0, true
		default:
			if word, ok := at.slot.lock(); ok { // or the end of the block could be another's
				until = p.blockedUntil(word, at.tail)
				at.slot.word.Store(word)
				return until, true
			}
		}
		st.awaitMove(s)
	}
}

// isBlocked reports whether id has a block, which may be over.
func (st *store) isBlocked(id uint64) (blocked bool) {
	st.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
		blocked = p.blockedUntil(word, tail) > 0
		return word
	})
	return blocked
}

// unblock ends the block of id, if there is one.
func (l *Limiter) unblock(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	was := false
	l.core.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
		if was = p.blockedUntil(word, tail) > 0; was {
			return p.unblock(word, tail)
		}
		return word
	})
	if was {
		rec.forget()
	}
}

// refund gives back cost > 0 units of id.
func (l *Limiter) refund(id uint64, now int64, cost int) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	given := uint64(0)
	l.core.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
		given = 0
		b := p.bucket()
		if b == nil || p.blockedUntil(word, tail) > 0 {
			return p.refund(word, tail, now, cost)
		}
		given = b.full(word)
		next := p.refund(word, tail, now, cost)
		given -= b.full(next)
		return next
	})
	rec.refunded(given)
}
