package grpclimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

// tcp is the context of a call from an address.
func tcp(t *testing.T, address string, pairs ...string) context.Context {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	require.NoError(t, err)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: at, LocalAddr: &net.TCPAddr{}})
	return metadata.NewIncomingContext(ctx, metadata.Pairs(pairs...))
}

func requireKey(t *testing.T, key grpclimit.KeyFunc, ctx context.Context, want string) {
	t.Helper()
	got, err := key(ctx, grpclimit.Call{FullMethod: "/pkg.Svc/Login"})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func requireNoKey(t *testing.T, key grpclimit.KeyFunc, ctx context.Context, want error) {
	t.Helper()
	got, err := key(ctx, grpclimit.Call{FullMethod: "/pkg.Svc/Login"})
	require.ErrorIs(t, err, want)
	assert.Empty(t, got)
}

func TestByPeer(t *testing.T) {
	key := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))
	for address, want := range map[string]string{
		"192.0.2.1:1": "192.0.2.1", "192.0.2.1:65535": "192.0.2.1", "[::ffff:192.0.2.1]:1": "192.0.2.1",
		"[2001:db8::1]:1": "2001:db8::/64", "[2001:db8::2]:1": "2001:db8::/64", "[::1]:1": "::1",
	} {
		requireKey(t, key, tcp(t, address), want)
		requireKey(t, key, tcp(t, address, "x-forwarded-for", "203.0.113.9", "forwarded", "for=203.0.113.9", "x-real-ip", "203.0.113.9"), want)
	}
	zoned := &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"}
	requireKey(t, key, peer.NewContext(t.Context(), &peer.Peer{Addr: zoned}), "fe80::/64")
	served := &net.IPAddr{IP: net.IPv4(192, 0, 2, 1)} // no TCPAddr, as that of a server within net/http
	requireKey(t, key, peer.NewContext(t.Context(), &peer.Peer{Addr: served}), "192.0.2.1")

	requireNoKey(t, key, t.Context(), grpclimit.ErrNoKey)
	for _, addr := range []net.Addr{nil, &net.TCPAddr{}, &net.UnixAddr{Name: "192.0.2.1:80", Net: "unix"}} {
		requireNoKey(t, key, peer.NewContext(t.Context(), &peer.Peer{Addr: addr}), grpclimit.ErrNoKey)
	}
}

var trusted = httplimit.IPConfig{
	TrustedProxies:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	Header:           "X-Forwarded-For",
	OnUntrustedProxy: func(*http.Request, string) {},
}

