package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// hookedRemote calls a function in Take and in Refund.
type hookedRemote struct{ take, refund func() }

func (h hookedRemote) Take(context.Context, string, int) (sluice.Decision, error) {
	h.take()
	return sluice.Decision{Limit: 10}, nil
}
func (h hookedRemote) Refund(context.Context, string, int) error { h.refund(); return nil }

// TestInFlight_EachCallbackPanics: nothing stays in use, in the middleware and by the Judge. What else was charged, is
// settled as for a handler that panics.
func TestInFlight_EachCallbackPanics(t *testing.T) {
	boom, nothing := func() { panic("boom") }, func() {}
	for name, hook := range map[string]func(*httplimit.Config){
		"Skip": func(c *httplimit.Config) { c.Skip = func(*http.Request) bool { panic("boom") } },
		"Key":  func(c *httplimit.Config) { c.Policies[1].Key = func(*http.Request) (string, error) { panic("boom") } },
		"Cost": func(c *httplimit.Config) { c.Policies[1].Cost = func(*http.Request) int { panic("boom") } },
		"Limit": func(c *httplimit.Config) {
			c.Policies[1].Limit = func(*http.Request) (sluice.Limit, error) { panic("boom") }
		},
		"OnDecision": func(c *httplimit.Config) { c.OnDecision = func(*http.Request, httplimit.Decision) { panic("boom") } },
		"Settle":     func(c *httplimit.Config) { c.Settle = func(*http.Request, int) int { panic("boom") } },
		"PartitionKey": func(c *httplimit.Config) {
			c.Headers = httplimit.Headers{RateLimit: httplimit.Draft11, PartitionKey: func(string, string) []byte { panic("boom") }}
		},
		"OnDenied": func(c *httplimit.Config) {
			c.Policies = append(c.Policies, httplimit.Policy{Name: "none", Key: oneKey, Limiter: newLimiter(t, sluice.Config{Limit: sluice.DenyAll})})
			c.OnDenied = func(http.ResponseWriter, *http.Request, httplimit.Decision) { panic("boom") }
		},
		"Remote.Take": func(c *httplimit.Config) {
			c.Policies = append(c.Policies, httplimit.Policy{Name: "remote", Key: oneKey, Remote: hookedRemote{boom, nothing}})
		},
		"Remote.Take in shadow": func(c *httplimit.Config) {
			c.Policies = append(c.Policies, httplimit.Policy{Name: "remote", Key: oneKey, Remote: hookedRemote{boom, nothing}, Shadow: true})
		},
		"Remote.Refund": func(c *httplimit.Config) {
			c.Policies = append(c.Policies, httplimit.Policy{Name: "first", Key: oneKey, Remote: admitting{hookedRemote{nothing, boom}}},
				httplimit.Policy{Name: "second", Key: oneKey, Remote: hookedRemote{nothing, nothing}})
		},
	} {
		for _, settles := range []bool{false, true} {
			atOnce, all, c := requestsAtOnce(t)
			statuses := map[int]int{}
			if settles {
				c.Settle = func(_ *http.Request, status int) int { statuses[status]++; return 0 }
			}
			hook(&c)
			called := 0
			handler := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called++ }))
			judge, err := httplimit.New(c)
			require.NoError(t, err)
			for range 3 {
				require.PanicsWithValue(t, "boom", func() { get(handler) }, name)
				require.PanicsWithValue(t, "boom", func() {
					v := judge.Decide(http.Header{}, httptest.NewRequest("GET", "/", nil))
					if !v.Allowed {
						v.Answer(httptest.NewRecorder())
					}
					defer v.Settle(http.StatusInternalServerError)
					if name == "Settle" {
						called++
					}
				}, name)
			}
			require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining, name)
			require.Equal(t, map[bool]int{true: 6}[name == "Settle"], called, name)
			after, decided := map[string]int{"OnDecision": 6, "PartitionKey": 6, "Remote.Take": 6, "Remote.Take in shadow": 6, "Remote.Refund": 6}[name], 10
			if !settles && after > 0 || name == "Settle" {
				decided -= 6
			}
			require.Equal(t, decided, all.Key("k").Peek(0).Remaining, name)
			if settles && name != "Settle" {
				require.Equal(t, after, statuses[http.StatusInternalServerError], name)
				require.Zero(t, statuses[http.StatusOK], name)
			}
		}
	}
}

// admitting is a Remote that admits.
type admitting struct{ hookedRemote }

func (a admitting) Take(context.Context, string, int) (sluice.Decision, error) {
	return sluice.Decision{Allowed: true, Limit: 10, Remaining: 9}, nil
}

// TestInFlight_OnCountedTwicePanics: the request inside has charged nothing, and the one around it ends.
func TestInFlight_OnCountedTwicePanics(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	c.OnCountedTwice = func(*http.Request) { panic("boom") }
	limit, err := httplimit.New(c)
	require.NoError(t, err)
	twice := limit.Handler(limit.Handler(ok200))
	for range 3 {
		require.PanicsWithValue(t, "boom", func() { get(twice) })
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
	}
}

// TestMiddleware_ShadowWithoutAKey: a policy in shadow mode denies nobody for want of a key either. What is without a key
// is said.
func TestMiddleware_ShadowWithoutAKey(t *testing.T) {
	bad := func(*http.Request) (string, error) { return "", httplimit.ErrBadKey }
	none := func(*http.Request) (string, error) { return "", httplimit.ErrNoKey }
	shadow := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), Shadow: true, Clock: newClock()})
	enforced := func() httplimit.Policy {
		return httplimit.Policy{Name: "all", Limiter: gcra(t, sluice.PerHour(1), newClock()), Key: oneKey}
	}
	for _, action := range []httplimit.KeyErrorAction{httplimit.KeyErrorDeny, httplimit.KeyErrorSkip} {
		for _, key := range []httplimit.KeyFunc{bad, none} {
			for _, p := range []httplimit.Policy{
				{Name: "new", Limiter: shadow, Key: key},
				{Name: "new", Limiter: shadow, Key: oneKey, Limit: func(r *http.Request) (sluice.Limit, error) { _, err := key(r); return sluice.Limit{}, err }},
				{Name: "new", Remote: failingRemote{}, Shadow: true, Key: key},
			} {
				for _, policies := range [][]httplimit.Policy{{p}, {p, enforced()}} {
					var heard []httplimit.Decision
					h := wrap(t, httplimit.Config{Policies: policies, OnKeyError: action, OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = append(heard, d) }}, ok200)
					_, want := key(nil)
					require.Equal(t, http.StatusOK, get(h).Code)
					require.ErrorIs(t, heard[0].KeyError, want)
					if passed := action == httplimit.KeyErrorSkip && want == httplimit.ErrNoKey; passed {
						require.Empty(t, heard[0].WouldDeny)
					} else {
						require.Equal(t, []string{"new"}, heard[0].WouldDeny)
					}
					require.Empty(t, heard[0].Violated)
					if len(policies) > 1 {
						require.Equal(t, http.StatusTooManyRequests, get(h).Code)
						require.Equal(t, []string{"all"}, heard[1].Violated)
						require.Empty(t, heard[1].WouldDeny)
					}
				}
			}
		}
	}
	h := wrap(t, httplimit.Config{Policies: []httplimit.Policy{{Name: "new", Limiter: shadow, Key: none}, {Name: "old", Limiter: gcra(t, sluice.PerHour(1), newClock()), Key: bad}}}, ok200)
	require.Equal(t, http.StatusBadRequest, get(h).Code, "the other policy is enforced")
}
