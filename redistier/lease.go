package redistier

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// leases are the units that Redis has lent this process, which admits calls from them
// without asking.
//
//	caller:  spends from the lease of its key                             (shard's lock)
//	sender:  before it sends a call for the key: serves callers that wait, closes the lease,
//	         and lets the call settle it and ask for another   (lane's, then shard's lock)
//	sender:  with the reply, opens the lease, and serves callers that wait (the same)
//	timer:   closes a lease that ends; what is unused, a call of its own gives back
//
// Redis counts a lease from its reply until it is settled, and for an epoch at least: life
// and two budgets, by its clock. A lease is spent until life after its call was sent, by the clock of this
// process, which is earlier. So everything that is admitted counts at that time, and the
// bound of the limit is that of all replicas together, however many there are.
//
// A call that is not answered lends nothing here, and has settled nothing: what Redis may
// have lent, or does not know of, it takes for spent.
type leases struct {
	replicas *atomic.Int64
	pause    time.Duration
	began    time.Time
	stats    *tierStats
	settle   func(name string, p *plan, s leasing) // sends a settlement

	shards [tableShards]leaseShard
	room   int // holds of a shard
	closed atomic.Bool

	ending sync.Mutex // held while leases are closed that have ended; before any other lock
	mu     sync.Mutex // guards the rest; after any other lock
	ends   []leaseEnd // in their order
	timer  *time.Timer
}

type leaseShard struct {
	mu    sync.Mutex
	holds map[uint64]*hold // by hash: of two keys that have the same, one has no leases
	_     [48]byte
}

// A hold is what is known of a key for which leases are asked for. Times are in ns since
// the tier began.
type hold struct {
	shard     *leaseShard // its lock guards what follows the names
	keys      *keyspace
	key, name string
	id        uint64

	plan    *plan // of the lease
	terms   *terms
	serial  int64 // of the lease
	granted int64 // units; 0: there is no lease
	left    int64 // that may be spent before ends
	spent   int64 // that Redis has not been told of
	told    int64 // of these, what the local limiter has been told of
	since   int64 // us: the time of the reply
	sent    int64
	ends    int64

	others int64         // units that were free, beside the lease
	reset  time.Duration // until the key would have been as if fresh, from sent

	asking  bool  // a call that asks for a lease is under way,
	batch   bool  // for all that there is
	size    int64 // units to ask for
	asked   int64 // when a call was last sent
	emptied int64 // when the last unit of the lease was spent
	paused  int64 // until when Redis is not asked
	denials int64 // steers how long to wait after a denial; 0: Redis has had units left
}

type leaseEnd struct {
	hold   *hold
	serial int64
	at     int64
}

func newLeases(c *core) *leases {
	ls := &leases{
		replicas: &c.replicas, pause: c.budget / 8, began: c.began, stats: &c.stats, room: (c.maxKeys-1)/tableShards + 1,
	}
	for i := range ls.shards {
		ls.shards[i].holds = map[uint64]*hold{}
	}
	ls.settle = func(name string, p *plan, s leasing) { c.router.lane(name, time.Now()).settle(name, p, s) }
	return ls
}

func (ls *leases) shard(id uint64) *leaseShard { return &ls.shards[id%tableShards] }

// of returns what is known of a key, or nil. The caller holds the shard's lock.
func (s *leaseShard) of(k subject) *hold {
	if h := s.holds[k.id]; h != nil && h.keys == k.keyspace && h.key == k.key {
		return h
	}
	return nil
}

// spend admits a call from the lease of the key, if there is one that it fits into; and if
// charges is false, says what it would.
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

