package httplimit

import (
	"context"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/policies"
)

// A Remote is a limiter that may have to ask a server, and can fail: redislimit.Limiter and
// redislimit.Tier are, which share a limit between processes. It is called from many
// goroutines at once. Wrap it to hear of all of its errors, or of how long it takes.
type Remote interface {
	// Take charges cost units to key, or denies, as sluice.Limiter.Take does: a cost of 0
	// charges nothing, and a negative one is denied. A Decision with WouldDeny has charged
	// nothing. An error says that nothing is known of the decision: it may have been charged.
	Take(ctx context.Context, key string, cost int) (sluice.Decision, error)

	// Refund gives back units that Take has charged, as sluice.Key.Refund does. The context is
	// not the request's, which may have ended, though it has the request's values.
	Refund(ctx context.Context, key string, cost int) error
}

// A RemoteDebiter is a Remote that can charge a key more than remains, which leaves it in
// debt: redislimit.Limiter and redislimit.Tier are. Config.Settle charges it whatever a request
// has cost beyond its first charge; any other Remote is charged at most as much as remains.
type RemoteDebiter interface {
	Remote

	// Debit charges cost units to key whether they are there or not, as sluice.Key.Debit
	// does. The context is as for Refund.
	Debit(ctx context.Context, key string, cost int) (sluice.Decision, error)
}

// remoteQuota is newQuota from the answer of a Remote, which knows no rate.
func remoteQuota(e *entry) (q quota, ok bool) {
	a := e.Asked
	if a == nil || a.WouldDeny || a.Limit == policies.NoLimit {
		return q, false
	}
	q = quota{policy: e.Policy, key: e.Key, capacity: a.Limit, remaining: min(a.Remaining, a.Limit), reset: a.ResetAfter}
	q.never = a.Limit == 0 || a.ResetAfter == sluice.Never
	if !a.Allowed && a.RetryAfter != sluice.Never {
		q.effective = a.RetryAfter
	}
	return q, true
}
