package sluice

import (
	"math"
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

func (c *cell) entry(word uint64) entry { return entry{word, c.tail} }

// freeze takes the word out for good, unless there is no state. The caller holds the
// shard's lock.
func (c *cell) freeze() (e entry, tracked bool) {
	if c.word.Load() == elsewhere { // and nobody else puts a state there
		c.word.Store(moved)
		return entry{}, false
	}
	return c.entry(freezeWord(&c.slot, c.policy)), true
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
// shard's:
//
//	no cell is found, the slot had the mark before      the mark was old
//	no cell is found, and no slot after it              there was neither
func (st *store) locate(s *shard, id uint64) spot {
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
		if (found || t.lookup(id) == nil) && s.table.Load() == t {
			return spot{policy: t.policy}
		}
	}
}

// fresh reports whether, at an instant since the call began, id was not tracked and would
// have been under p.
func (st *store) fresh(id uint64, p *policy) bool {
	at := st.locate(st.shardOf(id), id)
	return at.slot == nil && at.admits(p)
}

// admits reports whether a key that is not tracked can be tracked at p.
func (at *spot) admits(p *policy) bool {
	return at.policy == p || at.cell == nil && p.called()
}

// A placement is what becomes of a key: the plan it is kept on, if any, and the terms that
// it is under from now on.
type placement struct {
	kept  *plan
	terms *terms
}

// place puts id where f says, which is told what it is kept on. It does nothing if f returns
// nothing. What the key has spent goes along.
func (l *Limiter) place(id uint64, f func(kept *plan) (p placement, ok bool)) {
	s, rec := l.lockKey(id)
	defer l.unlockKey(s, rec, id)
	var kept *plan
	if c := s.cell(id); c != nil {
		kept = c.kept
	}
	if to, ok := f(kept); ok {
		l.placeLocked(s, rec, id, to, nil)
	}
}

// lockKey guards what is reserved of id and then, always in this order, locks its shard.
func (l *Limiter) lockKey(id uint64) (*shard, *record) {
	rec := l.ledgers.of(id).guard(id)
	s := l.shardOf(id)
	s.mu.Lock()
	return s, rec
}

func (l *Limiter) unlockKey(s *shard, rec *record, id uint64) {
	s.mu.Unlock()
	l.ledgers.of(id).unguard(rec)
}

// An amendment puts another state in the place of the one that a key has, and reports whether
// it has done so.
type amendment func(p *policy, e entry, tracked bool, now int64) (from *policy, next entry, amended bool)

// placeLocked is place with the key guarded and the shard locked. A key that is to be kept on
// nothing and has no state is forgotten. So is one for which there is no room among the keys
// that are kept on nothing.
func (l *Limiter) placeLocked(s *shard, rec *record, id uint64, to placement, amend amendment) {
	c := s.cell(id)
	i, live := s.table.Load().findLive(id)
	counted := live || c != nil && c.kept == nil
	room := true
	if to.kept == nil && !counted { // and so in a cell that stays
		room = c.word.Load() != elsewhere && l.roomLocked(s, id, max(l.clock.Now(), 0), false)
	}
	var from *policy
	var e entry
	tracked := true
	switch t := s.table.Load(); {
	case c != nil:
		from = c.policy
		e, tracked = c.freeze()
	case live:
		from = t.policy
		e = t.entry(i, t.freeze(i))
	default:
		from, tracked = t.policy, false
	}
	now := max(l.clock.Now(), 0) // when nobody can charge it any more
	if c != nil && c.kept != nil && tracked {
		l.keptLive.Add(-1)
	}
	if tracked && from.idleBy(e, now) {
		s.floor = max(s.floor, now)
		l.swept.Add(1)
		tracked = false
	}
	amended := false
	if amend != nil {
		if from, e, amended = amend(from, e, tracked, now); amended {
			tracked = true
		}
	}
	if to.kept == nil && !(tracked && room) {
		l.forgetLocked(s, rec, c, id, live, counted)
		return
	}
	p := to.terms.policyFor(l, from, e, now)
	next := &cell{policy: p, kept: to.kept}
	next.id.Store(id)
	next.word.Store(elsewhere)
	if tracked {
		next.adopt(from, e, now)
		if to.kept != nil {
			l.keptLive.Add(1)
			l.arm()
		}
	}
	l.putCellLocked(s, next)
	if live {
		s.table.Load().slots[i].word.Store(elsewhere)
	}
	switch counts := to.kept == nil; {
	case counts && !counted:
		l.markLocked(s, id)
	case counted && !counts:
		s.count.Add(-1)
	}
	if tracked && !amended && from.blockedUntil(e.word, e.tail) == 0 {
		rec.adopt(p, now)
	} else {
		rec.forget()
	}
}

// adopt gives a cell that nobody sees yet what a key has spent under another policy.
func (c *cell) adopt(from *policy, e entry, now int64) {
	if c.policy.wide != nil {
		c.tail = make([]atomic.Uint64, c.policy.tailLen())
	}
	c.word.Store(c.policy.adopt(from, e, c.tail, now))
}

// forgetLocked drops a key whose word has been frozen.
func (l *Limiter) forgetLocked(s *shard, rec *record, c *cell, id uint64, live, counted bool) {
	if c != nil {
		l.removeCellLocked(s, c)
	}
	if live {
		t := s.table.Load()
		i, _ := t.find(id)
		t.slots[i].word.Store(elsewhere)
	}
	if counted {
		s.count.Add(-1)
	}
	rec.forget()
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

// findLive is find for a slot that has the key's state.
func (t *table) findLive(id uint64) (i uint64, live bool) {
	i, found := t.find(id)
	return i, found && t.slots[i].word.Load() != elsewhere
}

// emptyCellsLocked takes the state out of cells that stay and have been idle by cutoff.
func (st *store) emptyCellsLocked(s *shard, cutoff int64) (dropped int) {
	s.eachCell(func(c *cell) {
		if c.kept == nil || c.word.Load() == elsewhere || !c.policy.idleBy(c.entry(c.word.Load()), cutoff) {
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
		st.ledgers.dropped(c.id.Load())
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

// needs returns the least room that the words of a policy must have to keep what e counts
// under p. Buckets owe what they owe in any word.
func (p *policy) needs(e entry, now int64) int {
	if e.word == 0 || p.bucket() != nil || p.blockedUntil(e.word, e.tail) > 0 {
		return 0
	}
	if log, ok := p.wide.(*slidingLog); ok {
		return int(log.counting(e.word, e.tail, now))
	}
	return int(min(p.rank(e, 0), math.MaxInt)) // at 0 all of it counts
}
