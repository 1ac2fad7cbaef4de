package oracle

import "math/big"

// Fixed window from the first charge: a charge that no window of its key holds begins one,
// which lasts for Period.
//
// State: when the newest window began, and the cost admitted in it.
//
//	admit n at t:  count(t) + n <= limit; count(t) = 0 if t >= start + Period
//	charge:        in the key's window; or, if that has ended, start = max(start, t)
//	refund:        count = max(count(t) - n, 0); nothing left is a window that has ended
//
// A time t before the key's window is judged and charged in the key's window.

type firstChargeWindow struct {
	period, limit *big.Int // never written
	most          *ceiling // likewise
	start, count  big.Int  // 0 <= count <= limit

	sum, left big.Int // scratch
}

func newFirstChargeWindow(c Config, limit int64) func() state {
	p, l, most := big.NewInt(c.Period), big.NewInt(limit), &ceiling{}
	most.SetInt64(c.CountMost)
	return func() state { return &firstChargeWindow{period: p, limit: l, most: most} }
}

func (s *firstChargeWindow) ended(t int64) bool {
	s.sum.Add(&s.start, s.period)
	return s.count.Sign() == 0 || s.left.SetInt64(t).Cmp(&s.sum) >= 0
}

// used returns, as scratch, the units that count at t.
func (s *firstChargeWindow) used(t int64) *big.Int {
	if s.ended(t) {
		return s.sum.SetInt64(0)
	}
	return s.sum.Set(&s.count)
}

func (s *firstChargeWindow) admits(t, n int64) bool {
	used := s.used(t)
	return used.Add(used, s.left.SetInt64(n)).Cmp(s.limit) <= 0
}

func (s *firstChargeWindow) charge(t, n int64) {
	if s.ended(t) {
		if s.left.SetInt64(t).Cmp(&s.start) > 0 {
			s.start.Set(&s.left)
		}
		s.count.SetInt64(0)
	}
	s.count.Add(&s.count, s.left.SetInt64(n))
}

// refund: a window that is over has nothing to give back.
func (s *firstChargeWindow) refund(t, n int64) {
	if s.ended(t) {
		return
	}
	if s.count.Sub(&s.count, s.left.SetInt64(n)); s.count.Sign() < 0 {
		s.count.SetInt64(0)
	}
}

// idle: with anything counted, a call of the whole limit is denied.
func (s *firstChargeWindow) idle(t int64) bool { return s.used(t).Sign() == 0 }

func (s *firstChargeWindow) clone() state {
	c := &firstChargeWindow{period: s.period, limit: s.limit, most: s.most}
	c.start.Set(&s.start)
	c.count.Set(&s.count)
	return c
}
