package sluice

import (
	"runtime"
	"sync/atomic"
)

// A cell is the state of one key by itself. The words of a table are those of one policy;
// a key under another policy has a cell. Its slot in the table, if it has one, then says
// elsewhere, so that a key leaves the table, and changes its policy, in a time that no other
// key has a part in. The next rebuild of the table drops such slots, and takes keys back
// that are under its policy again.
//
// All but the word is written before others see the cell, and never again: a change makes
// another cell in its place. A call that finds a word moved waits for the shard's lock, under which
// that happens, and starts over:
//
//	SetKeyLimit:  locks the shard; swaps moved into the key's word
//	decision:     finds the slot; its swap fails or it loads moved; waits for the lock
//	SetKeyLimit:  publishes the cell; makes the slot say elsewhere; unlocks
//	decision:     starts over; finds the cell
//
// At no time have two words of a key been live. A call that finds the key nowhere believes it
// only of an instant at which it was so: see locate.
type cell struct {
	slot   // elsewhere stands for no state
	policy *policy
	kept   *plan // of SetKeyLimit or SetPlan: the cell stays; nil if it goes when it is swept
	tail   []atomic.Uint64
}

// cellTable is a hash table of cells with linear probing. A removed cell is replaced by
// the cell gone, and dropped when the table is rebuilt.
//
// Invariant: at least one place is nil, so every probe ends.
type cellTable struct {
	places []atomic.Pointer[cell]
	home   uint64 // masks the home place of an id
	used   int    // places that are not nil; guarded by the shard's lock
	live   int    // of these, not gone
}

var gone = new(cell)

func newCellTable(places int, homes uint64) *cellTable {
	return &cellTable{places: make([]atomic.Pointer[cell], places), home: uint64(places-1) & homes}
}

// find returns the cell of id and its place, or nil and the place where the probe ended.
func (ct *cellTable) find(id uint64) (*cell, uint64) {
	mask := uint64(len(ct.places) - 1)
	for i := id & ct.home; ; i = (i + 1) & mask {
		if c := ct.places[i].Load(); c == nil || c.id.Load() == id && c != gone {
			return c, i
		}
	}
}

// cell returns the cell of id, or nil.
func (s *shard) cell(id uint64) *cell {
	ct := s.cells.Load()
	if ct == nil {
		return nil
	}
	c, _ := ct.find(id)
	return c
}

// putCellLocked puts c in the place of the cell of its id, if there is one.
func (st *store) putCellLocked(s *shard, c *cell) {
	id := c.id.Load()
	ct := s.cells.Load()
	if ct == nil {
		ct = newCellTable(minSlots, st.homes)
		s.cells.Store(ct)
	}
	old, i := ct.find(id)
	if old == nil && ct.used+1 > len(ct.places)/maxLoadDen*maxLoadNum {
		next := newCellTable(max(minSlots, pow2(2*(ct.live+1))), st.homes)
		for j := range ct.places {
			if c := ct.places[j].Load(); c != nil && c != gone {
				_, k := next.find(c.id.Load())
				next.places[k].Store(c)
			}
		}
		next.used, next.live = ct.live, ct.live
		s.cells.Store(next)
		ct = next
		_, i = ct.find(id)
	}
	switch {
	case old == nil:
		ct.used++
		ct.live++
	case old.kept != nil:
		st.kept.Add(-1)
	}
	if c.kept != nil {
		st.kept.Add(1)
	}
	ct.places[i].Store(c)
}

func (st *store) removeCellLocked(s *shard, c *cell) {
	ct := s.cells.Load()
	_, i := ct.find(c.id.Load())
	ct.places[i].Store(gone)
	ct.live--
	if c.kept != nil {
		st.kept.Add(-1)
	}
}

// eachCell calls f for the cells of a shard. Without the shard's lock some may be old ones.
func (s *shard) eachCell(f func(*cell)) {
	ct := s.cells.Load()
	if ct == nil {
		return
	}
	for i := range ct.places {
		if c := ct.places[i].Load(); c != nil && c != gone {
			f(c)
		}
	}
}

func (c *cell) state(word uint64) state { return state{word, c.tail} }

// freeze takes the word out for good, unless there is no state. The caller holds the
// shard's lock.
func (c *cell) freeze() (e state, tracked bool) {
	if c.word.Load() == elsewhere { // and nobody else puts a state there
		c.word.Store(moved)
		return state{}, false
	}
	return c.state(c.slot.freeze(c.policy.wide != nil)), true
}

