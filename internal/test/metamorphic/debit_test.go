package metamorphic

import (
	"math"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// maxDebt is how much later than at a debt of the traces may end, so that the end of time
// stays out of sight.
const maxDebt = 1 << 57

// debt draws what is charged: often more than there is, also more than a word can count,
// but no more than what comes back within maxDebt.
func (tr *tracer) debt(key string, at int64) int {
	if tr.model.Guess(guess(tr.lim.Key(key).PeekAt(at, 0))).Peek(key, at, 0).ResetAfter > maxDebt {
		return tr.Rng.IntN(2) - 1 // nothing
	}
	b := capacity(tr.Cfg)
	most := int(min(traces.WordsOf(oracleConfig(tr.Cfg)).CountMost, math.MaxInt/4))
	costs := []int{1, 1, 2, b - 1, b, b, 0, -1, math.MinInt, 1 + tr.Rng.IntN(b), min(b, math.MaxInt/8) * 2, min(b, math.MaxInt/8)*3 + 1, most - b, most, most + 1, 2*most - 1, 3 * most}
	cost := costs[tr.Rng.IntN(len(costs))]
	if tr.Cfg.Algorithm == sluice.SlidingLog {
		cost = min(cost, 1000)
	}
	if !windowed(tr.Cfg.Algorithm) {
		cost = int(min(int64(cost), maxDebt/tracedLimit(tr.Cfg.Limit).Interval()))
	}
	return cost
}

// charge makes one unconditional charge, at a time before the newest one, and compares.
func (tr *tracer) charge(key string, cost int, back int64) sluice.Decision {
	at := max(0, tr.now-back)
	admissible := cost > 0 && tr.lim.Key(key).PeekAt(at, cost).Allowed
	var got sluice.Decision
	tr.told.earlier(tr.now-at, func() { got = tr.lim.Key(key).Debit(cost) })
	want := tr.soft(tr.model.Guess(guess(got)).Debit(key, at, int64(cost)), 0)
	tr.Note("%s at %d charge %d: %+v", key, at, cost, want)
	tr.Equal(want, got, "Debit")
	// Units that two words cannot count go to the next window, also across a
	// reset; their model starts from nothing.
	tr.resets = tr.resets && !(tr.wide && cost > 0 && !admissible)
	tr.Equal(want, tr.lim.Key(key).PeekAt(at, 0), "Peek after a charge")
	if back == 0 && tr.swept != nil {
		tr.Equal(want, tr.swept.Key(key).Debit(cost), "Debit after a sweep")
		tr.swept.Sweep()
	}
	return got
}

// takeUpTo makes one partial take, and compares.
func (tr *tracer) takeUpTo(key string, cost int, back int64) sluice.Decision {
	at := max(0, tr.now-back)
	var taken int
	var got sluice.Decision
	tr.told.earlier(tr.now-at, func() { taken, got = tr.lim.Key(key).TakeUpTo(cost) })
	n, d := tr.model.Guess(guess(got)).TakeUpTo(key, at, int64(cost))
	asked := int(n)
	if cost > 0 {
		asked = max(asked, 1)
	}
	want := tr.soft(d, min(asked, cost))
	tr.Note("%s at %d up to %d: %d %+v", key, at, cost, n, want)
	tr.Equal(want, got, "TakeUpTo")
	tr.Equal(n, int64(taken), "taken")
	if back == 0 && tr.swept != nil {
		taken, got := tr.swept.Key(key).TakeUpTo(cost)
		tr.Equal(want, got, "TakeUpTo after a sweep")
		tr.Equal(n, int64(taken), "taken after a sweep")
		tr.swept.Sweep()
	}
	return want
}
