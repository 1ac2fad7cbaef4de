package sluice

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// fixedWindow counts the admitted cost of each window [k*P + Offset, (k+1)*P +
// Offset) of Unix time, or of each window of a calendar, and admits a call iff the count stays within the limit.
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
	if l.dated() {
		return newDatedWindow(l, reach)
	}
	b := countBits(l.Period, offset, 64, bits.Len(uint(reach)), 1)
	w, ok := newWindow(l.Period, offset, 64, b, minHorizon)
	if !ok {
		return nil, configErrorf("Limit.Rate", "%d per %v: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most %d",
			l.Rate, l.Period, largestRate(l.Period, offset, 64))
	}
	return &fixedWindow{window: w, limit: uint64(l.Rate), bits: b}, nil
}

// newDatedWindow is newFixedWindow for a limit by a calendar.
func newDatedWindow(l Limit, reach int) (algorithm, *ConfigError) {
	w, b, err := newDates(l.dates())
	if err != nil {
		return nil, configErrorf("Limit", "%v", err)
	}
	if bits.Len(uint(reach)) > b {
		return nil, configErrorf("Limit.Rate", "%d: the count leaves too few of 64 bits for the number of the window; want at most %d", l.Rate, uint64(1)<<b-1)
	}
	return &fixedWindow{window: w, limit: uint64(l.Rate), bits: b}, nil
}

// roll returns the window in which a call at now is judged, and the count there.
func (a *fixedWindow) roll(word uint64, now int64) (number, count uint64) {
	return a.in(word, a.number(now))
}

// in is roll at a time whose window has the number present.
func (a *fixedWindow) in(word, present uint64) (number, count uint64) {
	if present > word>>a.bits {
		return present, 0
	}
	return word >> a.bits, word & (1<<a.bits - 1)
}

func (a *fixedWindow) charge(word uint64, now int64, cost int) (uint64, bool) {
	// As in number, whose call would take 8% of an Allow.
	present, _ := a.at(now)
	if a.dates != nil {
		present = a.dates.At(now)
	}
	number, count := a.in(word, present)
	count += uint64(cost)
	if count > a.limit {
		return word, false
	}
	return number<<a.bits | count, true
}

// debit counts up to the largest count of a word, which is at least the limit.
func (a *fixedWindow) debit(word uint64, now int64, cost int) uint64 {
	number, count := a.roll(word, now)
	return number<<a.bits | min(count+uint64(cost), 1<<a.bits-1)
}

// adopt puts the spent units into the present window. If the windows are the same, they
// are there already.
func (a *fixedWindow) adopt(from arithmetic, e state, _ []atomic.Uint64, now int64) uint64 {
	old := from.(*fixedWindow)
	number, count := old.roll(e.word, now)
	return a.carry(&old.window, number, now)<<a.bits | min(count, 1<<a.bits-1)
}

func (a *fixedWindow) countDenied(key state, now int64, cost int) uint64 {
	number, count := a.roll(key.word, now)
	return number<<a.bits | countDenied(count, cost, a.limit)
}

func (a *fixedWindow) refund(key state, now int64, cost int) uint64 {
	number, count := a.roll(key.word, now)
	if count == 0 {
		return key.word
	}
	return number<<a.bits | count - min(uint64(cost), count)
}

func (a *fixedWindow) describe(word uint64, now int64, _ int, allowed bool) (remaining int, retry, reset time.Duration) {
	present, _ := a.at(now) // as in charge
	if a.dates != nil {
		present = a.dates.At(now)
	}
	number, count := a.in(word, present)
	if count > 0 {
		end := a.start(number + 1)
		if a.dates != nil {
			end = a.dates.Start(number + 1)
		}
		reset = until(end, now)
	}
	if !allowed {
		retry = reset
	}
	return int(a.limit - min(count, a.limit)), retry, reset
}

// stamp is the number of the window.
func (a *fixedWindow) stamp(key state) (stamp, end uint64) {
	number := key.word >> a.bits
	return number, a.begin(number + 1)
}

