package sluice

import (
	"math"
	"math/bits"
	"time"
)

// A window cuts the clock's time into windows [k*P + Offset, (k+1)*P + Offset) of
// Unix time and numbers them from the one that 1970 begins in, which is number 0.
// FixedWindow, SlidingWindow and the refill at intervals share it.
//
// With an offset window 0 has begun before 1970, by the shift: P - Offset. The time
// since then, t + shift, is below 2^64 for every t, and t/P is its number as it is
// without an offset, where the shift is 0.
type window struct {
	period uint64
	shift  uint64 // < period
	last   uint64 // the last number; time stands still at its start
}

// newWindow returns windows of a period, shifted by 0 <= offset < period, and numbered
// in what countBits leave of a word. In a word of 64 bits the numbers that begin with
// two ones are not used, so that it stays below reserved. ok is false if time would end
// before horizon < 2^63, nanoseconds after 1970.
func newWindow(period, offset time.Duration, wordBits, countBits int, horizon uint64) (w window, ok bool) {
	numberBits := wordBits - countBits
	if numberBits < 2 {
		return window{}, false
	}
	w = window{period: uint64(period), last: 1<<numberBits - 1}
	if wordBits != wideBits {
		w.last = 3<<(numberBits-2) - 1
	}
	if offset != 0 {
		w.shift = uint64(period - offset)
	}
	hi, end := bits.Mul64(w.last, w.period)
	return w, hi != 0 || end >= horizon+w.shift
}

// countBits returns how many bits a count can have, of which there are so many in a word
// of wordBits, if time is to last as long as the clock; least, if it cannot, or if that
// is more.
func countBits(period, offset time.Duration, wordBits, least, counts int) int {
	for b := least; ; b++ {
		if _, ok := newWindow(period, offset, wordBits, counts*(b+1), math.MaxInt64); !ok {
			return b
		}
	}
}

// largestRate returns the largest rate whose count leaves enough bits of the word for
// the number of a window.
func largestRate(period, offset time.Duration, wordBits int) uint64 {
	countBits := wordBits - 1
	for countBits > 0 {
		if _, ok := newWindow(period, offset, wordBits, countBits, minHorizon); ok {
			break
		}
		countBits--
	}
	return 1<<countBits - 1
}

// at returns the number of the window that contains now, and the time since its
// start.
func (w *window) at(now int64) (number, elapsed uint64) {
	t := uint64(now) + w.shift
	number = t / w.period
	if number >= w.last {
		return w.last, 0
	}
	return number, t - number*w.period
}

// carry returns the number of the window that goes on at now with a key of the old windows:
// its own if the windows are the same, else that of now, or of the start of its own if that
// is later.
func (w *window) carry(old *window, number uint64, now int64) uint64 {
	if !w.same(old) {
		number, _ = w.at(max(now, int64(min(old.start(number), math.MaxInt64))))
	}
	return min(number, w.last)
}

// same reports whether the windows are those of v.
func (w *window) same(v *window) bool { return w.period == v.period && w.shift == v.shift }

// countDenied returns the count of a window after a denied call, which counts up to the
// limit.
func countDenied(count uint64, cost int, limit uint64) uint64 {
	return max(count, min(count+uint64(cost), limit))
}

// start returns the first nanosecond after 1970 of a window, which for window 0 is
// 0, or more than math.MaxInt64 for a window that time does not reach.
func (w *window) start(number uint64) uint64 {
	hi, t := bits.Mul64(number, w.period)
	if hi != 0 || number > w.last {
		return math.MaxUint64
	}
	return t - min(w.shift, t)
}
