package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
	"github.com/sluice-go/sluice/internal/inflight"
)

// A passage is one request on its way through a Transport.
type passage struct {
	*Transport
	req      *http.Request
	ctx      context.Context
	host     string
	patience fare.Patience
	fare     fare.Fare
	paid     fare.Ticket // for the attempt to come

	held *inflight.Lease // the units in flight that a retry takes over, once the response before it has given them up
	body *heldBody       // of the response before
}

func (t *Transport) newPassage(req *http.Request) (*passage, error) {
	if req.URL == nil {
		return nil, errors.New("httplimit: the request has no URL")
	}
	host, err := canonicalHost(req.URL)
	if err != nil {
		return nil, err
	}
	charges, err := t.charges(req, host)
	if err != nil {
		return nil, err
	}
	return &passage{Transport: t, req: req, ctx: req.Context(), host: host, patience: fare.UpTo(t.config.MaxWait), fare: fare.Of(charges...)}, nil
}

// charges returns what each attempt of a request is charged.
func (t *Transport) charges(req *http.Request, host string) ([]sluice.Charge, error) {
	if t.config.Charges != nil {
		charges, err := t.config.Charges(req)
		if err != nil {
			return nil, fmt.Errorf("httplimit: the request has no charges: %w", err)
		}
		return charges, nil
	}
	if t.config.Limiter == nil {
		return nil, nil
	}
	key, cost := host, 1
	if t.config.Key != nil {
		var err error
		if key, err = t.config.Key(req); err != nil {
			return nil, fmt.Errorf("httplimit: the request has no key: %w", err)
		}
	}
	if t.config.Cost != nil {
		cost = t.config.Cost(req)
	}
	return []sluice.Charge{{Key: t.config.Limiter.Key(key), Cost: cost}}, nil
}

// admit returns when the next attempt may be sent. It has then been paid for.
func (p *passage) admit() error {
	for {
		if err := p.awaitHost(); err != nil {
			return err
		}
		if err := p.charge(); err != nil {
			return err
		}
		// While it waited for the limiter, its host may have asked for a pause. Were the
		// charge kept, all that waited would be sent at once when the pause ends.
		if p.ctx.Err() == nil && p.holds.remaining(p.host, time.Now()) == 0 {
			return nil
		}
		p.paid.Refund()
	}
}

// awaitHost returns when the host is not held back. A hold can become longer while it
// is waited for.
func (p *passage) awaitHost() error {
	for {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		d := p.holds.remaining(p.host, time.Now())
		if d == 0 {
			return nil
		}
		if err := p.mayWait(d); err != nil {
			return err
		}
		if err := p.pause(d); err != nil {
			return err
		}
	}
}

// charge charges the limiters, waiting for them if need be.
func (p *passage) charge() error {
	f := p.fare
	if p.held != nil {
		f = f.Rates()
	}
	var no *fare.Refusal
	p.paid, no = f.Pay(p.ctx, &p.patience, p.config.FailFast)
	switch {
	case no == nil:
		return nil
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	}
	return &LimitError{Host: p.host, RetryAfter: no.RetryAfter, Err: no.Err}
}

// mayWait returns nil if the request may wait for d > 0 for its host, and else why not.
func (p *passage) mayWait(d time.Duration) error {
	if p.config.FailFast {
		return &LimitError{Host: p.host, Held: true, RetryAfter: d}
	}
	if left, why := p.patience.Left(p.ctx); d > left {
		return &LimitError{Host: p.host, Held: true, RetryAfter: d, Err: why}
	}
	return nil
}

// pause returns after d, or with the context's cause as soon as it ends.
func (p *passage) pause(d time.Duration) error { return p.waitFor(nil, d) }

// waitFor is pause, but returns as soon as event is closed.
func (p *passage) waitFor(event <-chan struct{}, d time.Duration) error {
	p.patience.Pause(p.ctx, event, d)
	return context.Cause(p.ctx)
}

// retryable reports whether resp calls for a retry and req may be sent again.
func retryable(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	return idempotent(req) && (!hasBody(req) || req.GetBody != nil)
}

// idempotent reports whether sending req twice is meant to have the effect of sending
// it once. That a header is in the map is enough, as for net/http.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// backoff returns a random pause before retry n, counted from 0: "full jitter", which
// spreads what would otherwise come back in step.
func (t *Transport) backoff(n int) time.Duration {
	ceiling := t.config.BackoffBase
	for range n {
		if ceiling > t.config.BackoffCap/2 {
			ceiling = t.config.BackoffCap
			break
		}
		ceiling *= 2
	}
	return t.jitter(ceiling)
}

// again waits until the request may be sent another time, after a pause of at least d,
// and returns a copy to send. It is nil if resp is to be returned instead, which is
// then complete, and cause is why nothing is to be returned: the context has ended.
func (p *passage) again(resp *http.Response, d time.Duration) (next *http.Request, cause error) {
	if p.mayWait(d) != nil {
		return nil, nil
	}
	parked := park(resp)
	err := p.pause(d)
	if err == nil {
		left, _ := p.patience.Left(p.ctx)
		err = p.waitFor(parked, min(left, parkGrace))
	}
	if err == nil {
		panicked := true
		defer func() {
			if panicked { // so that nobody has the response
				closeResponse(resp)
			}
		}()
		next, err = p.admitAgain()
		panicked = false
	}
	if err != nil && p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	return next, nil
}

// admitAgain is admit for a retry, and returns what to send. The response before it may still be read, and then holds its
// units in flight: the retry takes these over.
func (p *passage) admitAgain() (next *http.Request, err error) {
	if p.body != nil {
		p.held = p.body.takeOut()
	}
	paid := false
	defer func() {
		if next != nil {
			return
		}
		if paid { // and GetBody has failed, or panicked
			p.paid.Refund()
		}
		if p.held != nil {
			p.body.putBack(p.held)
			p.held = nil
		}
	}()
	if err = p.admit(); err != nil {
		return nil, err
	}
	paid = true
	again := p.req.Clone(p.ctx)
	if hasBody(p.req) {
		if again.Body, err = p.req.GetBody(); err != nil {
			return nil, err
		}
	}
	return again, nil
}
