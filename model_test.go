package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/seeded"
)

// modelOps is how many random operations each algorithm is compared over.
func modelOps() int { return depth.Of(20_000, 30_000, 1_000_000) }

// sharing is how many variants have the model of this one, which differ in nothing but where
// their windows begin: they share the operations of their model.
func sharing(variant Config) (n int) {
	for _, v := range variants {
		if v.Offset = variant.Offset; v == variant {
			n++
		}
	}
	return n
}

// newOracle returns the exact model of a limiter. It follows the one liberty that
// the library takes, the grid for intervals that are no whole number of ns.
func newOracle(c Config) *oracle.Model { return oracle.New(oracleConfig(c)) }

func oracleConfig(c Config) oracle.Config {
	limit := c.enforced()
	rate := int64(limit.Rate)
	if limit.Rate == math.MaxInt {
		rate = math.MaxInt64 // Unlimited, on 32-bit machines, too
	}
	return oracle.Config{
		Algorithm: oracle.Algorithm(c.Algorithm),
		Rate:      rate,
		Burst:     int64(limit.Burst),
		Period:    int64(limit.Period),
		Offset:    int64(c.Offset),
		Interval:  c.Refill == RefillInterval,
		Anchored:  c.Anchor == AnchorFirstCharge,
		Grid:      true,

		BlockFor:    int64(c.BlockFor),
		CountDenied: c.CountDenied,
	}
}

// fromOracle narrows a model's decision to the int of this platform.
func fromOracle(d oracle.Decision) Decision {
	return Decision{
		Allowed:    d.Allowed,
		Limit:      int(min(d.Limit, math.MaxInt)),
		Remaining:  int(min(d.Remaining, math.MaxInt)),
		RetryAfter: time.Duration(d.RetryAfter),
		ResetAfter: time.Duration(d.ResetAfter),
	}
}

// guess is what a limiter has decided, to be searched for first by a model: see Model.Guess.
func guess(d Decision) oracle.Decision {
	return oracle.Decision{Remaining: int64(d.Remaining), RetryAfter: int64(d.RetryAfter), ResetAfter: int64(d.ResetAfter)}
}

// randomLimit draws from one a century to several a nanosecond. Windows need
// Burst 0, the log a rate whose ring the model can keep up with.
func randomLimit(rng *rand.Rand, a Algorithm) Limit {
	rates := []int{1, 1, 2, 3, 5, 7, 10, 20, 60, 100, 333, 1000, 4096, 99_991, 1_000_000, 100_000_000, 2_000_000_000}
	periods := []time.Duration{
		1, 2, 3, 10, 999, time.Microsecond, time.Millisecond, time.Second, time.Second, time.Second, 7 * time.Second,
		time.Minute, time.Minute, time.Hour, day, 7 * day, 365 * day, 36_500 * day, 1<<62 + 12_345,
	}
	l := Limit{Rate: rates[rng.IntN(len(rates))], Period: periods[rng.IntN(len(periods))]}
	switch a {
	case SlidingLog:
		l.Rate = 1 + rng.IntN(40)
	case GCRA, TokenBucket, LeakyBucket:
		bursts := []int{0, 1, 2, 3, 10, 1000, l.Rate, 2*min(l.Rate, 1<<30-1) + 1}
		l.Burst = bursts[rng.IntN(len(bursts))]
	}
	return l
}

// randomConfig draws a limit for a variant, and an offset if it has one.
func randomConfig(rng *rand.Rand, variant Config) Config {
	c := variant
	c.Limit = randomLimit(rng, c.Algorithm)
	if p := int64(c.Limit.Period); c.Offset != 0 {
		offsets := []int64{p - 1, p / 2, rng.Int64N(p), rng.Int64N(p), start.UnixNano() % p, min(1, p-1)}
		c.Offset = time.Duration(offsets[rng.IntN(len(offsets))])
	}
	return c
}

