package sluice

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// A directory says in which table an id is. The first bits of an id are the index of a place; a
// table has one place or more, all places whose ids begin with the same bits as its own (extendible
// hashing, Fagin, Nievergelt, Pippenger and Strong 1979). So the tables of a shard split as it
// grows and merge as it shrinks, and a move of keys holds the lock for the keys of one table.
//
// A place is written under the lock of its shard and the lock of the directory. The directory can be
// replaced by one of twice the places. A call that uses the old directory meanwhile finds the current
// table, or a replaced table, whose words have moved:
//
//	decision:  loads the directory
//	growth:    puts a larger one in its place; later freezes a table, publishes the next
//	decision:  finds the frozen table in the old directory; its word has moved; waits for the lock
//	decision:  starts over with the new directory
//
// The tables of a shard's cells have a directory of their own, and split alike. A replaced table of cells is
// not frozen: the next tables have the same cells. It only lacks later cells; so the result of a call that
// reads it is the one at the instant at which it was replaced.
type directory[T any] struct {
	places []atomic.Pointer[T]
	shift  uint // id>>shift is the place, without the bits before it, which pick the shard
}

// maxDepth leaves the low half of an id to say where in a table its home is.
const maxDepth = 32

// covers returns the first and the last id of a table of the depth that id is in.
func covers(id uint64, depth uint) (first, last uint64) {
	rest := uint64(1)<<(64-depth) - 1 // at depth 0 all bits
	return id &^ rest, id | rest
}

// newDirectory returns a directory for ids whose first bits, as many as same, are equal. It has at least
// two empty places, so that an id is shifted by less than its length.
func newDirectory[T any](places int, same uint) *directory[T] {
	places = max(places, 2)
	return &directory[T]{make([]atomic.Pointer[T], places), uint(64-bits.TrailingZeros(uint(places))) - same}
}

// depth returns the depth of a table that has a single place.
func (d *directory[T]) depth() uint { return 64 - d.shift }

func (d *directory[T]) place(id uint64) uint64 { return id >> d.shift & uint64(len(d.places)-1) }

// tableOf returns the table that id is in, if it is in one.
func (d *directory[T]) tableOf(id uint64) *T { return d.places[d.place(id)].Load() }

// A guide is the newest directory in a form where no load waits for another one: the number of its
// places, and the address of the first. The two may come from two directories. Then the places are the
// newer ones, and more than count: the table found may belong to other ids. A call
// that finds such a table may have to wait for the lock of the key's shard, once.
type guide struct {
	count  atomic.Uint64 // read first, and written last
	places atomic.Pointer[atomic.Pointer[table]]
}

func (g *guide) follow(d *directory[table]) {
	g.places.Store(&d.places[0])
	g.count.Store(uint64(len(d.places)))
}

// tableOf returns the table that id is in, if it is in one, or while the directory is being
// replaced, a table of other ids. So a table that has the id is the right one, and a table without
// the id proves nothing: see store.tableOf.
func (g *guide) tableOf(id uint64) *table {
	i, _ := bits.Mul64(id, g.count.Load()) // id>>shift; a processor takes longer to shift by a variable
	return (*atomic.Pointer[table])(unsafe.Add(unsafe.Pointer(g.places.Load()), uintptr(i)*unsafe.Sizeof(atomic.Pointer[table]{}))).Load()
}

// put puts t in all places of a table of the depth, id being one of its ids. It returns the
// directory, or if that has too few places, a larger one.
func (d *directory[T]) put(id uint64, depth uint, t *T) *directory[T] {
	for d.depth() < depth {
		d = d.doubled()
	}
	first, last := covers(id, depth)
	for i := d.place(first); i <= d.place(last); i++ {
		d.places[i].Store(t)
	}
	return d
}

func (d *directory[T]) doubled() *directory[T] {
	next := &directory[T]{make([]atomic.Pointer[T], 2*len(d.places)), d.shift - 1}
	for i := range next.places {
		next.places[i].Store(d.places[i/2].Load())
	}
	return next
}
