package sluice

import (
	"cmp"
	"iter"
	"slices"

	"github.com/puzpuzpuz/xsync/v3"
)

// SetPlan sets the limit of the plan of that name, which begins with it, and changes it for
// all keys that SetKeyPlan has put on the plan. They keep what they have spent, as with
// SetLimit. It takes time in proportion to the keys that have limits of their own, some 0.3
// us each; decisions, and changes of single keys, do not wait for it. The error is a
// *ConfigError, as of New, and then nothing has changed; or of a name that is empty or longer
// than 65,536 bytes.
func (l *Limiter) SetPlan(name string, limit Limit) error {
	if n := len(name); n == 0 || n > maxPlanName { // "" is a limit without a plan, and Restore reads no more
		return configErrorf("plan", "a name of %d bytes; want 1 to %d", n, maxPlanName)
	}
	l.made().admin.Lock()
	defer l.admin.Unlock()
	ps := l.plansOf()
	pl, ok := ps.named.Load(name)
	if !ok {
		pl, err := l.newPlan(name, limit)
		if err == nil {
			ps.named.Store(name, pl)
		}
		return err
	}
	old := pl.terms.Load()
	if old.limit == limit {
		return nil
	}
	tm, err := l.newTerms(pl, limit)
	if err != nil {
		return err
	}
	pl.terms.Store(tm)
	l.awaitHolders()
	l.eachCell(func(c *cell) {
		if c.policy.of != old {
			return
		}
		l.putUnder(c.id.Load(), func(kept *plan) (placement, bool) {
			return placement{kept, tm}, l.policyOf(c.id.Load()).of == old
		})
	})
	return nil
}

// ClearPlan ends the plan of that name, and its keys get the limiter's limit again, as by
// ClearKeyLimit. A Key of WithPlan still goes by the last limit of the plan.
func (l *Limiter) ClearPlan(name string) {
	l.made().admin.Lock()
	defer l.admin.Unlock()
	pl, err := l.planNamed(name)
	if err != nil {
		return
	}
	pl.ended.Store(true)
	l.plans.Load().named.Delete(name)
	l.awaitHolders()
	l.eachCell(func(c *cell) {
		if c.kept == pl {
			l.keep(c.id.Load(), nil, func(kept *plan) bool { return kept == pl })
		}
	})
}

// Plans returns the plans that have names, and their limits, sorted by name.
func (l *Limiter) Plans() iter.Seq2[string, Limit] {
	l.made()
	return func(yield func(string, Limit) bool) {
		for _, pl := range l.namedPlans() {
			if !yield(pl.name, pl.terms.Load().limit) {
				return
			}
		}
	}
}

// namedPlans returns the plans that have names, sorted by these.
func (l *Limiter) namedPlans() (all []*plan) {
	if ps := l.plans.Load(); ps != nil {
		ps.named.Range(func(_ string, pl *plan) bool { all = append(all, pl); return true })
	}
	slices.SortFunc(all, func(a, b *plan) int { return cmp.Compare(a.name, b.name) })
	return all
}

// SetKeyLimit gives key a limit of its own, until ClearKeyLimit or SetKeyPlan: Unlimited or
// DenyAll, say, under which units come back as they did under the key's limit before. Like
// SetLimit, which does not touch it, it keeps what the key has spent. The limit is kept
// until it is cleared, whatever becomes of the key's state; such keys do not count towards
// MaxKeys and Len, and WorstCase does not speak of them. Config.Soft is added to it. The
// error is a *ConfigError, as of New, and then nothing has changed.
//
// It takes some 100 bytes a key, some 1 KiB for each different limit, and a time that does not
// depend on how many keys and limits there are, though it does on how many reservations of the
// key are open, some 0.1 us each; no other tracked key's decision waits for it. Calls for the key that run meanwhile go by either limit, also two of one goroutine, in
// any order.
func (l *Limiter) SetKeyLimit(key string, limit Limit) error {
	return l.setKeyLimit(l.made().hash.String(key), limit)
}

// SetKeyPlan puts key on the plan of that name, until ClearKeyLimit, SetKeyLimit or
// ClearPlan. It is like SetKeyLimit with the limit of the plan, and follows SetPlan. The
// error is a *ConfigError if there is no such plan.
func (l *Limiter) SetKeyPlan(key, plan string) error {
	return l.setKeyPlan(l.made().hash.String(key), plan)
}

// ClearKeyLimit gives key the limiter's limit again. It keeps what the key has spent, and
// does nothing for a key without a limit of its own. The key counts towards MaxKeys again;
// if there is no room for it, what it has spent is forgotten, as for any key that has no
// room. The time that it takes, and what it means for other calls, are as SetKeyLimit says.
func (l *Limiter) ClearKeyLimit(key string) { l.clearKeyLimit(l.made().hash.String(key)) }

// SetLimit is Limiter.SetKeyLimit for this key.
func (k Key) SetLimit(limit Limit) error { return k.lim.made().setKeyLimit(k.id, limit) }

// SetPlan is Limiter.SetKeyPlan for this key.
func (k Key) SetPlan(plan string) error { return k.lim.made().setKeyPlan(k.id, plan) }

// ClearLimit is Limiter.ClearKeyLimit for this key.
func (k Key) ClearLimit() { k.lim.made().clearKeyLimit(k.id) }

