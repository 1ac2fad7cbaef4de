package oracle

import "math/big"

// GCRA, the generic cell rate algorithm, with T = Period/Rate and B = Burst.
//
// State: TAT, the theoretical arrival time, at first 0.
//
//	admit n at t:  max(TAT, t) + n*T - t <= B*T
//	charge:        TAT = max(TAT, t) + n*T
//	refund:        TAT = max(TAT - n*T, t), if TAT > t
//
// For a time t older than the last charge the same formulas hold as they are:
// TAT > t then, the distance TAT - t has grown, and the charge only adds to TAT.

// ticks is the time line on which the rates of the GCRA family are integers:
// instant t lies at tick floor(t*num/den), and one unit of cost is worth unit
// ticks. The results of its methods are scratch, valid until the next call.
type ticks struct {
	num, den, unit big.Int

	arrival, rest, span, sum big.Int // scratch
}

// newTicks returns the time line of c. Without Grid a tick is 1/Rate ns, so
// that instants and the interval of Period/Rate ns are both whole and nothing
// is ever rounded. With Grid a tick is Period/(Rate*c) ns, at most 1 ns, and
// arrivals are floored to it.
func newTicks(c Config) *ticks {
	tk := &ticks{}
	if !c.Grid {
		tk.num.SetInt64(c.Rate)
		tk.den.SetInt64(1)
		tk.unit.SetInt64(c.Period)
		return tk
	}
	interval := (c.Period-1)/c.Rate + 1 // ceil, and Period >= 1
	tk.num.Mul(big.NewInt(c.Rate), big.NewInt(interval))
	tk.den.SetInt64(c.Period)
	tk.unit.SetInt64(interval)
	return tk
}

// at returns the tick of instant t >= 0.
func (tk *ticks) at(t int64) *big.Int {
	a := tk.arrival.SetInt64(t)
	a.Mul(a, &tk.num)
	a.QuoRem(a, &tk.den, &tk.rest)
	return a
}

// cost returns the ticks that n units are worth.
func (tk *ticks) cost(n int64) *big.Int {
	s := tk.span.SetInt64(n)
	return s.Mul(s, &tk.unit)
}

type gcra struct {
	*ticks
	limit *big.Int // B*T; never written
	tat   big.Int
}

func newGCRA(tk *ticks, burst int64) func() state {
	limit := new(big.Int).Set(tk.cost(burst))
	return func() state { return &gcra{ticks: tk, limit: limit} }
}

// after returns, as scratch, the TAT when n units are charged at tick
// a.
func (s *gcra) after(a *big.Int, n int64) *big.Int {
	from := &s.tat
	if from.Cmp(a) < 0 {
		from = a
	}
	return s.sum.Add(from, s.cost(n))
}

func (s *gcra) admits(t, n int64) bool {
	a := s.at(t)
	ahead := s.after(a, n)
	ahead.Sub(ahead, a)
	return ahead.Cmp(s.limit) <= 0
}

func (s *gcra) charge(t, n int64) {
	s.tat.Set(s.after(s.at(t), n))
}

// refund: TAT - t is the debt, if it is positive.
func (s *gcra) refund(t, n int64) {
	a := s.at(t)
	if s.tat.Cmp(a) <= 0 {
		return
	}
	s.tat.Sub(&s.tat, s.cost(n))
	if s.tat.Cmp(a) < 0 {
		s.tat.Set(a)
	}
}

// idle: from TAT on, max(TAT, t) is t. Before it, a call of the whole burst
// tells the difference: it needs max(TAT, t) <= t.
func (s *gcra) idle(t int64) bool {
	return s.tat.Cmp(s.at(t)) <= 0
}

func (s *gcra) clone() state {
	c := &gcra{ticks: s.ticks, limit: s.limit}
	c.tat.Set(&s.tat)
	return c
}
