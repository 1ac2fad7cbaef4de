package limittest

import (
	"context"
	"errors"
	"io"
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

// apiStart is at 0.25 s of a second, so that rounding shows.
var apiStart = time.Date(2026, 11, 24, 12, 0, 0, 250e6, time.UTC)

// newTestAPI returns an API of 2 a minute, at once or at 30 s each, on a clock of its own.
func newTestAPI(c APIConfig) (*API, *sluice.ManualClock) {
	clock := sluice.NewManualClock(apiStart)
	c.Limiter = sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(2), Clock: clock}))
	return NewAPI(c), clock
}

// ask sends a request without a connection.
func ask(t *testing.T, a *API) *http.Response {
	t.Helper()
	resp, err := a.RoundTrip(httptest.NewRequest(http.MethodGet, "http://api.test/x", nil))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// fieldsOf are those that tell about limits.
func fieldsOf(h http.Header) map[string]string {
	got := map[string]string{}
	for name, values := range h {
		if name == "Retry-After" || name == "Date" || strings.Contains(name, "Ratelimit") || strings.HasPrefix(name, "Grpc") {
			got[strings.TrimPrefix(name, "Ratelimit-")] = strings.Join(values, "|")
		}
	}
	return got
}

// TestAPI_Fields: each generation, of the second request (admitted) and of the third (denied), 1.25 s later.
func TestAPI_Fields(t *testing.T) {
	const date, later = "Tue, 24 Nov 2026 12:00:00 GMT", "Tue, 24 Nov 2026 12:00:01 GMT"
	for _, c := range []struct {
		config           APIConfig
		admitted, denied map[string]string
	}{
		{APIConfig{}, nil, nil},
		{APIConfig{RetryAfter: RetryAfterSeconds}, nil, map[string]string{"Retry-After": "29"}},
		{APIConfig{RetryAfter: RetryAfterDate}, nil, map[string]string{"Retry-After": "Tue, 24 Nov 2026 12:00:31 GMT"}},
		{APIConfig{Pushback: true}, nil, map[string]string{"Grpc-Retry-Pushback-Ms": "28750"}},
		{APIConfig{Generation: XRateLimit},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "60"},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "59"}},
		{APIConfig{Generation: XRateLimitUnix},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1795521661"},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1795521661"}},
		{APIConfig{Generation: Draft03},
			map[string]string{"Limit": "2, 2;w=60", "Remaining": "0", "Reset": "60"},
			map[string]string{"Limit": "2, 2;w=60", "Remaining": "0", "Reset": "59"}},
		{APIConfig{Generation: Draft06},
			map[string]string{"Limit": "2", "Remaining": "0", "Reset": "60", "Policy": "2;w=60"},
			map[string]string{"Limit": "2", "Remaining": "0", "Reset": "59", "Policy": "2;w=60"}},
		{APIConfig{Generation: Draft07},
			map[string]string{"Ratelimit": "limit=2, remaining=0, reset=60", "Policy": "2;w=60"},
			map[string]string{"Ratelimit": "limit=2, remaining=0, reset=59", "Policy": "2;w=60"}},
		{APIConfig{Generation: Draft11},
			map[string]string{"Ratelimit": `"default";r=0;t=30`, "Policy": `"default";q=2;w=60`},
			map[string]string{"Ratelimit": `"default";r=0;t=29`, "Policy": `"default";q=2;w=60`}},
	} {
		a, clock := newTestAPI(c.config)
		if c.config.Generation == Draft11 {
			assert.Equal(t, `"default";r=1;t=30`, ask(t, a).Header.Get("Ratelimit"), "until the whole limit is there")
		} else {
			ask(t, a)
		}
		want := func(fields map[string]string, date string) map[string]string {
			all := map[string]string{"Date": date}
			for name, value := range fields {
				all[name] = value
			}
			return all
		}
		resp := ask(t, a)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, want(c.admitted, date), fieldsOf(resp.Header), "%+v", c.config)
		clock.Advance(1250 * time.Millisecond)
		resp = ask(t, a)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, want(c.denied, later), fieldsOf(resp.Header), "%+v", c.config)
	}
}

// TestAPI_NoWaitHelps: a cost above the burst.
func TestAPI_NoWaitHelps(t *testing.T) {
	for _, form := range []RetryAfterForm{RetryAfterSeconds, RetryAfterDate} {
		a, _ := newTestAPI(APIConfig{RetryAfter: form, Pushback: true, Cost: func(*http.Request) int { return 3 }})
		assert.Equal(t, map[string]string{"Date": "Tue, 24 Nov 2026 12:00:00 GMT", "Grpc-Retry-Pushback-Ms": "-1"}, fieldsOf(ask(t, a).Header))
	}
}

