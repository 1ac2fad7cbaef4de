package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
	"github.com/sluice-go/sluice/internal/inflight"
)

// ClientConfig says how a Client limits, holds back and retries calls.
type ClientConfig struct {
	// Limiter limits the calls of each key. nil means that only the waits that servers ask for hold
	// calls back. Each attempt is charged, retries included; the opening of a
	// stream is one. Retries that grpc-go makes by itself, by a retryPolicy, are not seen. Its
	// clock must run with real time. Which of the calls that wait goes first is what
	// sluice.Limiter.Wait says.
	//
	// A Limiter of sluice.InFlight limits how many calls are open at once: a unary call gives its cost back when its attempt
	// returns, a stream when it has ended, as gRPC wants streams to end: RecvMsg, SendMsg or Header has returned an error
	// (for SendMsg other than io.EOF), the one response of a stream that has one has come, the context has ended, or the
	// connection is closed. It keeps it until then, however long that takes. Calls that wait are woken, in no order. The
	// RetryAfter of a LimitError is then at most a second, since nobody knows when another call ends.
	Limiter *sluice.Limiter

	// Key returns the key of a call for the Limiter. It is called once a call, and its error
	// fails the call. nil means Call.Target: a budget for each target.
	Key KeyFunc

	// Cost returns the charge of each attempt of a call, once a call. nil means 1.
	Cost func(context.Context, Call) int

	// FailFast makes calls that would have to wait fail with a *LimitError instead. It
	// excludes MaxWait and MaxRetries.
	FailFast bool

	// MaxWait is the most that one call waits in all: for the Limiter, for its method, and
	// between attempts. A wait that does not fit is not begun: the call fails with a
	// *LimitError or, once there is an answer, with that. 0 means that the deadline of the
	// call's context bounds the waits, and a minute the waits of a call without one. For no bound,
	// give it sluice.Never.
	MaxWait time.Duration

	// MaxRetries is how many times a unary call may be sent again after its first attempt, at
	// most 100. 0 means never. See Client for the calls that are retried.
	MaxRetries int

	// Idempotent returns true for methods that may be sent twice. It is required with
	// MaxRetries, and refused without.
	Idempotent func(fullMethod string) bool

	// MaxRetryAfter is the longest that an answer may hold its method back. A server that asks
	// for more is held back for this long, and the call is not retried. 0 means 5 minutes; at
	// most a year.
	MaxRetryAfter time.Duration
}

const (
	backoffBase = 100 * time.Millisecond
	backoffCap  = 10 * time.Second
)

func (c *ClientConfig) validate() error {
	fail := func(field, format string, args ...any) error {
		return configErrorf("ClientConfig."+field, format, args...)
	}
	common := fare.Terms{
		Limits: c.Limiter != nil, Key: c.Key != nil, Cost: c.Cost != nil, MaxWait: c.MaxWait, FailFast: c.FailFast,
		MaxRetries: c.MaxRetries, MaxRetryAfter: c.MaxRetryAfter,
	}
	if field, reason := common.Check("call"); reason != "" {
		return fail(field, "%s", reason)
	}
	switch {
	case c.MaxRetries > 0 && c.Idempotent == nil:
		return fail("Idempotent", "is nil with MaxRetries, so that nothing could be retried; want a function that names the methods which may be sent twice")
	case c.MaxRetries == 0 && c.Idempotent != nil:
		return fail("Idempotent", "set without MaxRetries, so that nothing is retried; want MaxRetries, or nil")
	}
	return nil
}

// ErrLimited: every *LimitError matches it.
var ErrLimited = errors.New("grpclimit: call limited")

// LimitError is the error of a call that was not sent, because it would have had to wait longer
// than it may. Its status is RESOURCE_EXHAUSTED. errors.Is matches ErrLimited and Err.
type LimitError struct {
	// FullMethod is the method of the call.
	FullMethod string

	// Held reports that the server has asked for a pause; otherwise it is the Limiter that
	// would not admit the call.
	Held bool

	// RetryAfter is the wait that would have been needed, as far as is known, in real time;
	// other calls can make it longer. sluice.Never if no wait helps.
	RetryAfter time.Duration

	// Err is why there was no waiting: nil under FailFast, an error that matches
	// context.DeadlineExceeded if the context's deadline comes too early, one that says that
	// MaxWait is too short, or one of sluice, such as sluice.ErrCostExceedsBurst.
	Err error
}

