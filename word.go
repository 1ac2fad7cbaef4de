package sluice

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// A key's whole state is one word, or where that is too small, a word and a tail of further
// words. Word 0 is a fresh key. Words that begin with two ones are no algorithm's: all 64
// bits set is moved, one less held, two less elsewhere, and the others are blocked keys. A
// wide word, one with a tail, says by two bits that a writer holds it and that its key is
// blocked. So a decision finds out about all of these by one compare, with reserved or with
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
//	                 b = what the number leaves
//
//	FixedWindow     63                            b  b-1                  0
//	               | window number k               | units admitted in k  |
//	                 b = what the number leaves
//
//	  FirstCharge   63     62 61                  b  b-1                  0    tail[0]
//	               | lock | 0 | version            | units in the window  |   | when it began |
//
//	SlidingWindow   63                2b  2b-1         b  b-1             0
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
	// cell without state. (As a wide word it has all version or number bits set, as no
	// word has.)
	elsewhere = held - 1
	// endless is the last time that a one-word block can tell, and stands for never.
	endless = elsewhere - 1 - reserved
)

// The bits of wide words and their tails.
const (
	// locked is the bit that its writer holds.
	locked = 1 << 63
	// blockedTail says that the key is blocked.
	blockedTail = 1 << 62
	// wideBits is how much of a wide word is its algorithm's.
	wideBits = 62
	// blockMark is set in the first word of the tail as long as that is the end of a block. A
	// reader who comes between then does not mistake the end of a block for a count or a
	// time, or these for the end of a block.
	blockMark = 1 << 63
)

// A slot holds one key. The id is set once, after the word, and never changes in
// its table.
type slot struct{ id, word atomic.Uint64 }

// preset stores what nobody else reads before a later atomic store shows it: the word of a
// slot, before its id; an id in a new table, before the table's address. An atomic store would wait
// for all stores before it, some of which miss the cache.
func preset(v *atomic.Uint64, to uint64) { *(*uint64)(unsafe.Pointer(v)) = to }

// A state is a key's word and tail, as one call of an algorithm sees them.
type state struct {
	word uint64
	tail []atomic.Uint64 // nil for one-word algorithms
}

// blockedWord is the word of a key that is blocked until then.
func blockedWord(until uint64) uint64 { return reserved + min(until, endless) }

// blockEnd returns the end of a block from the tail. A reader may find that there is none
// any more.
func blockEnd(tail []atomic.Uint64) (until uint64, ok bool) {
	word := tail[0].Load()
	if word == math.MaxUint64 {
		return word, true
	}
	return word &^ blockMark, word&blockMark != 0
}

// released returns the word once nobody holds it. It may have gone.
func (e *slot) released() uint64 {
	for {
		if word := e.word.Load(); word != held {
			return word
		}
		runtime.Gosched()
	}
}

// glance returns a wide word once nobody has locked it, for those who only read, and when the block
// of its key ends, 0 if it has none: what they have read of the tail stands together if the word is
// still the same afterwards. It fails if the word has gone.
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
// fails if the word has gone.
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

// freeze takes the word out for good. The caller holds the shard's lock, and so nobody
// else stores moved or elsewhere.
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
