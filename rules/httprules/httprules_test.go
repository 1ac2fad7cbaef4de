package httprules

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rules"
)

// site is a real server behind a middleware, on a clock that the test moves.
type site struct {
	*httptest.Server
	clock  *sluice.ManualClock
	engine *rules.Engine
	served int
	mutex  sync.Mutex
}

func load(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Load([]rules.File{{Name: "d.yaml", Data: []byte(text)}}, rules.Options{})
	require.NoError(t, err)
	return set
}

func newSite(t *testing.T, text string, c Config) *site {
	t.Helper()
	s := &site{clock: sluice.NewManualClock(time.Unix(1_790_000_000, 0))}
	var err error
	s.engine, err = rules.New(load(t, text), rules.Config{Clock: s.clock})
	require.NoError(t, err)
	c.Engine, c.Domain = s.engine, "d"
	limit, err := New(c)
	require.NoError(t, err)
	s.Server = httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.served++
	})))
	t.Cleanup(s.Close)
	return s
}

// get asks for a path, with headers "Name: value", and returns status, Retry-After and the body.
func (s *site) get(t *testing.T, path string, headers ...string) (int, string, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("Retry-After"), string(body)
}

const site1 = `
domain: d
http:
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]
- actions: [{path: {}}, {remote_address: {}}]
- actions: [{query_parameters: {query_parameter_name: q, descriptor_key: search}}]
- actions: [{generic_key: {descriptor_value: web}}, {request_headers: {header_name: x-plan, descriptor_key: plan, skip_if_absent: true}}]
descriptors:
- {key: client, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: path, value: /login, descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: gcra}}]}
- {key: search, value: free*, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: generic_key, value: web, rate_limit: {unit: minute, requests_per_unit: 7}, descriptors: [{key: plan, value: gold, rate_limit: {unlimited: true}}]}
`

// TestMiddleware_MaxRetryAfter: the header is cut, and the decision is true.
func TestMiddleware_MaxRetryAfter(t *testing.T) {
	var told httplimit.Decision
	s := newSite(t, strings.Replace(site1, "http:", "sluice: {max_retry_after: 5m}\nhttp:", 1), Config{
		OnDenied: func(w http.ResponseWriter, _ *http.Request, d httplimit.Decision) { told = d; w.WriteHeader(d.Status) },
	})
	for range 2 {
		_, _, _ = s.get(t, "/login")
	}
	status, wait, _ := s.get(t, "/login")
	require.Equal(t, 429, status)
	require.Equal(t, "300", wait)
	require.Equal(t, time.Hour, told.RetryAfter)
}

// TestMiddleware: real requests are limited by each list of actions.
func TestMiddleware(t *testing.T) {
	s := newSite(t, site1, Config{})
	for i, want := range []int{200, 200, 429} {
		status, wait, body := s.get(t, "/", "X-Api-Key: ann")
		require.Equal(t, want, status, i)
		if want == 429 {
			require.Equal(t, "40", wait, "until the minute ends") // it began 20 s ago
			require.JSONEq(t, `{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded",
				"status": 429, "violated-policies": ["d.client"]}`, body)
		}
	}
	status, _, _ := s.get(t, "/", "X-Api-Key: bob")
	require.Equal(t, 200, status)
	for i, path := range []string{"/login", "//login", "/a/../login?x=1", "/%6cogin"} {
		status, wait, _ := s.get(t, path)
		if i == 0 {
			require.Equal(t, 200, status, path)
			continue
		}
		require.Equal(t, 429, status, "%s is another spelling", path)
		require.Equal(t, "3600", wait)
	}
	s.clock.Advance(time.Minute) // generic_key has counted 8 times
	status, wait, _ := s.get(t, "/?q=freebie")
	require.Equal(t, 429, status)
	require.Empty(t, wait, "no wait helps")
	status, _, _ = s.get(t, "/", "X-Plan: gold")
	require.Equal(t, 200, status)
	for range 6 {
		s.get(t, "/")
	}
	status, _, _ = s.get(t, "/")
	require.Equal(t, 429, status)
	status, _, _ = s.get(t, "/", "X-Plan: gold")
	require.Equal(t, 200, status, "its descriptor is a more specific one")
	require.Equal(t, 2+1+1+1+6+1, s.served)
}

