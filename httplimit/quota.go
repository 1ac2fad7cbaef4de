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
	window    time.Duration // in which the capacity comes back; 0 if it does not
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
	s, c := k.Status(), e.policy.conf
	if s.Limit.Rate == math.MaxInt {
		return quota{}, false
	}
	c.Limit = s.Limit
	q = quota{policy: e.policy, key: e.key, limit: s.Limit, capacity: s.Limit.Capacity(), remaining: s.Remaining, now: max(c.Clock.Now(), 0)}
	if s.Limit.Rate > 0 {
		q.window = c.RefillTime(q.capacity)
	}
	if q.never = s.Limit.Rate == 0 || s.ResetAfter == sluice.Never; q.never {
		return q, true
	}
	next := s.NextAfter
	if next == sluice.Never {
		next = 0
	}
	switch q.reset = s.ResetAfter; c.Algorithm {
	case sluice.FixedWindow:
		if q.reset == 0 { // nothing counts, so that the key cannot say when the window ends
			q.reset = s.WindowAfter
		}
		q.effective = q.reset
	case sluice.SlidingWindow, sluice.SlidingLog:
		if q.effective = next; next == 0 {
			q.effective = s.Limit.Period
		}
	default:
		q.effective = max(next, c.RefillTime(q.remaining))
	}
	return q, true
}
