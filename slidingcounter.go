package sluice

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// slidingWindow is the sliding window counter. It keeps the cost admitted in
// this window [k*P + Offset, (k+1)*P + Offset) of Unix time and in the window before,
// and counts the latter in proportion to its part that is less than P ago. A call
// of n units is admitted iff
//
//	prev*(P - elapsed) + (cur + n)*P <= limit*P, elapsed = (t - Offset) mod P
//
// in whole numbers of up to 128 bits. It assumes that the previous window's cost was
// spread evenly; the sliding log, which is exact, does not.
//
// The arithmetic works on unpacked counts. Two packings share it: see load and store.
//
// Invariant: the window's number never falls, and within a window the counts fall by
// refunds only. A call with a now before the key's window is judged at that window's
// start, where the previous window weighs most.
//
// InFlight is the same with the previous window counted in full: see inFlight.
type slidingWindow struct {
	window
	limit uint64
	bits  int  // of a count
	whole bool // a window counts in full until the one after it has ended
}

// counts is the state of a key: the cost admitted in a window and in the one
// before it.
type counts struct{ number, cur, prev uint64 }

// newSlidingWindow returns the one-word packing if it lasts as long as the clock,
// and else the wide one. The counts go up to reach, which is at least the limit.
func newSlidingWindow(l Limit, offset time.Duration, reach int) (algorithm, wideAlgorithm, *ConfigError) {
	a, fits, err := newSlidingCounts(l, offset, reach)
	switch {
	case err != nil:
		return nil, nil, err
	case fits:
		return &slidingWindowWord{a}, nil, nil
	}
	return nil, &slidingWindowWide{a}, nil
}

// newSlidingCounts says whether the counts fit into a word.
func newSlidingCounts(l Limit, offset time.Duration, reach int) (a slidingWindow, fits bool, err *ConfigError) {
	b := bits.Len(uint(reach))
	a.limit = uint64(l.Rate)
	var ok bool
	if _, ok = newWindow(l.Period, offset, 64, 2*b, math.MaxInt64); ok {
		a.bits = countBits(l.Period, offset, 64, b, 2)
		a.window, _ = newWindow(l.Period, offset, 64, 2*a.bits, math.MaxInt64)
		return a, true, nil
	}
	a.bits = countBits(l.Period, offset, wideBits, b, 1)
	if a.window, ok = newWindow(l.Period, offset, wideBits, a.bits, minHorizon); ok {
		return a, false, nil
	}
	return a, false, configErrorf("Limit.Rate", "%d per %v: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most %d",
		l.Rate, l.Period, largestRate(l.Period, offset, wideBits))
}

// roll returns c as seen from the window of now, and the time since that window's
// start, or 0 if windows count in full.
func (a *slidingWindow) roll(c counts, now int64) (counts, uint64) {
	c, elapsed := a.rollIn(c, now)
	if a.whole {
		elapsed = 0
	}
	return c, elapsed
}

// rollIn is roll where windows do not count in full. If now is before the window of c, c is judged at the start
// of its own window.
func (a *slidingWindow) rollIn(c counts, now int64) (counts, uint64) {
	if elapsed, in := a.since(c.number, now); in { // as nearly always
		return c, elapsed
	}
	number, elapsed := a.at(now)
	switch {
	case number == c.number:
	case number < c.number:
		elapsed = 0
	case number == c.number+1:
		c = counts{number: number, prev: c.cur}
	default:
		c = counts{number: number}
	}
	return c, elapsed
}

// used returns cur + ceil(prev*(P-elapsed)/P): the units that count against the key.
func (a *slidingWindow) used(c counts, elapsed uint64) uint64 {
	units, rest := mulDiv(c.prev, a.period-elapsed, a.period)
	if rest != 0 {
		units++
	}
	return c.cur + units
}

// admits is the admission condition. limit - cur - n does not wrap, because
// the sum is compared first; the products are compared in 128 bits.
func (a *slidingWindow) admits(c counts, elapsed, cost uint64) bool {
	if c.cur+cost > a.limit {
		return false
	}
	usedHi, usedLo := bits.Mul64(c.prev, a.period-elapsed)
	freeHi, freeLo := bits.Mul64(a.limit-c.cur-cost, a.period)
	return usedHi < freeHi || usedHi == freeHi && usedLo <= freeLo
}

// admitFrom returns the elapsed time of the window of c from which cost is
// admitted, at most the period, at which the next window begins.
func (a *slidingWindow) admitFrom(c counts, cost uint64) uint64 {
	if c.cur+cost > a.limit {
		return a.period
	}
	switch {
	case c.prev == 0:
		return 0
	case a.whole && c.prev > a.limit-c.cur-cost:
		return a.period
	}
	span, _ := mulDiv(a.limit-c.cur-cost, a.period, c.prev)
	return a.period - min(span, a.period)
}

// load returns the counts of a key. With a tail, the count of the previous window is there.
func (a *slidingWindow) load(key state) counts {
	if len(key.tail) == 0 {
		return a.unpack(key.word)
	}
	return a.unpackWide(key)
}

