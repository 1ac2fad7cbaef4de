// Command http is a small API behind two limits: every address gets 5 requests a second
// and 20 at once, and every API key 60 a minute.
//
//	go run ./examples/http -addr localhost:8080
//	curl -i -H 'API-Key: demo' http://localhost:8080/hello
package main

import (
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	flag.Parse()
	handler, err := newHandler(sluice.NewCoarseClock(0))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening; try: curl -i -H 'API-Key: demo' http://%s/hello", *addr)
	srv := &http.Server{Addr: *addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(srv.ListenAndServe())
}

func newHandler(clock sluice.Clock) (http.Handler, error) {
	perAddress, err := sluice.New(sluice.Config{Limit: sluice.PerSecond(5).WithBurst(20), Clock: clock})
	if err != nil {
		return nil, err
	}
	perKey, err := sluice.New(sluice.Config{Limit: sluice.PerMinute(60), Clock: clock})
	if err != nil {
		return nil, err
	}
	// Clients connect directly. Behind a proxy all of them would have its address: name it
	// in TrustedProxies, and its header.
	byAddress, err := httplimit.ByRemoteIP(httplimit.IPConfig{})
	if err != nil {
		return nil, err
	}
	byAPIKey, err := httplimit.ByHeader("API-Key")
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "per-address", Limiter: perAddress, Key: byAddress},
			{Name: "per-key", Limiter: perKey, Key: byAPIKey},
		},
		OnDecision: func(r *http.Request, d httplimit.Decision) {
			if !d.Allowed {
				log.Printf("%s %s from %s: %d %v", r.Method, r.URL.Path, r.RemoteAddr, d.Status, d.Violated)
			}
		},
		Headers: httplimit.Headers{
			RateLimitPolicy: httplimit.Draft11,
			RateLimit:       httplimit.Draft11,
			RetryJitter:     2 * time.Second,
		},
	})
	if err != nil {
		return nil, err
	}
	router := chi.NewRouter()
	router.Get("/health", func(http.ResponseWriter, *http.Request) {}) // not limited
	router.With(limit.Handler).Get("/hello", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"hello": "world"}) // to a client that may be gone
	})
	return router, nil
}
