package metamorphic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// A penaltyTracer is a tracer of limiters with penalties: blocks by hand and by denials,
// denials that count, TakeAll, refunds and resets in between.
type penaltyTracer struct {
	*tracer
	names  []string
	gate   *sluice.Limiter // denies every TakeAll that it has a charge in
	closed *oracle.Model

	tally sluice.Stats // what Stats must say
	seen  penaltySights
}

// penaltySights says what the traces of a test have met.
type penaltySights struct{ admitted, denied, byBlock, byDenial, older int }

// randomPenalty draws a limit that a few calls exhaust, mostly, and the time of a block.
func randomPenalty(rng *rand.Rand, variant variant, penalty traces.Penalty) sluice.Config {
	c := variant.random(rng)
	if rng.IntN(4) > 0 {
		offset := c.Offset
		c.Limit = smallLimit(rng, c.Algorithm)
		c.Offset = offset % c.Limit.Period
	}
	c.CountDenied = penalty.Counts
	if penalty.Blocks {
		c.BlockFor = randomBlock(rng, c.Limit)
	}
	return c
}

// randomBlock draws how long a block is: shorter, as long and longer than what a key owes,
// and rarely without end.
func randomBlock(rng *rand.Rand, l sluice.Limit) time.Duration {
	period, interval := int64(l.Period), tracedLimit(l).Interval()
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

func newPenaltyTracer(tb testing.TB, rng *rand.Rand, c sluice.Config, older bool) *penaltyTracer {
	tr := &penaltyTracer{tracer: newTracer(tb, rng, c, older), names: []string{"a", "b", "c"}}
	oc := oracleConfig(c)
	oc.BlockEnd = 1<<62 - 4 // what 62 bits can tell, less the three words that mean something else
	tr.model = traces.NewCounting(oc)
	tr.gate = mustNew(tb, sluice.Config{Limit: sluice.DenyAll, Clock: tr.Clock})
	tr.closed = newOracle(sluice.Config{Limit: sluice.DenyAll})
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
		if blocked {
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
	tr.Note("%s at %d cost %d: %+v", key, at, cost, want)
	tr.Equal(look, k.PeekAt(at, cost), "Peek")
	if blocked || look.Allowed {
		require.Equal(tr.TB, look, want, "the model itself: a Peek is the next Take")
	}
	tr.count(want.Allowed, blocked, int64(cost))
	if !blocked && tr.model.Blocked(key, at) {
		tr.seen.byDenial++
	}
	if back != 0 {
		tr.seen.older++
	}
	switch way := tr.Rng.IntN(4); {
	case way == 0:
		require.Equal(tr.TB, want.Allowed, k.AllowAt(at, cost), "AllowAt\n%s", tr)
	case way == 1 && !tr.older: // see step
		tr.equalAll(want, sluice.TakeAll(sluice.Charge{Key: k, Cost: cost}), "TakeAll")
	default:
		tr.Equal(want, k.TakeAt(at, cost), "Take")
	}
	if back == 0 && tr.swept != nil {
		tr.callSwept(key, cost, want)
	}
	tr.checkRetry(key, at, cost, want)
	tr.look(key, at)
}

func (tr *penaltyTracer) callSwept(key string, cost int, want sluice.Decision) {
	switch tr.Rng.IntN(3) {
	case 0:
		require.Equal(tr.TB, want.Allowed, tr.swept.AllowN(key, cost), "AllowN after a sweep\n%s", tr)
	case 1:
		tr.equalAll(want, sluice.TakeAll(sluice.Charge{Key: tr.swept.Key(key), Cost: cost}), "TakeAll after a sweep")
	default:
		tr.Equal(want, tr.swept.Take(key, cost), "Take after a sweep")
	}
	tr.swept.Sweep()
}

// equalAll compares a TakeAll of one charge with what Take would have said.
func (tr *penaltyTracer) equalAll(want sluice.Decision, got sluice.AllDecision, what string) {
	all := sluice.AllDecision{Allowed: want.Allowed, Remaining: want.Remaining, RetryAfter: want.RetryAfter}
	if want.Allowed {
		all.Denied = -1
	}
	require.Equal(tr.TB, all, got, "%s under %v\n%s", what, tr.Cfg.Limit, tr)
}

// checkRetry peeks at the end of the wait and 1 ns before, on both limiters.
func (tr *penaltyTracer) checkRetry(key string, at int64, cost int, d sluice.Decision) {
	if d.Allowed || d.RetryAfter >= math.MaxInt64-time.Duration(at) {
		return
	}
	retry := at + int64(d.RetryAfter)
	for _, l := range []*sluice.Limiter{tr.lim, tr.swept} {
		if l == nil {
			continue
		}
		k := l.Key(key)
		require.True(tr.TB, k.PeekAt(retry, cost).Allowed, "at RetryAfter\n%s", tr)
		require.False(tr.TB, k.PeekAt(retry-1, cost).Allowed, "1 ns before RetryAfter\n%s", tr)
	}
}

// look compares what is left of a key, on both limiters.
func (tr *penaltyTracer) look(key string, at int64) {
	want := fromOracle(tr.model.Peek(key, at, 0))
	tr.Equal(want, tr.lim.Key(key).PeekAt(at, 0), "Peek")
	if tr.swept != nil {
		tr.Equal(want, tr.swept.Key(key).PeekAt(at, 0), "Peek after a sweep")
		if idle := tr.model.Idle(key, at); idle != (want.ResetAfter == 0) {
			tr.TB.Fatalf("the model contradicts itself: idle %v, %+v", idle, want)
		}
	}
}

// each does the same to both limiters, and compares what is left of the key.
func (tr *penaltyTracer) each(key string, f func(k sluice.Key)) {
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
	d := randomBlock(tr.Rng, tr.Cfg.Limit)
	if tr.Rng.IntN(8) == 0 {
		d = []time.Duration{0, -1, math.MinInt64}[tr.Rng.IntN(3)]
	}
	want := tr.model.Block(key, tr.now, int64(d))
	tr.Note("%s at %d blocked for %d: %v", key, tr.now, d, want)
	tr.each(key, func(k sluice.Key) { require.Equal(tr.TB, want, k.Block(d), "%s", tr) })
}

// takeAll makes one TakeAll for several keys, now and then with one that is always denied,
// so that all others are denied with it or left alone.
func (tr *penaltyTracer) takeSome() {
	var lims, swept []sluice.Charge
	var model []oracle.Charge
	for range 1 + tr.Rng.IntN(4) {
		key, cost := tr.names[tr.Rng.IntN(len(tr.names))], tr.cost()
		lims = append(lims, sluice.Charge{Key: tr.lim.Key(key), Cost: cost})
		if tr.swept != nil {
			swept = append(swept, sluice.Charge{Key: tr.swept.Key(key), Cost: cost})
		}
		model = append(model, oracle.Charge{Model: tr.model, Key: key, Now: tr.now, Cost: int64(cost)})
	}
	if tr.Rng.IntN(4) == 0 {
		gate := sluice.Charge{Key: tr.gate.Key("gate"), Cost: 1}
		lims, swept = append(lims, gate), append(swept, gate)
		model = append(model, oracle.Charge{Model: tr.closed, Key: "gate", Now: tr.now, Cost: 1})
	}
	before := tr.before(model)
	d := oracle.TakeAll(model)
	tr.countAll(before, d.Allowed)
	want := sluice.AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	line := fmt.Sprintf("at %d: %+v of", tr.now, want)
	for _, c := range model {
		line += fmt.Sprintf(" %s:%d", c.Key, c.Cost)
	}
	tr.Note("%s", line)
	require.Equal(tr.TB, want, sluice.TakeAll(lims...), "%s", tr)
	if tr.swept != nil {
		require.Equal(tr.TB, want, sluice.TakeAll(swept...), "after a sweep\n%s", tr)
		tr.swept.Sweep()
	}
	for _, key := range tr.names {
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
				j.cost = sum(c.Cost, claims[c.Key].cost)
			}
			j.blocked = tr.model.Blocked(c.Key, tr.now)
			j.allowed = tr.model.Peek(c.Key, tr.now, j.cost).Allowed
			claims[c.Key] = j
		}
	}
	return claims
}

