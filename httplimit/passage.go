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
	fare.Passage[string] // for its host
	req                  *http.Request
	ctx                  context.Context
	fare                 fare.Fare
	paid                 fare.Ticket // for the attempt to come

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
	way := fare.Passage[string]{Holds: t.holds, For: host, Patience: fare.UpTo(t.config.MaxWait), FailFast: t.config.FailFast}
	return &passage{Transport: t, Passage: way, req: req, ctx: req.Context(), fare: fare.Of(charges...)}, nil
}

// charges returns the charges of each attempt of a request.
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
	f := p.fare
	if p.held != nil {
		f = f.Rates()
	}
	var no *fare.Refusal
	p.paid, no = p.Admit(p.ctx, f)
	switch {
	case no == nil:
		return nil
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	}
	return &LimitError{Host: p.For, Held: no.Held, RetryAfter: no.RetryAfter, Err: no.Err}
}

// pause returns after d, or with the context's cause as soon as it ends.
func (p *passage) pause(d time.Duration) error { return p.waitFor(nil, d) }

// waitFor is pause, but returns as soon as event is closed.
func (p *passage) waitFor(event <-chan struct{}, d time.Duration) error {
	p.Patience.Pause(p.ctx, event, d)
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
// spreads retries that would otherwise come back in step.
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
	if p.MayWait(p.ctx, d) != nil {
		return nil, nil
	}
	parked := park(resp)
	err := p.pause(d)
	if err == nil {
		left, _ := p.Patience.Left(p.ctx)
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

// admitAgain is admit for a retry, and returns the request to send. The response before it may still be read, and then holds its
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
