package httplimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// A passage is one request on its way through a Transport.
type passage struct {
	*Transport
	req    *http.Request
	ctx    context.Context
	host   string
	key    sluice.Key // of the Limiter, if there is one
	cost   int
	waited time.Duration // so far, in all attempts

	// The charge for the attempt to come is a reservation; or charged says that a limiter made
	// it which has no turns to reserve.
	receipt *sluice.Reservation
	charged bool

	charges  []sluice.Charge // of TransportConfig.Charges, and their receipts
	receipts []*sluice.Reservation
}

func (t *Transport) newPassage(req *http.Request) (*passage, error) {
	if req.URL == nil {
		return nil, errors.New("httplimit: the request has no URL")
	}
	host, err := canonicalHost(req.URL)
	if err != nil {
		return nil, err
	}
	p := &passage{Transport: t, req: req, ctx: req.Context(), host: host, cost: 1}
	if t.config.Charges != nil {
		if p.charges, err = t.config.Charges(req); err != nil {
			return nil, fmt.Errorf("httplimit: the request has no charges: %w", err)
		}
	}
	if t.config.Limiter == nil {
		return p, nil
	}
	key := host
	if t.config.Key != nil {
		if key, err = t.config.Key(req); err != nil {
			return nil, fmt.Errorf("httplimit: the request has no key: %w", err)
		}
	}
	p.key = t.config.Limiter.Key(key)
	if t.config.Cost != nil {
		p.cost = t.config.Cost(req)
	}
	return p, nil
}

// admit returns when the next attempt may be sent. It is then for spend or refund to end
// the charge.
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
		p.refund()
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

// charge charges the limiter, waiting for it if need be.
func (p *passage) charge() error {
	if len(p.charges) > 0 {
		return p.chargeAll()
	}
	if p.config.Limiter == nil {
		return nil
	}
	if p.config.FailFast || p.shadow { // a limiter in shadow mode is not waited for
		d := p.key.Take(p.cost)
		if p.charged = d.Allowed && !d.WouldDeny; !d.Allowed {
			return &LimitError{Host: p.host, RetryAfter: p.inRealTime(d.RetryAfter)}
		}
		return nil
	}
	left, why := p.patience()
	err := p.reserve(left)
	if errors.Is(err, sluice.ErrNotReservable) || errors.Is(err, sluice.ErrBlocked) {
		err = p.await(left)
	}
	switch {
	case err == nil:
		return nil
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	}
	e := &LimitError{Host: p.host, RetryAfter: p.key.Peek(p.cost).RetryAfter, Err: err}
	if errors.Is(err, sluice.ErrWouldExceedDeadline) {
		if p.queue {
			e.RetryAfter = p.key.Peek(0).ResetAfter // when all before it have drained
		}
		if e.Err = why; e.RetryAfter == sluice.Never && why == errMaxWait {
			e.Err = errNever
		}
	}
	e.RetryAfter = p.inRealTime(e.RetryAfter)
	return e
}

// chargeAll is charge for TransportConfig.Charges.
func (p *passage) chargeAll() (err error) {
	if p.config.FailFast {
		all := make([]*sluice.Reservation, len(p.charges))
		if d := sluice.TakeAllReceipts(all, nil, p.charges...); !d.Allowed {
			return &LimitError{Host: p.host, RetryAfter: d.RetryAfter}
		}
		p.receipts = all
		return nil
	}
	left, why := p.patience()
	start := time.Now()
	p.receipts, err = sluice.WaitAll(impatient{p.ctx, start.Add(left)}, p.charges...)
	p.waited += time.Since(start)
	switch {
	case err == nil:
		return nil
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	}
	e := &LimitError{Host: p.host, Err: err}
	for _, c := range p.charges {
		e.RetryAfter = max(e.RetryAfter, c.Key.Peek(c.Cost).RetryAfter)
	}
	if errors.Is(err, sluice.ErrWouldExceedDeadline) {
		e.Err = why
	}
	return e
}

// inRealTime returns a wait on the Limiter's clock as one in real time.
func (p *passage) inRealTime(wait time.Duration) time.Duration {
	if wait == sluice.Never || wait == 0 {
		return wait
	}
	return later(wait, p.lag)
}

// reserve takes a turn of a bucket, and waits for it.
func (p *passage) reserve(maxWait time.Duration) error {
	r, err := p.key.Reserve(p.cost, maxWait)
	if err != nil {
		return err
	}
	p.receipt = r
	if r.Delay() > 0 {
		if err = p.pause(r.Delay()); err != nil {
			p.refund()
		}
	}
	return err
}

