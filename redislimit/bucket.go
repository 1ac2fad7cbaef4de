package redislimit

import (
	"math"
	"math/big"
)

// bucket is the shape of GCRA, TokenBucket and LeakyBucket, which agree on every decision.
// The rate is reduced to lowest terms. A unit costs `unit` sub-units of debt, and a step drains `drain`
// sub-units; the debt is at most full = burst * unit.
//
// In a view, a is the debt and b the units on lease, which count and do not drain.
//
// Invariant: full + drain < 2^53.
type bucket struct {
	unit, drain, full int64
	step              int64 // us
}

func newBucket(c Config) (shape, error) {
	l := c.Limit
	for _, step := range steps {
		if b, ok := bucketOn(step, int64(l.Rate), int64(l.Period), int64(l.Capacity())); ok {
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

func (bucket) keeps(state string) bool { return keeps(state, 'b', 28, 46) }

func (b bucket) arguments(to []byte, _ int64) []byte {
	to = appendUint56(appendUint56(appendUint56(to, b.unit), b.drain), b.full)
	return appendUint32(to, b.step)
}

func (b bucket) free(v view) int64 { return max(0, floorDiv(b.full-v.a, b.unit)-v.b) }

func (b bucket) used(v view) int64 { return ceilDiv(max(v.a, 0), b.unit) + v.b }

func (b bucket) charged(v view, units int64) view {
	v.a += units * b.unit
	return v
}

// wait assumes that units on lease that are still out, and units that are held, do not come back.
func (b bucket) wait(v view, cost int64) int64 {
	lent := min(v.b, b.full/b.unit) + cost
	over := v.a + lent*b.unit - b.full
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
