package traces

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/internal/test/oracle"
)

// Start is an arbitrary time in 2026, not aligned to anything.
var Start = time.Unix(1_790_000_123, 456_789_012)

// RandomLimit draws from one a century to several a nanosecond. Windows need
// Burst 0, the log a rate whose ring the model can keep up with.
func RandomLimit(rng *rand.Rand, a oracle.Algorithm) Limit {
	rates := []int{1, 1, 2, 3, 5, 7, 10, 20, 60, 100, 333, 1000, 4096, 99_991, 1_000_000, 100_000_000, 2_000_000_000}
	periods := []time.Duration{
		1, 2, 3, 10, 999, time.Microsecond, time.Millisecond, time.Second, time.Second, time.Second, 7 * time.Second,
		time.Minute, time.Minute, time.Hour, day, 7 * day, 365 * day, 36_500 * day, 1<<62 + 12_345,
	}
	l := Limit{Rate: rates[rng.IntN(len(rates))], Period: periods[rng.IntN(len(periods))]}
	switch a {
	case oracle.SlidingLog:
		l.Rate = 1 + rng.IntN(40)
	case oracle.GCRA, oracle.TokenBucket, oracle.LeakyBucket:
		bursts := []int{0, 1, 2, 3, 10, 1000, l.Rate, 2*min(l.Rate, 1<<30-1) + 1}
		l.Burst = bursts[rng.IntN(len(bursts))]
	}
	return l
}

// RandomOffset draws where the windows of a period begin.
func RandomOffset(rng *rand.Rand, period time.Duration) time.Duration {
	p := int64(period)
	offsets := []int64{p - 1, p / 2, rng.Int64N(p), rng.Int64N(p), Start.UnixNano() % p, min(1, p-1)}
	return time.Duration(offsets[rng.IntN(len(offsets))])
}

// RandomGap draws how far time moves on from now: often not at all, often to the nanosecond
// around an interval, a window's edge, or a period.
func RandomGap(rng *rand.Rand, l Limit, offset time.Duration, now int64) int64 {
	period, interval := int64(l.Period), l.Interval()
	edge := period - (now+(period-int64(offset)))%period // to the next one
	gaps := []int64{
		0, 0, 0, 1, 2, interval - 1, interval, interval, interval + 1, 3 * min(interval, 1<<60),
		period - 1, period, period + 1, edge, edge - 1,
		rng.Int64N(period) + 1, rng.Int64N(interval) + 1, 2*min(period, 1<<61) + 1,
	}
	return max(0, gaps[rng.IntN(len(gaps))])
}

// RandomCost draws the cost of a call under a limit of b units at once.
func RandomCost(rng *rand.Rand, b int) int {
	costs := []int{1, 1, 1, 1, 0, 2, b - 1, b, b + 1, -1, math.MaxInt, math.MinInt, 1 + rng.IntN(b), 1 + rng.IntN(min(b, 5))}
	return costs[rng.IntN(len(costs))]
}

// Bytes are a source of randomness that spends one byte of input on each
// number. The byte makes the high bits, which are the ones that rand.IntN looks at
// for small n. Past the end it goes on with pseudo-random numbers, since a
// constant could make rand reject forever.
type Bytes struct {
	data []byte
	rest *rand.PCG
}

// NewBytes returns a source with the input of a fuzz target.
func NewBytes(data []byte) *Bytes { return &Bytes{data, rand.NewPCG(1, 2)} }

// Left reports whether the end has not been reached.
func (b *Bytes) Left() bool { return len(b.data) > 0 }

func (b *Bytes) Uint64() uint64 {
	n := b.rest.Uint64()
	if len(b.data) == 0 {
		return n
	}
	first := b.data[0]
	b.data = b.data[1:]
	return uint64(first)<<56 | n>>8
}
