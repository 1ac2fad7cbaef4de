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

// A penaltyTracer is a tracer of limiters with penalties: blocks by hand and by denials,
// denials that count, TakeAll, refunds and resets in between.
type penaltyTracer struct {
	*tracer
	older  bool
	keys   []string
	gate   *Limiter // denies every TakeAll that it has a charge in
	closed *oracle.Model

	tally Stats // what Stats must say
	seen  penaltySights
}

// penaltySights says what the traces of a test have met.
type penaltySights struct{ admitted, denied, byBlock, byDenial, older int }

func penaltyName(c Config) string {
	return fmt.Sprintf("for=%t,count=%t", c.BlockFor > 0, c.CountDenied)
}

// randomPenalty draws a limit that a few calls exhaust, mostly, and the time of a block.
func randomPenalty(rng *rand.Rand, variant, penalty Config) Config {
	c := randomConfig(rng, variant)
	if rng.IntN(4) > 0 {
		offset := c.Offset
		c.Limit = smallLimit(rng, c.Algorithm)
		c.Offset = offset % c.Limit.Period
	}
	c.CountDenied = penalty.CountDenied
	if penalty.BlockFor > 0 {
		c.BlockFor = randomBlock(rng, c.Limit)
	}
	return c
}

// randomBlock draws how long a block is: shorter, as long and longer than what a key owes,
// and rarely without end.
func randomBlock(rng *rand.Rand, l Limit) time.Duration {
	period, interval := int64(l.Period), int64(l.interval())
	blocks := []int64{
		1, 2, interval, period - 1, period, period + 1, 1 + rng.Int64N(period), 1 + rng.Int64N(2*min(period, 1<<60)),
		int64(time.Second), int64(time.Hour), 1 << 61, math.MaxInt64,
	}
	n := len(blocks)
	if rng.IntN(8) > 0 {
		n -= 2
	}
	return time.Duration(max(1, blocks[rng.IntN(n)]))
}

func newPenaltyTracer(tb testing.TB, rng *rand.Rand, c Config, older bool) *penaltyTracer {
	tr := &penaltyTracer{tracer: newTracer(tb, rng, c, older), older: older, keys: []string{"a", "b", "c"}}
	oc := oracleConfig(c)
	oc.BlockEnd = 1<<62 - 4 // what 62 bits can tell, less the three words that mean something else
	tr.model = newCounting(oc, tr.lim.policyOf(0))
	tr.gate = mustNew(tb, Config{Limit: DenyAll, Clock: tr.clock})
	tr.closed = newOracle(Config{Limit: DenyAll})
	return tr
}

// count adds a decision to the statistics.
func (tr *penaltyTracer) count(allowed, blocked bool, cost int64) {
	switch {
	case allowed:
		tr.seen.admitted++
	case blocked:
		tr.seen.byBlock++
	default:
		tr.seen.denied++
	}
	if cost == 0 {
		return
	}
	if allowed {
		tr.tally.Admitted++
	} else {
		tr.tally.Denied++
		if blocked && 0 < cost && cost <= int64(tr.lim.policyOf(0).burst) {
			tr.tally.Blocked++
		}
	}
}

// call makes one call, in one of the three ways to make it, and compares.
func (tr *penaltyTracer) call(key string, cost int, back int64) {
	at := max(0, tr.now-back)
	k := tr.lim.Key(key)
	blocked := tr.model.Blocked(key, at)
	look := fromOracle(tr.model.Peek(key, at, int64(cost)))
	want := fromOracle(tr.model.Take(key, at, int64(cost)))
	tr.note("%s at %d cost %d: %+v", key, at, cost, want)
	tr.equal(look, peekAt(tr.lim, k.id, at, cost), "Peek")
	if blocked || look.Allowed {
		require.Equal(tr.tb, look, want, "the model itself: a Peek is the next Take")
	}
	tr.count(want.Allowed, blocked, int64(cost))
	if !blocked && tr.model.Blocked(key, at) {
		tr.seen.byDenial++
	}
	if back != 0 {
		tr.seen.older++
	}
	switch way := tr.rng.IntN(4); {
	case way == 0:
		require.Equal(tr.tb, want.Allowed, k.AllowAt(at, cost), "AllowAt\n%s", tr)
	case way == 1 && !tr.older: // see step
		tr.equalAll(want, TakeAll(Charge{k, cost}), "TakeAll")
	default:
		tr.equal(want, k.TakeAt(at, cost), "Take")
	}
	if back == 0 && tr.swept != nil {
		tr.callSwept(key, cost, want)
	}
	tr.checkRetry(k, at, cost, want)
	tr.look(key, at)
}

