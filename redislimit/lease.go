package redislimit

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// leases holds the units that Redis has lent to this process. Calls are admitted from them
// without asking Redis.
//
//	caller:  spends from the lease of its key                             (shard's lock)
//	sender:  before it sends a call for the key: serves callers that wait, closes the lease,
//	         and lets the call settle it and ask for another   (lane's, then shard's lock)
//	sender:  with the reply, opens the lease, and serves callers that wait (the same)
//	timer:   closes a lease that ends; a call of its own gives back the unused units, unless its window is over
//
// Redis counts a lease from its reply until the lease is settled, and for an epoch at least: life
// and two budgets, by the clock of Redis. This process spends from a lease until life after it sent the call, by
// its own clock, which is earlier. So every admitted unit counts in Redis at the time of its admission, and the
// bound of the limit holds for all replicas together, however many there are.
//
// A call without an answer opens no lease here, and its settlement is not sent again. Redis then counts as spent
// the units that it may have lent, and the units whose settlement it has not seen.
type leases struct {
	replicas *atomic.Int64
	pause    time.Duration
	began    time.Time
	stats    *tierStats
	settle   func(name string, p *plan, s leasing) // sends a settlement

	shards [tableShards]leaseShard
	room   int // number of loans of a shard
	closed atomic.Bool

	ending sync.Mutex // held while ended leases are closed; taken before any other lock
	mu     sync.Mutex // guards the rest; taken after any other lock
	ends   leaseEnds
	timer  *time.Timer
}

type leaseShard struct {
	mu    sync.Mutex
	loans map[uint64]*loan // by hash: if two keys have the same hash, one of them has no leases
	_     [48]byte
}

// A loan is the state of a key for which leases are asked for. Times are in ns since
// the tier began.
type loan struct {
	shard     *leaseShard // its lock guards the fields after name
	keys      *keyspace
	key, name string
	id        uint64

	plan    *plan // of the lease
	terms   *terms
	granted int64 // units of the lease; 0 if there is no lease
	left    int64 // units that may be spent before ends
	spent   int64 // units that Redis has not been told of
	told    int64 // of spent, the units that the local limiter has been told of
	since   int64 // us: the time of the reply
	sent    int64
	life    int64 // ns that the lease may live
	ends    int64 // it cannot be spent from then on
	back    int64 // when unused units are given back, if no call has taken them along
	over    int64 // when its window ends, and unused units with it

	others int64         // units that were free at the last reply, beside the lease
	reset  time.Duration // until the key would have been as if fresh, from sent

	asking  bool  // a call that asks for a lease is under way,
	batch   bool  // that call asks for all free units, not for a share of them
	size    int64 // units to ask for
	asked   int64 // when a call was last sent
	emptied int64 // when the last unit of the lease was spent
	paused  int64 // Redis is not asked before this time
	denials int64 // determines how long to wait after a denial; 0 while Redis has had units left

	// Guarded by mu of leases.
	due   int64 // back
	place int   // in leaseEnds, from 1; 0 if it is not there
}

func newLeases(c *core) *leases {
	ls := &leases{
		replicas: &c.replicas, pause: c.budget / 8, began: c.began, stats: &c.stats, room: (c.maxKeys-1)/tableShards + 1,
	}
	for i := range ls.shards {
		ls.shards[i].loans = map[uint64]*loan{}
	}
	ls.settle = func(name string, p *plan, s leasing) { c.router.lane(name, time.Now()).settle(name, p, s) }
	return ls
}

func (ls *leases) shard(id uint64) *leaseShard { return &ls.shards[id%tableShards] }

// of returns the loan of a key, or nil. The caller holds the shard's lock.
func (s *leaseShard) of(k subject) *loan {
	if h := s.loans[k.id]; h != nil && h.keys == k.keyspace && h.key == k.key {
		return h
	}
	return nil
}

