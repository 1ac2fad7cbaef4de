// Package fare has the steps of clients before they send a call: they wait for as long as the server has asked for, and pay charges to one
// limiter or several, all or none, which they wait for, too. A Transport of httplimit and a Client of grpclimit are such clients.
package fare

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/lag"
)

// A Fare is the charges of each attempt of one call. It must be made by Of.
type Fare struct {
	charges []sluice.Charge // charges of InFlight limiters come last
	rates   int             // how many come before them
	lag     time.Duration   // how far a clock can be behind
	free    bool            // every limiter is in shadow mode
}

// Of returns the fare that consists of charges.
func Of(charges ...sluice.Charge) Fare {
	f := Fare{charges: make([]sluice.Charge, 0, len(charges)), free: true}
	for _, holds := range []bool{false, true} {
		for _, c := range charges {
			conf := c.Key.Limiter().Config()
			if (conf.Algorithm == sluice.InFlight) != holds {
				continue
			}
			f.charges = append(f.charges, c)
			if !conf.Shadow {
				f.lag, f.free = max(f.lag, lag.Of(conf.Clock)), false
			}
		}
		if !holds {
			f.rates = len(f.charges)
		}
	}
	return f
}

// Rates returns the fare without the charges of InFlight limiters, for a call that has their units already.
func (f *Fare) Rates() Fare {
	return Fare{charges: f.charges[:f.rates:f.rates], rates: f.rates, lag: f.lag, free: f.free}
}

// take pays at once, or says how long to wait, in real time.
func (f *Fare) take() (t Ticket, wait time.Duration, ok bool) {
	t = Ticket{*f, make([]*sluice.Reservation, len(f.charges))}
	each := make([]sluice.Decision, len(f.charges))
	if sluice.TakeAllReservations(t.reservations, each, f.charges...).Allowed {
		return t, 0, true
	}
	for i, d := range each {
		if d.Allowed {
			continue
		}
		if i >= f.rates {
			d.RetryAfter = inflight.RetryAfter(d.RetryAfter)
		}
		wait = max(wait, d.RetryAfter)
	}
	return Ticket{}, lag.Later(wait, f.lag), false
}

// grace is how much longer than it may a call waits for units that other calls hold, so that a wait that ends then is not cut.
const grace = time.Millisecond

// wait pays as soon as it can, and within the time that is left: a wait that is known not to fit is not begun. The error is
// the context's if that ends, sluice.ErrWouldExceedDeadline if the time does not suffice, or another one of
// sluice.WaitAll. It comes with the wait that would have been needed, in real time, as far as is known; sluice.Never if no
// wait helps.
func (f *Fare) wait(ctx context.Context, left time.Duration) (t Ticket, wait time.Duration, err error) {
	deadline := time.Now().Add(left)
	bounded := ctx
	if f.rates < len(f.charges) { // whose units come back at no time that could be known before
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, min(left, math.MaxInt64-grace)+grace)
		defer cancel()
	}
	reservations, err := sluice.WaitAll(impatient{bounded, deadline}, f.charges...)
	if err == nil {
		return Ticket{*f, reservations}, 0, nil
	}
	if ended := ctx.Err(); ended != nil {
		return Ticket{}, 0, ended
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = sluice.ErrWouldExceedDeadline
	}
	return Ticket{}, f.needed(err), err
}

// impatient is a context that does not end sooner, but does not begin a wait that ends after the deadline.
type impatient struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (c impatient) Deadline() (time.Time, bool) { return c.deadline, true }

// needed returns the wait that would have been needed instead of an error of WaitAll.
func (f *Fare) needed(err error) time.Duration {
	wait := sluice.PeekAll(f.charges[:f.rates]...).RetryAfter
	wait = max(wait, inflight.RetryAfter(sluice.PeekAll(f.charges[f.rates:]...).RetryAfter))
	for i, c := range f.charges {
		switch conf := c.Key.Limiter().Config(); {
		case conf.Shadow:
		case err == sluice.ErrNoRoom && wait == 0 && i >= f.rates:
			wait = inflight.RetryAfter(conf.Limit.Period)
		case err == sluice.ErrNoRoom && wait == 0: // a look does not see that
			wait = conf.RefillTime(1)
		case err == sluice.ErrWouldExceedDeadline && conf.Algorithm == sluice.LeakyBucket && wait != sluice.Never:
			wait = max(wait, c.Key.Peek(0).ResetAfter) // when all before it have drained
		}
	}
	return lag.Later(wait, f.lag)
}

// A Ticket is a fare that has been paid, for an attempt to come. Spend or Refund ends it. The zero Ticket is of a call that
// is free.
type Ticket struct {
	fare         Fare
	reservations []*sluice.Reservation
}

// Spend makes the charges final, so that the limiters need not remember them, except for the units of InFlight limiters. It
// has the Renewer keep these, and returns their lease; nil if there are none.
func (t *Ticket) Spend(r *inflight.Renewer) (held *inflight.Lease) {
	for i, c := range t.fare.charges {
		if i < t.fare.rates {
			t.reservations[i].Settle(c.Cost)
			continue
		}
		if held == nil {
			held = &inflight.Lease{}
		}
		held.Add(c, t.reservations[i])
	}
	if held != nil {
		r.Keep(held)
	}
	return held
}

// Refund gives the charges back.
func (t *Ticket) Refund() {
	for _, r := range t.reservations {
		r.Cancel()
	}
}
