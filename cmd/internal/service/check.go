package service

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/original"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rls"
	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/httprules"
)

// checker answers proxies that ask over HTTP whether a request may pass: /check/DOMAIN.
type checker struct {
	*server
	proxies  proxies
	compiled atomic.Pointer[compiledActions]
	calls    sync.Pool // of *checkCall
	failed   atomic.Uint64
	told     atomic.Int64 // when a failure was last logged, Unix nanoseconds
	unknown  *strangers   // domains that are not there

	headerless     atomic.Uint64 // calls counted under a trusted proxy's address, for want of --client-header
	toldHeaderless sync.Once
}

// proxies are the peers that are trusted to describe a request.
type proxies struct {
	ranges []netip.Prefix
	client httplimit.KeyFunc // the client's address, from trusted peers
	first  httplimit.KeyFunc // that, once for each call: it tells of mistakes
}

// compiledActions make descriptors of requests by the actions of a set.
type compiledActions struct {
	set      *rules.Set
	byDomain map[string]*httprules.Describer
	none     *httprules.Describer // for a domain without actions
	address  map[string]bool      // domains whose descriptors have the client's address
}

// checkCall is the state of a call while it is decided.
type checkCall struct {
	entries []rules.Entry
	req     rules.Request
	resp    rules.Response
}

// errRequest is an error of the client's request: the request is denied, and never admitted by --fail-open.
type errRequest struct{ error }

// errEndless is the error of a call that a rule of units in flight limits: nobody would give its units back. It is the
// operator's to mend, and never admitted by --fail-open.
type errEndless struct{ rule *rules.Rule }

func (e errEndless) Error() string {
	return fmt.Sprintf("the rule %s limits what is in flight, and /check does not hear when a request ends; want calls of /hold and /release, or another algorithm", e.rule.Path())
}

// endless returns a rule of units in flight that can deny the request, or nil.
func endless(set *rules.Set, req *rules.Request) *rules.Rule {
	if set.InFlight(req) == nil {
		return nil
	}
	for i := range req.Descriptors {
		if rule := set.Match(req.Domain, req.Descriptors[i].Entries); rule != nil && rule.Algorithm() == sluice.InFlight && !rule.Shadow() {
			return rule
		}
	}
	return nil
}

// tellEndless tells of the rules that /check cannot keep, of domains that make descriptors of requests.
func (s *server) tellEndless(set *rules.Set) {
	for _, rule := range set.Rules() {
		if rule.Algorithm() == sluice.InFlight && set.Actions(rule.Domain()) != nil {
			s.log.Warn("/check does not hear when a request ends: it answers 501 to what this rule limits, and in shadow_mode or with --shadow counts what has ended; want calls of /hold and /release, or another algorithm than in-flight", "rule", rule.Path())
		}
	}
}

// newProxies reads --trusted-proxies, --client-header and --require-client-header. untrusted is called for headers of peers
// that are not trusted, and missing for trusted peers without the header.
func newProxies(c *Config, untrusted func(r *http.Request, header string), missing func(*http.Request)) (p proxies, err error) {
	ip := httplimit.IPConfig{OnUntrustedProxy: func(*http.Request, string) {}}
	for _, text := range c.TrustedProxies {
		r, err := parsePrefix(text)
		if err != nil {
			return p, err
		}
		p.ranges = append(p.ranges, r)
		ip.TrustedProxies, ip.Header = p.ranges, c.ClientHeader
	}
	ip.RequireHeader = c.RequireClientHeader && len(p.ranges) > 0 // the flag without these is for checkMeanings to refuse
	client := ip
	if ip.OnUntrustedProxy = untrusted; len(p.ranges) > 0 && !ip.RequireHeader {
		client.OnMissingHeader, ip.OnMissingHeader = func(*http.Request) {}, missing
	}
	if p.client, err = httplimit.ByRemoteIP(client); err == nil {
		p.first, err = httplimit.ByRemoteIP(ip)
	}
	if err != nil {
		return p, fmt.Errorf("--trusted-proxies or --client-header: %w", err)
	}
	return p, nil
}

// parsePrefix reads an address or a range of them.
func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("--trusted-proxies %q: want an address, or a range such as 10.0.0.0/8", text)
	}
	return p, nil
}

func (p *proxies) include(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	a := peer.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(p.ranges, func(q netip.Prefix) bool { return q.Contains(a) })
}

