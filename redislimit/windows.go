package redislimit

import (
	"math"
	"math/bits"

	"github.com/sluice-go/sluice"
)

// wholeMicros returns the period and the offset of windows, in us.
func wholeMicros(c Config) (period, offset int64, err error) {
	p := int64(c.Limit.Period)
	switch {
	case p%micro != 0 || p/micro > maxPeriod:
		return 0, 0, configErrorf("Limit.Period", "%v: the time in Redis has whole microseconds; want a multiple of 1 us, at most 142 years", c.Limit.Period)
	case int64(c.Offset)%micro != 0:
		return 0, 0, configErrorf("Offset", "%v: the time in Redis has whole microseconds; want a multiple of 1 us", c.Offset)
	}
	return p / micro, int64(c.Offset) / micro, nil
}

func countable(c Config, n int64) error {
	if n >= exact {
		return configErrorf("Limit", "%v: Redis counts exactly up to 2^53 - 1; want less", c.Limit)
	}
	return nil
}

// most is a number of units that count for a time, with a maximum at once. In a view, a is
// the units that count.
type most struct {
	burst, period int64 // period in us
}

func newMost(c Config) (most, error) {
	period, _, err := wholeMicros(c)
	return most{int64(c.Limit.Rate), period}, err
}

func (m most) arguments(to []byte, _ int64) []byte {
	return appendUint56(appendUint56(to, m.burst), m.period)
}

func (m most) free(v view) int64 { return max(0, m.burst-v.a) }

func (most) used(v view) int64 { return v.a }

func (most) charged(v view, units int64) view {
	v.a += units
	return v
}

// firstCharge is the shape of FixedWindow whose windows begin with a key's first charge. In a
// view, b is the window's beginning.
type firstCharge struct{ most }

func newFirstCharge(c Config) (shape, error) {
	m, err := newMost(c)
	if err != nil {
		return nil, err
	}
	return firstCharge{m}, countable(c, m.burst)
}

func (firstCharge) letter() byte    { return 'a' }
func (firstCharge) script() *script { return firstChargeScript }

func (firstCharge) keeps(state string) bool { return keeps(state, 'a', 28) }

func (s firstCharge) wait(v view, _ int64) int64 { return s.reset(v) }

func (firstCharge) soonest(view, int64) int64 { return 0 }
func (s firstCharge) open(v view) int64       { return s.reset(v) }

func (s firstCharge) reset(v view) int64 {
	if v.a == 0 {
		return 0
	}
	return v.b + s.period - v.now
}

func (s firstCharge) worst(d int64) uint64 {
	return times(uint64(s.burst), 1+uint64(ceilDiv(d, s.period*micro)))
}

// aligned is windows that all keys have in common. In a view, a is the units of the present window.
type aligned struct{ period, offset int64 } // us

func (aligned) charged(v view, units int64) view {
	v.a += units
	return v
}

// boundary returns the time until the i-th boundary after now, for i > 0.
func (w aligned) boundary(now, i int64) int64 {
	next := (floorDiv(now-w.offset, w.period)+1)*w.period + w.offset - now
	more := product(i-1, w.period)
	return min(more, math.MaxInt64-next) + next
}

func (aligned) soonest(view, int64) int64 { return 0 }
func (w aligned) open(v view) int64       { return w.boundary(v.now, 1) }

// counter is the shape of FixedWindow, and of TokenBucket with refills at intervals: at
// each boundary, `back` units come back. In a view, a is the units that count.
type counter struct {
	aligned
	burst, back int64
	sign        byte
}

func newCounter(c Config) (shape, error) {
	period, offset, err := wholeMicros(c)
	if err != nil {
		return nil, err
	}
	s := counter{aligned{period, offset}, int64(c.Limit.Capacity()), exact - 1, 'w'}
	if c.Algorithm == sluice.TokenBucketInterval {
		s.back, s.sign = int64(c.Limit.Rate), 'i'
	}
	return s, countable(c, max(s.burst, int64(c.Limit.Rate)))
}

func (s counter) letter() byte  { return s.sign }
func (counter) script() *script { return counterScript }

func (counter) keeps(state string) bool { return keeps(state, 'c', 21) }

func (s counter) arguments(to []byte, _ int64) []byte {
	to = appendUint56(appendUint56(to, s.burst), s.back)
	return appendUint56(appendUint56(to, s.period), s.offset)
}

func (counter) used(v view) int64 { return v.a }

func (s counter) free(v view) int64 { return max(0, s.burst-v.a) }

func (s counter) wait(v view, cost int64) int64 {
	return s.boundary(v.now, ceilDiv(v.a+cost-s.burst, s.back))
}

func (s counter) reset(v view) int64 {
	if v.a == 0 {
		return 0
	}
	return s.boundary(v.now, ceilDiv(v.a, s.back))
}

// worst: each of the boundaries in a span gives back at most a burst.
func (s counter) worst(d int64) uint64 {
	boundaries := uint64(ceilDiv(d, s.period*micro))
	return sum(uint64(s.burst), times(boundaries, uint64(min(s.back, s.burst))))
}

