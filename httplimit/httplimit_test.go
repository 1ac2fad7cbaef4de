package httplimit_test

import (
	"encoding/json"
	"errors"
	"fmt"
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

func TestNew_RefusesWhatCannotBeMeant(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(1), newClock())
	good := httplimit.Policy{Name: "p", Limiter: lim, Key: oneKey}
	pk := func(string, string) []byte { return nil }
	tests := []struct {
		name   string
		change func(*httplimit.Config)
		field  string
		reason string
	}{
		{"no policies", func(c *httplimit.Config) { c.Policies = nil }, "Policies", "want at least one"},
		{"no name", func(c *httplimit.Config) { c.Policies[1].Name = "" }, "Policies[1].Name", "is empty"},
		{"a line break in a name", func(c *httplimit.Config) { c.Policies[0].Name = "a\r\nSet-Cookie: b" }, "Policies[0].Name", `"a\r\nSet-Cookie: b"`},
		{"DEL in a name", func(c *httplimit.Config) { c.Policies[0].Name = "\x7f" }, "Policies[0].Name", `"\x7f"`},
		{"an umlaut in a name", func(c *httplimit.Config) { c.Policies[0].Name = "täglich" }, "Policies[0].Name", "printable ASCII"},
		{"a name of 65", func(c *httplimit.Config) { c.Policies[0].Name = strings.Repeat("x", 65) }, "Policies[0].Name", "1 to 64"},
		{"a name twice", func(c *httplimit.Config) { c.Policies[1].Name = "p" }, "Policies[1].Name", `"p" is the name of policy 0`},
		{"no limiter", func(c *httplimit.Config) { c.Policies[1].Limiter = nil }, "Policies[1].Limiter", "is nil"},
		{"a remote of InFlight", func(c *httplimit.Config) {
			c.Policies[1].Limiter, c.Policies[1].Remote = nil, farAway{algorithm: sluice.InFlight}
		}, "Policies[1].Remote", "want a Limiter of InFlight in each process"},
		{"no key", func(c *httplimit.Config) { c.Policies[1].Key = nil }, "Policies[1].Key", "is nil"},
		{"a quote's unit", func(c *httplimit.Config) { c.Policies[1].Unit = "bytes\n" }, "Policies[1].Unit", "printable ASCII"},
		{"an unknown action", func(c *httplimit.Config) { c.OnKeyError = 2 }, "OnKeyError", "want KeyErrorDeny or KeyErrorSkip"},
		{"negative jitter", func(c *httplimit.Config) { c.Headers.RetryJitter = -time.Second }, "Headers.RetryJitter", "-1s"},
		{"too much jitter", func(c *httplimit.Config) { c.Headers.RetryJitter = time.Hour + time.Second }, "Headers.RetryJitter", "1h0m1s"},
		{"broken jitter", func(c *httplimit.Config) { c.Headers.RetryJitter = 1500 * time.Millisecond }, "Headers.RetryJitter", "whole seconds"},
		{"jitter of nothing", func(c *httplimit.Config) {
			c.Headers.RetryJitter, c.Headers.OmitRetryAfter = time.Second, true
		}, "Headers.RetryJitter", "want 0"},
		{"a negative bound", func(c *httplimit.Config) { c.Headers.MaxRetryAfter = -time.Second }, "Headers.MaxRetryAfter", "-1s"},
		{"a bound of a part of a second", func(c *httplimit.Config) { c.Headers.MaxRetryAfter = time.Millisecond }, "Headers.MaxRetryAfter", "whole seconds, up to 8760h"},
		{"a bound of nothing", func(c *httplimit.Config) {
			c.Headers.MaxRetryAfter, c.Headers.OmitRetryAfter = time.Second, true
		}, "Headers.MaxRetryAfter", "want 0"},
		{"an unknown version of policies", func(c *httplimit.Config) { c.Headers.RateLimitPolicy = 2 }, "Headers.RateLimitPolicy", "Draft11"},
		{"an unknown version of limits", func(c *httplimit.Config) { c.Headers.RateLimit = 2 }, "Headers.RateLimit", "Draft11"},
		{"partition keys for nothing", func(c *httplimit.Config) { c.Headers.PartitionKey = pk }, "Headers.PartitionKey", "want one of them, or nil"},
		{"an unknown form", func(c *httplimit.Config) { c.Headers.XReset = 3 }, "Headers.XReset", "ResetUnix"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			other := good
			other.Name = "other"
			c := httplimit.Config{Policies: []httplimit.Policy{good, other}}
			tt.change(&c)
			limit, err := httplimit.New(c)
			assert.Nil(t, limit)
			var ce *httplimit.ConfigError
			require.ErrorAs(t, err, &ce)
			assert.Equal(t, "Config."+tt.field, ce.Field)
			assert.Contains(t, ce.Reason, tt.reason)
			assert.Equal(t, "httplimit: "+ce.Field+": "+ce.Reason, err.Error())
		})
	}
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: strings.Repeat("~", 64), Limiter: lim, Key: oneKey, Unit: strings.Repeat(" ", 64)},
			{Name: "far", Remote: farAway{algorithm: sluice.FixedWindow}, Key: oneKey},
		},
		Headers: httplimit.Headers{RetryJitter: time.Hour, MaxRetryAfter: 365 * 24 * time.Hour, RateLimit: httplimit.Draft11, PartitionKey: pk},
	})
	require.NoError(t, err)
	assert.PanicsWithValue(t, "httplimit: the handler behind the middleware is nil; want a handler", func() { limit.Handler(nil) })
}