func newChecker(s *server) (c *checker, err error) {
	c = &checker{server: s, unknown: s.strangers("http"), calls: sync.Pool{New: func() any { return new(checkCall) }}}
	var once sync.Once
	c.proxies, err = newProxies(s.config, func(r *http.Request, header string) {
		once.Do(func() {
			s.log.Warn("a peer of /check is no trusted proxy, and its headers are not believed: if it is a proxy, all of its clients are one; see --trusted-proxies",
				"peer", r.RemoteAddr, "header", header)
		})
	}, c.missing)
	return c, err
}

// missing counts a call of a trusted proxy that does not say who the client is, if the client's address is counted: all clients of
// the proxy then share one budget.
func (c *checker) missing(r *http.Request) {
	set, _ := c.engine.Set()
	domain, _ := domainOf(set, r)
	if !c.compile(set).address[domain] {
		return
	}
	c.headerless.Add(1)
	c.toldHeaderless.Do(func() {
		c.log.Warn("a trusted proxy has asked /check without a header that names the client, and is counted under its own address: if it asks for clients, all of them are one; have it send --client-header, and set --require-client-header",
			"peer", r.RemoteAddr, "header", c.config.ClientHeader, "domain", fmt.Sprintf("%.64q", domain))
	})
}

// domainOf returns the domain that a call is about. ok is false if the path names no domain, and the set has not exactly one.
func domainOf(set *rules.Set, r *http.Request) (domain string, ok bool) {
	if domain = r.PathValue("domain"); domain != "" {
		return domain, true
	}
	if all := set.Domains(); len(all) == 1 {
		return all[0], true
	}
	return "", false
}

// ServeHTTP answers 204, or 429 (403 for deny=403 in the query) with Retry-After. The body is
// empty. It answers 501 to requests that a rule of units in flight limits.
func (c *checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	denial := http.StatusTooManyRequests
	switch deny := r.URL.Query().Get("deny"); deny {
	case "", "429":
	case "403":
		denial = http.StatusForbidden
	default:
		http.Error(w, fmt.Sprintf("deny is %q; want 403 or 429", deny), http.StatusBadRequest)
		return
	}
	set, _ := c.engine.Set()
	domain, ok := domainOf(set, r)
	if !ok {
		http.Error(w, fmt.Sprintf("there are %d domains; want /check/DOMAIN", len(set.Domains())), http.StatusNotFound)
		return
	}
	call := c.calls.Get().(*checkCall)
	var request errRequest
	var endless errEndless
	switch err := c.decide(call, set, domain, r); {
	case errors.As(err, &request):
		if denial == http.StatusTooManyRequests {
			denial = http.StatusBadRequest
		}
		http.Error(w, err.Error(), denial)
		return // and leave call to the garbage collector: it may be in any state
	case errors.As(err, &endless):
		http.Error(w, err.Error(), http.StatusNotImplemented)
		return
	case err != nil:
		c.fail(w, err)
		return
	}
	if t := c.trial.Load(); t != nil {
		t.judgeCheck(c.original(r), &call.req, &call.resp)
	}
	header := w.Header()
	c.describe(header, &call.resp)
	if call.resp.Code == rules.OK {
		w.WriteHeader(http.StatusNoContent)
	} else {
		if wait, _ := call.resp.RetryAfter(); wait != sluice.Never {
			header.Set("Retry-After", strconv.FormatInt(seconds(wait), 10))
		}
		if c.config.RuleHeader != "" {
			header.Set(c.config.RuleHeader, rls.HeaderOf(call.resp.DeniedBy()))
		}
		header.Set("Content-Length", "0")
		w.WriteHeader(denial)
	}
	call.forget()
	c.calls.Put(call)
}

// forget drops all references to the request, so that a pooled call does not keep them in memory.
func (call *checkCall) forget() {
	clear(call.entries)
	clear(call.req.Descriptors)
	clear(call.resp.Statuses)
	call.req.Domain = ""
}

// decide asks about the descriptors that the domain's actions make of the request. A request without
// descriptors is not limited.
func (c *checker) decide(call *checkCall, set *rules.Set, domain string, r *http.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	if _, err := c.proxies.first(r); err != nil {
		return err // an error of the proxy, so it is found before Describe
	}
	call.req.Domain = domain
	call.entries, err = c.describer(set, domain).Describe(c.original(r), &call.req, call.entries[:0])
	if err != nil {
		return errRequest{err}
	}
	if len(call.req.Descriptors) == 0 {
		call.resp.Code, call.resp.Statuses, call.resp.Tightest, call.resp.WouldDeny = rules.OK, call.resp.Statuses[:0], -1, false
		return nil
	}
	if rule := endless(set, &call.req); rule != nil && !c.config.Shadow {
		return errEndless{rule}
	}
	err = c.engine.Decide(&call.req, &call.resp)
	if err == nil && call.resp.Code != rules.OK {
		c.live.denied(&call.req, &call.resp)
	}
	return err
}