// A spot is where a key has its state, and under which policy.
type spot struct {
	policy *policy // of a key that is not tracked, what it would be under
	slot   *slot   // nil if the key is not tracked
	tail   []atomic.Uint64
	cell   *cell // nil if the slot is a table's, or there is none
}

// locate finds id. If it is not tracked, there has been an instant since the call began
// at which it was not. Within a table slots are added, and get the mark elsewhere, but
// nothing is taken back, and a cell comes before its mark. So, if the table is still the
// shard's and no cell is found:
//
//	the slot had the mark before      the mark was old
//	there was no slot before          nor a cell, or one that has been dropped since
func (s *shard) locate(id uint64) spot {
	for {
		t := s.table.Load()
		i, found := t.find(id)
		if found && t.slots[i].word.Load() != elsewhere {
			var tail []atomic.Uint64
			if t.policy.wide != nil {
				tail = t.tails.of(i)
			}
			return spot{policy: t.policy, slot: &t.slots[i], tail: tail}
		}
		if c := s.cell(id); c != nil {
			at := spot{policy: c.policy, tail: c.tail, cell: c}
			if c.word.Load() != elsewhere {
				at.slot = &c.slot
			}
			return at
		}
		if s.table.Load() == t {
			return spot{policy: t.policy}
		}
	}
}

// slotOf is locate in half the time for nearly all keys: those in their table. (A spot is too
// large for registers.)
func (s *shard) slotOf(id uint64) (p *policy, e *slot, tail []atomic.Uint64) {
	t := s.table.Load()
	if i, found := t.find(id); found && t.slots[i].word.Load() != elsewhere {
		if t.policy.wide != nil {
			tail = t.tails.of(i)
		}
		return t.policy, &t.slots[i], tail
	}
	at := s.locate(id)
	return at.policy, at.slot, at.tail
}

// fresh reports whether, at an instant since the call began, id was not tracked and would
// have been under p.
func (st *store) fresh(id uint64, p *policy) bool {
	at := st.shardOf(id).locate(id)
	return at.slot == nil && at.admits(p)
}

// admits reports whether a key that is not tracked can be tracked at p.
func (at *spot) admits(p *policy) bool {
	return at.policy == p || at.cell == nil && p.called()
}

// roomLocked makes room for a key that is not counted, and for its mark.
func (st *store) roomLocked(s *shard, id uint64, now int64, keep bool) bool {
	if s.len() >= s.share && !st.makeRoomLocked(s, now) {
		st.untracked.Add(1)
		return false
	}
	// More keys may stay than expected, so that the new table is full, too.
	for {
		t := s.table.Load()
		if _, found := t.find(id); found || s.used < t.limit {
			return true
		}
		st.growLocked(s, now, keep)
	}
}

// markLocked counts a key that is in a cell. There is room for it.
func (st *store) markLocked(s *shard, id uint64) {
	t := s.table.Load()
	if _, found := t.find(id); !found {
		t.mark(id)
		s.used++
	}
	s.count.Add(1)
	s.added++
	st.arm()
}

// emptyCellsLocked takes the state out of cells that stay and have been idle by cutoff.
func (st *store) emptyCellsLocked(s *shard, cutoff int64) (dropped int) {
	s.eachCell(func(c *cell) {
		if c.kept == nil || c.word.Load() == elsewhere || !c.policy.idleBy(c.state(c.word.Load()), cutoff) {
			return
		}
		e, _ := c.freeze()
		if !c.policy.idleBy(e, cutoff) {
			c.word.Store(e.word)
			return
		}
		next := &cell{policy: c.policy, kept: c.kept}
		next.id.Store(c.id.Load())
		next.word.Store(elsewhere)
		st.books.dropped(c.id.Load())
		st.putCellLocked(s, next)
		dropped++
	})
	if dropped > 0 {
		s.floor = max(s.floor, cutoff)
		st.swept.Add(uint64(dropped))
		st.keptLive.Add(-int64(dropped))
	}
	return dropped
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
		e.word = at.slot.word.Load()
		switch {
		case e.word == moved || e.word == elsewhere:
			return e, false
		case e.word&locked != 0:
			runtime.Gosched()
			continue
		}
		for i := range e.tail {
			e.tail[i].Store(at.tail[i].Load())
		}
		if at.slot.word.Load() == e.word {
			return e, true
		}
	}
}
