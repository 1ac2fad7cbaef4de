package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
)

func put(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://a.test/", body)
	require.NoError(t, err)
	return req
}

func TestTransport_WhatIsRetried(t *testing.T) {
	for _, c := range []struct {
		method string
		status int
		body   io.Reader
		header string
		want   bool
	}{
		{method: "GET", status: 429, want: true},
		{method: "", status: 429, want: true},
		{method: "GET", status: 503, want: true},
		{method: "HEAD", status: 503, want: true},
		{method: "OPTIONS", status: 429, want: true},
		{method: "TRACE", status: 429, want: true},
		{method: "DELETE", status: 429, want: true},
		{method: "PUT", status: 429, want: true},
		{method: "PUT", status: 429, body: strings.NewReader("data"), want: true},
		{method: "PUT", status: 429, body: http.NoBody, want: true},
		{method: "PUT", status: 429, body: io.MultiReader(strings.NewReader("data"))}, // no GetBody
		{method: "POST", status: 429},
		{method: "PATCH", status: 429},
		{method: "CONNECT", status: 429},
		{method: "get", status: 429}, // methods are case-sensitive (RFC 9110, 9.1)
		{method: "POST", status: 429, header: "Idempotency-Key", want: true},
		{method: "POST", status: 503, header: "X-Idempotency-Key", want: true},
		{method: "POST", status: 429, header: "Idempotency-Key", body: io.MultiReader(strings.NewReader("data"))},
		{method: "POST", status: 429, header: "X-Request-Id"},
		{method: "GET", status: 200},
		{method: "GET", status: 301},
		{method: "GET", status: 403},
		{method: "GET", status: 408},
		{method: "GET", status: 425},
		{method: "GET", status: 500},
		{method: "GET", status: 502},
		{method: "GET", status: 504},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://a.test/", c.body)
		require.NoError(t, err)
		req.Method = c.method // NewRequest makes "" a GET
		if c.header != "" {
			req.Header.Set(c.header, "1")
		}
		base := newFakeBase(denyFirst(1, c.status))
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 3})
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		if !c.want {
			assert.Equal(t, 1, base.count(), "%+v", c)
			assert.Equal(t, c.status, resp.StatusCode, "%+v", c)
			continue
		}
		assert.Equal(t, 2, base.count(), "%+v", c)
		assert.Equal(t, http.StatusOK, resp.StatusCode, "%+v", c)
	}
}

func TestTransport_NoRetriesUnlessAskedFor(t *testing.T) {
	base := newFakeBase(always(http.StatusTooManyRequests))
	assert.Equal(t, http.StatusTooManyRequests, send(t, newTestTransport(t, base, TransportConfig{}), "http://a.test/"))
	assert.Equal(t, 1, base.count())
}

// The body is sent in full each time, the caller's request stays as it was, and the
// response names the caller's request.
func TestTransport_RetrySendsACopy(t *testing.T) {
	base := newFakeBase(denyFirst(2, http.StatusTooManyRequests))
	tr := newTestTransport(t, base, TransportConfig{MaxRetries: 2})
	req := put(t, strings.NewReader("data"))
	req.Header.Set("A", "b")
	before := *req
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, []string{"data", "data", "data"}, base.bodies)
	assert.Same(t, req, resp.Request)
	assert.Equal(t, before.Body, req.Body)
	assert.Equal(t, http.Header{"A": {"b"}}, req.Header)
	assert.Same(t, req, base.sent[0])
	assert.NotSame(t, req, base.sent[1])
	assert.Equal(t, int64(4), base.sent[2].ContentLength)
	base.sent[1].Header.Set("A", "changed")
	assert.Equal(t, "b", req.Header.Get("A"))
}

func TestTransport_RetryWaitsForRetryAfterAndTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(func(n int, _ *http.Request) *http.Response {
			switch n {
			case 0:
				return respond(http.StatusTooManyRequests, "Retry-After", "3")
			case 1:
				return respond(http.StatusServiceUnavailable)
			case 2:
				return respond(http.StatusTooManyRequests, "RateLimit", `"d";r=0;t=4`)
			}
			return respond(http.StatusOK)
		})
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 3, BackoffBase: time.Second, BackoffCap: 3 * time.Second})
		tr.jitter = func(below time.Duration) time.Duration { return below } // the longest, give or take 1 ns
		assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
		assert.Equal(t, []time.Duration{0, 4 * time.Second, 6 * time.Second, 13 * time.Second}, base.at)
	})
}

// After the last retry the response is the caller's, whatever it is.
func TestTransport_RetriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusTooManyRequests, "Retry-After", "1"))
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 4})
		resp, err := tr.RoundTrip(get(t, "http://a.test/"))
		require.NoError(t, err)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "answer", string(body))
		assert.Equal(t, 5, base.count())
		assert.Equal(t, 4*time.Second, base.at[4])
	})
}

