package grpclimit

import (
	"context"
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
	ctx      context.Context
	hold     holdKey
	patience fare.Patience
	fare     fare.Fare
	paid     fare.Ticket // for the attempt to come
}

func (c *Client) newPassage(ctx context.Context, cc *grpc.ClientConn, call Call) (*passage, error) {
	call.Target = cc.Target()
	p := &passage{Client: c, ctx: ctx, hold: holdKey{call.Target, call.FullMethod}, patience: fare.UpTo(c.config.MaxWait), fare: fare.Of()}
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
func (p *passage) charge() error {
	var no *fare.Refusal
	p.paid, no = p.fare.Pay(p.ctx, &p.patience, p.config.FailFast)
	if no == nil {
		return nil
	}
	if ended := p.ended(); ended != nil {
		return ended
	}
	return &LimitError{FullMethod: p.hold.method, RetryAfter: no.RetryAfter, Err: no.Err}
}

// mayWait returns nil if the call may wait for d > 0 for its method, and else why not.
func (p *passage) mayWait(d time.Duration) error {
	e := &LimitError{FullMethod: p.hold.method, Held: true, RetryAfter: d}
	if p.config.FailFast {
		return e
	}
	left, why := p.patience.Left(p.ctx)
	if d <= left {
		return nil
	}
	e.Err = why
	return e
}

// pause returns after d, or with the status of the context as soon as that ends.
func (p *passage) pause(d time.Duration) error {
	p.patience.Pause(p.ctx, nil, d)
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
