package sluice

import (
	"math"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// Keys with a limit of their own are in limiters of their own, one for each such limit,
// which decide and sweep as any limiter does but are never full. The key's limiter is its
// owner. The tables of no other limiter hold the key, so that decisions on keys without a
// limit of their own cost nothing more: who does not find the key and wants to insert it
// learns, under the lock of the shard, that it is elsewhere.
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
	byLimit map[Limit]*plan                // guarded by main.admin
	all     atomic.Pointer[[]*Limiter]     // of byLimit
}

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

// owner returns the limiter that decides on id.
func (l *Limiter) owner(id uint64) *Limiter {
	if ps := l.plans.Load(); ps != nil {
		return ps.owner(id)
	}
	return l
}

// SetKeyLimit gives key a limit of its own, until ClearKeyLimit: a plan, say, or Unlimited
// or DenyAll. Like SetLimit, which does not touch it, it keeps what the key has spent, and
// can be called while decisions run. The limit is kept until it is cleared, whatever
// becomes of the key's state; such keys do not count towards MaxKeys and Len, and
// WorstCase does not speak of them. Config.Soft is added to it. The error is a *ConfigError, as of New, and then nothing has changed.
//
// It takes some 100 bytes a key, and a few KiB for each different limit. The first time it
// is called for a key in use it takes time in proportion to the keys of a shard.
func (l *Limiter) SetKeyLimit(key string, limit Limit) error {
	return l.setKeyLimit(l.hash.string(key), limit)
}

// ClearKeyLimit gives key the limiter's limit again. It keeps what the key has spent, and
// does nothing for a key without a limit of its own.
func (l *Limiter) ClearKeyLimit(key string) { l.clearKeyLimit(l.hash.string(key)) }

// SetLimit is Limiter.SetKeyLimit for this key.
func (k Key) SetLimit(limit Limit) error { return k.lim.setKeyLimit(k.id, limit) }

// ClearLimit is Limiter.ClearKeyLimit for this key.
func (k Key) ClearLimit() { k.lim.clearKeyLimit(k.id) }

// Limit returns the limit that is in force for this key.
func (k Key) Limit() Limit { return k.lim.ownersPolicy(k.id).limit }

func (l *Limiter) setKeyLimit(id uint64, limit Limit) error {
	l.admin.Lock()
	defer l.admin.Unlock()
	ps := l.plans.Load()
	if ps == nil {
		ps = &plans{main: l, owners: xsync.NewMapOf[uint64, *Limiter](), byLimit: map[Limit]*plan{}}
	}
	to := ps.byLimit[limit]
	if to == nil {
		lim, err := l.newPlan(ps, limit)
		if err != nil {
			return err
		}
		to = &plan{lim: lim}
		ps.byLimit[limit] = to
		ps.listAll()
	}
	l.plans.Store(ps)
	if from := ps.owner(id); from != to.lim {
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
// the words of main.
func (l *Limiter) newPlan(ps *plans, limit Limit) (*Limiter, error) {
	c := l.Config()
	c.Limit = limit
	p, err := l.policyFor(c)
	if err != nil {
		return nil, err
	}
	plan := &Limiter{soft: l.soft, shadow: l.shadow, top: l.top, serial: serials.Add(1)}
	plan.setUp(c, p, planShards, math.MaxInt, l.homes)
	plan.plans.Store(ps)
	return plan, nil
}

// move makes to the owner of id, with main.admin locked. It holds two shards' locks, in
// any order; nobody else ever does.
func (ps *plans) move(id uint64, from, to *Limiter) {
	lg := ps.main.ledger(id)
	lg.mu.Lock()
	defer lg.mu.Unlock()
	s := from.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, policy, tracked := from.takeOutLocked(s, id)
	now := max(to.clock.Now(), 0) // when nobody can charge it any more
	if tracked && to.putIn(id, policy, e, now) {
		lg.adopt(id, policy, to.policyOf(id), now)
	} else {
		lg.forget(id)
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
			ps.listAll()
		}
	}
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

func (ps *plans) listAll() {
	all := make([]*Limiter, 0, len(ps.byLimit))
	for _, p := range ps.byLimit {
		all = append(all, p.lim)
	}
	ps.all.Store(&all)
}

// each calls f for the limiter of every plan.
func (ps *plans) each(f func(*Limiter)) {
	for _, l := range *ps.all.Load() {
		f(l)
	}
}
