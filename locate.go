package sluice

import "sync/atomic"

// A spot is where a key has its state, and under which policy.
type spot struct {
	policy *policy // of a key that is not tracked, what it would be under
	slot   *slot   // nil if the key is not tracked
	tail   []atomic.Uint64
	cell   *cell // nil if the slot is a table's, or there is none
}

// locate finds id. If it is not tracked, there has been an instant since the call began
// at which it was not. Within a table slots are added, and get the mark elsewhere, but
// nothing is taken back, and a cell comes before its mark. So, if the table is still that of
// the id and no cell is found:
//
//	the slot had the mark before      the mark was old
//	there was no slot before          nor a cell, or one that has been dropped since
func (st *store) locate(id uint64) spot {
	for {
		t := st.tableOf(id)
		if i, live := t.findLive(id); live {
			return spot{policy: t.policy, slot: &t.slots[i], tail: t.tail(i)}
		}
		if c := st.shardOf(id).cell(id); c != nil {
			at := spot{policy: c.policy, tail: c.tail, cell: c}
			if c.word.Load() != elsewhere {
				at.slot = &c.slot
			}
			return at
		}
		if st.tableOf(id) == t {
			return spot{policy: t.policy}
		}
	}
}

// slotOf is locate in half the time for nearly all keys: those in their table. (A spot is too
// large for registers.)
func (st *store) slotOf(id uint64) (p *policy, e *slot, tail []atomic.Uint64) {
	t := st.guide.tableOf(id)
	if e, i := t.lookup(id); e != nil && e.word.Load() != elsewhere {
		return t.policy, e, t.tail(i)
	}
	at := st.locate(id)
	return at.policy, at.slot, at.tail
}

// policyOf returns the policy that id is under, or if it is not tracked, would be.
func (st *store) policyOf(id uint64) *policy {
	if c := st.shardOf(id).cell(id); c != nil {
		return c.policy
	}
	return st.tableOf(id).policy
}

// fresh reports whether, at an instant since the call began, id was not tracked and would
// have been under p.
func (st *store) fresh(id uint64, p *policy) bool {
	at := st.locate(id)
	return at.slot == nil && at.admits(p)
}

// strange reports whether, at an instant since it was called, id was not tracked nor in a cell,
// and would have been under p. Where a probe ended before tells that, too, if it is looked at in the
// order of locate: the slot is still empty, there is no cell, and the table is still that of the id.
func (st *store) strange(p *policy, id uint64, seen gap) bool {
	if t := seen.table; t != nil && t.policy == p && t.slots[seen.slot].id.Load() == 0 &&
		st.shardOf(id).cell(id) == nil && t == st.tableOf(id) {
		return true
	}
	at := st.locate(id)
	return at.slot == nil && at.cell == nil && at.admits(p)
}

// admits reports whether a key that is not tracked can be tracked at p.
func (at *spot) admits(p *policy) bool {
	return at.policy == p || at.cell == nil && p.called()
}

// read returns a copy of the key's state as it stands at one instant. It fails if the word
// has gone.
func (at *spot) read() (e state, ok bool) {
	switch {
	case at.slot == nil:
		return state{}, true
	case at.policy.wide == nil:
		e.word = at.slot.released()
		return e, e.word < elsewhere
	}
	e.tail = make([]atomic.Uint64, len(at.tail))
	for {
		if e.word, ok = at.slot.unlocked(); !ok {
			return e, false
		}
		for i := range e.tail {
			e.tail[i].Store(at.tail[i].Load())
		}
		if at.slot.word.Load() == e.word {
			return e, true
		}
	}
}

// update replaces the word of id by f's, and reports false if id is not tracked. f may be
// called several times.
func (st *store) update(id uint64, f func(p *policy, key state) uint64) (tracked bool) {
	tracked, _ = st.updateUnder(nil, id, f)
	return tracked
}

// updateUnder is update for a key that is under the policy want, if that is not nil. Under
// another one it does nothing.
func (st *store) updateUnder(want *policy, id uint64, f func(p *policy, key state) uint64) (tracked, same bool) {
	for {
		p, e, tail := st.slotOf(id)
		switch {
		case e == nil:
			return false, true
		case want != nil && p != want:
			return true, false
		case e.update(p, tail, f):
			if st.overflow != OverflowEvictSoonest { // under which nothing is noted
				st.tableOf(id).idleSooner()
			}
			return true, true
		}
		st.awaitMove(id)
	}
}

// update fails if the word, which is of p, has gone. If f leaves a word without a tail as it
// is, nothing is written.
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
		if next := f(p, state{word: word}); next == word || e.word.CompareAndSwap(word, next) {
			return true
		}
	}
}

// blockOf returns when the block of id ends, 0 if it has none. It fails if p is not the
// policy of the key.
func (st *store) blockOf(p *policy, id uint64) (until uint64, ok bool) {
	for {
		at := st.locate(id)
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
		st.awaitMove(id)
	}
}

// blockNow returns when the block of id ends, or has ended; 0 if it has none.
func (st *store) blockNow(id uint64) (until uint64) {
	st.update(id, func(p *policy, key state) uint64 {
		until = p.blockedUntil(key)
		return key.word
	})
	return until
}
