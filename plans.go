package sluice

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// Keys with a limit of their own are in limiters of their own, one for each such limit,
// which decide and sweep as any limiter does but are never full. The key's limiter is its
// owner. The tables of no other limiter hold the key, so that decisions on keys without a
// limit of their own cost nothing more: who does not find the key and wants to insert it
// learns that it is elsewhere; for certain, under the lock of the shard.
//
//	SetKeyLimit:  locks the key's shard; takes the key out of its table
//	decision:     does not find the key; waits for the lock
//	SetKeyLimit:  puts the key into the new owner's table; names the owner; unlocks
//	decision:     finds the owner changed; starts over there
//
// The key is in the new table before it is named. Who comes there early, having seen an
// earlier state of affairs, finds the one live word of the key.
type plans struct {
	main    *Limiter
	owners  *xsync.MapOf[uint64, *Limiter] // of the keys that have one other than main
	byLimit map[planLimit]*plan            // guarded by main.admin and moving

	// While a key moves the version is odd, and perhaps no table holds the key. Who finds
	// it nowhere believes it if the version has been the same, and even, all the time.
	version atomic.Uint64
	moving  sync.Mutex // held while it is odd; comes between a ledger and a shard
}

// A planLimit is a limit of keys. Unlimited and DenyAll give units back as the limit
// before, which keys of one plan have in common.
type planLimit struct{ limit, base Limit }

type plan struct {
	lim  *Limiter
	keys int
}

// planShards is the number of shards of a plan, so that a plan of few keys is small.
const planShards = 8

func (ps *plans) owner(id uint64) *Limiter {
	if l, ok := ps.owners.Load(id); ok {
		return l
	}
	return ps.main
}

// owns reports whether id is for this store to decide on.
func (st *store) owns(id uint64) bool {
	ps := st.plans.Load()
	return ps == nil || &ps.owner(id).store == st
}

// ownersPolicy returns the policy that decides on id.
func (st *store) ownersPolicy(id uint64) *policy {
	if ps := st.plans.Load(); ps != nil {
		return ps.owner(id).policyOf(id)
	}
	return st.policyOf(id)
}

// version of the plans, 0 if there are none.
func (st *store) version() uint64 {
	if ps := st.plans.Load(); ps != nil {
		return ps.version.Load()
	}
	return 0
}

// still reports whether no key has changed its owner since the version was v.
func (st *store) still(v uint64) bool { return v%2 == 0 && st.version() == v }

// awaitOwner returns once the key that was changing its owner has done so.
func (st *store) awaitOwner() {
	if ps := st.plans.Load(); ps != nil {
		ps.moving.Lock()
		//lint:ignore SA2001 to wait for the holder is the point
		ps.moving.Unlock()
	}
}

// vacant reports whether id, which a table did not hold after the version was v, is for
// this store to decide on and was not tracked then. Else it waits if it has to.
func (st *store) vacant(id, v uint64) bool {
	if st.owns(id) && st.still(v) {
		return true
	}
	st.awaitOwner()
	return false
}

// owner returns the limiter that decides on id.
func (l *Limiter) owner(id uint64) *Limiter {
	if ps := l.plans.Load(); ps != nil {
		return ps.owner(id)
	}
	return l
}

// SetKeyLimit gives key a limit of its own, until ClearKeyLimit: a plan, say, or Unlimited
// or DenyAll, under which units come back as they did under the key's limit before. Like
// SetLimit, which does not touch it, it keeps what the key has spent, and
// can be called while decisions run. The limit is kept until it is cleared, whatever
// becomes of the key's state; such keys do not count towards MaxKeys and Len, and
// WorstCase does not speak of them. Config.Soft is added to it. The error is a *ConfigError, as of New, and then nothing has changed.
//
// It takes some 100 bytes a key, and a few KiB for each different limit. The first time it
// is called for a key in use it takes time in proportion to the keys of a shard.
func (l *Limiter) SetKeyLimit(key string, limit Limit) error {
	return l.setKeyLimit(l.made().hash.string(key), limit)
}

// ClearKeyLimit gives key the limiter's limit again. It keeps what the key has spent, and
// does nothing for a key without a limit of its own. The first time that such a key has had
// a larger limit than the limiter ever has, it takes time in proportion to all keys, whose
// state then has room to count as much; but SlidingLog keeps as many units as the limiter's
// own largest limit.
func (l *Limiter) ClearKeyLimit(key string) { l.clearKeyLimit(l.made().hash.string(key)) }

// SetLimit is Limiter.SetKeyLimit for this key.
func (k Key) SetLimit(limit Limit) error { return k.lim.made().setKeyLimit(k.id, limit) }

// ClearLimit is Limiter.ClearKeyLimit for this key.
func (k Key) ClearLimit() { k.lim.made().clearKeyLimit(k.id) }

// Limit returns the limit that is in force for this key.
func (k Key) Limit() Limit { return k.lim.made().ownersPolicy(k.id).limit }

func (l *Limiter) setKeyLimit(id uint64, limit Limit) error {
	l.admin.Lock()
	defer l.admin.Unlock()
	ps := l.plans.Load()
	if ps == nil {
		ps = &plans{main: l, owners: xsync.NewMapOf[uint64, *Limiter](), byLimit: map[planLimit]*plan{}}
	}
	from := ps.owner(id)
	p := l.current.Load()
	name := planLimit{limit: limit}
	if limit.Rate == 0 || limit.Rate == math.MaxInt {
		p = from.current.Load()
		name.base = p.base
	}
	to := ps.byLimit[name]
	if to == nil {
		lim, err := l.newPlan(ps, limit, p)
		if err != nil {
			return err
		}
		to = &plan{lim: lim}
		ps.moving.Lock()
		ps.byLimit[name] = to
		ps.moving.Unlock()
	}
	l.plans.Store(ps)
	if from != to.lim {
		to.keys++
		ps.move(id, from, to.lim)
	}
	return nil
}

