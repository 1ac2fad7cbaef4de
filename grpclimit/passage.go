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
)

// A passage is one call on its way through a Client.
type passage struct {
	*Client
	ctx    context.Context
	hold   holdKey
	key    sluice.Key // of the Limiter, if there is one
	cost   int
	waited time.Duration // so far, in all attempts
}

func (c *Client) newPassage(ctx context.Context, cc *grpc.ClientConn, call Call) (*passage, error) {
	call.Target = cc.Target()
	p := &passage{Client: c, ctx: ctx, hold: holdKey{call.Target, call.FullMethod}, cost: 1}
	if c.config.Limiter == nil {
		return p, nil
	}
	key := call.Target
	if c.config.Key != nil {
		var err error
		if key, err = c.config.Key(ctx, call); err != nil {
			return nil, fmt.Errorf("grpclimit: the call has no key: %w", err)
		}
	}
	p.key = c.config.Limiter.Key(key)
	if c.config.Cost != nil {
		p.cost = c.config.Cost(ctx, call)
	}
	return p, nil
}

// admit returns when the next attempt may be sent, which has then been charged.
func (p *passage) admit() error {
	for {
		if err := p.awaitHold(); err != nil {
			return err
		}
		charged, err := p.charge()
		if err != nil {
			return err
		}
		// While it waited for the limiter, its method may have been held back. Were the charge
		// kept, all that waited would be sent at once when the hold ends.
		if p.ctx.Err() == nil && p.holds.remaining(p.hold, time.Now()) == 0 {
			return nil
		}
		if charged {
			p.key.Refund(p.cost)
		}
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

// charge charges the limiter, waiting for it if need be.
func (p *passage) charge() (charged bool, err error) {
	if p.config.Limiter == nil {
		return false, nil
	}
	if p.config.FailFast || p.shadow { // a limiter in shadow mode is not waited for
		d := p.key.Take(p.cost)
		if !d.Allowed {
			return false, &LimitError{FullMethod: p.hold.method, RetryAfter: later(d.RetryAfter, p.lag)}
		}
		return !d.WouldDeny, nil
	}
	left, why := p.patience()
	start := time.Now()
	err = p.key.Wait(impatient{p.ctx, start.Add(left)}, p.cost)
	p.waited += time.Since(start)
	if err == nil {
		return true, nil
	}
	if ended := p.ended(); ended != nil {
		return false, ended
	}
	e := &LimitError{FullMethod: p.hold.method, RetryAfter: later(p.key.Peek(p.cost).RetryAfter, p.lag), Err: err}
	if errors.Is(err, sluice.ErrWouldExceedDeadline) {
		e.Err = why
	}
	return false, e
}

// impatient is a context that does not end sooner, but does not begin a wait that ends after the
// deadline: Wait fails at once then.
type impatient struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (c impatient) Deadline() (time.Time, bool) { return c.deadline, true }

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
