package oracle

import "math/big"

// Penalties: what a denied call does to its key, and blocks.
//
//	block until u:  every call at t < u is denied, with u - t to wait; at u the key is
//	                fresh. What it was charged before is forgotten.
//	Block(d) at t:  u = max(t + d, u of the present block, when the key is idle by itself)
//	BlockFor:       a denied call of 1 to limit units is a Block(BlockFor)
//	BlockAfter n:   only the n-th such denial in a row is one. A charge ends the row, and
//	                so does whatever makes the key fresh by name: Reset, Block, Unblock.
//	CountDenied:    a denied call of n units counts in its window, up to the limit. One
//	                that blocks at once need not; one that ends a row counts and blocks.
//
// A block that is over is remembered until the next charge, for calls with older times.

// A record is what a key carries beside its state.
type record struct {
	blocked bool
	until   *big.Int // may lie beyond the end of time
	row     int64    // denials since the last charge
}

// A counter is a state that can count a call of n units at t that it denies.
type counter interface{ countDenied(t, n int64) }

// blockedAt returns the record of the block that denies calls for key at t, or nil.
func (m *Model) blockedAt(key string, t int64) *record {
	if r := m.records[key]; r != nil && r.blocked && big.NewInt(t).Cmp(r.until) < 0 {
		return r
	}
	return nil
}

// Blocked reports whether a block denies calls for key at now.
func (m *Model) Blocked(key string, now int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blockedAt(key, max(now, 0)) != nil
}

// decideBlocked is the decision on a call for a key that is blocked.
func (m *Model) decideBlocked(r *record, t, cost int64) Decision {
	wait := Never
	if r.until.IsInt64() {
		wait = r.until.Int64() - t
	}
	d := Decision{Limit: m.limit, RetryAfter: wait, ResetAfter: wait}
	if cost < 0 || cost > m.limit {
		d.RetryAfter = Never
	}
	return d
}

// Block blocks key for d ns, or for longer. It reports whether the key is then blocked.
func (m *Model) Block(key string, now, d int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d <= 0 || m.fresh == nil {
		return d > 0 && m.cfg.Rate == 0
	}
	m.block(key, max(now, 0), d)
	return true
}

func (m *Model) block(key string, t, d int64) {
	until := new(big.Int).Add(big.NewInt(t), big.NewInt(d))
	atLeast := func(u *big.Int) {
		if u.Cmp(until) > 0 {
			until.Set(u)
		}
	}
	if s, known := m.keys[key]; known {
		switch wait := leastWait(t, s.idle); wait {
		case Never:
			atLeast(endless)
		default:
			atLeast(big.NewInt(t + wait))
		}
	}
	if r := m.records[key]; r != nil && r.blocked {
		atLeast(r.until)
	}
	if m.cfg.BlockEnd > 0 && until.Cmp(big.NewInt(m.cfg.BlockEnd)) >= 0 {
		atLeast(endless)
	}
	delete(m.keys, key)
	m.records[key] = &record{blocked: true, until: until}
}

// endless is beyond the end of any block by hand. It is never written.
var endless = new(big.Int).Lsh(one, 64)

// Unblock makes key fresh if it is or has been blocked.
func (m *Model) Unblock(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[key]; r != nil && r.blocked {
		delete(m.records, key)
	}
}

// punish does what the config says to key, which is not blocked and in state s denies
// cost, 1 to limit, at t.
func (m *Model) punish(key string, s state, t, cost int64) {
	blocks := m.cfg.BlockFor > 0
	if m.cfg.BlockAfter > 1 {
		r := m.records[key]
		if r == nil {
			r = &record{}
			m.records[key] = r
		}
		r.row++
		blocks = blocks && r.row == m.cfg.BlockAfter
	}
	if m.cfg.CountDenied && (!blocks || m.cfg.BlockAfter > 1) {
		s.(counter).countDenied(t, cost)
	}
	if blocks {
		m.block(key, t, m.cfg.BlockFor)
	}
}

// countDenied counts in the key's window: a newer one would not have denied.
func (s *fixedWindow) countDenied(_, n int64) { countUpTo(&s.count, n, &s.limit) }

func (s *anchoredWindow) countDenied(_, n int64) { countUpTo(&s.count, n, s.limit) }

// countDenied counts in the window of t, or in the key's own if that is newer.
func (s *slidingWindow) countDenied(t, n int64) {
	k, _ := s.view(t)
	s.win.Set(k)
	s.prev.Set(&s.atPrev)
	s.cur.Set(&s.atCur)
	countUpTo(&s.cur, n, &s.limit)
}

// countDenied: of all units asked for, admitted or not, the newest `limit` count.
func (s *slidingLog) countDenied(t, n int64) { s.charge(t, n) }

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