func (tr *penaltyTracer) callSwept(key string, cost int, want Decision) {
	switch tr.rng.IntN(3) {
	case 0:
		require.Equal(tr.tb, want.Allowed, tr.swept.AllowN(key, cost), "AllowN after a sweep\n%s", tr)
	case 1:
		tr.equalAll(want, TakeAll(Charge{tr.swept.Key(key), cost}), "TakeAll after a sweep")
	default:
		tr.equal(want, tr.swept.Take(key, cost), "Take after a sweep")
	}
	tr.swept.Sweep()
}

// equalAll compares a TakeAll of one charge with what Take would have said.
func (tr *penaltyTracer) equalAll(want Decision, got AllDecision, what string) {
	all := AllDecision{Allowed: want.Allowed, Remaining: want.Remaining, RetryAfter: want.RetryAfter}
	if want.Allowed {
		all.Denied = -1
	}
	require.Equal(tr.tb, all, got, "%s under %v\n%s", what, tr.cfg.Limit, tr)
}

// checkRetry peeks at the end of the wait and 1 ns before, on both limiters.
func (tr *penaltyTracer) checkRetry(k Key, at int64, cost int, d Decision) {
	if d.Allowed || d.RetryAfter >= math.MaxInt64-time.Duration(at) {
		return
	}
	retry := at + int64(d.RetryAfter)
	for _, l := range []*Limiter{tr.lim, tr.swept} {
		if l == nil {
			continue
		}
		id := k.id
		if l == tr.swept {
			id = l.hash.string(tr.keys[0])
			for _, key := range tr.keys {
				if tr.lim.Key(key) == k {
					id = l.hash.string(key)
				}
			}
		}
		require.True(tr.tb, peekAt(l, id, retry, cost).Allowed, "at RetryAfter\n%s", tr)
		require.False(tr.tb, peekAt(l, id, retry-1, cost).Allowed, "1 ns before RetryAfter\n%s", tr)
	}
}

// look compares what is left of a key, on both limiters.
func (tr *penaltyTracer) look(key string, at int64) {
	want := fromOracle(tr.model.Peek(key, at, 0))
	tr.equal(want, peekAt(tr.lim, tr.lim.Key(key).id, at, 0), "Peek")
	if tr.swept != nil {
		tr.equal(want, peekAt(tr.swept, tr.swept.Key(key).id, at, 0), "Peek after a sweep")
		if idle := tr.model.Idle(key, at); idle != (want.ResetAfter == 0) {
			tr.tb.Fatalf("the model contradicts itself: idle %v, %+v", idle, want)
		}
	}
}

// each does the same to both limiters, and compares what is left of the key.
func (tr *penaltyTracer) each(key string, f func(k Key)) {
	f(tr.lim.Key(key))
	if tr.swept != nil {
		f(tr.swept.Key(key))
		tr.look(key, tr.now)
		tr.swept.Sweep()
	}
	tr.look(key, tr.now)
}

// upTo makes a partial take.
func (tr *penaltyTracer) upTo(key string, cost int, back int64) {
	at := max(0, tr.now-back)
	blocked := tr.model.Blocked(key, at)
	d := tr.takeUpTo(key, cost, back)
	tr.count(d.Allowed, blocked, int64(min(cost, 1))) // who is denied has been denied one unit
}

