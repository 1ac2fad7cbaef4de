package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// A penalty is what a denied call does to its key.
//
// A blocked key has no state but the time until which it is blocked, and is fresh then.
// Under a one-word algorithm that time is the word, above all words of algorithms; what
// 62 bits cannot tell, from 2116 on, is for ever. Under a wide one a bit of the word says
// so, and the time is the first word of the tail:
//
//	 63  62  61                                                       0
//	+---+---+----------------------------------------------------------+
//	| 1 | 1 |  blocked until, in ns of Unix time                       |   one word
//	+---+---+----------------------------------------------------------+
//
//	 63     62  61                                              0      tail[0]
//	+------+---+-------------------------------------------------+    +----------------+
//	| lock | 1 |  what the algorithm needs of a key that is reset |    |  blocked until |
//	+------+---+-------------------------------------------------+    +----------------+
//
// A key is never blocked for less time than it would take to become fresh, or a block
// would give units back.
type penalty struct {
	denies   bool          // a denied call changes its key
	blockFor int64         // ns, or 0
	counts   denialCounter // nil unless denied calls count
}

// A denialCounter is an algorithm that can count denied calls: word, which is not
// blocked, denies the cost at now. What is counted is at most the limit.
type denialCounter interface {
	countDenied(word uint64, tail []atomic.Uint64, now int64, cost int) uint64
}

const (
	// blockedTail is the bit of a wide word that says that the key is blocked.
	blockedTail = 1 << 62
	// blockMark is set in the first word of the tail as long as that is the end of a block,
	// so that a reader who comes between does not take it for anything else, nor anything
	// else for it.
	blockMark = 1 << 63
)

// endless is the last time that a one-word block can tell, and stands for never.
const endless = elsewhere - 1 - reserved

func blockedWord(until uint64) uint64 { return reserved + min(until, endless) }

// punish sets the penalty of a policy that has an algorithm.
func (p *policy) punish(c Config) {
	if c.CountDenied {
		if p.wide != nil {
			p.counts, _ = p.wide.(denialCounter) // all window algorithms are
		} else {
			p.counts, _ = p.alg.(denialCounter)
		}
	}
	p.denies = p.blockFor > 0 || p.counts != nil
}

// blockEnd returns the end of a block from the tail. A reader may find that there is none
// any more.
func blockEnd(tail []atomic.Uint64) (until uint64, ok bool) {
	word := tail[0].Load()
	if word == math.MaxUint64 {
		return word, true
	}
	return word &^ blockMark, word&blockMark != 0
}

// blockedUntil returns when the block of the key ends, or 0 if it has none. A wide word is
// locked, or at rest.
func (p *policy) blockedUntil(word uint64, tail []atomic.Uint64) (until uint64) {
	switch {
	case p.wide != nil:
		if word&blockedTail != 0 {
			until, _ = blockEnd(tail)
		}
		return until
	case word >= reserved:
		if until := word - reserved; until < endless {
			return until
		}
		return math.MaxUint64
	}
	return 0
}

// block describes a call at now for a key that is blocked until then.
func (d *Decision) block(at uint64, now int64) {
	d.Remaining, d.RetryAfter, d.ResetAfter = 0, until(at, now), until(at, now)
}

// block returns the word of the key that is blocked until then, or longer if it would
// not be fresh by then. A wide word is locked.
func (p *policy) block(word uint64, tail []atomic.Uint64, until uint64) uint64 {
	until = max(until, p.idleAt(entry{word, tail}))
	if p.wide == nil {
		return blockedWord(until)
	}
	if word&blockedTail == 0 {
		word = p.wide.reset(word, tail) | blockedTail
	}
	if until >= endless { // no later than one word can tell, so that no layout ends it before another
		until = math.MaxInt64
	}
	tail[0].Store(until | blockMark)
	return word
}

// unblock returns the word of a blocked key that is fresh.
func (p *policy) unblock(word uint64, tail []atomic.Uint64) uint64 {
	if p.wide == nil {
		return 0
	}
	tail[0].Store(0)
	return word &^ blockedTail
}

// admissible returns the word that a charge at now starts from, or the time until which
// the key is blocked. A wide word is locked.
func (p *policy) admissible(word uint64, tail []atomic.Uint64, now int64) (next, until uint64) {
	switch until = p.blockedUntil(word, tail); {
	case until > uint64(now):
		return word, until
	case until > 0:
		return p.unblock(word, tail), 0
	}
	return word, 0
}

// deny returns the word after a denied call for a key that is not blocked. A wide word
// is locked.
func (p *policy) deny(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	if p.blockFor > 0 { // which forgets whatever would be counted
		return p.block(word, tail, after(now, time.Duration(p.blockFor)))
	}
	return p.counts.countDenied(word, tail, now, cost)
}

// after returns the time d > 0 after now, math.MaxUint64 if the clock does not get there.
func after(now int64, d time.Duration) uint64 {
	if at := uint64(now) + uint64(d); at <= math.MaxInt64 {
		return at
	}
	return math.MaxUint64
}
