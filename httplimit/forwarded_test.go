package httplimit

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The proxies of these tests are in 10.0.0.0/8 and 2001:db8:a::/48.
func behindProxies(header string) IPConfig {
	return IPConfig{TrustedProxies: prefixes("10.0.0.0/8", "2001:db8:a::/48"), Header: header}
}

const proxy = "10.0.0.1:80"

func TestForwarded_HeadersOfAnUntrustedPeerDoNotMatter(t *testing.T) {
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "CF-Connecting-IP"} {
		f := sluice.Must(ByRemoteIP(behindProxies(header)))
		for _, value := range []string{"", "203.0.113.77", "10.0.0.2", "for=203.0.113.77", "unknown", `"`, ",", strings.Repeat("x", 1<<20), strings.Repeat(",", 1<<20)} {
			r := fromPeer("192.0.2.1:4711", header, value, header, value, "X-Forwarded-For", value)
			require.Equal(t, "192.0.2.1", keyOf(t, f, r))
		}
	}
}

func TestForwarded_OnlyTheConfiguredHeaderIsRead(t *testing.T) {
	f := sluice.Must(ByRemoteIP(behindProxies("x-real-ip")))
	r := fromPeer(proxy, "X-Forwarded-For", "6.6.6.6", "Forwarded", "for=6.6.6.6", "CF-Connecting-IP", "6.6.6.6", "X-Real-Ip", "203.0.113.77")
	require.Equal(t, "203.0.113.77", keyOf(t, f, r))
}

// A linesCase is the lines of a header and the key, or "" for a header that is refused.
type linesCase struct {
	name  string
	lines []string
	want  string
}

func checkLines(t *testing.T, header string, cases []linesCase) {
	t.Helper()
	f := sluice.Must(ByRemoteIP(behindProxies(header)))
	for _, c := range cases {
		r := fromPeer(proxy)
		r.Header[http.CanonicalHeaderKey(header)] = c.lines
		checkKey(t, f, r, c.want, c.name)
	}
}

func TestForwarded_XForwardedFor(t *testing.T) {
	checkLines(t, "X-Forwarded-For", []linesCase{
		{"one hop", []string{"203.0.113.77"}, "203.0.113.77"},
		{"spoofed", []string{"6.6.6.6, 203.0.113.77"}, "203.0.113.77"},
		{"spoofed as a proxy", []string{"6.6.6.6, 10.0.0.9, 203.0.113.77"}, "203.0.113.77"},
		{"two proxies", []string{"6.6.6.6, 203.0.113.77, 10.0.0.2"}, "203.0.113.77"},
		{"proxies of both families", []string{"6.6.6.6, 203.0.113.77, 2001:DB8:A::1, 10.0.0.2"}, "203.0.113.77"},
		{"mapped proxy", []string{"203.0.113.77, ::ffff:10.0.0.2"}, "203.0.113.77"},
		{"proxy with port", []string{"203.0.113.77:1234, [2001:db8:a::1]:80, 10.0.0.2:80"}, "203.0.113.77"},
		{"untrusted address behind a proxy", []string{"203.0.113.77, 192.0.2.9, 10.0.0.2"}, "192.0.2.9"},
		{"all are trusted", []string{"10.0.0.4, 10.0.0.3, 10.0.0.2"}, "10.0.0.4"},
		{"no space", []string{"6.6.6.6,203.0.113.77,10.0.0.2"}, "203.0.113.77"},
		{"tabs", []string{"6.6.6.6\t,\t203.0.113.77\t,\t10.0.0.2\t"}, "203.0.113.77"},
		{"IPv6", []string{"2001:db8:b::1, 10.0.0.2"}, "2001:db8:b::/64"},
		{"two lines", []string{"6.6.6.6", "203.0.113.77"}, "203.0.113.77"},
		{"chain over lines", []string{"6.6.6.6, 203.0.113.77", "10.0.0.3", "10.0.0.2"}, "203.0.113.77"},
		{"line of its own on the left", []string{"", "203.0.113.77"}, "203.0.113.77"},
		{"garbage on the left", []string{`unknown, _x, ", [, 6.6.6, 203.0.113.77`}, "203.0.113.77"},
		{"garbage line on the left", []string{`"`, "203.0.113.77, 10.0.0.2"}, "203.0.113.77"},
		{"empty elements on the left", []string{" ,,,, 203.0.113.77"}, "203.0.113.77"},

		{"empty element on the right", []string{"6.6.6.6, "}, ""},
		{"empty element in the chain", []string{"6.6.6.6, , 10.0.0.2"}, ""},
		{"empty line on the right", []string{"6.6.6.6", ""}, ""},
		{"empty lines", []string{"", ""}, ""},
		{"comma alone", []string{","}, ""},
		{"unknown", []string{"6.6.6.6, unknown, 10.0.0.2"}, ""},
		{"obfuscated", []string{"6.6.6.6, _hidden"}, ""},
		{"unix peer of nginx", []string{"6.6.6.6, unix:"}, ""},
		{"leading zeros", []string{"203.0.113.077"}, ""},
		{"prefix", []string{"203.0.113.0/24"}, ""},
		{"quoted", []string{`"203.0.113.77"`}, ""},
		{"quote in a zone", []string{`6.6.6.6", fe80::1%"`}, ""},
		{"separated by spaces", []string{"6.6.6.6 203.0.113.77"}, ""},
		{"separated by semicolons", []string{"6.6.6.6;203.0.113.77"}, ""},
		{"other white space", []string{"203.0.113.77\u00a0"}, ""},
		{"empty element left of all", []string{", 10.0.0.2"}, ""},
	})
}

