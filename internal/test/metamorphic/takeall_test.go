package metamorphic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// An allTracer drives several limiters on one clock and their models through one
// random trace of TakeAll, with other calls in between.
type allTracer struct {
	*tracer // its configuration and limiter are the first of these
	lims    []*sluice.Limiter
	swept   []*sluice.Limiter // the same, swept after every call
	models  []*oracle.Model

	allowed, denied int
}

// smallLimit draws a limit that ten charges can exhaust.
func smallLimit(rng *rand.Rand, a sluice.Algorithm) sluice.Limit {
	l := randomLimit(rng, a)
	l.Rate, l.Period = 1+rng.IntN(12), max(l.Period, 10) // the end of time is far
	l.Burst = 0
	if a <= sluice.LeakyBucket {
		l.Burst = rng.IntN(20)
	}
	return l
}

// endsEarly reports whether a full charge may not be paid back before time ends, which the
// models do not know of.
func endsEarly(tb testing.TB, c sluice.Config) bool {
	return c.Algorithm == sluice.TokenBucket && capacity(c) > 0 && lastFull(tb, c) < 1<<61
}

func newAllTracer(tb testing.TB, rng *rand.Rand) *allTracer {
	tr := &allTracer{tracer: &tracer{trace: &trace{TB: tb, Rng: rng, Clock: sluice.NewManualClock(start)}, now: start.UnixNano(), stop: math.MaxInt64}}
	for range 1 + rng.IntN(4) {
		c := sluice.Config{Algorithm: sluice.Algorithm(rng.IntN(int(sluice.FixedWindow) + 1)), Clock: tr.Clock, TTL: 1}
		switch rng.IntN(8) {
		case 0:
			c.Limit = []sluice.Limit{sluice.Unlimited, sluice.DenyAll}[rng.IntN(2)]
		case 1:
			c.Limit = randomLimit(rng, c.Algorithm)
		default:
			c.Limit = smallLimit(rng, c.Algorithm)
		}
		if _, err := sluice.New(c); err != nil || endsEarly(tb, c) {
			c.Limit = sluice.PerSecond(5)
		}
		tr.lims = append(tr.lims, mustNew(tb, c))
		tr.swept = append(tr.swept, mustNew(tb, c))
		tr.models = append(tr.models, newOracle(c))
		if tr.lim == nil || capacity(tr.Cfg) == 0 {
			tr.Cfg, tr.lim = c, tr.lims[len(tr.lims)-1]
		}
	}
	if capacity(tr.Cfg) == 0 {
		tr.Cfg.Limit = sluice.PerSecond(1) // for gap
	}
	return tr
}

// draw draws up to ten charges, often for the same key.
func (tr *allTracer) draw() (all, swept []sluice.Charge, model []oracle.Charge) {
	for range tr.Rng.IntN(11) {
		i, key := tr.Rng.IntN(len(tr.lims)), fmt.Sprint("key", tr.Rng.IntN(3))
		cost := 1
		if b := capacity(tr.lims[i].Config()); tr.Rng.IntN(3) == 0 && b > 0 {
			costs := []int{0, 0, 1, 2, 1 + tr.Rng.IntN(b), b, b + 1, -1, math.MaxInt, math.MinInt}
			cost = costs[tr.Rng.IntN(min(len(costs), 5+tr.Rng.IntN(40)))]
		} else if b == 0 {
			cost = []int{0, 1, 5, -1, math.MaxInt}[tr.Rng.IntN(5)]
		}
		all = append(all, sluice.Charge{Key: tr.lims[i].Key(key), Cost: cost})
		swept = append(swept, sluice.Charge{Key: tr.swept[i].Key(key), Cost: cost})
		model = append(model, oracle.Charge{Model: tr.models[i], Key: key, Now: tr.now, Cost: int64(cost)})
	}
	return all, swept, model
}

