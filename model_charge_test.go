package sluice

import (
	"math"

	"github.com/sluice-go/sluice/internal/oracle"
)

// countMost is the most that a word of p can count, or 0 for algorithms that do not.
func countMost(p *policy) int64 {
	bits := 0
	switch a := p.alg.(type) {
	case *fixedWindow:
		bits = a.bits
	case *tokenInterval:
		bits = a.bits
	case *slidingWindowWord:
		bits = a.bits
	}
	switch a := p.wide.(type) {
	case *slidingWindowWide:
		bits = a.bits
	case *anchoredWindow:
		bits = a.bits
	}
	if bits == 0 {
		return 0
	}
	return 1<<bits - 1
}

// maxDebt is how much later than at a debt of the traces may end, so that the end of time
// stays out of sight.
const maxDebt = 1 << 57

// debt draws what is charged: often more than there is, also more than a word can count,
// but no more than what comes back within maxDebt.
func (tr *tracer) debt(key string, at int64) int {
	if tr.model.Guess(guess(peekAt(tr.lim, tr.lim.Key(key).id, at, 0))).Peek(key, at, 0).ResetAfter > maxDebt {
		return tr.rng.IntN(2) - 1 // nothing
	}
	b := tr.cfg.enforced().burst()
	most := int(min(countMost(tr.lim.policyOf(0)), math.MaxInt/4))
	costs := []int{1, 1, 2, b - 1, b, b, 0, -1, math.MinInt, 1 + tr.rng.IntN(b), min(b, math.MaxInt/8) * 2, min(b, math.MaxInt/8)*3 + 1, most - b, most, most + 1, 2*most - 1, 3 * most}
	cost := costs[tr.rng.IntN(len(costs))]
	if tr.cfg.Algorithm == SlidingLog {
		cost = min(cost, 1000)
	}
	if !tr.cfg.Algorithm.windowed() {
		cost = int(min(int64(cost), maxDebt/int64(tr.cfg.Limit.interval())))
	}
	return cost
}

// charge makes one unconditional charge, at a time before the newest one, and compares.
func (tr *tracer) charge(key string, back int64) {
	at := max(0, tr.now-back)
	cost := tr.debt(key, at)
	got := tr.lim.Key(key).ChargeAt(at, cost)
	want := fromOracle(tr.model.Guess(guess(got)).Charge(key, at, int64(cost)))
	tr.note("%s at %d charge %d: %+v", key, at, cost, want)
	tr.equal(want, got, "Charge")
	tr.resets = tr.resets && !tr.lim.isAhead(key, at)
	tr.equal(want, peekAt(tr.lim, tr.lim.Key(key).id, at, 0), "Peek after a charge")
	if back == 0 && tr.swept != nil {
		tr.equal(want, tr.swept.Charge(key, cost), "Charge after a sweep")
		tr.swept.Sweep()
	}
}

// takeUpTo makes one partial take, and compares.
func (tr *tracer) takeUpTo(key string, cost int, back int64) Decision {
	at := max(0, tr.now-back)
	taken, got := tr.lim.Key(key).TakeUpToAt(at, cost)
	n, d := tr.model.Guess(guess(got)).TakeUpTo(key, at, int64(cost))
	want := fromOracle(d)
	tr.note("%s at %d up to %d: %d %+v", key, at, cost, n, want)
	tr.equal(want, got, "TakeUpTo")
	tr.equal(n, int64(taken), "taken")
	if back == 0 && tr.swept != nil {
		taken, got := tr.swept.TakeUpTo(key, cost)
		tr.equal(want, got, "TakeUpTo after a sweep")
		tr.equal(n, int64(taken), "taken after a sweep")
		tr.swept.Sweep()
	}
	return want
}

// isAhead reports whether key has a window with a tail that begins after now. Its words are
// then those of that window, also after a Reset, and its model starts from nothing.
func (l *Limiter) isAhead(key string, now int64) (ahead bool) {
	l.update(l.Key(key).id, func(p *policy, key state) uint64 {
		if a, ok := p.wide.(*slidingWindowWide); ok {
			number, _ := a.at(now)
			ahead = a.unpack(state{key.word &^ blockedTail, key.tail}).number > number
		}
		return key.word
	})
	return ahead
}

// newCounting returns the model of a limiter whose words can count as far as those of p.
func newCounting(c oracle.Config, p *policy) *oracle.Model {
	c.CountMost = countMost(p)
	return oracle.New(c)
}
