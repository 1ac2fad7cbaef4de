package sluice

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// tokenInterval is the token bucket that is refilled at intervals: it holds B tokens
// when full, gains R at once at each boundary k*P + Offset of Unix time, and admits a
// call iff its cost in tokens is there. B may be less or more than R; what does not
// fit into the bucket is lost.
//
// The word is the number k of the period, between two boundaries, of the last charge,
// and spent, the tokens missing from a full bucket right after it. That has all bits that the
// number does not need, so that a debt has room.
//
// A call of n tokens at a time of period j >= k is admitted iff
//
//	spent(j) + n <= B, spent(j) = spent - R*(j - k), at least 0
//
// in whole numbers, so that nothing is rounded and nothing drifts.
//
// Invariant: the number never falls, and within a period spent falls by a refund
// only. A call with a now before the key's period is judged and charged in the key's
// period.
type tokenInterval struct {
	window
	rate  uint64
	burst uint64
	bits  int // b
}

// newTokenInterval returns a bucket whose words can tell up to reach missing tokens, which
// is at least the burst.
func newTokenInterval(l Limit, offset time.Duration, reach int) (algorithm, *ConfigError) {
	b := countBits(l.Period, offset, 64, bits.Len(uint(reach)), 1)
	w, ok := newWindow(l.Period, offset, 64, b, minHorizon)
	if !ok {
		field := "Limit.Burst"
		if l.Burst == 0 {
			field = "Limit.Rate"
		}
		return nil, configErrorf(field, "%d at once with a refill every %v: the count leaves too few of 64 bits for the number of the refill, which would run out before 2043; want at most %d",
			l.burst(), l.Period, largestRate(l.Period, offset, 64))
	}
	return &tokenInterval{window: w, rate: uint64(l.Rate), burst: uint64(l.burst()), bits: b}, nil
}

// roll returns the period in which a call at now is judged, and what is missing there.
func (a *tokenInterval) roll(word uint64, now int64) (number, spent uint64) {
	number, _ = a.at(now)
	last, spent := word>>a.bits, word&(1<<a.bits-1)
	if number <= last {
		return last, spent
	}
	if hi, back := bits.Mul64(number-last, a.rate); hi == 0 && back < spent {
		return number, spent - back
	}
	return number, 0
}

// adopt keeps what is missing.
func (a *tokenInterval) adopt(from adopter, e state, _ []atomic.Uint64, now int64) uint64 {
	old := from.(*tokenInterval)
	number, spent := old.roll(e.word, now)
	return a.carry(&old.window, number, now)<<a.bits | min(spent, 1<<a.bits-1)
}

// after returns the first nanosecond at which at least tokens > 0 have come back since
// the period number.
func (a *tokenInterval) after(number, tokens uint64) uint64 {
	return a.start(number + (tokens-1)/a.rate + 1)
}

func (a *tokenInterval) charge(word uint64, now int64, cost int) (uint64, bool) {
	number, spent := a.roll(word, now)
	spent += uint64(cost)
	if spent > a.burst {
		return word, false
	}
	return number<<a.bits | spent, true
}

// debit counts as far as the count goes, which is at least to the burst.
func (a *tokenInterval) debit(word uint64, now int64, cost int) uint64 {
	number, spent := a.roll(word, now)
	return number<<a.bits | min(spent+uint64(cost), 1<<a.bits-1)
}

func (a *tokenInterval) refund(word uint64, now int64, cost int) uint64 {
	number, spent := a.roll(word, now)
	if spent == 0 {
		return word
	}
	return number<<a.bits | spent - min(uint64(cost), spent)
}

func (a *tokenInterval) describe(word uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration) {
	number, spent := a.roll(word, now)
	if spent > 0 {
		reset = until(a.after(number, spent), now)
	}
	if !allowed {
		retry = until(a.after(number, spent+uint64(cost)-a.burst), now)
	}
	return int(a.burst - min(spent, a.burst)), retry, reset
}

// tick, ticks and full are line's. A period is as many ticks as tokens come back in it. No
// product overflows: the number and the count share a word.
func (a *tokenInterval) tick(now int64) uint64 {
	number, _ := a.at(now)
	return number * a.gain()
}

func (a *tokenInterval) ticks(units int) uint64 { return uint64(units) }

func (a *tokenInterval) full(word uint64) uint64 {
	return word>>a.bits*a.gain() + word&(1<<a.bits-1)
}

// gain is the most tokens that can come back at a boundary.
func (a *tokenInterval) gain() uint64 { return min(a.rate, 1<<a.bits) }

func (a *tokenInterval) windowEnd(key state, now int64) uint64 {
	number, _ := a.roll(key.word, now)
	return a.start(number + 1)
}

// idleAt is the boundary at which the bucket is full again.
func (a *tokenInterval) idleAt(word uint64) uint64 {
	number, spent := word>>a.bits, word&(1<<a.bits-1)
	if spent == 0 {
		return a.start(number)
	}
	return a.after(number, spent)
}

// rank is what is missing at now: of two keys the one that misses more becomes idle
// at the same boundary or at a later one.
func (a *tokenInterval) rank(word uint64, now int64) uint64 {
	_, spent := a.roll(word, now)
	return spent
}

// worstCase is a full bucket, and a refill for each of the ceil(d/P) boundaries that
// can lie behind the first instant of a closed span of d ns.
func (a *tokenInterval) worstCase(d int64) uint64 {
	boundaries := (uint64(d) + a.period - 1) / a.period
	refills, _ := mulDiv(min(a.rate, a.burst), boundaries, 1)
	return saturatingAdd(a.burst, refills)
}
