package sluice

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A DeniedKey is one of the keys that were denied most: see Limiter.TopDenied.
type DeniedKey struct {
	// Name is the key as it was given to a method that takes a string, or to the one that
	// made its Key: a string, the bytes, or the text of the address, cut to 256 bytes; or
	// what Key.Named says. It is empty until the limiter has heard it.
	//
	// A method that takes a string names the key that it denies. A denied Key is a number
	// to the limiter, and is named when a Key for it is made the next time: one that is
	// made for each request, as in a middleware, soon is. For a Key that is kept, and for
	// those of KeyUint64 and KeyHash, there is Key.Named.
	Name string
	// ID is the 64-bit id by which the key is tracked: Limiter.KeyHash(ID) is the key, to
	// be blocked, say. With HashStable it is the xxHash64 of a key that is a string.
	ID uint64
	// Denied estimates how often the key was denied, as 64 times its samples. The standard
	// deviation for n denials is 8*sqrt(n): 25 % of 1,000, 2.5 % of 100,000.
	Denied uint64
	// Excess is by how much Denied may be too high: the key was denied Denied-Excess times
	// or more, with a chance of 999 in 1,000. It covers the luck of the samples, and those
	// that a key takes over from another in whose place it is listed.
	Excess uint64
}

// maxName bounds what a key's name takes.
const maxName = 256

// denialsASample is how many denials one sample stands for. A sample takes a lock and
// a look into a map, and at worst a copy of the name, some 300 ns; a denial should not
// take 10 ns more than without.
const denialsASample = 64

// topDenied counts denials by the Space-Saving algorithm: it has n counters, and a
// key without one takes over the least, along with its count.
type topDenied struct {
	mu    sync.Mutex
	n     int
	heap  []DeniedKey    // by Denied, the least first. Excess is that of Space-Saving alone.
	index map[uint64]int // id -> place in heap

	// asked holds the ids that are in the list without a name, each at its low bits: a key
	// that comes by is named at the price of one look. An id that pushes another one out
	// of its place costs that a name until its next sample. Written under mu.
	asked []atomic.Uint64
}

func newTopDenied(n int) *topDenied {
	return &topDenied{n: n, index: make(map[uint64]int), asked: make([]atomic.Uint64, pow2(2*n))}
}

// nameless reports whether the list asks for the name of id.
func (t *topDenied) nameless(id uint64) bool { return t != nil && t.asks(id).Load() == id }

func (t *topDenied) asks(id uint64) *atomic.Uint64 { return &t.asked[id&uint64(len(t.asked)-1)] }

// name gives id its name, if nobody else is being counted.
func (t *topDenied) name(id uint64, name string) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if i, found := t.index[id]; found {
		t.heap[i].setName(name)
	}
	t.asks(id).CompareAndSwap(id, 0)
}

func (d *DeniedKey) setName(name string) { d.Name = strings.Clone(name[:min(len(name), maxName)]) }

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
	switch {
	case e.Name != "":
	case name != "":
		e.setName(name)
	default:
		t.asks(id).Store(id)
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
	for i := range all {
		all[i].Excess = all[i].Denied - atLeast((all[i].Denied-all[i].Excess)/denialsASample)
	}
	slices.SortFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// atLeast returns how many denials there were at least, if so many of them were samples.
// Their number is a Poisson variable of mean denials/64, or less wide. The normal quantile
// of 99.9 % below it is a bound on the safe side of the exact one, as is a count that
// never exceeds the samples themselves, each of which was a denial.
func atLeast(samples uint64) uint64 {
	n := float64(samples)
	return max(samples, uint64(max(0, denialsASample*(n-3.1*math.Sqrt(n)))))
}
