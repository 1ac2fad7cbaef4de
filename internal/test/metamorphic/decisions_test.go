package metamorphic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// A tracer drives a limiter and its model through one random trace, and demands
// the same decision from both at every step.
type tracer struct {
	*trace
	lim   *sluice.Limiter
	swept *sluice.Limiter // the same, swept after every call; nil in traces with older times
	model *oracle.Model
	told  *toldClock
	now   int64
	stop  int64 // time goes no further: the model does not know the end of a limiter's

	wide   bool // a sliding window in two words
	resets bool // Reset makes keys as if new, with older times, too

	first sluice.Config // of the recording
	older bool
	calls []call
	keys  map[string]bool         // that there have been calls of
	on    map[string]sluice.Limit // that keys have as their own
	under map[string]sluice.Limit // that keys are under: their own, or one that a call has brought
	floor int64                   // when a key was last put under another limit, which drops what is idle then
}

func newTracer(tb testing.TB, rng *rand.Rand, c sluice.Config, older bool) *tracer {
	now, stop := int64(0), int64(1<<61+1<<59)
	if c.Algorithm == sluice.TokenBucket {
		stop = min(stop, lastFull(tb, c)-1<<60)
	}
	if rng.IntN(4) > 0 && stop > start.UnixNano() { // else in 1970
		now = start.UnixNano()
	}
	tr := newPlayer(tb, c, older, now, 1<<rng.IntN(3)) // few, since a sweep locks them all
	tr.Rng, tr.stop = rng, stop
	return tr
}

// newPlayer returns a tracer for given calls.
func newPlayer(tb testing.TB, c sluice.Config, older bool, now int64, shards int) *tracer {
	tr := &tracer{trace: &trace{TB: tb}, now: now, first: c, older: older, floor: now,
		keys: map[string]bool{}, on: map[string]sluice.Limit{}, under: map[string]sluice.Limit{}}
	tr.told = &toldClock{ManualClock: sluice.NewManualClock(time.Unix(0, now))}
	tr.Clock = tr.told
	c.Clock, c.Shards = tr.Clock, shards
	switch {
	case older:
		// A sweep may forgive what an older time still sees: keep everything.
		c.TTL = math.MaxInt64
	case c.MaxKeys > 0:
		c.TTL = 1
	default:
		tr.swept = mustNew(tb, c)
		c.TTL = 1
	}
	tr.Cfg, tr.lim = c, mustNew(tb, c)
	tr.model = traces.NewCounting(oracleConfig(c))
	// A wide sliding window remembers across a reset which window it was in, and
	// charges an older time there; its model starts from nothing.
	tr.wide = traces.WordsOf(oracleConfig(c)).Wide
	tr.resets = !(older && tr.wide)
	return tr
}

// record lets a failure be written as calls, if all of them are made by do.
func (tr *tracer) record() *tracer {
	tr.TB = &recorder{tr.TB, tr}
	return tr
}

// do makes one call and compares.
func (tr *tracer) do(c call) (got sluice.Decision) {
	tr.calls = append(tr.calls, c)
	for _, key := range strings.Split(c.key, ",") {
		tr.keys[key] = true
	}
	if c.now > tr.now {
		tr.now = c.now
		tr.Clock.Set(time.Unix(0, tr.now))
	}
	cost := int(c.cost)
	switch c.name {
	case "take":
		tr.bring(c.key, c.limit)
		got = tr.step(c.key, c.limit, cost, c.ago)
	case "allow":
		tr.bring(c.key, c.limit)
		tr.allow(c)
	case "peek":
		tr.peek(c)
	case "debit":
		tr.bring(c.key, sluice.Limit{})
		got = tr.charge(c.key, cost, c.ago)
	case "upto":
		tr.bring(c.key, sluice.Limit{})
		got = tr.takeUpTo(c.key, cost, c.ago)
	case "all":
		tr.takeAll(c)
	case "refund":
		tr.refund(c.key, cost)
	case "reset":
		tr.reset(c.key)
	default:
		tr.change(c)
	}
	if c.want != "" {
		tr.Equal(decisionOf(tr.TB, c.want, tr.Cfg.Limit.Capacity()), got, c.String())
	}
	tr.noteEvictions()
	return got
}

// A toldClock is one that says for a while that it is earlier, as if a call had lost the processor after it
// had read the time. A limiter takes it for a user's own.
type toldClock struct {
	*sluice.ManualClock
	back int64
}

func (c *toldClock) Now() int64 { return c.ManualClock.Now() - c.back }

// earlier makes a call at a time before the present one, or after it if back is negative.
func (c *toldClock) earlier(back int64, call func()) {
	c.back = back
	call()
	c.back = 0
}

