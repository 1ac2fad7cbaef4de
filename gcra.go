package sluice

import "sync/atomic"

// GCRA is the generic cell rate algorithm in its virtual scheduling form (ITU-T
// I.371, annex A; ATM Forum TM 4.0).
//
// The word is the theoretical arrival time, TAT: the tick at which the next unit
// would arrive if units came exactly at the rate.
//
// A call of n units at tick t is admitted iff
//
//	max(TAT, t) + n*unit - t <= burst
//
// and then TAT = max(TAT, t) + n*unit. I.371 states the tolerance tau for a
// single cell, tau = (B-1)*unit; with burst = B*unit the formula is the same for
// one unit, and covers n.
//
// Invariant: TAT only grows, except by refunds. A call with an older t sees a larger TAT-t and is
// judged more strictly than at the newest t.
type gcra struct {
	schedule
	queue bool // it is a LeakyBucket: see leaky.go
}

func newGCRA(l Limit) (algorithm, *ConfigError) {
	s, err := newSchedule(l)
	return &gcra{schedule: s}, err
}

func (a *gcra) adopt(from arithmetic, e state, _ []atomic.Uint64, now int64) uint64 {
	return a.schedule.adopt(&from.(*gcra).schedule, e.word, now)
}

func (a *gcra) full(word uint64) uint64    { return word }
func (a *gcra) pack(full, _ uint64) uint64 { return full }
func (a *gcra) turns() (*schedule, bool)   { return &a.schedule, a.queue }

func (a *gcra) charge(word uint64, now int64, cost int) (uint64, bool) {
	t := a.tick(now)
	full := max(word, t)
	need := uint64(cost) * a.unit // <= burst, since cost <= B
	if full-t > a.burst-need {
		return word, false
	}
	return full + need, true
}