// farAway is a Remote that tells its algorithm.
type farAway struct {
	failingRemote
	algorithm sluice.Algorithm
}

func (f farAway) Algorithm() sluice.Algorithm { return f.algorithm }

func TestNew_LaterChangesHaveNoEffect(t *testing.T) {
	policies := []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(1), newClock()), Key: oneKey}}
	handler := wrap(t, httplimit.Config{Policies: policies}, ok200)
	policies[0] = httplimit.Policy{}
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, 429, get(handler).Code)
}

func TestMiddleware_AllPoliciesOrNone(t *testing.T) {
	clock := newClock()
	perUser, perIP := gcra(t, sluice.PerMinute(2), clock), gcra(t, sluice.PerMinute(3), clock)
	served := 0
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: "ip", Limiter: perIP, Key: byHeader("IP")},
		{Name: "user", Limiter: perUser, Key: byHeader("User")},
	}}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for i, want := range []int{200, 200, 429, 429, 429} {
		w := get(handler, "IP", "1", "User", "ann")
		assert.Equal(t, want, w.Code, "request %d", i)
	}
	assert.Equal(t, 1, perIP.Key("1").Peek(0).Remaining, "a denied request is charged to nobody")
	assert.Equal(t, 200, get(handler, "IP", "1", "User", "bob").Code)
	assert.Equal(t, 429, get(handler, "IP", "1", "User", "bob").Code)
	assert.Equal(t, 1, perUser.Key("bob").Peek(0).Remaining)
	assert.Equal(t, 3, served)
}

func TestMiddleware_SameKeyTwiceAddsUp(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(5), newClock())
	two := func(*http.Request) int { return 2 }
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: "a", Limiter: lim, Key: oneKey}, {Name: "b", Limiter: lim, Key: oneKey, Cost: two},
	}}, ok200)
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, 2, lim.Key("k").Peek(0).Remaining)
	w := get(handler)
	assert.Equal(t, 429, w.Code, "each alone would pass")
	assert.JSONEq(t, `["a","b"]`, violated(t, w))
	assert.Equal(t, 2, lim.Key("k").Peek(0).Remaining)
}

func violated(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var doc map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc), "%s", w.Body)
	return string(doc["violated-policies"])
}

