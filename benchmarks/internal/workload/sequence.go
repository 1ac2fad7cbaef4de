package workload

import (
	"math/bits"
	"math/rand/v2"
)

// keyLen is the length of every key: "user:0012345".
const keyLen = 12

// A Sequence is the keys of calls, in the order of the calls.
//
// Their bytes lie one after the other in that order, as the key of a real request
// has just come in and is in the cache. A table of a million strings would miss the
// cache once a call, and that miss would be in every row. There are no string
// headers either, so the garbage collector has nothing of it to scan.
type Sequence struct {
	arena string
	mask  int
}

// Len is the number of calls, a power of two.
func (s Sequence) Len() int { return s.mask + 1 }

// Key returns the key of call i. After the last call comes the first again.
func (s Sequence) Key(i int) string {
	at := (i & s.mask) * keyLen
	return s.arena[at : at+keyLen]
}

// Distinct returns a sequence of at least so many calls, each for a key of its own.
func Distinct(calls int) Sequence { return newSequence(calls, func(i int) int { return i }) }

// newSequence returns a sequence of calls, raised to a power of two, whose ids id
// draws, each below 10^8: one of eight digits takes the place of the colon.
func newSequence(calls int, id func(i int) int) Sequence {
	calls = 1 << bits.Len(uint(calls-1))
	arena := make([]byte, 0, calls*keyLen)
	for i := range calls {
		arena = appendKey(arena, id(i))
	}
	return Sequence{arena: string(arena), mask: calls - 1}
}

func appendKey(b []byte, id int) []byte {
	b = append(b, "user:0000000"...)
	for i := len(b) - 1; id > 0; i-- {
		b[i] = byte('0' + id%10)
		id /= 10
	}
	return b
}

// newRand returns the source of every sequence: the same keys in every run.
func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
