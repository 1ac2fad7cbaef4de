package sluice

import "math/bits"

// A rebuild puts the ids of a table into a table of another size. A table that would have too many
// ids is split into two halves; a table that has few is merged with its buddy, the other half of
// the table that the two would be together.
type rebuild struct {
	st    *store
	s     *shard
	depth uint
	bit   uint      // the bit of an id that says which half it is in; 64 if there is one table
	next  [2]*table // no other call sees them yet
	back  []*cell   // the cells of keys that are in a table again
}

// rebuildLocked replaces the table of id by one made for about want ids that holds all
// entries but the ones for which drop, if it is not nil, is true. drop sees each entry after
// its word has been taken away from decisions, so its verdict stays true.
func (st *store) rebuildLocked(s *shard, id uint64, want int, drop func(*policy, state) bool) (dropped int) {
	old := st.tableOf(id)
	first, _ := covers(id, old.depth)
	r := rebuild{st: st, s: s, depth: old.depth, bit: 64}
	buddy := st.buddyOf(first, old)
	if buddy != nil && want+buddy.used > st.mostOf(old.policy)/2 {
		buddy = nil // too many ids for one table
	}
	switch {
	case buddy != nil:
		r.depth--
		want += buddy.used
	case want > st.mostOf(old.policy) && st.splitsLocked(old):
		r.depth++
		r.bit = 64 - r.depth
		want = (want + 1) / 2
		r.next[1] = st.tableFor(old.policy, r.depth, want, s.share)
	}
	r.next[0] = st.tableFor(old.policy, r.depth, want, s.share)
	dropped = r.takeLocked(old, drop)
	if buddy != nil {
		r.takeLocked(buddy, nil)
	}
	r.publishLocked(first, old, want)
	if buddy != nil {
		t := st.tableOf(first)
		t.young = min(old.young, buddy.young)
	}
	s.count.Add(-int64(dropped))
	return dropped
}

// buddyOf returns the table with which t could be merged, the other half of the larger table. It returns
// nil if that half has been split or is of another policy.
func (st *store) buddyOf(id uint64, t *table) *table {
	if t.depth == st.depth() {
		return nil
	}
	if b := st.tableOf(id ^ 1<<(64-t.depth)); b.depth == t.depth && b.policy == t.policy {
		return b
	}
	return nil
}

// mergeEmptyLocked merges the table of id, which is empty, with its buddy as long as that is empty, too.
func (st *store) mergeEmptyLocked(id uint64) {
	t := st.tableOf(id)
	for b := st.buddyOf(id, t); b != nil && b.used == 0; b = st.buddyOf(id, t) {
		next := emptyTable(t.policy, t.depth-1)
		st.publishLocked(id, t, next)
		t = next
	}
}

// takeLocked moves the entries of a table.
//
// The slot of a key in a cell is dropped if the cell stays, or is no longer there. A key whose
// cell is under the policy of the table comes back into the table.
func (r *rebuild) takeLocked(old *table, drop func(*policy, state) bool) (dropped int) {
	wide, free := old.policy.wide != nil, uint64(reserved)
	if wide {
		free = blockedTail
	}
	for from := 0; from < len(old.slots); from += blockSlots {
		some, mask := old.block(from, len(old.slots))
		for ; mask != 0; mask &= mask - 1 {
			i := bits.TrailingZeros64(mask)
			e := &some[i]
			id, word := e.id.Load(), e.word.Load()
			if word == elsewhere {
				dropped += r.takeMarkLocked(old.policy, id, drop)
				continue
			}
			if word >= free || !e.word.CompareAndSwap(word, moved) {
				word = e.freeze(wide)
			}
			key := old.state(uint64(from+i), word)
			if drop != nil && drop(old.policy, key) {
				dropped++
				r.st.ledgers.Dropped(id)
				continue
			}
			r.put(id, key)
		}
	}
	return dropped
}

