package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// serve serves a handler through a real listener, by HTTP/1.1 or HTTP/2, and returns a
// client that speaks it.
func serve(t *testing.T, h2 bool, handler http.Handler) (*http.Client, string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(handler)
	srv.Config.ErrorLog = quiet
	if h2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv.Client(), srv.URL
}

// N clients at once get exactly the promised number of responses, over both
// protocols, with and without Settle, and every response says what is true.
func TestEndToEnd_ExactlyTheLimit(t *testing.T) {
	const clients, each, burst = 16, 8, 50
	for _, h2 := range []bool{false, true} {
		for _, settles := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%v/settle=%v", h2, settles), func(t *testing.T) {
				clock := newClock()
				c := httplimit.Config{
					Policies: []httplimit.Policy{
						{Name: "all", Limiter: gcra(t, sluice.PerHour(3600).WithBurst(burst), clock), Key: oneKey},
						{Name: "each", Limiter: newLimiter(t, sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(each), Clock: clock}), Key: byHeader("User")},
					},
					Headers: allHeaders,
				}
				if settles {
					c.Settle = func(*http.Request, int) int { return 1 }
				}
				var served, admitted, denied atomic.Int64
				client, url := serve(t, h2, wrap(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					served.Add(1)
					_, _ = io.WriteString(w, "hello")
				})))
				var group sync.WaitGroup
				for i := range clients {
					group.Go(func() {
						for range each + 1 {
							resp := request(t, client, url, strconv.Itoa(i))
							assert.Equal(t, h2, resp.ProtoMajor == 2)
							checkHeaders(t, resp)
							if resp.StatusCode == http.StatusOK {
								admitted.Add(1)
							} else {
								denied.Add(1)
							}
						}
					})
				}
				group.Wait()
				assert.EqualValues(t, burst, admitted.Load())
				assert.EqualValues(t, burst, served.Load())
				assert.EqualValues(t, clients*(each+1)-burst, denied.Load())
			})
		}
	}
}

func request(t *testing.T, client *http.Client, url, user string) *http.Response {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if !assert.NoError(t, err) {
		return &http.Response{Header: http.Header{}}
	}
	req.Header.Set("User", user)
	resp, err := client.Do(req)
	if !assert.NoError(t, err) {
		return &http.Response{Header: http.Header{}}
	}
	_, err = io.Copy(io.Discard, resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	return resp
}

// checkHeaders parses what has come over the wire, on 200 and on 429.
func checkHeaders(t *testing.T, resp *http.Response) {
	policies, err := parseSFList(resp.Header.Get("RateLimit-Policy"))
	assert.NoError(t, err)
	assert.Equal(t, []sfItem{
		{"all", map[string]any{"q": int64(50), "w": int64(50)}},
		{"each", map[string]any{"q": int64(8), "w": int64(60)}},
	}, policies)
	limits, err := parseSFList(resp.Header.Get("RateLimit"))
	if !assert.NoError(t, err) || !assert.Len(t, limits, 2) {
		return
	}
	assert.Equal(t, "all", limits[0].value)
	assert.Equal(t, "each", limits[1].value)
	for _, l := range limits {
		assert.GreaterOrEqual(t, l.params["r"], int64(0))
	}
	assert.Equal(t, int64(45), limits[1].params["t"], "to the full minute")
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode == http.StatusTooManyRequests {
		assert.NoError(t, err)
		assert.Positive(t, after)
		assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	} else {
		assert.Empty(t, resp.Header.Get("Retry-After"))
	}
}

// A client that waits for what Retry-After says is admitted: never denied twice.
func TestEndToEnd_RetryAfterIsEnough(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket, sluice.SlidingWindow, sluice.SlidingLog, sluice.FixedWindow} {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("algorithm=%v/http2=%v", algorithm, h2), func(t *testing.T) {
				clock := newClock()
				client, url := serve(t, h2, wrap(t, httplimit.Config{
					Policies: []httplimit.Policy{
						{Name: "short", Limiter: newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.Per(7, 13*time.Second), Clock: clock}), Key: oneKey},
						{Name: "long", Limiter: newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(20), Clock: clock}), Key: oneKey,
							Cost: func(r *http.Request) int { n, _ := strconv.Atoi(r.Header.Get("User")); return n }},
					},
					Headers: httplimit.Headers{RateLimit: httplimit.Draft11},
				}, ok200))
				denials := 0
				for i := range 150 {
					cost := strconv.Itoa(1 + i%3)
					resp := request(t, client, url, cost)
					if resp.StatusCode == http.StatusOK {
						clock.Advance(300 * time.Millisecond)
						continue
					}
					denials++
					after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
					require.NoError(t, err)
					clock.Advance(time.Duration(after) * time.Second)
					require.Equal(t, http.StatusOK, request(t, client, url, cost).StatusCode, "denied again after %d s", after)
				}
				assert.Greater(t, denials, 10)
			})
		}
	}
}

// Only failed logins count: a user who knows the password logs in as often as they
// like, and a guesser has five guesses.
func TestEndToEnd_OnlyFailuresCount(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		clock := newClock()
		client, url := serve(t, h2, wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "login", Limiter: gcra(t, sluice.PerHour(5), clock), Key: oneKey}},
			Settle: func(_ *http.Request, status int) int {
				if status == http.StatusUnauthorized {
					return 1
				}
				return 0
			},
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("User") != "right" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		})))
		for range 20 {
			require.Equal(t, 200, request(t, client, url, "right").StatusCode)
		}
		for range 5 {
			require.Equal(t, 401, request(t, client, url, "wrong").StatusCode)
		}
		assert.Equal(t, 429, request(t, client, url, "wrong").StatusCode)
		assert.Equal(t, 429, request(t, client, url, "right").StatusCode)
	}
}

// A streamed response arrives while the handler runs, with its headers, also through
// Settle.
func TestEndToEnd_Streaming(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		goOn, settled := make(chan struct{}), make(chan int, 1)
		client, url := serve(t, h2, wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
			Headers:  allHeaders,
			Settle:   func(_ *http.Request, status int) int { settled <- status; return 0 },
		}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			<-goOn
			_, _ = io.WriteString(w, "last")
		})))
		resp, err := client.Get(url)
		require.NoError(t, err)
		assert.Equal(t, `"p";r=9;t=54`, resp.Header.Get("RateLimit"))
		first := make([]byte, 5)
		_, err = io.ReadFull(resp.Body, first)
		require.NoError(t, err)
		assert.Equal(t, "first", string(first))
		assert.Empty(t, settled, "the handler is not done")
		close(goOn)
		rest, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, "last", string(rest))
		assert.Equal(t, 200, <-settled)
	}
}

// A HEAD is answered as a GET is, without the body.
func TestEndToEnd_HeadIsDeniedWithoutABody(t *testing.T) {
	client, url := serve(t, false, wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.DenyAll, newClock()), Key: oneKey}},
	}, ok200))
	resp, err := client.Head(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
}
