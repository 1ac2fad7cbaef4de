package redislimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// holdVariants are the algorithms whose keys can have holds.
var holdVariants = []sluice.Algorithm{
	sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket, sluice.FixedWindow, sluice.FixedWindowFirstCharge, sluice.SlidingWindow, sluice.TokenBucketInterval, sluice.InFlight,
}

// A heldUnits is a hold of a model: what it was charged, by time.
type heldUnits struct {
	total, ends int64
	asked       int64 // by OpHold
	back        bool
	at, units   []int64 // charges: times and units
}

// An endedHold is what is known of a hold until a time.
type endedHold struct {
	until, asked int64
	used         int64 // or -1 if that is not known
}

// A holdModel is a key with holds, kept the plainest way. Times are in us.
type holdModel struct {
	shape    shape
	burst    int64
	holds    map[string]*heldUnits
	ended    map[string]endedHold // holds that have been settled, by id
	now      int64
	debt     int64           // of a bucket, in sub-units
	counts   map[int64]int64 // of windows
	spent    [][2]int64      // what has been used for good: times and units
	start    int64           // of a window from the first charge
	overs    int64           // units used beyond holds
	interval int64           // units of refills at intervals, as of the last boundary
}

func newHoldModel(p *plan, now int64) *holdModel {
	return &holdModel{shape: p.shape, burst: p.burst, holds: map[string]*heldUnits{}, ended: map[string]endedHold{}, now: now, counts: map[int64]int64{}, start: -1}
}

// window is the number of the window of a time.
func (m *holdModel) window(at int64) int64 {
	switch s := m.shape.(type) {
	case counter:
		return floorDiv(at-s.offset, s.period)
	case sliding:
		return floorDiv(at-s.offset, s.period)
	case inFlight:
		return floorDiv(at, s.period)
	case firstCharge:
		if m.start >= 0 && at >= m.start && at < m.start+s.period {
			return m.start
		}
	}
	return -1
}

// goOn goes on to a time, from one lapse to the next.
func (m *holdModel) goOn(to int64) {
	for {
		first := ""
		for id, h := range m.holds {
			if h.ends <= to && (first == "" || h.ends < m.holds[first].ends || h.ends == m.holds[first].ends && id < first) {
				first = id
			}
		}
		if first == "" {
			m.drain(to)
			return
		}
		h := m.holds[first]
		m.drain(max(h.ends, m.now))
		used := h.total
		if h.back {
			used = 0
		}
		m.end(first, used)
		delete(m.ended, first)
	}
}

func (m *holdModel) drain(to int64) {
	switch s := m.shape.(type) {
	case bucket:
		m.debt = max(0, m.debt-(to-m.now)*s.drain)
	case counter:
		if s.sign == 'i' {
			m.interval = max(0, m.interval-(m.window(to)-m.window(m.now))*s.back)
		}
	case firstCharge:
		if m.start >= 0 && (to >= m.start+s.period || m.counts[m.start] == 0) {
			m.start = -1
		}
	}
	m.now = to
}

// held is the units on hold.
func (m *holdModel) held() (n int64) {
	for _, h := range m.holds {
		n += h.total
	}
	return n
}

func (m *holdModel) free() int64 {
	switch s := m.shape.(type) {
	case bucket:
		return max(0, floorDiv(s.full-m.debt, s.unit)-m.held())
	case counter:
		if s.sign == 'i' {
			return max(0, m.burst-m.interval)
		}
		return max(0, m.burst-m.counts[m.window(m.now)])
	case inFlight:
		w := m.window(m.now)
		return max(0, m.burst-m.counts[w]-m.counts[w-1])
	case sliding:
		w := m.window(m.now)
		return s.free(view{now: m.now, a: m.counts[w], b: m.counts[w-1]})
	}
	return max(0, m.burst-m.counts[m.window(m.now)])
}

