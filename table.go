package sluice

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-go/sluice/internal/crowding"
	"github.com/sluice-go/sluice/internal/prefetch"
	"github.com/sluice-go/sluice/internal/tails"
)

// A table is an open-addressed hash table of slots with linear probing. Slots hold
// no pointers, so the garbage collector does not scan them. All of its words are under
// one policy.
//
// It has any number of slots. The low half of an id, as a part of 2^32, says how far into the
// table its home is: so ids lie in a table in the order of their low halves, and a larger
// table is filled from front to back.
//
// Invariant: at least one slot is empty, so every probe ends.
type table struct {
	slots  []slot
	homes  uint64 // how many slots are homes, if not all of them are: see crowding.Built
	policy *policy
	depth  uint        // how many of the first bits of its ids are the same
	limit  int         // how many ids it may hold
	tails  tails.Store // only for wide algorithms

	// The rest is guarded by the shard's lock, and in other cache lines than the fields above.
	used  int   // ids, also the ids of cells that stay
	young int64 // before this time no key has been here for the TTL
	_     [40]byte

	// idleFrom is the first time at which a key may be idle; 0 if that is unknown, 1 during a look. A call
	// that makes a key idle sooner writes 0, with or without the lock: see lookForIdleLocked.
	idleFrom atomic.Int64
}

const (
	minSlots, minLimit = 8, 2

	// A table is at most 7/8 full, and made for half as many ids again as there are, or for
	// the shard's share. That is 18 bytes a key when it is full, 28 when it has just grown, and 23
	// on average; on average a key has been moved twice.
	maxLoadNum, maxLoadDen = 7, 8
	growNum, growDen       = 3, 2

	// A table for all of the share is at most 4/5 full, 20 bytes a key: it stays that full, and each
	// new key is looked for among 13 slots on average, not 33.
	shareLoadNum, shareLoadDen = 4, 5

	// Tables of fewer slots, in all shards together, take little memory, and are at most a
	// quarter full. In fuller ones a processor does not foresee how long probes are: on a
	// coarse clock Allow on 1,000 keys takes 1.12 times as long at a half, and 1.4 times at 7/8.
	sparseSlots = 1 << 14
	sparseDen   = 4

	// farSlots is from how many slots, in all tables together, they are fetched
	// ahead: 1 MiB, the size of a second level cache.
	farSlots = 1 << 16

	// A table of more than fullIDs is split, and so is one of more than fullWords of tails and fewIDs:
	// in a table with fewer ids, the third that is evicted would have too many keys that owe much. To
	// move so many takes some 100 us at most, during which the lock of their shard is held.
	fullIDs   = 1792
	fullWords = 1 << 15
	fewIDs    = 256
)

// mostIDs returns how many ids a table has at most, in shards of the share. It is the share; or if that
// is too large, the share is halved until it is small enough, as splits do, and an eighth is
// added. (By chance a table gets that many more ids at 4 sigma.)
func mostIDs(share int) int {
	n := share
	for n > fullIDs {
		n /= 2
	}
	if n < share {
		n += n / 8
	}
	return n
}

// lookup returns the slot of id, or nil and the place of the empty one where the probe for it ended.
// It is written so that it is inlined, and the compiler can tell that the index is in range.
func (t *table) lookup(id uint64) (e *slot, end uint64) {
	slots := t.slots
	for i := t.home(id); i < uint64(len(slots)); {
		e := &slots[i]
		switch e.id.Load() {
		case id:
			return e, i
		case 0:
			return nil, i
		}
		if i++; i == uint64(len(slots)) {
			i = 0
		}
	}
	return nil, 0 // not reached: homes are slots
}

// home returns the slot where the probe for id starts.
func (t *table) home(id uint64) uint64 {
	homes := uint64(len(t.slots))
	if crowding.Built {
		homes = t.homes
	}
	return uint64(uint32(id)) * homes >> 32
}

func (t *table) prefetch(id uint64) { prefetch.Line(unsafe.Pointer(&t.slots[t.home(id)])) }

