package sluice

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// A key's whole state is one word, or where that is too small, a word and a tail of further
// words. Word 0 is a fresh key. No algorithm uses words that begin with two ones: all 64
// bits set is moved, one less held, two less elsewhere, and the others are blocked keys. A
// wide word, one with a tail, has a bit for a writer that holds it and a bit for a
// blocked key. So a decision recognises all of these by one compare, with reserved or with
// blockedTail.
//
//	blocked         63 62 61                                              0
//	               | 1  1 | blocked until, in ns; to 2116                 |
//
//	  wide          63     62  61                                         0    tail[0]
//	               | lock | 1 | as reset                                  |   | blocked until |
//
//	GCRA            63                                                    0
//	               | TAT, in ticks                                        |
//
//	LeakyBucket    | empty at, in ticks                                   |
//
//	TokenBucket     63                          u+1  u                    0
//	               | last refill, units of 2^u ticks | spent since, ticks |
//	                 2^u = least power of two >= time to fill the bucket
//
//	  Interval      63                            b  b-1                  0
//	               | refill number k              | tokens missing       |
//	                 b = the bits that the number leaves
//
//	FixedWindow     63                            b  b-1                  0
//	               | window number k               | units admitted in k  |
//	                 b = the bits that the number leaves
//
//	  FirstCharge   63     62 61                  b  b-1                  0    tail[0]
//	               | lock | 0 | version            | units in the window  |   | when it began |
//
//	SlidingWindow   63                2b  2b-1         b  b-1             0    InFlight, too
//	               | window number k    | units in k    | units in k-1    |
//
//	  wide          63     62 61                  b  b-1                  0    tail[0]
//	               | lock | 0 | window number k    | units in k           |   | units in k-1 |
//
//	SlidingLog      63     62 61                  b  b-1                  0    tail[0..L)
//	               | lock | 0 | version            | written, in [0, 2L)  |   | a ring of times |
//
// The file of each algorithm says what its fields mean, and why they fit.

// The words from reserved on.
const (
	reserved = 3 << 62
	// moved marks a slot whose word has gone to a newer table or cell, for good.
	moved = math.MaxUint64
	// held marks a slot whose word a TakeAll has taken for a moment. (In a wide
	// slot the lock bit says so.)
	held = moved - 1
	// elsewhere marks a slot whose key has its state in a cell, or no longer has any; and a
	// cell without state. (As a wide word it has all version or number bits set, which no
	// wide word of an algorithm has.)
	elsewhere = held - 1
	// endless is the last time that a one-word block can hold, and stands for never.
	endless = elsewhere - 1 - reserved
)

// The bits of wide words and their tails.
const (
	// locked is the bit that its writer holds.
	locked = 1 << 63
	// blockedTail says that the key is blocked.
	blockedTail = 1 << 62
	// wideBits is how many bits of a wide word its algorithm uses.
	wideBits = 62
	// blockMark is set in the first word of the tail as long as that word is the end of a block.
	// So a reader does not mistake the end of a block for a count or a time, or these for the end
	// of a block, even if the word changes while it reads.
	blockMark = 1 << 63
)

// A slot holds one key. The id is set once, after the word, and never changes in
// its table.
type slot struct{ id, word atomic.Uint64 }

// preset stores a value that no other goroutine reads before a later atomic store publishes it: the
// word of a slot, before its id; an id in a new table, before the table's address. An atomic store
// would wait for all stores before it, some of which miss the cache.
func preset(v *atomic.Uint64, to uint64) { *(*uint64)(unsafe.Pointer(v)) = to }

// A state is a key's word and tail, as one call of an algorithm sees them.
type state struct {
	word uint64
	tail []atomic.Uint64 // nil for one-word algorithms
}

// blockedWord is the word of a key that is blocked until then.
func blockedWord(until uint64) uint64 { return reserved + min(until, endless) }

// blockEnd returns the end of a block from the tail. ok is false if the tail no longer holds
// one.
func blockEnd(tail []atomic.Uint64) (until uint64, ok bool) {
	word := tail[0].Load()
	if word == math.MaxUint64 {
		return word, true
	}
	return word &^ blockMark, word&blockMark != 0
}

// released returns the word once it is not held. It may be moved or elsewhere.
func (e *slot) released() uint64 {
	for {
		if word := e.word.Load(); word != held {
			return word
		}
		runtime.Gosched()
	}
}

// glance returns a wide word once it is not locked, for a reader, and the end of the block of its key, 0 if
// it has none. The reader's loads of the tail belong together if the word is still the same after them.
// glance fails if the word is moved or elsewhere.
func (e *slot) glance(tail []atomic.Uint64) (word, blocked uint64, ok bool) {
	for {
		word = e.word.Load()
		switch {
		case word < blockedTail:
			return word, 0, true
		case word == moved || word == elsewhere:
			return 0, 0, false
		case word&locked == 0:
			if blocked, ok = blockEnd(tail); ok {
				return word, blocked, true
			}
		}
		runtime.Gosched()
	}
}

// lock sets the lock bit of a wide word and returns the word without it. It
// fails if the word is moved or elsewhere.
func (e *slot) lock() (word uint64, ok bool) {
	for {
		word = e.word.Load()
		switch {
		case word == moved || word == elsewhere:
			return 0, false
		case word&locked != 0:
			runtime.Gosched()
		case e.word.CompareAndSwap(word, word|locked):
			return word, true
		}
	}
}

// freeze replaces the word by moved, for good, and returns it. The caller holds the shard's
// lock, so no other call stores moved or elsewhere.
func (e *slot) freeze(wide bool) uint64 {
	for {
		word := e.word.Load()
		switch {
		case word == held || wide && word&locked != 0:
			runtime.Gosched()
		case e.word.CompareAndSwap(word, moved):
			return word
		}
	}
}
