package surfaces

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// HTTPCannot is the Cannot of a middleware that takes a Config of httplimit, and more.
func HTTPCannot(more map[string]string) map[string]string {
	cannot := map[string]string{
		"panics in Charges": "a Transport has them",
		"panics in Client":  "httprules has it",
	}
	maps.Copy(cannot, more)
	return cannot
}

// HTTPConfig is a Setup for a middleware that takes a Config of httplimit.
func HTTPConfig(s *Setup) (c httplimit.Config) {
	c.Queue, c.Headers = s.Queue, httplimit.Headers{MaxRetryAfter: s.MaxRetryAfter, RetryJitter: s.RetryJitter}
	for _, p := range s.Policies {
		policy := httplimit.Policy{Name: p.Name, Limiter: p.Limiter, Shadow: p.FarShadow, CountsDenialsOf: p.CountsDenialsOf, Key: func(*http.Request) (string, error) { return p.Key() }}
		if s.Functions["OnMissingHeader"] {
			byIP := sluice.Must(httplimit.ByRemoteIP(s.Proxied()))
			policy.Key = func(r *http.Request) (string, error) {
				if _, err := byIP(r); err != nil {
					return "", err
				}
				return p.Key()
			}
		}
		if p.Remote != nil {
			policy.Limiter, policy.Remote = nil, p.Remote
		}
		if p.Brings != (sluice.Limit{}) {
			policy.Limit = func(*http.Request) (sluice.Limit, error) { return p.Brings, nil }
		}
		if p.Final != nil {
			policy.Settle = func(*http.Request, int) int { return *p.Final }
		}
		if s.Functions["Cost"] {
			policy.Cost = func(*http.Request) int { return p.Cost() }
		}
		if s.Functions["Limit"] {
			policy.Limit = func(*http.Request) (sluice.Limit, error) { return sluice.Limit{}, s.Called("Limit") }
		}
		c.Policies = append(c.Policies, policy)
	}
	if s.Functions["PartitionKey"] {
		c.Headers.RateLimit = httplimit.Draft11
		c.Headers.PartitionKey = func(string, string) []byte { _ = s.Called("PartitionKey"); return nil }
	}
	if s.Functions["Skip"] {
		c.Skip = func(*http.Request) bool { return s.Called("Skip") != nil }
	}
	if s.Functions["OnDecision"] {
		c.OnDecision = func(*http.Request, httplimit.Decision) { _ = s.Called("OnDecision") }
	}
	if s.Functions["OnDenied"] {
		c.OnDenied = func(http.ResponseWriter, *http.Request, httplimit.Decision) { _ = s.Called("OnDenied") }
	}
	if s.Functions["Settle"] {
		c.Settle = func(*http.Request, int) int { _ = s.Called("Settle"); return s.Final }
	}
	return c
}

// Around stands around a limit, and recovers from panics.
func Around(s *Setup, limited http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.Handler.Left()
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		limited.ServeHTTP(w, r)
	})
}

// ServeHTTP is the handler of a framework with net/http's ResponseWriter, and ends as it is told.
func ServeHTTP(s *Setup, w http.ResponseWriter) error {
	switch s.Handler.Begin() {
	case Answered:
		return ErrAnswered
	case Unanswered:
		return ErrUnanswered
	case Panics:
		panic(Panic)
	case Hijacks:
		hijack := http.NewResponseController(w).Hijack
		if h, ok := w.(http.Hijacker); ok && s.Handler.ran.Load()%2 == 0 { // the two ways that there are
			hijack = h.Hijack
		}
		conn, _, err := hijack()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+upgrade+"\r\n\r\n")
		closing := s.Handler.Closing()
		go func() { <-closing; _ = conn.Close() }()
		return nil
	case Streams:
		closing := s.Handler.Closing()
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-closing
		return nil
	case TimesOut:
		closing := s.Handler.Closing()
		s.Handler.GaveUp()
		<-closing
		return nil
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

const upgrade = "surfaces"

// Listen serves h until the test ends, and returns its URL.
func Listen(t *testing.T, h http.Handler) string {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // who panics on purpose
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// NewHandler returns a handler of net/http that ends as it is told. It answers errors. It is in a http.TimeoutHandler if it is
// to, whose time is up when the handler ends with TimesOut.
func NewHandler(s *Setup) http.Handler {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if ServeHTTP(s, w) != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	if !s.TimesOut {
		return h
	}
	timed := http.TimeoutHandler(h, time.Hour, "")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		s.Handler.OnGivingUp(cancel)
		timed.ServeHTTP(w, r.WithContext(ctx))
	})
}

// CallHTTP returns a Call of a URL, by one connection each. What is around the limit tells Left.
func CallHTTP(t *testing.T, s *Setup, url string) func(context.Context) Outcome {
	base := &http.Transport{DisableKeepAlives: true, DialContext: new(net.Dialer).DialContext}
	t.Cleanup(base.CloseIdleConnections)
	return func(ctx context.Context) Outcome { return Get(ctx, t, s, url, base.RoundTrip) }
}

// Get makes a request by roundTrip and reads the response to its end.
func Get(ctx context.Context, t *testing.T, s *Setup, url string, roundTrip func(*http.Request) (*http.Response, error)) (o Outcome) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if !assert.NoError(t, err) {
		return Outcome{Err: err}
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", upgrade)
	resp, err := roundTrip(r)
	if err != nil {
		return Outcome{Err: err}
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		o.Denied = true
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		o.RetryAfter = time.Duration(seconds) * time.Second
	case resp.StatusCode >= http.StatusBadRequest:
		o.Err = fmt.Errorf("status %s", resp.Status)
	default:
		s.Handler.Seen()
	}
	if _, err = io.Copy(io.Discard, resp.Body); o.Err == nil && !o.Denied && ctx.Err() != nil {
		o.Err = err
	}
	return o
}