// sum adds costs of one key: one that is negative stays so, and one that is too large.
func sum(a, b int64) int64 {
	if a < 0 || b < 0 {
		return -1
	}
	return a + min(b, math.MaxInt64-a)
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
	if tr.Rng.IntN(3) > 0 {
		tr.advance(tr.gap())
		return
	}
	d := tr.model.Peek(tr.names[tr.Rng.IntN(len(tr.names))], tr.now, 0)
	wait := []int64{d.ResetAfter - 1, d.ResetAfter, d.ResetAfter + 1, d.RetryAfter - 1, d.RetryAfter}[tr.Rng.IntN(5)]
	if wait > 0 && wait < math.MaxInt64-1 {
		tr.advance(wait)
	}
}

func (tr *penaltyTracer) step() {
	key := tr.names[tr.Rng.IntN(len(tr.names))]
	if tr.Rng.IntN(2) == 0 { // else hammer
		tr.jump()
	}
	switch op := tr.Rng.IntN(24); {
	case op < 3:
		tr.refund(key, tr.cost())
	case op == 3:
		tr.block(key)
	case op == 4 && tr.resets:
		tr.Note("%s at %d unblocked", key, tr.now)
		tr.model.Unblock(key)
		tr.each(key, sluice.Key.Unblock)
	case op == 5 && tr.resets:
		tr.Note("%s at %d reset", key, tr.now)
		tr.model.Reset(key)
		tr.each(key, sluice.Key.Reset)
	case op < 10 && !tr.older:
		// It may clear away a block that is over, which is all that is left of the key.
		tr.takeSome()
	}
	back := int64(0)
	if tr.older && tr.Rng.IntN(3) == 0 {
		back = 1 + tr.gap()
	}
	switch tr.Rng.IntN(10) {
	case 0:
		tr.charge(key, tr.debt(key, max(0, tr.now-back)), back)
	case 1:
		tr.upTo(key, tr.cost(), back)
	}
	tr.call(key, tr.cost(), back)
	if tr.Rng.IntN(10) == 0 { // a row of denials
		for range 6 {
			tr.call(key, 1+tr.Rng.IntN(capacity(tr.Cfg)), back)
		}
	}
}