func (a *fixedWindow) takeOut(key state, stamp, n uint64) uint64 {
	if key.word>>a.bits != stamp {
		return key.word
	}
	return key.word - min(n, key.word&(1<<a.bits-1))
}

func (a *fixedWindow) windowEnd(key state, now int64) uint64 {
	number, _ := a.roll(key.word, now)
	return a.begin(number + 1)
}

// idleAt is the end of the window of the last charge. If all units have been refunded it
// is the window's start: an older call would still be charged in that window.
func (a *fixedWindow) idleAt(word uint64) uint64 {
	if word&(1<<a.bits-1) == 0 {
		return a.begin(word >> a.bits)
	}
	return a.begin(word>>a.bits + 1)
}

func (a *fixedWindow) rank(word uint64, now int64) uint64 {
	_, count := a.roll(word, now)
	return count
}

// worstCase is a full limit in every window that a closed span of d ns can touch:
// one at its start, and one more for every boundary, of which it can meet
// ceil(d/P). Of a calendar's windows, which differ, it is as many as any span can touch.
func (a *fixedWindow) worstCase(d int64) uint64 {
	if a.dates != nil {
		admitted, _ := mulDiv(a.limit, a.dates.Touched(d), 1)
		return admitted
	}
	return inWindows(a.limit, a.period, d)
}

func inWindows(limit, period uint64, d int64) uint64 {
	boundaries := (uint64(d) + period - 1) / period
	admitted, _ := mulDiv(limit, boundaries+1, 1)
	return admitted
}

// firstChargeWindow is the fixed window that begins at the key's first charge after its
// last window has ended: a charge at s begins the window [s, s+P), and a call in a
// window is admitted iff the cost admitted there stays within the limit.
//
// A time to the nanosecond and a count do not fit into one word.
// The time is in the tail, a second word that is written under the lock bit.
//
// A window without units has not begun. If all its units have been refunded, the next
// window begins at s at the earliest, so that an older time finds no window but the newest.
//
// The version is raised when the tail is written, by a charge that begins a window and
// by a reset. So a word has one tail only, and a reader that sees the same unlocked
// word before and after it reads the tail has seen a matching pair. (The version has at least
// 31 bits. For a reader to be deceived, a key would have to begin exactly a multiple of
// 2^31 windows, at some 20 ns each, between two of its loads, and come back to the same
// count.) Version 0 is for word 0, a fresh key. The last version, which with the lock
// bit could be moved, is not used.
//
// Invariant: s falls by a reset only, and within a window the count falls by a
// refund only. A call with a now before the key's window is judged and charged in the
// key's window.
type firstChargeWindow struct {
	period uint64
	limit  uint64
	bits   int // b
}

const (
	// maxFirstCharge is the largest limit of a window that begins at the first charge.
	maxFirstCharge = 1<<31 - 1
	// firstChargeBits is how many bits a count has at least, so that a debt has room.
	firstChargeBits = 28
)

// newFirstChargeWindow returns a window whose words can count up to reach, which is at least
// the limit.
func newFirstChargeWindow(l Limit, reach int) (wideAlgorithm, *ConfigError) {
	if l.Rate > maxFirstCharge || reach > maxFirstCharge { // a hostile snapshot can claim such reach
		return nil, configErrorf("Limit.Rate", "%d with a window that begins at the first charge, whose count has 31 bits; want at most %d, or fixed-window",
			l.Rate, maxFirstCharge)
	}
	return &firstChargeWindow{period: uint64(l.Period), limit: uint64(l.Rate), bits: max(bits.Len(uint(reach)), firstChargeBits)}, nil
}

func (a *firstChargeWindow) tailLen() int { return 1 }

func (a *firstChargeWindow) count(word uint64) uint64 { return word & (1<<a.bits - 1) }