func TestByPeer_BehindProxies(t *testing.T) {
	key := sluice.Must(grpclimit.ByPeer(trusted))
	for name, tt := range map[string]struct {
		peer  string
		lines []string
		want  string
	}{
		"a proxy":                        {"10.0.0.1:1", []string{"192.0.2.1"}, "192.0.2.1"},
		"two proxies":                    {"10.0.0.1:1", []string{"192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		"two proxies, one line each":     {"10.0.0.1:1", []string{"192.0.2.1", "10.0.0.2"}, "192.0.2.1"},
		"forged in front":                {"10.0.0.1:1", []string{"203.0.113.9, 192.0.2.1"}, "192.0.2.1"},
		"forged in front, on a line":     {"10.0.0.1:1", []string{"203.0.113.9", "192.0.2.1"}, "192.0.2.1"},
		"forged proxies in front":        {"10.0.0.1:1", []string{"203.0.113.9, 10.0.0.9", "192.0.2.1"}, "192.0.2.1"},
		"forged by no proxy":             {"192.0.2.7:1", []string{"203.0.113.9"}, "192.0.2.7"},
		"the proxy itself":               {"10.0.0.1:1", nil, "10.0.0.1"},
		"garbage in front":               {"10.0.0.1:1", []string{"\"", "192.0.2.1"}, "192.0.2.1"},
		"a long list in front":           {"10.0.0.1:1", []string{strings.Repeat("203.0.113.9,", 1<<16), "192.0.2.1"}, "192.0.2.1"},
		"another spelling of the client": {"10.0.0.1:1", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			var pairs []string
			for _, line := range tt.lines {
				pairs = append(pairs, "x-forwarded-for", line)
			}
			requireKey(t, key, tcp(t, tt.peer, pairs...), tt.want)
			requireKey(t, key, tcp(t, tt.peer, append(pairs, "forwarded", "for=203.0.113.9", "x-real-ip", "203.0.113.9")...), tt.want)
		})
	}
	c := trusted
	c.TrustedProxies, c.OnUntrustedProxy = append(c.TrustedProxies, netip.MustParsePrefix("fe80::/10")), nil
	key = sluice.Must(grpclimit.ByPeer(c))
	for range 100 { // whether the call is one of those that are looked at, or not
		requireKey(t, key, tcp(t, "[fe80::1%lo]:1", "x-forwarded-for", "192.0.2.1"), "192.0.2.1")
		requireKey(t, key, tcp(t, "[::ffff:10.0.0.1]:1", "x-forwarded-for", "192.0.2.1"), "192.0.2.1")
		requireKey(t, key, tcp(t, "192.0.2.7:1", "x-forwarded-for", "192.0.2.1"), "192.0.2.7")
	}
	for _, garbage := range []string{"unknown", "192.0.2.1,", "192.0.2", strings.Repeat("10.0.0.1,", 500)} {
		requireNoKey(t, key, tcp(t, "10.0.0.1:1", "x-forwarded-for", garbage), grpclimit.ErrBadKey)
	}
}

func TestByPeer_OwnHeader(t *testing.T) {
	c := trusted
	c.Header = "CF-Connecting-IP"
	key := sluice.Must(grpclimit.ByPeer(c))
	requireKey(t, key, tcp(t, "10.0.0.1:1", "cf-connecting-ip", "192.0.2.1", "x-forwarded-for", "203.0.113.9"), "192.0.2.1")
	requireNoKey(t, key, tcp(t, "10.0.0.1:1", "cf-connecting-ip", "203.0.113.9", "cf-connecting-ip", "192.0.2.1"), grpclimit.ErrBadKey)
}

// Nothing of a call is left for the next one, and the hook is told.
func TestByPeer_CallsDoNotMix(t *testing.T) {
	var told []string
	c := trusted
	c.OnUntrustedProxy = func(r *http.Request, header string) { told = append(told, r.RemoteAddr+" "+header) }
	key := sluice.Must(grpclimit.ByPeer(c))
	for range 100 {
		requireKey(t, key, tcp(t, "10.0.0.1:1", "x-forwarded-for", "192.0.2.1"), "192.0.2.1")
		requireKey(t, key, tcp(t, "10.0.0.2:1"), "10.0.0.2")
	}
	assert.Empty(t, told)
	requireKey(t, key, tcp(t, "192.0.2.7:1", "x-real-ip", "203.0.113.9"), "192.0.2.7")
	assert.Equal(t, []string{"192.0.2.7:1 X-Real-Ip"}, told)
}

// A proxy that nobody has named is logged, once, though few calls are looked at.
func TestByPeer_AProxyWithoutANameIsLogged(t *testing.T) {
	var log bytes.Buffer
	usual := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(usual)
	key, ctx := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{})), tcp(t, "192.0.2.7:1", "x-forwarded-for", "203.0.113.9")
	for range 20_000 { // none of them, with a chance of 10^-34
		requireKey(t, key, ctx, "192.0.2.7")
	}
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "peer=192.0.2.7:1 header=X-Forwarded-For")
}

func TestByPeer_RefusesWhatHTTPLimitRefuses(t *testing.T) {
	_, err := grpclimit.ByPeer(httplimit.IPConfig{Header: "X-Forwarded-For"})
	var e *httplimit.ConfigError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "IPConfig.Header", e.Field)
}

// keyed serves a policy of a key function whose keys are noted.
func keyed(t *testing.T, key grpclimit.KeyFunc) (c grpclimit.Config, last func() string) {
	t.Helper()
	var seen atomic.Value
	seen.Store("")
	c = onePolicy(t, sluice.PerSecond(1000), nil)
	c.Policies[0].Key = func(ctx context.Context, call grpclimit.Call) (string, error) {
		k, err := key(ctx, call)
		if err != nil {
			seen.Store("error: " + err.Error())
		} else {
			seen.Store(k)
		}
		return k, err
	}
	return c, func() string { return seen.Load().(string) }
}

// Over loopback: forged metadata of a client name nobody else, and behind a proxy only the proxy's end counts.
func TestByPeer_ForgedMetadata(t *testing.T) {
	forgeries := [][]string{
		{"x-forwarded-for", "203.0.113.9"},
		{"x-forwarded-for", "203.0.113.9", "x-forwarded-for", "203.0.113.10"},
		{"X-Forwarded-For", "203.0.113.9, 127.0.0.1"},
		{"forwarded", "for=203.0.113.9"},
		{"x-real-ip", "203.0.113.9", "x-forwarded-for-bin", "203.0.113.9"},
		{":authority", "203.0.113.9"},
	}
	direct, last := keyed(t, sluice.Must(grpclimit.ByPeer(trusted)))
	client := limited(t, direct, &service{})
	for _, forged := range forgeries {
		_, _, err := empty(t, client, forged...)
		require.NoError(t, err)
		assert.Equal(t, "127.0.0.1", last())
	}
	proxied := trusted
	proxied.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	behind, last := keyed(t, sluice.Must(grpclimit.ByPeer(proxied)))
	client = limited(t, behind, &service{})
	for _, forged := range forgeries {
		_, _, err := empty(t, client, append(forged, "x-forwarded-for", "192.0.2.1")...) // as the proxy appends
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.1", last())
	}
}