func (tr *penaltyTracer) block(key string) {
	d := randomBlock(tr.rng, tr.cfg.Limit)
	if tr.rng.IntN(8) == 0 {
		d = []time.Duration{0, -1, math.MinInt64}[tr.rng.IntN(3)]
	}
	want := tr.model.Block(key, tr.now, int64(d))
	tr.note("%s at %d blocked for %d: %v", key, tr.now, d, want)
	tr.each(key, func(k Key) { require.Equal(tr.tb, want, k.Block(d), "%s", tr) })
}

// takeAll makes one TakeAll for several keys, now and then with one that is always denied,
// so that all others are denied with it or left alone.
func (tr *penaltyTracer) takeAll() {
	var lims, swept []Charge
	var model []oracle.Charge
	for range 1 + tr.rng.IntN(4) {
		key, cost := tr.keys[tr.rng.IntN(len(tr.keys))], tr.cost()
		lims = append(lims, Charge{tr.lim.Key(key), cost})
		if tr.swept != nil {
			swept = append(swept, Charge{tr.swept.Key(key), cost})
		}
		model = append(model, oracle.Charge{Model: tr.model, Key: key, Now: tr.now, Cost: int64(cost)})
	}
	if tr.rng.IntN(4) == 0 {
		gate := Charge{tr.gate.Key("gate"), 1}
		lims, swept = append(lims, gate), append(swept, gate)
		model = append(model, oracle.Charge{Model: tr.closed, Key: "gate", Now: tr.now, Cost: 1})
	}
	before := tr.before(model)
	d := oracle.TakeAll(model)
	tr.countAll(before, d.Allowed)
	want := AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	line := fmt.Sprintf("at %d: %+v of", tr.now, want)
	for _, c := range model {
		line += fmt.Sprintf(" %s:%d", c.Key, c.Cost)
	}
	tr.note("%s", line)
	require.Equal(tr.tb, want, TakeAll(lims...), "%s", tr)
	if tr.swept != nil {
		require.Equal(tr.tb, want, TakeAll(swept...), "after a sweep\n%s", tr)
		tr.swept.Sweep()
	}
	for _, key := range tr.keys {
		tr.look(key, tr.now)
	}
}

// A judged claim is what is known of a claim before its TakeAll.
type judged struct {
	cost             int64
	allowed, blocked bool
}

// before judges each key's claim by itself.
func (tr *penaltyTracer) before(charges []oracle.Charge) map[string]judged {
	claims := map[string]judged{}
	for _, c := range charges {
		if c.Model == tr.model {
			j, more := claims[c.Key]
			if j.cost = c.Cost; more {
				j.cost = addCosts(c.Cost, claims[c.Key].cost)
			}
			j.blocked = tr.model.Blocked(c.Key, tr.now)
			j.allowed = tr.model.Peek(c.Key, tr.now, j.cost).Allowed
			claims[c.Key] = j
		}
	}
	return claims
}

// countAll counts the claims that are made, or denied themselves.
func (tr *penaltyTracer) countAll(claims map[string]judged, all bool) {
	for _, j := range claims {
		if all || !j.allowed {
			tr.count(j.allowed, j.blocked, j.cost)
		}
	}
}

// jump moves time on, often to around the end of a key's block or wait.
func (tr *penaltyTracer) jump() {
	if tr.rng.IntN(3) > 0 {
		tr.advance(tr.gap())
		return
	}
	d := tr.model.Peek(tr.keys[tr.rng.IntN(len(tr.keys))], tr.now, 0)
	wait := []int64{d.ResetAfter - 1, d.ResetAfter, d.ResetAfter + 1, d.RetryAfter - 1, d.RetryAfter}[tr.rng.IntN(5)]
	if wait > 0 && wait < math.MaxInt64-1 {
		tr.advance(wait)
	}
}

