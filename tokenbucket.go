package sluice

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// tokenBucket holds B tokens when full, gains R per P continuously, and admits a
// call iff its cost in tokens is there (Turner, "New directions in
// communications", 1986; RFC 2697 gives the packet form).
//
// The word is two numbers: the time of the last refill in coarse units, and the
// tokens spent since then in ticks. A coarse unit is 2^u ticks, the least
// power of two that is no shorter than the time to fill the bucket.
//
// Spent tokens are counted in ticks (a token is c ticks, the time in which it comes
// back). So the refill is exact: in the time of x ticks exactly x ticks' worth
// come back. At tick t
//
//	owed(t) = spent - (t - refill), at least 0; tokens(t) = (burst - owed(t)) / unit
//
// The fields never overflow. Right after a charge at t the refill time is t
// rounded down to a coarse unit, so spent = owed(t) + (t - refill) is at most
// burst + 2^u - 1 < 2^(u+1); and t < 2^63 leaves 63-u bits for the refill time. The
// word stays below reserved if t < 3*2^61; in 2189, if a tick is a nanosecond. (Where u
// is 62, a single bit is left for the refill time, and the full tick must stay below
// 2^63.)
//
// Invariant: refill + spent only grows, except by refunds; it is the tick at which the bucket is
// full again. That makes the bucket agree with GCRA on every decision, since its
// TAT is the same tick.
type tokenBucket struct {
	schedule
	coarse uint // u
}

func newTokenBucket(l Limit) (algorithm, *ConfigError) {
	s, err := newSchedule(l)
	if err != nil {
		return nil, err
	}
	a := &tokenBucket{schedule: s, coarse: uint(bits.Len64(s.burst - 1))}
	last := uint64(reserved/2 - 1)
	a.most = last + 1<<a.coarse
	if a.coarse == 62 {
		a.most = 1<<63 - 1
		last = min(last, a.most-s.burst)
	}
	return a, a.endAt(l, last)
}

func (a *tokenBucket) unpack(word uint64) (refill, spent uint64) {
	return word >> (a.coarse + 1) << a.coarse, word & (1<<(a.coarse+1) - 1)
}

func (a *tokenBucket) charge(word uint64, now int64, cost int) (uint64, bool) {
	t := a.tick(now)
	refill, spent := a.unpack(word)
	owed := uint64(0)
	if refill+spent > t {
		owed = refill + spent - t
	}
	need := uint64(cost) * a.unit // <= burst, since cost <= B
	if owed > a.burst-need {
		return word, false
	}
	// An older t refills nothing: the refill time never moves back. It makes owed larger,
	// and the sum below smaller by as much, so spent comes out right.
	refill = max(refill, t>>a.coarse<<a.coarse)
	spent = owed + need + t - refill
	return refill>>a.coarse<<(a.coarse+1) | spent, true
}

func (a *tokenBucket) debit(word uint64, now int64, cost int) uint64 {
	return a.pack(a.schedule.debit(a.full(word), now, cost), a.tick(now))
}

// refund subtracts the refunded tokens from the spent ones. If fewer are spent, it moves the
// refill time back.
func (a *tokenBucket) refund(key state, now int64, cost int) uint64 {
	refill, spent := a.unpack(key.word)
	return a.pack(a.schedule.refund(state{word: refill + spent}, now, cost), refill)
}

// pack returns the word of a bucket that is full again at the given tick. If that tick is
// further from t than the spent field can hold, the refill time lies in the future.
func (a *tokenBucket) pack(full, t uint64) uint64 {
	unit := uint64(1) << a.coarse
	refill := min(t, full) >> a.coarse << a.coarse
	if full-refill >= 2*unit {
		refill = full>>a.coarse<<a.coarse - unit
	}
	return refill>>a.coarse<<(a.coarse+1) | (full - refill)
}

func (a *tokenBucket) adopt(from arithmetic, e state, _ []atomic.Uint64, now int64) uint64 {
	old := from.(*tokenBucket)
	full := a.schedule.adopt(&old.schedule, old.full(e.word), now)
	return a.pack(full, a.tick(now))
}

func (a *tokenBucket) turns() (*schedule, bool) { return &a.schedule, false }

func (a *tokenBucket) full(word uint64) uint64 {
	refill, spent := a.unpack(word)
	return refill + spent
}

func (a *tokenBucket) describe(word uint64, now int64, cost int, allowed bool) (int, time.Duration, time.Duration) {
	return a.schedule.describe(a.full(word), now, cost, allowed)
}

func (a *tokenBucket) idleAt(word uint64) uint64 { return a.schedule.idleAt(a.full(word)) }

func (a *tokenBucket) rank(word uint64, now int64) uint64 { return a.schedule.rank(a.full(word), now) }

// tokenInterval is the token bucket that is refilled at intervals: it holds B tokens
// when full, gains R at once at each boundary k*P + Offset of Unix time, and admits a
// call iff its cost in tokens is there. B may be less or more than R; tokens that do not
// fit into the bucket are lost.
//
// The word is the number k of the period, between two boundaries, of the last charge,
// and spent, the tokens missing from a full bucket right after that charge. spent has all bits
// that the number does not need, so that a debt has room.
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

// newTokenInterval returns a bucket whose words can hold up to reach missing tokens, which
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

// roll returns the period in which a call at now is judged, and the tokens missing there.
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

// adopt keeps the missing tokens.
func (a *tokenInterval) adopt(from arithmetic, e state, _ []atomic.Uint64, now int64) uint64 {
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

// debit counts up to the largest count of a word, which is at least the burst.
func (a *tokenInterval) debit(word uint64, now int64, cost int) uint64 {
	number, spent := a.roll(word, now)
	return number<<a.bits | min(spent+uint64(cost), 1<<a.bits-1)
}

func (a *tokenInterval) refund(key state, now int64, cost int) uint64 {
	number, spent := a.roll(key.word, now)
	if spent == 0 {
		return key.word
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

// tick, ticks and full implement line. A period has as many ticks as tokens come back in it.
// No product overflows: the number and the count share a word.
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

// rank is the number of tokens missing at now: of two keys the one that misses more becomes
// idle at the same boundary or at a later one.
func (a *tokenInterval) rank(word uint64, now int64) uint64 {
	_, spent := a.roll(word, now)
	return spent
}

// worstCase is a full bucket, and a refill for each of the ceil(d/P) boundaries that
// can come after the first instant of a closed span of d ns.
func (a *tokenInterval) worstCase(d int64) uint64 {
	boundaries := (uint64(d) + a.period - 1) / a.period
	refills, _ := mulDiv(min(a.rate, a.burst), boundaries, 1)
	return saturatingAdd(a.burst, refills)
}