func TestMiddleware_Costs(t *testing.T) {
	for _, tt := range []struct {
		costs     []int
		want      int
		remaining int
		retry     time.Duration
	}{
		{[]int{0}, 200, 10, 0},
		{[]int{10}, 200, 0, 0},
		{[]int{11}, 429, 10, sluice.Never},
		{[]int{-1}, 429, 10, sluice.Never},
		{[]int{-1, 3}, 429, 10, sluice.Never},
		{[]int{math.MaxInt, math.MaxInt}, 429, 10, sluice.Never},
		{[]int{math.MinInt, math.MaxInt}, 429, 10, sluice.Never},
		{[]int{math.MaxInt, math.MaxInt, 3}, 429, 10, sluice.Never},
		{[]int{4, 6}, 200, 0, 0},
		{[]int{4, 7}, 429, 10, sluice.Never},
	} {
		t.Run(fmt.Sprintf("costs=%v", tt.costs), func(t *testing.T) {
			lim := gcra(t, sluice.PerMinute(10), newClock())
			var d httplimit.Decision
			c := httplimit.Config{OnDecision: func(_ *http.Request, got httplimit.Decision) { d = got }}
			for i, cost := range tt.costs {
				c.Policies = append(c.Policies, httplimit.Policy{Name: fmt.Sprint(i), Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return cost }})
			}
			assert.Equal(t, tt.want, get(wrap(t, c, ok200)).Code)
			assert.Equal(t, tt.remaining, lim.Key("k").Peek(0).Remaining)
			assert.Equal(t, tt.retry, d.RetryAfter)
			if tt.want == 429 {
				assert.Len(t, d.Violated, len(tt.costs))
			}
		})
	}
}

// A cost of 0 asks whether a unit would pass.
func TestMiddleware_PeekIsDenied(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(1), newClock())
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 0 }}}}, ok200)
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, 200, get(handler).Code)
	lim.Allow("k")
	w := get(handler)
	assert.Equal(t, 429, w.Code)
	assert.JSONEq(t, `["p"]`, violated(t, w))
	assert.Equal(t, "60", w.Header().Get("Retry-After"))
}

func TestMiddleware_Skip(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(1), newClock())
	heard := 0
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "p", Limiter: lim, Key: byHeader("User")}},
		Skip:       func(r *http.Request) bool { return r.Header.Get("Health") != "" },
		OnDecision: func(*http.Request, httplimit.Decision) { heard++ },
		Headers:    allHeaders,
		Settle:     func(*http.Request, int) int { return 1 },
	}, ok200)
	for range 3 {
		w := get(handler, "Health", "1") // and no user
		assert.Equal(t, 200, w.Code)
		assert.Empty(t, w.Header())
	}
	assert.Zero(t, heard)
	assert.Zero(t, lim.Len())
	assert.Equal(t, 200, get(handler, "User", "a").Code)
	assert.Equal(t, 1, heard)
}

func TestMiddleware_KeyErrors(t *testing.T) {
	clock := newClock()
	perIP, perUser := gcra(t, sluice.PerMinute(1), clock), gcra(t, sluice.PerMinute(10), clock)
	for _, tt := range []struct {
		action httplimit.KeyErrorAction
		status []int
		used   int // of the policy that comes before the one without a key
	}{
		{httplimit.KeyErrorDeny, []int{400, 400}, 0},
		{httplimit.KeyErrorSkip, []int{200, 429}, 1},
	} {
		t.Run(fmt.Sprintf("action=%d", tt.action), func(t *testing.T) {
			var heard []httplimit.Decision
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{
					{Name: "ip", Limiter: perIP, Key: byHeader("IP")},
					{Name: "user", Limiter: perUser, Key: byHeader("User")},
				},
				OnKeyError: tt.action,
				OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = append(heard, d) },
				Headers:    allHeaders,
			}, ok200)
			for i, want := range tt.status {
				w := get(handler, "IP", "1")
				assert.Equal(t, want, w.Code)
				assert.ErrorIs(t, heard[i].KeyError, httplimit.ErrNoKey)
				assert.Equal(t, want == 200, heard[i].Allowed)
				if want == 400 {
					assert.Equal(t, 400, heard[i].Status)
					assert.Empty(t, heard[i].Violated)
					assert.Zero(t, heard[i].RetryAfter)
					assert.Equal(t, http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}, w.Header())
					assert.JSONEq(t, `{"type":"about:blank","title":"Bad Request","status":400,
						"detail":"The request lacks something that it has to be counted by, or has it in a form that cannot be used."}`, w.Body.String())
				} else {
					assert.Equal(t, `"ip";q=1;w=60`, w.Header().Get("RateLimit-Policy"))
				}
			}
			assert.Equal(t, 1-tt.used, perIP.Key("1").Peek(0).Remaining)
			assert.Zero(t, perUser.Len())
		})
	}
}

