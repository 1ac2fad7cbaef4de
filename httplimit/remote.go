package httplimit

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
)

// A Remote is a limiter that may have to ask others, and can fail: redistier.Limiter and
// redistier.Tier are, which share a limit between processes. It is called from many
// goroutines at once. Wrap it to hear of all of its errors, or of how long it takes.
type Remote interface {
	// Take charges cost units to key, or denies, as sluice.Limiter.Take does: a cost of 0
	// charges nothing, and a negative one is denied. A Decision with WouldDeny has charged
	// nothing. An error says that nothing is known of the decision: it may have been charged.
	Take(ctx context.Context, key string, cost int) (sluice.Decision, error)

	// Refund gives back what Take has charged, as sluice.Key.Refund does. The context is
	// not that of the request, which may have ended, though it has the request's values.
	Refund(ctx context.Context, key string, cost int) error
}

// A RemoteCharger is a Remote that can charge a key more than remains, which leaves it in
// debt: redistier.Limiter and redistier.Tier are. Config.Settle charges it whatever a request
// has cost beyond what was charged before; of any other Remote it charges what remains at most.
type RemoteCharger interface {
	Remote

	// Charge charges cost units to key whether they are there or not, as sluice.Limiter.Charge
	// does. The context is as that of Refund.
	Charge(ctx context.Context, key string, cost int) (sluice.Decision, error)
}

const (
	noLimit = math.MaxInt // the Limit of a Decision under sluice.Unlimited

	// remoteRetry is the Retry-After of a request that a Remote has failed: it can be there
	// again at any time.
	remoteRetry = time.Second
	// afterwards bounds the calls of Remotes that do not answer the request: refunds, and what
	// Settle charges.
	afterwards = time.Second
)

// An asked is what a Remote has said about a request.
type asked struct {
	sluice.Decision
	at time.Time // no later than the decision
}

// outliving returns a context that does not end with that of the request.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), afterwards)
}

// ask has the Remote of the entry charge the cost.
func (e *entry) ask(ctx context.Context, cost int) error {
	at := time.Now()
	d, err := e.policy.Remote.Take(ctx, e.key, cost)
	if err != nil {
		return fmt.Errorf("httplimit: policy %q: %w", e.policy.Name, err)
	}
	e.asked = &asked{d, at}
	e.charged = d.Allowed && !d.WouldDeny
	return nil
}

// askRemotes has the Remotes charge the request, one by one, and says so in d. If one of
// them denies or fails, all is given back that was charged before.
func (j *judgement) askRemotes(ctx context.Context, d *Decision) {
	entries, charges := j.of(remote)
	for i := range entries {
		e := &entries[i]
		err := e.ask(ctx, charges[i].Cost)
		switch {
		case err != nil:
			d.Allowed, d.Status, d.RemoteError, d.RetryAfter = false, statusFailed, err, remoteRetry
		case !e.asked.Allowed:
			d.Allowed, d.Status, d.Violated, d.RetryAfter = false, statusDenied, []string{e.policy.Name}, e.asked.RetryAfter
		default:
			if e.asked.WouldDeny {
				d.WouldDeny = append(d.WouldDeny, e.policy.Name)
			} else {
				d.Remaining = min(d.Remaining, e.asked.Remaining)
			}
			d.OverSoft = d.OverSoft || e.asked.OverSoft
			continue
		}
		d.OverSoft, d.WouldDeny = false, nil
		j.takeBack(ctx)
		d.Remaining = j.remaining()
		return
	}
}

// askShadows is askRemotes for those in shadow mode, whose denials and errors do nothing.
func (j *judgement) askShadows(ctx context.Context, d *Decision) {
	entries, charges := j.of(remoteShadow)
	for i := range entries {
		e := &entries[i]
		switch err := e.ask(ctx, charges[i].Cost); {
		case err != nil && d.RemoteError == nil:
			d.RemoteError = err
		case err == nil && !e.charged:
			d.WouldDeny = append(d.WouldDeny, e.policy.Name)
		}
	}
}

// takeBack gives back all that has been charged for a request that is denied after all.
func (j *judgement) takeBack(ctx context.Context) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	entries, charges := j.of(remote)
	for i := range entries {
		e, cost := &entries[i], charges[i].Cost
		if !e.charged || cost == 0 {
			continue
		}
		_ = e.policy.Remote.Refund(ctx, e.key, cost) // or it stays charged
		e.asked.Remaining += min(cost, e.asked.Limit-e.asked.Remaining)
	}
	j.settle(0)
	j.end()
	for i := range j.entries {
		j.entries[i].charged = false
	}
	j.states = nil
}

// settleRemotes makes what the Remotes have charged final.
func (j *judgement) settleRemotes(ctx context.Context, final int) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	for i := range j.entries {
		e, cost := &j.entries[i], j.charges[i].Cost
		if e.policy.Remote == nil || !e.charged {
			continue
		}
		if n := min(cost-final, e.asked.outstanding()); n > 0 {
			_ = e.policy.Remote.Refund(ctx, e.key, n) // or it stays charged
		}
		if final > cost {
			e.chargeMore(ctx, final-cost)
		}
	}
}

// chargeMore charges n units; of a Remote that can only Take, what remains if that is less. It
// looks first then: a denial would count as one of the client's, and can block the key.
func (e *entry) chargeMore(ctx context.Context, n int) {
	if c, ok := e.policy.Remote.(RemoteCharger); ok {
		_, _ = c.Charge(ctx, e.key, n) // the response has been sent
		return
	}
	if d, err := e.policy.Remote.Take(ctx, e.key, 0); err == nil && d.Remaining > 0 {
		_, _ = e.policy.Remote.Take(ctx, e.key, min(n, d.Remaining))
	}
}

// outstanding returns how many units, of all that had been charged to the key when it was
// asked, have not come back by themselves, rounded up: at most those that a bucket that
// fills evenly until ResetAfter still lacks.
func (a *asked) outstanding() int {
	rest := a.ResetAfter - time.Since(a.at)
	if rest <= 0 || a.Limit <= a.Remaining {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a.Limit-a.Remaining), uint64(rest))
	n, part := bits.Div64(hi, lo, uint64(a.ResetAfter)) // rest is no more than ResetAfter, so that it fits
	if part != 0 {
		n++
	}
	return int(n)
}

// remoteQuota is newQuota from what a Remote has said, which knows no rate.
func remoteQuota(e *entry) (q quota, ok bool) {
	a := e.asked
	if a == nil || a.WouldDeny || a.Limit == noLimit {
		return q, false
	}
	q = quota{policy: e.policy, key: e.key, capacity: a.Limit, remaining: min(a.Remaining, a.Limit), reset: a.ResetAfter}
	q.never = a.Limit == 0 || a.ResetAfter == sluice.Never
	if !a.Allowed && a.RetryAfter != sluice.Never {
		q.effective = a.RetryAfter
	}
	return q, true
}
