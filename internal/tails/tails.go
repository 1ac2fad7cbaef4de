// Package tails stores tails: the further words of a key whose state does not fit into one word.
package tails

import (
	"math/bits"
	"sync/atomic"
)

// A Store has the tails of a table's slots: chunks that are allocated as keys are
// added. Slots are never emptied in a table, so tails are handed out in order,
// and only a rebuild of the table frees them. The zero Store is one without tails.
//
// A chunk holds many short tails, so that they cost no heap object each, or one
// long tail, so that it can be handed on to the next table without copying.
type Store struct {
	Length int               // words a tail, 0 if there are no tails; never written
	shift  uint8             // a chunk has 1<<shift tails, so that Of needs no division
	used   int               // tails handed out
	number []uint32          // slot -> tail
	chunks [][]atomic.Uint64 // tail>>shift -> chunk; nil until needed
}

// Neither was tuned.
const (
	Short      = 32   // words; copying 256 bytes costs about as much as a heap object would
	ChunkWords = 2048 // the size of a chunk of short tails
)

// New returns a Store for so many slots, of which at most limit get a tail of the length.
func New(slots, limit, length int) Store {
	per := 1
	if length <= Short {
		per = min(ChunkWords/length, limit)
	}
	shift := bits.Len(uint(per)) - 1
	return Store{
		Length: length,
		shift:  uint8(shift),
		number: make([]uint32, slots),
		chunks: make([][]atomic.Uint64, (limit-1)>>shift+1),
	}
}

// Of returns the tail of a slot that has one. The caller must see all that was written before Add or Attach returned.
func (s *Store) Of(slot uint64) []atomic.Uint64 {
	n, shift := s.number[slot], s.shift%32
	chunk, at := s.chunks[n>>shift], int(n&(1<<shift-1))*s.Length
	return chunk[at : at+s.Length]
}

// Add gives a slot a new tail of zeros. No two calls of Add and Attach may run at once.
func (s *Store) Add(slot uint64) []atomic.Uint64 {
	chunk := &s.chunks[s.used>>s.shift]
	if *chunk == nil {
		*chunk = make([]atomic.Uint64, s.Length<<s.shift)
	}
	s.number[slot] = uint32(s.used)
	s.used++
	return s.Of(slot)
}

// Attach gives a slot the contents of a tail of another Store, to which nothing is written any more: a long
// tail is in both Stores from then on.
func (s *Store) Attach(slot uint64, tail []atomic.Uint64) {
	if s.shift == 0 {
		s.number[slot] = uint32(s.used)
		s.chunks[s.used] = tail
		s.used++
		return
	}
	copy(s.Add(slot), tail)
}
