package sluice

import (
	"math/bits"
	"time"
)

// A window cuts the clock's time into windows [k*P, (k+1)*P) of Unix time and
// numbers them. FixedWindow and SlidingWindow share it.
type window struct {
	period uint64
	last   uint64 // the last number; time stands still at its start
}

// newWindow returns windows of a period numbered in the given bits. The number
// with all bits set is not used, so that no word is all ones. ok is false if
// time would end before horizon, nanoseconds after 1970.
func newWindow(period time.Duration, numberBits int, horizon uint64) (w window, ok bool) {
	if numberBits < 1 {
		return window{}, false
	}
	w = window{period: uint64(period), last: 1<<numberBits - 2}
	hi, end := bits.Mul64(w.last, w.period)
	return w, hi != 0 || end >= horizon
}

// largestRate returns the largest rate whose count leaves enough of the given bits
// for the number of a window.
func largestRate(period time.Duration, wordBits int) uint64 {
	countBits := wordBits - 1
	for countBits > 0 {
		if _, ok := newWindow(period, wordBits-countBits, minHorizon); ok {
			break
		}
		countBits--
	}
	return 1<<countBits - 1
}

// at returns the number of the window that contains now, and the time since its
// start.
func (w *window) at(now int64) (number, elapsed uint64) {
	number = uint64(now) / w.period
	if number >= w.last {
		return w.last, 0
	}
	return number, uint64(now) - number*w.period
}

// start returns the first nanosecond of a window, or math.MaxUint64 for a window
// that time does not reach.
func (w *window) start(number uint64) uint64 {
	hi, t := bits.Mul64(number, w.period)
	if hi != 0 || number > w.last {
		return ^uint64(0)
	}
	return t
}
