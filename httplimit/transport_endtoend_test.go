package httplimit

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A pipeListener is a network in memory, for which time in a bubble stands still.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	dials int
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr("api.test:80") }

// dialer dials from an address.
func (l *pipeListener) dialer(from string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, from) }
}

func (l *pipeListener) dial(ctx context.Context, from string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- pipeConn{server, pipeAddr(from)}:
		l.mu.Lock()
		l.dials++
		l.mu.Unlock()
		return client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// A pipeConn has the address of its peer.
type pipeConn struct {
	net.Conn
	peer pipeAddr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.peer }

// A limitedServer has the middleware in front of a handler that returns the request's
// body, and notes how each request of an address was answered.
type limitedServer struct {
	*httptest.Server
	listener *pipeListener

	mu       sync.Mutex
	statuses map[string][]int
}

func newLimitedServer(t *testing.T, c Config, limit sluice.Limit, protocols *http.Protocols) *limitedServer {
	t.Helper()
	s := &limitedServer{listener: newPipeListener(), statuses: map[string][]int{}}
	c.Policies = []Policy{{Name: "default", Limiter: newLimiter(t, limit), Key: sluice.Must(ByRemoteIP(IPConfig{}))}}
	c.OnDecision = func(r *http.Request, d Decision) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.statuses[r.RemoteAddr] = append(s.statuses[r.RemoteAddr], max(d.Status, http.StatusOK))
	}
	middleware, err := New(c)
	require.NoError(t, err)
	s.Server = httptest.NewUnstartedServer(middleware.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})))
	s.Listener.Close()
	s.Listener, s.Config.Protocols = s.listener, protocols
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// A client that does what it is told is denied at most once a request, over HTTP/1.1 and
// HTTP/2, whichever field tells it, and with one that is told in advance never; nor does
// it dial again after a denial.
func TestEndToEnd_ClientThatObeysIsNeverDeniedTwice(t *testing.T) {
	configs := map[string]Config{
		"seconds": {},
		"date": {
			Headers: Headers{OmitRetryAfter: true},
			OnDenied: func(w http.ResponseWriter, r *http.Request, d Decision) {
				at := time.Now().Add(d.RetryAfter + time.Second - 1)
				w.Header().Set("Retry-After", at.UTC().Format(http.TimeFormat))
				WriteProblem(w, r, d)
			},
		},
		"RateLimit": {Headers: Headers{OmitRetryAfter: true, RateLimit: Draft11}},
		"settled":   {Headers: Headers{RateLimit: Draft11, RateLimitPolicy: Draft11, RetryJitter: 2 * time.Second}, Settle: func(*http.Request, int) int { return 1 }},
	}
	for name, c := range configs {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("fields=%s/http2=%v", name, http2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { obey(t, c, http2) })
			})
		}
	}
}

// obey has clients, each with a Transport of its own, send requests one after another.
func obey(t *testing.T, c Config, http2 bool) {
	const clients, each = 3, 40
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	server := newLimitedServer(t, c, sluice.Per(5, 3*time.Second), protocols)

	var wg sync.WaitGroup
	for n := range clients {
		base := &http.Transport{DialContext: server.listener.dialer(fmt.Sprintf("192.0.2.%d:4711", n)), Protocols: protocols}
		tr, err := NewTransport(base, TransportConfig{MaxRetries: 1})
		require.NoError(t, err)
		client := &http.Client{Transport: tr}
		defer client.CloseIdleConnections()
		wg.Go(func() {
			for i := range each {
				body := fmt.Sprint("request ", i)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, strings.NewReader(body))
				require.NoError(t, err)
				resp, err := client.Do(req)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				resp.Body.Close()
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.Equal(t, body, string(got))
				assert.Equal(t, http2, resp.ProtoMajor == 2)
			}
		})
	}
	wg.Wait()
	assert.Len(t, server.statuses, clients)
	for client, statuses := range server.statuses {
		denied := 0
		for i, s := range statuses {
			if s == http.StatusOK {
				continue
			}
			denied++
			assert.Equal(t, http.StatusOK, statuses[i+1], "client %s was denied twice", client)
		}
		assert.Len(t, statuses, each+denied)
		if c.Headers.RateLimit != HeaderOff {
			assert.Zero(t, denied)
		} else {
			assert.Greater(t, denied, 5, "the limit was hardly ever met")
		}
	}
	if http2 {
		// net/http now and then dials anew for a stream while another is being reset; there
		// are far more denials than that.
		assert.LessOrEqual(t, server.listener.dials, 2*clients, "denials cost connections")
	} else {
		assert.Equal(t, clients, server.listener.dials, "a denial cost a connection")
	}
}

// Many requests at once through one Transport, with the server's own limit: none denied.
func TestEndToEnd_LimiterKeepsClearOfTheServersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := sluice.PerSecond(10).WithBurst(5)
		server := newLimitedServer(t, Config{}, limit, nil)
		base := &http.Transport{DialContext: server.listener.dialer("[2001:db8::1]:4711")}
		tr, err := NewTransport(base, TransportConfig{Limiter: newLimiter(t, limit)})
		require.NoError(t, err)
		client := &http.Client{Transport: tr, Timeout: time.Minute}
		defer client.CloseIdleConnections()
		start := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				resp, err := client.Get(server.URL)
				if assert.NoError(t, err) {
					assert.Equal(t, http.StatusOK, resp.StatusCode)
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 4500*time.Millisecond, time.Since(start))
	})
}

// Client.Timeout covers the waits: one that does not fit is not begun.
func TestEndToEnd_ClientTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr, err := NewTransport(base, TransportConfig{Limiter: newLimiter(t, sluice.PerMinute(1))})
		require.NoError(t, err)
		client := &http.Client{Transport: tr, Timeout: 30 * time.Second}
		resp, err := client.Get("http://api.test/")
		require.NoError(t, err)
		resp.Body.Close()
		_, err = client.Get("http://api.test/")
		assert.Equal(t, time.Minute, limitError(t, err).RetryAfter)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		var timeout interface{ Timeout() bool }
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		assert.Zero(t, time.Since(base.start))
	})
}
