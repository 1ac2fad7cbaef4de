package sluice

import (
	"sync/atomic"
)

// update is updateHere of the limiter that the key is tracked by.
func (l *Limiter) update(id uint64, f func(p *policy, word uint64, tail []atomic.Uint64) uint64) (tracked bool) {
	for {
		v := l.version()
		if l.owner(id).updateHere(id, f) {
			return true
		}
		if l.still(v) {
			return false
		}
		l.awaitOwner()
	}
}

// updateHere puts what f makes of it in the place of the word of id, if id is tracked, and
// reports whether it is. The tail is nil for one-word algorithms. f may be called several
// times.
func (st *store) updateHere(id uint64, f func(p *policy, word uint64, tail []atomic.Uint64) uint64) (tracked bool) {
	s := st.shardOf(id)
	for {
		t := s.table.Load()
		i, found := t.find(id)
		if !found {
			return false
		}
		if t.update(i, f) {
			return true
		}
		st.awaitMove(s)
	}
}

func (t *table) update(i uint64, f func(p *policy, word uint64, tail []atomic.Uint64) uint64) (ok bool) {
	e := &t.slots[i]
	if t.policy.wide != nil {
		word, ok := lockWord(e)
		if ok {
			e.word.Store(f(t.policy, word, t.tails.of(i)))
		}
		return ok
	}
	for {
		word := e.released()
		if word == moved || e.word.CompareAndSwap(word, f(t.policy, word, nil)) {
			return word != moved
		}
	}
}

// reset makes id fresh. The key stays in its table, where the next sweep finds it
// idle.
func (l *Limiter) reset(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	l.update(id, (*policy).reset)
	rec.forget()
}

// block blocks id until then at least. It fails where the key cannot be tracked.
func (l *Limiter) block(id uint64, now int64, until uint64) bool {
	for {
		tracked := l.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
			return p.block(word, tail, until)
		})
		if tracked {
			return true
		}
		o := l.owner(id)
		p := o.policyOf(id)
		if _, out := o.insert(o.shardOf(id), p, id, now, 0, nil); out == waved || out == refused {
			return false
		}
	}
}

// blockOf returns when the block of id ends, 0 if it has none. It fails if p is not the
// policy of the word, or the key is elsewhere.
func (st *store) blockOf(p *policy, id uint64) (until uint64, ok bool) {
	if p.wide == nil {
		word, ok := st.load(p, id)
		return p.blockedUntil(word, nil), ok
	}
	s := st.shardOf(id)
	for {
		v, t := st.version(), s.table.Load()
		if t.policy != p {
			return 0, false
		}
		i, found := t.find(id)
		if !found {
			return 0, st.vacant(id, v)
		}
		e := &t.slots[i]
		if word := e.word.Load(); word < blockedTail {
			return 0, true
		}
		if word, ok := lockWord(e); ok { // or the end of the block could be another's
			until = p.blockedUntil(word, t.tails.of(i))
			e.word.Store(word)
			return until, true
		}
		st.awaitMove(s)
	}
}

// isBlocked reports whether id has a block, which may be over.
func (st *store) isBlocked(id uint64) (blocked bool) {
	st.updateHere(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
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
	l.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
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
	l.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
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

// A hold is a key whose word is out of everybody else's reach, for a moment: who wants
// the word waits without sleeping. A holder must not wait for a shard's lock, since a
// rebuild holds that while it waits for words.
type hold struct {
	policy *policy
	slot   *slot // nil if the key is not tracked
	tail   []atomic.Uint64
	word   uint64 // as it was, without the lock bit
}

// tryHold holds the word of id once nobody else does. It fails if the word is being
// moved; awaitMove then waits for that. An untracked key is not held, and fresh.
func (st *store) tryHold(id uint64) (h hold, ok bool) {
	t := st.shardOf(id).table.Load()
	i, found := t.find(id)
	if !found {
		return hold{policy: t.policy}, true
	}
	e := &t.slots[i]
	if t.policy.wide != nil {
		word, ok := lockWord(e)
		if !ok {
			return hold{}, false
		}
		return hold{t.policy, e, t.tails.of(i), word}, true
	}
	for {
		word := e.released()
		if word == moved {
			return hold{}, false
		}
		if e.word.CompareAndSwap(word, held) {
			return hold{policy: t.policy, slot: e, word: word}, true
		}
	}
}

// release ends the hold, leaving the key with word.
func (h *hold) release(word uint64) {
	if h.slot != nil {
		h.slot.word.Store(word)
		h.slot = nil
	}
}