// lastFull is the last time at which a full charge is paid back before the tick that time ends in.
func lastFull(tb testing.TB, c sluice.Config) int64 {
	clock := &toldClock{ManualClock: sluice.NewManualClock(time.Unix(0, 0))}
	c.TTL, c.Clock = math.MaxInt64, clock
	l := mustNew(tb, c)
	known, never := int64(0), int64(math.MaxInt64)
	charge := func(i uint64, at int64) (reset time.Duration) {
		clock.earlier(-at, func() { reset = l.KeyUint64(i).Debit(capacity(c)).ResetAfter })
		return reset
	}
	if charge(0, never) != sluice.Never {
		return never - 1
	}
	for i := uint64(1); never-known > 1; i++ {
		middle := known + (never-known)/2
		if charge(i, middle) == sluice.Never {
			never = middle
		} else {
			known = middle
		}
	}
	return known - 1
}

func (tr *tracer) gap() int64 {
	return traces.RandomGap(tr.Rng, tracedLimit(tr.Cfg.Limit), tr.Cfg.Offset, tr.now)
}

func (tr *tracer) cost() int { return traces.RandomCost(tr.Rng, tr.Cfg.Limit.Capacity()) }

// step makes one call and compares. back is how far before the newest time it is
// made.
func (tr *tracer) step(key string, brings sluice.Limit, cost int, back int64) sluice.Decision {
	at := max(0, tr.now-back)
	k := tr.handle(tr.lim, key, brings)
	seen := k.PeekAt(at, cost)
	want := tr.soft(tr.model.Guess(guess(seen)).Take(key, at, int64(cost)), cost)
	tr.Note("%s at %d cost %d: %+v", key, at, cost, want)
	if !tr.Cfg.CountDenied && tr.Cfg.BlockFor == 0 {
		tr.Equal(want, seen, "Peek")
	}
	got := k.TakeAt(at, cost)
	tr.Equal(want, got, "Take")
	if back == 0 && tr.swept != nil {
		tr.Equal(want, tr.handle(tr.swept, key, brings).Take(cost), "Take after a sweep")
		tr.swept.Sweep()
	}
	if !got.Allowed && got.RetryAfter < math.MaxInt64-time.Duration(at) {
		retry := at + int64(got.RetryAfter)
		tr.Equal(true, k.PeekAt(retry, cost).Allowed, "at RetryAfter")
		tr.Equal(false, k.PeekAt(retry-1, cost).Allowed, "1 ns before RetryAfter")
	}
	return got
}

// soft makes of a model's decision what Config.Soft does.
func (tr *tracer) soft(o oracle.Decision, cost int) sluice.Decision {
	d := fromOracle(o)
	if n := tr.Cfg.Soft; n > 0 {
		after := d.Remaining
		if cost == 0 {
			after--
		}
		d.OverSoft = d.Allowed && after < n
		d.Limit, d.Remaining = d.Limit-n, max(0, d.Remaining-n)
	}
	return d
}

// advance moves time on, but stays where the end of time is out of sight.
func (tr *tracer) advance(d int64) {
	if d > 0 && d < tr.stop-tr.now {
		tr.now += d
		tr.Clock.Set(time.Unix(0, tr.now))
	}
}

// refund gives back units of key, at the clock's time, and compares what is left.
func (tr *tracer) refund(key string, cost int) {
	tr.model.Refund(key, tr.now, int64(cost))
	tr.Note("%s refund %d", key, cost)
	tracked := tr.lim.Len()
	tr.lim.Key(key).Refund(cost)
	got := tr.handle(tr.lim, key, tr.under[key]).Peek(0)
	want := tr.soft(tr.model.Guess(guess(got)).Peek(key, tr.now, 0), 0)
	tr.Equal(want, got, "Peek after a refund")
	tr.Equal(tracked, tr.lim.Len(), "a refund tracks nothing")
	if tr.swept != nil {
		tr.swept.Key(key).Refund(cost)
		tr.Equal(want, tr.handle(tr.swept, key, tr.under[key]).Peek(0), "Peek after a refund, swept")
		tr.swept.Sweep()
	}
}

// back draws how far before the newest time a call is made. Now and then it is made
// after it, as AllowAt may, which makes later calls and refunds the older ones.
func (tr *tracer) back() int64 {
	switch tr.Rng.IntN(16) {
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
		key := keys[tr.Rng.IntN(len(keys))]
		tr.advance(tr.gap())
		c := call{now: tr.now, key: key}
		if older {
			c.ago = tr.back()
		}
		make := func(name string, cost int, ago int64) {
			c := c
			c.name, c.cost, c.ago = name, int64(cost), ago
			tr.do(c)
		}
		if tr.Rng.IntN(6) == 0 {
			make("refund", tr.cost(), 0)
		}
		switch tr.Rng.IntN(12) {
		case 0:
			make("debit", tr.debt(key, max(0, tr.now-c.ago)), c.ago)
		case 1:
			make("upto", tr.cost(), c.ago)
		}
		make("take", tr.cost(), c.ago)
		if tr.Rng.IntN(50) == 0 && tr.resets {
			make("reset", 0, 0)
		}
	}
}

