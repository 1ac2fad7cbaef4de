package sluice

import (
	"sync/atomic"
	"time"
)

// Arithmetic is what one-word and wide algorithms have in common: pure functions of a key's state. Word 0
// is a fresh key, the words moved and elsewhere do not occur, and now is not negative. A wide word comes without its
// lock bit; functions that return a word may write the tail, which no other call does meanwhile.
type arithmetic interface {
	// refund returns the word after cost of the units that count at now have been given
	// back, 1 <= cost <= the burst, or all of them if fewer count. The word is not 0.
	refund(key state, now int64, cost int) uint64
	// worstCase returns the most that a key can be admitted in a closed span of d
	// >= 0 nanoseconds, saturating.
	worstCase(d int64) uint64
	// adopt takes over the spent units of a key at now. The state e is under from, another limit of the same
	// algorithm; adopt returns the key's word under its own limit, and writes the tail. The word of e is not 0,
	// and not blocked; no other call writes the tail of e.
	adopt(from arithmetic, e state, tail []atomic.Uint64, now int64) uint64
}

// An algorithm keeps a key's state in one word. It charges 1 <= cost <= the burst.
type algorithm interface {
	arithmetic
	// charge returns the word after an admitted call, or word and false.
	charge(word uint64, now int64, cost int) (next uint64, admitted bool)
	// debit returns the word after an unconditional charge of any cost > 0. Units that
	// the word has no room for are lost, but it is then as strict as after a full burst.
	debit(word uint64, now int64, cost int) (next uint64)
	// describe returns the numbers of the Decision on a call that left the key with
	// word. (Not a Decision: it has too many fields for registers, and copying it
	// from frame to frame took half the time of a Take.)
	describe(word uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration)
	// idleAt returns the first nanosecond from which the key is idle, or
	// math.MaxUint64.
	idleAt(word uint64) uint64
	// rank orders keys by how much counts against them at now, in the algorithm's own
	// measure. For the buckets this is also the order in which they become idle.
	rank(word uint64, now int64) uint64
}

// A wideAlgorithm keeps a key's state in the word and a tail of further words.
// The tail is written only while the word's lock bit is set, for the time of one
// charge (a few nanoseconds, and under the sliding log a few more a unit); the
// word that is stored after a charge differs from the one before.
type wideAlgorithm interface {
	arithmetic
	// tailLen returns the number of words in a tail.
	tailLen() int
	// admit and describe only read. Their results are not used if the tail was being
	// written meanwhile. With charges, describe describes an admitted call as
	// charged. Word 0 needs no tail.
	admit(key state, now int64, cost int) bool
	describe(key state, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration)
	// commit makes the charge of a call that admit admits, or an unconditional one of any
	// cost > 0, as algorithm's debit, and returns the new word.
	commit(key state, now int64, cost int) uint64
	// lasts returns the first nanosecond from which a key is idle again if it is fresh at
	// now and charged cost > 0 then.
	lasts(now int64, cost int) uint64
	// reset makes the key fresh and returns its word.
	reset(key state) uint64
	// blank reports whether the word counts no unit, as after reset.
	blank(word uint64) bool
	idleAt(key state) uint64
	rank(key state, now int64) uint64
}

// A denialCounter is an algorithm that can count denied calls, at most up to the limit.
// The key is not blocked, and denies the cost at now.
type denialCounter interface {
	countDenied(key state, now int64, cost int) uint64
}

// A windowEnder is an algorithm that counts, or gives back, by windows.
type windowEnder interface {
	// windowEnd returns the end of the window in which a charge at now would be counted;
	// math.MaxUint64 if time does not get there.
	windowEnd(key state, now int64) uint64
}

// A line is an algorithm whose units come back in order, each at a tick of its own: a key is
// as if fresh from its full tick on.
type line interface {
	algorithm
	tick(now int64) uint64
	ticks(units int) uint64
	full(word uint64) uint64
}

// A bucket is a line whose word is the full tick, in some form.
type bucket interface {
	line
	pack(full, now uint64) uint64
	turns() (s *schedule, queue bool)
}

// A stamper is an algorithm that can distinguish its units by the time of their charge.
type stamper interface {
	// stamp returns the stamp that identifies the units of the charge that left the key in
	// this state, and the time from which they no longer count.
	stamp(key state) (stamp, end uint64)
	// takeOut returns the word without n of the units with the stamp, or as many as still
	// count. A wide word is locked.
	takeOut(key state, stamp, n uint64) uint64
}

// stateless stands in for an algorithm where there has never been a limit to keep. Its
// words are 0, except for blocked keys.
type stateless struct{}

func (stateless) charge(uint64, int64, int) (uint64, bool) { return 0, false }
func (stateless) debit(uint64, int64, int) uint64          { return 0 }
func (stateless) refund(state, int64, int) uint64          { return 0 }
func (stateless) idleAt(uint64) uint64                     { return 0 }
func (stateless) rank(uint64, int64) uint64                { return 0 }
func (stateless) worstCase(int64) uint64                   { return 0 }
func (stateless) describe(uint64, int64, int, bool) (int, time.Duration, time.Duration) {
	return 0, 0, 0
}
func (stateless) adopt(arithmetic, state, []atomic.Uint64, int64) uint64 { return 0 }