func (h *hold) spend(p *plan, cost int64, charges bool, now int64) (d sluice.Decision, ok bool) {
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

// hold returns that of a call's key. If there is none it makes one for a call that charges,
// unless no leases can be asked for under the plan, or there is no room and no other hold
// can go.
func (ls *leases) hold(r *request, k subject, now time.Time) *hold {
	if ls == nil || !k.lends.Load() {
		return nil
	}
	s := ls.shard(k.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch h := s.of(k); {
	case h != nil:
		return h
	case s.holds[k.id] != nil || r.k == 0 || r.terms.largest(r.plan) == 0:
		return nil
	}
	at := int64(now.Sub(ls.began)) - r.terms.life
	if len(s.holds) >= ls.room && !s.drop(at) {
		return nil
	}
	h := &hold{shard: s, terms: r.terms, keys: k.keyspace, key: k.key, id: k.id, name: r.key, asked: at, paused: at}
	s.holds[k.id] = h
	return h
}

// drop makes room for one hold: of a few, those go that have no lease, and no call that asks
// for one, and have not been asked for since a time.
func (s *leaseShard) drop(before int64) (dropped bool) {
	left := tableSample
	for hash, h := range s.holds { // which begins anywhere
		if h.granted == 0 && !h.asking && h.asked <= before {
			delete(s.holds, hash)
			dropped = true
		}
		if left--; left == 0 {
			break
		}
	}
	return dropped
}

// prepare is for a group that is about to be sent. It serves what callers it can, and says
// what the group's call says of leases. The caller holds the lane's lock.
func (ls *leases) prepare(g *group, now int64) {
	h := g.hold
	h.shard.mu.Lock()
	defer h.shard.mu.Unlock()
	switch {
	case g.op == opReset:
		g.leasing = ls.close(h)
	case g.op == opRefund, g.op == opCharge:
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

// next closes the lease and says what to ask for: twice as many units as before while they
// are spent within half of life, and half as many where more than half lapsed.
//
// One call at a time asks. Others for the key may be under way with it, and bring none.
func (ls *leases) next(h *hold, r *request, now int64) leasing {
	if h.asking {
		return leasing{}
	}
	took := now - h.asked
	switch {
	case h.granted == 0: // calls were not asked about for a while
		took = now - max(h.asked, h.paused)
	case h.left == 0:
		took = h.emptied - h.asked
	}
	if h.granted >= h.size && 2*h.left <= h.granted && r.terms != nil && took <= r.terms.life/2 {
		h.size = max(1, 2*h.size)
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
			s.share = 1 // each takes its turn with what has drained meanwhile
		}
	}
	return s
}

// close ends the lease, and returns its settlement, if there is anything to settle. The
// caller holds the shard's lock.
func (ls *leases) close(h *hold) leasing {
	if 2*h.left > h.granted {
		h.size /= 2
	}
	s := ls.report(h)
	if h.left > 0 {
		s.since, s.epoch, s.unused = h.since, h.terms.epoch, h.left
		ls.stats.returned.Add(uint64(h.left))
	}
	h.granted, h.left = 0, 0
	return s
}

// report returns the settlement of what has been spent of the lease, which goes on. The
// caller holds the shard's lock.
func (ls *leases) report(h *hold) (s leasing) {
	ls.warm(h)
	if h.spent > 0 {
		s.since, s.epoch, s.spent = h.since, h.terms.epoch, h.spent
	}
	h.spent, h.told = 0, 0
	return s
}

// warm charges the local limiter with what has been spent. The caller holds the shard's lock.
func (ls *leases) warm(h *hold) {
	if n := h.spent - h.told; n > 0 {
		subject{h.keys, h.key, h.id}.share(h.plan).TakeUpTo(int(n))
		h.told = h.spent
	}
}

// warmKey charges the local limiter with what has been spent of a key.
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

// answered is for a group that the client has returned with. It opens the lease that has
// come, and serves the callers that wait in next, which may be nil. It returns the
// settlement of a lease for which it is too late. The caller holds the lane's lock.
func (ls *leases) answered(g *group, s *scheduled, next *group, now int64) (p leasing) {
	h := g.hold
	h.shard.mu.Lock()
	defer h.shard.mu.Unlock()
	if g.lend > 0 {
		h.asking = false
	}
	if s.err != nil {
		return p
	}
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

// open makes a lease of what a reply has lent. One that comes too late ends at once.
func (ls *leases) open(h *hold, q *request, r *reply, sent int64) {
	ls.stats.lent.Add(uint64(r.c))
	p, life := q.plan, q.terms.life
	h.plan, h.terms, h.granted, h.left, h.spent, h.told = p, q.terms, r.c, r.c, 0, 0
	h.since, h.sent = r.now, sent
	h.ends = sent + min(life-life/100, int64(duration(p.shape.open(r.view))))
	h.others, h.reset = p.shape.free(r.view), duration(p.shape.reset(r.view))
	h.serial++
	ls.mu.Lock()
	defer ls.mu.Unlock()
	i, _ := slices.BinarySearchFunc(ls.ends, h.ends, func(e leaseEnd, at int64) int { return cmp.Compare(e.at, at) })
	ls.ends = slices.Insert(ls.ends, i, leaseEnd{h, h.serial, h.ends})
	if i == 0 {
		ls.arm()
	}
}

// serve admits callers from the lease, in their order, while they fit.
func (h *hold) serve(g *group, now int64) {
	for _, w := range g.waiters {
		if w.gone || w.leased {
			continue
		}
		if w.decision, w.leased = h.spend(g.plan, g.n, true, now); !w.leased {
			return
		}
	}
}

// out returns how many units can be spent now.
func (ls *leases) out() (units int64) {
	if ls == nil {
		return 0
	}
	now := int64(time.Since(ls.began))
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		for _, h := range s.holds {
			if now < h.ends {
				units += h.left
			}
		}
		s.mu.Unlock()
	}
	return units
}

// arm sets the timer for the first end. The pause lets it find others as well. The caller
// holds mu.
func (ls *leases) arm() {
	if len(ls.ends) == 0 || ls.closed.Load() {
		return
	}
	d := max(time.Duration(ls.ends[0].at)-time.Since(ls.began), 0) + ls.pause
	ls.timer = rearm(ls.timer, d, ls.expire)
}

// expire closes the leases that have ended.
func (ls *leases) expire() {
	ls.ending.Lock()
	defer ls.ending.Unlock()
	for _, e := range ls.ended(int64(time.Since(ls.began))) {
		h := e.hold
		h.shard.mu.Lock()
		var s leasing
		p := h.plan
		if h.serial == e.serial && h.granted > 0 {
			s = ls.close(h)
		}
		h.shard.mu.Unlock()
		if s.unused > 0 {
			ls.settle(h.name, p, s)
		}
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.arm()
}

// ended takes those off the list that have ended.
func (ls *leases) ended(now int64) (due []leaseEnd) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for len(ls.ends) > 0 && ls.ends[0].at <= now {
		due = append(due, ls.ends[0])
		ls.ends = ls.ends[1:]
	}
	return due
}

// endOf closes the leases of some terms, which no call asks for any more.
func (ls *leases) endOf(t *terms) {
	if t == nil {
		return
	}
	ls.ending.Lock()
	defer ls.ending.Unlock()
	t.ended.Store(true)
	ls.closeAll(func(h *hold) bool { return h.terms == t })
}

// end closes all leases, and those that are still to come at once.
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
	ls.closeAll(func(*hold) bool { return true })
}

// closeAll closes the leases that f picks, and forgets their keys. The caller holds ending.
func (ls *leases) closeAll(f func(*hold) bool) {
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		var settled []settlement
		for id, h := range s.holds {
			if !f(h) {
				continue
			}
			if h.granted > 0 {
				settled = append(settled, settlement{h.name, h.plan, ls.close(h)})
			}
			if !h.asking {
				delete(s.holds, id)
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