// Error names the method, who limits, the wait and why there was no waiting.
func (e *LimitError) Error() string {
	who := "the limiter admits the call"
	if e.Held {
		who = "the server has asked for no calls; it takes them"
	}
	when := "after " + e.RetryAfter.String()
	if e.RetryAfter == sluice.Never {
		when = "never"
	}
	msg := fmt.Sprintf("grpclimit: %s: %s %s", e.FullMethod, who, when)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Is reports whether target is ErrLimited.
func (e *LimitError) Is(target error) bool { return target == ErrLimited }

// Unwrap returns Err.
func (e *LimitError) Unwrap() error { return e.Err }

// GRPCStatus returns the status that callers see: RESOURCE_EXHAUSTED, with the text of Error.
func (e *LimitError) GRPCStatus() *status.Status {
	return status.New(codes.ResourceExhausted, e.Error())
}

// A Client keeps the calls of a program within a limit, and heeds the limits that servers tell.
// Unary and Stream are its interceptors, and DialOptions installs both. It can serve several
// connections, is safe for concurrent use and must be made by NewClient.
//
// A call waits until its method is not held back and the Limiter has admitted it, or fails if it
// may not wait that long; a stream before it is opened. It never waits beyond the call's context;
// if its deadline comes before the wait would be over, it fails at once.
//
// An answer with RESOURCE_EXHAUSTED or UNAVAILABLE holds back its method at that target, for all
// calls through this Client, by its google.rpc.RetryInfo or grpc-retry-pushback-ms (gRFC A6), the
// longer of the two, but for no longer than MaxRetryAfter. Calls that have waited for a method are sent
// at once when its hold ends, in no order, unless the Limiter spreads it. Other methods are not
// held back: a limit may be theirs or not, and each is told by its own answers.
//
// With MaxRetries, such an answer to a unary call is retried if the server has said when, has not
// said no by a pushback that is negative, malformed or there twice, and Idempotent says that the
// method may be sent twice. The pause before retry n = 0, 1, ... is the wait that the server asks for and a
// random time below 100 ms*2^n, at most 10 s. If it does not fit, the answer is returned as it is.
//
// Nothing else makes a retry safe: a handler that fails halfway, or passes on the denial of a server
// behind it, sends the same trailers as an interceptor that has not let the call through. (What
// HTTP/2 itself says was not processed, grpc-go sends again.)
type Client struct {
	config ClientConfig
	units  *inflight.Renewer // keeps the units in flight
	holds  *fare.Holds[holdKey]
	jitter func(below time.Duration) time.Duration
}

// NewClient returns a Client. The error is a *ConfigError.
func NewClient(c ClientConfig) (*Client, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, fare.DefaultMaxRetryAfter)
	return &Client{config: c, units: inflight.NewRenewer(), holds: fare.NewHolds[holdKey](maxHolds), jitter: rand.N[time.Duration]}, nil
}

// DialOptions returns the options that put the limit in front of all calls of a connection, unary
// and streams, behind the interceptors of the options before them.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Unary is a grpc.UnaryClientInterceptor. The error is a *LimitError if the call was not sent for
// want of time to wait; codes.Canceled or codes.DeadlineExceeded if its context ended meanwhile; and
// otherwise the error of Key or of the last attempt.
func (c *Client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	p, err := c.newPassage(ctx, cc, Call{FullMethod: method, Message: req})
	if err != nil {
		return err
	}
	if err := p.admit(); err != nil {
		return err
	}
	var trailer metadata.MD
	opts = append(slices.Clip(opts), grpc.Trailer(&trailer))
	for n := 0; ; n++ {
		err := p.attempt(func() error { return invoker(ctx, method, req, reply, cc, opts...) })
		if err == nil {
			return nil
		}
		asked, again := c.heed(p.For, err, trailer)
		if !again || n >= c.config.MaxRetries || asked > c.config.MaxRetryAfter || !c.config.Idempotent(method) {
			return err
		}
		pause := asked + c.jitter(min(backoffBase<<min(n, 10), backoffCap))
		if p.MayWait(ctx, pause) != nil {
			return err
		}
		if ended := p.pause(pause); ended != nil {
			return ended
		}
		if denied := p.admit(); denied != nil {
			if ctx.Err() != nil {
				return denied
			}
			return err
		}
	}
}

// Stream is a grpc.StreamClientInterceptor. It waits before the stream is opened, with the errors
// of Unary, and never opens it again.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	p, err := c.newPassage(ctx, cc, Call{FullMethod: method, Stream: true})
	if err != nil {
		return nil, err
	}
	if err := p.admit(); err != nil {
		return nil, err
	}
	s := &clientStream{client: c, hold: p.For, held: p.paid.Spend(c.units), one: !desc.ServerStreams}
	if s.held != nil {
		defer func() {
			if s.ClientStream == nil { // it was not opened
				s.over()
			}
		}()
		opts = append(slices.Clip(opts), grpc.OnFinish(s.finished(cc)))
	}
	cs, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	s.ClientStream = cs
	s.endWith(ctx)
	return s, nil
}
