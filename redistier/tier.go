package redistier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// A Tier stands before a Limiter: its calls return within a budget, and go on when Redis
// does not.
//
//   - Callers of one key and cost share a call of the script, first come first served, and
//     keys share pipelines, of which at most two are under way to each primary. That
//     changes no decision, and makes hot keys cheap.
//   - A key that is denied a cost is denied it, and any larger one, from memory until Redis
//     could admit it.
//   - With leases, Redis lends units, from which calls are admitted without asking it; see
//     Lease.
//   - When a primary does not answer in time, OnUnavailable does. When half of at least 20
//     calls within a second have failed it is not asked at all except for a probe now and then,
//     every 100 ms at first and every 5 s at last.
//   - What was admitted without Redis is charged there once it answers, without what has come
//     back with windows that are over, and at most a burst of a key. A probe is one of the calls: a
//     process that makes none does not find out that Redis answers again, and Close asks for nothing more then.
//
// A call that was sent and not answered in time counts as charged, and is not sent again.
// The client's own timeouts and retries make no difference to callers, nor do their
// contexts to the client. With a client of NewClient a lone caller makes its calls itself.
//
// All replicas together admit at most WorstCase(d) in a span d, with leases or without; as
// seen by callers, plus what drains while an answer is on its way, at most Budget. An outage
// within the span adds one burst, or Replicas units if that is more; one that only some replicas
// have, also their shares of the limit for as long as it lasts.
//
// A Tier is safe for concurrent use. Close it when it is no longer needed.
type Tier struct {
	shared   *Limiter
	router   *router
	budget   time.Duration
	wait     time.Duration // for Redis
	policy   OnUnavailable
	maxKeys  int
	maxStale int64 // ns
	began    time.Time
	denied   *table[denial]
	leases   *leases // or nil
	stats    tierStats
	closed   atomic.Bool

	local    *sluice.Limiter
	shareOf  atomic.Pointer[plan] // that local has its part of
	replicas atomic.Int64
	sharing  sync.Mutex // held while local's limit changes

	modes  sync.Mutex // guards the rest
	down   int        // primaries that are not asked
	events []event    // that OnMode has not been told of
	onMode func(Mode, error)
	told   sync.WaitGroup
}

type event struct {
	mode  Mode
	cause error
}

// A denial is a cost that a key was denied, and the key's state then.
type denial struct {
	plan    *plan
	cost    int64
	view    view
	blocked int64 // us
	at      int64 // ns since the tier began, at the latest
}

// NewTier returns a tier before shared. It does not talk to Redis, which may be down.
func NewTier(shared *Limiter, cfg TierConfig) (*Tier, error) {
	if shared == nil {
		return nil, configErrorf("shared", "it is nil; want a limiter, made by New")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := shared.plan.Load()
	c := shared.configOf(p)
	if err := cfg.validateLease(c); err != nil {
		return nil, err
	}
	// It does not block: it is charged, too, by calls that it is not asked about.
	local, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit.Share(cfg.Replicas), Refill: c.Refill, Anchor: c.Anchor, Offset: c.Offset, MaxKeys: cfg.MaxKeys,
	})
	if err != nil {
		return nil, configErrorf("Replicas", "a %d-th of %v cannot be kept: %v", cfg.Replicas, c.Limit, err)
	}
	t := &Tier{
		shared: shared, budget: cfg.Budget, wait: cfg.wait(), policy: cfg.OnUnavailable, maxKeys: cfg.MaxKeys, maxStale: int64(cfg.MaxStale),
		began: time.Now(), denied: newTable[denial](cfg.MaxKeys), local: local, onMode: cfg.OnMode,
	}
	t.shareOf.Store(p)
	t.replicas.Store(int64(cfg.Replicas))
	if cfg.Lease.Max > 0 {
		t.leases = newLeases(t, &cfg)
	}
	t.router = newRouter(shared.client, func() *lane { return newLane(t) })
	return t, nil
}

// Take charges cost units to key and describes the decision; see Limiter.Take. It returns
// within the budget, with ctx's error if that ends first: a call that has not been sent
// is not charged then. Errors are those of ctx, ErrClosed, and under Closed ErrUnavailable.
func (t *Tier) Take(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	d, _, err := t.TakeSource(ctx, key, cost)
	return d, err
}

