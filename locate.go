package sluice

import "sync/atomic"

// A spot is the location of a key's state, and the policy that the state is under.
type spot struct {
	policy *policy // of a key that is not tracked, the policy that it would be under
	slot   *slot   // nil if the key is not tracked
	tail   []atomic.Uint64
	cell   *cell // nil if the slot is a table's, or there is none
}

// locate finds id. If it finds no state, there has been an instant since the call began at
// which id was not tracked. Within a table slots are added, and get the mark elsewhere, but
// neither is undone, and a cell is stored before its mark. So if the table is still the one of
// the id and no cell is found:
//
//	the slot had the mark before      the mark was old
//	there was no slot before          nor a cell, or one that has been dropped since
func (st *store) locate(id uint64) spot {
	for {
		t := st.tableOf(id)
		if e, i := t.lookup(id); e != nil && e.word.Load() != elsewhere {
			return spot{policy: t.policy, slot: e, tail: t.tail(i)}
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

// slotOf is locate in half the time for keys in their table, as nearly all are. (A spot is too
// large for registers.)
func (st *store) slotOf(id uint64) (p *policy, e *slot, tail []atomic.Uint64) {
	t := st.guide.tableOf(id)
	if e, i := t.lookup(id); e != nil && e.word.Load() != elsewhere {
		return t.policy, e, t.tail(i)
	}
	at := st.locate(id)
	return at.policy, at.slot, at.tail
}

// fresh reports whether the key was not tracked, and would have been tracked under p.
func (at *spot) fresh(p *policy) bool { return at.slot == nil && at.admits(p) }

// strange reports whether, at an instant since it was called, id was neither tracked nor in a cell, and
// would have been tracked under p. The empty slot where an earlier probe ended proves it as well, if the checks
// are in the order of locate: the slot is still empty, there is no cell, and the table is still the one of the id.
func (st *store) strange(p *policy, id uint64, seen gap) bool {
	if t := seen.table; t != nil && t.policy == p && t.slots[seen.slot].id.Load() == 0 &&
		st.shardOf(id).cell(id) == nil && t == st.tableOf(id) {
		return true
	}
	at := st.locate(id)
	return at.nowhere() && at.admits(p)
}

func (at *spot) nowhere() bool { return at.slot == nil && at.cell == nil }

// admits reports whether a key that is not tracked can be tracked under p.
func (at *spot) admits(p *policy) bool {
	return at.policy == p || at.cell == nil && p.called()
}

// glance returns the state of the key, and when its block ends or has ended, 0 if it has none. It fails
// if the word is moved or elsewhere. Later loads of the tail belong together if still holds after them.
func (at *spot) glance() (key state, blocked uint64, ok bool) {
	switch {
	case at.slot == nil:
		return state{}, 0, true
	case at.policy.wide != nil:
		key.word, blocked, ok = at.slot.glance(at.tail)
		return state{key.word, at.tail}, blocked, ok
	}
	key.word = at.slot.released()
	return key, at.policy.blockedUntil(key), key.word < elsewhere
}

// still reports whether all loads of the key's state since a glance belong together.
func (e *slot) still(key state) bool {
	return e == nil || key.tail == nil || e.word.Load() == key.word
}

// read returns a copy of the key's state. It fails if the word is moved or elsewhere.
func (at *spot) read() (e state, ok bool) {
	for {
		key, _, ok := at.glance()
		if !ok {
			return state{}, false
		}
		e = state{key.word, make([]atomic.Uint64, len(key.tail))}
		for i := range e.tail {
			e.tail[i].Store(key.tail[i].Load())
		}
		if at.slot.still(key) {
			return e, true
		}
	}
}