func TestByPeer_UnixSocket(t *testing.T) {
	for _, trust := range []bool{false, true} {
		c := trusted
		c.TrustUnix = trust
		conf, last := keyed(t, sluice.Must(grpclimit.ByPeer(c)))
		conf.OnKeyError = grpclimit.KeyErrorSkip
		server := grpc.NewServer(newJudge(t, conf).ServerOptions()...)
		testpb.RegisterTestServiceServer(server, &service{})
		path := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", path)
		require.NoError(t, err)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		_, _, err = empty(t, dial(t, "unix:"+path), "x-forwarded-for", "203.0.113.9", "x-forwarded-for", "192.0.2.1")
		require.NoError(t, err)
		if trust {
			assert.Equal(t, "192.0.2.1", last())
		} else {
			assert.Contains(t, last(), "no key")
		}
	}
}

func TestByMetadata(t *testing.T) {
	key := sluice.Must(grpclimit.ByMetadata("X-API-Key"))
	requireKey(t, key, tcp(t, "192.0.2.1:1", "x-api-key", "ann"), "ann")
	requireKey(t, key, tcp(t, "192.0.2.1:1", "x-api-key", " \tann "), "ann")
	requireKey(t, key, tcp(t, "192.0.2.1:1", "x-api-key", "ann, bob"), "ann, bob")
	for _, pairs := range [][]string{nil, {"x-api-key", ""}, {"x-api-key", " "}, {"x-api-key-bin", "ann"}, {"x_api_key", "ann"}} {
		requireNoKey(t, key, tcp(t, "192.0.2.1:1", pairs...), grpclimit.ErrNoKey)
	}
	requireNoKey(t, key, tcp(t, "192.0.2.1:1", "x-api-key", "ann", "x-api-key", "ann"), grpclimit.ErrBadKey)
	requireNoKey(t, key, t.Context(), grpclimit.ErrNoKey)
}

// Over loopback: bytes are bytes, however they are encoded, and a space is one.
func TestByMetadata_Binary(t *testing.T) {
	c, last := keyed(t, sluice.Must(grpclimit.ByMetadata("id-bin")))
	address := serve(t, &service{}, newJudge(t, c).ServerOptions()...)
	client := dial(t, address)
	for _, bytes := range []string{"\x00\xff ", " a ", "\n", strings.Repeat("\x80", 100)} {
		_, _, err := empty(t, client, "id-bin", bytes)
		require.NoError(t, err)
		assert.Equal(t, bytes, last())
	}
	for _, encoded := range []string{"YQ==", "YQ", "YR"} {
		resp := overHTTP2(t, address, testpb.TestService_EmptyCall_FullMethodName, http.Header{"Id-Bin": {encoded}})
		assert.Equal(t, "0", resp.Trailer.Get("Grpc-Status"))
		assert.Equal(t, "a", last(), encoded)
	}
	_, _, err := empty(t, client, "id-bin", "a", "id-bin", "b")
	assert.Error(t, err)
	assert.Contains(t, last(), "more than one")
}

// Values of any length become keys of bounded length, each its own, and none can be forged.
func TestByMetadata_LongValuesAreHashed(t *testing.T) {
	c, last := keyed(t, sluice.Must(grpclimit.ByMetadata("token")))
	var charged string
	c.Policies[0].Limiter = gcra(t, sluice.DenyAll, newClock())
	c.OnDecision = func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { charged = d.Charges[0].Key }
	client := limited(t, c, &service{})
	seen := map[string]string{}
	long := strings.Repeat("a", 1<<20)
	hashed := ""
	for i, value := range []string{
		long, long[:1<<19], long[:4097], long[:4096] + "b", "sha256:", "", long[:4096], "x-sha256:",
	} {
		if value == "" { // what the first one has become
			value = hashed
		}
		_, _, err := empty(t, client, "token", value)
		require.Error(t, err)
		assert.Equal(t, last(), charged)
		assert.NotContains(t, seen, last(), "case %d", i)
		seen[last()] = value
		if i < 6 {
			require.Len(t, last(), len("sha256:")+64)
			assert.True(t, strings.HasPrefix(last(), "sha256:"))
		} else {
			assert.Equal(t, value, last())
		}
		if i == 0 {
			hashed = last()
		}
	}
	_, _, err := empty(t, client, "token", long)
	require.Error(t, err)
	assert.Equal(t, hashed, last(), "one value has one key")
	// echo -n sha256: | sha256sum
	assert.Equal(t, "sha256:", seen["sha256:9fd714ce6f63c3b320c944b70e80a5d105fd2f3e2d30ae2fa81370e223f50d07"])
}