func (tr *penaltyTracer) step() {
	key := tr.keys[tr.rng.IntN(len(tr.keys))]
	if tr.rng.IntN(2) == 0 { // else hammer
		tr.jump()
	}
	switch op := tr.rng.IntN(24); {
	case op < 3:
		tr.refund(key, tr.cost())
	case op == 3:
		tr.block(key)
	case op == 4 && tr.resets:
		tr.note("%s at %d unblocked", key, tr.now)
		tr.model.Unblock(key)
		tr.each(key, Key.Unblock)
	case op == 5 && tr.resets:
		tr.note("%s at %d reset", key, tr.now)
		tr.model.Reset(key)
		tr.each(key, Key.Reset)
	case op < 10 && !tr.older:
		// It may clear away a block that is over, which is all that is left of the key.
		tr.takeAll()
	}
	back := int64(0)
	if tr.older && tr.rng.IntN(3) == 0 {
		back = 1 + tr.gap()
	}
	switch tr.rng.IntN(10) {
	case 0:
		tr.charge(key, back)
	case 1:
		tr.upTo(key, tr.cost(), back)
	}
	tr.call(key, tr.cost(), back)
	if tr.rng.IntN(10) == 0 { // a row of denials
		for range 6 {
			tr.call(key, 1+tr.rng.IntN(int(tr.lim.policyOf(0).burst)), back)
		}
	}
}

// finish compares the statistics.
func (tr *penaltyTracer) finish() {
	if !tr.cfg.Stats {
		return
	}
	for _, l := range []*Limiter{tr.lim, tr.swept} {
		if l != nil {
			s := l.Stats()
			require.Equal(tr.tb, tr.tally, Stats{Admitted: s.Admitted, Denied: s.Denied, Blocked: s.Blocked}, "%s", tr)
		}
	}
}

// penaltyOps is how many random steps each variant makes under each penalty.
func penaltyOps() int { return depth.Of(100, 600, 600) }

// TestModel_PenaltiesAreExact compares all variants under all penalties with the models:
// each call in each of the three ways to make it, what a Peek says before and after, and a
// limiter that is swept after every call.
func TestModel_PenaltiesAreExact(t *testing.T) {
	for _, variant := range variants {
		for _, older := range []bool{false, true} {
			t.Run(fmt.Sprintf("variant=%s/older=%v", variantName(variant), older), func(t *testing.T) {
				t.Parallel()
				rng := seeded.Rand(t)
				for _, penalty := range penalties {
					if !penalty.CountDenied || variant.Algorithm.windowed() {
						tracePenalty(t, rng, variant, penalty, older)
					}
				}
			})
		}
	}
}

func tracePenalty(t *testing.T, rng *rand.Rand, variant, penalty Config, older bool) {
	t.Helper()
	const steps = 100
	var all penaltySights
	for done := 0; done < penaltyOps(); done += steps {
		c := randomPenalty(rng, variant, penalty)
		for {
			if _, err := New(c); err == nil {
				break
			}
			c = randomPenalty(rng, variant, penalty)
		}
		c.Stats = rng.IntN(2) == 0
		tr := newPenaltyTracer(t, rng, c, older)
		for range steps {
			tr.step()
		}
		tr.finish()
		all.add(tr.seen)
	}
	require.Equal(t, older, all.older > 0)
	if testing.Short() {
		return // too few to meet everything
	}
	require.Positive(t, all.admitted, "%s", penaltyName(penalty))
	require.Positive(t, all.byBlock, "no call met a block: %s", penaltyName(penalty))
	require.Equal(t, penalty.BlockFor > 0, all.byDenial > 0, "%+v %s", all, penaltyName(penalty))
}

func (s *penaltySights) add(more penaltySights) {
	s.byBlock += more.byBlock
	s.byDenial += more.byDenial
	s.denied += more.denied
	s.admitted += more.admitted
	s.older += more.older
}
