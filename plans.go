package sluice

import (
	"cmp"
	"iter"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// A plan is a limit that keys have in common: the limiter's own, one that has a name, or
// one that a key, or a call, has brought. The keys of all plans but the limiter's own are in
// cells. The plan that a call goes by is, in this order: the one that its Key brings, the
// one that its key is kept on, the limiter's own. A key that is under other terms is put
// under those first.
type plan struct {
	name  string
	terms atomic.Pointer[terms]
	view  atomic.Pointer[Limiter] // see Key.WithLimit
	ended atomic.Bool             // no key can be put on it any more
}

// The terms of a plan are its limit. A plan whose limit changes gets new ones, and what is
// under the old ones is put under these by the next call, if not before.
type terms struct {
	plan   *plan
	limit  Limit
	common atomic.Pointer[policy] // for keys that have spent no more than the limit

	mu       sync.Mutex
	policies map[variant]*policy
}

// A variant of a policy. Unlimited and DenyAll have the algorithm of the limit before, and
// what has been spent under a larger limit takes words with more room.
type variant struct {
	base Limit
	room int
}

// maxVariants bounds how many policies terms have at hand, and maxBrought how many limits
// of keys and calls a limiter has, unless more keys are kept on such. Those beyond are made
// anew. Neither was tuned.
const (
	maxVariants = 64
	maxBrought  = 4096
)

// constant reports whether no state decides under the limit.
func (l Limit) constant() bool { return l.Rate == 0 || l.Rate == math.MaxInt }

// called reports whether p is of a plan other than the limiter's own, that still has the
// limit of p.
func (p *policy) called() bool {
	return p.of != nil && p.of.plan.view.Load() != nil && p.of.plan.terms.Load() == p.of
}

// policyFor returns the policy of the terms for a key that has spent what e says under
// from. Under a constant limit that is of the base of from, and under the limiter's own of
// the limiter's last other limit.
func (tm *terms) policyFor(l *Limiter, from *policy, e entry, now int64) *policy {
	common, base := tm.common.Load(), tm.limit
	if base.constant() {
		if base = from.base; tm.plan == &l.common && !common.wordless() {
			base = common.base
		}
	}
	need := from.needs(e, now)
	if common.base == base {
		if need <= common.room {
			return common
		}
		need = min(need, common.widest(from))
	}
	v := variant{base, 1<<bits.Len(uint(need)) - 1}
	switch {
	case base == from.base && tm.limit.constant():
		v.room = from.room
	case l.Config().Algorithm == SlidingLog:
		v.room = min(v.room, maxLog)
	}
	tm.mu.Lock()
	defer tm.mu.Unlock()
	if p := tm.policies[v]; p != nil {
		return p
	}
	p, err := tm.newVariant(l, v, from)
	if err != nil {
		return common // no word has such room: what is beyond is forgotten
	}
	if tm.policies == nil || len(tm.policies) >= maxVariants {
		tm.policies = map[variant]*policy{}
	}
	tm.policies[v] = p
	return p
}

func (tm *terms) newVariant(l *Limiter, v variant, from *policy) (p *policy, err error) {
	if !tm.limit.constant() || v.base != from.base {
		if from, err = policyFor(l.configFor(v.base), &policy{room: v.room}); err != nil {
			return nil, err
		}
	}
	if p = from; tm.limit.constant() {
		if p, err = policyFor(l.configFor(tm.limit), from); err != nil {
			return nil, err
		}
	}
	p.of = tm
	return p, nil
}

// configFor is the configuration with another limit.
func (l *Limiter) configFor(limit Limit) Config {
	c := l.Config()
	c.Limit = limit
	return c
}

// newTerms returns terms with that limit. The error is a *ConfigError.
func (l *Limiter) newTerms(pl *plan, limit Limit) (*terms, error) {
	tm := &terms{plan: pl, limit: limit}
	var from *policy // without one, no more room than the limit's own
	if limit.constant() {
		from = l.current.Load()
	}
	p, err := policyFor(l.configFor(limit), from)
	if err != nil {
		return nil, err
	}
	p.of = tm
	tm.common.Store(p)
	return tm, nil
}

// plans are those of a limiter beside its own.
type plans struct {
	named   *xsync.MapOf[string, *plan]
	brought *xsync.MapOf[Limit, *plan] // by calls and keys
}

// plansOf returns the plans, which are made when the first one is asked for.
func (l *Limiter) plansOf() *plans {
	if ps := l.plans.Load(); ps != nil {
		return ps
	}
	l.plans.CompareAndSwap(nil, &plans{xsync.NewMapOf[string, *plan](), xsync.NewMapOf[Limit, *plan]()})
	return l.plans.Load()
}

// newPlan returns a plan with its terms and its view.
func (l *Limiter) newPlan(name string, limit Limit) (*plan, error) {
	pl := &plan{name: name}
	tm, err := l.newTerms(pl, limit)
	if err != nil {
		return nil, err
	}
	pl.terms.Store(tm)
	view := &Limiter{core: l, under: pl, soft: l.soft, shadow: l.shadow, top: l.top, tally: l.tally}
	view.clock, view.cached, view.timed = l.clock, l.cached, l.timed
	view.shards, view.shift, view.ledgers = l.shards, l.shift, l.ledgers
	view.current.Store(notPlain)
	pl.view.Store(view)
	return pl, nil
}

// notPlain is the policy that keeps allowAt from deciding by itself.
var notPlain = &policy{}

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

// SetPlan sets the limit of the plan of that name, which begins with it, and changes it for
// all keys that SetKeyPlan has put on the plan. They keep what they have spent, as with
// SetLimit. It takes time in proportion to the keys that have limits of their own, some 0.3
// us each; decisions, and changes of single keys, do not wait for it. The error is a
// *ConfigError, as of New, and then nothing has changed.
func (l *Limiter) SetPlan(name string, limit Limit) error {
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
	l.eachCell(func(c *cell) {
		if c.policy.of != old {
			return
		}
		l.place(c.id.Load(), func(kept *plan) (placement, bool) {
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
	for i := range l.shards { // a call that has not seen the end puts its key on the plan before this
		l.shards[i].awaitHolder()
	}
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
// depend on how many keys and limits there are; no other tracked key's decision waits for
// it. Calls for the key that run meanwhile go by either limit, also two of one goroutine, in
// any order.
func (l *Limiter) SetKeyLimit(key string, limit Limit) error {
	return l.setKeyLimit(l.made().hash.string(key), limit)
}

// SetKeyPlan puts key on the plan of that name, until ClearKeyLimit, SetKeyLimit or
// ClearPlan. It is like SetKeyLimit with the limit of the plan, and follows SetPlan. The
// error is a *ConfigError if there is no such plan.
func (l *Limiter) SetKeyPlan(key, plan string) error {
	return l.setKeyPlan(l.made().hash.string(key), plan)
}

// ClearKeyLimit gives key the limiter's limit again. It keeps what the key has spent, and
// does nothing for a key without a limit of its own. The key counts towards MaxKeys again;
// if there is no room for it, what it has spent is forgotten, as for any key that has no
// room. What SetKeyLimit says of time and of other calls holds.
func (l *Limiter) ClearKeyLimit(key string) { l.clearKeyLimit(l.made().hash.string(key)) }

// SetLimit is Limiter.SetKeyLimit for this key.
func (k Key) SetLimit(limit Limit) error { return k.lim.made().core.setKeyLimit(k.id, limit) }

// SetPlan is Limiter.SetKeyPlan for this key.
func (k Key) SetPlan(plan string) error { return k.lim.made().core.setKeyPlan(k.id, plan) }

// ClearLimit is Limiter.ClearKeyLimit for this key.
func (k Key) ClearLimit() { k.lim.made().core.clearKeyLimit(k.id) }

// WithLimit returns the key with a limit that its calls bring along: one that comes with the
// request, say in a token, and that nobody has to keep. Calls through k itself go on going by
// the limit that the key has. The state is one: a call puts the key under the limit it
// brings, and the key keeps what it has spent, so that nobody gains by changing between
// limits, but where a limit of another period moves what has been spent into a window that
// has just begun, as with SetLimit. A call that changes the limit takes a lock and allocates;
// the next one with the same limit does not.
//
// The key is tracked and forgotten like others: it counts towards MaxKeys, and goes when it
// is idle. The limiter remembers up to 4096 such limits, some 1 KiB each; more than that are
// made anew at each call, which takes some us. The error is a *ConfigError, as of New: deny a
// request whose limit is none.
func (k Key) WithLimit(limit Limit) (Key, error) {
	pl, err := k.lim.made().core.brought(limit)
	if err != nil {
		return Key{}, err
	}
	return Key{pl.view.Load(), k.id}, nil
}

// WithPlan is WithLimit with a plan that SetPlan has set. It follows the plan's limit.
func (k Key) WithPlan(plan string) (Key, error) {
	pl, err := k.lim.made().core.planNamed(plan)
	if err != nil {
		return Key{}, err
	}
	return Key{pl.view.Load(), k.id}, nil
}

// KeyLimit returns the limit that calls for key go by: its own, or the limiter's.
func (l *Limiter) KeyLimit(key string) Limit { return l.made().Key(key).Limit() }

// Limit returns the limit that calls through k go by.
func (k Key) Limit() Limit {
	l := k.lim.made()
	if l.under != nil {
		return l.under.terms.Load().limit
	}
	if c := l.shardOf(k.id).cell(k.id); c != nil && c.kept != nil {
		return c.kept.terms.Load().limit
	}
	return l.common.terms.Load().limit // whatever another call has brought
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
			l.shards[i].eachCell(func(c *cell) {
				if c.kept != nil {
					some = append(some, c)
				}
			})
			for _, c := range some {
				if !yield(Key{l, c.id.Load()}, KeyLimit{c.kept.terms.Load().limit, c.kept.name}) {
					return
				}
			}
		}
	}
}

// eachCell calls f for all cells. Some may have been replaced meanwhile.
func (l *Limiter) eachCell(f func(*cell)) {
	for i := range l.shards {
		l.shards[i].eachCell(f)
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
	if c := l.shardOf(id).cell(id); c == nil || c.kept == nil {
		return
	}
	l.keep(id, nil, func(kept *plan) bool { return kept != nil })
}

// keep keeps id on pl, or on nothing, if what it is kept on is to be replaced.
func (l *Limiter) keep(id uint64, pl *plan, replaces func(kept *plan) bool) {
	by := pl
	if by == nil {
		by = &l.common
	}
	l.place(id, func(kept *plan) (placement, bool) {
		return placement{pl, by.terms.Load()}, replaces(kept)
	})
}

// lookUp finds id, and the terms that a call for it through l goes by. A call that brings
// none goes by those that a table is of.
func (l *Limiter) lookUp(id uint64) (at spot, tm *terms) {
	at = l.core.locate(l.core.shardOf(id), id)
	switch {
	case l.under != nil:
		return at, l.under.terms.Load()
	case at.cell == nil:
		return at, at.policy.of
	case at.cell.kept != nil:
		return at, at.cell.kept.terms.Load()
	}
	return at, l.core.common.terms.Load()
}

// policyFor returns the policy that a call for id through l goes by, and puts the key under
// it if it is tracked under another one.
func (l *Limiter) policyFor(id uint64) *policy {
	if s := l.shardOf(id); l.under == nil && s.cell(id) == nil {
		return s.table.Load().policy // as for nearly all keys, in half the time
	}
	for {
		at, tm := l.lookUp(id)
		switch {
		case at.policy.of == tm:
			return at.policy
		case at.slot == nil && at.cell == nil:
			return tm.policyFor(l.core, at.policy, entry{}, 0)
		}
		l.core.place(id, func(kept *plan) (placement, bool) {
			at := l.core.locate(l.core.shardOf(id), id)
			return placement{kept, tm}, at.policy.of != tm && (at.slot != nil || at.cell != nil)
		})
	}
}

// peekAt describes in d, which is zero, what takeAt would.
func (l *Limiter) peekAt(d *Decision, id uint64, now int64, cost int) {
	now = max(now, 0)
	if l.under == nil && l.peekTable(d, id, now, cost) {
		return
	}
	for {
		at, tm := l.lookUp(id)
		p := at.policy
		switch {
		case p.of != tm:
			if l.core.peekUnder(d, at, tm, now, cost) {
				return
			}
			l.core.awaitMove(l.core.shardOf(id))
		case !p.fits(cost):
			if l.core.judgeEdge(d, p, id, now, cost) {
				return
			}
		case l.core.inspectAt(d, p, at, id, now, cost, true):
			return
		}
		*d = Decision{}
	}
}

// peekTable is peekAt for nearly all calls: of a cost that the state decides, for a key that
// is in the table and not being moved.
func (l *Limiter) peekTable(d *Decision, id uint64, now int64, cost int) (ok bool) {
	t := l.shardOf(id).table.Load()
	p := t.policy
	if !p.fits(cost) {
		return false
	}
	i, found := t.find(id)
	if !found {
		return false
	}
	e := &t.slots[i]
	word := e.word.Load()
	switch {
	case word >= elsewhere: // or moved, or held
		return false
	case p.wide != nil:
		ok = p.peekTail(d, e, t.tails.of(i), now, cost, true)
	default:
		ok = true
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(word, nil, now, cost, true)
	}
	d.Limit = int(p.burst)
	return ok
}

// peekUnder describes in d a call under other terms than the key's, which it is left under.
// It fails if the word has gone.
func (l *Limiter) peekUnder(d *Decision, at spot, tm *terms, now int64, cost int) (ok bool) {
	e, ok := at.read()
	if !ok {
		return false
	}
	clock := max(l.clock.Now(), 0)
	if at.policy.idleBy(e, clock) {
		e.word = 0
	}
	p := tm.policyFor(l, at.policy, e, clock)
	tail := make([]atomic.Uint64, p.tailLen())
	word := p.adopt(at.policy, e, tail, clock)
	d.Limit = int(p.burst)
	switch {
	case p.unlimited():
		d.unlimited(p.blockedUntil(word, tail), now)
		p.settleEdge(d, cost)
	case p.denyAll():
		p.settleEdge(d, cost)
	case p.fits(cost):
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(word, tail, now, cost, true)
	default:
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(word, tail, now, 1, false)
		p.settleEdge(d, cost)
	}
	return true
}

// read returns a copy of the key's state as it stands at one instant. It fails if the word
// has gone.
func (at *spot) read() (e entry, ok bool) {
	switch {
	case at.slot == nil:
		return entry{}, true
	case at.policy.wide == nil:
		e.word = at.slot.released()
		return e, e.word < elsewhere
	}
	e.tail = make([]atomic.Uint64, len(at.tail))
	for {
		e.word = at.slot.word.Load()
		switch {
		case e.word == moved || e.word == elsewhere:
			return e, false
		case e.word&locked != 0:
			runtime.Gosched()
			continue
		}
		for i := range e.tail {
			e.tail[i].Store(at.tail[i].Load())
		}
		if at.slot.word.Load() == e.word {
			return e, true
		}
	}
}

// policyNow returns the policy that id is under, or would be if a call through l tracked it
// now.
func (l *Limiter) policyNow(id uint64) *policy {
	at, tm := l.lookUp(id)
	if at.policy.of == tm || at.slot != nil || at.cell != nil {
		return at.policy
	}
	return tm.policyFor(l.core, at.policy, entry{}, 0)
}
