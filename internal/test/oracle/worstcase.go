package oracle

import (
	"math"
	"math/big"
)

// WorstCase returns a bound on the units that any one key can be admitted in a
// closed span [t, t+d] of nanoseconds, whatever its history. It is not
// saturated, except that it is math.MaxInt64 for Rate math.MaxInt64, and under
// InFlight. It is 0 for a negative d.
//
// A charge counts at the time it is charged at, which for a call with an older
// time is the time of the key's newest charge. For the GCRA family and
// SlidingLog the bound holds for the times of the calls as well.
//
// FixedWindow, SlidingLog and an Interval attain it for every d, windows of
// FirstCharge where Period divides d and to within 1 unit elsewhere, SlidingWindow for d <=
// Period, and the GCRA family wherever a key that is charged whatever it can
// pay, every nanosecond, never becomes full: where Period/Rate is whole, and
// where Burst >= Rate/Period + 1.
func (m *Model) WorstCase(d int64) *big.Int {
	m.mu.Lock()
	c, limit := m.main.cfg, m.main.limit
	m.mu.Unlock()
	switch {
	case d < 0 || c.Rate == 0:
		return new(big.Int)
	case c.Rate == math.MaxInt64:
		return big.NewInt(math.MaxInt64)
	}
	if c.Interval {
		return worstInterval(c, limit, d)
	}
	switch c.Algorithm {
	case SlidingWindow:
		return worstSlidingWindow(c, d)
	case InFlight:
		return big.NewInt(math.MaxInt64) // units that are given back can be admitted again at once
	case SlidingLog:
		return worstSlidingLog(c, d)
	case FixedWindow:
		if c.Calendar != nil {
			return c.Calendar.worst(c.Rate, d)
		}
		return worstFixedWindow(c, d)
	default:
		return worstFamily(c, limit, d)
	}
}

// worstFamily is B + floor(ticks/unit), where ticks is the most by which the
// ticks of two instants d ns apart can differ.
//
// Say N units are admitted in the span, the last at tick z of an instant in it.
// TAT was at least the tick a of the span's start after the first charge and
// grew by a unit with each, so a + N*unit <= TAT <= z + B*unit. And z - a is at
// most ceil(d*num/den): floor(x+y) - floor(x) <= ceil(y). Without Grid den is
// 1, and this is B + floor(d*Rate/Period).
func worstFamily(c Config, burst, d int64) *big.Int {
	tk := newTicks(c)
	span := ceil(new(big.Int).Mul(big.NewInt(d), &tk.num), &tk.den)
	span.Quo(span, &tk.unit)
	return span.Add(span, big.NewInt(burst))
}

// worstInterval is B, and for each of the ceil(d/P) refills that a span can hold
// after its first instant R, or B if a refill makes the bucket overflow.
func worstInterval(c Config, burst, d int64) *big.Int {
	worst := ceil(big.NewInt(d), big.NewInt(c.Period))
	worst.Mul(worst, big.NewInt(min(c.Rate, burst)))
	return worst.Add(worst, big.NewInt(burst))
}

// worstFixedWindow is R for each window that a span can touch: 1 + ceil(d/P). Of
// windows of FirstCharge that are not empty, the first to be touched began with a unit
// before the span, unless the span begins with a window. Then it ends within one, or
// with one if Period divides d.
func worstFixedWindow(c Config, d int64) *big.Int {
	touched := ceil(big.NewInt(d), big.NewInt(c.Period))
	touched.Add(touched, one)
	return touched.Mul(touched, big.NewInt(c.Rate))
}

// worstSlidingLog is R for each half-open span (s-P, s] that it takes to cover
// the closed one: 1 + floor(d/P).
func worstSlidingLog(c Config, d int64) *big.Int {
	spans := new(big.Int).Quo(big.NewInt(d), big.NewInt(c.Period))
	spans.Add(spans, one)
	return spans.Mul(spans, big.NewInt(c.Rate))
}

// worstSlidingWindow is R for d = 0, else R + floor(R*(d-1)/P).
//
// Proof. Let c(k) <= R be all the cost admitted in window k. An admission at
// elapsed e of window k+1 leaves its count y with y <= R - c(k)*(P-e)/P, so
//
//	(1)  c(k) + y <= R + c(k)*e/P <= R + R*e/P
//
// A span inside one window holds at most R. Otherwise it starts in window k and
// ends at elapsed e of window k+m, m >= 1. It holds at most R from each of the
// windows k to k+m-2, and from the last two at most R + R*e/P by (1): together
// m*R + R*e/P. It starts at the last instant of window k at the latest, so d >=
// (m-1)*P + e + 1, and R + R*(d-1)/P >= m*R + R*e/P. The cost is whole.
//
// It is attained for d <= P: a fresh key charged R in the last instant of a
// window admits floor(R*e/P) at elapsed e = d-1 of the next.
func worstSlidingWindow(c Config, d int64) *big.Int {
	worst := big.NewInt(c.Rate)
	if d == 0 {
		return worst
	}
	more := big.NewInt(d - 1)
	more.Mul(more, worst)
	more.Quo(more, big.NewInt(c.Period))
	return worst.Add(worst, more)
}

// ceil returns the least integer >= x/y, for x >= 0 and y > 0. It may write x.
func ceil(x, y *big.Int) *big.Int {
	rem := new(big.Int)
	if x.QuoRem(x, y, rem); rem.Sign() > 0 {
		x.Add(x, one)
	}
	return x
}