// A server that asks for more than we wait has said that a retry would be too early.
// (Some send the time of day as a number of seconds since 1970.)
func TestTransport_NoRetryBeforeRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(denyFirst(1, http.StatusTooManyRequests, "Retry-After", "1743441608"))
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 3, MaxRetryAfter: time.Minute})
		assert.Equal(t, http.StatusTooManyRequests, send(t, tr, "http://a.test/"))
		assert.Zero(t, time.Since(base.start))
		assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
		assert.Equal(t, time.Minute, base.at[1], "the host is held back for MaxRetryAfter")
	})
}

func TestTransport_RetryAfterOfExactlyTheMaximumIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(denyFirst(1, http.StatusTooManyRequests, "Retry-After", "60"))
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 1, MaxRetryAfter: time.Minute})
		assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
	})
}

// A retry that cannot be made in time is no failure: there is a response.
func TestTransport_RetryThatDoesNotFitReturnsTheResponse(t *testing.T) {
	long := strings.Repeat("x", maxParked+1)
	for name, c := range map[string]struct {
		config   TransportConfig
		deadline time.Duration
		body     string
		after    time.Duration
	}{
		"deadline":             {deadline: 2 * time.Second},
		"MaxWait":              {config: TransportConfig{MaxWait: 2*time.Second - 1}},
		"limiter":              {config: TransportConfig{MaxWait: 3 * time.Second}, after: 2 * time.Second},
		"limiter and deadline": {deadline: 3 * time.Second, after: 2 * time.Second},
		"limiter, long body":   {config: TransportConfig{MaxWait: 3 * time.Second}, after: 2 * time.Second, body: long},
		"limiter, full body":   {config: TransportConfig{MaxWait: 3 * time.Second}, after: 2 * time.Second, body: long[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := newTrackedBody(c.body)
				base := newFakeBase(func(int, *http.Request) *http.Response {
					resp := respond(http.StatusTooManyRequests, "Retry-After", "2")
					resp.Body = body
					return resp
				})
				c.config.MaxRetries = 1
				if c.after > 0 {
					c.config.Limiter = newLimiter(t, sluice.PerMinute(1))
				}
				tr := newTestTransport(t, base, c.config)
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				resp, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
				require.NoError(t, err)
				assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
				assert.Equal(t, c.after, time.Since(base.start))
				assert.Equal(t, 1, base.count())
				read, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, c.body, string(read))
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, 1, body.closed)
			})
		})
	}
}

func TestTransport_CancelEndsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := newTrackedBody(strings.Repeat("x", 2*maxParked))
		base := newFakeBase(func(int, *http.Request) *http.Response {
			resp := respond(http.StatusTooManyRequests, "Retry-After", "60")
			resp.Body = body
			return resp
		})
		lim := newLimiter(t, sluice.PerHour(2))
		tr := newTestTransport(t, base, TransportConfig{MaxRetries: 1, Limiter: lim})
		ctx, cancel := context.WithCancelCause(t.Context())
		errCause := errors.New("user went away")
		time.AfterFunc(7*time.Second, func() { cancel(errCause) })
		resp, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, errCause)
		assert.Equal(t, 7*time.Second, time.Since(base.start))
		assert.Equal(t, 1, body.closed)
		assert.Equal(t, 1, lim.Key("a.test").Peek(0).Remaining)
	})
}

// The response before is read to its end and closed before the pause, so that its
// connection is free; a long one is closed unread before the next attempt.
func TestTransport_ResponsesAreReleased(t *testing.T) {
	for _, c := range []struct {
		size     int
		declared int64
		released bool
		read     int
	}{
		{size: 0, declared: -1, released: true, read: 0},
		{size: maxParked, declared: -1, released: true, read: maxParked},
		{size: maxParked + 1, declared: -1, released: false, read: maxParked + 1},
		{size: 1 << 20, declared: -1, released: false, read: maxParked + 1},
		{size: 1 << 20, declared: 1 << 20, released: false, read: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			body := newTrackedBody(strings.Repeat("x", c.size))
			base := newFakeBase(func(n int, _ *http.Request) *http.Response {
				if n > 0 {
					assert.Equal(t, 1, body.closed, "open when the next attempt is made")
					return respond(http.StatusOK)
				}
				resp := respond(http.StatusTooManyRequests, "Retry-After", "2")
				resp.Body, resp.ContentLength = body, c.declared
				return resp
			})
			tr := newTestTransport(t, base, TransportConfig{MaxRetries: 1})
			released := make(chan bool, 1)
			time.AfterFunc(time.Second, func() { released <- body.released() })
			assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
			assert.Equal(t, c.released, <-released, "during the pause")
			assert.Equal(t, c.read, body.read)
		})
	}
}