// A tracer drives a limiter and its model through one random trace, and demands
// the same decision from both at every step.
type tracer struct {
	*trace
	lim   *Limiter
	swept *Limiter // the same, swept after every call; nil in traces with older times
	model *oracle.Model
	now   int64
	stop  int64 // time goes no further: the model does not know the end of a limiter's

	resets bool // Reset makes keys as if new, with older times, too
}

func newTracer(tb testing.TB, rng *rand.Rand, c Config, older bool) *tracer {
	tr := &tracer{trace: &trace{tb: tb, rng: rng}, stop: 1<<61 + 1<<59}
	if c.Algorithm == TokenBucket && c.Refill == RefillContinuous {
		alg, err := newTokenBucket(c.Limit)
		require.Nil(tb, err)
		tr.stop = min(tr.stop, lastFull(alg.(*tokenBucket))-1<<60)
	}
	if rng.IntN(4) > 0 && tr.stop > start.UnixNano() { // else in 1970
		tr.now = start.UnixNano()
	}
	tr.clock = NewManualClock(time.Unix(0, tr.now))
	c.Clock, c.Shards = tr.clock, 1<<rng.IntN(3) // few, since a sweep locks them all
	if older {
		// A sweep may forgive what an older time still sees: keep everything.
		c.TTL = math.MaxInt64
	} else {
		tr.swept = mustNew(tb, c)
		c.TTL = 1
	}
	tr.cfg, tr.lim = c, mustNew(tb, c)
	tr.model = newCounting(oracleConfig(c), tr.lim.policyOf(0))
	// A wide sliding window remembers across a reset which window it was in, and
	// charges an older time there; its model starts from nothing.
	_, wideWindow := tr.lim.policyOf(0).wide.(*slidingWindowWide)
	tr.resets = !(older && wideWindow)
	return tr
}

// lastFull is the last time at which a full charge is paid back before time ends.
func lastFull(a *tokenBucket) int64 { return int64(a.earliest(a.tick(a.end)-a.schedule.burst)) - 1 }

// gap draws how far time moves on: often not at all, often to the nanosecond
// around an interval, a window's edge, or a period.
func (tr *tracer) gap() int64 {
	l := tr.cfg.Limit
	period := int64(l.Period)
	interval := int64(l.interval())
	edge := period - (tr.now+(period-int64(tr.cfg.Offset)))%period // to the next one
	gaps := []int64{
		0, 0, 0, 1, 2, interval - 1, interval, interval, interval + 1, 3 * min(interval, 1<<60),
		period - 1, period, period + 1, edge, edge - 1,
		tr.rng.Int64N(period) + 1, tr.rng.Int64N(interval) + 1, 2*min(period, 1<<61) + 1,
	}
	return max(0, gaps[tr.rng.IntN(len(gaps))])
}

func (tr *tracer) cost() int {
	b := tr.cfg.Limit.burst()
	costs := []int{1, 1, 1, 1, 0, 2, b - 1, b, b + 1, -1, math.MaxInt, math.MinInt, 1 + tr.rng.IntN(b), 1 + tr.rng.IntN(min(b, 5))}
	return costs[tr.rng.IntN(len(costs))]
}

// step makes one call and compares. back is how far before the newest time it is
// made.
func (tr *tracer) step(key string, cost int, back int64) {
	at := max(0, tr.now-back)
	k := tr.lim.Key(key)
	seen := peekAt(tr.lim, k.id, at, cost)
	want := fromOracle(tr.model.Guess(guess(seen)).Take(key, at, int64(cost)))
	tr.note("%s at %d cost %d: %+v", key, at, cost, want)
	tr.equal(want, seen, "Peek")
	got := k.TakeAt(at, cost)
	tr.equal(want, got, "Take")
	if back == 0 && tr.swept != nil {
		tr.equal(want, tr.swept.Take(key, cost), "Take after a sweep")
		tr.swept.Sweep()
	}
	if !got.Allowed && got.RetryAfter < math.MaxInt64-time.Duration(at) {
		retry := at + int64(got.RetryAfter)
		tr.equal(true, peekAt(tr.lim, k.id, retry, cost).Allowed, "at RetryAfter")
		tr.equal(false, peekAt(tr.lim, k.id, retry-1, cost).Allowed, "1 ns before RetryAfter")
	}
}

