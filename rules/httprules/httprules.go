// Package httprules limits requests over HTTP by rules in YAML: the same files that Envoy's rate limit
// service reads, and the same counts, in front of a net/http handler.
//
//	limit, err := httprules.New(httprules.Config{Engine: engine, Domain: "api"})
//	http.ListenAndServe(":8080", limit(mux))
//
// The domain's lists of actions, "http" in its files, make descriptors of a request, in the terms
// of Envoy's routes. For a domain without actions the only descriptor is the client's
// remote_address.
//
// A request that a rule of units in flight (algorithm: in-flight) limits is held by the engine: see rules.Engine.Hold. It is
// charged to all of its rules or to none, and counts nothing if it is denied. What is in flight is given back when the
// handler has returned or panicked, or when the connection that it has taken over is closed, however long that takes; all
// else stays charged.
package httprules

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rules"
)

// Config describes a middleware. Its functions are called on the goroutines of the requests, so several can
// run at once.
type Config struct {
	// Engine decides, by its rules for Domain. Both are required. Rules that are swapped in, and their
	// actions, apply to requests that begin afterwards.
	Engine *rules.Engine
	Domain string

	// Client names the client of a request for remote_address. nil means the socket peer:
	// httplimit.ByRemoteIP(httplimit.IPConfig{}), which takes an IPv6 client's /64. Behind a
	// proxy it must be told which peers to trust.
	Client httplimit.KeyFunc

	// OnDenied answers denied requests. The status is 429; 400 if an action finds a
	// value that it cannot use, such as a header that is there twice; or 503 if the engine's Store does not
	// answer, and is configured to deny then, or if a rule of units in flight limits the request, and the engine has no
	// room for a hold (rules.ErrManyHolds), or its Store holds no units of another of its rules
	// (rules.ErrNoHolds). Violated has the paths of the
	// rules that are over. Retry-After has been set, by rules.Response.RetryAfter. nil means httplimit.WriteProblem.
	OnDenied func(http.ResponseWriter, *http.Request, httplimit.Decision)

	// OnDecision is called for each request that the engine has decided, before the handler or
	// OnDenied. It can record metrics, or set headers of its own. It must not keep the Response.
	OnDecision func(http.ResponseWriter, *http.Request, *rules.Response)
}

// check refuses rules of units in flight that the engine cannot give back.
func (c *Config) check() error {
	if c.Engine.KeepsHolds() {
		return nil
	}
	set, _ := c.Engine.Set()
	for _, rule := range set.Rules() {
		if rule.Domain() == c.Domain && rule.Algorithm() == sluice.InFlight {
			return fmt.Errorf("httprules: Config.Engine has the rule %s of units in flight, and a Store that keeps no holds, by which they would be given back; want a rules.HoldStore, such as rulestore, no Store, or another algorithm", rule.Path())
		}
	}
	return nil
}

// middleware is a checked Config.
type middleware struct {
	Config
	now   atomic.Pointer[compiled]
	calls sync.Pool // of *call
}

// compiled is the actions of a set.
type compiled struct {
	set *rules.Set
	*Describer
}

// call is the state of a request while it is decided.
type call struct {
	entries []rules.Entry
	req     rules.Request
	resp    rules.Response
}

// New returns a middleware: a function that puts the rules in front of a handler. The handlers that the
// function returns are safe for concurrent use. The error says which field of c is wrong.
func New(c Config) (func(http.Handler) http.Handler, error) {
	switch {
	case c.Engine == nil:
		return nil, errors.New("httprules: Config.Engine is nil; want one of rules.New")
	case c.Domain == "":
		return nil, errors.New("httprules: Config.Domain is empty; want the domain of the rules")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Client == nil {
		c.Client = sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))
	}
	if c.OnDenied == nil {
		c.OnDenied = httplimit.WriteProblem
	}
	m := &middleware{Config: c, calls: sync.Pool{New: func() any { return new(call) }}}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			held, ok := m.admit(w, r)
			switch {
			case held != nil:
				held.serve(next, w, r)
			case ok:
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// admit decides on a request, and answers it if it is denied. held is the hold of an admitted request, or nil.
func (m *middleware) admit(w http.ResponseWriter, r *http.Request) (held *held, ok bool) {
	c := m.calls.Get().(*call)
	d := httplimit.Decision{Allowed: true}
	c.req.Domain = m.Domain
	now := m.compiled()
	var err error
	if c.entries, err = now.Describe(r, &c.req, c.entries[:0]); err != nil {
		d = httplimit.Decision{Status: http.StatusBadRequest, KeyError: err}
	} else if rule := now.set.InFlight(&c.req); rule != nil {
		held, d = m.hold(w, r, c, rule)
	} else if len(c.req.Descriptors) > 0 {
		d = m.decide(w, r, c)
	}
	if held == nil {
		c.forget()
		m.calls.Put(c)
	}
	if d.Allowed {
		return held, true
	}
	m.OnDenied(w, r, d)
	return nil, false
}

// decide asks the engine. The request has a domain and descriptors, and no overrides, so the engine cannot refuse it:
// an error is always an error of a Store that does not answer.
func (m *middleware) decide(w http.ResponseWriter, r *http.Request, c *call) httplimit.Decision {
	return m.decided(w, r, c, m.Engine.Decide(&c.req, &c.resp))
}

// decided returns the decision that the engine has made, unless there was an error.
func (m *middleware) decided(w http.ResponseWriter, r *http.Request, c *call, err error) httplimit.Decision {
	switch {
	case errors.As(err, new(*rules.InvalidError)): // a count for a weight that is no number
		return httplimit.Decision{Status: http.StatusBadRequest, KeyError: err}
	case err != nil:
		return httplimit.Decision{Status: http.StatusServiceUnavailable, KeyError: err}
	}
	if m.OnDecision != nil {
		m.OnDecision(w, r, &c.resp)
	}
	if c.resp.Code != rules.OK {
		if wait, _ := c.resp.RetryAfter(); wait > 0 && wait != sluice.Never {
			w.Header().Set("Retry-After", strconv.FormatInt(int64((wait-1)/time.Second)+1, 10))
		}
		return denial(&c.resp)
	}
	return httplimit.Decision{Allowed: true}
}

// denial describes the denial of a request.
func denial(resp *rules.Response) httplimit.Decision {
	d := httplimit.Decision{Status: http.StatusTooManyRequests}
	for i := range resp.Statuses {
		if st := &resp.Statuses[i]; st.Code == rules.OverLimit {
			d.Violated = append(d.Violated, st.Rule.Path())
			d.RetryAfter = max(d.RetryAfter, st.RetryAfter)
		}
	}
	return d
}

// forget drops all references to the request, so that a pooled call does not keep them in memory.
func (c *call) forget() {
	clear(c.entries)
	clear(c.req.Descriptors)
	clear(c.resp.Statuses)
	c.req.Hits = 0
}

// compiled returns the actions of the rules in force.
func (m *middleware) compiled() *compiled {
	set, _ := m.Engine.Set()
	c := m.now.Load()
	if c == nil || c.set != set {
		c = &compiled{set, NewDescriber(set.Actions(m.Domain), m.Client)}
		m.now.Store(c)
	}
	return c
}
