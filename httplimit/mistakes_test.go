package httplimit_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// logged returns what is logged while f runs.
func logged(f func()) string {
	var text bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	f()
	return text.String()
}

// manyRequests are enough that one of them is looked at: all but one in 10^28 times.
const manyRequests = 1000

var trustingOne = httplimit.IPConfig{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, Header: "CF-Connecting-IP"}

// A proxy that nobody has named puts all of its clients into one budget. That is said once,
// or to a hook for each request.
func TestByRemoteIP_AProxyThatNobodyNamed(t *testing.T) {
	for _, c := range []httplimit.IPConfig{{}, trustingOne} {
		for _, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "CF-Connecting-IP"} {
			want := header != "CF-Connecting-IP" || c.Header != ""
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set(header, "203.0.113.7")
			var told []string
			c.OnUntrustedProxy = nil
			logs := sluice.Must(httplimit.ByRemoteIP(c))
			c.OnUntrustedProxy = func(got *http.Request, header string) {
				assert.Same(t, r, got)
				told = append(told, header)
			}
			tells := sluice.Must(httplimit.ByRemoteIP(c))
			ask := func(f httplimit.KeyFunc) {
				key, err := f(r)
				require.NoError(t, err)
				require.Equal(t, "192.0.2.1", key)
			}
			text := logged(func() {
				for range manyRequests {
					ask(logs)
				}
			})
			assert.Empty(t, logged(func() { ask(tells); ask(tells) }))
			if !want {
				assert.Empty(t, text)
				assert.Empty(t, told)
				continue
			}
			assert.Equal(t, 1, strings.Count(text, "\n"), text)
			assert.Contains(t, text, "level=WARN")
			assert.Contains(t, text, "peer=192.0.2.1:1234 header="+http.CanonicalHeaderKey(header))
			assert.Contains(t, text, "IPConfig.TrustedProxies")
			assert.Equal(t, []string{http.CanonicalHeaderKey(header), http.CanonicalHeaderKey(header)}, told)
		}
	}
}

// A trusted proxy that names no client puts all of its clients into one budget. That is said once, or to a hook for each
// request.
func TestByRemoteIP_ATrustedProxyWithoutTheHeader(t *testing.T) {
	for _, value := range []string{"", " "} { // none, and an empty one
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.1:80"
		if value != "" {
			r.Header.Set("CF-Connecting-IP", value)
		}
		c, told := trustingOne, 0
		logs := sluice.Must(httplimit.ByRemoteIP(c))
		c.OnMissingHeader = func(got *http.Request) { assert.Same(t, r, got); told++ }
		tells := sluice.Must(httplimit.ByRemoteIP(c))
		ask := func(f httplimit.KeyFunc) {
			key, err := f(r)
			require.NoError(t, err)
			require.Equal(t, "10.0.0.1", key)
		}
		text := logged(func() { ask(logs); ask(logs) })
		assert.Equal(t, 1, strings.Count(text, "\n"), text)
		assert.Contains(t, text, "level=WARN")
		assert.Contains(t, text, "peer=10.0.0.1:80 header=Cf-Connecting-Ip")
		assert.Contains(t, text, "IPConfig.RequireHeader")
		assert.Empty(t, logged(func() { ask(tells); ask(tells) }))
		assert.Equal(t, 2, told)

		c.OnMissingHeader, c.RequireHeader = nil, true
		required := sluice.Must(httplimit.ByRemoteIP(c))
		assert.Empty(t, logged(func() {
			_, err := required(r)
			require.ErrorIs(t, err, httplimit.ErrBadKey)
		}))
		c.OnMissingHeader = func(*http.Request) {}
		_, err := httplimit.ByRemoteIP(c)
		require.ErrorContains(t, err, "IPConfig.OnMissingHeader: is set without TrustedProxies, or with RequireHeader")
		_, err = httplimit.ByRemoteIP(httplimit.IPConfig{OnMissingHeader: c.OnMissingHeader})
		require.ErrorContains(t, err, "IPConfig.OnMissingHeader")
	}
}