// advance moves time on, but stays where the end of time is out of sight.
func (tr *tracer) advance(d int64) {
	if d > 0 && d < tr.stop-tr.now {
		tr.now += d
		tr.clock.Set(time.Unix(0, tr.now))
	}
}

// refund gives back units of key, at the clock's time, and compares what is left.
func (tr *tracer) refund(key string, cost int) {
	tr.model.Refund(key, tr.now, int64(cost))
	tr.note("%s refund %d", key, cost)
	tracked := tr.lim.Len()
	tr.lim.Refund(key, cost)
	got := tr.lim.Peek(key, 0)
	want := fromOracle(tr.model.Guess(guess(got)).Peek(key, tr.now, 0))
	tr.equal(want, got, "Peek after a refund")
	tr.equal(tracked, tr.lim.Len(), "a refund tracks nothing")
	if tr.swept != nil {
		tr.swept.Key(key).Refund(cost)
		tr.equal(want, tr.swept.Peek(key, 0), "Peek after a refund, swept")
		tr.swept.Sweep()
	}
}

// back draws how far before the newest time a call is made. Now and then it is made
// after it, as AllowAt may, which makes later calls and refunds the older ones.
func (tr *tracer) back() int64 {
	switch tr.rng.IntN(16) {
	case 0, 1, 2, 3:
		return 1 + tr.gap()
	case 4:
		return -max(0, min(tr.gap(), 1<<60, tr.stop+1<<60-tr.now))
	}
	return 0
}

// run makes n random steps on a few keys.
func (tr *tracer) run(n int, older bool) {
	keys := []string{"a", "b", "c"}
	for range n {
		key := keys[tr.rng.IntN(len(keys))]
		tr.advance(tr.gap())
		back := int64(0)
		if older {
			back = tr.back()
		}
		if tr.rng.IntN(6) == 0 {
			tr.refund(key, tr.cost())
		}
		switch tr.rng.IntN(12) {
		case 0:
			tr.charge(key, back)
		case 1:
			tr.takeUpTo(key, tr.cost(), back)
		}
		tr.step(key, tr.cost(), back)
		if tr.rng.IntN(50) == 0 && tr.resets {
			tr.reset(key)
		}
	}
}

func (tr *tracer) reset(key string) {
	tr.model.Reset(key)
	tr.lim.Reset(key)
	if tr.swept != nil {
		tr.swept.Reset(key)
	}
}

// TestModel_EveryDecisionIsExact compares all variants with their exact models, and a limiter that is swept after every call with one that is not.
func TestModel_EveryDecisionIsExact(t *testing.T) {
	const steps = 200
	for _, variant := range variants {
		for _, older := range []bool{false, true} {
			t.Run(fmt.Sprintf("variant=%s/older=%v", variantName(variant), older), func(t *testing.T) {
				t.Parallel()
				rng := seeded.Rand(t)
				tried, refused := 0, 0
				for range max(1, modelOps()/2/steps/sharing(variant)) {
					c := randomConfig(rng, variant)
					for tried++; ; tried++ {
						if _, err := New(c); err == nil {
							break
						}
						refused++
						c = randomConfig(rng, variant)
					}
					newTracer(t, rng, c, older).run(steps, older)
				}
				require.Less(t, refused, tried, "no limit was accepted")
			})
		}
	}
}

// TestModel_IdleJumpToTheEndOfTime: however long a key idles, it is fresh, and
// nothing overflows.
func TestModel_IdleJumpToTheEndOfTime(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range 500 {
				c := randomConfig(rng, variant)
				c.TTL = math.MaxInt64
				l, err := newForTests(c)
				if err != nil {
					continue
				}
				k := l.Key("k")
				// A bucket that takes longer to fill than time is left is not idle in it.
				at := int64(0)
				require.True(t, k.AllowAt(at, int(l.policyOf(0).burst)))
				if d := peekAt(l, k.id, 0, 1); d.ResetAfter == Never {
					continue
				}
				want := peekAt(l, l.Key("fresh").id, math.MaxInt64, int(l.policyOf(0).burst))
				require.True(t, want.Allowed)
				got := k.TakeAt(math.MaxInt64, int(l.policyOf(0).burst))
				require.Equal(t, want, got, "%+v", c)
				require.False(t, k.AllowAt(math.MaxInt64, 1), "%+v", c)
				require.False(t, k.AllowAt(0, 1), "%+v", c)
			}
		})
	}
}

