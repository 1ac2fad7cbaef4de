package oracle

import "math/big"

// Charges that nobody asks about, and partial ones.
//
//	Charge n at t:    what an admitted call does, whatever there is. A block does not end
//	                  before it would without all that is charged beside it: see debit.
//	TakeUpTo n at t:  Take of the greatest cost up to n that is admitted; of 1 if none is
//
// Units that CountMost leaves no room for are lost, except under SlidingWindow, where they go to
// the next window, as far as there is room.

// Debit charges cost to key at now and returns the answer of a Peek of cost 0 behind it. A cost
// below 1 charges nothing, and nothing is charged under Rate math.MaxInt64, nor under a
// Rate 0 that has no limit before it.
func (m *Model) Debit(name string, now, cost int64) Decision {
	m.Owe(name, now, cost)
	return m.Peek(name, now, 0)
}

// Owe is Debit without the decision, which takes long to find.
func (m *Model) Owe(name string, now, cost int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.ruleOf(name); cost > 0 && r.base != nil && (r.fresh != nil || r.limit == 0) {
		k := m.keyOf(name)
		m.keys[name] = k
		m.debit(k, max(now, 0), cost)
	}
}

// debit charges k. In a window, units count for as long whatever there are of them. The
// buckets gain each of them after the end of the block.
func (m *Model) debit(k *key, t, n int64) {
	if !k.blocks(t) {
		k.until = nil
		k.state.debit(t, n)
		return
	}
	if !k.until.IsInt64() {
		return
	}
	from := t
	if k.rule.cfg.Algorithm < SlidingWindow {
		from = k.until.Int64()
	}
	s := m.newState(k.rule)
	s.debit(from, n)
	m.lengthen(k, from, s)
}

// lengthen lets the block of k last until s, which has been charged at t, is idle.
func (m *Model) lengthen(k *key, t int64, s state) {
	until := endless
	if wait := leastWait(t, s.idle, 0); wait != Never {
		until = big.NewInt(t + wait)
	}
	if end := k.rule.cfg.BlockEnd; end > 0 && until.Cmp(big.NewInt(end)) >= 0 {
		until = endless
	}
	if until.Cmp(k.until) > 0 {
		k.until = new(big.Int).Set(until)
	}
}

// TakeUpTo charges as much of cost as is admitted, and returns how much that is.
func (m *Model) TakeUpTo(name string, now, cost int64) (int64, Decision) {
	if cost <= 0 {
		return 0, m.Take(name, now, cost)
	}
	n := most(cost, func(n int64) bool { return m.passes(name, now, n) }, 0)
	if n == 0 {
		return 0, m.Take(name, now, 1)
	}
	return n, m.Take(name, now, n)
}

func (s *gcra) debit(t, n int64)        { s.charge(t, n) }
func (s *leakyBucket) debit(t, n int64) { s.charge(t, n) }
func (s *tokenBucket) debit(t, n int64) { s.charge(t, n) }

// debit counts to the limit, as a denied call can.
func (s *slidingLog) debit(t, n int64) { s.countDenied(t, n) }

func (s *tokenInterval) debit(t, n int64) {
	s.charge(t, n)
	if least := new(big.Int).Sub(s.full, &s.most.Int); s.most.Sign() > 0 && s.tokens.Cmp(least) < 0 {
		s.tokens.Set(least)
	}
}

func (s *fixedWindow) debit(t, n int64) {
	s.charge(t, n)
	s.most.cap(&s.count)
}

func (s *firstChargeWindow) debit(t, n int64) {
	s.charge(t, n)
	s.most.cap(&s.count)
}

func (s *slidingWindow) debit(t, n int64) {
	s.charge(t, n)
	rest := new(big.Int).Sub(&s.cur, &s.most.Int)
	if s.most.Sign() == 0 || rest.Sign() <= 0 {
		return
	}
	s.prev.Set(&s.most.Int)
	s.win.Add(&s.win, one)
	s.cur.Set(s.most.cap(rest))
}

// A ceiling is the most that a count can be, or 0 if it has no end.
type ceiling struct{ big.Int }

// cap lowers count to the ceiling and returns it.
func (c *ceiling) cap(count *big.Int) *big.Int {
	if c.Sign() > 0 && count.Cmp(&c.Int) > 0 {
		count.Set(&c.Int)
	}
	return count
}