// compile returns the actions of a set.
func (c *checker) compile(set *rules.Set) *compiledActions {
	now := c.compiled.Load()
	if now != nil && now.set == set {
		return now
	}
	now = c.newActions(set)
	c.compiled.Store(now)
	return now
}

func (c *checker) newActions(set *rules.Set) *compiledActions {
	now := &compiledActions{set: set, byDomain: map[string]*httprules.Describer{}, address: map[string]bool{}}
	now.none = httprules.NewDescriber(nil, c.proxies.client)
	for _, name := range set.Domains() {
		actions := set.Actions(name)
		if actions != nil {
			now.byDomain[name] = httprules.NewDescriber(actions, c.proxies.client)
		}
		now.address[name] = actions == nil || slices.ContainsFunc(actions, func(list []rules.Action) bool {
			return slices.ContainsFunc(list, func(a rules.Action) bool { return a.Kind == rules.RemoteAddress || a.Kind == rules.MaskedRemoteAddress })
		})
	}
	return now
}

func (c *checker) describer(set *rules.Set, domain string) *httprules.Describer {
	if !slices.Contains(set.Domains(), domain) {
		c.unknown.tell(time.Now(), "/check is asked about a domain without rules, and admits all", "domain", fmt.Sprintf("%.64q", domain))
	}
	return c.compile(set).describer(domain)
}

// describer makes descriptors of the requests about a domain.
func (a *compiledActions) describer(domain string) *httprules.Describer {
	if d := a.byDomain[domain]; d != nil {
		return d
	}
	return a.none
}

// original returns the request that the proxy has received, as a trusted proxy describes it: otherwise without a
// method, a path and a host. The headers are the client's headers, with those that the proxy has added.
func (c *checker) original(r *http.Request) *http.Request {
	method, host, uri := "", "", ""
	if c.proxies.include(r) {
		method, host, uri = last(r.Header["X-Forwarded-Method"]), last(r.Header["X-Forwarded-Host"]), last(r.Header["X-Forwarded-Uri"])
	}
	out := original.Request(method, host, uri, r.Header)
	out.RemoteAddr = r.RemoteAddr
	return out
}

// last returns the last line of a header. The proxy has added it, after any lines of the client.
func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// describe tells the client of its limit, if the configuration asks for that.
func (c *checker) describe(h http.Header, resp *rules.Response) {
	if resp.Tightest < 0 {
		return
	}
	st := &resp.Statuses[resp.Tightest]
	if c.config.Headers {
		h.Set(c.config.LimitHeader, strconv.FormatUint(uint64(st.Requests), 10))
		h.Set(c.config.RemainingHeader, strconv.FormatUint(uint64(st.Remaining), 10))
		h.Set(c.config.ResetHeader, strconv.FormatInt(seconds(st.ResetAfter), 10))
	}
	if c.config.HeadersDraft11 && st.Rule != nil && st.Period > 0 {
		name := policyName(st.Rule)
		policy := fmt.Sprintf(`%s;q=%d`, name, st.Requests)
		if st.Rule.Calendar() == (sluice.Calendar{}) { // windows by a calendar differ
			policy += fmt.Sprintf(";w=%d", seconds(st.Period))
		}
		h.Set("RateLimit-Policy", policy)
		h.Set("RateLimit", fmt.Sprintf(`%s;r=%d;t=%d`, name, st.Remaining, seconds(st.ResetAfter)))
	}
}

// policyName returns a rule's name, or its path, as a string of RFC 9651.
func policyName(r *rules.Rule) string {
	name := r.Name()
	if name == "" {
		name = r.Path()
	}
	return `"` + strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '_'
		}
		return c
	}, name) + `"`
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second != 0 {
		n++
	}
	return n
}

// fail answers a call that could not be decided, and logs the error, at most once a minute.
func (c *checker) fail(w http.ResponseWriter, err error) {
	c.failed.Add(1)
	nobody := errors.Is(err, httplimit.ErrBadKey) || errors.Is(err, httplimit.ErrNoKey)
	open := c.config.FailOpen && !(nobody && c.config.RequireClientHeader)
	now, told := time.Now().UnixNano(), c.told.Load()
	if now-told > int64(time.Minute) && c.told.CompareAndSwap(told, now) {
		c.log.Error("a call of /check failed", "error", err, "admitted", open)
	}
	if open {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	reason := "the check failed"
	if nobody {
		reason = err.Error()
	}
	http.Error(w, reason, http.StatusInternalServerError)
}
