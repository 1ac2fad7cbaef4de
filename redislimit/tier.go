package redislimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// A Tier stands before a Limiter. Its calls return within a budget, and get answers even while
// Redis does not answer. TierConfig.Budget says how late they can be where the process gets no processor.
//
//   - Callers with the same key and cost share a call of the script, first come first served, and
//     keys share pipelines. At most two pipelines are under way to each primary. This
//     changes no decision, and makes hot keys cheap.
//   - After a key is denied a cost, the same and any larger cost are denied from memory until Redis
//     could admit them.
//   - With leases, Redis lends units. Calls are admitted from these without asking Redis; see
//     Lease.
//   - When a primary does not answer in time, OnUnavailable decides. When half of at least 20
//     calls within a second have failed, or 5 one after another, calls no longer ask the primary. Only a probe
//     does, every 250 ms.
//   - Units that were admitted without Redis are charged there as soon as a probe is answered: at most a burst of
//     a key, and without units whose windows are over. For half a second more calls also keep to the share of
//     LocalShare, since other processes may not have told Redis yet.
//
// A call that was sent and not answered in time counts as charged, and is not sent again.
// The client's own timeouts and retries do not affect callers, and the callers' contexts do not
// affect the client. With a client of NewClient a lone caller makes its calls itself.
//
// All replicas together admit at most WorstCase(d) in a span d, with leases or without. Measured at the
// callers, add the units that drain while an answer is on its way, for at most Budget. Under LocalShare, an outage
// within the span adds one burst, or Replicas units if that is more. An outage that only some replicas see also
// adds their shares of the limit for as long as it lasts. A process that makes no call during the outage, and one
// within 250 ms of its end, adds another burst, and the units that the limit admits in 250 ms and Budget.
//
// A Tier is safe for concurrent use. Close it when it is no longer needed.
type Tier struct {
	*core
	*keyspace
	shared *Limiter
	terms  *terms // or nil
}

// NewTier returns a Tier before shared. It does not talk to Redis, which may be down.
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
// within the budget. If ctx ends first it returns ctx's error, and a call that has not been sent by then
// is not charged. Errors are ctx's, ErrClosed, and under FailClosed ErrUnavailable.
func (t *Tier) Take(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	d, _, err := t.decide(ctx, key, cost, true)
	return d, err
}

// Algorithm returns the Limiter's.
func (t *Tier) Algorithm() sluice.Algorithm { return t.shared.Algorithm() }

// TakeSource is Take, and also returns how the decision was made.
func (t *Tier) TakeSource(ctx context.Context, key string, cost int) (sluice.Decision, Source, error) {
	return t.decide(ctx, key, cost, true)
}

// Peek returns the Decision that Take would return, but charges nothing.
func (t *Tier) Peek(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	d, _, err := t.decide(ctx, key, cost, false)
	return d, err
}

// decide is TakeSource if charges is true. Otherwise it is Peek, with the source.
func (t *Tier) decide(ctx context.Context, key string, cost int, charges bool) (sluice.Decision, Source, error) {
	now := time.Now()
	p := t.shared.plan.Load()
	if err := t.check(ctx); err != nil {
		return sluice.Decision{}, 0, err
	}
	if p != t.shareOf.Load() && !p.constant() {
		t.reshare()
	}
	s := t.subject(key)
	if d, from, ok := t.atHand(p, s, cost, charges, true, true, int64(now.Sub(t.began)), nil); ok {
		return d, from, nil
	}
	c := t.shared.newCallOf(p, key, cost, charges)
	c.terms = t.terms
	if d, ok := t.within(&c, s, now); !ok {
		return d, FromFallback, nil
	}
	a, err := t.ask(ctx, s, c.request, now)
	if err != nil {
		return sluice.Decision{}, 0, err
	}
	return t.outcome(&a, &c, s)
}

// Debit charges cost units to key whether the limit has room for them or not. It returns the Decision that
// Peek with a cost of 0 would return right after it; see Key.Debit. If Redis does not answer within
// the budget it is told of the charge later, up to a burst; until then the share of LocalShare has
// been charged. Under Closed the error is ErrUnavailable, and Redis may have been charged.
func (t *Tier) Debit(ctx context.Context, key string, cost int) (sluice.Decision, error) {
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
	c, s := t.shared.newDebit(p, key, cost), t.subject(key)
	a, err := t.ask(ctx, s, c.request, time.Now())
	if err != nil {
		return sluice.Decision{}, err
	}
	d, _, err := t.outcome(&a, &c, s)
	return d, err
}

// Refund gives back cost units of key; see Limiter.Refund. If Redis does not answer within the
// budget the error is ErrUnavailable, and the units may have been given back. Units that
// another process has admitted from a lease can be given back once that lease is settled. Under InFlight the share of
// LocalShare has the units back also after that error.
func (t *Tier) Refund(ctx context.Context, key string, cost int) error {
	r, ok := t.shared.refundOf(key, cost)
	if !ok {
		return t.check(ctx)
	}
	a, err := t.change(ctx, t.subject(key), r)
	switch {
	case err == nil:
		t.local.Key(key).Refund(cost)
	case a.failed != nil && a.failed != ErrClosed && r.plan.inFlight():
		a.refundHere(&r, t.local.Key(key))
	}
	return err
}

// Reset makes key fresh; see Refund for its error. Leases of the key that other processes have
// stay valid.
func (t *Tier) Reset(ctx context.Context, key string) error {
	_, err := t.change(ctx, t.subject(key), t.shared.resetOf(key))
	if err == nil {
		t.local.Key(key).Reset()
	}
	return err
}

// change makes a call of Refund or Reset.
func (c *core) change(ctx context.Context, s subject, r request) (a asked, err error) {
	if err := c.check(ctx); err != nil {
		return a, err
	}
	a, err = c.ask(ctx, s, r, time.Now())
	if err != nil {
		return a, err
	}
	c.denied.forget(s.id)
	if a.failed == nil || a.failed == ErrClosed || errors.Is(a.failed, ErrForeignValue) {
		return a, a.failed
	}
	return a, fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
}

// reshare gives the local limiter its part of the limit in force.
func (t *Tier) reshare() {
	t.keyspace.reshare(t.shared, int(t.replicas.Load()))
}

// Mode returns the current mode.
func (t *Tier) Mode() Mode { return t.mode() }

// Stats returns the counts so far.
func (t *Tier) Stats() Stats { return t.counted() }

// Close makes all later calls fail with ErrClosed. It waits until the calls that are under way have ended, leases
// have been given back, and Redis has been told of all charges that it is owed, as far as it answers. If ctx ends
// first, Close returns ctx's error; the rest then ends by itself, when the client gives up.
func (t *Tier) Close(ctx context.Context) error { return t.core.close(ctx, func() {}) }