// TestMiddleware_Unusable: a value that could be another one for the handler is refused, not
// left out.
func TestMiddleware_Unusable(t *testing.T) {
	s := newSite(t, site1, Config{})
	for name, c := range map[string]struct {
		path    string
		headers []string
	}{
		"two headers":    {"/", []string{"X-Api-Key: ann", "X-Api-Key: bob"}},
		"a long header":  {"/", []string{"X-Api-Key: " + strings.Repeat("x", httplimit.MaxKeyLen+1)}},
		"two parameters": {"/?q=a&q=free", nil},
		"a bad query":    {"/?q=a;q=free", nil},
		"a long path":    {"/" + strings.Repeat("x", httplimit.MaxKeyLen), nil},
		"up, escaped":    {"/login/..%2fa", nil},
		"dots, too":      {"/login/%2e%2E%2Fa", nil},
		"slash, then up": {"/login/a%2Fb/..?q=a", nil},
	} {
		status, _, body := s.get(t, c.path, c.headers...)
		require.Equal(t, 400, status, name)
		require.NotContains(t, body, "xxx")
	}
	require.Zero(t, s.served)
	status, _, _ := s.get(t, "/?q=", "X-Api-Key:  ")
	require.Equal(t, 200, status, "empty is absent")
	for _, path := range []string{"/a%2Fb", "/a%2Fb..", "/a/../b?c=%2F", "/%2f"} {
		status, _, _ = s.get(t, path)
		require.Equal(t, 200, status, "%s is read in one way", path)
	}
}

// TestMiddleware_Default: a domain without actions is asked about the client's address, which only
// proxies that are trusted can say.
func TestMiddleware_Default(t *testing.T) {
	text := "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1}}]\n"
	s := newSite(t, text, Config{})
	status, _, _ := s.get(t, "/", "X-Forwarded-For: 192.0.2.1")
	require.Equal(t, 200, status)
	status, _, _ = s.get(t, "/", "X-Forwarded-For: 192.0.2.2")
	require.Equal(t, 429, status, "anybody can write that header")

	proxies := httplimit.IPConfig{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, Header: "X-Forwarded-For"}
	s = newSite(t, text, Config{Client: sluice.Must(httplimit.ByRemoteIP(proxies))})
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.1"} {
		status, _, _ = s.get(t, "/", "X-Forwarded-For: "+ip)
	}
	require.Equal(t, 429, status)
	require.Equal(t, 2, s.served)
}

// TestMiddleware_Swap: rules and actions of a reload count from the next request on, and counts stay.
func TestMiddleware_Swap(t *testing.T) {
	s := newSite(t, "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1}}]\n", Config{})
	status, _, _ := s.get(t, "/")
	require.Equal(t, 200, status)
	require.NoError(t, s.engine.Swap(load(t, `
domain: d
http: [{actions: [{request_headers: {header_name: ":method", descriptor_key: method}}]}]
descriptors: [{key: method, value: GET, rate_limit: {unit: minute, requests_per_unit: 1}}]
`)))
	status, _, _ = s.get(t, "/")
	require.Equal(t, 200, status)
	status, _, _ = s.get(t, "/")
	require.Equal(t, 429, status)
	require.NoError(t, s.engine.Swap(load(t, "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1}}]\n")))
	status, _, _ = s.get(t, "/")
	require.Equal(t, 429, status, "the first request still counts")
}

// TestMiddleware_Hooks: OnDecision sees all decisions, OnDenied answers.
func TestMiddleware_Hooks(t *testing.T) {
	s := newSite(t, site1, Config{
		OnDecision: func(w http.ResponseWriter, r *http.Request, resp *rules.Response) {
			w.Header().Set("X-Code", resp.Code.String())
		},
		OnDenied: func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			http.Error(w, strings.Join(d.Violated, " "), d.Status)
		},
	})
	for range 3 {
		s.get(t, "/login", "X-Api-Key: ann")
	}
	status, _, body := s.get(t, "/login", "X-Api-Key: ann")
	require.Equal(t, 429, status)
	require.Equal(t, "d.client d.path_/login.remote_address\n", body)
	require.Equal(t, 1, s.served)
}

// TestMiddleware_Concurrent: exactly as many pass as fit, while rules are swapped.
func TestMiddleware_Concurrent(t *testing.T) {
	const text = "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 100}}]\n"
	s := newSite(t, text, Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 25 {
				resp, err := s.Client().Get(s.URL)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			}
		}()
	}
	for range 50 {
		require.NoError(t, s.engine.Swap(load(t, text)))
	}
	wg.Wait()
	require.Equal(t, 100, s.served)
}

func TestNew_Errors(t *testing.T) {
	_, err := New(Config{Domain: "d"})
	require.EqualError(t, err, "httprules: Config.Engine is nil; want one of rules.New")
	engine, err := rules.New(load(t, "domain: d\n"), rules.Config{})
	require.NoError(t, err)
	_, err = New(Config{Engine: engine})
	require.EqualError(t, err, "httprules: Config.Domain is empty; want the domain of the rules")
}

