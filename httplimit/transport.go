package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
	"github.com/sluice-go/sluice/internal/inflight"
)

// TransportConfig says how a Transport limits, holds back and retries requests.
type TransportConfig struct {
	// Limiter limits the requests of each key. nil means that only the waits that servers ask
	// for holds requests back. Each attempt is charged, retries included. A request
	// that was charged and then not sent, since its host had asked for a pause
	// meanwhile, gets its cost back. Its clock must run with real time.
	//
	// GCRA and TokenBucket let bursts through and then spread requests; LeakyBucket spaces
	// all of them, and lets no more than its burst queue (sluice.ErrQueueFull). They serve
	// who comes first. Requests that wait for another algorithm, or for the end of a block
	// (sluice.Config.BlockFor), try again when it may admit them, in no order. A change of
	// the limit moves no request that waits already: see sluice.Limiter.Wait.
	//
	// A Limiter of sluice.InFlight limits how many requests to a host are open at once: a request gives its cost back when
	// the body of its response is closed or has been read to its end, or its context ends; when an upgraded connection
	// (status 101) is closed; or when the attempt fails. It keeps it until then, however long that takes: a response
	// whose body nobody closes counts for ever, as it takes a connection. Requests that wait are woken, in no order.
	// The RetryAfter of a LimitError is then at most a second, since nobody knows when another request ends.
	Limiter *sluice.Limiter

	// Key returns the key of a request for the Limiter. It is called once a request,
	// and its error fails the request. nil means the URL's host: in lower case,
	// without the default port of http or https and the final dot of a name, IP
	// addresses in their shortest form.
	Key KeyFunc

	// Cost returns the charge of each attempt of a request, once a request. A cost
	// of 0 charges nothing, but asks for a unit to be there; a negative one, or one
	// above the limiter's burst, fails the request. nil means 1.
	Cost func(*http.Request) int

	// Charges returns the charges of each attempt of a request, in place of Limiter, Key and Cost: a request and the
	// tokens that it may take, say, all or none. A request waits until all can be charged at once: see
	// sluice.WaitAll. It is called once a request, and its error fails the request. The clocks of the limiters must
	// run with real time. Charges of sluice.InFlight limiters are given back as Limiter says.
	Charges func(*http.Request) ([]sluice.Charge, error)

	// FailFast makes requests that would have to wait fail with a *LimitError instead.
	// It excludes MaxWait and MaxRetries.
	FailFast bool

	// MaxWait is the most that one request waits in all: for the Limiter, for its
	// host, and between attempts. A wait that does not fit is not begun: the request
	// fails with a *LimitError or, once there is a response, ends with that. 0 means
	// that the deadline of the request's context bounds the waits, and a minute the waits of a
	// request without one. For no bound, give it sluice.Never.
	MaxWait time.Duration

	// MaxRetries is how many times a request may be sent again after its first
	// attempt, at most 100. 0 means never. See Transport for the requests that are retried.
	MaxRetries int

	// BackoffBase and BackoffCap make the random pause before a retry, which comes on
	// top of the wait that the server asks for: before retry n = 0, 1, ... it is uniform in
	// [0, min(BackoffCap, BackoffBase*2^n)). 0 means 100 ms and 10 s; at most a year.
	BackoffBase, BackoffCap time.Duration

	// MaxRetryAfter is the longest that a response may hold its host back. A server
	// that asks for more is held back for this long, and its response is not retried,
	// since it has said that a retry would come too early. 0 means 5 minutes; at most a
	// year.
	MaxRetryAfter time.Duration

	// MaxHosts is how many hosts can be held back at the same time, at most 1<<20.
	// Beyond it no hold that is still on gives way: the wait that a further host asks for is
	// heeded by the retries of that request only. Names of hosts are at most 512 bytes
	// long, so this bounds the memory. 0 means 4096.
	MaxHosts int
}

const (
	defaultBackoffBase = 100 * time.Millisecond
	defaultBackoffCap  = 10 * time.Second
	defaultMaxHosts    = 4096
	maxMaxHosts        = 1 << 20
)

