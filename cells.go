package sluice

import (
	"math"
	"sync/atomic"
)

// A cell is the state of one key outside of the tables. All words of a table are under one
// policy; a key under another policy has a cell. Its slot in the table, if it has one, then has
// the word elsewhere: so a key leaves the table, and changes its policy, in a time that does not
// depend on other keys. The next rebuild of the table drops such slots, and takes back the keys
// that are under its policy again.
//
// All fields but the word are written before others see the cell, and never again: a change makes
// another cell in its place. A call that finds a word moved waits for the shard's lock, under which
// the cell is replaced, and starts over:
//
//	SetLimit:     locks the shard; swaps moved into the key's word
//	decision:     finds the slot; its swap fails or it loads moved; waits for the lock
//	SetLimit:     publishes the cell; makes the slot say elsewhere; unlocks
//	decision:     starts over; finds the cell
//
// A key never has two live words. A call that finds the key nowhere relies on that only
// for an instant at which it was true: see locate.
type cell struct {
	slot   // elsewhere stands for no state
	policy *policy
	kept   *terms // of Key.SetLimit: the cell stays; nil if it goes when it is swept
	tail   []atomic.Uint64
}

// cellTable is a hash table of cells with linear probing, from a home as in a table of slots. A removed
// cell is replaced by the cell gone, and dropped when the cells are put into another cellTable.
//
// Invariant: at least one place is nil, so every probe ends.
type cellTable struct {
	places []atomic.Pointer[cell]
	homes  uint64 // how many places are homes
	depth  uint   // how many of the first bits of its ids are the same

	// The rest is guarded by the shard's lock.
	used int // places that are not nil
	live int // of these, not gone
}

// fullCells is the number of cells from which a full cellTable is split: all cells are moved at once, some
// 0.1 us each. So a cellTable has at most 1,024 places, and 896 cells.
const fullCells = 512

var gone = new(cell)

func newCellTable(places int, homes uint64, depth uint) *cellTable {
	return &cellTable{places: make([]atomic.Pointer[cell], places), homes: min(uint64(places), homes), depth: depth}
}

// full reports whether there is no room for another cell.
func (ct *cellTable) full() bool { return ct.used >= len(ct.places)*maxLoadNum/maxLoadDen }

// home returns the place where the probe for id starts.
func (ct *cellTable) home(id uint64) uint64 {
	return uint64(uint32(id)) * ct.homes >> 32
}

// find returns the cell of id and its place, or nil and the place where the probe ended.
func (ct *cellTable) find(id uint64) (*cell, uint64) {
	mask := uint64(len(ct.places) - 1)
	for i := ct.home(id); ; i = (i + 1) & mask {
		if c := ct.places[i].Load(); c == nil || c.id.Load() == id && c != gone {
			return c, i
		}
	}
}

// next returns a table with the cells of ct and room for as many again, or its halves if their
// depth is another one.
func (ct *cellTable) next(homes uint64, depth uint) (next [2]*cellTable) {
	bit, places := uint(64), max(minSlots, pow2(2*(ct.live+1)))
	if depth > ct.depth {
		bit, places = 64-depth, places/2
		next[1] = newCellTable(places, homes, depth)
	}
	next[0] = newCellTable(places, homes, depth)
	ct.eachIn(0, math.MaxUint64, func(c *cell) { next[c.id.Load()>>bit&1].put(c) })
	return next
}

// put puts c in the place of the cell of its id, which it returns, or in a free place.
func (ct *cellTable) put(c *cell) (old *cell) {
	old, i := ct.find(c.id.Load())
	if old == nil {
		ct.used++
		ct.live++
	}
	ct.places[i].Store(c)
	return old
}

func (ct *cellTable) remove(c *cell) {
	_, i := ct.find(c.id.Load())
	ct.places[i].Store(gone)
	ct.live--
}

// eachIn calls f for the cells of the ids from first to last. Without the shard's lock some may be old
// ones.
func (ct *cellTable) eachIn(first, last uint64, f func(*cell)) {
	for i := range ct.places {
		if c := ct.places[i].Load(); c != nil && c != gone && first <= c.id.Load() && c.id.Load() <= last {
			f(c)
		}
	}
}

// keptOn returns the terms that the key of the cell, if there is one, is kept on, or nil.
func (c *cell) keptOn() *terms {
	if c == nil {
		return nil
	}
	return c.kept
}

func (c *cell) state(word uint64) state { return state{word, c.tail} }

// freeze replaces the word by moved, for good. tracked is false if the cell has no state. The
// caller holds the shard's lock.
func (c *cell) freeze() (e state, tracked bool) {
	if c.word.Load() == elsewhere { // no other call stores a state there
		c.word.Store(moved)
		return state{}, false
	}
	return c.state(c.slot.freeze(c.policy.wide != nil)), true
}
