package rules

import (
	"math"
	"math/bits"
	"sync"

	"github.com/sluice-go/sluice"
)

// memory counts in the memory of the process.
type memory struct {
	config *Config
	key    *sipKey

	locks   [256]sync.Mutex // of keys, by hash: for calls that look before they count
	denials denials
	spilled spills
	holds   holds

	// The admin lock of the engine guards the fields below.
	groups             map[string]*counters
	kept               map[string]*kept
	absent             map[string]*kept // of rules that are not in force
	evicted, untracked uint64           // of limiters that are no longer there
}

// here is the counter of a call in memory.
func (c *call) here() *counter { return c.counter.(*counter) }

// at is the key of a call.
func (c *call) at() sluice.Key { return c.here().limiter.KeyHash(c.id) }

func (s *secondBudget) at() sluice.Key { return s.counter.(*counter).limiter.KeyHash(s.id) }

// count is the count of a window of which so many units remain.
func (c *counter) count(remaining int) uint64 { return uint64(c.most - remaining) }

func clampInt(n uint64) int { return int(min(n, math.MaxInt)) }

func (m *memory) do(b *batch) error {
	if b.now >= m.holds.next.Load() {
		m.lapseSome(b.now)
	}
	if b.mode != eachAlone {
		m.together(b)
		return nil
	}
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			m.alone(c, b.now)
		}
	}
	return nil
}

// alone makes a call that is judged by itself.
func (m *memory) alone(c *call, now int64) {
	if c.second != nil {
		lock := &m.locks[c.id>>56]
		lock.Lock()
		defer lock.Unlock()
	}
	m.one(c, now, c.hits)
}

// one counts n hits of a call, or gives them back.
func (m *memory) one(c *call, now int64, n uint64) {
	switch {
	case c.op == GiveBack:
		m.giveBack(c, now, n)
	case c.counts:
		m.window(c, now, n)
	case c.second != nil:
		m.both(c, now)
	default:
		c.decision = c.at().TakeAt(now, clampInt(n))
		if !c.decision.Allowed {
			c.over = true
			m.denied(c, now, 0, n)
		}
	}
}

// window adds n to the window's count.
func (m *memory) window(c *call, now int64, n uint64) {
	of := c.here()
	cost := int(min(n, uint64(of.most)))
	d := c.at().TakeAt(now, cost)
	after := of.count(d.Remaining) + n - uint64(cost)
	counted := n
	if n > 0 && !d.Allowed {
		// The counter is full, which is above any limit, or has no room for a new key.
		c.over, c.full, after, counted = true, true, max(after, c.limit), 0
	}
	if c.counted(after, c.left(now)); c.over {
		m.denied(c, now, counted, n-counted)
	}
}

func (m *memory) deny(b *batch) {
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			m.denied(c, b.now, 0, c.hits)
		}
	}
}

// denied notes hits that were denied: counted are in the count of the window, missing are not.
func (m *memory) denied(c *call, now int64, counted, missing uint64) {
	if counted|missing == 0 || c.final {
		return
	}
	wait := min(max(c.period, leastWait), mostWait)
	m.denials.add(c.denialID(), now, denial{counted: counted, missing: missing, window: c.window(now), until: addTime(now, int64(wait))})
}

// denialID is the id of denied hits: the id of the entries, for a rule of any limit; and for overrides an id for
// each unit.
func (c *call) denialID() uint64 { return c.id + uint64(c.override)*0x9E3779B97F4A7C15 }

// window names the window of a counter at now. Different windows have different names, even if their periods differ.
func (c *call) window(now int64) uint64 {
	if !c.counts {
		return 0
	}
	period := int64(c.period)
	if c.dates != nil {
		return c.dates.Start(c.dates.At(now)) + uint64(period)*0x9E3779B97F4A7C15
	}
	return uint64(now-floorMod(now-c.offset, period)) + uint64(period)*0x9E3779B97F4A7C15
}

// giveBack gives n hits back: of two budgets first to the second, as far as it was charged for this key.
func (m *memory) giveBack(c *call, now int64, n uint64) {
	if n != 0 {
		c.absorbed = m.denials.absorb(c.denialID(), now, n, c.window(now))
		rest := n - c.absorbed
		if s := c.second; s != nil {
			s.hits = m.spilled.take(c.id, s.name(), now, rest)
			s.at().Refund(clampInt(s.hits))
			rest -= s.hits
		}
		c.at().Refund(clampInt(rest))
	}
	c.stand(now)
}

// stand fills in how the key of a call stands that asks for nothing, or has given hits back.
func (c *call) stand(now int64) {
	switch {
	case c.counts:
		c.count, c.decision.ResetAfter = min(c.here().count(c.at().TakeAt(now, 0).Remaining), c.limit), c.left(now)
	case c.second != nil:
		c.standBoth()
	default:
		c.decision = c.at().Peek(0) // a refund is at the clock's time: at now the key would not look whole
	}
}

// lock locks the keys of all windows, and of all calls with a second budget.
func (m *memory) lock(calls []call) (held [4]uint64) {
	for i := range calls {
		if c := &calls[i]; c.counter != nil && (c.counts || c.second != nil) {
			n := c.id >> 56
			held[n/64] |= 1 << (n % 64)
		}
	}
	for i, set := range held {
		for ; set != 0; set &= set - 1 {
			m.locks[i*64+bits.TrailingZeros64(set)].Lock()
		}
	}
	return held
}

func (m *memory) unlock(held [4]uint64) {
	for i, set := range held {
		for ; set != 0; set &= set - 1 {
			m.locks[i*64+bits.TrailingZeros64(set)].Unlock()
		}
	}
}

func (m *memory) reset(domain string, b *batch) error {
	s := &m.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i := range b.calls {
		c := &b.calls[i]
		s.detach(domain, c)
		lock := &m.locks[c.id>>56]
		lock.Lock()
		c.at().Reset()
		if c.second != nil {
			c.second.at().Reset()
			delete(m.spilled.shards[c.id>>56].keys, c.id)
		}
		m.denials.uncount(c.denialID())
		lock.Unlock()
	}
	return nil
}

func (m *memory) stats(out *Stats) {
	add := func(u Unit, l *sluice.Limiter) {
		s := l.Stats()
		out.Keys[u] += s.Keys
		out.Evicted += s.Evicted
		out.Untracked += s.Untracked
	}
	out.Evicted, out.Untracked = m.evicted, m.untracked
	for _, g := range m.groups {
		for _, u := range units {
			add(u, g[u].limiter)
		}
	}
	for _, limiters := range []map[string]*kept{m.kept, m.absent} {
		for _, k := range limiters {
			add(UnknownUnit, k.limiter)
		}
	}
	out.Denied, out.Unrecorded = m.denials.len(), m.denials.unrecorded.Load()
}
