package redistier

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// share returns what one of n replicas enforces of a limit by itself: an n-th of it, and at
// least one unit. A bucket's rate is divided by stretching its period, which is exact.
func share(c Config, n int) sluice.Limit {
	l := c.Limit
	if n == 1 || l.Rate == 0 || l.Rate == math.MaxInt {
		return l
	}
	part := func(units int) int { return int(ceilDiv(int64(units), int64(n))) }
	if c.Algorithm >= sluice.SlidingWindow || c.Refill == sluice.RefillInterval {
		out := sluice.Per(part(l.Rate), l.Period)
		out.Burst = part(l.Burst)
		return out
	}
	burst := l.Burst
	if burst == 0 {
		burst = l.Rate
	}
	period := product(int64(l.Period), int64(n))
	out := sluice.Per(l.Rate, time.Duration(period)).WithBurst(part(burst))
	if _, err := sluice.New(localConfig(c, out, 1)); err != nil || period == math.MaxInt64 { // too slow for the clock
		out = sluice.Per(part(l.Rate), l.Period).WithBurst(part(burst))
	}
	return out
}

// localConfig is that of the limiter which answers when Redis does not. It does not block:
// it is charged, too, by calls that it is not asked about.
func localConfig(c Config, limit sluice.Limit, maxKeys int) sluice.Config {
	return sluice.Config{Algorithm: c.Algorithm, Limit: limit, Refill: c.Refill, Anchor: c.Anchor, Offset: c.Offset, MaxKeys: maxKeys}
}
