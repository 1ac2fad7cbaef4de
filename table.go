package sluice

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// Words from reserved on are no algorithm's.
const (
	reserved = 3 << 62
	// moved marks a slot whose word has gone to a newer table, for good.
	moved = math.MaxUint64
	// held marks a slot whose word a TakeAll has taken for a moment. (In a wide
	// slot the lock bit says so.)
	held = moved - 1
	// elsewhere marks a slot whose key has its state in a cell, or no longer has any; and a
	// cell without state. (As a wide word it has all version or number bits set, as no
	// word has.)
	elsewhere = held - 1
)

// A slot holds one key. The id is set once, after the word, and never changes in
// its table.
type slot struct{ id, word atomic.Uint64 }

// A table is an open-addressed hash table of slots with linear probing. Slots hold
// no pointers, so the garbage collector does not scan them. All of its words are of
// one policy.
//
// Invariant: at least one slot is empty, so every probe ends.
type table struct {
	slots  []slot
	home   uint64 // id&home is where the probe for id starts
	policy *policy
	mask   uint64 // len(slots)-1
	limit  int    // how many ids it may hold
	tails  tails  // only for wide algorithms
}

const (
	minSlots = 8
	// A table is at most 3/4 full. It is made at most 1/2 full, unless it can then
	// hold its shard's share. Not tuned.
	maxLoadNum, maxLoadDen = 3, 4

	// farSlots is from how many slots, in all shards together, they are fetched
	// ahead: 1 MiB, the size of a second level cache.
	farSlots = 1 << 16
)

// lookup returns the slot of id, or nil. It is find without the index, and inlined
// where find is not; the compiler can tell that the masked index is in range.
func (t *table) lookup(id uint64) *slot {
	slots := t.slots
	if len(slots) == 0 {
		return nil
	}
	for i := id & t.home; ; i++ {
		e := &slots[i&uint64(len(slots)-1)]
		switch e.id.Load() {
		case id:
			return e
		case 0:
			return nil
		}
	}
}

// find returns the slot of id, or the empty slot where the probe for it ended.
func (t *table) find(id uint64) (i uint64, found bool) {
	for i = id & t.home; ; i = (i + 1) & t.mask {
		switch t.slots[i].id.Load() {
		case id:
			return i, true
		case 0:
			return i, false
		}
	}
}

// An entry is a slot's state as one algorithm call sees it.
type entry struct {
	word uint64
	tail []atomic.Uint64 // nil for one-word algorithms
}

func (t *table) entry(i uint64, word uint64) entry {
	if t.tails.length == 0 || word == elsewhere {
		return entry{word: word}
	}
	return entry{word, t.tails.of(i)}
}

// put adds an entry to a table that nobody else sees yet.
func (t *table) put(id uint64, e entry) {
	i, _ := t.find(id)
	if e.tail != nil {
		t.tails.adopt(i, e.tail)
	}
	t.slots[i].word.Store(e.word)
	t.slots[i].id.Store(id)
}

// adopt adds an entry of another policy.
func (t *table) adopt(id uint64, from *policy, e entry, now int64) {
	i, _ := t.find(id)
	var tail []atomic.Uint64
	if t.policy.wide != nil {
		tail = t.tails.add(i)
	}
	t.slots[i].word.Store(t.policy.adopt(from, e, tail, now))
	t.slots[i].id.Store(id)
}

// mark adds a slot that says that the key is in a cell.
func (t *table) mark(id uint64) {
	i, _ := t.find(id)
	t.slots[i].word.Store(elsewhere)
	t.slots[i].id.Store(id)
}

func (st *store) newTable(p *policy, slots int) *table {
	t := &table{
		slots:  make([]slot, slots),
		home:   uint64(slots-1) & st.homes,
		policy: p,
		mask:   uint64(slots - 1),
		limit:  slots / maxLoadDen * maxLoadNum,
	}
	if p.wide != nil {
		t.tails = newTails(slots, t.limit, p.wide.tailLen())
	}
	return t
}

// slotsFor returns the size of a table for n ids: at most half full, but no
// larger than a shard with a bound needs.
func (st *store) slotsFor(n, share int) int {
	size := max(minSlots, pow2(2*n))
	if share < math.MaxInt/maxLoadDen {
		size = min(size, max(minSlots, pow2((share*maxLoadDen+maxLoadNum-1)/maxLoadNum)))
	}
	return size
}

// pow2 returns the least power of two that is at least n.
func pow2(n int) int { return 1 << bits.Len(uint(n-1)) }