func (a *slidingWindow) unpackWide(key state) counts {
	if key.word == 0 {
		return counts{}
	}
	prev := key.tail[0].Load()
	if prev&blockMark != 0 {
		prev = 0 // the key has been blocked since; if the word is still the same, it is fresh again
	}
	return counts{number: key.word >> a.bits, cur: key.word & (1<<a.bits - 1), prev: prev}
}

// store writes the tail, if there is one, and returns the word.
func (a *slidingWindow) store(tail []atomic.Uint64, c counts) uint64 {
	if len(tail) == 0 {
		return a.pack(c)
	}
	tail[0].Store(c.prev)
	return c.number<<a.bits | c.cur
}

// unpack and pack are load and store for a key without a tail. A processor shifts by less than 64 in one step.
func (a *slidingWindow) unpack(word uint64) counts {
	mask := uint64(1)<<(a.bits&63) - 1
	return counts{number: word >> (2 * a.bits & 63), cur: word >> (a.bits & 63) & mask, prev: word & mask}
}

func (a *slidingWindow) pack(c counts) uint64 {
	return c.number<<(2*a.bits&63) | c.cur<<(a.bits&63) | c.prev
}

// loadAt returns the counts of a key as seen from the window of now.
func (a *slidingWindow) loadAt(key state, now int64) counts {
	c, _ := a.roll(a.load(key), now)
	return c
}

// adopt keeps the counts of a key that comes from another limit. If its windows are not the
// same, the units that count at now are put into the present window.
func (a *slidingWindow) adopt(from arithmetic, e state, tail []atomic.Uint64, now int64) uint64 {
	old := slidingOf(from)
	c := old.load(e)
	if !a.same(&old.window) {
		rolled, elapsed := old.roll(c, now)
		c = counts{number: rolled.number, cur: old.used(rolled, elapsed)}
	}
	most := uint64(1)<<a.bits - 1
	return a.store(tail, counts{a.carry(&old.window, c.number, now), min(c.cur, most), min(c.prev, most)})
}

// add charges cost to c, in the window of c. Units that the count has no room for are charged
// to the next window, as far as there is room: so c denies everything until that window
// begins, as it would if it could count all units, and is no less strict from then on.
func (a *slidingWindow) add(c counts, cost uint64) counts {
	most := uint64(1)<<a.bits - 1
	sum := c.cur + cost
	switch {
	case sum <= most:
		return counts{c.number, sum, c.prev}
	case c.number == a.last:
		return counts{c.number, most, c.prev}
	}
	return counts{c.number + 1, min(sum-most, most), most}
}

func (a *slidingWindow) countDenied(key state, now int64, cost int) uint64 {
	c := a.loadAt(key, now)
	c.cur = countDenied(c.cur, cost, a.limit)
	return a.store(key.tail, c)
}

// refund subtracts cost from this window first, and then from the window before; if windows count in full, from
// the window before first, so that what remains does not come back before its time.
func (a *slidingWindow) refund(key state, now int64, cost int) uint64 {
	c, n := a.loadAt(key, now), uint64(cost)
	switch {
	case c.cur == 0 && c.prev == 0:
		return key.word // the key stays in its window
	case a.whole:
		prev := min(n, c.prev)
		c.prev -= prev
		c.cur -= min(n-prev, c.cur)
	default:
		cur := min(n, c.cur)
		c.cur -= cur
		c.prev -= min(n-cur, c.prev)
	}
	return a.store(key.tail, c)
}

// stamp is the number of the window.
func (a *slidingWindow) stamp(key state) (stamp, end uint64) {
	number := a.load(key).number
	return number, a.start(number + 2)
}

func (a *slidingWindow) takeOut(key state, stamp, n uint64) uint64 {
	return a.store(key.tail, a.load(key).takeOut(stamp, n))
}

func (a *slidingWindow) windowEnd(key state, now int64) uint64 {
	return a.start(a.loadAt(key, now).number + 1)
}

// takeOut subtracts cost from the count of the window stamp. The weight of a window applies to
// its whole count, so c may still be in an earlier window than the present one.
func (c counts) takeOut(stamp, cost uint64) counts {
	switch c.number {
	case stamp:
		c.cur -= min(cost, c.cur)
	case stamp + 1:
		c.prev -= min(cost, c.prev)
	}
	return c
}

// describe describes the outcome of a call at now that left the key with c.
func (a *slidingWindow) describe(c counts, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration) {
	c, elapsed := a.roll(c, now)
	remaining = int(a.limit - min(a.used(c, elapsed), a.limit))
	reset = until(max(a.freshAt(c), uint64(now)), now)
	if allowed {
		return remaining, 0, reset
	}
	from := a.admitFrom(c, uint64(cost))
	if from == a.period {
		c = counts{number: c.number + 1, prev: c.cur}
		from = a.admitFrom(c, uint64(cost))
	}
	// c is not window 0 here, which may have begun before 1970: with no window before it,
	// window 0 denies a call until its end. The last window has no end, and time stands
	// still at its start.
	start := a.start(c.number)
	if start > math.MaxInt64 || from != 0 && c.number == a.last {
		return remaining, Never, reset
	}
	return remaining, until(start+from, now), reset
}