func (tr *tracer) reset(key string) {
	tr.model.Reset(key)
	tr.lim.Key(key).Reset()
	if tr.swept != nil {
		tr.swept.Key(key).Reset()
	}
}

// TestModel_EveryDecisionIsExact compares all variants with their exact models, and a limiter that is swept after every call with one that is not.
func TestModel_EveryDecisionIsExact(t *testing.T) {
	const steps = 200
	for _, variant := range variants {
		for _, older := range []bool{false, true} {
			t.Run(fmt.Sprintf("variant=%s/older=%v", variant.Name(), older), func(t *testing.T) {
				t.Parallel()
				rng := seeded.Rand(t)
				for range max(1, depth.Ops()/2/steps/variant.Sharing()) {
					c := valid(func() sluice.Config { return variant.random(rng) })
					newTracer(t, rng, c, older).record().run(steps, older)
				}
			})
		}
	}
}

// TestModel_IdleJumpToTheEndOfTime: however long a key idles, it is fresh, and
// nothing overflows.
func TestModel_IdleJumpToTheEndOfTime(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variant.Name(), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range 500 {
				c := variant.random(rng)
				c.TTL = math.MaxInt64
				l, err := sluice.New(c)
				if err != nil {
					continue
				}
				k := l.Key("k")
				// A bucket that takes longer to fill than time is left is not idle in it.
				at := int64(0)
				require.True(t, k.AllowAt(at, capacity(c)))
				if d := k.PeekAt(0, 1); d.ResetAfter == sluice.Never {
					continue
				}
				want := l.Key("fresh").PeekAt(math.MaxInt64, capacity(c))
				require.True(t, want.Allowed)
				got := k.TakeAt(math.MaxInt64, capacity(c))
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
		if a := variant.Algorithm; a != oracle.FixedWindow && a != oracle.SlidingWindow && !variant.Interval {
			continue
		}
		t.Run("variant="+variant.Name(), func(t *testing.T) {
			rng := seeded.Rand(t)
			compared := 0
			for range depth.Ops() / 200 {
				c := variant.random(rng)
				l, err := sluice.New(c)
				if err != nil {
					continue
				}
				span := 4 * min(int64(c.Limit.Period), math.MaxInt64/4)
				from := int64(0)
				if rng.IntN(2) == 0 && traces.WordsOf(oracleConfig(c)).Lasts {
					from = math.MaxInt64 - span
				}
				model := newOracle(c)
				for range 50 {
					now, cost := from+rng.Int64N(span+1), 1+rng.IntN(capacity(c))
					if rng.IntN(2) == 0 {
						cost = 1 + rng.IntN(min(4, capacity(c)))
					}
					got := l.Key("k").TakeAt(now, cost)
					want := fromOracle(model.Guess(guess(got)).Take("k", now, int64(cost)))
					traces.Equal(t, want, got, "%+v at %d cost %d", c, now, cost)
					from = max(from, now-span/8)
					span = min(span, math.MaxInt64-from)
					compared++
				}
			}
			require.Greater(t, compared, depth.Ops()/20)
		})
	}
}

// TestModel_BucketsAgreeWithGCRA: GCRA, token bucket and leaky bucket decide
// alike, also at the far ends of the time range that the models do not cover.
func TestModel_BucketsAgreeWithGCRA(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() / 1000 {
		limit := randomLimit(rng, sluice.GCRA)
		var lims []*sluice.Limiter
		for _, a := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket} {
			if l, err := sluice.New(sluice.Config{Algorithm: a, Limit: limit, TTL: math.MaxInt64}); err == nil {
				lims = append(lims, l)
			}
		}
		if len(lims) == 0 {
			continue
		}
		last := int64(math.MaxInt64) // the token bucket's time may end earlier
		if rng.IntN(2) == 0 || len(lims) < 3 {
			lims = []*sluice.Limiter{lims[0], lims[len(lims)-1]}
		} else {
			last = lastFull(t, lims[1].Config())
		}
		for range 300 {
			now := rng.Int64() >> rng.IntN(63)
			if rng.IntN(8) == 0 {
				now = last - now
			}
			now = min(now, last)
			cost := 1 + rng.IntN(limit.Capacity())
			want := lims[0].Key("k").TakeAt(now, cost)
			for _, l := range lims[1:] {
				traces.Equal(t, want, l.Key("k").TakeAt(now, cost), "%v, %v, at %d", l.Config().Algorithm, limit, now)
			}
		}
	}
}