// TestAPI_Early: whether a client came before the time that it was told, by its key.
func TestAPI_Early(t *testing.T) {
	for form, told := range map[RetryAfterForm]time.Duration{
		RetryAfterSeconds: 30 * time.Second, RetryAfterDate: 30*time.Second + 750*time.Millisecond, RetryAfterOff: 0,
	} {
		key := "a"
		a, clock := newTestAPI(APIConfig{RetryAfter: form, Key: func(*http.Request) string { return key }})
		for range 3 {
			ask(t, a)
		}
		if told > 0 {
			clock.Advance(told - 1)
			ask(t, a)
			clock.Advance(time.Second) // what it was told now
		}
		ask(t, a)
		key = "b"
		ask(t, a)
		var early []bool
		for _, e := range a.Exchanges() {
			early = append(early, e.Early)
		}
		want := []bool{false, false, false, true, false, false}
		if told == 0 {
			want = make([]bool, 5)
		}
		assert.Equal(t, want, early, "form %d", form)
	}
}

// TestAPI_EarlyIsByTheLongest: a shorter Retry-After that comes later does not shorten what was told before.
func TestAPI_EarlyIsByTheLongest(t *testing.T) {
	a, clock := newTestAPI(APIConfig{RetryAfter: RetryAfterSeconds})
	a.Next(1, Fault{Status: http.StatusServiceUnavailable, RetryAfter: 10 * time.Second})
	a.Next(1, Fault{Status: http.StatusServiceUnavailable, RetryAfter: time.Second})
	for range 3 {
		ask(t, a)
		clock.Advance(time.Second)
	}
	for i, e := range a.Exchanges() {
		assert.Equal(t, i > 0, e.Early, i)
	}
}

func TestAPI_Exchanges(t *testing.T) {
	a, clock := newTestAPI(APIConfig{
		Key:     func(r *http.Request) string { return r.Header.Get("Tenant") },
		Cost:    func(r *http.Request) int { return int(r.ContentLength) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
	})
	post := func(tenant, body string) {
		r := httptest.NewRequest(http.MethodPost, "http://api.test/", strings.NewReader(body))
		r.Header.Set("Tenant", tenant)
		resp, err := a.RoundTrip(r)
		require.NoError(t, err)
		assert.Same(t, r, resp.Request)
	}
	post("x", "ab")
	clock.Advance(time.Second)
	post("x", "a")
	post("y", "a")
	now := apiStart.UnixNano()
	assert.Equal(t, []Exchange{
		{At: now, Key: "x", Cost: 2, Status: http.StatusTeapot, Admitted: true},
		{At: now + 1e9, Key: "x", Cost: 1, Status: http.StatusTooManyRequests},
		{At: now + 1e9, Key: "y", Cost: 1, Status: http.StatusTeapot, Admitted: true},
	}, a.Exchanges())
}

// TestAPI_Faults: an outage charges nothing, a lost response does, and a latency passes on the clock.
func TestAPI_Faults(t *testing.T) {
	a, clock := newTestAPI(APIConfig{RetryAfter: RetryAfterSeconds})
	a.Next(2, Fault{Status: http.StatusServiceUnavailable, RetryAfter: 1500 * time.Millisecond})
	a.Next(1, Fault{Lost: true})
	a.Next(1, Fault{Latency: 3 * time.Second})
	for range 2 {
		resp := ask(t, a)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.Equal(t, "2", resp.Header.Get("Retry-After"))
	}
	clock.Advance(2 * time.Second)
	_, err := a.RoundTrip(httptest.NewRequest(http.MethodGet, "http://api.test/", nil))
	assert.ErrorIs(t, err, ErrLost)
	assert.Equal(t, http.StatusOK, ask(t, a).StatusCode)
	assert.Equal(t, apiStart.Add(5*time.Second).UnixNano(), clock.Now())
	assert.Equal(t, http.StatusTooManyRequests, ask(t, a).StatusCode, "the lost one was charged, the outage was not")

	a.Exchanges()[0].Lost = true // of a copy
	var lost, early []bool
	for _, e := range a.Exchanges() {
		lost, early = append(lost, e.Lost), append(early, e.Early)
	}
	assert.Equal(t, []bool{false, false, true, false, false}, lost)
	assert.Equal(t, []bool{false, true, false, false, false}, early, "the second one did not wait for the outage")
}

// TestAPI_OutageForATime: whatever is scripted for single requests waits meanwhile.
func TestAPI_OutageForATime(t *testing.T) {
	a, clock := newTestAPI(APIConfig{})
	a.Next(1, Fault{Status: http.StatusBadGateway})
	a.For(time.Second, Fault{Status: http.StatusServiceUnavailable})
	var got []int
	for range 5 {
		got = append(got, ask(t, a).StatusCode)
		clock.Advance(time.Second / 2)
	}
	assert.Equal(t, []int{503, 503, 502, 200, 200}, got)
	assert.Panics(t, func() { a.Next(0, Fault{}) })
	assert.Panics(t, func() { a.For(0, Fault{}) })
}

// TestAPI_WithConnections: as a handler, lost responses too.
func TestAPI_WithConnections(t *testing.T) {
	a, _ := newTestAPI(APIConfig{RetryAfter: RetryAfterSeconds, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	})})
	server := httptest.NewServer(a)
	defer server.Close()
	post := func() (*http.Response, string, error) {
		resp, err := server.Client().Post(server.URL, "text/plain", strings.NewReader("hello"))
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp, string(body), err
	}
	resp, body, err := post()
	require.NoError(t, err)
	assert.Equal(t, "hello", body)
	assert.Equal(t, "Tue, 24 Nov 2026 12:00:00 GMT", resp.Header.Get("Date"), "of the limiter's clock")
	a.Next(1, Fault{Lost: true})
	_, _, err = post()
	require.Error(t, err)
	resp, body, err = post()
	require.NoError(t, err)
	assert.Equal(t, "30", resp.Header.Get("Retry-After"))
	assert.Equal(t, "Too Many Requests\n", body)
	assert.Len(t, a.Exchanges(), 3)
}