func (l *Limiter) clearKeyLimit(id uint64) {
	l.admin.Lock()
	defer l.admin.Unlock()
	ps := l.plans.Load()
	if ps == nil {
		return
	}
	if from := ps.owner(id); from != l {
		ps.move(id, from, l)
	}
}

// newPlan returns the limiter for keys with a limit of their own. Its policy can take over
// the words of from.
func (l *Limiter) newPlan(ps *plans, limit Limit, from *policy) (*Limiter, error) {
	c := l.Config()
	c.Limit = limit
	p, err := policyFor(c, from)
	if err != nil {
		return nil, err
	}
	plan := &Limiter{soft: l.soft, shadow: l.shadow, top: l.top, serial: serials.Add(1)}
	plan.setUp(c, p, min(planShards, len(l.shards)), math.MaxInt, l.homes)
	plan.tally = l.tally // which has as many stripes at least, and outlives the plan
	plan.ledgers = l.ledgers
	plan.plans.Store(ps)
	return plan, nil
}

// move makes to the owner of id, with main.admin locked. It holds two shards' locks, in
// any order; nobody else ever does. What is idle is dropped, as in adoptAll.
func (ps *plans) move(id uint64, from, to *Limiter) {
	lg := ps.main.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	ps.moving.Lock()
	defer ps.moving.Unlock()
	ps.version.Add(1)
	defer ps.version.Add(1)
	s := from.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, policy, tracked := from.takeOutLocked(s, id)
	now := max(to.clock.Now(), 0) // when nobody can charge it any more
	if tracked && policy.idleBy(e, now) {
		s.floor = max(s.floor, now)
		from.swept.Add(1)
		tracked = false
	}
	if tracked {
		to.accommodate(policy, e, to != ps.main)
	}
	to.raiseFloor(id, s.floor)
	blocked := tracked && policy.blockedUntil(e.word, e.tail) > 0
	if tracked && to.putIn(id, policy, e, now) && !blocked {
		rec.adopt(to.policyOf(id), now)
	} else {
		rec.forget()
	}
	if to == ps.main {
		ps.owners.Delete(id)
	} else {
		ps.owners.Store(id, to)
	}
	for limit, p := range ps.byLimit {
		if p.lim != from {
			continue
		}
		if p.keys--; p.keys == 0 {
			delete(ps.byLimit, limit)
			ps.main.addCounters(from)
		}
	}
}

// accommodate changes the policy, if need be, to one of the same limit whose words can
// count as much as e does under p, so that the key does not lose what it has spent: whoever
// can change his plan could else have a burst for each change. Logs are lengthened, those of
// all keys, only if asked for.
func (l *Limiter) accommodate(p *policy, e entry, logs bool) {
	have, c := l.current.Load(), l.Config()
	if have.wordless() { // and so without keys but blocked ones
		if next, err := newPolicy(c, p); err == nil {
			l.setPolicy(next)
		}
		return
	}
	needs := p.bucket() == nil && p.rank(e, 0) > uint64(have.room) // at 0 all of it counts
	if c.Algorithm == SlidingLog {
		needs = logs && p.room > have.room
	}
	if !needs {
		return
	}
	c.Limit = have.base
	next, err := newPolicy(c, &policy{room: p.room})
	if err == nil && have.limit != have.base {
		c.Limit = have.limit
		next, err = newPolicy(c, next)
	}
	if err == nil && next.room > have.room {
		l.setPolicy(next)
	}
}

// setPolicy moves all keys to p, which no reservation is of.
func (st *store) setPolicy(p *policy) {
	for i := range st.shards {
		st.adoptAll(&st.shards[i], p)
	}
	st.current.Store(p)
}

// raiseFloor raises the floor of the shard of id to that of the shard where it was.
func (st *store) raiseFloor(id uint64, floor int64) {
	s := st.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = max(s.floor, floor)
}

// takeOutLocked takes the entry of id out of its table, if it is tracked.
func (st *store) takeOutLocked(s *shard, id uint64) (taken entry, p *policy, ok bool) {
	t := s.table.Load()
	if _, found := t.find(id); !found {
		return entry{}, nil, false
	}
	st.rebuildLocked(s, s.len()-1, func(other uint64, e entry) bool {
		if other != id {
			return false
		}
		taken = e
		return true
	})
	if t.policy.wide != nil {
		taken.word &^= locked
	}
	return taken, t.policy, true
}

// putIn adds an entry of another policy. If there is no room, the key is as any other for
// which there is none.
func (st *store) putIn(id uint64, from *policy, e entry, now int64) (ok bool) {
	s := st.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.putInLocked(s, id, from, e, now)
}

func (st *store) putInLocked(s *shard, id uint64, from *policy, e entry, now int64) (ok bool) {
	if s.len() >= s.share && !st.makeRoomLocked(s, now) {
		st.untracked.Add(1)
		return false
	}
	for s.len() >= s.table.Load().limit {
		st.growLocked(s, now, false)
	}
	s.table.Load().adopt(id, from, e, now)
	s.count.Add(1)
	s.added++
	st.arm()
	return true
}

// each calls f for the limiter of every plan.
func (ps *plans) each(f func(*Limiter)) {
	ps.moving.Lock()
	var all []*Limiter
	for _, p := range ps.byLimit {
		all = append(all, p.lim)
	}
	ps.moving.Unlock()
	for _, l := range all {
		f(l)
	}
}
