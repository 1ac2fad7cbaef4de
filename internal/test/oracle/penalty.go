package oracle

import (
	"math/big"
)

// Penalties: the effects of a denied call on its key, and blocks.
//
//	block until u:  every call at t < u is denied, with u - t to wait; at u the key is
//	                fresh. Earlier charges are forgotten.
//	Block(d) at t:  u = max(t + d, u of the present block, when the key is idle by itself)
//	BlockFor:       a denied call of 1 to limit units is a Block(BlockFor)
//	CountDenied:    a denied call of n units counts in its window, up to the limit. One
//	                that blocks need not: the key is fresh afterwards.
//
// A block that is over is remembered until the next charge, for calls with older times.

// A counter is a state that can count a call of n units at t that it denies.
type counter interface{ countDenied(t, n int64) }

// blocks reports whether a block denies calls at t.
func (k *key) blocks(t int64) bool { return k.until != nil && big.NewInt(t).Cmp(k.until) < 0 }

// Blocked reports whether a block denies calls for key at now. Under Rate 0 it is not the
// block that does.
func (m *Model) Blocked(name string, now int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[name]
	return k != nil && m.ruleOf(name).limit > 0 && k.blocks(max(now, 0))
}

// decideBlocked is the decision on a call for a key that is blocked.
func (k *key) decideBlocked(limit, t, cost int64) Decision {
	wait := Never
	if k.until.IsInt64() {
		wait = k.until.Int64() - t
	}
	d := Decision{Limit: limit, RetryAfter: wait, ResetAfter: wait}
	if cost < 0 || cost > limit {
		d.RetryAfter = Never
	}
	return d
}

// Block blocks key for d ns, or for longer, under any limit. It reports whether the key is
// then blocked.
func (m *Model) Block(name string, now, d int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d <= 0 {
		return false
	}
	k := m.keyOf(name)
	m.keys[name] = k
	m.block(k, max(now, 0), d)
	return true
}

func (m *Model) block(k *key, t, d int64) {
	until := new(big.Int).Add(big.NewInt(t), big.NewInt(d))
	atLeast := func(u *big.Int) {
		if u.Cmp(until) > 0 {
			until.Set(u)
		}
	}
	switch wait := leastWait(t, k.state.idle, 0); wait {
	case Never:
		atLeast(endless)
	default:
		atLeast(big.NewInt(t + wait))
	}
	if k.until != nil {
		atLeast(k.until)
	}
	if end := k.rule.cfg.BlockEnd; end > 0 && until.Cmp(big.NewInt(end)) >= 0 {
		atLeast(endless)
	}
	k.until = until
	if k.rule.base != nil {
		k.state = m.newState(k.rule)
	}
}

// endless is beyond the end of any block by hand. It is never written.
var endless = new(big.Int).Lsh(one, 64)

// Unblock makes key fresh if it is or has been blocked.
func (m *Model) Unblock(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.keys[name]; k != nil && k.until != nil {
		delete(m.keys, name)
	}
}

// punish applies the config to k, which is not blocked and denies cost, 1 to the
// limit, at t.
func (m *Model) punish(k *key, t, cost int64) {
	c := &k.rule.cfg
	switch {
	case c.BlockFor > 0:
		m.block(k, t, c.BlockFor)
	case c.CountDenied:
		k.state.(counter).countDenied(t, cost)
	}
}

// countDenied counts in the key's window: a newer one would not have denied.
func (s *fixedWindow) countDenied(_, n int64) { countUpTo(&s.count, n, &s.limit) }

func (s *firstChargeWindow) countDenied(_, n int64) { countUpTo(&s.count, n, s.limit) }

// countDenied counts in the window of t, or in the key's own if that is newer.
func (s *slidingWindow) countDenied(t, n int64) {
	k, _ := s.view(t)
	s.win.Set(k)
	s.prev.Set(&s.atPrev)
	s.cur.Set(&s.atCur)
	countUpTo(&s.cur, n, &s.limit)
}

// countDenied: of all units asked for, admitted or not, the newest `limit` count; or more,
// if more counted before, under a limit that has been lowered.
func (s *slidingLog) countDenied(t, n int64) {
	if last := len(s.steps) - 1; last >= 0 && s.steps[last].at.IsInt64() {
		t = max(t, s.steps[last].at.Int64())
	}
	most := new(big.Int).Set(s.counting(t))
	if s.charge(t, n); most.Cmp(s.limit) < 0 {
		most.Set(s.limit)
	}
	if s.counting(t).Cmp(most) > 0 {
		s.forget(most)
	}
}

// countUpTo makes count max(count, min(count + n, limit)).
func countUpTo(count *big.Int, n int64, limit *big.Int) {
	sum := new(big.Int).Add(count, big.NewInt(n))
	if sum.Cmp(limit) > 0 {
		sum.Set(limit)
	}
	if sum.Cmp(count) > 0 {
		count.Set(sum)
	}
}
