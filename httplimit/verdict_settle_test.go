package httplimit_test

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// settling is a middleware that charges 3 of 10 and settles by a table of statuses,
// which notes what it was asked.
func settling(t *testing.T, lim *sluice.Limiter, costs map[int]int, next http.Handler) (http.Handler, *[]int) {
	t.Helper()
	var statuses []int
	return wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 3 }}},
		Settle: func(_ *http.Request, status int) int {
			statuses = append(statuses, status)
			return costs[status]
		},
	}, next), &statuses
}

func TestSettle_CostIsFinal(t *testing.T) {
	const unit = 6 * time.Second
	for _, tt := range []struct {
		settled, remaining int
		reset              time.Duration
	}{
		{0, 10, 0}, {1, 9, unit}, {2, 8, 2 * unit}, {3, 7, 3 * unit}, {4, 6, 4 * unit}, {10, 0, 10 * unit},
		{11, 0, 11 * unit}, {1 << 20, 0, unit << 20}, {-1, 7, 3 * unit}, {-1 << 30, 7, 3 * unit},
		{1 << 30, 0, unit << 30}, {math.MaxInt32, 0, sluice.Never}, // the last is beyond the range of the clock
	} {
		t.Run(fmt.Sprintf("settled=%d", tt.settled), func(t *testing.T) {
			lim := gcra(t, sluice.PerMinute(10), newClock())
			handler, _ := settling(t, lim, map[int]int{200: tt.settled}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				assert.Equal(t, 7, lim.Key("k").Peek(0).Remaining, "charged before the handler")
			}))
			get(handler)
			assert.Equal(t, tt.remaining, lim.Key("k").Peek(0).Remaining)
			assert.Equal(t, tt.reset, lim.Key("k").Peek(0).ResetAfter)
		})
	}
}

// A request that turns out dearer than what remains is a debt: the same client is let in again
// when it has been paid back, as if all had been charged at first.
func TestSettle_WhatIsDearerThanWhatRemainsIsADebt(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, policies := range []int{1, 2} { // of one key
			t.Run(fmt.Sprintf("algorithm=%v/policies=%d", algorithm, policies), func(t *testing.T) {
				clock := newClock()
				lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
				want := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
				c := httplimit.Config{Settle: func(*http.Request, int) int { return 25 }}
				for i := range policies {
					c.Policies = append(c.Policies, httplimit.Policy{Name: fmt.Sprint(i), Limiter: lim, Key: oneKey})
				}
				get(wrap(t, c, ok200))
				want.Key("k").Debit(25 * policies)
				for range 400 {
					require.Equal(t, want.Key("k").Peek(1), lim.Key("k").Peek(1))
					clock.Advance(time.Second)
				}
				require.Equal(t, 10, lim.Key("k").Peek(0).Remaining)
			})
		}
	}
}

// Costs of a key add up beyond what an int holds on 32 bits.
func TestSettle_SumsInFull(t *testing.T) {
	lim := newLimiter(t, sluice.Config{Limit: sluice.PerSecond(1e9).WithBurst(math.MaxInt32), Clock: newClock()})
	get(wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "a", Limiter: lim, Key: oneKey}, {Name: "b", Limiter: lim, Key: oneKey}, {Name: "c", Limiter: lim, Key: oneKey},
		},
		Settle: func(*http.Request, int) int { return math.MaxInt32 },
	}, ok200))
	assert.Equal(t, 3*math.MaxInt32*time.Nanosecond, lim.Key("k").Peek(0).ResetAfter)
}

