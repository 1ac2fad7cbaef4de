package httplimit

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// A quota is what headers tell about a policy for one request: the limit in force for
// its key, and the state of the key at an instant after the decision.
type quota struct {
	policy    *policy
	key       string
	limit     sluice.Limit // in force for the key
	capacity  int          // the most at once
	remaining int
	window    uint64        // ns in which the capacity comes back; 0 if it does not
	effective time.Duration // the time for which no more than remaining is to be used; 0 if there is none
	reset     time.Duration // until the capacity is available again; 0 if it is
	never     bool          // it never will be, as under DenyAll or for a key that is blocked for good
	now       int64         // on the limiter's clock, Unix ns
}

// newQuota looks at the state of an entry's key, and says what clients are to be told, in
// real time. ok is false if the limit in force limits nobody.
func newQuota(e *entry, k sluice.Key) (q quota, ok bool) {
	q, ok = limiterQuota(e, k)
	if q.reset > 0 {
		q.reset = later(q.reset, e.policy.lag)
	}
	if q.remaining == 0 && q.effective > 0 {
		q.effective = later(q.effective, e.policy.lag)
	}
	return q, ok
}

// lag returns how far a clock can be behind: the time that has passed since its last refresh,
// and as much for one that is late.
func lag(c sluice.Clock) time.Duration {
	if r, ok := c.(interface{ Resolution() time.Duration }); ok {
		return 2 * min(max(r.Resolution(), 0), math.MaxInt64/2)
	}
	return 0
}

// later returns a wait on the limiter's clock as one in real time.
func later(wait, lag time.Duration) time.Duration { return wait + min(lag, sluice.Never-1-wait) }

// limiterQuota is newQuota by the limiter's clock.
func limiterQuota(e *entry, k sluice.Key) (q quota, ok bool) {
	l, c := k.Limit(), &e.policy.conf
	if l.Rate == math.MaxInt {
		return quota{}, false
	}
	d := k.Peek(0)
	q = quota{policy: e.policy, key: e.key, limit: l, capacity: burst(l), now: max(c.Clock.Now(), 0)}
	q.remaining = min(d.Remaining, q.capacity) // the limit may have changed in between
	q.never = l.Rate == 0 || d.ResetAfter == sluice.Never
	if l.Rate > 0 {
		q.window = fullWindow(c, l)
	}
	if q.never {
		return q, true
	}
	q.reset = d.ResetAfter
	if c.Algorithm == sluice.FixedWindow {
		if q.reset == 0 { // nothing counts, so that the key cannot say when the window ends
			q.reset = freshWindow(c, l, q.now)
		}
		q.effective = q.reset
		return q, true
	}
	all := saturate(mulDivCeil(uint64(q.remaining), uint64(l.Period), uint64(perPeriod(c, l))))
	switch {
	case c.Algorithm == sluice.SlidingWindow || c.Algorithm == sluice.SlidingLog:
		if q.effective = untilNext(c, k, q.remaining); q.effective == 0 {
			q.effective = l.Period
		}
	case accrues(c) && q.remaining > 0:
		q.effective = all // the next unit takes no longer than any of these
	default:
		q.effective = max(untilNext(c, k, q.remaining), all)
	}
	return q, true
}

// untilNext returns the time until one more unit than what remains is available, or 0
// if no more ever is. The units of Soft, which are not shown, come before it; but where
// they are used up as well, it is the first of them that a client can use next.
func untilNext(c *sluice.Config, k sluice.Key, remaining int) time.Duration {
	if c.Soft > 0 && remaining == 0 {
		if wait := k.Peek(1).RetryAfter; wait > 0 && wait != sluice.Never {
			return wait
		}
	}
	if remaining > math.MaxInt-1-c.Soft {
		return 0
	}
	wait := k.Peek(remaining + c.Soft + 1).RetryAfter
	if wait == sluice.Never {
		return 0
	}
	return wait
}

// perPeriod returns how many units can come back in a period.
func perPeriod(c *sluice.Config, l sluice.Limit) int {
	if c.Refill == sluice.RefillInterval {
		return min(l.Rate, burst(l))
	}
	return l.Rate
}

// fullWindow returns the time that the whole capacity takes to come back, in ns.
func fullWindow(c *sluice.Config, l sluice.Limit) uint64 {
	return mulDivCeil(uint64(burst(l)), uint64(l.Period), uint64(perPeriod(c, l)))
}

// freshWindow returns the time to the end of the fixed window of a key that nothing
// counts against.
func freshWindow(c *sluice.Config, l sluice.Limit, now int64) time.Duration {
	if c.Anchor == sluice.AnchorFirstCharge {
		return l.Period
	}
	return windowRest(now, l.Period, c.Offset)
}

func burst(l sluice.Limit) int {
	if l.Burst == 0 {
		return l.Rate
	}
	return l.Burst
}

func saturate(ns uint64) time.Duration { return time.Duration(min(ns, math.MaxInt64)) }
