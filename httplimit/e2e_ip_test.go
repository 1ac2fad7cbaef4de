package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// forgeries are headers in which clients try to be somebody else.
var forgeries = []http.Header{
	{},
	{"X-Forwarded-For": {"203.0.113.1"}},
	{"X-Forwarded-For": {"203.0.113.2, 127.0.0.1"}},
	{"X-Forwarded-For": {"203.0.113.3", "203.0.113.4"}},
	{"X-Forwarded-For": {"127.0.0.1"}},
	{"X-Forwarded-For": {strings.Repeat("203.0.113.5, ", 500)}},
	{"Forwarded": {`for=203.0.113.6;by="`}},
	{"Forwarded": {"for=203.0.113.7, for=127.0.0.1"}},
	{"X-Real-Ip": {"203.0.113.8"}},
	{"Cf-Connecting-Ip": {"203.0.113.9"}, "True-Client-Ip": {"203.0.113.9"}, "X-Client-Ip": {"203.0.113.9"}},
	{"X-Forwarded-For": {"\""}, "X-Real-Ip": {""}},
}

// send sends a GET with a header, and returns the status.
func send(t *testing.T, client *http.Client, target string, header http.Header) int {
	req, err := http.NewRequest(http.MethodGet, target, nil)
	if !assert.NoError(t, err) {
		return 0
	}
	req.Header = header.Clone()
	resp, err := client.Do(req)
	if !assert.NoError(t, err) {
		return 0
	}
	_, err = io.Copy(io.Discard, resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// A tally counts statuses.
type tally struct {
	mu sync.Mutex
	of map[string]map[int]int
}

func (c *tally) add(who string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]map[int]int{}
	}
	if c.of[who] == nil {
		c.of[who] = map[int]int{}
	}
	c.of[who][status]++
}

// Whatever a client that comes directly puts into its headers, it is one client: of all
// its requests, many at once, exactly the promised number is served.
func TestEndToEnd_ForgedHeadersChangeNothing(t *testing.T) {
	const burst, clients, each = 25, 8, 11
	for name, ip := range map[string]httplimit.IPConfig{
		"no proxies":      {},
		"X-Forwarded-For": {TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "X-Forwarded-For"},
		"Forwarded":       {TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "Forwarded"},
		"X-Real-IP":       {TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "X-Real-IP"},
	} {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/http2=%v", name, h2), func(t *testing.T) {
				limiter := gcra(t, sluice.PerHour(burst), newClock())
				client, target := serve(t, h2, wrap(t, httplimit.Config{
					Policies: []httplimit.Policy{{Name: "ip", Limiter: limiter, Key: sluice.Must(httplimit.ByRemoteIP(ip))}},
				}, ok200))
				var got tally
				var group sync.WaitGroup
				for c := range clients {
					group.Go(func() {
						for i := range each {
							got.add("", send(t, client, target, forgeries[(c+i)%len(forgeries)]))
						}
					})
				}
				group.Wait()
				assert.Equal(t, map[int]int{200: burst, 429: clients*each - burst}, got.of[""])
				assert.Equal(t, 1, limiter.Len())
			})
		}
	}
}

// Behind a proxy that is trusted, clients are told apart, whatever they write in front
// of what the proxy writes: each gets exactly its budget, in whichever of its texts the
// address comes. IPv4 clients are each their own, also where the proxy writes them in
// IPv6; an IPv6 client is its /64.
func TestEndToEnd_ClientsBehindATrustedProxy(t *testing.T) {
	const burst, each = 5, 4
	clients := map[string][]string{
		"192.0.2.1": {"192.0.2.1", "192.0.2.1:4711", "::ffff:192.0.2.1", "[::FFFF:c000:0201]:80", "[0:0:0:0:0:ffff:192.0.2.1]"},
		"192.0.2.2": {"192.0.2.2", "::ffff:c000:202", "[::ffff:192.0.2.2]"},
		"NAT64":     {"64:ff9b::192.0.2.1", "[64:FF9B:0::c000:201]:80"},
		"/64":       {"2001:db8::1", "[2001:DB8:0:0::2]:4711", "2001:db8::3%eth0", "2001:db8:0:0:ffff:ffff:ffff:ffff"},
		"next /64":  {"2001:db8:0:1::1"},
		"link":      {"fe80::1%eth0", "[fe80::1%eth1]:1", "fe80::2"},
	}
	for _, h2 := range []bool{false, true} {
		var heard sync.Map
		client, target := serve(t, h2, wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "ip", Limiter: gcra(t, sluice.PerHour(burst), newClock()), Key: sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{
				TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
				Header:         "X-Forwarded-For",
			}))}},
		}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { heard.Store(r.Proto, true) })))
		backend, err := url.Parse(target)
		require.NoError(t, err)
		// The test's clients all have one address: the proxy takes theirs from a header, and
		// appends it as a proxy appends that of its peer.
		proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: client.Transport, ErrorLog: quiet, Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(backend)
			r.Out.Header["X-Forwarded-For"] = append(r.In.Header["X-Forwarded-For"], r.In.Header.Get("Peer"))
		}})
		defer proxy.Close()

		var got tally
		var group sync.WaitGroup
		requests := map[string]int{}
		for who, texts := range clients {
			for i := range texts {
				requests[who] += each
				group.Go(func() {
					for n := range each {
						header := forgeries[(i+n)%len(forgeries)].Clone()
						header.Set("Peer", texts[(i+n)%len(texts)])
						got.add(who, send(t, http.DefaultClient, proxy.URL, header))
					}
				})
			}
		}
		group.Wait()
		for who := range clients {
			want := map[int]int{200: burst, 429: requests[who] - burst}
			if requests[who] < burst {
				want = map[int]int{200: requests[who]}
			}
			assert.Equal(t, want, got.of[who], "%s, http2=%v", who, h2)
		}
		_, ok := heard.Load(map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2])
		assert.True(t, ok)
	}
}

// Whoever owns a /48 gets sixteen times what one network gets, and an IPv4 client what
// it would get alone, through a real proxy and all of the middleware.
func TestEndToEnd_Tiers(t *testing.T) {
	policies, err := httplimit.IPTiers(httplimit.IPConfig{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		Header:         "X-Real-IP",
	}, sluice.Config{Limit: sluice.PerHour(2), Clock: newClock()}, 4)
	require.NoError(t, err)
	client, target := serve(t, false, wrap(t, httplimit.Config{Policies: policies, Headers: allHeaders}, ok200))
	count := func(requests int, address func(int) string) (served int) {
		for i := range requests {
			if send(t, client, target, http.Header{"X-Real-Ip": {address(i)}}) == http.StatusOK {
				served++
			}
		}
		return served
	}
	assert.Equal(t, 2, count(5, func(i int) string { return fmt.Sprintf("2001:db8:1::%x", i) }), "a /64")
	assert.Equal(t, 8-2, count(64, func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i) }), "the rest of its /56")
	assert.Equal(t, 32-8, count(256, func(i int) string { return fmt.Sprintf("2001:db8:1:%x00::1", i) }), "the rest of the /48")
	assert.Equal(t, 60, count(60, func(i int) string { return fmt.Sprintf("192.0.2.%d", i/2) }), "IPv4 neighbours")
}
