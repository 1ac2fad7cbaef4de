package fare

import (
	"context"
	"time"
)

// A Passage is one call on its way: it waits until its host or method is no longer held back, and pays.
type Passage[K comparable] struct {
	Holds    *Holds[K]
	For      K // the host or method that may be held back
	Patience Patience
	FailFast bool // it does not wait
}

// Admit returns the ticket for the next attempt when that may be sent. If the context has ended, that is the reason of a Refusal,
// whatever it says.
func (p *Passage[K]) Admit(ctx context.Context, f Fare) (Ticket, *Refusal) {
	for {
		if no := p.await(ctx); no != nil {
			return Ticket{}, no
		}
		t, no := f.Pay(ctx, &p.Patience, p.FailFast)
		if no != nil {
			return t, no
		}
		// While it waited for the limiters, its host or method may have been held back. Were the
		// charge kept, all that waited would be sent at once when the hold ends.
		if ctx.Err() == nil && p.Holds.Remaining(p.For, time.Now()) == 0 {
			return t, nil
		}
		t.Refund()
	}
}

// await returns when nothing holds the call back. A hold can become longer while it
// is waited for.
func (p *Passage[K]) await(ctx context.Context) *Refusal {
	for ctx.Err() == nil {
		d := p.Holds.Remaining(p.For, time.Now())
		if d == 0 {
			return nil
		}
		if no := p.MayWait(ctx, d); no != nil {
			return no
		}
		p.Patience.Pause(ctx, nil, d)
	}
	return &Refusal{Held: true, Err: ctx.Err()}
}

// MayWait returns nil if the call may wait for d > 0, and else why not.
func (p *Passage[K]) MayWait(ctx context.Context, d time.Duration) *Refusal {
	if p.FailFast {
		return &Refusal{Held: true, RetryAfter: d}
	}
	if left, why := p.Patience.Left(ctx); d > left {
		return &Refusal{Held: true, RetryAfter: d, Err: why}
	}
	return nil
}