func TestMiddleware_KeyErrorsOfAllPoliciesSkipped(t *testing.T) {
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "user", Limiter: gcra(t, sluice.DenyAll, newClock()), Key: byHeader("User")}},
		OnKeyError: httplimit.KeyErrorSkip,
		Headers:    allHeaders,
	}, ok200)
	w := get(handler)
	assert.Equal(t, 200, w.Code)
	assert.Empty(t, w.Header())
}

func TestMiddleware_FirstKeyErrorCounts(t *testing.T) {
	clock := newClock()
	var heard httplimit.Decision
	asked := 0
	fails := func(name string) httplimit.Policy {
		return httplimit.Policy{Name: name, Limiter: gcra(t, sluice.PerMinute(1), clock), Key: func(*http.Request) (string, error) {
			asked++
			return "", fmt.Errorf("%w: %s", httplimit.ErrNoKey, name)
		}}
	}
	for action, want := range map[httplimit.KeyErrorAction]int{httplimit.KeyErrorDeny: 1, httplimit.KeyErrorSkip: 2} {
		asked = 0
		get(wrap(t, httplimit.Config{
			Policies:   []httplimit.Policy{fails("a"), fails("b")},
			OnKeyError: action,
			OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		}, ok200))
		assert.EqualError(t, heard.KeyError, "httplimit: no key: a")
		assert.Equal(t, math.MaxInt, heard.Remaining)
		assert.Equal(t, want, asked, "a request that is denied anyway is not looked at further")
	}
}

// Only a request without a key is let past a policy. One whose key is malformed, there
// twice or too long is denied, and so is one with an error that says nothing about it,
// whatever came before it; nobody is charged.
func TestMiddleware_OnlyAMissingKeyIsSkipped(t *testing.T) {
	limiter := gcra(t, sluice.PerMinute(10), newClock())
	var heard httplimit.Decision
	errOther := errors.New("the user database is down")
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "all", Limiter: limiter, Key: oneKey},
			{Name: "none", Limiter: limiter, Key: byHeader("Missing")},
			{Name: "user", Limiter: limiter, Key: byHeader("User")},
			{Name: "own", Limiter: limiter, Key: func(r *http.Request) (string, error) {
				if r.Header.Get("Down") != "" {
					return "", errOther
				}
				return "own", nil
			}},
		},
		OnKeyError: httplimit.KeyErrorSkip,
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		Headers:    allHeaders,
	}, ok200)
	for _, tt := range []struct {
		header http.Header
		want   error
	}{
		{http.Header{"User": {"ann", "bob"}}, httplimit.ErrBadKey},
		{http.Header{"User": {strings.Repeat("a", httplimit.MaxKeyLen+1)}}, httplimit.ErrKeyTooLong},
		{http.Header{"Down": {"1"}}, errOther},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = tt.header
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		assert.Equal(t, http.StatusBadRequest, w.Code)
		assert.ErrorIs(t, heard.KeyError, tt.want)
		assert.False(t, heard.Allowed)
		assert.Zero(t, limiter.Len())
	}
	assert.Equal(t, http.StatusOK, get(handler).Code)
	assert.EqualError(t, heard.KeyError, "httplimit: no key: no header Missing", "the first of two")
	assert.Equal(t, 9, limiter.Key("k").Peek(0).Remaining)
}

