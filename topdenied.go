package sluice

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// A DeniedKey is one of the keys that were denied most: see Limiter.TopDenied.
type DeniedKey struct {
	// Name is the key as it was given to a method that takes a string, cut to 256
	// bytes; empty if it was only ever denied through a Key.
	Name string
	// ID is the 64-bit id by which the key is tracked. With Hash Stable it is the
	// xxHash64 of Name.
	ID uint64
	// Denied is how often the key was denied, an estimate that is at most by chance
	// too low, and too high by at most Excess.
	Denied, Excess uint64
}

// TopDenied returns the keys that were denied most, most often first, at most
// Config.TopDenied of them; nil without that.
//
// One denial in 64 is looked at, and counted for 64. Of these samples any key that
// makes up more than one in Config.TopDenied is in the list (Metwally, Agrawal,
// El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
// 2005: the Space-Saving algorithm). Denials of cost 0 and of Peek are not counted.
func (l *Limiter) TopDenied() []DeniedKey {
	if l.top == nil {
		return nil
	}
	return l.top.list()
}

// maxName bounds what a key's name takes.
const maxName = 256

// denialsASample is how many denials one sample stands for. A sample takes a lock and
// a look into a map, and at worst a copy of the name, some 300 ns; a denial should not take 10 ns more than without.
const denialsASample = 64

// topDenied counts denials by the Space-Saving algorithm: it has n counters, and a
// key without one takes over the least, along with its count.
type topDenied struct {
	mu    sync.Mutex
	n     int
	heap  []DeniedKey    // by Denied, the least first
	index map[uint64]int // id -> place in heap
}

func newTopDenied(n int) *topDenied {
	return &topDenied{n: n, index: make(map[uint64]int)}
}

// sample counts a denial if it is one that is looked at, and if nobody else is being
// counted: a denial does not wait for statistics.
func (t *topDenied) sample(id uint64, name string) {
	if rand.Uint64()%denialsASample != 0 || !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	t.count(id, name)
}

// count gives id a sample's worth of denials. The name is copied only when the key
// gets a counter, or a name.
func (t *topDenied) count(id uint64, name string) {
	i, found := t.index[id]
	switch {
	case found:
	case len(t.heap) < t.n:
		i = len(t.heap)
		t.heap = append(t.heap, DeniedKey{ID: id})
		t.index[id] = i
		t.up(i)
		i = t.index[id]
	default:
		i = 0
		least := t.heap[0].Denied
		delete(t.index, t.heap[0].ID)
		t.heap[0] = DeniedKey{ID: id, Denied: least, Excess: least}
		t.index[id] = 0
	}
	e := &t.heap[i]
	if e.Name == "" {
		e.Name = strings.Clone(name[:min(len(name), maxName)])
	}
	e.Denied += denialsASample
	t.down(i)
}

func (t *topDenied) up(i int) {
	for i > 0 && t.heap[i].Denied < t.heap[(i-1)/2].Denied {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (t *topDenied) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && t.heap[child].Denied < t.heap[least].Denied {
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

func (t *topDenied) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.index[t.heap[i].ID], t.index[t.heap[j].ID] = i, j
}

func (t *topDenied) list() []DeniedKey {
	t.mu.Lock()
	all := slices.Clone(t.heap)
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.ID, b.ID))
	})
	return all
}