// prefetchTwo lets it fetch the slot where the probe ends on average as well: half of the time that is in
// the next line.
func (t *table) prefetchTwo(id uint64) {
	home := t.home(id)
	prefetch.Line(unsafe.Pointer(&t.slots[home]))
	prefetch.Line(unsafe.Pointer(&t.slots[min(home+2, uint64(len(t.slots)-1))]))
}

// A gap is the empty slot of a table where the probe for an id ended. As long as that slot is empty, the
// table does not hold the id.
type gap struct {
	table *table
	slot  uint64
}

// blockSlots is how many slots are looked at together: a bit of a word for each.
const blockSlots = 64

// block returns the next slots from the given one on, and a mask of the slots that have an id. A processor
// cannot predict which slots have one, so block looks at all ids without a branch.
func (t *table) block(from, end int) (some []slot, mask uint64) {
	some = t.slots[from:min(from+blockSlots, end)]
	for i := range some {
		id := some[i].id.Load()
		mask |= (id | -id) >> 63 << (i % blockSlots)
	}
	return some, mask
}

// occupied yields the slots that have an id, in order, with their ids.
func (t *table) occupied(yield func(i, id uint64) bool) {
	for from := 0; from < len(t.slots); from += blockSlots {
		some, mask := t.block(from, len(t.slots))
		for ; mask != 0; mask &= mask - 1 {
			i := bits.TrailingZeros64(mask)
			if !yield(uint64(from+i), some[i].id.Load()) {
				return
			}
		}
	}
}

func (t *table) state(i uint64, word uint64) state {
	if word == elsewhere {
		return state{word: word}
	}
	return state{word, t.tail(i)}
}

// tail returns the tail of slot i, nil for one-word algorithms.
func (t *table) tail(i uint64) []atomic.Uint64 {
	if t.tails.Length == 0 {
		return nil
	}
	return t.tails.Of(i)
}

// emptyTable returns a table without keys, which takes no ids.
func emptyTable(p *policy, depth uint) *table {
	return &table{slots: make([]slot, 1), policy: p, depth: depth}
}

// isFar reports whether the slots of a store of such tables are not likely to be in the cache.
func (t *table) isFar() bool { return uint64(len(t.slots))<<t.depth >= farSlots }

// freeze takes the state of slot i away for good: see slot.freeze.
func (t *table) freeze(i uint64) state {
	return t.state(i, t.slots[i].freeze(t.policy.wide != nil))
}

// put adds an entry to a table that no other call sees yet.
func (t *table) put(id uint64, e state) {
	_, i := t.lookup(id)
	if e.tail != nil { // calls may still read it in the old table; they find their word moved, and do not use the result
		t.tails.Attach(i, e.tail)
	}
	preset(&t.slots[i].word, e.word)
	preset(&t.slots[i].id, id)
	t.used++
}

// idleSooner notes that a key may be idle sooner than it would have been.
func (t *table) idleSooner() {
	if t.idleFrom.Load() != 0 {
		t.idleFrom.Store(0)
	}
}

// mark adds a mark: a slot that says that the key is in a cell.
func (t *table) mark(id uint64) {
	_, i := t.lookup(id)
	preset(&t.slots[i].word, elsewhere)
	t.slots[i].id.Store(id)
	t.used++
}

// makeSlots returns at least as many empty slots as least: append rounds the memory up, and all of it
// becomes slots.
func makeSlots(least int) []slot {
	slots := append([]slot(nil), make([]slot, least)...)
	return slots[:cap(slots)]
}

// newTable returns a table for at most limit ids. At most homes of its slots are homes.
func newTable(p *policy, depth uint, slots []slot, limit int, homes uint64) *table {
	t := &table{
		slots:  slots,
		homes:  min(uint64(len(slots)), homes),
		policy: p,
		depth:  depth,
		limit:  limit,
	}
	if p.wide != nil {
		t.tails = tails.New(len(slots), limit, p.wide.tailLen())
	}
	return t
}
