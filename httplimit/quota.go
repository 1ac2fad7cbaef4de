package httplimit

import (
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lag"
	"github.com/sluice-go/sluice/internal/policies"
)

// terms are the values that all keys under one limit share.
type terms struct {
	conf     sluice.Config // with the limit
	capacity int           // the most at once
	window   time.Duration // in which the capacity comes back; 0 if it does not
}

func newTerms(c sluice.Config) *terms {
	t := &terms{conf: c, capacity: c.Limit.Capacity()}
	if c.Limit.Rate > 0 && c.Algorithm != sluice.InFlight && c.Limit.Calendar() == (sluice.Calendar{}) { // whose windows differ
		t.window = c.RefillTime(t.capacity)
	}
	return t
}

// termsOf returns the terms of a limit: the terms at hand if it is the limiter's own, which
// can change.
func termsOf(p *policy, l sluice.Limit) *terms {
	t := p.Own.terms.Load()
	if t.conf.Limit == l {
		return t
	}
	c := p.Limiter.Config()
	common := c.Limit == l
	c.Limit = l
	if t = newTerms(c); common {
		p.Own.terms.Store(t)
	}
	return t
}

// A quota has the values that headers tell about a policy for one request: the limit in force for
// its key, and the state of the key.
type quota struct {
	policy    *policy
	key       string
	terms     *terms // nil of a Remote, which knows no rate
	capacity  int    // the most at once
	remaining int
	effective time.Duration // the time for which no more than remaining is to be used; 0 if there is none
	reset     time.Duration // until the capacity is available again; 0 if it is
	never     bool          // it never will be, as under DenyAll or for a key that is blocked for good
}

// quotas appends the quotas of all policies that are enforced.
func (j *judgement) quotas(quotas []quota) []quota {
	entries, charges := j.Of(policies.Local)
	for i := range entries {
		var d *sluice.Decision
		if j.States != nil {
			d = &j.States[i]
		}
		if q, ok := newQuota(&entries[i], charges[i].Key, d); ok {
			quotas = append(quotas, q)
		}
	}
	entries, _ = j.Of(policies.Far)
	for i := range entries {
		if q, ok := remoteQuota(&entries[i]); ok {
			quotas = append(quotas, q)
		}
	}
	return quotas
}

// newQuota returns the values for clients, in real time, of the key of an entry, which
// stands as d says, or if that is nil, as it says itself. ok is false if the limit in force
// limits nobody.
func newQuota(e *entry, k sluice.Key, d *sluice.Decision) (q quota, ok bool) {
	if d != nil {
		q, ok = quotaOf(e, k.Limit(), d)
	}
	if !ok {
		q, ok = quotaNow(e, k.Status())
	}
	if q.reset > 0 {
		q.reset = lag.Later(q.reset, e.Policy.Lag)
	}
	if q.remaining == 0 && q.effective > 0 {
		q.effective = lag.Later(q.effective, e.Policy.Lag)
	}
	return q, ok
}

// quotaOf is newQuota by the limiter's clock, for keys of which the Decision says enough. It
// says nothing of when the next unit comes.
func quotaOf(e *entry, l sluice.Limit, d *sluice.Decision) (q quota, ok bool) {
	if l.Rate == 0 || l.Rate == policies.NoLimit || d.ResetAfter == sluice.Never {
		return q, false
	}
	t := termsOf(e.Policy, l)
	if d.Limit != t.capacity {
		return q, false // the limit has changed since
	}
	q = quota{policy: e.Policy, key: e.Key, terms: t, capacity: t.capacity, remaining: d.Remaining, reset: d.ResetAfter}
	switch {
	case t.conf.Algorithm == sluice.InFlight:
		q.never = true // nobody knows when other requests give back
		return q, true
	case t.conf.Algorithm == sluice.FixedWindow, t.conf.Algorithm == sluice.FixedWindowFirstCharge:
		q.effective = q.reset
		return q, q.reset > 0 // or it cannot say when the window ends
	case t.conf.Algorithm == sluice.SlidingWindow, t.conf.Algorithm == sluice.SlidingLog, t.conf.Algorithm == sluice.TokenBucketInterval:
		return q, false
	}
	q.effective = t.conf.RefillTime(q.remaining) // the next unit takes no longer than any of these
	return q, q.remaining > 0
}

// quotaNow is quotaOf for all keys.
func quotaNow(e *entry, s sluice.Status) (q quota, ok bool) {
	if s.Limit.Rate == policies.NoLimit {
		return quota{}, false
	}
	t := termsOf(e.Policy, s.Limit)
	q = quota{policy: e.Policy, key: e.Key, terms: t, capacity: t.capacity, remaining: s.Remaining}
	if q.never = s.Limit.Rate == 0 || s.ResetAfter == sluice.Never; q.never {
		return q, true
	}
	switch q.reset = s.ResetAfter; t.conf.Algorithm {
	case sluice.InFlight:
		q.never = true
	case sluice.FixedWindow, sluice.FixedWindowFirstCharge:
		if q.reset == 0 { // nothing counts
			q.reset = s.WindowAfter
		}
		q.effective = q.reset
	case sluice.SlidingWindow, sluice.SlidingLog:
		if q.effective = s.NextAfter; q.effective == 0 {
			q.effective = s.Limit.Period
		}
	default:
		q.effective = max(s.NextAfter, t.conf.RefillTime(q.remaining))
	}
	return q, true
}