// TestValue: what each action finds in a request that is made by hand, as those of /check and of a replay are.
func TestValue(t *testing.T) {
	request := func(path, query string) *http.Request {
		return &http.Request{Method: "GET", Host: "h", URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"X-Key": {" \tk "}}}
	}
	header := func(name string) rules.Action { return rules.Action{Kind: rules.RequestHeaders, Name: name} }
	parameter := rules.Action{Kind: rules.QueryParameter, Name: "q"}
	for _, c := range []struct {
		action      rules.Action
		path, query string
		want        string // empty for ErrNoKey
	}{
		{header(":method"), "/a", "", "GET"}, {header(":authority"), "", "", "h"}, {header("Host"), "", "", "h"},
		{header(":path"), "/a", "q=1", "/a?q=1"}, {header(":path"), "", "q=1", "/?q=1"}, {header(":path"), "", "", ""},
		{header("x-key"), "", "", "k"}, {header("x-other"), "", "", ""},
		{parameter, "", "p=1&q=2", "2"}, {parameter, "", "p=1", ""},
		{rules.Action{Kind: rules.Path}, "/a/../b/", "", "/b"}, {rules.Action{Kind: rules.Path}, "", "", ""},
	} {
		got, err := value(c.action, nil)(request(c.path, c.query))
		require.Equal(t, c.want, got, "%+v", c)
		require.Equal(t, c.want == "", errors.Is(err, httplimit.ErrNoKey), "%+v: %v", c, err)
	}
}

// TestDescribe_Envoys: networks of clients, and values that are there if headers fit.
func TestDescribe_Envoys(t *testing.T) {
	set := load(t, `domain: d
http:
- actions: [{masked_remote_address: {v4_prefix_mask_len: 16, v6_prefix_mask_len: 48}}]
- actions: [{masked_remote_address: {}}]
- actions: [{header_value_match: {descriptor_value: a, headers: [{name: x-kind, exact_match: 'a,b'}, {name: ':method', exact_match: GET}, {name: host, suffix_match: .example}]}}]
- actions: [{header_value_match: {descriptor_key: k, descriptor_value: no, expect_match: false, headers: [{name: x-kind, present_match: true}]}}]
`)
	client, err := httplimit.ByRemoteIP(httplimit.IPConfig{})
	require.NoError(t, err)
	d := NewDescriber(set.Actions("d"), client)
	describe := func(peer, method, host string, kinds ...string) (out []string) {
		r := httptest.NewRequest(method, "http://"+host+"/", nil)
		r.RemoteAddr = peer
		r.Header["X-Kind"] = kinds
		if kinds == nil {
			delete(r.Header, "X-Kind")
		}
		var req rules.Request
		_, err := d.Describe(r, &req, nil)
		require.NoError(t, err)
		for _, one := range req.Descriptors {
			for _, e := range one.Entries {
				out = append(out, e.Key+"="+e.Value)
			}
		}
		return out
	}
	const masked = "masked_remote_address="
	require.Equal(t, []string{masked + "192.0.0.0/16", masked + "192.0.2.1/32", "k=no"}, describe("192.0.2.1:5", "GET", "h.example"))
	require.Equal(t, []string{masked + "2001:db8:1::/48", masked + "2001:db8:1:2::/64", "header_match=a"}, describe("[2001:db8:1:2:3::4]:5", "GET", "h.example", "a", "b"))
	require.Equal(t, []string{masked + "192.0.0.0/16", masked + "192.0.2.1/32"}, describe("192.0.2.1:5", "POST", "h.example", "a", "b"))
	require.Equal(t, []string{masked + "192.0.0.0/16", masked + "192.0.2.1/32"}, describe("192.0.2.1:5", "GET", "h.test", "a", "b"))

	d = NewDescriber(set.Actions("d"), func(*http.Request) (string, error) { return "ann", nil })
	_, err = d.Describe(httptest.NewRequest("GET", "/", nil), new(rules.Request), nil)
	require.ErrorIs(t, err, httplimit.ErrBadKey)
}

// deafStore does not answer.
type deafStore struct{}

func (deafStore) Open(rules.StoreLimit) (rules.StoreCounter, error)   { return deafStore{}, nil }
func (deafStore) Close()                                              {}
func (deafStore) Decide([]rules.StoreCall) error                      { return errors.New("deaf") }
func (deafStore) DecideAll([]rules.StoreCall) (denied int, err error) { return -1, errors.New("deaf") }

// TestNew_Store: a request that a Store does not answer for is denied with 503.
func TestNew_Store(t *testing.T) {
	engine, err := rules.New(load(t, "domain: d\ndescriptors:\n- {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 5}}\n"), rules.Config{Store: deafStore{}})
	require.NoError(t, err)
	limit, err := New(Config{Engine: engine, Domain: "d"})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}
