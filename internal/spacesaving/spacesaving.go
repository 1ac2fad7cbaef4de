// Package spacesaving counts the most frequent ids of a stream in bounded memory (Metwally,
// Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data
// streams", 2005), and learns their names.
package spacesaving

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// MaxName bounds the bytes of a name.
const MaxName = 256

// A Counter is the count of an id.
type Counter struct {
	ID     uint64
	Name   string
	Count  uint64 // not less than how often the id was counted
	Excess uint64 // by how much it may be more
}

// Top has a number of counters. An id without one takes over the least, along with its
// count.
type Top struct {
	mu    sync.Mutex
	n     int
	heap  []Counter      // by Count, the least first
	index map[uint64]int // id -> place in heap

	// asked holds the ids that have a counter without a name, each at its low bits: an id
	// that comes by is named at the price of one look. An id that pushes another one out
	// of its place costs that a name until it is counted next. Written under mu.
	asked []atomic.Uint64
}

// New returns n counters.
func New(n int) *Top {
	return &Top{n: n, index: make(map[uint64]int), asked: make([]atomic.Uint64, 1<<bits.Len(uint(2*n-1)))}
}

// Nameless reports whether id has a counter and no name. A nil Top has no counters.
func (t *Top) Nameless(id uint64) bool { return t != nil && t.asks(id).Load() == id }

func (t *Top) asks(id uint64) *atomic.Uint64 { return &t.asked[id&uint64(len(t.asked)-1)] }

// Name gives id its name, if nobody else is counting. It keeps a copy.
func (t *Top) Name(id uint64, name string) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if i, found := t.index[id]; found {
		t.heap[i].setName(name)
	}
	t.asks(id).CompareAndSwap(id, 0)
}

func (c *Counter) setName(name string) { c.Name = strings.Clone(name[:min(len(name), MaxName)]) }

// Count counts id, unless somebody else is counting: nobody waits for statistics. The name
// may be empty, and is copied only when the id gets a counter, or a name.
func (t *Top) Count(id uint64, name string) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	i, found := t.index[id]
	switch {
	case found:
	case len(t.heap) < t.n:
		i = len(t.heap)
		t.heap = append(t.heap, Counter{ID: id})
		t.index[id] = i
		t.up(i)
		i = t.index[id]
	default:
		i = 0
		least := t.heap[0].Count
		delete(t.index, t.heap[0].ID)
		t.heap[0] = Counter{ID: id, Count: least, Excess: least}
		t.index[id] = 0
	}
	c := &t.heap[i]
	switch {
	case c.Name != "":
	case name != "":
		c.setName(name)
	default:
		t.asks(id).Store(id)
	}
	c.Count++
	t.down(i)
}

func (t *Top) up(i int) {
	for i > 0 && t.heap[i].Count < t.heap[(i-1)/2].Count {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (t *Top) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && t.heap[child].Count < t.heap[least].Count {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swap(i, least)
		i = least
	}
}

func (t *Top) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.index[t.heap[i].ID], t.index[t.heap[j].ID] = i, j
}

// List returns a copy of the counters, in no order.
func (t *Top) List() []Counter {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.heap)
}