// ErrLimited: every *LimitError matches it.
var ErrLimited = errors.New("httplimit: request limited")

// LimitError is the error of a request that was not sent, because it would have had
// to wait longer than it may. errors.Is matches ErrLimited and Err.
type LimitError struct {
	// Host is the canonical host of the request.
	Host string

	// Held reports that the host has asked for a pause; otherwise it is the Limiter
	// that would not admit the request.
	Held bool

	// RetryAfter is the wait that would have been needed, as far as is known, in real
	// time; other requests can make it longer. sluice.Never if no wait helps.
	RetryAfter time.Duration

	// Err is why there was no waiting: nil under FailFast, an error that matches
	// context.DeadlineExceeded if the context's deadline comes too early, one that says
	// that MaxWait is too short, or one of sluice, such as sluice.ErrCostExceedsBurst and
	// sluice.ErrQueueFull.
	Err error
}

// Error names the host, who limits, the wait and why there was no waiting.
func (e *LimitError) Error() string {
	who := "the limiter admits the request"
	if e.Held {
		who = "the host has asked for no requests; it takes them"
	}
	when := "after " + e.RetryAfter.String()
	if e.RetryAfter == sluice.Never {
		when = "never"
	}
	msg := fmt.Sprintf("httplimit: %s: %s %s", e.Host, who, when)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Is reports whether target is ErrLimited.
func (e *LimitError) Is(target error) bool { return target == ErrLimited }

// Unwrap returns Err.
func (e *LimitError) Unwrap() error { return e.Err }

// Timeout reports whether the context's deadline was the reason. net/url.Error
// passes it on.
func (e *LimitError) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// A Transport is an http.RoundTripper that limits the requests it sends and heeds
// the limits that servers tell. It is safe for concurrent use.
//
// Each attempt waits until its host is not held back and the Limiter has admitted it,
// or fails if it may not wait that long. It never waits beyond the request's context;
// if its deadline comes before the wait would be over, it fails at once. Requests that have
// waited for a host are sent at once when its hold ends, in no order, unless the Limiter spreads
// it.
//
// A response holds back its host, for all requests through this Transport:
//
//   - with status 429, 503 or 403, by its Retry-After (RFC 9110, 10.2.3): seconds, or a
//     date, which is compared with the response's Date if there is one. On other
//     responses Retry-After speaks of one resource, not of the host.
//   - without one of these, by its RateLimit (draft-ietf-httpapi-ratelimit-headers-11):
//     where r is 0, for t seconds; of several items, the longest. On a response from a
//     cache, with a positive Age, it is ignored.
//
// A field that is malformed is ignored. A hold is never made shorter, and never longer
// than MaxRetryAfter. Hosts are told apart by name and port, not by partition key.
//
// With MaxRetries, a response of status 429 or 503 is retried if the request is
// idempotent (RFC 9110, 9.2.2: GET, HEAD, OPTIONS, TRACE, PUT, DELETE; or any method
// with an Idempotency-Key or X-Idempotency-Key) and its body can be had again: there
// is none, or GetBody is set. The pause before it is the wait that the response asks for and a
// random backoff. If that, or the wait for the Limiter, does not fit, or GetBody fails,
// the response is returned as it is. Errors of the base transport are not retried.
// During the pause up to 8 KiB of the response are read, so that its connection can be
// used again. A server that has not sent them by the end of the pause has another
// second, within MaxWait and the context's deadline, and then loses the connection.
//
// A host must be ASCII: net/http takes many Unicode spellings for the same host, and
// each would have a budget of its own. Write it in its xn-- form (RFC 5890).
//
// The request is not modified; the first attempt sends it as it is, retries send
// clones. Request.Cancel is left to the base. It must be made by NewTransport.
type Transport struct {
	base   http.RoundTripper
	config TransportConfig
	units  *inflight.Renewer // keeps the units in flight
	holds  *fare.Holds[string]
	jitter func(below time.Duration) time.Duration
}

// NewTransport returns a Transport that sends its requests through base;
// nil means http.DefaultTransport. The error is a *ConfigError.
func NewTransport(base http.RoundTripper, c TransportConfig) (*Transport, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if base == nil {
		base = http.DefaultTransport
	}
	c = c.withDefaults()
	return &Transport{base: base, config: c, units: inflight.NewRenewer(), holds: fare.NewHolds[string](c.MaxHosts), jitter: rand.N[time.Duration]}, nil
}

func (c TransportConfig) validate() error {
	fail := func(field, format string, args ...any) error {
		return configErrorf("TransportConfig."+field, format, args...)
	}
	common := fare.Terms{
		Limits: c.Limiter != nil, Key: c.Key != nil, Cost: c.Cost != nil, MaxWait: c.MaxWait, FailFast: c.FailFast,
		MaxRetries: c.MaxRetries, MaxRetryAfter: c.MaxRetryAfter,
	}
	if field, reason := common.Check("request"); reason != "" {
		return fail(field, "%s", reason)
	}
	base, ceiling := c.withDefaults().BackoffBase, c.withDefaults().BackoffCap
	switch {
	case c.Limiter != nil && c.Charges != nil:
		return fail("Charges", "set beside a Limiter; want the charge for that among the Charges, or no Charges")
	case c.BackoffBase < 0:
		return fail("BackoffBase", "%v is negative; want 0 for %v, or a positive duration", c.BackoffBase, defaultBackoffBase)
	case c.BackoffCap < 0 || c.BackoffCap > fare.LongestWait:
		return fail("BackoffCap", "%v is out of range; want 0 for %v, or up to %v", c.BackoffCap, defaultBackoffCap, fare.LongestWait)
	case base > ceiling:
		return fail("BackoffBase", "%v is above BackoffCap, %v; want at most that", base, ceiling)
	case c.MaxHosts < 0 || c.MaxHosts > maxMaxHosts:
		return fail("MaxHosts", "%d is not a number of hosts that can be kept; want 0 for %d, or 1 to %d", c.MaxHosts, defaultMaxHosts, maxMaxHosts)
	}
	return nil
}

func (c TransportConfig) withDefaults() TransportConfig {
	c.BackoffBase = cmp.Or(c.BackoffBase, defaultBackoffBase)
	c.BackoffCap = cmp.Or(c.BackoffCap, defaultBackoffCap)
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, fare.DefaultMaxRetryAfter)
	c.MaxHosts = cmp.Or(c.MaxHosts, defaultMaxHosts)
	return c
}