// A shadow limiter is charged as if it were enforced, denies nobody, and whether it
// would have is told.
func TestMiddleware_Shadow(t *testing.T) {
	clock := newClock()
	shadow := func(n int) *sluice.Limiter {
		return newLimiter(t, sluice.Config{Limit: sluice.PerMinute(n), Shadow: true, Clock: clock})
	}
	one, three, enforced := shadow(1), shadow(3), gcra(t, sluice.PerMinute(4), clock)
	var heard []httplimit.Decision
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "three a", Limiter: three, Key: oneKey},
			{Name: "enforced", Limiter: enforced, Key: oneKey},
			{Name: "one", Limiter: one, Key: oneKey},
			{Name: "three b", Limiter: three, Key: oneKey}, // the same key: two a request
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = append(heard, d) },
	}, ok200)
	for i, want := range []int{200, 200, 200, 200, 429} {
		assert.Equal(t, want, get(handler).Code, "request %d", i)
	}
	assert.Nil(t, heard[0].WouldDeny)
	assert.Equal(t, []string{"three a", "one", "three b"}, heard[1].WouldDeny)
	assert.Equal(t, 3, heard[0].Remaining)
	assert.Equal(t, []string{"enforced"}, heard[4].Violated)
	assert.Nil(t, heard[4].WouldDeny, "not asked")
	assert.Equal(t, 1, three.Key("k").Peek(0).Remaining, "charged for the first request only")
}

func TestMiddleware_DecisionsAreHeard(t *testing.T) {
	clock := newClock()
	var heard []httplimit.Decision
	var order []string
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "a", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(2), Soft: 1, Clock: clock}), Key: oneKey},
			{Name: "b", Limiter: gcra(t, sluice.PerHour(3), clock), Key: oneKey},
		},
		OnDecision: func(r *http.Request, d httplimit.Decision) {
			assert.Equal(t, "ann", r.Header.Get("User"))
			heard, order = append(heard, d), append(order, "heard")
		},
		OnDenied: func(w http.ResponseWriter, _ *http.Request, d httplimit.Decision) {
			assert.Equal(t, heard[len(heard)-1], d)
			order = append(order, "denied "+w.Header().Get("Retry-After"))
			w.WriteHeader(http.StatusServiceUnavailable)
		},
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { order = append(order, "served") }))
	for _, want := range []int{200, 200, 200, 503} {
		assert.Equal(t, want, get(handler, "User", "ann").Code)
	}
	assert.Equal(t, []httplimit.Decision{
		{Allowed: true, Remaining: 1},
		{Allowed: true, Remaining: 0},
		{Allowed: true, Remaining: 0, OverSoft: true},
		{
			Status: 429, Violated: []string{"a", "b"}, Remaining: 0, RetryAfter: 20 * time.Minute,
			Charges: []httplimit.PolicyCharge{{"a", "k", 1}, {"b", "k", 1}},
		},
	}, heard)
	assert.Equal(t, []string{"heard", "served", "heard", "served", "heard", "served", "heard", "denied 1200"}, order)
}

func TestMiddleware_OverSoftOfASinglePolicy(t *testing.T) {
	var heard []bool
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "p", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Soft: 1, Clock: newClock()}), Key: oneKey}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = append(heard, d.OverSoft) },
	}, ok200)
	for _, want := range []int{200, 200, 429} {
		assert.Equal(t, want, get(handler).Code)
	}
	assert.Equal(t, []bool{false, true, false}, heard)
}

