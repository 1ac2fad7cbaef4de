package oracle

import "math/big"

// Changes of the limit. At the instant of a change each key keeps its spent units, in
// units; from then on the new limit says how they come back. Each
// algorithm says at its adopt, below, how.
//
// A key that is idle at that instant is fresh under any limit. Under Rate 0 and Rate
// math.MaxInt64 nothing is charged, and units go on coming back as they did before: as
// under the limiter's last other limit, or for a key that gets such a limit of its own,
// the key's.

// SetLimit changes the limit of all keys that have none of their own.
func (m *Model) SetLimit(now int64, c Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setMain(newRule(c, m.main))
	for name := range m.keys {
		if m.own[name] == nil {
			m.change(name, m.main, now)
		}
	}
}

// SetKeyLimit gives key a limit of its own, until ClearKeyLimit.
func (m *Model) SetKeyLimit(name string, now int64, c Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.own[name]; r != nil && r.cfg == c {
		return
	}
	m.own[name] = newRule(c, m.ruleOf(name))
	m.change(name, m.own[name], now)
}

// ClearKeyLimit gives key the common limit again. If that has no base, the key keeps
// its own.
func (m *Model) ClearKeyLimit(name string, now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own[name] == nil {
		return
	}
	delete(m.own, name)
	m.change(name, m.main, now)
}

// change puts key under the base of r, if that has one.
func (m *Model) change(name string, r *rule, now int64) {
	k, t := m.keys[name], max(now, 0)
	switch {
	case k == nil:
	case !k.blocks(t) && k.state.idle(t): // also if it remembers a block that is over
		delete(m.keys, name)
	case r.base != nil && r.base != k.rule:
		s := m.newState(r.base)
		if k.until == nil {
			s.adopt(k.state, t)
		}
		k.rule, k.state = r.base, s
	}
}

// newState returns the state of a fresh key. A log remembers as many units as the largest limit
// so far.
func (m *Model) newState(r *rule) state {
	s := r.fresh()
	if log, ok := s.(*slidingLog); ok {
		log.room = big.NewInt(max(r.limit, m.largest))
	}
	return s
}

// convert returns ticks that are worth as much as ticks of another time line, rounded up.
func (tk *ticks) convert(owed *big.Int, from *ticks) *big.Int {
	rest := new(big.Int)
	owed = new(big.Int).Mul(owed, &tk.unit)
	if owed.QuoRem(owed, &from.unit, rest); rest.Sign() != 0 {
		owed.Add(owed, one)
	}
	return owed
}

// adopt, of the buckets: a debt stays, also beyond the burst.

func (s *gcra) adopt(old state, t int64) {
	o := old.(*gcra)
	if o.idle(t) {
		return
	}
	owed := new(big.Int).Sub(&o.tat, o.at(t))
	s.tat.Add(s.at(t), s.convert(owed, o.ticks))
}

func (s *leakyBucket) adopt(old state, t int64) {
	o := old.(*leakyBucket)
	s.level.Set(s.convert(o.levelAt(o.at(t)), o.ticks))
	s.last.Set(s.at(t))
}

func (s *tokenBucket) adopt(old state, t int64) {
	o := old.(*tokenBucket)
	missing := new(big.Int).Sub(o.full, o.tokensAt(o.at(t)))
	s.tokens.Sub(s.full, s.convert(missing, o.ticks))
	s.last.Set(s.at(t))
}

// adopt keeps the missing tokens.
func (s *tokenInterval) adopt(old state, t int64) {
	o := old.(*tokenInterval)
	s.tokens.Sub(s.full, new(big.Int).Sub(o.full, o.tokensAt(t)))
	s.win.Set(o.indexIn(s.windows, &o.win, t))
}

// indexIn returns a copy of the index in v of the newer of t and a window of w.
func (w *windows) indexIn(v *windows, win *big.Int, t int64) *big.Int {
	k, _ := w.at(t)
	if k.Cmp(win) < 0 {
		if v.same(w) {
			return new(big.Int).Set(win)
		}
		begins := new(big.Int).Mul(win, &w.period)
		if t = begins.Add(begins, &w.offset).Int64(); w.calendar != nil {
			t = w.calendar.begin(win.Int64())
		}
	}
	k, _ = v.at(t)
	return new(big.Int).Set(k)
}

func (w *windows) same(v *windows) bool {
	return w.period.Cmp(&v.period) == 0 && w.offset.Cmp(&v.offset) == 0 && w.calendar == v.calendar
}

// adopt keeps the count. In windows of another length it is all of the present one.
func (s *fixedWindow) adopt(old state, t int64) {
	o := old.(*fixedWindow)
	s.count.Set(o.used(t))
	s.win.Set(o.indexIn(s.windows, &o.win, t))
}

// adopt keeps both counts. In windows of another length, what they come to at that time,
// rounded up to whole units, is all of the present one.
func (s *slidingWindow) adopt(old state, t int64) {
	o := old.(*slidingWindow)
	if s.same(o.windows) {
		s.win.Set(&o.win)
		s.cur.Set(&o.cur)
		s.prev.Set(&o.prev)
		return
	}
	_, elapsed := o.view(t)
	if s.whole {
		elapsed.SetInt64(0)
	}
	units, rest := new(big.Int), new(big.Int)
	units.Mul(&o.atPrev, new(big.Int).Sub(&o.period, elapsed))
	if units.QuoRem(units, &o.period, rest); rest.Sign() != 0 {
		units.Add(units, one)
	}
	s.cur.Add(units, &o.atCur)
	s.win.Set(o.indexIn(s.windows, &o.win, t))
}

// adopt keeps the window, unless it would have ended by now.
func (s *firstChargeWindow) adopt(old state, t int64) {
	o := old.(*firstChargeWindow)
	s.count.Set(o.used(t))
	s.start.Set(&o.start)
	if s.count.Sign() > 0 && s.ended(t) {
		s.start.SetInt64(t)
	}
}

// adopt keeps the times of units that count, and remembers as many from now on.
func (s *slidingLog) adopt(old state, t int64) {
	o := old.(*slidingLog)
	s.steps, s.gone = o.steps[:len(o.steps):len(o.steps)], o.gone
	counting := new(big.Int).Set(o.counting(t))
	if counting.Cmp(s.room) > 0 {
		s.room = counting
	}
	s.forget(counting)
}