// charge charges units that are spent, or on hold in a window.
func (m *holdModel) charge(n int64) {
	switch s := m.shape.(type) {
	case bucket:
		m.debt += n * s.unit
	case counter:
		m.interval += n
		m.counts[m.window(m.now)] += n
	case firstCharge:
		if m.start < 0 && n > 0 {
			m.start = m.now
			m.counts[m.start] = 0
		}
		m.counts[m.window(m.now)] += n
	default:
		m.counts[m.window(m.now)] += n
	}
}

func (m *holdModel) take(n int64) bool {
	if n > m.free() {
		return false
	}
	m.charge(n)
	m.spent = append(m.spent, [2]int64{m.now, n})
	return true
}

func (m *holdModel) hold(id string, n, ttl int64, back bool) bool {
	if m.known(id) {
		return true
	}
	if n > m.free() {
		return false
	}
	_, whole := m.shape.(inFlight)
	m.holds[id] = &heldUnits{ends: m.now + ttl, asked: n, back: back || whole}
	m.more(id, n)
	return true
}

func (m *holdModel) known(id string) bool { return m.holds[id] != nil || m.ended[id].until > m.now }

// other reports whether a hold is known that was made otherwise.
func (m *holdModel) other(c *StoreCall) bool {
	if h := m.holds[c.HoldID]; h != nil {
		_, whole := m.shape.(inFlight)
		return h.asked != int64(c.Cost) || !whole && h.back != c.GiveBack
	}
	return m.known(c.HoldID) && m.ended[c.HoldID].asked != int64(c.Cost)
}

func (m *holdModel) more(id string, n int64) {
	h := m.holds[id]
	h.total, h.at, h.units = h.total+n, append(h.at, m.now), append(h.units, n)
	if _, ok := m.shape.(bucket); !ok {
		m.charge(n)
	}
}

func (m *holdModel) extend(id string, n, ttl int64) bool {
	if _, ok := m.shape.(inFlight); ok {
		return m.renew(id, n, ttl)
	}
	if n > m.free() {
		return false
	}
	m.more(id, n)
	if ttl > 0 {
		m.holds[id].ends = m.now + ttl
	}
	return true
}

// renew extends a hold of units in flight: all its units are then of the present window. Those that have come back by
// themselves need room as new ones do.
func (m *holdModel) renew(id string, n, ttl int64) bool {
	h, w, counted := m.holds[id], m.window(m.now), int64(0)
	for i := range h.at {
		if m.window(h.at[i]) >= w-1 {
			counted += h.units[i]
		}
	}
	if n+h.total-counted > m.free() {
		return false
	}
	for i, units := range h.units {
		m.counts[m.window(h.at[i])] -= units
	}
	total := h.total + n
	h.at, h.units, h.total = nil, nil, 0
	m.more(id, total)
	if ttl > 0 {
		h.ends = m.now + ttl
	}
	return true
}

// end ends a hold of which some units have been used: the first ones it was charged.
func (m *holdModel) end(id string, used int64) {
	h := m.holds[id]
	delete(m.holds, id)
	m.ended[id] = endedHold{h.ends, h.asked, -1}
	m.overs += max(0, used-h.total)
	if _, ok := m.shape.(bucket); ok {
		m.charge(used)
		m.spent = append(m.spent, [2]int64{m.now, used})
		return
	}
	left := used
	for i, n := range h.units {
		part := min(left, n)
		left -= part
		m.spent = append(m.spent, [2]int64{h.at[i], part})
		m.giveBack(h.at[i], n-part)
	}
	m.charge(left)
	if left > 0 {
		m.spent = append(m.spent, [2]int64{m.now, left})
	}
}

// giveBack gives back units of a window to where they still count.
func (m *holdModel) giveBack(at, n int64) {
	w, same := m.window(at), m.window(at) == m.window(m.now)
	if s, ok := m.shape.(counter); ok && s.sign == 'i' && same {
		m.interval = max(0, m.interval-n)
	}
	if _, ok := m.shape.(firstCharge); ok && (w < 0 || !same) {
		return
	}
	m.counts[w] -= n
}

