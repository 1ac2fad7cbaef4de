package limittest

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
)

// A Promise is the most units that a limiter admits a key in any closed span of time [t, t+d]. It is
// made by Bucket, Bound or Of; the zero Promise is that nothing is admitted.
//
// Whole numbers decide whether one is kept, and nothing is rounded.
type Promise struct {
	line    *line           // of buckets
	most    func(int64) int // of all others; nil: nothing
	longest int64           // the longest span that is looked at
}

// Bucket is the promise of a token bucket, a leaky bucket and GCRA: burst + rate*d/period, rounded
// down. As in package sluice, a Burst of 0 is the Rate, a Rate of 0 promises that nothing is
// admitted, and sluice.Unlimited promises nothing. Bucket panics if a field is negative, or the
// Period of another limit is 0.
//
// A Checker of it needs a few words of memory a key, whatever it is told.
func Bucket(limit sluice.Limit) Promise {
	if limit.Rate < 0 || limit.Burst < 0 || limit.Period < 0 || limit.Period == 0 && limit.Rate != 0 && limit.Rate != math.MaxInt {
		panic(fmt.Sprintf("limittest: Bucket: %+v is no limit; want a Rate, a positive Period and a Burst, or 0 for a Burst of Rate", limit))
	}
	if limit.Rate == 0 || limit.Rate == math.MaxInt {
		return constant(limit.Rate)
	}
	burst := limit.Burst
	if burst == 0 {
		burst = limit.Rate
	}
	// sum <= burst + floor(d*rate/period) is sum*period - d*rate < burst*period + 1.
	period := uint64(limit.Period)
	return Promise{line: &line{
		unit: wide{lo: period}, rate: uint64(limit.Rate),
		start: wide{lo: period}.times(uint64(burst)).plus(wide{lo: 1}),
	}}
}

// Bound is the promise that at most most(d) units are admitted in a span d >= 0. The function must
// not decrease as d grows, is called with a lock held, and says math.MaxInt for no bound.
//
// Spans above longest are not looked at. 0 looks at all: a Checker then keeps 16 bytes for each
// instant at which a key was admitted anything, else for those in the last longest. A record looks at as many spans
// as the bound has values up to longest, or up to the units of the record's key, and searches for each by bisection.
func Bound(most func(d time.Duration) int, longest time.Duration) Promise {
	if most == nil || longest < 0 {
		panic(fmt.Sprintf("limittest: Bound: a nil function, or a longest span of %v; want a function of the span, and 0 for all spans, or a positive duration", longest))
	}
	if longest == 0 {
		longest = math.MaxInt64
	}
	return Promise{most: func(d int64) int { return most(time.Duration(d)) }, longest: int64(longest)}
}

// Of is the promise of a limiter as it is configured now: its WorstCase, which holds for keys that have
// no limit of their own, and are not evicted, reset or given back anything. For buckets it costs what Bucket
// costs, for others what Bound does; it looks at spans up to longest then, and 0 is for all. A sliding log needs no
// span of a period or more: if one has too much, a shorter one has. Under Shadow and InFlight nothing is promised.
//
// The times that count are those on the limiter's clock.
func Of(lim *sluice.Limiter, longest time.Duration) Promise {
	c := lim.Config()
	if c.Shadow || c.Algorithm == sluice.InFlight {
		return constant(math.MaxInt)
	}
	limit := c.Limit
	if limit.Rate == 0 || limit.Rate == math.MaxInt {
		return constant(limit.Rate)
	}
	if c.Algorithm == sluice.GCRA || c.Algorithm == sluice.LeakyBucket || c.Algorithm == sluice.TokenBucket {
		return Promise{line: gridLine(limit, uint64(limit.Capacity())+uint64(c.Soft))}
	}
	frozen, err := sluice.New(sluice.Config{ // since the limit of lim can change
		Algorithm: c.Algorithm, Limit: limit, Offset: c.Offset, Soft: c.Soft,
		Clock: sluice.NewManualClock(time.Time{}), MaxKeys: 1,
	})
	if err != nil {
		panic(fmt.Sprintf("limittest: Of: a limiter has a limit that New refuses: %v", err))
	}
	p := Bound(frozen.WorstCase, longest)
	if c.Algorithm == sluice.SlidingLog {
		p.longest = min(p.longest, int64(limit.Period)-1)
	}
	return p
}

// gridLine is the line of sluice's buckets, which judge an arrival up to 1 ns earlier where the
// interval is no whole number of ns: WorstCase is capacity + floor(ceil(d*rate*c/period)/c), with c the
// interval, rounded up.
//
// sum <= that is (sum-capacity)*c <= ceil(x), with x = d*rate*c/period, and that is (sum-capacity)*c - 1 < x.
// Multiplied by the period, all are whole.
func gridLine(limit sluice.Limit, capacity uint64) *line {
	period, rate := uint64(limit.Period), uint64(limit.Rate)
	c := (period-1)/rate + 1
	unit := wide{lo: period}.times(c)
	return &line{unit: unit, rate: rate * c, start: unit.times(capacity).plus(wide{lo: period})}
}

// constant is the promise of so many units at any time: 0, or math.MaxInt for no bound.
func constant(units int) Promise {
	return Promise{most: func(int64) int { return units }, longest: math.MaxInt64}
}

// A line is a bound that grows evenly: a sum of units within d ns breaks it if
//
//	sum*unit >= start + d*rate
type line struct {
	unit, start wide
	rate        uint64
}

func (l *line) breaks(sum, d uint64) bool {
	return l.unit.times(sum).compare(wide{lo: d}.times(l.rate).plus(l.start)) >= 0
}

// returned reports whether within d ns at least so many units come back.
func (l *line) returned(sum, d uint64) bool {
	return l.unit.times(sum).compare(wide{lo: d}.times(l.rate)) <= 0
}

// most returns the largest sum up to one that breaks the line, which does not.
func (l *line) most(broken, d uint64) uint64 {
	// Invariant: kept does not break it, broken does.
	kept := uint64(0)
	for broken-kept > 1 {
		if middle := kept + (broken-kept)/2; l.breaks(middle, d) {
			broken = middle
		} else {
			kept = middle
		}
	}
	return kept
}

// A wide is a number of 192 bits that is not negative. The largest here is a sum of 2^64 units of a period and
// an interval of 2^63 ns each, below 2^190.
type wide struct{ lo, mid, high uint64 }

func (a wide) times(n uint64) wide {
	var r wide
	var carry, c uint64
	carry, r.lo = bits.Mul64(a.lo, n)
	h, l := bits.Mul64(a.mid, n)
	r.mid, c = bits.Add64(l, carry, 0)
	r.high = a.high*n + h + c
	return r
}

func (a wide) plus(b wide) wide {
	var r wide
	var c uint64
	r.lo, c = bits.Add64(a.lo, b.lo, 0)
	r.mid, c = bits.Add64(a.mid, b.mid, c)
	r.high, _ = bits.Add64(a.high, b.high, c)
	return r
}

func (a wide) compare(b wide) int {
	return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.mid, b.mid), cmp.Compare(a.lo, b.lo))
}
