package redistier

import (
	"cmp"
	"math"
	"math/big"

	"github.com/sluice-go/sluice"
)

// bucket is the shape of GCRA, TokenBucket and LeakyBucket, which agree on every decision.
// With the rate reduced, a unit costs `unit` sub-units of debt and a step drains `drain` of
// them; the debt is at most full = burst * unit.
//
// Of a view, a is the debt and b the units on lease, which count and do not drain.
//
// Invariant: full + drain < 2^53.
type bucket struct {
	unit, drain, full int64
	step              int64 // us
}

func newBucket(c Config) (shape, error) {
	l := c.Limit
	burst := cmp.Or(l.Burst, l.Rate)
	for _, step := range steps {
		if b, ok := bucketOn(step, int64(l.Rate), int64(l.Period), int64(burst)); ok {
			return b, nil
		}
	}
	return nil, configErrorf("Limit", "%v: in steps of 1 ms the bucket still has more than 2^53 parts; want a rate and a period with a larger common divisor, a shorter period, or a smaller burst", l)
}

func bucketOn(step, rate, period, burst int64) (b bucket, ok bool) {
	unit, drain := big.NewInt(period), big.NewInt(rate)
	drain.Mul(drain, big.NewInt(step*micro))
	divisor := new(big.Int).GCD(nil, nil, unit, drain)
	unit.Quo(unit, divisor)
	drain.Quo(drain, divisor)
	full := new(big.Int).Mul(unit, big.NewInt(burst))
	if new(big.Int).Add(full, drain).Cmp(big.NewInt(exact)) >= 0 {
		return b, false
	}
	return bucket{unit.Int64(), drain.Int64(), full.Int64(), step}, true
}

func (bucket) letter() byte    { return 'b' }
func (bucket) script() *script { return bucketScript }

func (b bucket) arguments(to []byte) []byte {
	to = appendUint56(appendUint56(appendUint56(to, b.unit), b.drain), b.full)
	return appendUint32(to, b.step)
}

func (b bucket) free(v view) int64 { return max(0, floorDiv(b.full-v.a, b.unit)-v.b) }

func (b bucket) charged(v view, units int64) view {
	v.a += units * b.unit
	return v
}

// wait: units on lease that are still out then count as if they did not come back.
func (b bucket) wait(v view, cost int64) int64 {
	lent := min(v.b, b.full/b.unit) + cost
	over := v.a - (b.full - min(lent*b.unit, b.full))
	return product(ceilDiv(max(over, 0), b.drain), b.step)
}

func (b bucket) soonest(v view, cost int64) int64 {
	v.b = 0
	return b.wait(v, cost)
}

func (bucket) open(view) int64 { return math.MaxInt64 }

func (b bucket) reset(v view) int64 {
	return product(ceilDiv(v.a+min(v.b, b.full/b.unit)*b.unit, b.drain), b.step)
}

// worst: two times d apart are at most ceil(d/step) steps apart.
func (b bucket) worst(d int64) uint64 {
	return sum(uint64(b.full/b.unit), mulDiv(uint64(ceilDiv(d, b.step*micro)), uint64(b.drain), uint64(b.unit)))
}

// counter is the shape of FixedWindow, and of TokenBucket with refills at intervals: at
// each boundary, `back` units come back. Of a view, a is the units that count.
type counter struct {
	burst, back    int64
	period, offset int64 // us
	window         bool
}

func newCounter(c Config) (shape, error) {
	period, offset, err := wholeMicros(c)
	if err != nil {
		return nil, err
	}
	s := counter{burst: int64(c.Limit.Rate), back: exact - 1, period: period, offset: offset, window: true}
	if c.Algorithm == sluice.TokenBucket {
		s.window, s.back = false, int64(c.Limit.Rate)
		if c.Limit.Burst > 0 {
			s.burst = int64(c.Limit.Burst)
		}
	}
	return s, countable(c, max(s.burst, int64(c.Limit.Rate)))
}

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

func (s counter) letter() byte {
	if s.window {
		return 'w'
	}
	return 'i'
}
func (counter) script() *script { return counterScript }

func (s counter) arguments(to []byte) []byte {
	to = appendUint56(appendUint56(to, s.burst), s.back)
	return appendUint56(appendUint56(to, s.period), s.offset)
}

func (s counter) free(v view) int64 { return max(0, s.burst-v.a) }

func (s counter) charged(v view, units int64) view {
	v.a += units
	return v
}

// boundary returns the time until the i-th boundary after now.
func (s counter) boundary(now, i int64) int64 {
	next := (floorDiv(now-s.offset, s.period)+1)*s.period + s.offset - now
	more := product(i-1, s.period)
	return min(more, math.MaxInt64-next) + next
}

func (s counter) wait(v view, cost int64) int64 {
	return s.boundary(v.now, ceilDiv(v.a+cost-s.burst, s.back))
}

func (counter) soonest(view, int64) int64 { return 0 }
func (s counter) open(v view) int64       { return s.boundary(v.now, 1) }

func (s counter) reset(v view) int64 {
	if v.a == 0 {
		return 0
	}
	return s.boundary(v.now, ceilDiv(v.a, s.back))
}

// worst: of k boundaries in a span, each gives back at most a burst.
func (s counter) worst(d int64) uint64 {
	boundaries := uint64(ceilDiv(d, s.period*micro))
	return sum(uint64(s.burst), times(boundaries, uint64(min(s.back, s.burst))))
}
