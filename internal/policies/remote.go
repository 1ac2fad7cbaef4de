package policies

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// farRetry is the RetryAfter of a request that a Remote has failed: it can be there
	// again at any time.
	farRetry = time.Second
	// afterwards bounds the calls of Remotes that do not answer the request: refunds, and what
	// a settlement charges.
	afterwards = time.Second
)

// An Asked is the answer of a Remote about a request.
type Asked struct {
	sluice.Decision
	at time.Time // no later than the decision
}

// outliving returns a context that does not end with the request's.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), afterwards)
}

// ask has the Remote of the entry charge the cost.
func (e *Entry[R, P]) ask(ctx context.Context, cost int) error {
	at := time.Now()
	d, err := e.Policy.Remote.Take(ctx, e.Key, cost)
	if err != nil {
		return fmt.Errorf("policy %q: %w", e.Policy.Name, err)
	}
	e.Asked = &Asked{d, at}
	e.charged = d.Allowed && !d.WouldDeny
	return nil
}

// askFar has the Remotes charge the request, one by one, and says so in d. If one of
// them denies or fails, all is given back that was charged before.
func (j *Judgement[R, P]) askFar(ctx context.Context, d *Decision) {
	entries, charges := j.Of(Far)
	for i := range entries {
		e := &entries[i]
		err := e.ask(ctx, charges[i].Cost)
		switch {
		case err != nil:
			d.Outcome, d.FarError, d.RetryAfter = Failed, err, farRetry
		case !e.Asked.Allowed:
			d.Outcome, d.Violated, d.RetryAfter = Denied, []string{e.Policy.Name}, e.Asked.RetryAfter
		default:
			if e.Asked.WouldDeny {
				d.WouldDeny = append(d.WouldDeny, e.Policy.Name)
			} else {
				d.Remaining = min(d.Remaining, e.Asked.Remaining)
			}
			d.OverSoft = d.OverSoft || e.Asked.OverSoft
			continue
		}
		d.OverSoft, d.WouldDeny = false, nil
		j.takeBack(ctx)
		d.Remaining = j.remaining()
		return
	}
}

// askShadows is askFar for those in shadow mode, whose denials and errors do nothing.
func (j *Judgement[R, P]) askShadows(ctx context.Context, d *Decision) {
	entries, charges := j.Of(FarShadow)
	for i := range entries {
		e := &entries[i]
		switch err := e.ask(ctx, charges[i].Cost); {
		case err != nil && d.FarError == nil:
			d.FarError = err
		case err == nil && !e.charged:
			d.WouldDeny = append(d.WouldDeny, e.Policy.Name)
		}
	}
}

// takeBack gives back all that has been charged for a request that is denied after all.
func (j *Judgement[R, P]) takeBack(ctx context.Context) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	entries, charges := j.Of(Far)
	for i := range entries {
		e, cost := &entries[i], charges[i].Cost
		if !e.charged || cost == 0 {
			continue
		}
		_ = e.Policy.Remote.Refund(ctx, e.Key, cost) // or it stays charged
		e.Asked.Remaining += min(cost, e.Asked.Limit-e.Asked.Remaining)
	}
	for i := range j.Entries {
		j.Entries[i].reservation.Cancel()
		j.Entries[i].charged = false
	}
	j.States = nil
}

// settleFar makes the charges of the Remotes final.
func (j *Judgement[R, P]) settleFar(ctx context.Context) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	for i := range j.Entries {
		e, cost := &j.Entries[i], j.Charges[i].Cost
		if e.Policy.Remote == nil || !e.charged || e.final < 0 {
			continue
		}
		if n := min(cost-e.final, e.Asked.outstanding()); n > 0 {
			_ = e.Policy.Remote.Refund(ctx, e.Key, n) // or it stays charged
		}
		if e.final > cost {
			e.chargeMore(ctx, e.final-cost)
		}
	}
}

// chargeMore charges n units; of a Remote that can only Take, the remaining units if these are fewer. It
// looks first then: a denial would count as one of the client's, and can block the key.
func (e *Entry[R, P]) chargeMore(ctx context.Context, n int) {
	if c, ok := e.Policy.Remote.(RemoteDebiter); ok {
		_, _ = c.Debit(ctx, e.Key, n) // the response has been sent
		return
	}
	if d, err := e.Policy.Remote.Take(ctx, e.Key, 0); err == nil && d.Remaining > 0 {
		_, _ = e.Policy.Remote.Take(ctx, e.Key, min(n, d.Remaining))
	}
}

// outstanding returns how many units, of all that had been charged to the key when it was
// asked, have not come back by themselves, rounded up: at most those that a bucket that
// fills evenly until ResetAfter still lacks.
func (a *Asked) outstanding() int {
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
