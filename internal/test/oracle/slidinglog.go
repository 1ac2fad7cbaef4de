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
//	refund:        the n newest units are struck out, as if never charged
//
// A charge made at s counts while s > t-P: it no longer counts at s+P. A charge
// after an older t counts there as well, so nothing passes that would
// not pass at the newest time.
//
// Of a key, `limit` units are remembered, no more (or as many as the largest limit so
// far: see adopt). A unit that was charged before
// them is forgotten for good, and a refund does not bring it back. That makes no
// difference at any time at which one of these units could be charged, since the
// forgotten one did not count then. After a refund it can make one to a time older
// than that. There the definition asks only that nothing passes which would not
// pass at the newest time; it does not say by how much older times are stricter.

type slidingLog struct {
	period, limit *big.Int // never written
	room          *big.Int // units that are remembered; never written
	steps         []step   // ascending in both fields
	gone          *big.Int // A of forgotten units, below steps[0].upTo; never written in place

	edge, sum big.Int // scratch
}

// step says that A(x) is upTo from x = at on. Both are never written in place,
// so that clones may share them.
type step struct {
	at, upTo *big.Int
}

func newSlidingLog(period, limit int64) func() state {
	p, l := big.NewInt(period), big.NewInt(limit)
	return func() state { return &slidingLog{period: p, limit: l, room: l, gone: new(big.Int)} }
}

// ever returns A(infinity), not to be written.
func (s *slidingLog) ever() *big.Int {
	if len(s.steps) == 0 {
		return s.gone
	}
	return s.steps[len(s.steps)-1].upTo
}

// counting returns, as scratch, A(infinity) - A(t-P), without forgotten units.
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
	s.forget(s.room)
}

// forget forgets all but the newest units.
func (s *slidingLog) forget(newest *big.Int) {
	if least := new(big.Int).Sub(s.ever(), newest); least.Cmp(s.gone) > 0 {
		s.gone = least
	}
	for len(s.steps) > 0 && s.steps[0].upTo.Cmp(s.gone) <= 0 {
		s.steps = s.steps[1:]
	}
}

// refund lowers the end of A by n, to gone at most.
func (s *slidingLog) refund(_, n int64) {
	end := new(big.Int).Sub(s.ever(), big.NewInt(n))
	if end.Cmp(s.gone) < 0 {
		end.Set(s.gone)
	}
	for i, last := range s.steps {
		if last.upTo.Cmp(end) < 0 {
			continue
		}
		// Clones share the steps: what is left has no room behind it either.
		s.steps = s.steps[:i:i]
		if before := s.ever(); before.Cmp(end) < 0 {
			s.steps = append(s.steps, step{last.at, end})
		}
		return
	}
}

// idle: with anything counting, a call of the whole limit is denied.
func (s *slidingLog) idle(t int64) bool {
	return s.counting(t).Sign() == 0
}

// clone shares the steps. The original only ever writes behind the last of
// them, or into a copy, and the clone has no room there, so that its first charge copies them.
func (s *slidingLog) clone() state {
	steps := s.steps[:len(s.steps):len(s.steps)]
	return &slidingLog{period: s.period, limit: s.limit, room: s.room, steps: steps, gone: s.gone}
}