func TestByMetadata_NamesAreValidated(t *testing.T) {
	for name, want := range map[string]string{
		"": "is no metadata key", "a b": "is no metadata key", ":authority": "is no metadata key", "ключ": "is no metadata key",
		"grpc-timeout": "for gRPC itself", "Authorization": "want ByBearerToken", "cookie": "cookie has all cookies",
		"X-Forwarded-For": "want ByPeer", "forwarded": "want ByPeer",
	} {
		_, err := grpclimit.ByMetadata(name)
		var e *grpclimit.ConfigError
		require.ErrorAs(t, err, &e, name)
		assert.Equal(t, "ByMetadata", e.Field)
		assert.Contains(t, e.Reason, want)
	}
}

func TestByBearerToken(t *testing.T) {
	key := grpclimit.ByBearerToken()
	for _, value := range []string{"Bearer abc", "bearer  abc", " BEARER abc "} {
		requireKey(t, key, tcp(t, "192.0.2.1:1", "authorization", value), "abc")
	}
	requireNoKey(t, key, tcp(t, "192.0.2.1:1"), grpclimit.ErrNoKey)
	requireNoKey(t, key, tcp(t, "192.0.2.1:1", "authorization", "Basic YTpi"), grpclimit.ErrNoKey)
	requireNoKey(t, key, tcp(t, "192.0.2.1:1", "authorization", "Bearer a", "authorization", "Bearer b"), grpclimit.ErrBadKey)
	requireNoKey(t, key, tcp(t, "192.0.2.1:1", "authorization", "Bearer "+strings.Repeat("a", 4097)), grpclimit.ErrKeyTooLong)
}

func TestByMethod(t *testing.T) {
	requireKey(t, grpclimit.ByMethod(), t.Context(), "/pkg.Svc/Login")
	_, err := grpclimit.ByMethod()(t.Context(), grpclimit.Call{})
	assert.ErrorIs(t, err, grpclimit.ErrNoKey)
	c, last := keyed(t, grpclimit.ByMethod())
	client := limited(t, c, &service{})
	_, _, err = empty(t, client)
	require.NoError(t, err)
	assert.Equal(t, testpb.TestService_EmptyCall_FullMethodName, last())
	_, _, err = echo(t, client, 1)
	require.Error(t, err) // io.EOF
	assert.Equal(t, testpb.TestService_FullDuplexCall_FullMethodName, last())
}

// Where a client chooses the method, the key is bounded all the same.
func TestByMethod_OfUnknownServices(t *testing.T) {
	c, last := keyed(t, grpclimit.ByMethod())
	address := serve(t, &service{}, append(newJudge(t, c).ServerOptions(), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return nil }))...)
	overHTTP2(t, address, "/a/"+strings.Repeat("b", 8192), http.Header{})
	assert.Len(t, last(), len("sha256:")+64)
}

func TestJoin(t *testing.T) {
	user := sluice.Must(grpclimit.ByMetadata("user"))
	key := sluice.Must(grpclimit.Join(user, grpclimit.ByMethod()))
	requireKey(t, key, tcp(t, "192.0.2.1:1", "user", "ann"), "3:ann14:/pkg.Svc/Login")
	requireNoKey(t, key, tcp(t, "192.0.2.1:1"), grpclimit.ErrNoKey)
	two := sluice.Must(grpclimit.Join(user, sluice.Must(grpclimit.ByMetadata("other"))))
	seen := map[string]bool{}
	for _, pair := range [][2]string{{"a", "1:b"}, {"a1:", "b"}, {"a1", ":b"}, {"1:a", "b"}, {strings.Repeat("a", 4090), "b"}, {strings.Repeat("a", 4090), "c"}} {
		got, err := two(tcp(t, "192.0.2.1:1", "user", pair[0], "other", pair[1]), grpclimit.Call{})
		require.NoError(t, err)
		assert.False(t, seen[got])
		assert.LessOrEqual(t, len(got), grpclimit.MaxKeyLen)
		seen[got] = true
	}
	for _, funcs := range [][]grpclimit.KeyFunc{nil, {user, nil}} {
		_, err := grpclimit.Join(funcs...)
		var e *grpclimit.ConfigError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "Join", e.Field)
	}
}
