package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/go-chi/httprate"
	golimiter "github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// A middlewareSubject is a middleware that limits by remote address, with a limit that
// is never spent, the way its documentation sets it up.
type middlewareSubject struct {
	name string
	wrap func(next http.Handler) (http.Handler, error)
}

// remoteHost is the key for those that take a function of the user's and have none for
// the bare address.
func remoteHost(r *http.Request) (string, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return host, err
}

const middlewareRate = 1 << 30 // an hour

func middlewareSubjects() []middlewareSubject {
	return []middlewareSubject{
		{"none", func(next http.Handler) (http.Handler, error) { return next, nil }},
		{"sluice", sluiceMiddleware(httplimit.Headers{})},
		{"sluice, X-RateLimit", sluiceMiddleware(httplimit.Headers{XLimit: true, XRemaining: true, XReset: httplimit.ResetUnix})},
		{"sluice, RateLimit", sluiceMiddleware(httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11})},
		{"go-chi_httprate", func(next http.Handler) (http.Handler, error) {
			return httprate.LimitBy(middlewareRate, time.Hour, remoteHost)(next), nil
		}},
		{"go-chi_httprate, no headers", func(next http.Handler) (http.Handler, error) {
			return httprate.LimitBy(middlewareRate, time.Hour, remoteHost,
				httprate.WithResponseHeaders(httprate.ResponseHeaders{}))(next), nil
		}},
		{"sethvargo_go-limiter", func(next http.Handler) (http.Handler, error) {
			store, err := memorystore.New(&memorystore.Config{Tokens: middlewareRate, Interval: time.Hour})
			if err != nil {
				return nil, err
			}
			m, err := golimiter.NewMiddleware(store, golimiter.IPKeyFunc())
			if err != nil {
				return nil, err
			}
			return m.Handle(next), nil
		}},
		{"didip_tollbooth", func(next http.Handler) (http.Handler, error) {
			lim := tollbooth.NewLimiter(middlewareRate, nil)
			lim.SetIPLookups([]string{"RemoteAddr"})
			return tollbooth.LimitHandler(lim, next), nil
		}},
	}
}

func sluiceMiddleware(headers httplimit.Headers) func(next http.Handler) (http.Handler, error) {
	return func(next http.Handler) (http.Handler, error) {
		lim, err := sluice.New(sluice.Config{Limit: sluice.PerHour(middlewareRate)})
		if err != nil {
			return nil, err
		}
		limit, err := httplimit.New(httplimit.Config{
			Policies: []httplimit.Policy{{Name: "ip", Limiter: lim, Key: sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))}},
			Headers:  headers,
		})
		if err != nil {
			return nil, err
		}
		return limit.Handler(next), nil
	}
}

// discard is a ResponseWriter without a response.
type discard struct{ header http.Header }

func (w discard) Header() http.Header       { return w.header }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// BenchmarkMiddleware is one admitted request of one of 1,000 addresses, without a
// connection. "none" is the loop alone, which is in all figures. The header
// map is cleared and used again. It fails unless all requests are served.
//
//	GOWORK=off go test -run '^$' -bench Middleware .
func BenchmarkMiddleware(b *testing.B) {
	requests := make([]*http.Request, 1000)
	for i := range requests {
		requests[i] = httptest.NewRequest(http.MethodGet, "/", nil)
		requests[i].RemoteAddr = fmt.Sprintf("192.0.%d.%d:4711", 2+i/250, 1+i%250)
	}
	for _, s := range middlewareSubjects() {
		b.Run("subject="+s.name, func(b *testing.B) {
			served := 0
			handler, err := s.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
			if err != nil {
				b.Fatal(err)
			}
			w := discard{http.Header{}}
			b.ReportAllocs()
			calls := 0
			for b.Loop() {
				clear(w.header)
				handler.ServeHTTP(w, requests[calls%len(requests)])
				calls++
			}
			if served != calls {
				b.Fatalf("%d of %d requests served", served, calls)
			}
		})
	}
}