// await is reserve for what has no turns, for now or at all.
func (p *passage) await(maxWait time.Duration) error {
	start := time.Now()
	err := p.key.Wait(impatient{p.ctx, start.Add(maxWait)}, p.cost)
	p.waited += time.Since(start)
	p.charged = err == nil
	return err
}

// impatient is a context that does not end sooner, but does not begin a wait that ends
// after the deadline: Wait fails at once then.
type impatient struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (c impatient) Deadline() (time.Time, bool) { return c.deadline, true }

// spend makes the charge final.
func (p *passage) spend() {
	p.receipt.Settle(p.cost) // so that the limiter need not remember it
	for i, r := range p.receipts {
		r.Settle(p.charges[i].Cost)
	}
	p.receipt, p.charged, p.receipts = nil, false, nil
}

// refund gives the charge back.
func (p *passage) refund() {
	switch {
	case p.receipt != nil:
		p.receipt.Cancel()
	case p.charged:
		p.key.Refund(p.cost)
	}
	for _, r := range p.receipts {
		r.Cancel()
	}
	p.receipt, p.charged, p.receipts = nil, false, nil
}

// patience returns how long the request may still wait, and the error for what takes
// longer.
func (p *passage) patience() (left time.Duration, why error) {
	deadline, ok := p.ctx.Deadline()
	left, why = sluice.Never-1, errNever
	switch most := p.config.MaxWait; {
	case most == sluice.Never:
	case most > 0:
		left, why = most-p.waited, errMaxWait
	case !ok:
		left, why = defaultMaxWait-p.waited, errMaxWait
	}
	if ok {
		if d := time.Until(deadline) - 1; d < left { // a wait must end before it
			left, why = d, context.DeadlineExceeded
		}
	}
	return max(left, 0), why
}

// mayWait returns nil if the request may wait for d > 0 for its host, and else why not.
func (p *passage) mayWait(d time.Duration) error {
	if p.config.FailFast {
		return &LimitError{Host: p.host, Held: true, RetryAfter: d}
	}
	if left, why := p.patience(); d > left {
		return &LimitError{Host: p.host, Held: true, RetryAfter: d, Err: why}
	}
	return nil
}

// pause returns after d, or with the context's cause as soon as it ends.
func (p *passage) pause(d time.Duration) error { return p.waitFor(nil, d) }

// waitFor is pause, but returns as soon as event is closed.
func (p *passage) waitFor(event <-chan struct{}, d time.Duration) error {
	start := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	var err error
	select {
	case <-p.ctx.Done():
		err = context.Cause(p.ctx)
	case <-event:
	case <-timer.C:
	}
	p.waited += time.Since(start)
	return err
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
		left, _ := p.patience()
		err = p.waitFor(parked, min(left, parkGrace))
	}
	if err == nil {
		err = p.admit()
	}
	if p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	if err != nil {
		return nil, nil
	}
	next = p.req.Clone(p.ctx)
	if !hasBody(p.req) {
		return next, nil
	}
	if next.Body, err = p.req.GetBody(); err != nil {
		p.refund()
		return nil, nil
	}
	return next, nil
}

// maxParked bounds what is read of a response that may have to be returned later. Bodies
// of denials are far shorter.
const maxParked = 8 << 10

// parkGrace is what the reading may take beyond the pause. A connection is not worth more
// of waiting for a server that trickles.
const parkGrace = time.Second

// park begins to read the body of resp, so that its connection is free during the pause,
// and returns a channel that is closed once it has. The body is then what has been read,
// or that and the rest of a longer one; whoever reads it before waits for that.
func park(resp *http.Response) (done <-chan struct{}) {
	reading := make(chan struct{})
	if resp.Body == nil || resp.ContentLength > maxParked {
		close(reading)
		return reading
	}
	p := &parkedBody{body: resp.Body, done: reading}
	resp.Body = p
	go p.park()
	return reading
}

// A parkedBody is a body whose beginning is read ahead.
type parkedBody struct {
	body   io.ReadCloser
	close  sync.Once
	done   chan struct{} // closed when there is a reader
	reader io.Reader
}

func (p *parkedBody) park() {
	defer close(p.done)
	read, err := io.ReadAll(io.LimitReader(p.body, maxParked+1))
	p.reader = bytes.NewReader(read)
	if err == nil && len(read) <= maxParked {
		p.Close()
		return
	}
	p.reader = io.MultiReader(p.reader, p.body)
}

// Read implements io.Reader.
func (p *parkedBody) Read(b []byte) (int, error) {
	<-p.done
	return p.reader.Read(b)
}

// Close implements io.Closer. It ends the reading ahead, too.
func (p *parkedBody) Close() (err error) {
	p.close.Do(func() { err = p.body.Close() })
	return err
}

func closeResponse(resp *http.Response) {
	if resp.Body != nil {
		resp.Body.Close()
	}
}
