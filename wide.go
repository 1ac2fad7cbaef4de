package sluice

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A wideAlgorithm keeps a key's state in the word and a tail of further words.
// The tail is written only while the word's lock bit is set, for the time of one
// charge (a few nanoseconds, and under the sliding log a few more a unit); the
// word that is stored after a charge differs from the one before. Words are passed
// without the lock bit. Otherwise the conditions of algorithm hold.
type wideAlgorithm interface {
	// tailLen returns the number of words in a tail.
	tailLen() int
	// admit and describe only read; what they return for a tail that is being
	// written is not used. With charges, describe describes an admitted call as
	// having been charged. Word 0 needs no tail.
	admit(word uint64, tail []atomic.Uint64, now int64, cost int) bool
	describe(word uint64, tail []atomic.Uint64, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration)
	// commit charges a call that admit admits, or one of any cost > 0 that nobody asks
	// about, as algorithm's debit, and returns the new word.
	commit(word uint64, tail []atomic.Uint64, now int64, cost int) uint64
	// lasts returns the first nanosecond from which a key is idle again that is fresh at
	// now and charged cost > 0.
	lasts(now int64, cost int) uint64
	// refund is algorithm's; word is not 0.
	refund(word uint64, tail []atomic.Uint64, now int64, cost int) uint64
	// reset makes the key fresh and returns its word.
	reset(word uint64, tail []atomic.Uint64) uint64
	idleAt(word uint64, tail []atomic.Uint64) uint64
	rank(word uint64, tail []atomic.Uint64, now int64) uint64
	worstCase(d int64) uint64
	adopter
}

// locked is the bit of a wide word that its writer holds.
const locked = 1 << 63

// tails is a table's storage for tails: chunks that are allocated as keys are
// added. Slots are never emptied in a table, so tails are handed out in order
// and nothing is ever freed but by building the next table.
//
// A chunk holds many short tails, so that they cost no heap object each, or one
// long tail, so that it can be handed on to the next table without copying.
type tails struct {
	length int               // words a tail
	per    int               // tails a chunk
	used   int               // tails handed out
	number []uint32          // slot -> tail
	chunks [][]atomic.Uint64 // tail/per -> chunk; nil until needed
}

const (
	shortTail  = 32   // words; copying 256 bytes costs about what the heap object would
	chunkWords = 2048 // the size of a chunk of short tails
	// Neither was tuned.
)

func newTails(slots, limit, length int) tails {
	per := 1
	if length <= shortTail {
		per = min(chunkWords/length, limit)
	}
	return tails{
		length: length,
		per:    per,
		number: make([]uint32, slots),
		chunks: make([][]atomic.Uint64, (limit+per-1)/per),
	}
}

// of returns the tail of slot i. The slot's id has been seen, and so has all that
// was written before the id.
func (ts *tails) of(i uint64) []atomic.Uint64 {
	n := int(ts.number[i])
	chunk, at := ts.chunks[n/ts.per], n%ts.per*ts.length
	return chunk[at : at+ts.length]
}

// add gives slot i a new tail of zeros. The caller holds the shard's lock, or is
// the only one to know the table.
func (ts *tails) add(i uint64) []atomic.Uint64 {
	chunk := &ts.chunks[ts.used/ts.per]
	if *chunk == nil {
		*chunk = make([]atomic.Uint64, ts.per*ts.length)
	}
	ts.number[i] = uint32(ts.used)
	ts.used++
	return ts.of(i)
}

// adopt gives slot i the contents of a tail of an older table that nobody writes
// to any more. Readers of that table may still read it; they find their word
// moved and discard what they read.
func (ts *tails) adopt(i uint64, tail []atomic.Uint64) {
	if ts.per == 1 {
		ts.number[i] = uint32(ts.used)
		ts.chunks[ts.used] = tail
		ts.used++
		return
	}
	copy(ts.add(i), tail)
}

