package sluice

import "sync/atomic"

// update replaces the word of id by f's, and reports false if id is not tracked. f may be
// called several times.
func (st *store) update(id uint64, f func(p *policy, key state) uint64) (tracked bool) {
	tracked, _ = st.updateUnder(nil, id, f)
	return tracked
}

// updateUnder is update for a key that is under the policy want, unless want is nil. Under
// another policy it does nothing.
func (st *store) updateUnder(want *policy, id uint64, f func(p *policy, key state) uint64) (tracked, same bool) {
	for {
		p, e, tail := st.slotOf(id)
		switch {
		case e == nil:
			return false, true
		case want != nil && p != want:
			return true, false
		case e.update(p, tail, f):
			if st.overflow != OverflowEvictSoonest { // OverflowEvictSoonest notes nothing
				st.tableOf(id).idleSooner()
			}
			return true, true
		}
		st.awaitMove(id)
	}
}

// update fails if the word, which is under p, is moved or elsewhere. If f returns a word without
// a tail as it was, nothing is written.
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

// blockNow returns when the block of id ends, or has ended; 0 if it has none.
func (st *store) blockNow(id uint64) (until uint64) {
	st.update(id, func(p *policy, key state) uint64 {
		until = p.blockedUntil(key)
		return key.word
	})
	return until
}