// A server that trickles its denial does not hold the request any longer than a pause may.
func TestTransport_ATricklingDenialDoesNotPassMaxWait(t *testing.T) {
	for _, tt := range []struct {
		name     string
		config   TransportConfig
		deadline time.Duration
		limited  bool
		attempts int
		after    time.Duration
	}{
		{"grace", TransportConfig{MaxWait: time.Minute}, 0, false, 2, 3 * time.Second},
		{"no bound", TransportConfig{}, 0, false, 2, 3 * time.Second},
		{"MaxWait", TransportConfig{MaxWait: 2500 * time.Millisecond}, 0, false, 2, 2500 * time.Millisecond},
		{"deadline", TransportConfig{}, 2500 * time.Millisecond, false, 2, 2500*time.Millisecond - 1},
		{"no retry after all", TransportConfig{MaxWait: 10 * time.Second}, 0, true, 1, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads, writes := io.Pipe()
				base := newFakeBase(func(n int, _ *http.Request) *http.Response {
					if n > 0 {
						return respond(http.StatusOK)
					}
					resp := respond(http.StatusTooManyRequests, "Retry-After", "2")
					resp.Body = reads
					return resp
				})
				go func() {
					for range 30 {
						if _, err := writes.Write([]byte("x")); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
					writes.Close()
				}()
				tt.config.MaxRetries = 1
				if tt.limited {
					tt.config.Limiter = newLimiter(t, sluice.PerMinute(1))
				}
				ctx := t.Context()
				if tt.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
					defer cancel()
				}
				resp, err := newTestTransport(t, base, tt.config).RoundTrip(get(t, "http://a.test/").WithContext(ctx))
				require.NoError(t, err)
				assert.Equal(t, tt.after, time.Since(base.start))
				assert.Equal(t, tt.attempts, base.count())
				if tt.attempts == 1 {
					assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
					body, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					assert.Equal(t, strings.Repeat("x", 30), string(body), "all of it, in its time")
				}
				require.NoError(t, resp.Body.Close())
				time.Sleep(time.Second) // for the server to notice
			})
		})
	}
}

// A body that breaks off is the caller's to notice.
func TestTransport_ParkKeepsAReadError(t *testing.T) {
	errRead := errors.New("connection reset")
	body := &trackedBody{Reader: io.MultiReader(strings.NewReader("half"), failingReader{errRead})}
	resp := respond(http.StatusTooManyRequests)
	resp.Body = body
	park(resp)
	read, err := io.ReadAll(resp.Body)
	assert.Equal(t, "half", string(read))
	assert.ErrorIs(t, err, errRead)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 1, body.closed)
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestTransport_BodyThatCannotBeHadAgain(t *testing.T) {
	base := newFakeBase(always(http.StatusTooManyRequests))
	lim := newLimiter(t, sluice.PerHour(5))
	tr := newTestTransport(t, base, TransportConfig{MaxRetries: 1, Limiter: lim})
	req := put(t, strings.NewReader("data"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("file is gone") }
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	read, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "answer", string(read))
	assert.Equal(t, 1, base.count())
	assert.Equal(t, 4, lim.Key("a.test").Peek(0).Remaining, "the retry was not sent, but charged")
}

func TestTransport_EachAttemptIsCharged(t *testing.T) {
	base := newFakeBase(denyFirst(2, http.StatusTooManyRequests))
	lim := newLimiter(t, sluice.PerHour(20))
	calls := 0
	tr := newTestTransport(t, base, TransportConfig{MaxRetries: 5, Limiter: lim, Cost: func(*http.Request) int { calls++; return 2 }})
	assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
	assert.Equal(t, 20-3*2, lim.Key("a.test").Peek(0).Remaining)
	assert.Equal(t, 1, calls)
}

// An error of the base is not retried: it does not say whether the request took effect.
func TestTransport_ErrorsAreNotRetried(t *testing.T) {
	errBase := errors.New("connection reset")
	calls := 0
	base := roundTripFunc(func(*http.Request) (*http.Response, error) {
		if calls++; calls == 1 {
			return respond(http.StatusServiceUnavailable), nil
		}
		return nil, errBase
	})
	tr := newTestTransport(t, base, TransportConfig{MaxRetries: 5})
	resp, err := tr.RoundTrip(get(t, "http://a.test/"))
	assert.Nil(t, resp)
	assert.Equal(t, errBase, err)
	assert.Equal(t, 2, calls)
}

func TestTransport_Backoff(t *testing.T) {
	tr, err := NewTransport(nil, TransportConfig{BackoffBase: 3 * time.Second, BackoffCap: 20 * time.Second})
	require.NoError(t, err)
	for n, ceiling := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second, 20 * time.Second, 20 * time.Second} {
		lower, upper := ceiling, time.Duration(0)
		for range 1000 {
			d := tr.backoff(n)
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.Less(t, d, ceiling)
			lower, upper = min(lower, d), max(upper, d)
		}
		// Of 1000 uniform draws none in a tenth of the range has a chance of 1e-46.
		assert.Less(t, lower, ceiling/10)
		assert.Greater(t, upper, ceiling-ceiling/10)
	}
	tr.jitter = func(below time.Duration) time.Duration { return below }
	tr.config.BackoffBase, tr.config.BackoffCap = 1, fare.LongestWait
	assert.Equal(t, fare.LongestWait, tr.backoff(100))
}