// spend admits a call from the lease of its key, if there is a lease and the call fits into it. If
// charges is false, spend only returns the Decision.
func (ls *leases) spend(p *plan, k subject, cost int, charges bool, now int64) (d sluice.Decision, ok bool) {
	if ls == nil {
		return d, false
	}
	s := ls.shard(k.id)
	s.mu.Lock()
	if h := s.of(k); h != nil {
		d, ok = h.spend(p, int64(cost), charges, now)
	}
	s.mu.Unlock()
	return d, ok
}

func (h *loan) spend(p *plan, cost int64, charges bool, now int64) (d sluice.Decision, ok bool) {
	if cost < 0 || max(cost, 1) > h.left || now >= h.ends || h.plan != p {
		return d, false
	}
	d = sluice.Decision{Allowed: true, Limit: int(p.burst), Remaining: int(h.others + h.left - cost), ResetAfter: h.reset}
	if d.ResetAfter != sluice.Never {
		d.ResetAfter = max(d.ResetAfter-time.Duration(now-h.sent), 1)
	}
	if charges {
		h.left -= cost
		h.spent += cost
		if h.left == 0 {
			h.emptied = now
		}
	}
	return d, true
}

// loan returns the loan of a call's key. If there is none, it makes one for a call that charges.
// It returns nil if the plan allows no leases, or if there is no room and no other loan can be
// dropped.
func (ls *leases) loan(r *request, k subject, now time.Time) *loan {
	if ls == nil || !k.lends.Load() {
		return nil
	}
	s := ls.shard(k.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch h := s.of(k); {
	case h != nil:
		return h
	case s.loans[k.id] != nil || r.k == 0 || r.terms.largest(r.plan) == 0:
		return nil
	}
	at := int64(now.Sub(ls.began))
	if len(s.loans) >= ls.room && !s.drop(at-r.terms.life) {
		return nil
	}
	at -= longLife * r.terms.life
	h := &loan{shard: s, terms: r.terms, keys: k.keyspace, key: k.key, id: k.id, name: r.key, asked: at, paused: at}
	s.loans[k.id] = h
	return h
}

// drop makes room for one loan. It looks at a few loans, and drops those that have no lease, have no call
// under way that asks for one, and have not been asked for since a time.
func (s *leaseShard) drop(before int64) (dropped bool) {
	left := tableSample
	for hash, h := range s.loans { // begins at a random loan
		if h.granted == 0 && !h.asking && h.asked <= before {
			delete(s.loans, hash)
			dropped = true
		}
		if left--; left == 0 {
			break
		}
	}
	return dropped
}

// prepare is called for a group that is about to be sent. It serves as many of its callers as it can from the
// lease, and sets the leasing of the group's call. The caller holds the lane's lock.
func (ls *leases) prepare(g *group, now int64) {
	h := g.loan
	h.shard.mu.Lock()
	defer h.shard.mu.Unlock()
	switch {
	case g.op == opReset, g.op == opHold:
		g.leasing = ls.close(h)
	case g.op == opRefund, g.op == opDebit:
		g.leasing = ls.report(h)
	case g.k == 0: // a group of Peek
		if h.left < g.n {
			g.leasing = ls.close(h)
		}
	default:
		h.serve(g, now)
		if g.waits() > 0 {
			g.leasing = ls.next(h, &g.request, now)
		}
	}
}

// A lease lives for the Life of its limit. That of a window lives longLife times as long if its units are at most one in smallPart of
// those left for each process: what then lies idle in all processes is at most that part of what was left. So keys that are
// called once in some seconds have leases, too. While more than half of the loans are taken leases live no longer, or they would keep
// other keys from having any.
const (
	longLife  = 30
	smallPart = 16
)

// life returns how long a lease lives. The caller holds the shard's lock.
func (ls *leases) life(h *loan, t *terms, p *plan, units int64) int64 {
	_, drains := p.shape.(bucket)
	if drains || product(product(units, smallPart), ls.replicas.Load()) > h.others || 2*len(h.shard.loans) > ls.room {
		return t.life
	}
	return max(t.life, min(longLife*t.life, int64(p.limit.Period)/2))
}

// next closes the lease and returns the leasing that asks for another one. It asks for twice as many units as
// before if these would be spent within the life of their lease, and for half as many if more than half of the lease lapsed.
//
// Only one call at a time asks. Other calls for the key may be under way with it, and bring no lease.
func (ls *leases) next(h *loan, r *request, now int64) leasing {
	if h.asking {
		return leasing{}
	}
	took := now - h.asked
	switch {
	case h.granted == 0: // there was no lease: time in a pause does not count
		took = now - max(h.asked, h.paused)
	case h.left == 0:
		took = h.emptied - h.asked
	}
	more := max(1, 2*h.size)
	if h.granted >= h.size && 2*h.left <= h.granted && r.terms != nil && took <= ls.life(h, r.terms, r.plan, more)/2 {
		h.size = more
	}
	s := ls.close(h)
	h.size = min(h.size, r.terms.largest(r.plan))
	if h.size > 0 && now-max(h.asked, h.paused) > r.terms.life/2 {
		h.denials = 0
	}
	h.asked, h.asking = now, h.size > 0
	if h.asking {
		s.lend, s.share, s.epoch = h.size, min(product(2, ls.replicas.Load()), 1<<32-1), r.terms.epoch
		if h.batch = h.denials > 0 && r.terms.pause(r.plan) > 0; h.batch {
			s.share = 1 // each process takes its turn with the units that have drained meanwhile
		}
	}
	return s
}

// close ends the lease, and returns its settlement, which is empty if there is nothing to settle. The
// caller holds the shard's lock.
func (ls *leases) close(h *loan) leasing {
	if 2*h.left > h.granted {
		h.size /= 2
	}
	s := ls.report(h)
	if h.left > 0 {
		s.since, s.epoch, s.unused = h.since, h.terms.epoch, h.left
		ls.stats.returned.Add(uint64(h.left))
	}
	ls.without(h)
	return s
}

// lapse ends a lease whose window is over: there is nothing to give back. It is no sign of too many units that it did not have its time. The
// caller holds the shard's lock.
func (ls *leases) lapse(h *loan) {
	if 2*h.left > h.granted && 2*(h.over-h.sent) >= h.life {
		h.size /= 2
	}
	ls.report(h)
	ls.without(h)
}

// without makes a loan one without a lease. The caller holds the shard's lock.
func (ls *leases) without(h *loan) {
	h.granted, h.left = 0, 0
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if h.place > 0 {
		heap.Remove(&ls.ends, h.place-1)
	}
}

// report returns a settlement of the units that have been spent; the lease stays open. The
// caller holds the shard's lock.
func (ls *leases) report(h *loan) (s leasing) {
	ls.warm(h)
	if h.spent > 0 {
		s.since, s.epoch, s.spent = h.since, h.terms.epoch, h.spent
	}
	h.spent, h.told = 0, 0
	return s
}

// warm charges the local limiter with the units spent. The caller holds the shard's lock.
func (ls *leases) warm(h *loan) {
	if n := h.spent - h.told; n > 0 {
		subject{h.keys, h.key, h.id}.share(h.plan).TakeUpTo(int(n))
		h.told = h.spent
	}
}

// warmKey charges the local limiter with the units spent from the lease of a key.
func (ls *leases) warmKey(k subject) {
	if ls == nil || !k.lends.Load() {
		return
	}
	s := ls.shard(k.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.of(k); h != nil {
		ls.warm(h)
	}
}

// answered is called for a group when the client has returned. It opens the lease that has come with
// the reply, and serves the callers that wait in next, which may be nil. If the leases have been closed
// meanwhile it returns the settlement of the new lease. The caller holds the lane's lock.
func (ls *leases) answered(g *group, s *scheduled, next *group, now int64) (p leasing) {
	h := g.loan
	h.shard.mu.Lock()
	defer h.shard.mu.Unlock()
	if g.lend > 0 {
		h.asking = false
	}
	if s.err != nil {
		return p
	}
	h.others = g.plan.shape.free(s.reply.view)
	if g.k > 0 && g.terms != nil {
		ls.paces(h, g, &s.reply)
	}
	if g.lend == 0 || s.reply.c == 0 {
		return p
	}
	ls.open(h, &g.request, &s.reply, int64(g.batch.sent.Sub(ls.began)))
	if next != nil {
		h.serve(next, now)
	}
	if ls.closed.Load() || h.terms.ended.Load() {
		return ls.close(h)
	}
	return p
}

// open makes a lease of the units that a reply has lent. A lease that comes too late ends at once.
func (ls *leases) open(h *loan, q *request, r *reply, sent int64) {
	ls.stats.lent.Add(uint64(r.c))
	p := q.plan
	h.plan, h.terms, h.granted, h.left, h.spent, h.told = p, q.terms, r.c, r.c, 0, 0
	h.since, h.sent, h.life = r.now, sent, ls.life(h, q.terms, p, r.c)
	open := int64(duration(p.shape.open(r.view)))
	h.over = sent + min(open, math.MaxInt64-sent)
	h.ends = min(sent+h.life-h.life/100, h.over)
	h.back = h.ends
	if h.life > q.terms.life { // this clock may be slower than that of Redis; and the next call may take the units along that are left
		h.ends = min(h.ends, h.over-open/clockDrift)
		h.back = min(h.ends+h.life, h.over)
	}
	h.reset = duration(p.shape.reset(r.view))
	ls.mu.Lock()
	defer ls.mu.Unlock()
	h.due = h.back
	if h.place > 0 {
		heap.Fix(&ls.ends, h.place-1)
	} else {
		heap.Push(&ls.ends, h)
	}
	if ls.ends[0] == h {
		ls.arm()
	}
}

// clockDrift is what part of a time two clocks may differ by: 1 in so many.
const clockDrift = 1000

// serve admits callers from the lease, in their order, while they fit.
func (h *loan) serve(g *group, now int64) {
	for _, w := range g.waiters {
		if w.gone || w.leased {
			continue
		}
		if w.decision, w.leased = h.spend(g.plan, g.n, true, now); !w.leased {
			return
		}
	}
}

// out returns how many units can be spent from leases now.
func (ls *leases) out() (units int64) {
	if ls == nil {
		return 0
	}
	now := int64(time.Since(ls.began))
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		for _, h := range s.loans {
			if now < h.ends {
				units += h.left
			}
		}
		s.mu.Unlock()
	}
	return units
}

// endOf closes all leases of some terms. Calls no longer ask for such leases.
func (ls *leases) endOf(t *terms) {
	if t == nil {
		return
	}
	ls.ending.Lock()
	defer ls.ending.Unlock()
	t.ended.Store(true)
	ls.closeAll(func(h *loan) bool { return h.terms == t })
}

// end closes all leases. Leases that arrive later are closed at once.
func (ls *leases) end() {
	if ls == nil {
		return
	}
	ls.ending.Lock()
	defer ls.ending.Unlock()
	ls.closed.Store(true)
	ls.mu.Lock()
	if ls.timer != nil {
		ls.timer.Stop()
	}
	ls.mu.Unlock()
	ls.closeAll(func(*loan) bool { return true })
}

// closeAll closes the leases that f picks, and forgets their keys. The caller holds ending.
func (ls *leases) closeAll(f func(*loan) bool) {
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		var settled []settlement
		for id, h := range s.loans {
			if !f(h) {
				continue
			}
			if h.granted > 0 {
				settled = append(settled, settlement{h.name, h.plan, ls.close(h)})
			}
			if !h.asking {
				delete(s.loans, id)
			}
		}
		s.mu.Unlock()
		for _, e := range settled {
			if e.spent+e.unused > 0 {
				ls.settle(e.name, e.plan, e.leasing)
			}
		}
	}
}