// handlers are everything that a handler can do about its status.
var handlers = []struct {
	name    string
	handler http.HandlerFunc
	want    int
	panics  any
}{
	{"nothing", func(http.ResponseWriter, *http.Request) {}, 200, nil},
	{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, 401, nil},
	{"a body", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, 200, nil},
	{"an empty body", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil); w.WriteHeader(401) }, 200, nil},
	{"a string", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x"); w.WriteHeader(401) }, 200, nil},
	{"a status after a body", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); w.WriteHeader(401) }, 200, nil},
	{"two statuses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403); w.WriteHeader(200) }, 403, nil},
	{"early hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(103)
		w.WriteHeader(100)
		w.WriteHeader(404)
	}, 404, nil},
	{"early hints and nothing", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103) }, 200, nil},
	{"a flush", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.WriteHeader(401) }, 200, nil},
	{"a controlled flush", func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		w.WriteHeader(401)
	}, 200, nil},
	{"a copy", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, strings.NewReader("x"))
		w.WriteHeader(401)
	}, 200, nil},
	{"a copy of nothing", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(""))
		w.WriteHeader(401)
	}, 401, nil},
	{"a panic of a source", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, &panicking{after: 1 << 20})
	}, 200, "oops"},
	{"a panic of a limited source", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.CopyN(w, &panicking{after: 1 << 20}, 1<<21)
	}, 200, "oops"},
	{"a panic of a source that writes itself", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.(io.ReaderFrom).ReadFrom(panickingWriterTo{})
	}, 200, "oops"},
	{"a panic of a source without a byte", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, &panicking{})
	}, 500, "oops"},
	{"a panic", func(http.ResponseWriter, *http.Request) { panic("oops") }, 500, "oops"},
	{"a panic after a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403); panic("oops") }, 403, "oops"},
	{"a panic after a body", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); panic("oops") }, 200, "oops"},
	{"a panic after early hints", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); panic("oops") }, 500, "oops"},
	{"a panic after a flush", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); panic("oops") }, 200, "oops"},
	{"an abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500, http.ErrAbortHandler},
	{"an impossible status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(7) }, 500, "invalid WriteHeader code 7"},
}

func TestSettle_StatusOfEveryHandler(t *testing.T) {
	for _, tt := range handlers {
		t.Run(tt.name, func(t *testing.T) {
			lim := gcra(t, sluice.PerMinute(10), newClock())
			handler, statuses := settling(t, lim, map[int]int{tt.want: 1}, tt.handler)
			func() {
				defer func() { assert.Equal(t, tt.panics, recover(), "the panic goes on as it was") }()
				get(handler)
			}()
			assert.Equal(t, []int{tt.want}, *statuses)
			assert.Equal(t, 9, lim.Key("k").Peek(0).Remaining)
		})
	}
}

// The same through real connections, where the client sees the status that is settled.
func TestSettle_StatusIsTheClients(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, tt := range handlers {
			if tt.want == 500 {
				continue // the client of a panic sees a broken connection
			}
			t.Run(fmt.Sprintf("http2=%v/%s", h2, tt.name), func(t *testing.T) {
				settled := make(chan int, 1)
				handler := wrap(t, httplimit.Config{
					Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
					Settle:   func(_ *http.Request, status int) int { settled <- status; return 0 },
				}, tt.handler)
				client, url := serve(t, h2, handler)
				resp, err := client.Get(url)
				if tt.panics == nil {
					require.NoError(t, err)
					assert.Equal(t, resp.StatusCode, tt.want)
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				assert.Equal(t, tt.want, <-settled)
			})
		}
	}
}

// A policy in shadow mode that has not been charged gets nothing back.
func TestSettle_Shadow(t *testing.T) {
	shadow := newLimiter(t, sluice.Config{Limit: sluice.PerMinute(2), Shadow: true, Clock: newClock()})
	settled := 1
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: shadow, Key: oneKey}},
		Settle:   func(*http.Request, int) int { return settled },
	}, ok200)
	get(handler)
	get(handler)
	settled = 0
	get(handler) // would have been denied
	assert.Zero(t, shadow.Key("k").Peek(0).Remaining)
	settled = 5
	get(handler) // nor is it charged more
	assert.Zero(t, shadow.Key("k").Peek(0).Remaining)
	assert.Equal(t, time.Minute, shadow.Key("k").Peek(0).ResetAfter)

	shadow.Key("k").Reset()
	get(handler)
	assert.Equal(t, 5*time.Minute/2, shadow.Key("k").Peek(0).ResetAfter, "all 5, of which 3 are a debt")
}

