package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
)

// A passage is one call on its way through a Client.
type passage struct {
	*Client
	ctx    context.Context
	hold   holdKey
	fare   fare.Fare
	paid   fare.Ticket   // for the attempt to come
	waited time.Duration // so far, in all attempts
}

func (c *Client) newPassage(ctx context.Context, cc *grpc.ClientConn, call Call) (*passage, error) {
	call.Target = cc.Target()
	p := &passage{Client: c, ctx: ctx, hold: holdKey{call.Target, call.FullMethod}, fare: fare.Of()}
	if c.config.Limiter == nil {
		return p, nil
	}
	key, cost := call.Target, 1
	if c.config.Key != nil {
		var err error
		if key, err = c.config.Key(ctx, call); err != nil {
			return nil, fmt.Errorf("grpclimit: the call has no key: %w", err)
		}
	}
	if c.config.Cost != nil {
		cost = c.config.Cost(ctx, call)
	}
	p.fare = fare.Of(sluice.Charge{Key: c.config.Limiter.Key(key), Cost: cost})
	return p, nil
}

// admit returns when the next attempt may be sent. It has then been paid for.
func (p *passage) admit() error {
	for {
		if err := p.awaitHold(); err != nil {
			return err
		}
		if err := p.charge(); err != nil {
			return err
		}
		// While it waited for the limiter, its method may have been held back. Were the charge
		// kept, all that waited would be sent at once when the hold ends.
		if p.ctx.Err() == nil && p.holds.remaining(p.hold, time.Now()) == 0 {
			return nil
		}
		p.paid.Refund()
	}
}

// awaitHold returns when the method is not held back. A hold can become longer while it is
// waited for.
func (p *passage) awaitHold() error {
	for {
		if err := p.ended(); err != nil {
			return err
		}
		d := p.holds.remaining(p.hold, time.Now())
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

// ended returns the status of a call whose context has ended.
func (p *passage) ended() error {
	if err := p.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// attempt makes an attempt of a unary call, which holds units in flight until it returns.
func (p *passage) attempt(invoke func() error) error {
	if held := p.paid.Spend(p.units); held != nil {
		defer held.End()
	}
	return invoke()
}

// charge charges the limiter, waiting for it if need be.
func (p *passage) charge() (err error) {
	var wait time.Duration
	if p.config.FailFast || p.fare.Free() {
		var ok bool
		if p.paid, wait, ok = p.fare.Take(); !ok {
			return &LimitError{FullMethod: p.hold.method, RetryAfter: wait}
		}
		return nil
	}
	left, why := p.patience()
	start := time.Now()
	p.paid, wait, err = p.fare.Wait(p.ctx, left)
	p.waited += time.Since(start)
	if err == nil {
		return nil
	}
	if ended := p.ended(); ended != nil {
		return ended
	}
	e := &LimitError{FullMethod: p.hold.method, RetryAfter: wait, Err: err}
	if errors.Is(err, sluice.ErrWouldExceedDeadline) {
		if e.Err = why; wait == sluice.Never && why == errMaxWait {
			e.Err = errNever
		}
	}
	return e
}

// patience returns how long the call may still wait, and the error for what takes longer.
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

// mayWait returns nil if the call may wait for d > 0 for its method, and else why not.
func (p *passage) mayWait(d time.Duration) error {
	e := &LimitError{FullMethod: p.hold.method, Held: true, RetryAfter: d}
	if p.config.FailFast {
		return e
	}
	left, why := p.patience()
	if d <= left {
		return nil
	}
	e.Err = why
	return e
}

// pause returns after d, or with the status of the context as soon as that ends.
func (p *passage) pause(d time.Duration) error {
	start := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ctx.Done():
	case <-timer.C:
	}
	p.waited += time.Since(start)
	return p.ended()
}

// heed holds a method back if the error of a call asks for it. It returns for how long it asks, and
// whether the server takes the call again after that.
func (c *Client) heed(key holdKey, err error, trailer metadata.MD) (asked time.Duration, again bool) {
	asked, again = readRefusal(status.Convert(err), trailer)
	if asked > 0 {
		now := time.Now()
		c.holds.hold(key, now, now.Add(min(asked, c.config.MaxRetryAfter)))
	}
	return asked, again
}

// readRefusal returns how long a server asks for no calls, and whether it takes the call again
// after that: see Client. A field that is malformed asks for nothing.
func readRefusal(s *status.Status, trailer metadata.MD) (asked time.Duration, again bool) {
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return 0, false
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() && info.GetRetryDelay().AsDuration() >= 0 {
			asked, again = max(asked, info.GetRetryDelay().AsDuration()), true
		}
	}
	switch pushback := trailer.Get(pushbackKey); len(pushback) {
	case 0:
		return asked, again
	case 1:
		ms, err := strconv.ParseInt(pushback[0], 10, 32)
		if err != nil || ms < 0 {
			return asked, false
		}
		return max(asked, time.Duration(ms)*time.Millisecond), true
	}
	return asked, false
}

// A holdKey is what is held back.
type holdKey struct{ target, method string }

// maxHolds bounds the methods that are held back at the same time. The wish of a further one is
// heeded by the retries of that call only.
const maxHolds = 4096

// A holdTable says until when methods are held back. The zero value holds none.
type holdTable struct {
	mu    sync.Mutex
	until map[holdKey]time.Time
}

// remaining returns for how long the method is still held back at now.
func (t *holdTable) remaining(key holdKey, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.until[key]
	if !ok {
		return 0
	}
	if d := until.Sub(now); d > 0 {
		return d
	}
	delete(t.until, key)
	return 0
}

// hold holds a method back until a time. A hold is never made shorter.
func (t *holdTable) hold(key holdKey, now, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, ok := t.until[key]
	if until.Before(old) {
		return
	}
	if !ok && len(t.until) >= maxHolds {
		for other, end := range t.until {
			if !end.After(now) {
				delete(t.until, other)
			}
		}
		if len(t.until) >= maxHolds {
			return
		}
	}
	if t.until == nil {
		t.until = make(map[holdKey]time.Time)
	}
	t.until[key] = until
}
