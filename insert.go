package sluice

import (
	"math"
	"sync/atomic"
)

// insert charges a key that is not tracked, and adds it. With cost 0 it adds the key as fresh.
// It does so only under p, and returns retrying under another policy.
//
// It looks for the key again under the lock: since the lookup that did not find the key, another call
// may have added it, or the table may have been replaced. An older now is raised to the newest
// time at which this shard forgot an idle key, since that may have been this key:
//
//	call A:  charges at 90, idle from 100
//	sweep:   at 200, drops the key
//	call B:  arrives with now 50; charged at 50 it would be idle at 60
func (st *store) insert(p *policy, id uint64, now int64, cost int, d *Decision, seen gap) (uint64, outcome) {
	s := st.shardOf(id)
	if st.turnsAway(s, p, id, now, seen) {
		return 0, st.turnedAway()
	}
	s.mu.Lock()
	defer st.unlock(s)
	if !st.decided.Load() {
		st.decided.Store(true)
	}
	t := st.tableOf(id)
	var e *slot
	i := seen.slot
	if seen.table != t || t.slots[i].id.Load() != 0 {
		e, i = t.lookup(id)
	}
	if e != nil && e.word.Load() != elsewhere {
		return 0, retrying
	}
	if c := s.cell(id); c != nil {
		if c.policy != p || c.word.Load() != elsewhere {
			return 0, retrying
		}
		word := st.fillLocked(s, c, p, now, cost, d)
		st.keptLive.Add(1)
		st.arm()
		return word, admitted
	}
	if t.policy != p && !p.called() {
		return 0, retrying
	}
	s.countTryLocked()
	if !st.roomLocked(s, id, now, cost == 0) {
		return 0, st.turnedAway()
	}
	if next := st.tableOf(id); next != t {
		t = next
		e, i = t.lookup(id)
	}
	if e == nil && t.policy == p {
		var tail []atomic.Uint64
		if p.wide != nil {
			tail = t.tails.Add(i)
		}
		word := p.firstCharge(tail, now, max(now, s.floor), cost, d)
		preset(&t.slots[i].word, word)
		t.slots[i].id.Store(id)
		t.used++
		t.idleSooner()
		s.count.Add(1)
		st.arm()
		return word, admitted
	}
	c := &cell{policy: p}
	c.id.Store(id)
	word := st.fillLocked(s, c, p, now, cost, d)
	st.markLocked(s, id)
	return word, admitted
}

// turnedAway returns the outcome of a call for a new key without room.
func (st *store) turnedAway() outcome {
	if st.overflow == OverflowAdmitNew {
		return waved
	}
	return refused
}

// fillLocked replaces c, which has no state, by a cell with the first charge.
func (st *store) fillLocked(s *shard, c *cell, p *policy, now int64, cost int, d *Decision) uint64 {
	next := &cell{policy: p, kept: c.kept}
	if p.wide != nil {
		next.tail = make([]atomic.Uint64, p.tailLen())
	}
	word := p.firstCharge(next.tail, now, max(now, s.floor), cost, d)
	next.word.Store(word)
	next.id.Store(c.id.Load())
	st.putCellLocked(s, next)
	c.word.Store(moved)
	return word
}

// roomLocked makes room for a key that is not counted, and for its mark.
func (st *store) roomLocked(s *shard, id uint64, now int64, keep bool) bool {
	if s.full() && !st.makeRoomLocked(s, now) {
		st.untracked.Add(1)
		return false
	}
	// More keys may stay than expected, and then the new table is full, too.
	for {
		t := st.tableOf(id)
		if t.used < t.limit {
			return true
		}
		if e, _ := t.lookup(id); e != nil {
			return true
		}
		st.growLocked(s, id, now, keep)
	}
}

// markLocked counts a key that is in a cell. There is room for it.
func (st *store) markLocked(s *shard, id uint64) {
	t := st.tableOf(id)
	if e, _ := t.lookup(id); e == nil {
		t.mark(id)
	}
	t.idleSooner()
	s.count.Add(1)
	st.arm()
}

// growLocked replaces the table of id by one that has room for another key. It drops keys that
// have been idle for the TTL. If it did not wait for the TTL, keys of a high rate that
// are in constant use but idle between any two calls would be dropped and added
// over and over (twice as slow on 1,000 busy keys). With keep, it drops no key:
// else growing for the last key of a TakeAll would drop its first keys, which are idle
// until it charges them.
func (st *store) growLocked(s *shard, id uint64, now int64, keep bool) {
	now = st.settled(now)
	cutoff := now - st.ttl
	if keep {
		cutoff = -1
	}
	t := st.tableOf(id)
	want := t.used + 1
	idle := 0
	if young := now < t.young; !young || s.cells.Load() != nil { // in a young table no key has been idle for the TTL
		var all int
		idle, all = st.countIdleLocked(s, t, cutoff)
		want = all - idle + 1
	}
	if idle > 0 {
		st.dropIdleLocked(s, id, cutoff, want)
	} else {
		st.rebuildLocked(s, id, want, nil)
	}
	if t.used == 0 {
		if next := st.tableOf(id); next.used == 0 { // it has not been merged with a table that has keys
			next.young = now + min(st.ttl, math.MaxInt64-now)
		}
	}
}
