package grpclimit

import (
	"context"
	"fmt"
	"strconv"
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
	fare.Passage[holdKey] // for its method
	ctx                   context.Context
	fare                  fare.Fare
	paid                  fare.Ticket // for the attempt to come
}

func (c *Client) newPassage(ctx context.Context, cc *grpc.ClientConn, call Call) (*passage, error) {
	call.Target = cc.Target()
	way := fare.Passage[holdKey]{Holds: c.holds, For: holdKey{call.Target, call.FullMethod}, Patience: fare.UpTo(c.config.MaxWait), FailFast: c.config.FailFast}
	p := &passage{Client: c, Passage: way, ctx: ctx, fare: fare.Of()}
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
	var no *fare.Refusal
	p.paid, no = p.Admit(p.ctx, p.fare)
	if no == nil {
		return nil
	}
	if ended := p.ended(); ended != nil {
		return ended
	}
	return &LimitError{FullMethod: p.For.method, Held: no.Held, RetryAfter: no.RetryAfter, Err: no.Err}
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

// pause returns after d, or with the status of the context as soon as that ends.
func (p *passage) pause(d time.Duration) error {
	p.Patience.Pause(p.ctx, nil, d)
	return p.ended()
}

// heed holds a method back if the error of a call asks for it. It returns for how long it asks, and
// whether the server takes the call again after that.
func (c *Client) heed(key holdKey, err error, trailer metadata.MD) (asked time.Duration, again bool) {
	asked, again = readRefusal(status.Convert(err), trailer)
	if asked > 0 {
		now := time.Now()
		c.holds.Hold(key, now.Add(min(asked, c.config.MaxRetryAfter)), now)
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

// A holdKey names the calls that are held back.
type holdKey struct{ target, method string }

// maxHolds bounds the methods that are held back at the same time. The wish of a further one is
// heeded by the retries of that call only.
const maxHolds = 4096