// sliding is the shape of SlidingWindow. Times within a window are in steps, rounded down.
// In a view, a is the units of this window, and b the units of the window before.
//
// Invariant: burst * steps < 2^53.
type sliding struct {
	aligned
	burst int64
	step  int64 // us
	steps int64 // in a period
}

func newSliding(c Config) (shape, error) {
	period, offset, err := wholeMicros(c)
	if err != nil {
		return nil, err
	}
	burst := int64(c.Limit.Rate)
	for _, step := range steps {
		if period%step == 0 && offset%step == 0 && product(burst, period/step) < exact {
			return sliding{aligned{period, offset}, burst, step, period / step}, nil
		}
	}
	return nil, configErrorf("Limit", "%v: rate times period is 2^53 steps or more, of 1 us, or of up to 1 ms that period and offset are multiples of; want less", c.Limit)
}

func (sliding) letter() byte    { return 's' }
func (sliding) script() *script { return slidingScript }

func (sliding) keeps(state string) bool { return keeps(state, 's', 44) }

func (s sliding) arguments(to []byte, _ int64) []byte {
	to = appendUint56(appendUint56(appendUint56(to, s.burst), s.period), s.offset)
	return appendUint32(to, s.step)
}

// left returns how many steps are left of the window that now is in.
func (s sliding) left(now int64) int64 {
	elapsed := now - s.offset - floorDiv(now-s.offset, s.period)*s.period
	return s.steps - elapsed/s.step
}

// used adds the units of this window, and the part of the window before that still counts.
func (s sliding) used(v view) int64 {
	hi, lo := bits.Mul64(uint64(v.b), uint64(s.left(v.now)))
	whole, rest := bits.Div64(hi, lo, uint64(s.steps)) // at most b, as at most all steps are left
	if rest > 0 {
		whole++
	}
	return v.a + int64(whole)
}

func (s sliding) free(v view) int64 {
	whole, left := s.burst*s.steps, s.left(v.now)
	if v.b > whole/left {
		return 0
	}
	return max(0, (whole-v.b*left)/s.steps-v.a)
}

// within returns the time in a window of a and b, from the window's beginning, from which on cost is
// admitted; or a period, if cost is not admitted in that window.
func (s sliding) within(a, b, cost int64) int64 {
	if a > s.burst-cost {
		return s.period
	}
	if b == 0 {
		return 0
	}
	return s.period - min((s.burst-cost-a)*s.steps/b, s.steps)*s.step
}

// wait looks in this window, then in the next one, where v.a are the units of the window before. At
// the end of the next window neither v.a nor v.b counts any more.
func (s sliding) wait(v view, cost int64) int64 {
	if at := s.within(v.a, v.b, cost); at < s.period {
		return at - (s.period - s.boundary(v.now, 1))
	}
	return s.boundary(v.now, 1) + s.within(0, v.a, cost)
}

func (s sliding) reset(v view) int64 {
	switch {
	case v.a > 0:
		return s.boundary(v.now, 2)
	case v.b > 0:
		return s.boundary(v.now, 1)
	}
	return 0
}

// worst: burst + floor(burst * (d - 1)/period), in steps. Two times d ns apart are at most
// ceil(d/step) steps apart.
func (s sliding) worst(d int64) uint64 {
	if d == 0 {
		return uint64(s.burst)
	}
	return sum(uint64(s.burst), mulDiv(uint64(ceilDiv(d, s.step*micro)-1), uint64(s.burst), uint64(s.steps)))
}

// maxLog is the most units that a log holds.
const maxLog = 1 << 16

// slog is the shape of SlidingLog. In a view, b is the time of the newest unit, and c the
// time of the unit that has to expire before the call's cost fits.
type slog struct{ most }

func newSlog(c Config) (shape, error) {
	m, err := newMost(c)
	if err != nil {
		return nil, err
	}
	if c.Limit.Rate > maxLog {
		return nil, configErrorf("Limit.Rate", "%d with %v, of which Redis keeps a time for each unit; want at most %d", c.Limit.Rate, c.Algorithm, maxLog)
	}
	return slog{m}, nil
}

const logLetter = 'l'

func (slog) letter() byte    { return logLetter }
func (slog) script() *script { return slogScript }

func (slog) keeps(state string) bool { return keeps(state, 0) }

func (s slog) charged(v view, units int64) view {
	if units > 0 {
		v.b = v.now
	}
	v.a += units
	return v
}

func (s slog) wait(v view, _ int64) int64 { return v.c + s.period - v.now }

func (s slog) soonest(v view, cost int64) int64 { return s.wait(v, cost) }
func (slog) open(view) int64                    { return 0 }

func (s slog) reset(v view) int64 {
	if v.a == 0 {
		return 0
	}
	return v.b + s.period - v.now
}

// worst: two times d apart are at most ceil(d/1us) us apart.
func (s slog) worst(d int64) uint64 {
	return times(uint64(s.burst), 1+uint64(min(ceilDiv(d, micro), math.MaxInt64)/s.period))
}