func TestSettle_EachPolicyOfItsOwnCharge(t *testing.T) {
	clock := newClock()
	a, b := gcra(t, sluice.PerMinute(10), clock), gcra(t, sluice.PerMinute(10), clock)
	cost := func(n int) func(*http.Request) int { return func(*http.Request) int { return n } }
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "a", Limiter: a, Key: oneKey, Cost: cost(1)},
			{Name: "b", Limiter: b, Key: oneKey, Cost: cost(5)},
			{Name: "none", Limiter: a, Key: byHeader("User")},
		},
		OnKeyError: httplimit.KeyErrorSkip,
		Settle:     func(*http.Request, int) int { return 2 },
	}, ok200)
	get(handler)
	assert.Equal(t, 8, a.Key("k").Peek(0).Remaining)
	assert.Equal(t, 8, b.Key("k").Peek(0).Remaining)
	assert.Equal(t, 1, a.Len())
}

// Whoever keeps requests open until their charge has come back by itself, and lets
// them succeed then, must not get it back again.
func TestSettle_WhatHasComeBackIsNotGivenBack(t *testing.T) {
	const s = time.Second
	window := sluice.PerMinute(10)
	for _, tt := range []struct {
		name  string
		conf  sluice.Config
		open  time.Duration // the request
		again int           // units charged to the key before the end of the request
		want  int           // remaining afterwards
	}{
		// A unit takes 6 s, and the request costs 5.
		{"gcra, at once", sluice.Config{Limit: window}, 0, 2, 8},
		{"gcra, 1 of 5 back", sluice.Config{Limit: window}, 6 * s, 2, 8},
		{"gcra, 3.5 of 5 back", sluice.Config{Limit: window}, 21 * s, 8, 2},
		{"gcra, all back", sluice.Config{Limit: window}, 30 * s, 9, 1},
		{"gcra, long ago", sluice.Config{Limit: window}, time.Hour, 9, 1},
		{"token bucket, long ago", sluice.Config{Algorithm: sluice.TokenBucket, Limit: window}, time.Hour, 9, 1},
		{"leaky bucket, long ago", sluice.Config{Algorithm: sluice.LeakyBucket, Limit: window}, time.Hour, 9, 1},
		{"refill, before it", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: window}, 44 * s, 2, 8},
		{"refill, after it", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerMinute(1).WithBurst(10)}, 45 * s, 5, 5},
		{"fixed window, in it", sluice.Config{Algorithm: sluice.FixedWindow, Limit: window}, 45*s - 1, 2, 8},
		{"fixed window, after it", sluice.Config{Algorithm: sluice.FixedWindow, Limit: window}, 45 * s, 9, 1},
		{"fixed window with an offset, after it", sluice.Config{Algorithm: sluice.FixedWindow, Limit: window, Offset: 20 * s}, 5 * s, 9, 1},
		{"fixed window from the first charge, in it", sluice.Config{Algorithm: sluice.FixedWindowFirstCharge, Limit: window}, 60*s - 1, 2, 8},
		{"fixed window from the first charge, after it", sluice.Config{Algorithm: sluice.FixedWindowFirstCharge, Limit: window}, 60 * s, 9, 1},
		{"sliding window, in it", sluice.Config{Algorithm: sluice.SlidingWindow, Limit: window}, 45*s - 1, 2, 8},
		{"sliding window, in the next", sluice.Config{Algorithm: sluice.SlidingWindow, Limit: window}, 45 * s, 2, 8},
		{"sliding log, before it leaves", sluice.Config{Algorithm: sluice.SlidingLog, Limit: window}, 60*s - 1, 2, 8},
		{"sliding log, when it has left", sluice.Config{Algorithm: sluice.SlidingLog, Limit: window}, 60 * s, 9, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock := newClock()
			tt.conf.Clock = clock
			lim := newLimiter(t, tt.conf)
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 5 }}},
				Settle:   func(*http.Request, int) int { return 0 },
			}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				clock.Advance(tt.open)
				require.True(t, lim.AllowN("k", tt.again))
			}))
			get(handler)
			assert.Equal(t, tt.want, lim.Key("k").Peek(0).Remaining)
		})
	}
}