// RoundTrip implements http.RoundTripper. The error is a *LimitError if the request
// was not sent for want of time to wait, the context's cause if it ended while the
// request waited, and otherwise the error of Key or the base.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	p, err := t.newPassage(req)
	if err == nil {
		err = p.admit()
	}
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	resp, err := p.send(req)
	for n := 0; err == nil && resp != nil; n++ {
		asked := t.heed(p.For, resp)
		if n >= t.config.MaxRetries || asked > t.config.MaxRetryAfter || !retryable(req, resp) {
			break
		}
		next, cause := p.again(resp, asked+t.backoff(n))
		if cause != nil {
			closeResponse(resp)
			return nil, cause
		}
		if next == nil {
			break
		}
		closeResponse(resp)
		if resp, err = p.send(next); resp != nil && resp.Request == next {
			resp.Request = req
		}
	}
	return resp, err
}

// send spends the charge of an attempt. Units in flight are held until the body of its response ends; or until it
// fails, or panics.
func (p *passage) send(req *http.Request) (resp *http.Response, err error) {
	held := p.held
	if spent := p.paid.Spend(p.units); held == nil {
		held = spent
	}
	p.paid, p.held, p.body = fare.Ticket{}, nil, nil
	if held == nil {
		return p.base.RoundTrip(req)
	}
	defer func() {
		if p.body == nil {
			held.End()
		}
	}()
	resp, err = p.base.RoundTrip(req)
	if err == nil && resp != nil && resp.Body != nil && resp.Body != http.NoBody {
		p.body = holdUntilRead(p.ctx, resp, held)
	}
	return resp, err
}

// CloseIdleConnections calls the base's method of that name, if it has one.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
