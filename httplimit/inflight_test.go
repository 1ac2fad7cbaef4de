package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

func inFlight(t testing.TB, n int) *sluice.Limiter {
	return newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(n, time.Hour), Clock: newClock()})
}

// requestsAtOnce are policies of 2 requests at once, and of 10 in all.
func requestsAtOnce(t testing.TB) (atOnce, all *sluice.Limiter, c httplimit.Config) {
	atOnce, all = inFlight(t, 2), gcra(t, sluice.PerHour(10), newClock())
	c.Policies = []httplimit.Policy{{Name: "all", Limiter: all, Key: oneKey}, {Name: "at-once", Limiter: atOnce, Key: oneKey}}
	return atOnce, all, c
}

// TestInFlight_UntilTheHandlerIsDone: a denial takes no other unit, whether it is settled or not, and however the
// handler ends.
func TestInFlight_UntilTheHandlerIsDone(t *testing.T) {
	for _, settles := range []bool{false, true} {
		atOnce, all, c := requestsAtOnce(t)
		c.Headers = httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11, XReset: httplimit.ResetDelta, XLimit: true}
		if settles {
			c.Settle = func(_ *http.Request, status int) int { return map[int]int{200: 1, 500: 0}[status] }
		}
		var inside func()
		handler := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside() }))
		depth, denied := 0, 0
		inside = func() {
			if depth++; depth < 4 {
				if w := get(handler); w.Code == http.StatusTooManyRequests {
					denied++
					require.Equal(t, "1", w.Header().Get("Retry-After"), "it is not known when a request ends")
					require.Equal(t, `"all";q=10;w=3600, "at-once";q=2;qu="concurrent-requests"`, w.Header().Get("Ratelimit-Policy"))
					require.Contains(t, w.Header().Get("Ratelimit"), `"at-once";r=0`)
					require.NotContains(t, w.Header().Get("Ratelimit"), `"at-once";r=0;t`)
					require.Equal(t, "2", w.Header().Get("X-Ratelimit-Limit"))
					require.Empty(t, w.Header().Get("X-Ratelimit-Reset"))
				}
			}
		}
		require.Equal(t, http.StatusOK, get(handler).Code)
		require.Equal(t, 1, denied)
		require.Equal(t, 8, all.Key("k").Peek(0).Remaining)
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)

		inside = func() { panic(http.ErrAbortHandler) }
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { get(handler) })
		require.Equal(t, map[bool]int{true: 8, false: 7}[settles], all.Key("k").Peek(0).Remaining)
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
	}
}

// TestInFlight_ByTheJudge: a Verdict is settled once, also without Config.Settle.
func TestInFlight_ByTheJudge(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	judge, err := httplimit.New(c)
	require.NoError(t, err)
	r := httptest.NewRequest("GET", "/", nil)
	first, second := judge.Decide(http.Header{}, r), judge.Decide(http.Header{}, r)
	third := judge.Decide(http.Header{}, r)
	require.False(t, third.Allowed)
	require.Equal(t, []string{"at-once"}, third.Violated)
	require.Equal(t, time.Second, third.RetryAfter)
	third.Settle(200)
	require.Zero(t, atOnce.Key("k").Peek(0).Remaining)
	first.Settle(200)
	first.Settle(200)
	require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
	second.Settle(0)
	require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
}

type failingRemote struct{}

func (failingRemote) Take(context.Context, string, int) (sluice.Decision, error) {
	return sluice.Decision{}, errors.New("down")
}
func (failingRemote) Refund(context.Context, string, int) error { return nil }

// TestInFlight_DeniedByARemote gives back what a Limiter has charged before.
func TestInFlight_DeniedByARemote(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	c.Policies = append(c.Policies, httplimit.Policy{Name: "remote", Remote: failingRemote{}, Key: oneKey})
	require.Equal(t, http.StatusServiceUnavailable, get(wrap(t, c, http.NotFoundHandler())).Code)
	require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
}

// TestInFlight_OverConnections: a stream counts until it ends, or its client has gone; a hijacked connection until it
// is closed, before or after the handler has returned.
func TestInFlight_OverConnections(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	c.Policies = c.Policies[1:]
	gone, conns := make(chan error, 1), make(chan net.Conn, 1)
	server := httptest.NewServer(wrap(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			fmt.Fprintln(w, "begun")
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-r.Context().Done()
			gone <- r.Context().Err()
		case "/closed":
			conn, _, err := w.(http.Hijacker).Hijack()
			assert.NoError(t, err)
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			assert.NoError(t, conn.Close())
			conns <- conn
		case "/open":
			conn, _, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			conns <- conn
		}
	})))
	defer server.Close()
	left := func() int { return atOnce.Key("k").Peek(0).Remaining }
	require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/stream", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "begun\n", line)
	require.Equal(t, 1, left())
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)
	_ = resp.Body.Close()

	for _, path := range []string{"/closed", "/open"} {
		client, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		fmt.Fprintf(client, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path)
		answer, err := bufio.NewReader(client).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, answer, "101")
		conn := <-conns
		if path == "/open" {
			for range 3 { // the handler has returned, or will
				require.Equal(t, 1, left())
			}
			require.NoError(t, conn.Close())
		}
		_, _ = io.Copy(io.Discard, client)
		require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)
		require.Error(t, conn.Close(), "twice")
		require.Equal(t, 2, left())
		_ = client.Close()
	}
}

// TestInFlight_Shadow: a policy in shadow mode counts what runs, too, and denies nothing.
func TestInFlight_Shadow(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Shadow: true, Clock: newClock()})
	var would []string
	c := httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "at-once", Limiter: atOnce, Key: oneKey}, {Name: "all", Limiter: gcra(t, sluice.PerHour(10), newClock()), Key: oneKey},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { would = append(would, d.WouldDeny...) },
	}
	var handler http.Handler
	depth := 0
	handler = wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if depth++; depth < 3 {
			require.Equal(t, 2-depth, atOnce.Key("k").Peek(0).Remaining)
			require.Equal(t, http.StatusOK, get(handler).Code)
		}
	}))
	require.Equal(t, http.StatusOK, get(handler).Code)
	require.Equal(t, []string{"at-once"}, would)
	require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
}