// Nothing is said of trusted proxies that name their clients, nor of clients without such a header.
func TestByRemoteIP_NothingIsSaidOfWhatIsInOrder(t *testing.T) {
	c := trustingOne
	c.OnUntrustedProxy = func(*http.Request, string) { t.Error("told") }
	c.OnMissingHeader = func(*http.Request) { t.Error("told") }
	f := sluice.Must(httplimit.ByRemoteIP(c))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	_, err := f(r)
	require.NoError(t, err)
	r.RemoteAddr = "10.0.0.1:80"
	r.Header.Set("CF-Connecting-IP", "203.0.113.7")
	r.Header.Set("X-Forwarded-For", "203.0.113.8")
	key, err := f(r)
	require.NoError(t, err)
	assert.Equal(t, "203.0.113.7", key)
}

// Three tiers look at one request, and tell once.
func TestIPTiers_TellOnceOfAProxy(t *testing.T) {
	told := 0
	policies, err := httplimit.IPTiers(httplimit.IPConfig{OnUntrustedProxy: func(*http.Request, string) { told++ }}, sluice.Config{Limit: sluice.PerSecond(1)}, 4)
	require.NoError(t, err)
	get(wrap(t, httplimit.Config{Policies: policies}, ok200), "X-Forwarded-For", "203.0.113.7")
	assert.Equal(t, 1, told)

	told = 0
	c := trustingOne
	c.OnMissingHeader = func(*http.Request) { told++ }
	policies, err = httplimit.IPTiers(c, sluice.Config{Limit: sluice.PerSecond(1)}, 4)
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:80"
	wrap(t, httplimit.Config{Policies: policies}, ok200).ServeHTTP(httptest.NewRecorder(), r)
	assert.Equal(t, 1, told)
}

// A middleware on a router and on one of its routes counts a request twice, also where the
// router makes copies of it.
func TestMiddleware_ARequestCountedTwice(t *testing.T) {
	copies := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r.WithContext(t.Context())) })
	}
	for _, hook := range []bool{false, true} {
		told := 0
		c := httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerHour(10_000), newClock()), Key: oneKey}}}
		if hook {
			c.OnCountedTwice = func(r *http.Request) { assert.Equal(t, "/twice", r.URL.Path); told++ }
		}
		limit, err := httplimit.New(c)
		require.NoError(t, err)
		mux := http.NewServeMux()
		mux.Handle("/once", copies(ok200))
		mux.Handle("/twice", http.StripPrefix("", copies(limit.Handler(ok200))))
		handler := limit.Handler(mux)
		ask := func(path string) {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}
		text := logged(func() {
			for range 3 {
				ask("/once")
			}
		})
		assert.Empty(t, text)
		text = logged(func() {
			for range 3 {
				ask("/twice")
			}
		})
		if hook {
			assert.Empty(t, text)
			assert.Equal(t, 3, told)
			for range 2000 {
				ask("/once")
			}
			ask("/twice")
			assert.Equal(t, 4, told, "a hook is told for good")
			continue
		}
		assert.Equal(t, 1, strings.Count(text, "\n"), text)
		assert.Contains(t, text, "level=WARN")
		assert.Contains(t, text, "path=/twice")
	}
}

// Requests that run at once, panic, or come one after the other are not the same one, nor
// are two middlewares that share a limiter.
func TestMiddleware_RequestsCountedOnce(t *testing.T) {
	c := httplimit.Config{
		Policies:       []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerHour(10_000), newClock()), Key: oneKey}},
		OnCountedTwice: func(*http.Request) { t.Error("told") },
	}
	inner := wrap(t, c, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
	}))
	handler := wrap(t, c, inner)
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for range 200 {
				get(handler, "User", fmt.Sprint(g))
			}
		})
	}
	group.Wait()
	r := httptest.NewRequest(http.MethodGet, "/panic", nil)
	for range 2 { // the same header map, for requests one after the other
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
	}

	// Requests that were made by hand need not have a header.
	var depth int
	var nested http.Handler
	nested = wrap(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if depth++; depth == 1 {
			nested.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: r.URL})
		}
	}))
	nested.ServeHTTP(httptest.NewRecorder(), &http.Request{Method: http.MethodGet, URL: r.URL})
	assert.Equal(t, 2, depth)
}