// TestModel_BothEndsOfTime: whatever counts in windows is exact in the first periods
// after 1970 and in the last of the clock, if its numbers last that long.
func TestModel_BothEndsOfTime(t *testing.T) {
	for _, variant := range variants {
		if variant.Algorithm != FixedWindow && variant.Algorithm != SlidingWindow && variant.Refill != RefillInterval {
			continue
		}
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			compared := 0
			for range modelOps() / 200 {
				c := randomConfig(rng, variant)
				l, err := newForTests(c)
				if err != nil {
					continue
				}
				span := 4 * min(int64(c.Limit.Period), math.MaxInt64/4)
				from := int64(0)
				if rng.IntN(2) == 0 && lasts(l) {
					from = math.MaxInt64 - span
				}
				model := newOracle(c)
				for range 50 {
					now, cost := from+rng.Int64N(span+1), 1+rng.IntN(int(l.policyOf(0).burst))
					if rng.IntN(2) == 0 {
						cost = 1 + rng.IntN(min(4, int(l.policyOf(0).burst)))
					}
					got := l.Key("k").TakeAt(now, cost)
					want := fromOracle(model.Guess(guess(got)).Take("k", now, int64(cost)))
					mustEqual(t, want, got, "%+v at %d cost %d", c, now, cost)
					from = max(from, now-span/8)
					span = min(span, math.MaxInt64-from)
					compared++
				}
			}
			require.Greater(t, compared, modelOps()/20)
		})
	}
}

// lasts reports whether time goes on to the end of the clock.
func lasts(l *Limiter) bool {
	if _, ok := l.policyOf(0).wide.(*anchoredWindow); ok {
		return true
	}
	var w window
	switch a := l.policyOf(0).alg.(type) {
	case *fixedWindow:
		w = a.window
	case *slidingWindowWord:
		w = a.window
	case *tokenInterval:
		w = a.window
	default:
		if wide, ok := l.policyOf(0).wide.(*slidingWindowWide); ok {
			w = wide.window
		}
	}
	return w.start(w.last) > math.MaxInt64
}

// TestModel_BucketsAgreeWithGCRA: GCRA, token bucket and leaky bucket decide
// alike, also at the far ends of the time range that the models do not cover.
func TestModel_BucketsAgreeWithGCRA(t *testing.T) {
	rng := seeded.Rand(t)
	for range modelOps() / 1000 {
		limit := randomLimit(rng, GCRA)
		var lims []*Limiter
		for _, a := range bucketAlgorithms {
			if l, err := newForTests(Config{Algorithm: a, Limit: limit, TTL: math.MaxInt64}); err == nil {
				lims = append(lims, l)
			}
		}
		if len(lims) == 0 {
			continue
		}
		last := int64(math.MaxInt64) // the token bucket's time may end earlier
		if rng.IntN(2) == 0 || len(lims) < 3 {
			lims = []*Limiter{lims[0], lims[len(lims)-1]}
		} else {
			last = lastFull(lims[1].policyOf(0).alg.(*tokenBucket))
		}
		for range 300 {
			now := rng.Int64() >> rng.IntN(63)
			if rng.IntN(8) == 0 {
				now = last - now
			}
			now = min(now, last)
			cost := 1 + rng.IntN(int(lims[0].policyOf(0).burst))
			want := lims[0].Key("k").TakeAt(now, cost)
			for _, l := range lims[1:] {
				mustEqual(t, want, l.Key("k").TakeAt(now, cost), "%T, %v, at %d", l.policyOf(0).alg, limit, now)
			}
		}
	}
}