// roll returns when the window began, or would begin, in which a call at now is
// judged, and the count there. The sum does not wrap: both are below 2^63.
func (a *firstChargeWindow) roll(key state, now int64) (start, count uint64) {
	if key.word == 0 {
		return uint64(now), 0
	}
	start, count = key.tail[0].Load(), a.count(key.word)
	if count == 0 || uint64(now) >= start+a.period {
		return max(start, uint64(now)), 0
	}
	return start, count
}

func (a *firstChargeWindow) admit(key state, now int64, cost int) bool {
	_, count := a.roll(key, now)
	return count+uint64(cost) <= a.limit
}

func (a *firstChargeWindow) commit(key state, now int64, cost int) uint64 {
	start, count := a.roll(key, now)
	if count == 0 {
		key.tail[0].Store(start)
		key.word = a.nextVersion(key.word)
	}
	return key.word + min(uint64(cost), 1<<a.bits-1-a.count(key.word))
}

func (a *firstChargeWindow) lasts(now int64, _ int) uint64 { return uint64(now) + a.period }

// adopt keeps the window. If the window would have ended under the new limit, it begins a
// new one at now, so that the spent units still count.
func (a *firstChargeWindow) adopt(from arithmetic, e state, tail []atomic.Uint64, now int64) uint64 {
	start, count := from.(*firstChargeWindow).roll(e, now)
	if count > 0 && uint64(now) >= start+a.period {
		start = uint64(now)
	}
	tail[0].Store(start)
	return a.nextVersion(0) | min(count, 1<<a.bits-1)
}

func (a *firstChargeWindow) countDenied(key state, now int64, cost int) uint64 {
	_, count := a.roll(key, now)
	return key.word + countDenied(count, cost, a.limit) - count
}

func (a *firstChargeWindow) refund(key state, now int64, cost int) uint64 {
	_, count := a.roll(key, now)
	return key.word - min(uint64(cost), count)
}

// nextVersion returns word with the version raised by one and no units.
func (a *firstChargeWindow) nextVersion(word uint64) uint64 {
	version := word>>a.bits + 1
	if version == 1<<(wideBits-a.bits)-1 {
		version = 1
	}
	return version << a.bits
}

func (a *firstChargeWindow) reset(key state) uint64 {
	key.tail[0].Store(0)
	return a.nextVersion(key.word)
}

func (a *firstChargeWindow) blank(word uint64) bool { return a.count(word) == 0 }

func (a *firstChargeWindow) describe(key state, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration) {
	start, count := a.roll(key, now)
	allowed = count+uint64(cost) <= a.limit
	if allowed && charges {
		count += uint64(cost)
	}
	if count > 0 {
		reset = until(start+a.period, now)
	}
	if !allowed {
		retry = reset
	}
	return allowed, int(a.limit - min(count, a.limit)), retry, reset
}

// stamp is when the window began.
func (a *firstChargeWindow) stamp(key state) (stamp, end uint64) {
	start := key.tail[0].Load()
	return start, start + a.period
}

func (a *firstChargeWindow) takeOut(key state, stamp, n uint64) uint64 {
	if key.word == 0 || key.tail[0].Load() != stamp {
		return key.word
	}
	return key.word - min(n, a.count(key.word))
}

func (a *firstChargeWindow) windowEnd(key state, now int64) uint64 {
	start, _ := a.roll(key, now)
	return start + a.period
}

// idleAt is the end of the window, or its start if it has no units.
func (a *firstChargeWindow) idleAt(key state) uint64 {
	switch {
	case key.word == 0:
		return 0
	case a.count(key.word) == 0:
		return key.tail[0].Load()
	}
	return key.tail[0].Load() + a.period
}

func (a *firstChargeWindow) rank(key state, now int64) uint64 {
	_, count := a.roll(key, now)
	return count
}

// worstCase is a full limit in every window that a closed span of d ns can touch: one
// that ends in it, and one more for each begun P of the rest. Unless P divides d, the
// unit that began the first window lies before the span, and so it takes a refund of
// that unit to reach the last one of the bound.
func (a *firstChargeWindow) worstCase(d int64) uint64 { return inWindows(a.limit, a.period, d) }
