package sluice

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice/internal/calendar"
)

// A window cuts the clock's time into windows [k*P + Offset, (k+1)*P + Offset) of
// Unix time. It numbers them from 0, the window in which 1970 begins.
// FixedWindow, SlidingWindow and the refill at intervals share it.
//
// With an offset, window 0 has begun before 1970, by the shift: P - Offset. The time
// since the start of window 0 is t + shift, which is below 2^64 for every t, and
// (t + shift)/P is the window's number. Without an offset the shift is 0.
type window struct {
	period uint64
	shift  uint64            // < period
	last   uint64            // the last number; time stands still at its start
	near   uint64            // windows of lower numbers are not the last one, and end before 2^64: see since
	dates  *calendar.Windows // nil but for a FixedWindow by a calendar: its windows, in the place of those of the period
}

// newWindow returns windows of a period, shifted by 0 <= offset < period. Their numbers have
// the bits that countBits leave of a word. In a word of 64 bits the numbers that begin with
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
	w.near = min(w.last, math.MaxUint64/w.period)
	hi, end := bits.Mul64(w.last, w.period)
	return w, hi != 0 || end >= horizon+w.shift
}

// newDates returns the windows of a calendar, and how many bits a count has in a word of 64 bits beside their numbers. The word
// stays below reserved, as in newWindow.
func newDates(c calendar.Calendar) (w window, countBits int, err error) {
	dates, err := calendar.New(c)
	if err != nil {
		return window{}, 0, err
	}
	numberBits := 2
	for 3<<(numberBits-2)-1 < dates.Last() {
		numberBits++
	}
	return window{period: uint64(c.Longest()), last: dates.Last(), dates: dates}, 64 - numberBits, nil
}

// countBits returns how many bits each of several counts in a word of wordBits can have if the
// window numbers are to last as long as the clock. It returns least if they cannot, or if least
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

// since returns the time since the start of a window, if now is in it: at without a division. It fails for the last
// window, and for far ones.
func (w *window) since(number uint64, now int64) (elapsed uint64, in bool) {
	elapsed = uint64(now) + w.shift - number*w.period
	return elapsed, elapsed < w.period && number < w.near
}

// number is the number of at, by the calendar if there is one.
func (w *window) number(now int64) uint64 {
	if w.dates != nil {
		return w.dates.At(now)
	}
	number, _ := w.at(now)
	return number
}

// carry returns the number of the window in which a key of the old windows goes on at now: its own
// number if the windows are the same, else the number of the window of now, or of the start of its
// own window if that is later.
func (w *window) carry(old *window, number uint64, now int64) uint64 {
	if !w.same(old) {
		number = w.number(max(now, int64(min(old.begin(number), math.MaxInt64))))
	}
	return min(number, w.last)
}

// same reports whether the windows are the same as in v.
func (w *window) same(v *window) bool {
	if w.dates != nil && v.dates != nil {
		return w.dates.Calendar == v.dates.Calendar
	}
	return w.dates == v.dates && w.period == v.period && w.shift == v.shift
}

// countDenied returns the count of a window after a denied call, which counts up to the
// limit.
func countDenied(count uint64, cost int, limit uint64) uint64 {
	return max(count, min(count+uint64(cost), limit))
}

// start returns the first nanosecond of a window after 1970: 0 for window 0, and
// more than math.MaxInt64 for a window that time does not reach.
func (w *window) start(number uint64) uint64 {
	hi, t := bits.Mul64(number, w.period)
	if hi != 0 || number > w.last {
		return math.MaxUint64
	}
	return t - min(w.shift, t)
}

// begin is start, by the calendar if there is one.
func (w *window) begin(number uint64) uint64 {
	if w.dates != nil {
		return w.dates.Start(number)
	}
	return w.start(number)
}