// takeMarkLocked moves the mark of a key in a cell, and returns how many keys it has dropped.
func (r *rebuild) takeMarkLocked(p *policy, id uint64, drop func(*policy, state) bool) int {
	c := r.s.counted(id)
	if c == nil {
		return 0
	}
	switch e, _ := c.freeze(); {
	case drop != nil && drop(c.policy, e):
		r.st.ledgers.Dropped(id)
		r.st.removeCellLocked(r.s, c)
		return 1
	case c.policy == p:
		r.put(id, e)
		r.back = append(r.back, c)
	default:
		r.put(id, state{word: elsewhere})
		c.word.Store(e.word)
	}
	return 0
}

// put adds an entry. More keys than wanted may stay: idle keys can still be charged before the freeze.
func (r *rebuild) put(id uint64, e state) {
	half := &r.next[id>>r.bit&1]
	if (*half).used == (*half).limit {
		*half = r.larger(*half)
	}
	(*half).put(id, e)
}

// larger returns a table with the entries of t and room for as many again.
func (r *rebuild) larger(t *table) *table {
	limit := 2 * t.limit
	if most := r.st.mostOf(t.policy); t.used < most {
		limit = min(limit, most)
	}
	next := newTable(t.policy, t.depth, makeSlots(2*len(t.slots)), limit, r.st.homes)
	for i, id := range t.occupied {
		next.put(id, t.state(i, t.slots[i].word.Load()))
	}
	return next
}

// publishLocked puts the tables in the place of the old one, whose first id is given.
func (r *rebuild) publishLocked(first uint64, old *table, want int) {
	for i, t := range r.next {
		if t == nil {
			continue
		}
		if t.used == 0 && (want == 0 || r.depth > old.depth) {
			t = emptyTable(t.policy, t.depth) // always new: if a call finds it twice, no other table was there between
		}
		r.st.publishLocked(first|uint64(i)<<r.bit, old, t)
	}
	for _, c := range r.back {
		r.st.removeCellLocked(r.s, c) // only now, when calls find the key in the table
	}
}

// publishLocked puts t in the place of the tables of its ids. id is one of its ids, and old is one
// of the replaced tables.
func (st *store) publishLocked(id uint64, old, t *table) {
	if t.used > 0 { // an empty table may be shared with other shards
		t.young = old.young
	}
	if t.used > 0 || t.depth == st.depth() { // an empty part of a shard says nothing about the other parts
		if far := st.cached == &notCached && t.isFar(); far != st.far.Load() {
			st.far.Store(far)
		}
	}
	st.directoryMu.Lock()
	defer st.directoryMu.Unlock()
	d := st.directory.Load()
	if next := d.put(id, t.depth, t); next != d {
		st.setDirectory(next)
	}
}

// tableFor returns a table for n ids and some more, but for no more than a shard's share, and no
// more than a table has before it is split, unless n is more.
func (st *store) tableFor(p *policy, depth uint, n, share int) *table {
	most := st.mostOf(p)
	if n > most {
		most = share
	}
	limit := max(minLimit, n, min(n/growDen*growNum+1, most))
	if limit > share-share/8 && most == share {
		limit = max(n, share) // room for all of the share, one rebuild earlier than by growth
	}
	num, den := maxLoadNum, maxLoadDen
	if limit == share {
		num, den = shareLoadNum, shareLoadDen
	}
	least := (limit*den + num - 1) / num
	if sparse := sparseSlots >> depth; least < sparse {
		return newTable(p, depth, makeSlots(max(minSlots, min(limit*sparseDen, sparse))), limit, st.homes)
	}
	slots := makeSlots(max(minSlots, least))
	if limit < most {
		limit = max(limit, min(len(slots)*num/den, most, share-1))
	}
	return newTable(p, depth, slots, limit, st.homes)
}

// mostOf returns how many ids a table of the policy has at most, unless it cannot be split.
func (st *store) mostOf(p *policy) int {
	return min(st.most, max(fewIDs, fullWords/max(1, p.tailLen())))
}

// splitsLocked reports whether a table can be split. The directory grows only if
// the keys are spread evenly: else strangers who choose the places of their keys could make
// it grow without end.
func (st *store) splitsLocked(t *table) bool {
	d := st.directory.Load()
	return t.depth < d.depth() || t.depth < maxDepth && st.spread(len(d.places), st.mostOf(t.policy))
}
