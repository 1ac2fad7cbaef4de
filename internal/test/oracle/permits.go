package oracle

import "math/big"

// Permits: units of InFlight that are given back by whoever holds them.
//
//	Acquire n at t:  Take; the permit keeps the start of the window that is charged
//	Release at t:    the count of that window, as it stands at t, falls by n
//	Renew at t:      Release, and a charge of n in the window of t, which the permit keeps
//
// A permit is not held if the count of its window is less than n at t: it has lapsed, or a
// Refund, a Reset or a Block has taken its units. A call that finds this ends the permit.

// A Permit is n units of a key in the window that begins at Start; of 0 units, nothing.
type Permit struct {
	Key          string
	Start, Units int64
}

// Acquire is Take under InFlight, with a permit, and reports whether it was admitted. It panics
// under another algorithm, and under a Rate of 0 or math.MaxInt64, which count nothing.
func (m *Model) Acquire(name string, now, cost int64) (Permit, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.ruleOf(name); r.fresh == nil || r.cfg.Algorithm != InFlight {
		panic("oracle: permits are of InFlight, with a limit")
	}
	if !m.take(name, now, cost).Allowed {
		return Permit{}, false
	}
	p := Permit{Key: name, Units: cost}
	if cost > 0 {
		s := m.keys[name].state.(*slidingWindow)
		p.Start = s.sum.Mul(&s.win, &s.period).Int64()
	}
	return p, true
}

// Release gives the units of p back and reports whether they were held. p is of 0 units then.
func (m *Model) Release(p *Permit, now int64) (held bool) {
	held = m.moveOut(p, now, false)
	p.Units = 0
	return held
}

// Renew holds the units of p from now on and reports whether they were held. If not, p is
// of 0 units then.
func (m *Model) Renew(p *Permit, now int64) (held bool) {
	if held = m.moveOut(p, now, true); !held {
		p.Units = 0
	}
	return held
}

func (m *Model) moveOut(p *Permit, now int64, renew bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[p.Key]
	if k == nil || p.Units == 0 {
		return false
	}
	return k.state.(*slidingWindow).moveOut(max(now, 0), p, renew)
}

func (s *slidingWindow) moveOut(t int64, p *Permit, renew bool) bool {
	k, _ := s.view(t)
	begins := new(big.Int).Mul(k, &s.period)
	n, count := big.NewInt(p.Units), &s.atCur
	switch behind := s.left.Sub(begins, big.NewInt(p.Start)); {
	case behind.Cmp(&s.period) == 0:
		count = &s.atPrev
	case behind.Sign() != 0:
		return false
	}
	if count.Cmp(n) < 0 {
		return false
	}
	count.Sub(count, n)
	if renew {
		s.atCur.Add(&s.atCur, n)
		p.Start = begins.Int64()
	}
	s.win.Set(k)
	s.cur.Set(&s.atCur)
	s.prev.Set(&s.atPrev)
	return true
}
