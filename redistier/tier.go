package redistier

import (
	"context"
	"errors"
	"fmt"
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
//     calls within a second have failed, or 5 one after another, no call asks it any more, but a probe does,
//     every 250 ms.
//   - What was admitted without Redis is charged there as soon as a probe is answered, without what has come
//     back with windows that are over, and at most a burst of a key. For half a second more calls keep to the
//     share of LocalShare as well: others may not have told Redis yet.
//
// A call that was sent and not answered in time counts as charged, and is not sent again.
// The client's own timeouts and retries make no difference to callers, nor do their
// contexts to the client. With a client of NewClient a lone caller makes its calls itself.
//
// All replicas together admit at most WorstCase(d) in a span d, with leases or without; as
// seen by callers, plus what drains while an answer is on its way, at most Budget. Under LocalShare, an outage
// within the span adds one burst, or Replicas units if that is more; one that only some replicas
// have, also their shares of the limit for as long as it lasts. With a process that has not made a call in the outage, and makes one
// within 250 ms of its end, it adds a burst more, and what the limit admits in 250 ms and Budget.
//
// A Tier is safe for concurrent use. Close it when it is no longer needed.
type Tier struct {
	*core
	*keyspace
	shared *Limiter
	terms  *terms // or nil
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
	local, err := newLocal(c, cfg.Replicas, cfg.MaxKeys)
	if err != nil {
		return nil, err
	}
	t := &Tier{core: newCore(shared.link, &cfg, cfg.Lease.Max > 0), keyspace: newKeyspace(local), shared: shared, terms: cfg.terms()}
	t.shareOf.Store(p)
	t.lends.Store(t.terms != nil)
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
	at, s := int64(now.Sub(t.began)), t.subject(key)
	if d, ok := t.leases.spend(p, s, cost, charges, at); ok {
		t.stats.lease.Add(1)
		return d, FromLease, nil
	}
	if d, ok := t.remembered(p, s, cost, at); ok {
		t.stats.cache.Add(1)
		return d, FromCache, nil
	}
	c := t.shared.newCallOf(p, key, cost, charges)
	c.terms = t.terms
	if d, ok := t.within(&c, s, now); !ok {
		return d, FromFallback, nil
	}
	a, err := t.ask(ctx, s, c.request, now)
	switch {
	case err != nil:
		return sluice.Decision{}, 0, err
	case a.leased():
		t.stats.lease.Add(1)
		return a.waiter.decision, FromLease, nil
	case a.failed != nil:
		return t.fallback(a, &c, s)
	}
	t.stats.redis.Add(1)
	return t.decision(&c, s, a.group, a.waiter.rank), FromRedis, nil
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
	c, s := t.shared.newCharge(p, key, cost), t.subject(key)
	a, err := t.ask(ctx, s, c.request, time.Now())
	if err != nil {
		return sluice.Decision{}, err
	}
	if a.failed != nil {
		d, _, err := t.fallback(a, &c, s)
		return d, err
	}
	t.local.Charge(key, int(c.n))
	t.stats.redis.Add(1)
	return t.decision(&c, s, a.group, a.waiter.rank), nil
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
	s := t.subject(key)
	a, err := t.ask(ctx, s, r, time.Now())
	if err != nil {
		return err
	}
	t.denied.forget(s.id)
	if a.failed == nil || a.failed == ErrClosed || errors.Is(a.failed, ErrForeignValue) {
		return a.failed
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
}

// SetReplicas changes how many processes share the limit. A number below 1 counts as 1.
func (t *Tier) SetReplicas(n int) {
	t.replicas.Store(max(int64(n), 1))
	t.reshare()
}

// reshare gives the local limiter its part of the limit in force.
func (t *Tier) reshare() {
	t.keyspace.reshare(t.shared, int(t.replicas.Load()))
}

// Mode returns the mode.
func (t *Tier) Mode() Mode { return t.mode() }

// Stats returns what has been counted so far.
func (t *Tier) Stats() Stats { return t.counted() }

// Close makes all later calls fail with ErrClosed, and waits until those that are under way
// have ended, leases have been given back, and Redis has been told what it is owed, as far as it answers. It returns
// ctx's error if that ends first; the rest then ends by itself, when the client gives up.
func (t *Tier) Close(ctx context.Context) error { return t.core.close(ctx, func() {}) }
