package oracle

import (
	"math/big"
	"slices"
)

// Sliding window counter: the cost of the last Period is estimated from the
// counts of two fixed windows, as if the older one's cost were spread evenly.
//
// State: the newest window that was charged, and the cost admitted in it and in
// the window before it.
//
//	admit n at t:  prev*(P-elapsed) + (cur+n)*P <= limit*P,  elapsed = (t-Offset) mod P
//	charge:        cur = cur + n, after moving the key's window up to that of t
//	refund:        likewise, of n units as many as there are from cur, the rest from prev
//
// InFlight is the same with prev counted in full, elapsed = 0, and a refund of units from
// prev first.
//
// A time t in a window older than the key's is judged as the first instant of
// the key's window, where prev still counts in full, and charged there.

type slidingWindow struct {
	*windows
	whole          bool // InFlight
	win, prev, cur big.Int

	// The same three as they stand at some time, see view. Scratch.
	atPrev, atCur big.Int
}

func newSlidingWindow(c Config, limit int64) func() state {
	w := newWindows(c, limit)
	first := w.first()
	return func() state {
		s := &slidingWindow{windows: w, whole: c.Algorithm == InFlight}
		s.win.Set(first)
		return s
	}
}

// view sets atPrev and atCur to the counts as they stand at t, and returns the
// window they are for and the elapsed part of it.
func (s *slidingWindow) view(t int64) (index, elapsed *big.Int) {
	k, elapsed := s.at(t)
	behind := s.left.Sub(k, &s.win)
	switch {
	case behind.Sign() < 0: // an older window: the first instant of the key's
		s.atPrev.Set(&s.prev)
		s.atCur.Set(&s.cur)
		k.Set(&s.win)
		elapsed.SetInt64(0)
	case behind.Sign() == 0:
		s.atPrev.Set(&s.prev)
		s.atCur.Set(&s.cur)
	case behind.Cmp(one) == 0: // the next window: what was current is previous
		s.atPrev.Set(&s.cur)
		s.atCur.SetInt64(0)
	default:
		s.atPrev.SetInt64(0)
		s.atCur.SetInt64(0)
	}
	return k, elapsed
}

// one is never written.
var one = big.NewInt(1)

func (s *slidingWindow) admits(t, n int64) bool {
	_, elapsed := s.view(t)
	if s.whole {
		elapsed.SetInt64(0)
	}
	weighted := s.sum.Sub(&s.period, elapsed)
	weighted.Mul(weighted, &s.atPrev)
	s.atCur.Add(&s.atCur, s.left.SetInt64(n))
	weighted.Add(weighted, s.left.Mul(&s.atCur, &s.period))
	return weighted.Cmp(s.left.Mul(&s.limit, &s.period)) <= 0
}

func (s *slidingWindow) charge(t, n int64) {
	k, _ := s.view(t)
	s.win.Set(k)
	s.prev.Set(&s.atPrev)
	s.cur.Add(&s.atCur, s.left.SetInt64(n))
}

// refund: where nothing is counted the key's window stays what it is.
func (s *slidingWindow) refund(t, n int64) {
	k, _ := s.view(t)
	if s.atPrev.Sign() == 0 && s.atCur.Sign() == 0 {
		return
	}
	s.win.Set(k)
	rest := s.left.SetInt64(n)
	counts := []*big.Int{&s.atCur, &s.atPrev}
	if s.whole {
		slices.Reverse(counts)
	}
	for _, count := range counts {
		if count.Cmp(rest) >= 0 {
			count.Sub(count, rest)
			rest.SetInt64(0)
		} else {
			rest.Sub(rest, count)
			count.SetInt64(0)
		}
	}
	s.cur.Set(&s.atCur)
	s.prev.Set(&s.atPrev)
}

// idle: with anything counted, a call of the whole limit is denied, since
// P-elapsed is at least 1.
func (s *slidingWindow) idle(t int64) bool {
	s.view(t)
	return s.atPrev.Sign() == 0 && s.atCur.Sign() == 0
}

func (s *slidingWindow) clone() state {
	c := &slidingWindow{windows: s.windows, whole: s.whole}
	c.win.Set(&s.win)
	c.prev.Set(&s.prev)
	c.cur.Set(&s.cur)
	return c
}