// bounded demands that what has been used is within the worst case, of each span.
func (m *holdModel) bounded(t *testing.T, worst func(time.Duration) int) {
	slices.SortFunc(m.spent, func(a, b [2]int64) int { return int(a[0] - b[0]) })
	for i := range m.spent {
		sum := int64(0)
		for j := i; j < len(m.spent); j++ {
			sum += m.spent[j][1]
			span := time.Duration(m.spent[j][0]-m.spent[i][0]) * time.Microsecond
			require.LessOrEqual(t, sum-m.overs, int64(worst(span)), "from %d to %d", m.spent[i][0], m.spent[j][0])
		}
	}
}

// A holdTracer makes the same calls of processes that share a key, and of a model.
type holdTracer struct {
	*testing.T
	now    int64
	join   func() // another process
	stores []*Store
	limits []*StoreLimit
	models map[string]*holdModel
	log    []string
}

func newHoldTracer(t *testing.T, s *server, cfg LimitConfig, processes int) *holdTracer {
	tr := &holdTracer{T: t, now: startMicros, models: map[string]*holdModel{}}
	prefix := newPrefix()
	cfg.Exact, cfg.Name = true, "a"
	tr.join = func() {
		store := newStore(t, s.client, StoreConfig{Prefix: prefix, TimeSource: CallerClock})
		store.link.clock, store.link.spare = func() int64 { return tr.now }, 3_600_000
		tr.stores, tr.limits = append(tr.stores, store), append(tr.limits, limitOf(t, store, cfg))
	}
	for range processes {
		tr.join()
	}
	return tr
}

func (tr *holdTracer) model(key string) *holdModel {
	if tr.models[key] == nil {
		tr.models[key] = newHoldModel(tr.limits[0].plan.Load(), tr.now)
	}
	return tr.models[key]
}

// A holdAnswer is what a model says of a call. After an error the rest means nothing.
type holdAnswer struct {
	err             error
	allowed         bool
	remaining, held int64 // held is 0 unless the call is of a hold
}

// answerOf is what a process has answered.
func answerOf(op Op, r *StoreResult) holdAnswer {
	if r.Err != nil {
		return holdAnswer{err: r.Err}
	}
	a := holdAnswer{allowed: r.Decision.Allowed, remaining: int64(r.Decision.Remaining)}
	if op.isOfHold() {
		a.held = int64(r.Held)
	}
	return a
}

// apply makes a call at a time.
func (m *holdModel) apply(c *StoreCall, now int64) (a holdAnswer) {
	m.goOn(now)
	n, ttl, h := int64(c.Cost), int64(c.TTL/time.Microsecond), m.holds[c.HoldID]
	a.allowed = true
	if h != nil && c.Op.isOfHold() {
		a.held = h.total
	}
	switch c.Op {
	case OpTake:
		a.allowed = m.take(n)
	case OpHold:
		if m.other(c) {
			return holdAnswer{err: ErrOtherHold}
		}
		if a.allowed = m.hold(c.HoldID, n, ttl, c.GiveBack); m.holds[c.HoldID] != nil {
			a.held = m.holds[c.HoldID].total
		}
	case OpSettle, OpExtend:
		if e := m.ended[c.HoldID]; h == nil && c.Remember > 0 && e.until > m.now && e.used == n {
			a.allowed = m.free() >= 1
		} else if h == nil {
			return holdAnswer{err: ErrNotHeld}
		} else if c.Op == OpExtend {
			a.allowed = m.extend(c.HoldID, n, ttl)
			a.held = h.total
		} else {
			m.end(c.HoldID, n)
			if a.allowed = m.free() >= 1; c.Remember > 0 {
				e := m.ended[c.HoldID]
				m.ended[c.HoldID] = endedHold{max(e.until, now+int64(c.Remember/time.Microsecond)), e.asked, n}
			}
		}
	default:
		a.allowed = m.free() >= max(1, n)
	}
	a.remaining = m.free()
	return a
}