// take makes one TakeAll at the clock's time and compares.
func (tr *allTracer) take(all, swept []sluice.Charge, model []oracle.Charge) sluice.AllDecision {
	tracked := tr.tracked()
	for i := range model {
		model[i].Now = tr.now
		model[i].Guess = guess(all[i].Key.Peek(all[i].Cost))
	}
	d := oracle.TakeAll(model)
	want := sluice.AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	tr.Note("%+v of %+v", want, slices.Clone(model))
	each := make([]sluice.Decision, tr.Rng.IntN(len(all)+3))
	for i := range each {
		each[i] = sluice.Decision{Limit: i, RetryAfter: time.Duration(-i)} // of an earlier call
	}
	beyond := slices.Clone(each[min(len(all), len(each)):])
	tr.Equal(want, sluice.TakeAllReservations(nil, each, all...), "TakeAllReservations without reservations")
	tr.Equal(want, sluice.TakeAll(swept...), "TakeAll after a sweep")
	for i := range each[:min(len(all), len(each))] {
		tr.Equal(fromOracle(d.Each[i]), each[i], fmt.Sprint("charge ", i))
	}
	require.Equal(tr.TB, beyond, each[min(len(all), len(each)):])
	if !want.Allowed {
		tr.Equal(tracked, tr.tracked(), "a denied call tracks nothing")
	}
	for i := range tr.lims {
		tr.swept[i].Sweep()
		for key := range 3 {
			tr.look(i, fmt.Sprint("key", key))
		}
	}
	return want
}

func (tr *allTracer) tracked() (n int) {
	for _, l := range tr.lims {
		n += l.Len()
	}
	return n
}

// look compares what a Peek sees.
func (tr *allTracer) look(i int, key string) {
	got := tr.lims[i].Key(key).Peek(0)
	want := fromOracle(tr.models[i].Guess(guess(got)).Peek(key, tr.now, 0))
	tr.Equal(want, got, "Peek")
	tr.Equal(want, tr.swept[i].Key(key).Peek(0), "Peek after a sweep")
}

// retry repeats denied charges 1 ns before they would be admitted, and then.
func (tr *allTracer) retry(wait time.Duration, all, swept []sluice.Charge, model []oracle.Charge) {
	before := tr.now
	if wait > 1 {
		if tr.advance(int64(wait) - 1); tr.now == before {
			return // out of sight
		}
		d := tr.take(all, swept, model)
		require.False(tr.TB, d.Allowed, "1 ns before RetryAfter\n%s", tr)
		require.Equal(tr.TB, time.Duration(1), d.RetryAfter, "%s", tr)
	}
	tr.advance(1)
	require.True(tr.TB, tr.take(all, swept, model).Allowed, "at RetryAfter\n%s", tr)
}

// advance stays where no clock ends, whatever its limit.
func (tr *allTracer) advance(d int64) {
	if d < 1<<61-1<<56-tr.now {
		tr.tracer.advance(d)
	}
}

func (tr *allTracer) step() {
	tr.advance(tr.gap())
	i, key := tr.Rng.IntN(len(tr.lims)), fmt.Sprint("key", tr.Rng.IntN(3))
	both := []*sluice.Limiter{tr.lims[i], tr.swept[i]}
	cost := 1 + tr.Rng.IntN(max(1, min(10, capacity(tr.lims[i].Config()))))
	switch tr.Rng.IntN(8) {
	case 0:
		for _, l := range both {
			l.Key(key).Refund(cost)
		}
		tr.models[i].Refund(key, tr.now, int64(cost))
	case 1:
		want := fromOracle(tr.models[i].Take(key, tr.now, int64(cost)))
		for _, l := range both {
			tr.Equal(want, l.Take(key, cost), "Take")
		}
	case 2:
		for _, l := range both {
			l.Key(key).Reset()
		}
		tr.models[i].Reset(key)
	}
	all, swept, model := tr.draw()
	d := tr.take(all, swept, model)
	if d.Allowed {
		tr.allowed++
		return
	}
	tr.denied++
	if d.RetryAfter < sluice.Never && tr.Rng.IntN(2) == 0 {
		tr.retry(d.RetryAfter, all, swept, model)
	}
}

// TestModel_TakeAllIsExact compares every TakeAll with the models, on limiters of
// all algorithms, and that of limiters which are swept after every call.
func TestModel_TakeAllIsExact(t *testing.T) {
	rng := seeded.Rand(t)
	allowed, denied := 0, 0
	for range depth.Ops() / 250 {
		tr := newAllTracer(t, rng)
		for range 100 {
			tr.step()
		}
		allowed += tr.allowed
		denied += tr.denied
	}
	require.Greater(t, allowed, denied/10, "the traces must reach both")
	require.Greater(t, denied, allowed/10, "the traces must reach both")
	t.Logf("%d admitted, %d denied", allowed, denied)
}
