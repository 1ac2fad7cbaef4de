package sluice

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// fixedWindow counts the admitted cost of each window [k*P + Offset, (k+1)*P +
// Offset) of Unix time and admits a call iff the count stays within the limit.
//
// The word is the number of the window of the last charge, and its count. The
// count has all bits that the number does not need, so that a debt has room.
//
// Invariant: the number never falls, and within a window the count falls by refunds
// only.
// A call with a now before the key's window is judged and charged in the key's
// window.
type fixedWindow struct {
	window
	limit uint64
	bits  int // b
}

// newFixedWindow returns a window whose words can count up to reach, which is at least the
// limit.
func newFixedWindow(l Limit, offset time.Duration, reach int) (algorithm, *ConfigError) {
	b := countBits(l.Period, offset, 64, bits.Len(uint(reach)), 1)
	w, ok := newWindow(l.Period, offset, 64, b, minHorizon)
	if !ok {
		return nil, configErrorf("Limit.Rate", "%d per %v: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most %d",
			l.Rate, l.Period, largestRate(l.Period, offset, 64))
	}
	return &fixedWindow{window: w, limit: uint64(l.Rate), bits: b}, nil
}

// roll returns the window in which a call at now is judged, and the count there.
func (a *fixedWindow) roll(word uint64, now int64) (number, count uint64) {
	number, _ = a.at(now)
	if number > word>>a.bits {
		return number, 0
	}
	return word >> a.bits, word & (1<<a.bits - 1)
}

func (a *fixedWindow) charge(word uint64, now int64, cost int) (uint64, bool) {
	number, count := a.roll(word, now)
	count += uint64(cost)
	if count > a.limit {
		return word, false
	}
	return number<<a.bits | count, true
}

// debit counts as far as the count goes, which is at least to the limit.
func (a *fixedWindow) debit(word uint64, now int64, cost int) uint64 {
	number, count := a.roll(word, now)
	return number<<a.bits | min(count+uint64(cost), 1<<a.bits-1)
}

// adopt puts what has been spent into the present window. If the windows are the same,
// that is where it is.
func (a *fixedWindow) adopt(from adopter, e state, _ []atomic.Uint64, now int64) uint64 {
	old := from.(*fixedWindow)
	number, count := old.roll(e.word, now)
	return a.carry(&old.window, number, now)<<a.bits | min(count, 1<<a.bits-1)
}

func (a *fixedWindow) countDenied(key state, now int64, cost int) uint64 {
	number, count := a.roll(key.word, now)
	return number<<a.bits | countDenied(count, cost, a.limit)
}

func (a *fixedWindow) refund(word uint64, now int64, cost int) uint64 {
	number, count := a.roll(word, now)
	if count == 0 {
		return word
	}
	return number<<a.bits | count - min(uint64(cost), count)
}

func (a *fixedWindow) describe(word uint64, now int64, _ int, allowed bool) (remaining int, retry, reset time.Duration) {
	number, count := a.roll(word, now)
	if count > 0 {
		reset = until(a.start(number+1), now)
	}
	if !allowed {
		retry = reset
	}
	return int(a.limit - min(count, a.limit)), retry, reset
}

// stamp is the number of the window.
func (a *fixedWindow) stamp(key state) (stamp, end uint64) {
	number := key.word >> a.bits
	return number, a.start(number + 1)
}

func (a *fixedWindow) takeOut(key state, stamp, n uint64) uint64 {
	if key.word>>a.bits != stamp {
		return key.word
	}
	return key.word - min(n, key.word&(1<<a.bits-1))
}

func (a *fixedWindow) windowEnd(key state, now int64) uint64 {
	number, _ := a.roll(key.word, now)
	return a.start(number + 1)
}

// idleAt is the end of the window of the last charge. Where all has been refunded it
// is the window's start: an older call would still be charged in that window.
func (a *fixedWindow) idleAt(word uint64) uint64 {
	if word&(1<<a.bits-1) == 0 {
		return a.start(word >> a.bits)
	}
	return a.start(word>>a.bits + 1)
}

func (a *fixedWindow) rank(word uint64, now int64) uint64 {
	_, count := a.roll(word, now)
	return count
}

// worstCase is a full limit in every window that a closed span of d ns can touch:
// one at its start, and one more for every boundary, of which it can meet
// ceil(d/P).
func (a *fixedWindow) worstCase(d int64) uint64 {
	boundaries := (uint64(d) + a.period - 1) / a.period
	admitted, _ := mulDiv(a.limit, boundaries+1, 1)
	return admitted
}