// TakeSource is Take, and says where the decision comes from.
func (t *Tier) TakeSource(ctx context.Context, key string, cost int) (sluice.Decision, Source, error) {
	return t.decide(ctx, key, cost, true)
}

// Peek returns what Take would, but charges nothing.
func (t *Tier) Peek(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	d, _, err := t.decide(ctx, key, cost, false)
	return d, err
}

// decide is TakeSource, and unless it charges, Peek.
func (t *Tier) decide(ctx context.Context, key string, cost int, charges bool) (sluice.Decision, Source, error) {
	now := time.Now()
	p := t.shared.plan.Load()
	if err := t.check(ctx); err != nil {
		return sluice.Decision{}, 0, err
	}
	if p.constant() {
		t.stats.cache.Add(1)
		return p.decideConstant(cost), FromCache, nil
	}
	if p != t.shareOf.Load() {
		t.reshare()
	}
	at := int64(now.Sub(t.began))
	if d, ok := t.leases.spend(p, key, cost, charges, at); ok {
		t.stats.lease.Add(1)
		return d, FromLease, nil
	}
	if d, ok := t.remembered(p, key, cost, at); ok {
		t.stats.cache.Add(1)
		return d, FromCache, nil
	}
	c := t.shared.newCallOf(p, key, cost, charges)
	a, err := t.ask(ctx, key, c.request, now)
	switch {
	case err != nil:
		return sluice.Decision{}, 0, err
	case a.leased():
		t.stats.lease.Add(1)
		return a.waiter.decision, FromLease, nil
	case a.failed != nil:
		return t.fallback(a, &c, key)
	}
	t.stats.redis.Add(1)
	return t.decision(&c, key, a.group, a.waiter.rank), FromRedis, nil
}

