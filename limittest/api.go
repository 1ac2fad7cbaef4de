package limittest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// APIConfig says how an API limits and tells its clients. A zero field other than Limiter is a server that
// says no more than 429.
type APIConfig struct {
	// Limiter decides. Its clock is the API's: of Date, of latencies, and of all times it notes. It must be set.
	Limiter *sluice.Limiter

	// Key returns the key that a request is charged to; nil charges all to one.
	Key func(*http.Request) string

	// Cost returns the cost of a request; nil is 1.
	Cost func(*http.Request) int

	// Handler answers admitted requests; nil answers 200 and "ok".
	Handler http.Handler

	// RetryAfter is the form of Retry-After on a denial.
	RetryAfter RetryAfterForm

	// Generation is of the fields that tell about the limit.
	Generation Generation

	// Pushback adds grpc-retry-pushback-ms to a denial, as servers of gRPC do: milliseconds, or -1 if no wait helps.
	Pushback bool
}

// RetryAfterForm is the form of Retry-After (RFC 9110, 10.2.3).
type RetryAfterForm uint8

const (
	// RetryAfterOff sends none.
	RetryAfterOff RetryAfterForm = iota
	// RetryAfterSeconds is a number of seconds, rounded up.
	RetryAfterSeconds
	// RetryAfterDate is an HTTP-date, rounded up to the next second.
	RetryAfterDate
)

// Generation is a generation of the fields with which servers tell about their limits. Names are in the form that
// http.Header has them.
type Generation uint8

const (
	// FieldsOff sends none.
	FieldsOff Generation = iota
	// XRateLimit: X-Ratelimit-Limit, -Remaining, and -Reset in seconds from now.
	XRateLimit
	// XRateLimitUnix: the same, with -Reset in seconds since 1970.
	XRateLimitUnix
	// Draft03 is draft-ietf-httpapi-ratelimit-headers-03: Ratelimit-Limit: 10, 10;w=60, with -Remaining and -Reset.
	Draft03
	// Draft06 is draft 06: the policy is in a field of its own, Ratelimit-Policy: 10;w=60.
	Draft06
	// Draft07 is draft 07: one field, Ratelimit: limit=10, remaining=3, reset=5.
	Draft07
	// Draft11 is draft 11, and the same since draft 08: Ratelimit: "default";r=3;t=5, and Ratelimit-Policy: "default";q=10;w=60.
	Draft11
)

// ErrLost is the error of a request whose response was lost. It was charged and handled all the same.
var ErrLost = errors.New("limittest: the response is lost")

// A Fault is a failure of a request.
type Fault struct {
	// Latency passes before the request is answered, after it has been judged: a ManualClock is moved by the API, and on
	// others the response waits, but no longer than the request's context. It must not be negative.
	Latency time.Duration

	// Status, such as 503, answers the request instead of the limit and the handler, and charges nothing. 0 does not.
	Status int

	// RetryAfter is for an answer of Status, in the form of the config; 0 for none.
	RetryAfter time.Duration

	// Lost loses the response: RoundTrip returns ErrLost, and ServeHTTP aborts the connection.
	Lost bool
}

// An Exchange is a request that the API got, and its answer.
type Exchange struct {
	At       int64 // when it came, in Unix nanoseconds of the limiter's clock
	Key      string
	Cost     int
	Status   int  // of the response, lost or not
	Admitted bool // by the limiter, and charged
	Lost     bool

	// Early reports that it came before the time that a Retry-After for its key had named.
	Early bool
}

// An API is a limited server in memory, for tests of clients: an http.Handler for a real connection, and an
// http.RoundTripper for none. It denies with 429. It is safe for concurrent use, and must be made by NewAPI.
type API struct {
	config APIConfig
	clock  sluice.Clock

	mu        sync.Mutex // guards the rest
	script    []scripted
	until     map[string]int64 // by key, when its clients may come back
	exchanges []Exchange
}

// A scripted fault is for some requests, or for all that come until a time.
type scripted struct {
	fault Fault
	n     int
	until int64
}

// NewAPI returns an API that has not been asked. It panics if the Limiter is nil, or an enumeration has a value
// that there is not.
func NewAPI(c APIConfig) *API {
	switch {
	case c.Limiter == nil:
		panic("limittest: APIConfig.Limiter: nil decides nothing; want a limiter, with the clock of the test")
	case c.RetryAfter > RetryAfterDate:
		panic(fmt.Sprintf("limittest: APIConfig.RetryAfter: %d is not a form; want RetryAfterOff, RetryAfterSeconds or RetryAfterDate", c.RetryAfter))
	case c.Generation > Draft11:
		panic(fmt.Sprintf("limittest: APIConfig.Generation: %d is not a generation; want FieldsOff to Draft11", c.Generation))
	}
	if c.Key == nil {
		c.Key = func(*http.Request) string { return "" }
	}
	if c.Cost == nil {
		c.Cost = func(*http.Request) int { return 1 }
	}
	if c.Handler == nil {
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	}
	return &API{config: c, clock: c.Limiter.Config().Clock, until: map[string]int64{}}
}

