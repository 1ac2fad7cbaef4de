package sluice

import "sync/atomic"

// update puts what f makes of it in the place of the word of id, if id is tracked, and
// reports whether it is. The tail is nil for one-word algorithms. f may be called several
// times.
func (st *store) update(id uint64, f func(p *policy, key state) uint64) (tracked bool) {
	s := st.shardOf(id)
	for {
		p, e, tail := s.slotOf(id)
		switch {
		case e == nil:
			return false
		case e.update(p, tail, f):
			return true
		}
		st.awaitMove(s)
	}
}

// act puts what f makes of it in the place of the state of id, under the policy that policyFor
// finds, which a call through l goes by. f may be called several times, and where another
// call changes the policy in between, under several: the last one counts. If id is not
// tracked, absent is called in its place, and says whether that is all, or act is to start
// over, since the key is tracked by now.
func (l *Limiter) act(id uint64, policyFor func(*Limiter, uint64) *policy, f func(p *policy, key state) uint64, absent func(p *policy) (done bool)) {
	for {
		p, same := policyFor(l, id), true
		tracked := l.core.update(id, func(q *policy, key state) uint64 {
			if same = q == p; !same {
				return key.word
			}
			return f(p, key)
		})
		if same && (tracked || absent(p)) {
			return
		}
	}
}

// update fails if the word, which is of p, has gone.
func (e *slot) update(p *policy, tail []atomic.Uint64, f func(p *policy, key state) uint64) (ok bool) {
	if p.wide != nil {
		word, ok := e.lock()
		if ok {
			e.word.Store(f(p, state{word, tail}))
		}
		return ok
	}
	for {
		word := e.released()
		if word == moved || word == elsewhere {
			return false
		}
		if e.word.CompareAndSwap(word, f(p, state{word: word})) {
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
		tracked := l.core.update(id, func(p *policy, key state) uint64 {
			return p.block(key, until)
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
		at := s.locate(id)
		switch {
		case at.slot == nil:
			return 0, at.admits(p)
		case at.policy != p:
			return 0, false
		case p.wide == nil:
			if word := at.slot.released(); word < elsewhere {
				return p.blockedUntil(state{word: word}), true
			}
		case at.slot.word.Load() < blockedTail:
			return 0, true
		default:
			if word, ok := at.slot.lock(); ok { // or the end of the block could be another's
				until = p.blockedUntil(state{word, at.tail})
				at.slot.word.Store(word)
				return until, true
			}
		}
		st.awaitMove(s)
	}
}

// blockNow returns when the block of id ends, or has ended; 0 if it has none.
func (l *Limiter) blockNow(id uint64) (until uint64) {
	l.core.update(id, func(p *policy, key state) uint64 {
		until = p.blockedUntil(key)
		return key.word
	})
	return until
}

// unblock ends the block of id, if there is one.
func (l *Limiter) unblock(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	was := false
	l.core.update(id, func(p *policy, key state) uint64 {
		if was = p.blockedUntil(key) > 0; was {
			return p.unblock(key)
		}
		return key.word
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
	l.core.update(id, func(p *policy, key state) uint64 {
		given = 0
		b := p.bucket()
		if b == nil || p.blockedUntil(key) > 0 {
			return p.refund(key, now, cost)
		}
		given = b.full(key.word)
		next := p.refund(key, now, cost)
		given -= b.full(next)
		return next
	})
	rec.refunded(given)
}