// WithLimit returns the key with a limit that its calls bring along: one that comes with the
// request, say in a token, and that nobody has to keep. Calls through k itself go on going by
// the limit that the key has. The state is one: a call puts the key under the limit it
// brings, and the key keeps what it has spent. So nobody gains by changing between limits, with
// one exception, which SetLimit has too: a limit of another period moves what has been spent into
// a window that has just begun. A call that changes the limit takes a lock and allocates;
// the next one with the same limit does not.
//
// The key is tracked and forgotten like others: it counts towards MaxKeys, and goes when it
// is idle. The limiter remembers up to 4096 such limits, some 1 KiB each. More than that are
// made anew at each call, which takes some us, and stay as long as a key is under them: with
// as many limits as keys, that is 1 KiB a key. The error is a *ConfigError, as of New: deny a
// request whose limit is none.
func (k Key) WithLimit(limit Limit) (Key, error) {
	pl, err := k.lim.made().brought(limit)
	if err != nil {
		return Key{}, err
	}
	return Key{k.lim, k.id, pl}, nil
}

// WithPlan is WithLimit with a plan that SetPlan has set. It follows the plan's limit.
func (k Key) WithPlan(plan string) (Key, error) {
	pl, err := k.lim.made().planNamed(plan)
	if err != nil {
		return Key{}, err
	}
	return Key{k.lim, k.id, pl}, nil
}

// KeyLimit returns the limit that calls for key go by: its own, or the limiter's.
func (l *Limiter) KeyLimit(key string) Limit { return l.made().Key(key).Limit() }

// Limit returns the limit that calls through k go by.
func (k Key) Limit() Limit {
	return k.termsOf(k.lim.made().shardOf(k.id).cell(k.id)).limit // whatever another call has brought
}

// A KeyLimit is what SetKeyLimit or SetKeyPlan has set for a key.
type KeyLimit struct {
	Limit Limit
	Plan  string // the plan's name, or ""
}

// KeyLimits returns the keys that have limits of their own, in no order. A Key has no
// name; it is the same as that of Limiter.Key for the name. Those set or cleared
// meanwhile may be left out.
func (l *Limiter) KeyLimits() iter.Seq2[Key, KeyLimit] {
	l.made()
	return func(yield func(Key, KeyLimit) bool) {
		for i := range l.shards {
			var some []*cell
			l.cellsOf(i, func(c *cell) {
				if c.kept != nil {
					some = append(some, c)
				}
			})
			for _, c := range some {
				if !yield(l.key(c.id.Load()), KeyLimit{c.kept.terms.Load().limit, c.kept.name}) {
					return
				}
			}
		}
	}
}

func (l *Limiter) setKeyLimit(id uint64, limit Limit) error {
	pl, err := l.brought(limit)
	if err != nil {
		return err
	}
	l.keep(id, pl, func(kept *plan) bool {
		return kept == nil || kept.name != "" || kept.terms.Load().limit != limit
	})
	return nil
}

func (l *Limiter) setKeyPlan(id uint64, name string) error {
	for {
		pl, err := l.planNamed(name)
		if err != nil {
			return err
		}
		ended := false // and then nothing has changed
		l.keep(id, pl, func(kept *plan) bool {
			ended = pl.ended.Load()
			return kept != pl && !ended
		})
		if !ended {
			return nil
		}
	}
}

func (l *Limiter) clearKeyLimit(id uint64) {
	if l.shardOf(id).cell(id).keptOn() != nil {
		l.keep(id, nil, func(kept *plan) bool { return kept != nil })
	}
}

// keep keeps id on pl, or on nothing, if what it is kept on is to be replaced.
func (l *Limiter) keep(id uint64, pl *plan, replaces func(kept *plan) bool) {
	by := pl
	if by == nil {
		by = &l.common
	}
	l.putUnder(id, func(kept *plan) (placement, bool) {
		return placement{pl, by.terms.Load()}, replaces(kept)
	})
}

// maxPlanName bounds the name of a plan, and so what Restore reads before anything is known
// of it.
const maxPlanName = 1 << 16

// plansOf returns the plans, which are made when the first one is asked for.
func (l *Limiter) plansOf() *plans {
	if ps := l.plans.Load(); ps != nil {
		return ps
	}
	l.plans.CompareAndSwap(nil, &plans{xsync.NewMapOf[string, *plan](), xsync.NewMapOf[Limit, *plan]()})
	return l.plans.Load()
}

// newTerms returns terms of a plan other than the limiter's own.
func (l *Limiter) newTerms(pl *plan, limit Limit) (*terms, error) {
	var from *policy // without one, no more reach than the limit's own
	if limit.constant() {
		from = l.current.Load()
	}
	return newTerms(pl, l.config.Load(), limit, from)
}

// newPlan returns a plan that no key is on.
func (l *Limiter) newPlan(name string, limit Limit) (*plan, error) {
	pl := &plan{name: name}
	tm, err := l.newTerms(pl, limit)
	if err != nil {
		return nil, err
	}
	pl.terms.Store(tm)
	return pl, nil
}

// brought returns the plan of a limit without a name.
func (l *Limiter) brought(limit Limit) (*plan, error) {
	ps := l.plansOf()
	if pl, ok := ps.brought.Load(limit); ok {
		return pl, nil
	}
	pl, err := l.newPlan("", limit)
	if err != nil {
		return nil, err
	}
	if ps.brought.Size() >= max(maxBrought, 2*int(l.kept.Load())) { // those of calls are not counted
		ps.brought.Clear() // keys that are under them stay under them
	}
	pl, _ = ps.brought.LoadOrStore(limit, pl)
	return pl, nil
}

// planNamed returns the plan of a name.
func (l *Limiter) planNamed(name string) (*plan, error) {
	if ps := l.plans.Load(); ps != nil {
		if pl, ok := ps.named.Load(name); ok {
			return pl, nil
		}
	}
	return nil, configErrorf("plan", "%q: there is no plan of that name; want one that SetPlan has set", name)
}

// eachCell calls f for all cells. Some may have been replaced meanwhile.
func (l *Limiter) eachCell(f func(*cell)) {
	for i := range l.shards {
		l.cellsOf(i, f)
	}
}