// TestAPI_InABubble: the latency and the limit are on the bubble's clock, and a request that ends is not waited for.
func TestAPI_InABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAPI(APIConfig{Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1)}))})
		a.Next(1, Fault{Latency: time.Hour})
		a.Next(1, Fault{Latency: time.Hour})
		start := time.Now()
		assert.Equal(t, http.StatusOK, ask(t, a).StatusCode)
		assert.Equal(t, time.Hour, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.RoundTrip(httptest.NewRequest(http.MethodGet, "http://api.test/", nil).WithContext(ctx))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Hour+time.Second, time.Since(start))
		_, err = a.RoundTrip(httptest.NewRequest(http.MethodGet, "http://api.test/", nil).WithContext(ctx))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Len(t, a.Exchanges(), 2, "a request that has ended does not reach the server")
	})
}

// closedBody notes that it was closed.
type closedBody struct {
	io.Reader
	closed int
}

func (b *closedBody) Close() error { b.closed++; return nil }

// TestAPI_RoundTripperContract: what http.RoundTripper demands.
func TestAPI_RoundTripperContract(t *testing.T) {
	var seen *http.Request
	a, _ := newTestAPI(APIConfig{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r; panic(http.ErrAbortHandler) })})
	r, err := http.NewRequest(http.MethodPut, "http://api.test/a?b=c", nil)
	require.NoError(t, err)
	body := &closedBody{Reader: strings.NewReader("x")}
	r.Body = body
	_, err = a.RoundTrip(r)
	assert.ErrorIs(t, err, ErrLost)
	assert.Equal(t, 1, body.closed)
	assert.Equal(t, "/a?b=c", seen.RequestURI)
	assert.Equal(t, "api.test", seen.Host)
	assert.Empty(t, r.RequestURI, "the request is not modified")

	r.Body, r.Host = nil, ""
	_, err = a.RoundTrip(r)
	assert.ErrorIs(t, err, ErrLost)
	assert.Equal(t, http.NoBody, seen.Body, "a server's is never nil")
	assert.Equal(t, "api.test", seen.Host)

	a, _ = newTestAPI(APIConfig{})
	a.config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })
	assert.PanicsWithValue(t, "broken", func() { a.RoundTrip(r) })
	assert.PanicsWithValue(t, "broken", func() { a.RoundTrip(r) })
	client := &http.Client{Transport: a}
	resp, err := client.Get("http://api.test/")
	require.NoError(t, err)
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
}

// TestAPI_Concurrent: at once, as many as the limit are admitted, and all are noted.
func TestAPI_Concurrent(t *testing.T) {
	a, _ := newTestAPI(APIConfig{RetryAfter: RetryAfterDate, Generation: Draft11, Pushback: true})
	a.Next(10, Fault{Status: http.StatusServiceUnavailable, RetryAfter: time.Second})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				resp, err := a.RoundTrip(httptest.NewRequest(http.MethodGet, "http://api.test/", nil))
				if assert.NoError(t, err) {
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
	status := map[int]int{}
	for _, e := range a.Exchanges() {
		status[e.Status]++
	}
	assert.Equal(t, map[int]int{200: 2, 429: 148, 503: 10}, status)
}

func TestNewAPI_RefusesWhatCannotBe(t *testing.T) {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1)}))
	for field, c := range map[string]APIConfig{
		"APIConfig.Limiter": {}, "APIConfig.RetryAfter": {Limiter: lim, RetryAfter: 3}, "APIConfig.Generation": {Limiter: lim, Generation: 7},
	} {
		func() {
			defer func() { assert.Contains(t, recover(), field) }()
			NewAPI(c)
			assert.Fail(t, "it was taken", field)
		}()
	}
	assert.False(t, errors.Is(ErrLost, http.ErrAbortHandler))
}
