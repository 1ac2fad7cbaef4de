package oracle

import (
	"math/big"
	"sort"
)

// Sliding window log: exact, the cost admitted in the last Period.
//
// State: A(x), the cost ever charged at times up to x, as a step function.
//
//	admit n at t:  A(infinity) - A(t-P) + n <= limit
//	charge:        n at max(t, newest charge), so that A only grows at its end
//
// A charge made at s counts while s > t-P: it no longer counts at s+P. What was
// charged after an older t counts there as well, so nothing passes that would
// not pass at the newest time. This is the ring of the last `limit` units, in
// which n units pass if the n-th oldest of them is old enough: if a unit that
// still counts has left the ring, the whole ring is newer and counts too.

type slidingLog struct {
	period, limit *big.Int // never written
	steps         []step   // ascending in both fields
	gone          *big.Int // A just before steps[0]; never written in place

	edge, sum big.Int // scratch
}

// step says that A(x) is upTo from x = at on. Both are never written in place,
// so that clones may share them.
type step struct {
	at, upTo *big.Int
}

func newSlidingLog(period, limit int64) func() state {
	p, l := big.NewInt(period), big.NewInt(limit)
	return func() state { return &slidingLog{period: p, limit: l, gone: new(big.Int)} }
}

// ever returns A(infinity), not to be written.
func (s *slidingLog) ever() *big.Int {
	if len(s.steps) == 0 {
		return s.gone
	}
	return s.steps[len(s.steps)-1].upTo
}

// counting returns, as scratch, A(infinity) - A(t-P).
func (s *slidingLog) counting(t int64) *big.Int {
	edge := s.edge.Sub(s.edge.SetInt64(t), s.period)
	newer := sort.Search(len(s.steps), func(i int) bool { return s.steps[i].at.Cmp(edge) > 0 })
	if newer == 0 {
		return s.sum.Sub(s.ever(), s.gone)
	}
	return s.sum.Sub(s.ever(), s.steps[newer-1].upTo)
}

func (s *slidingLog) admits(t, n int64) bool {
	used := s.counting(t)
	return used.Add(used, s.edge.SetInt64(n)).Cmp(s.limit) <= 0
}

func (s *slidingLog) charge(t, n int64) {
	at := big.NewInt(t)
	if last := len(s.steps) - 1; last >= 0 && at.Cmp(s.steps[last].at) < 0 {
		at = s.steps[last].at
	}
	upTo := big.NewInt(n)
	upTo.Add(upTo, s.ever())
	s.steps = append(s.steps, step{at, upTo})
	s.forget()
}

// forget drops the oldest steps while `limit` units are newer than them. At a
// time when such a step counts, those units count too and nothing passes, with
// the step or without it.
func (s *slidingLog) forget() {
	for len(s.steps) > 0 && s.sum.Sub(s.ever(), s.steps[0].upTo).Cmp(s.limit) >= 0 {
		s.gone = s.steps[0].upTo
		s.steps = s.steps[1:]
	}
}

// idle: with anything counting, a call of the whole limit is denied.
func (s *slidingLog) idle(t int64) bool {
	return s.counting(t).Sign() == 0
}

// clone shares the steps. The original only ever writes behind the last of
// them, and the clone has no room there, so that its first charge copies them.
func (s *slidingLog) clone() state {
	steps := s.steps[:len(s.steps):len(s.steps)]
	return &slidingLog{period: s.period, limit: s.limit, steps: steps, gone: s.gone}
}
