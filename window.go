package sluice

import "math/bits"

// A window cuts the clock's time into windows [k*P, (k+1)*P) of Unix time and
// numbers them. FixedWindow and SlidingWindow share it.
type window struct {
	period uint64
	magic  uint64 // floor((2^64-1)/period)
	last   uint64 // the last number; time stands still at its start
}

// newWindow returns windows of l.Period numbered in the given bits. The number
// with all bits set is not used, so that no word is all ones. ok is false if
// time would end before horizon, nanoseconds after 1970.
func newWindow(l Limit, numberBits int, horizon uint64) (w window, ok bool) {
	period := uint64(l.Period)
	if numberBits < 1 {
		return window{}, false
	}
	last := uint64(1)<<numberBits - 2 // 2^64 wraps to 0, which is right
	if hi, lo := bits.Mul64(last, period); hi == 0 && lo < horizon {
		return window{}, false
	}
	return window{period: period, magic: ^uint64(0) / period, last: last}, true
}

// at returns the number of the window that contains now, and the time since its
// start.
func (w *window) at(now int64) (number, elapsed uint64) {
	t := uint64(now)
	// magic falls short of 2^64/period by at most 1, and t < 2^63, so the product
	// falls short of the quotient by less than 1: number is right or one less.
	number, _ = bits.Mul64(t, w.magic)
	elapsed = t - number*w.period
	if elapsed >= w.period {
		number, elapsed = number+1, elapsed-w.period
	}
	if number >= w.last {
		return w.last, 0
	}
	return number, elapsed
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