// Charges of two policies for one key come back in order: what has come back of them by
// itself is not given back by one on behalf of the other.
func TestSettle_ChargesForOneKeyAreOne(t *testing.T) {
	clock := newClock()
	lim := gcra(t, sluice.PerMinute(10), clock)
	cost := func(n int) func(*http.Request) int { return func(*http.Request) int { return n } }
	settled := 0
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "a", Limiter: lim, Key: oneKey, Cost: cost(2)},
			{Name: "b", Limiter: lim, Key: oneKey, Cost: cost(3)},
		},
		Settle: func(*http.Request, int) int { return settled },
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		clock.Advance(12 * time.Second) // 2 of the 5 are back
		lim.AllowN("k", 5)
	}))
	get(handler)
	assert.Equal(t, 10-5+2-5+3, lim.Key("k").Peek(0).Remaining)

	lim.Key("k").Reset()
	settled = 1
	get(handler)
	assert.Equal(t, 10-5+2-5+2, lim.Key("k").Peek(0).Remaining, "the 2 of the first are back")

	lim.Key("k").Reset()
	settled = math.MaxInt
	get(handler)
	assert.Zero(t, lim.Key("k").Peek(0).Remaining)
}

// TestSettle_NotOfADenialWhoseHookPanics: a request that never ran costs nothing that could be settled.
func TestSettle_NotOfADenialWhoseHookPanics(t *testing.T) {
	var told []int
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "one", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1)})), Key: func(*http.Request) (string, error) { return "all", nil }}},
		Settle:   func(_ *http.Request, status int) int { told = append(told, status); return -1 },
		OnDecision: func(_ *http.Request, d httplimit.Decision) {
			if !d.Allowed {
				panic("x")
			}
		},
	})
	require.NoError(t, err)
	h := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	call := func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) }
	call()
	require.Panics(t, call)
	require.Equal(t, []int{200}, told)
}

// TestSettle_OfAPolicy is asked what a request costs there, once, if it has charged the request; Config.Settle is asked about
// the others.
func TestSettle_OfAPolicy(t *testing.T) {
	clock := sluice.NewManualClock(time.Now())
	failed := newLimiter(t, sluice.Config{Limit: sluice.PerHour(10), Clock: clock})
	all := newLimiter(t, sluice.Config{Limit: sluice.PerHour(10), Clock: clock})
	tried := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), Clock: clock, Shadow: true})
	asked := map[string][]int{}
	settle := func(name string, cost int) func(*http.Request, int) int {
		return func(_ *http.Request, status int) int { asked[name] = append(asked[name], status); return cost }
	}
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "failed", Limiter: failed, Key: oneKey, Settle: settle("failed", 0)},
			{Name: "tried", Limiter: tried, Key: oneKey, Settle: settle("tried", -1)},
			{Name: "all", Limiter: all, Key: oneKey},
		},
		Settle: settle("rest", 2),
	}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	for range 3 {
		get(handler)
	}
	assert.Equal(t, map[string][]int{"failed": {202, 202, 202}, "tried": {202}, "rest": {202, 202, 202}}, asked)
	assert.Equal(t, 10, failed.Key("k").Peek(0).Remaining)
	assert.Equal(t, 4, all.Key("k").Peek(0).Remaining)
}
