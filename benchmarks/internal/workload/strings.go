package workload

import (
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
)

// Strings is where the strings of a workload's calls come from. What they cost is in every row of the workload, so it is measured alone, too.
type Strings int

const (
	// Streamed strings lie one after the other, in the order of the calls. The processor has them in the cache by the time of the call.
	Streamed Strings = iota
	// Made strings are copied from there just before the call, as a server makes one of the bytes of a request.
	Made
	// Stored strings lie where they were made once, each in a place of its own, as the names in a table of users do: the caller waits for
	// memory before it can make the call.
	Stored
)

func (w Workload) made() Workload {
	w.Name, w.Strings = w.Name+"-made", Made
	return w
}

func (w Workload) kept() Workload {
	w.Name, w.Strings, w.stored = w.Name+"-stored", Stored, newStore(w.Population, w.Calls)
	return w
}

// store has the bytes of each key once, in an order that is not the calls'. Places have no pointers, so that the garbage collector has nothing
// to scan.
type store struct {
	arena  string
	places []uint32 // of the calls' keys
}

func newStore(keys, calls Sequence) *store {
	at := make(map[string]uint32, keys.Len())
	for i := range keys.Len() {
		at[keys.Key(i)] = uint32(i * keyLen)
	}
	s := &store{keys.arena, make([]uint32, calls.Len())}
	for i := range s.places {
		s.places[i] = at[calls.Key(i)]
	}
	return s
}

// Drive is the loop around every measured call of Allow: it makes the calls from one to another, and returns how many were admitted.
func (w Workload) Drive(l peers.Limiter, from, to int) (admitted int) {
	switch w.Strings {
	case Made:
		return w.Calls.driveMade(l, from, to)
	case Stored:
		return w.stored.drive(l, from, to)
	}
	return w.Calls.drive(l, from, to)
}

//go:noinline
func (s Sequence) drive(l peers.Limiter, from, to int) (admitted int) {
	for i := from; i < to; i++ {
		if l.Allow(s.Key(i)) {
			admitted++
		}
	}
	return admitted
}

//go:noinline
func (s Sequence) driveMade(l peers.Limiter, from, to int) (admitted int) {
	for i := from; i < to; i++ {
		if l.Allow(strings.Clone(s.Key(i))) {
			admitted++
		}
	}
	return admitted
}

//go:noinline
func (s *store) drive(l peers.Limiter, from, to int) (admitted int) {
	mask := len(s.places) - 1
	for i := from; i < to; i++ {
		at := s.places[i&mask]
		if l.Allow(s.arena[at : at+keyLen]) {
			admitted++
		}
	}
	return admitted
}