func checkKey(t *testing.T, f KeyFunc, r *http.Request, want, name string) {
	t.Helper()
	key, err := f(r)
	assert.Equal(t, want, key, name)
	if want == "" {
		assert.ErrorIs(t, err, ErrBadKey, name)
	} else {
		assert.NoError(t, err, name)
	}
}

func TestForwarded_RFC7239(t *testing.T) {
	checkLines(t, "Forwarded", []linesCase{
		// From RFC 7239, sections 4, 6 and 7.4.
		{"with other parameters", []string{"for=192.0.2.60;proto=http;by=203.0.113.43"}, "192.0.2.60"},
		{"quoted IPv6 with port", []string{`For="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"list", []string{"for=192.0.2.43, for=198.51.100.17;by=203.0.113.60;proto=http;host=example.com"}, "198.51.100.17"},
		{"obfuscated, RFC", []string{`for="_gazonk"`}, ""},
		{"unknown, RFC", []string{"for=unknown"}, ""},
		{"as one line or three", []string{`for=192.0.2.43,for="[2001:db8:cafe::17]"`, "for=10.0.0.9"}, "2001:db8:cafe::/64"},

		{"port", []string{`for="192.0.2.60:4711"`}, "192.0.2.60"},
		{"obfuscated port", []string{`for="192.0.2.60:_port-1"`}, "192.0.2.60"},
		{"IPv6 without port", []string{`for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::/64"},
		{"name in capitals", []string{"FOR=192.0.2.60"}, "192.0.2.60"},
		{"not first", []string{`by=_a;host="x,y;z";for=192.0.2.60;secret="\"\\"`}, "192.0.2.60"},
		{"white space", []string{" \tfor=192.0.2.60 ; proto=https\t"}, "192.0.2.60"},
		{"empty pairs", []string{";;for=192.0.2.60;;"}, "192.0.2.60"},
		{"two proxies", []string{`for=6.6.6.6, for="192.0.2.60:1", for="[2001:db8:a::1]:80", for=10.0.0.2`}, "192.0.2.60"},
		{"all are trusted", []string{"for=10.0.0.3, for=10.0.0.2"}, "10.0.0.3"},
		{"commas in quotes", []string{`for=6.6.6.6, for=192.0.2.60;host=",for=6.6.6.6,"`}, "192.0.2.60"},
		{"escaped quotes", []string{`for=6.6.6.6, for=192.0.2.60;host="\",for=6.6.6.6,\""`}, "192.0.2.60"},
		{"backslashes before the end", []string{`for=6.6.6.6, for=192.0.2.60;host=",\\"`}, "192.0.2.60"},
		{"backslashes at the beginning", []string{`for=6.6.6.6, for=192.0.2.60;host="\\\",x"`}, "192.0.2.60"},

		// A client tries to swallow, or to push aside, the hops that its proxy appends.
		{"opening quote on the left", []string{`for="6.6.6.6, for=192.0.2.60`}, "192.0.2.60"},
		{"opening quote on the left, quotes on the right", []string{`for="6.6.6.6, for="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"opening quote after a parameter", []string{`for=6.6.6.6;by=", for=192.0.2.60`}, "192.0.2.60"},
		{"backslash at the end of the left", []string{`for=6.6.6.6;by="\, for="192.0.2.60"`}, "192.0.2.60"},
		{"opening quote on the line before", []string{`for="6.6.6.6`, "for=192.0.2.60"}, "192.0.2.60"},
		{"garbage on the left", []string{"====, for=192.0.2.60, for=10.0.0.2"}, "192.0.2.60"},
	})
}

func TestForwarded_RFC7239Refuses(t *testing.T) {
	f := sluice.Must(ByRemoteIP(behindProxies("Forwarded")))
	for _, c := range []struct{ name, value string }{
		{"no for", "for=6.6.6.6, proto=https"},
		{"empty for", "for=6.6.6.6, for="},
		{"empty quoted for", `for=6.6.6.6, for=""`},
		{"two for", "for=6.6.6.6;for=192.0.2.60"},
		{"two equal for", "for=192.0.2.60;FOR=192.0.2.60"},
		{"empty element", "for=6.6.6.6, , for=10.0.0.2"},
		{"IPv6 without quotes", "for=[2001:db8:cafe::17]"},
		{"IPv6 without brackets", `for="2001:db8:cafe::17"`},
		{"port without quotes", "for=192.0.2.60:4711"},
		{"X-Forwarded-For in it", "192.0.2.60"},
		{"space before equals", "for =192.0.2.60"},
		{"space after equals", "for= 192.0.2.60"},
		{"space in between", "for=192.0.2.60 proto=https"},
		{"junk after quotes", `for="192.0.2.60"x`},
		{"quote in a token", `for=192.0.2.60;x=a"b"`},
		{"unclosed quote", `for="192.0.2.60`},
		{"closing quote alone", `for=192.0.2.60"`},
		{"quoted string without a beginning", `for=6.6.6.6, x"`},
		{"escape in the address", `for="\192.0.2.60"`},
		{"escaped closing quote", `for="192.0.2.60\"`},
		{"name that is no token", `f(o)r=x;for=192.0.2.60`},
		{"name alone", "for"},
		{"no name", "=192.0.2.60"},
	} {
		checkKey(t, f, fromPeer(proxy, "Forwarded", c.value), "", c.name)
	}
}

func TestForwarded_SingleValue(t *testing.T) {
	checkLines(t, "X-Real-IP", []linesCase{
		{"address", []string{"203.0.113.77"}, "203.0.113.77"},
		{"white space and port", []string{" [2001:db8:b::1]:80\t"}, "2001:db8:b::/64"},
		{"of a proxy", []string{"10.0.0.2"}, "10.0.0.2"},
		{"list", []string{"203.0.113.77, 203.0.113.78"}, ""},
		{"two lines", []string{"6.6.6.6", "203.0.113.77"}, ""},
		{"two equal lines", []string{"203.0.113.77", "203.0.113.77"}, ""},
		{"empty second line", []string{"203.0.113.77", ""}, ""},
		{"two empty lines", []string{"", ""}, ""},
		{"unknown", []string{"unknown"}, ""},
		{"name", []string{"localhost"}, ""},
		{"long", []string{strings.Repeat(" ", 5000) + "203.0.113.77"}, ""},
	})
}

func TestForwarded_MissingHeader(t *testing.T) {
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP"} {
		c := behindProxies(header)
		f := sluice.Must(ByRemoteIP(c))
		c.RequireHeader = true
		strict := sluice.Must(ByRemoteIP(c))
		for _, value := range []string{"", " ", "\t \t"} {
			r := fromPeer(proxy, header, value)
			require.Equal(t, "10.0.0.1", keyOf(t, f, r), "the proxy speaks for itself")
			requireKeyError(t, strict, r, ErrBadKey)
		}
		require.Equal(t, "10.0.0.1", keyOf(t, f, fromPeer(proxy)))
		requireKeyError(t, strict, fromPeer(proxy), ErrBadKey)
		require.Equal(t, "192.0.2.1", keyOf(t, strict, fromPeer("192.0.2.1:80")), "not required of clients")
	}
}

func TestForwarded_BoundOnHops(t *testing.T) {
	for header, prefix := range map[string]string{"X-Forwarded-For": "", "Forwarded": "for="} {
		f := sluice.Must(ByRemoteIP(behindProxies(header)))
		chain := func(proxies int) string { return strings.Repeat(", "+prefix+"10.0.0.2", proxies) }
		require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(proxy, header, prefix+"203.0.113.77"+chain(maxHops))))
		require.Equal(t, "10.0.0.2", keyOf(t, f, fromPeer(proxy, header, chain(maxHops)[2:])))
		requireKeyError(t, f, fromPeer(proxy, header, prefix+"203.0.113.77"+chain(maxHops+1)), ErrBadKey)
		requireKeyError(t, f, fromPeer(proxy, header, chain(1000)[2:]), ErrBadKey)

		r := fromPeer(proxy)
		for range 1000 {
			r.Header.Add(header, prefix+"10.0.0.2")
		}
		requireKeyError(t, f, r, ErrBadKey)
		r.Header.Add(header, prefix+"203.0.113.77")
		require.Equal(t, "203.0.113.77", keyOf(t, f, r), "a thousand hops of the client's own invention")
	}
}

func TestForwarded_BoundOnBytes(t *testing.T) {
	const megabyte = 1 << 20
	for header, prefix := range map[string]string{"X-Forwarded-For": "", "Forwarded": "for="} {
		f := sluice.Must(ByRemoteIP(behindProxies(header)))
		hop := prefix + "203.0.113.77"
		for _, unit := range []string{"x", ",", " ", `"`, `\`, `\"`, `",`, "for=\"", "10.0.0.2, "} {
			long := strings.Repeat(unit, megabyte/len(unit))
			requireKeyError(t, f, fromPeer(proxy, header, long), ErrBadKey)
			requireKeyError(t, f, fromPeer(proxy, header, hop, header, long), ErrBadKey)
			require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(proxy, header, long+", "+hop)))
			require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(proxy, header, long, header, hop)))
		}
		pad := strings.Repeat(" ", maxForwardedBytes-len(hop)-1)
		require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(proxy, header, "x,"+pad+hop)))
		requireKeyError(t, f, fromPeer(proxy, header, "x, "+pad+hop), ErrBadKey)
		require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(proxy, header, pad+hop)), "the same without a client's part")
		requireKeyError(t, f, fromPeer(proxy, header, " "+pad+hop), ErrBadKey)
	}
}

// A list hands out no more than its bound, whatever is in the header, and nothing to
// the left of the bound changes what it hands out.
func TestForwarded_NothingBeyondTheBoundIsRead(t *testing.T) {
	for _, unit := range []string{"x", ",", `"`, `"",`, `\"`, "\"a,b\\\\\",", "10.0.0.2,"} {
		all := strings.Repeat(unit, 3*maxForwardedBytes/len(unit))
		same := strings.Repeat("\x00", len(all)-maxForwardedBytes) + all[len(all)-maxForwardedBytes:]
		a, b := list{lines: []string{all}}, list{lines: []string{same}}
		for {
			x, more, err := a.next()
			y, moreB, errB := b.next()
			require.Equal(t, x, y)
			require.Equal(t, more, moreB)
			require.Equal(t, err, errB)
			require.LessOrEqual(t, a.read, maxForwardedBytes)
			if err != nil {
				break
			}
			require.True(t, more, "the beginning is beyond the bound")
		}
	}
}

// addressed gives the connections of a listener an address of their own.
type addressed struct {
	net.Listener
	addr net.Addr
}

type addressedConn struct {
	net.Conn
	addr net.Addr
}

func (l addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return addressedConn{c, l.addr}, err
}

func (c addressedConn) RemoteAddr() net.Addr { return c.addr }

// serve runs a server whose connections come from addr, if it is not "".
func serve(t *testing.T, h http.Handler, addr string) *url.URL {
	s := httptest.NewUnstartedServer(h)
	if addr != "" {
		s.Listener = addressed{s.Listener, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
	}
	s.Start()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return u
}

// Clients of a chain of two real proxies are told apart, and what they send does not
// change who they are.
func TestForwarded_ThroughRealProxies(t *testing.T) {
	f := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("127.0.0.0/8", "::1/128"), Header: "X-Forwarded-For"}))
	backend := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := f(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, key)
	}), "")
	forward := func(to *url.URL) http.Handler {
		return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
		}}
	}
	inner := serve(t, forward(backend), "")
	for client, want := range map[string]string{
		"203.0.113.77:4711": "203.0.113.77", "203.0.113.78:4711": "203.0.113.78",
		"[2001:db8::1]:4711": "2001:db8::/64", "[2001:db8:0:1::1]:4711": "2001:db8:0:1::/64", "[::ffff:192.0.2.1]:4711": "192.0.2.1",
	} {
		outer := serve(t, forward(inner), client)
		for _, spoofed := range [][]string{nil, {"6.6.6.6"}, {"127.0.0.1"}, {"127.0.0.1, 127.0.0.1", "127.0.0.1"}, {""}, {","}, {"unknown"}, {`"`}, {strings.Repeat("127.0.0.1, ", 5000)}} {
			r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, outer.String(), nil)
			require.NoError(t, err)
			r.Header["X-Forwarded-For"] = spoofed
			res, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, want, string(body), "client %s sends %.40q", client, spoofed)
		}
	}
}