// call makes a call of a process, and compares.
func (tr *holdTracer) call(at int, c StoreCall) StoreResult {
	c.Limit = tr.limits[at]
	out := do(tr.T, tr.stores[at], c)[0]
	tr.log = append(tr.log, fmt.Sprintf("process %d at %d: %v %s of %s, cost %d, TTL %v: %+v", at, tr.now-startMicros, c.Op, c.HoldID, c.Key, c.Cost, c.TTL, out))
	require.Equal(tr, tr.model(c.Key).apply(&c, tr.now), answerOf(c.Op, &out), "%v", tr.log[max(0, len(tr.log)-20):])
	if out.Err == nil {
		require.Equal(tr, FromRedis, out.Source)
	}
	return out
}

// holdLimit draws a limit of an algorithm.
func holdLimit(rng *rand.Rand, a sluice.Algorithm) sluice.Limit {
	limit := sluice.Per(1+rng.IntN(30), time.Duration(1+rng.IntN(20))*100*time.Millisecond)
	if a < sluice.SlidingWindow && a != sluice.TokenBucketInterval && rng.IntN(2) == 0 {
		limit = limit.WithBurst(1 + rng.IntN(60))
	}
	return limit
}

// holdCall draws the i-th call of a history. models tells how a key stands. If greedy is false, no hold is settled with more
// than it has.
func holdCall(rng *rand.Rand, i int, limit sluice.Limit, greedy bool, models func(key string) *holdModel) StoreCall {
	c := StoreCall{Key: []string{"a", "b}c"}[rng.IntN(2)], Cost: rng.IntN(2 + limit.Capacity()/2), HoldID: fmt.Sprint(rng.IntN(1 + i/3))}
	c.TTL, c.GiveBack = time.Duration(1+rng.Int64N(2_000_000))*time.Microsecond, rng.IntN(3) == 0
	c.Op = []Op{OpHold, OpHold, OpHold, OpSettle, OpSettle, OpExtend, OpTake, OpPeek}[rng.IntN(8)]
	m := models(c.Key)
	h, e := m.holds[c.HoldID], m.ended[c.HoldID]
	if rng.IntN(3) > 0 { // the same again
		if h != nil && c.Op == OpHold {
			c.Cost, c.GiveBack = int(h.asked), h.back
		} else if c.Op == OpHold && e.until > 0 {
			c.Cost = int(e.asked)
		} else if c.Op == OpSettle && e.used >= 0 {
			c.Cost = int(e.used)
		}
	}
	if c.Op == OpSettle && rng.IntN(2) == 0 {
		c.Remember = time.Duration(1+rng.Int64N(2_000_000)) * time.Microsecond
	}
	switch {
	case c.Op == OpTake && c.Cost == 0:
		c.Cost = 1
	case c.Op == OpPeek:
		c.Cost = 0
	case c.Op == OpExtend && rng.IntN(2) == 0:
		c.TTL = 0
	case c.Op == OpSettle && !greedy && h != nil:
		c.Cost = rng.IntN(int(h.total) + 1)
	}
	return c
}

// TestHolds_Model compares holds with a model over random histories, of three processes that share a server: calls that are
// tried again, settlements twice, late and of nothing, extensions, renewals and lapses. What has been used stays within
// WorstCase, and the units that holds have used beyond theirs.
func TestHolds_Model(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			t.Run(a.String(), func(t *testing.T) {
				rng := seeded.Rand(t)
				for range depth.Of(10, 25, 400) {
					limit := holdLimit(rng, a)
					tr := newHoldTracer(t, s, LimitConfig{Algorithm: a, Limit: limit, MaxHolds: 1000}, 3)
					greedy := rng.IntN(3) == 0 // more is used than was held
					for i := range 120 {
						tr.now += rng.Int64N(1 + 1<<rng.IntN(20))
						tr.call(rng.IntN(3), holdCall(rng, i, limit, greedy, tr.model))
					}
					for _, m := range tr.models {
						m.goOn(tr.now + 10_000_000)
						m.bounded(t, tr.limits[0].WorstCase)
					}
				}
			})
		}
	})
}