// lockWord sets the lock bit of a wide word and returns the word without it. It
// fails if the word has gone.
func lockWord(e *slot) (word uint64, ok bool) {
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

// chargeWide is charge under a wide algorithm. Unless d is nil it writes the numbers of
// the decision to it.
func (st *store) chargeWide(p *policy, id uint64, now int64, cost int, d *Decision) outcome {
	if !p.fits(cost) {
		return unfit
	}
	s := st.shardOf(id)
	for {
		if t := s.table.Load(); t.policy == p {
			if i, found := t.find(id); found && t.slots[i].word.Load() != elsewhere {
				if out := st.chargeTail(p, &t.slots[i], t.tails.of(i), now, cost, d); out != retrying {
					return out
				}
				st.awaitMove(s)
				continue
			}
		}
		at := st.locate(s, id)
		if at.slot == nil {
			if _, out := st.insert(s, p, id, now, cost, d); out != retrying || !at.admits(p) {
				if d != nil {
					d.RetryAfter = 0
				}
				return out
			}
			continue
		}
		if at.policy != p {
			return retrying
		}
		if out := st.chargeTail(p, at.slot, at.tail, now, cost, d); out != retrying {
			return out
		}
		st.awaitMove(s)
	}
}

// chargeTail decides on what it has read of the tail. A denial counts if the word
// is still the same afterwards. So does whatever is written, by the swap that locks the
// word.
func (st *store) chargeTail(p *policy, e *slot, tail []atomic.Uint64, now int64, cost int, d *Decision) outcome {
	wide := p.wide
	for {
		word := e.word.Load()
		if word >= blockedTail {
			switch {
			case word == moved || word == elsewhere:
				return retrying
			case word&locked != 0:
				runtime.Gosched()
			case p.stillBlocked(e, word, tail, now, d):
				return blocked
			}
			continue
		}
		var ok bool
		if d != nil {
			ok, d.Remaining, d.RetryAfter, d.ResetAfter = wide.describe(word, tail, now, cost, true)
		} else {
			ok = wide.admit(word, tail, now, cost)
		}
		if !ok {
			if p.denies && st.denyTail(p, e, word, tail, now, cost, d) || !p.denies && e.word.Load() == word {
				return denied
			}
			continue
		}
		if e.word.CompareAndSwap(word, word|locked) {
			e.word.Store(wide.commit(word, tail, now, cost))
			return admitted
		}
		st.lostRaces.Inc()
	}
}

// stillBlocked reports, and describes, that a key with a blocked word is blocked at now.
// If its block is over it makes the key fresh.
func (p *policy) stillBlocked(e *slot, word uint64, tail []atomic.Uint64, now int64, d *Decision) bool {
	at, ok := blockEnd(tail)
	if !ok {
		return false
	}
	if at > uint64(now) {
		if d != nil {
			d.block(at, now)
		}
		return e.word.Load() == word
	}
	if e.word.CompareAndSwap(word, word|locked) {
		word, _ = p.admissible(word, tail, now) // the block can have become longer
		e.word.Store(word)
	}
	return false
}

// denyTail does to the key what a denied call does, unless it is admitted after all: a
// refund can have made room, and left the word as it was.
func (st *store) denyTail(p *policy, e *slot, word uint64, tail []atomic.Uint64, now int64, cost int, d *Decision) bool {
	if !e.word.CompareAndSwap(word, word|locked) {
		st.lostRaces.Inc()
		return false
	}
	if p.wide.admit(word, tail, now, cost) {
		e.word.Store(word)
		return false
	}
	word = p.deny(word, tail, now, cost)
	if d != nil {
		_, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(word, tail, now, cost, false)
	}
	e.word.Store(word)
	return true
}

// peekTail describes a call in d without charging it. It fails if the word has gone.
func (p *policy) peekTail(d *Decision, e *slot, tail []atomic.Uint64, now int64, cost int, charges bool) bool {
	for {
		word := e.word.Load()
		if word == moved || word == elsewhere {
			return false
		}
		if word&locked != 0 {
			runtime.Gosched()
			continue
		}
		at, ok := uint64(0), true
		if word&blockedTail != 0 {
			at, ok = blockEnd(tail)
		}
		switch {
		case at > uint64(now):
			d.Allowed = false
			d.block(at, now)
		case at > 0: // a fresh key
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(0, nil, now, cost, charges)
		default:
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(word&^blockedTail, tail, now, cost, charges)
		}
		if ok && e.word.Load() == word {
			return true
		}
	}
}