// A denial that OnDenied says nothing to is still a denial for the client.
func TestMiddleware_OnDeniedWithoutAWord(t *testing.T) {
	silent := func(http.ResponseWriter, *http.Request, httplimit.Decision) {}
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.DenyAll, newClock()), Key: byHeader("User")}},
		OnDenied: silent,
	}, ok200)
	assert.Equal(t, 429, get(handler, "User", "a").Code)
	assert.Equal(t, 400, get(handler).Code)
}

// steppingClock goes on by a second with each reading.
type steppingClock struct{ *sluice.ManualClock }

func (c steppingClock) Now() int64 {
	c.Advance(time.Second)
	return c.ManualClock.Now()
}

// Whoever has denied is named, even if it would admit right after: all that is told of a
// decision is true at one instant.
func TestMiddleware_ViolatedIsOfTheInstantOfTheDecision(t *testing.T) {
	still := newClock()
	a := gcra(t, sluice.PerHour(1), still)
	b := newLimiter(t, sluice.Config{Limit: sluice.Per(1, 1500*time.Millisecond), Clock: steppingClock{newClock()}})
	var heard httplimit.Decision
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "a", Limiter: a, Key: oneKey}, {Name: "b", Limiter: b, Key: oneKey}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
	}, ok200)
	require.Equal(t, 200, get(handler).Code)
	require.Equal(t, 429, get(handler).Code) // b is 1 s from its charge, and would be 2 s by a further reading
	assert.Equal(t, []string{"a", "b"}, heard.Violated)
}

// Costs of one key add up beyond what an int holds on 32 bits, and are denied as that sum.
func TestMiddleware_CostsAreSummedInFull(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		lim := newLimiter(t, sluice.Config{Limit: sluice.PerSecond(1e9).WithBurst(math.MaxInt32), Shadow: shadow, Clock: newClock()})
		var heard httplimit.Decision
		c := httplimit.Config{OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d }}
		for i, cost := range []int{1, math.MaxInt32} {
			c.Policies = append(c.Policies, httplimit.Policy{Name: fmt.Sprint(i), Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return cost }})
		}
		get(wrap(t, c, ok200))
		if shadow {
			assert.Equal(t, []string{"0", "1"}, heard.WouldDeny)
		} else {
			assert.Equal(t, []string{"0", "1"}, heard.Violated)
		}
		assert.Equal(t, math.MaxInt32, lim.Key("k").Peek(0).Remaining, "shadow=%v", shadow)
	}
}

// At MaxKeys a new key is denied although it would be admitted a moment later; every policy
// without room is named all the same.
func TestMiddleware_DenyNewIsNamed(t *testing.T) {
	clock := newClock()
	full := newLimiter(t, sluice.Config{Limit: sluice.PerMinute(6), MaxKeys: 1, Overflow: sluice.OverflowDenyNew, Clock: clock})
	require.True(t, full.Allow("somebody else"))
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: "roomy", Limiter: gcra(t, sluice.PerMinute(6), clock), Key: oneKey},
		{Name: "full", Limiter: full, Key: oneKey},
		{Name: "full for another", Limiter: full, Key: func(*http.Request) (string, error) { return "another", nil }},
	}}, ok200)
	w := get(handler)
	assert.Equal(t, 429, w.Code)
	assert.JSONEq(t, `["full","full for another"]`, violated(t, w))
	assert.Equal(t, "10", w.Header().Get("Retry-After"))
}

func TestMiddleware_MoreThanEightPolicies(t *testing.T) {
	clock := newClock()
	c := httplimit.Config{Headers: allHeaders}
	for i := range 12 {
		c.Policies = append(c.Policies, httplimit.Policy{Name: fmt.Sprint(i), Limiter: gcra(t, sluice.PerMinute(12-i), clock), Key: oneKey})
	}
	handler := wrap(t, c, ok200)
	w := get(handler)
	assert.Equal(t, 200, w.Code)
	items, err := parseSFList(w.Header().Get("RateLimit"))
	require.NoError(t, err)
	assert.Len(t, items, 12)
	w = get(handler)
	assert.JSONEq(t, `["11"]`, violated(t, w))
}
