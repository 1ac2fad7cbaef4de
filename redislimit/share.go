package redislimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// fallback answers a call that Redis has not answered.
func (c *core) fallback(a asked, t *takeCall, s subject) (d sluice.Decision, from Source, err error) {
	switch a.failed {
	case ErrClosed:
		return d, 0, ErrClosed
	case errLate:
		c.stats.late.Add(1)
	case errOpen:
		c.stats.unasked.Add(1)
	case nil: // Redis was not asked: its primary is returning
	default:
		c.stats.failed.Add(1)
	}
	switch c.decides() {
	case FailClosed:
		return d, 0, c.unavailable(a.failed)
	case FailOpen:
		d = sluice.Decision{Allowed: t.cost >= 0 && t.asks() <= t.plan.burst, Limit: int(t.plan.burst)}
		if !d.Allowed {
			d.RetryAfter = sluice.Never
		}
	default:
		c.leases.warmKey(s)
		t.giveBack(s)
		switch share := s.share(t.plan); {
		case t.op == opDebit:
			d = t.chargeShare(share)
		case t.op == opRefund:
			a.refundHere(&t.request, share)
			d = share.Peek(0)
		case t.charges:
			d = share.Take(t.cost)
		default:
			d = share.Peek(t.cost)
		}
		d = t.ofShare(d, a.lane)
	}
	if d.Allowed && t.k > 0 || t.op == opDebit {
		a.lane.admitted(a.group, t)
		c.stats.unshared.Add(uint64(t.n))
	}
	if t.plan.constant() { // a Debit
		d = t.plan.decideConstant(t.cost)
	}
	c.stats.fallback.Add(1)
	return d, FromFallback, nil
}

// decides returns how calls are decided that Redis does not answer. Of how many processes a share is, only Redis knows, unless
// the configuration says so: before it has said so, there is no share, since the limit itself would be one of each process.
func (c *core) decides() OnUnavailable {
	if c.policy == LocalShare && c.uncounted.Load() {
		return FailClosed
	}
	return c.policy
}

// errUncounted is in errors while calls are decided as under FailClosed, although OnUnavailable is LocalShare.
var errUncounted = errors.New("how many processes share the limit is not known, since Redis has not answered yet; set Replicas where processes may start without Redis")

// unavailable returns the error of a call that nobody decides.
func (c *core) unavailable(cause error) error {
	if c.policy == LocalShare && c.uncounted.Load() {
		return fmt.Errorf("%w: %w; %w", ErrUnavailable, cause, errUncounted)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, cause)
}

// within charges the share with a call that charges, while its primary has only just come back. Other processes may
// not have told Redis yet of the units that they admitted without it, so the count in Redis is no bound yet. The shares
// of all processes together are a bound. within reports whether the call fits; d is the decision if not.
func (c *core) within(t *takeCall, s subject, now time.Time) (d sluice.Decision, ok bool) {
	if c.returning.Load() == 0 || t.k == 0 && !t.judges && t.what != whatHold || c.decides() != LocalShare {
		return d, true
	}
	l := c.router.lane(t.key, now)
	if !l.returning.Load() {
		return d, true
	}
	c.leases.warmKey(s)
	if t.judges { // a Debit counts in any case
		d = t.chargeShare(s.share(t.plan))
		t.within, t.over = true, !d.Allowed
		return d, true
	}
	d = s.share(t.plan).Take(t.cost)
	if d.Allowed {
		t.within = true
		return d, true
	}
	c.stats.fallback.Add(1)
	return t.ofShare(d, l), false
}

// giveBack gives back to the share the units that within has charged.
func (t *takeCall) giveBack(s subject) {
	if t.within {
		t.within = false
		s.share(t.plan).Refund(int(t.asks()))
	}
}

// ofShare returns a decision of the share as a decision on the limit. More than the share may be admitted once
// Redis decides again.
func (t *takeCall) ofShare(d sluice.Decision, l *lane) sluice.Decision {
	d.Limit = int(t.plan.burst)
	if d.RetryAfter == sluice.Never && 0 < t.asks() && t.asks() <= t.plan.burst {
		d.RetryAfter = l.nextProbe()
	}
	return d
}
