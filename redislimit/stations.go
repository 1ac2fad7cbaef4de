package redislimit

import "github.com/sluice-go/sluice"

// The stations that a call comes to, of a Tier and of a Store; the first that can answers:
//
//	the limit    if it admits or denies everything (atHand)
//	a lease      units that Redis has lent (atHand)
//	the memory   of denials (atHand)
//	the share    while the primary is only just back (within)
//	Redis        asks in a group, whose end may be that a lease has come (outcome)
//	fallback     if Redis does not answer (outcome)

// atHand answers a call that does not need Redis. A lease and the memory are only looked at if the caller says so. seen, if it is
// not nil, becomes the denial that has answered.
func (c *core) atHand(p *plan, s subject, cost int, charges, lease, memory bool, at int64, seen *denial) (d sluice.Decision, from Source, ok bool) {
	if p.constant() {
		c.stats.cache.Add(1)
		return p.decideConstant(cost), FromCache, true
	}
	if lease {
		if d, ok = c.leases.spend(p, s, cost, charges, at); ok {
			c.stats.lease.Add(1)
			return d, FromLease, true
		}
	}
	if memory {
		if d, ok = c.recall(p, s, cost, at, seen); ok {
			c.stats.cache.Add(1)
			return d, FromCache, true
		}
	}
	return d, 0, false
}

// outcome answers a call that Redis has been asked about.
func (c *core) outcome(a *asked, t *takeCall, s subject) (d sluice.Decision, from Source, err error) {
	if t.op == opRefund {
		c.denied.forget(s.id)
	}
	switch {
	case a.leased():
		c.stats.lease.Add(1)
		return a.waiter.decision, FromLease, nil
	case a.failed != nil:
		return c.fallback(*a, t, s)
	case t.op == opDebit && !t.within:
		s.share(t.plan).Debit(int(t.n))
	case t.op == opRefund:
		s.share(t.plan).Refund(int(t.n))
	}
	c.stats.redis.Add(1)
	return c.decision(t, s, a.group, a.waiter.rank), FromRedis, nil
}