func (t *Tier) check(ctx context.Context) error {
	if t.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// An asked is what a Tier has asked Redis, and how that has ended.
type asked struct {
	lane   *lane
	group  *group // nil if there was none to join, and so no waiter
	waiter *waiter
	failed error // why Redis has not answered
}

// leased reports whether the caller has been admitted from a lease, whatever has become of its group.
func (a *asked) leased() bool { return a.waiter != nil && a.waiter.leased }

// ask asks Redis, in a group, and waits for its end. The error is that of ctx.
func (t *Tier) ask(ctx context.Context, key string, r request, now time.Time) (a asked, err error) {
	a.lane = t.router.lane(r.key, now)
	a.group, a.waiter, a.failed = a.lane.join(r, t.leases.hold(&r, key, now), now)
	if a.failed != nil {
		return a, nil
	}
	err = a.await(ctx)
	return a, err
}

// await waits for the group's end, or brings it about. The error is that of ctx, except for a caller
// that has been admitted from a lease: its units are spent.
func (a *asked) await(ctx context.Context) error {
	if a.group.direct != nil {
		err := a.lane.lead(ctx, a.group)
		a.failed = a.group.err
		return err
	}
	select {
	case <-a.group.done:
		a.failed = a.group.err
	case <-ctx.Done():
		if !a.lane.leave(a.waiter) {
			return ctx.Err()
		}
	}
	return nil
}

// decision is that of the caller of a rank, from the reply that its group shares. The
// state is that after all calls of the group: those behind it are taken off.
func (t *Tier) decision(c *takeCall, key string, g *group, rank int64) sluice.Decision {
	r := &g.reply
	if c.k == 0 {
		return c.decision(r)
	}
	if rank < r.admitted {
		t.local.TakeUpTo(key, c.cost)
		d := c.plan.describe(c.plan.shape.charged(r.view, -(r.admitted-1-rank)*c.n), 0, c.cost, true)
		if g.lend > 0 {
			d.Remaining += int(r.c) // is lent to us
		}
		return d
	}
	d := c.plan.describe(r.view, r.blocked(), c.cost, false)
	d.RetryAfter = max(d.RetryAfter, t.remember(c, key, g))
	return d
}

// remember notes that the key has been denied the cost, and returns for how long. Redis
// judged after the group was sent, so nothing is admitted earlier than the wait that it
// tells, counted from there.
//
// With leases, it is if those come back that others have. So that replicas that wait for the same unit do not
// all ask for it together, and with every unit again, each adds some slack.
func (t *Tier) remember(c *takeCall, key string, g *group) time.Duration {
	d := denial{plan: c.plan, cost: c.n, view: g.reply.view, blocked: g.reply.blocked(), at: int64(g.batch.sent.Sub(t.began))}
	wait := d.blocked
	if wait > 0 {
		d.cost = 1
	} else {
		wait = c.plan.shape.wait(d.view, c.n)
	}
	ask := min(int64(duration(wait)), t.maxStale)
	if g.hold != nil && d.blocked == 0 {
		soonest := min(int64(duration(c.plan.shape.soonest(d.view, c.n))), ask)
		ask = min(soonest+min(ask-soonest+g.slack, t.leases.life/2), t.maxStale)
	}
	t.denied.update(key, d.at, func(denial, int64) (denial, int64) { return d, d.at + ask })
	return time.Duration(ask)
}

// remembered returns the decision on a call that is denied from memory.
func (t *Tier) remembered(p *plan, key string, cost int, at int64) (d sluice.Decision, ok bool) {
	if cost < 1 || int64(cost) > p.burst {
		return d, false
	}
	e, until, ok := t.denied.get(key, at)
	if !ok || e.plan != p || int64(cost) < e.cost {
		return d, false
	}
	d = p.describe(e.view, e.blocked, cost, false)
	elapsed := time.Duration(at - e.at)
	for _, wait := range []*time.Duration{&d.RetryAfter, &d.ResetAfter} {
		if *wait != sluice.Never {
			*wait = max(*wait-elapsed, 1)
		}
	}
	d.RetryAfter = max(d.RetryAfter, time.Duration(until-at))
	return d, true
}

// fallback answers a call that Redis has not.
func (t *Tier) fallback(a asked, c *takeCall, key string) (d sluice.Decision, s Source, err error) {
	switch a.failed {
	case ErrClosed:
		return d, 0, ErrClosed
	case errLate:
		t.stats.late.Add(1)
	case errOpen:
	default:
		t.stats.failed.Add(1)
	}
	switch t.policy {
	case Closed:
		return d, 0, fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
	case Open:
		d = sluice.Decision{Allowed: c.cost >= 0 && int64(c.cost) <= c.plan.burst, Limit: int(c.plan.burst)}
		if !d.Allowed {
			d.RetryAfter = sluice.Never
		}
	default:
		t.leases.warmKey(key)
		switch {
		case c.op == opCharge:
			d = t.local.Charge(key, int(c.n))
		case c.charges:
			d = t.local.Take(key, c.cost)
		default:
			d = t.local.Peek(key, c.cost)
		}
		d.Limit = int(c.plan.burst)
		if d.RetryAfter == sluice.Never && 0 < c.cost && int64(c.cost) <= c.plan.burst {
			d.RetryAfter = a.lane.nextProbe()
		}
	}
	if d.Allowed && c.k > 0 || c.op == opCharge {
		a.lane.admitted(a.group, c)
	}
	if c.plan.constant() { // a Charge
		d = c.plan.decideConstant(c.cost)
	}
	t.stats.fallback.Add(1)
	return d, FromFallback, nil
}

// Charge charges cost units to key whether they are there or not, and returns what Peek with
// a cost of 0 would say right after it; see Limiter.Charge. If Redis does not answer within
// the budget it is told later, of a burst at most; until then the share of LocalShare has
// been charged. Under Closed the error is ErrUnavailable, and Redis may have been charged.
func (t *Tier) Charge(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	p := t.shared.plan.Load()
	if cost < 1 || !p.counts() {
		return t.Peek(ctx, key, 0)
	}
	if err := t.check(ctx); err != nil {
		return sluice.Decision{}, err
	}
	if p != t.shareOf.Load() {
		t.reshare()
	}
	c := t.shared.newCharge(p, key, cost)
	a, err := t.ask(ctx, key, c.request, time.Now())
	if err != nil {
		return sluice.Decision{}, err
	}
	if a.failed != nil {
		d, _, err := t.fallback(a, &c, key)
		return d, err
	}
	t.local.Charge(key, int(c.n))
	t.stats.redis.Add(1)
	return c.decision(&a.group.reply), nil
}

// Refund gives key back cost units; see Limiter.Refund. If Redis does not answer within the
// budget the error is ErrUnavailable, and units may have been given back. Of units that
// another process has admitted from a lease, those cannot be that have not been settled.
func (t *Tier) Refund(ctx context.Context, key string, cost int) error {
	r, ok := t.shared.refundOf(key, cost)
	if !ok {
		return t.check(ctx)
	}
	err := t.change(ctx, key, r)
	if err == nil {
		t.local.Refund(key, cost)
	}
	return err
}

// Reset makes key fresh; see Refund for its error. Leases that other processes have of it
// go on.
func (t *Tier) Reset(ctx context.Context, key string) error {
	err := t.change(ctx, key, t.shared.resetOf(key))
	if err == nil {
		t.local.Reset(key)
	}
	return err
}

// change makes a call of Refund or Reset.
func (t *Tier) change(ctx context.Context, key string, r request) error {
	if err := t.check(ctx); err != nil {
		return err
	}
	a, err := t.ask(ctx, key, r, time.Now())
	if err != nil {
		return err
	}
	t.denied.forget(key)
	if a.failed == nil || a.failed == ErrClosed || errors.Is(a.failed, ErrForeignValue) {
		return a.failed
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
}

// micros returns a time in us of Unix time, by the clock that local has as well: no step of this
// machine's clock changes anything.
func (t *Tier) micros(now time.Time) int64 {
	return t.began.UnixMicro() + now.Sub(t.began).Microseconds()
}

// SetReplicas changes how many processes share the limit. A number below 1 counts as 1.
func (t *Tier) SetReplicas(n int) {
	t.replicas.Store(max(int64(n), 1))
	t.reshare()
}

// reshare gives the local limiter its part of the limit in force. A part that it cannot
// keep leaves it with the last one.
func (t *Tier) reshare() {
	t.sharing.Lock()
	defer t.sharing.Unlock()
	p := t.shared.plan.Load()
	c := t.shared.configOf(p)
	_ = t.local.SetLimit(c.Limit.Share(int(t.replicas.Load())))
	t.shareOf.Store(p)
}

// Mode returns the mode.
func (t *Tier) Mode() Mode {
	t.modes.Lock()
	defer t.modes.Unlock()
	return t.modeLocked()
}

func (t *Tier) modeLocked() Mode {
	if t.down > 0 {
		return ModeDegraded
	}
	return ModeShared
}

// turn notes that there are more, or fewer, primaries that are not asked.
func (t *Tier) turn(more int, cause error) {
	t.modes.Lock()
	defer t.modes.Unlock()
	before := t.modeLocked()
	t.down += more
	if more > 0 {
		t.stats.outages.Add(1)
	}
	if t.modeLocked() == before || t.onMode == nil {
		return
	}
	t.events = append(t.events, event{t.modeLocked(), cause})
	if len(t.events) == 1 {
		t.told.Go(t.tell)
	}
}

// tell calls OnMode for all events. The first stays in the list until it has been told, so
// that there is one goroutine that tells.
func (t *Tier) tell() {
	t.modes.Lock()
	defer t.modes.Unlock()
	for len(t.events) > 0 {
		e := t.events[0]
		t.modes.Unlock()
		t.onMode(e.mode, e.cause)
		t.modes.Lock()
		t.events = t.events[1:]
	}
}

// Stats returns what has been counted so far.
func (t *Tier) Stats() Stats {
	s := &t.stats
	return Stats{
		Redis: s.redis.Load(), Cache: s.cache.Load(), Lease: s.lease.Load(), Fallback: s.fallback.Load(), Scripts: s.scripts.Load(), Led: s.led.Load(),
		Late: s.late.Load(), Failed: s.failed.Load(), PoolTimeouts: s.poolTimeouts.Load(), Outages: s.outages.Load(),
		Lent: s.lent.Load(), Returned: s.returned.Load(),
	}
}

// Close makes all later calls fail with ErrClosed, and waits until those that are under way
// have ended, leases have been given back, and Redis has been told what it is owed, as far as it answers. It returns
// ctx's error if that ends first; the rest then ends by itself, when the client gives up.
func (t *Tier) Close(ctx context.Context) error {
	t.closed.Store(true)
	done := make(chan struct{})
	go func() {
		t.leases.end()
		for _, l := range t.router.all() {
			l.close()
		}
		t.router.done.Wait()
		for _, l := range t.router.all() {
			l.close() // those that the last answer of the cluster has made
			l.wait()
		}
		t.told.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