// Next makes the fault happen to the next n requests that no fault is scripted for yet.
func (a *API) Next(n int, f Fault) {
	requireCall("Next", "n", int64(n))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script = append(a.script, scripted{fault: f, n: n})
}

// For makes the fault happen to all requests from now on for d, on the limiter's clock. What Next has scripted waits meanwhile.
func (a *API) For(d time.Duration, f Fault) {
	requireCall("For", "d", int64(d))
	until := after(max(a.clock.Now(), 0), d)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script = append([]scripted{{fault: f, until: until}}, a.script...)
}

func requireCall(method, argument string, n int64) {
	if n <= 0 {
		panic(fmt.Sprintf("limittest: API.%s: %s is %d; want a positive one", method, argument, n))
	}
}

// fault takes the fault of a request that comes at now. The caller holds mu.
func (a *API) fault(now int64) Fault {
	for len(a.script) > 0 {
		s := &a.script[0]
		switch {
		case s.until > now:
			return s.fault
		case s.n > 0:
			s.n--
			return s.fault
		}
		a.script = a.script[1:]
	}
	return Fault{}
}

// Exchanges returns the requests so far, in their order.
func (a *API) Exchanges() []Exchange {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Exchange(nil), a.exchanges...)
}

// RoundTrip implements http.RoundTripper, without a connection. It returns ErrLost if the response is lost, the error of
// the request's context if that ends first, and an error if the handler panics with http.ErrAbortHandler.
func (a *API) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			resp, err = nil, ErrLost
		} else if p != nil {
			panic(p)
		}
	}()
	w := httptest.NewRecorder()
	a.ServeHTTP(w, served(r))
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp = w.Result()
	resp.Request = r
	return resp, nil
}

// served is a client's request as a server sees it.
func served(r *http.Request) *http.Request {
	s := r.Clone(r.Context())
	if s.Body == nil {
		s.Body = http.NoBody
	}
	if s.Host == "" {
		s.Host = s.URL.Host
	}
	s.RequestURI, s.RemoteAddr = s.URL.RequestURI(), "192.0.2.1:1234"
	return s
}

// ServeHTTP implements http.Handler. It panics with http.ErrAbortHandler to lose a response, as net/http wants it. A
// handler's response is sent when it is complete.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i, e, fault, d := a.judge(r)
	answer := httptest.NewRecorder()
	answer.Header().Set("Date", httpDate(e.At))
	switch {
	case fault.Status != 0:
		a.refuse(answer, e, fault.Status, fault.RetryAfter)
	case e.Admitted:
		a.fields(answer.Header(), e, d)
		a.config.Handler.ServeHTTP(answer, r)
	default:
		a.fields(answer.Header(), e, d)
		a.pushBack(answer.Header(), d.RetryAfter)
		a.refuse(answer, e, http.StatusTooManyRequests, d.RetryAfter)
	}
	a.mu.Lock()
	a.exchanges[i].Status = answer.Code
	a.mu.Unlock()
	a.sleep(r.Context(), fault.Latency)
	if fault.Lost {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes()) // its error is of a client that has gone
}

// judge notes the request as exchange i, and decides, unless its fault does.
func (a *API) judge(r *http.Request) (i int, e Exchange, fault Fault, d sluice.Decision) {
	e = Exchange{Key: a.config.Key(r), Cost: a.config.Cost(r)}
	a.mu.Lock()
	defer a.mu.Unlock()
	e.At = max(a.clock.Now(), 0)
	e.Early = e.At < a.until[e.Key]
	fault = a.fault(e.At)
	e.Lost = fault.Lost
	if fault.Status == 0 {
		d = a.config.Limiter.Key(e.Key).TakeAt(e.At, e.Cost)
		e.Admitted = d.Allowed
	}
	a.exchanges = append(a.exchanges, e)
	return len(a.exchanges) - 1, e, fault, d
}

// refuse answers a request that is not admitted.
func (a *API) refuse(w http.ResponseWriter, e Exchange, status int, wait time.Duration) {
	if value, until := a.config.RetryAfter.value(e.At, wait); value != "" {
		w.Header().Set("Retry-After", value)
		a.mu.Lock()
		a.until[e.Key] = max(a.until[e.Key], until)
		a.mu.Unlock()
	}
	http.Error(w, http.StatusText(status), status)
}

// sleep lets a latency pass, or returns when the request ends.
func (a *API) sleep(ctx context.Context, latency time.Duration) {
	if clock, ok := a.clock.(*sluice.ManualClock); ok {
		clock.Advance(latency)
		return
	}
	if latency <= 0 {
		return
	}
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