// finish compares the statistics.
func (tr *penaltyTracer) finish() {
	if !tr.Cfg.Stats {
		return
	}
	for _, l := range []*sluice.Limiter{tr.lim, tr.swept} {
		if l != nil {
			s := l.Stats()
			require.Equal(tr.TB, tr.tally, sluice.Stats{Admitted: s.Admitted, Denied: s.Denied, Blocked: s.Blocked}, "%s", tr)
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
			t.Run(fmt.Sprintf("variant=%s/older=%v", variant.Name(), older), func(t *testing.T) {
				t.Parallel()
				rng := seeded.Rand(t)
				for _, penalty := range traces.Penalties {
					if !penalty.Counts || variant.CountsDenied() {
						tracePenalty(t, rng, variant, penalty, older)
					}
				}
			})
		}
	}
}

func tracePenalty(t *testing.T, rng *rand.Rand, variant variant, penalty traces.Penalty, older bool) {
	t.Helper()
	const steps = 100
	var all penaltySights
	for done := 0; done < penaltyOps(); done += steps {
		c := valid(func() sluice.Config { return randomPenalty(rng, variant, penalty) })
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
	require.Positive(t, all.admitted, "%+v", penalty)
	require.Positive(t, all.byBlock, "no call met a block: %+v", penalty)
	require.Equal(t, penalty.Blocks, all.byDenial > 0, "%+v %+v", all, penalty)
}

func (s *penaltySights) add(more penaltySights) {
	s.byBlock += more.byBlock
	s.byDenial += more.byDenial
	s.denied += more.denied
	s.admitted += more.admitted
	s.older += more.older
}