// freshAt returns the end of the last window in which a unit of c counts.
func (a *slidingWindow) freshAt(c counts) uint64 {
	switch {
	case c.cur != 0:
		return a.start(c.number + 2)
	case c.prev != 0:
		return a.start(c.number + 1)
	}
	return 0
}

// emptyAt returns the time from which c is idle. If all units have been refunded it is the
// window's start: an older call would still be charged in that window.
func (a *slidingWindow) emptyAt(c counts) uint64 {
	if c.cur == 0 && c.prev == 0 {
		return a.start(c.number)
	}
	return a.freshAt(c)
}

// worstCase is an upper bound, reached for d <= P. A key gets the most with a full
// limit in the last nanosecond of a window. In the windows after it, the last
// two that the span touches admit together at most limit + limit*elapsed/P, and
// each window before them at most the limit.
func (a *slidingWindow) worstCase(d int64) uint64 {
	switch {
	case a.whole: // units that are given back can be admitted again at once
		return math.MaxUint64
	case d == 0:
		return a.limit
	}
	more, _ := mulDiv(a.limit, uint64(d-1), a.period)
	return saturatingAdd(a.limit, more)
}

// slidingWindowWord has the counts in the word. They share all bits that the number leaves,
// so that a debt has room. Limits of up to 32,767 a second, 262,143 a minute,
// 2,097,151 an hour and 8,388,607 a day fit.
type slidingWindowWord struct{ slidingWindow }

func (a *slidingWindowWord) charge(word uint64, now int64, cost int) (uint64, bool) {
	c, elapsed := a.rollIn(a.unpack(word), now) // an InFlight has a charge of its own
	if !a.admits(c, elapsed, uint64(cost)) {
		return word, false
	}
	c.cur += uint64(cost)
	return a.pack(c), true
}

func (a *slidingWindowWord) debit(word uint64, now int64, cost int) uint64 {
	c, _ := a.roll(a.unpack(word), now)
	return a.pack(a.add(c, uint64(cost)))
}

func (a *slidingWindowWord) describe(word uint64, now int64, cost int, allowed bool) (int, time.Duration, time.Duration) {
	return a.slidingWindow.describe(a.unpack(word), now, cost, allowed)
}

func (a *slidingWindowWord) idleAt(word uint64) uint64 { return a.emptyAt(a.unpack(word)) }

func (a *slidingWindowWord) rank(word uint64, now int64) uint64 {
	return a.used(a.roll(a.unpack(word), now))
}

// slidingWindowWide is for limits whose counts do not fit into one word. The
// previous window's count lives in the tail, a second word that is written under
// the lock bit.
//
// If a reader sees the same unlocked word before and after it reads the tail, the
// previous count that it has read is from the time between. While the word stays the same,
// only resets and refunds in the same window change that count, and they lower it. So a
// decision is never less strict than the state requires.
type slidingWindowWide struct{ slidingWindow }

func (a *slidingWindowWide) tailLen() int { return 1 }

func (a *slidingWindowWide) admit(key state, now int64, cost int) bool {
	c, elapsed := a.roll(a.unpackWide(key), now)
	return a.admits(c, elapsed, uint64(cost))
}

func (a *slidingWindowWide) commit(key state, now int64, cost int) uint64 {
	c, _ := a.roll(a.unpackWide(key), now)
	return a.store(key.tail, a.add(c, uint64(cost)))
}

func (a *slidingWindowWide) lasts(now int64, cost int) uint64 {
	c, _ := a.roll(counts{}, now)
	return a.freshAt(a.add(c, uint64(cost)))
}

// reset keeps the number, so that a word can come back only with a tail that it has
// had before, or with 0.
func (a *slidingWindowWide) reset(key state) uint64 {
	key.tail[0].Store(0)
	return key.word >> a.bits << a.bits
}

func (a *slidingWindowWide) blank(word uint64) bool { return word&(1<<a.bits-1) == 0 }

func (a *slidingWindowWide) describe(key state, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration) {
	c, elapsed := a.roll(a.unpackWide(key), now)
	allowed = a.admits(c, elapsed, uint64(cost))
	if allowed && charges {
		c.cur += uint64(cost)
	}
	remaining, retry, reset = a.slidingWindow.describe(c, now, cost, allowed)
	return allowed, remaining, retry, reset
}

func (a *slidingWindowWide) idleAt(key state) uint64 { return a.emptyAt(a.unpackWide(key)) }

func (a *slidingWindowWide) rank(key state, now int64) uint64 {
	return a.used(a.roll(a.unpackWide(key), now))
}

// slidingOf returns the sliding window of an algorithm, or nil if it is another one.
func slidingOf(a arithmetic) *slidingWindow {
	if s, ok := a.(interface{ itself() *slidingWindow }); ok {
		return s.itself()
	}
	return nil
}

func (a *slidingWindow) itself() *slidingWindow { return a }
