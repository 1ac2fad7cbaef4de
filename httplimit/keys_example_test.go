package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// Behind a proxy, the client is the last address in X-Forwarded-For that is not the
// proxy's own. Addresses that the client has written itself are further to the left.
func ExampleByRemoteIP() {
	key, err := httplimit.ByRemoteIP(httplimit.IPConfig{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Header:         "X-Forwarded-For",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Forwarded-For", "6.6.6.6, 2001:db8::1, 10.0.0.2")

	r.RemoteAddr = "10.0.0.1:4711" // the proxy
	fmt.Println(key(r))
	r.RemoteAddr = "192.0.2.1:4711" // somebody who has found the way around it
	fmt.Println(key(r))
	// Output:
	// 2001:db8::/64 <nil>
	// 192.0.2.1 <nil>
}

// A budget for each API key and each endpoint.
func ExampleJoin() {
	key, err := httplimit.Join(
		sluice.Must(httplimit.ByHeader("X-Api-Key")),
		httplimit.ByPattern(),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(_ http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		fmt.Println(k, errors.Is(err, httplimit.ErrNoKey))
	})
	r := httptest.NewRequest(http.MethodGet, "/items/7", nil)
	mux.ServeHTTP(httptest.NewRecorder(), r)
	r.Header.Set("X-Api-Key", "4fd2")
	mux.ServeHTTP(httptest.NewRecorder(), r)
	// Output:
	//  true
	// 4:4fd215:GET /items/{id} false
}

// Whoever owns a /48 has 65,536 networks, and sixteen times the budget of one.
func ExampleIPTiers() {
	policies, err := httplimit.IPTiers(httplimit.IPConfig{}, sluice.Config{
		Limit: sluice.PerMinute(10),
		Clock: sluice.NewManualClock(time.Now()), // stands still
	}, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	admitted := 0
	for network := range 1000 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = fmt.Sprintf("[2001:db8:1:%x::1]:4711", 65*network)
		var charges []sluice.Charge // as the middleware does
		for _, p := range policies {
			key, _ := p.Key(r)
			charges = append(charges, sluice.Charge{Key: p.Limiter.Key(key), Cost: 1})
		}
		if sluice.TakeAll(charges...).Allowed {
			admitted++
		}
	}
	fmt.Println(admitted, "of 1000")
	// Output: 160 of 1000
}
