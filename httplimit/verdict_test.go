package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// Every hook learns under which keys a denied request was counted.
func TestDecision_ChargesOfADenial(t *testing.T) {
	clock := newClock()
	var heard, told httplimit.Decision
	c := httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "shadow", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Shadow: true, Clock: clock}), Key: oneKey},
			{Name: "user", Limiter: gcra(t, sluice.PerMinute(1), clock), Key: byHeader("User")},
			{Name: "all", Limiter: gcra(t, sluice.PerMinute(9), clock), Key: oneKey, Cost: func(*http.Request) int { return 3 }},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		OnDenied:   func(_ http.ResponseWriter, _ *http.Request, d httplimit.Decision) { told = d },
	}
	handler := wrap(t, c, ok200)
	get(handler, "User", "ann")
	assert.Nil(t, heard.Charges)
	get(handler, "User", "ann")
	want := []httplimit.PolicyCharge{{"user", "ann", 1}, {"all", "k", 3}, {"shadow", "k", 1}}
	assert.Equal(t, want, heard.Charges)
	assert.Equal(t, heard, told)
	get(handler)
	assert.ErrorIs(t, heard.KeyError, httplimit.ErrNoKey)
	assert.Empty(t, heard.Charges)
	c.OnKeyError = httplimit.KeyErrorSkip
	c.Explain = true
	get(wrap(t, c, ok200))
	assert.True(t, heard.Allowed)
	assert.Equal(t, want[1:], heard.Charges)
}

// With Explain a handler finds the decision on its request, and of nested ones its own.
func TestExplain_HandlersSeeTheDecision(t *testing.T) {
	clock := newClock()
	var seen, heard httplimit.Decision
	var ok bool
	handler := http.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen, ok = httplimit.DecisionFromContext(r.Context()) }))
	c := httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "p", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Soft: 1, Clock: clock}), Key: byHeader("User")}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		Settle:     func(*http.Request, int) int { return 1 },
	}
	get(wrap(t, c, handler), "User", "ann")
	assert.False(t, ok)
	c.Explain = true
	explains := wrap(t, c, handler)
	get(explains, "User", "ann")
	require.True(t, ok)
	assert.Equal(t, httplimit.Decision{Allowed: true, OverSoft: true, Charges: []httplimit.PolicyCharge{{"p", "ann", 1}}}, seen)
	assert.Equal(t, heard, seen)
	c.Policies[0].Name = "outer"
	c.Policies[0].Limiter = gcra(t, sluice.PerMinute(5), clock)
	get(wrap(t, c, explains), "User", "bob")
	assert.Equal(t, []httplimit.PolicyCharge{{"p", "bob", 1}}, seen.Charges)
}

// The list of who was denied most has the keys, not numbers, however requests are judged.
func TestMiddleware_DeniedClientsHaveNames(t *testing.T) {
	for policies := 1; policies <= 2; policies++ {
		clock := newClock()
		lim := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), TopDenied: 4, Clock: clock})
		c := httplimit.Config{Policies: []httplimit.Policy{
			{Name: "client", Limiter: lim, Key: sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))},
			{Name: "all", Limiter: gcra(t, sluice.PerHour(1_000_000), clock), Key: oneKey},
		}[:policies]}
		handler := wrap(t, c, ok200)
		for range 20_000 {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
		top := lim.TopDenied()
		require.Len(t, top, 1)
		assert.Equal(t, "192.0.2.1", top[0].Name)
		assert.LessOrEqual(t, top[0].Denied-top[0].Excess, uint64(19_999))
	}
}

// byHand is a middleware in the words of a framework that has one of its own.
func byHand(j *httplimit.Judge, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := j.Decide(w.Header(), r)
		if !v.Allowed {
			v.Answer(w)
			return
		}
		rec := httptest.NewRecorder()
		next(rec, v.Request())
		w.WriteHeader(rec.Code)
		_, _ = io.Copy(w, rec.Body)
		v.Settle(rec.Code)
	})
}

// Decide and Settle do what the middleware does, for every algorithm.
func TestDecide_AgreesWithTheMiddleware(t *testing.T) {
	rng := seeded.Rand(t)
	for _, algorithm := range everyAlgorithm {
		clock := newClock()
		config := func() (httplimit.Config, [2]*sluice.Limiter) {
			lims := [2]*sluice.Limiter{
				newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock}),
				newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerHour(40), Shadow: true, Clock: clock}),
			}
			return httplimit.Config{
				Policies: []httplimit.Policy{
					{Name: "user", Limiter: lims[0], Key: byHeader("User"), Cost: func(r *http.Request) int { return len(r.Header.Get("User")) % 4 }},
					{Name: "all", Limiter: lims[1], Key: oneKey},
				},
				Skip:    func(r *http.Request) bool { return r.Header.Get("User") == "skip" },
				Settle:  func(_ *http.Request, status int) int { return status - 200 },
				Headers: allHeaders,
				Explain: rng.IntN(2) == 0,
			}, lims
		}
		c, inner := config()
		d, byHands := config()
		judge, err := httplimit.New(d)
		require.NoError(t, err)
		status := 200
		next := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		one, other := wrap(t, c, http.HandlerFunc(next)), byHand(judge, next)
		outcomes := map[int]int{}
		for range 500 {
			clock.Advance(time.Duration(rng.IntN(4)) * time.Second)
			status = 200 + rng.IntN(6)
			var headers []string
			if user := []string{"", "skip", "b", "ab", "abc", "abcd"}[rng.IntN(6)]; user != "" {
				headers = []string{"User", user}
			}
			a, b := get(one, headers...), get(other, headers...)
			require.Equal(t, a.Code, b.Code)
			require.Equal(t, a.Body.String(), b.Body.String())
			require.Equal(t, a.Header(), b.Header())
			for i := range inner {
				for _, k := range []string{"k", "b", "ab", "abc", "abcd"} {
					require.Equal(t, inner[i].Key(k).Peek(1), byHands[i].Key(k).Peek(1))
				}
			}
			outcomes[a.Code]++
		}
		require.Len(t, outcomes, 8, "%v", outcomes)
	}
}

func TestVerdict_SettlesOnce(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(2), newClock())
	var asked []int
	cost := 0
	c := httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
		Settle:   func(_ *http.Request, status int) int { asked = append(asked, status); return cost },
	}
	judge, err := httplimit.New(c)
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	v := judge.Decide(http.Header{}, r)
	assert.Same(t, r, v.Request())
	v.Settle(200)
	assert.Equal(t, 2, lim.Key("k").Peek(0).Remaining)
	cost = 2
	v.Settle(401)
	assert.Equal(t, 2, lim.Key("k").Peek(0).Remaining)
	judge.Decide(http.Header{}, r).Settle(0)
	assert.Equal(t, []int{200, httplimit.StatusClientGone}, asked)
	assert.Zero(t, lim.Key("k").Peek(0).Remaining)
	v = judge.Decide(http.Header{}, r)
	assert.False(t, v.Allowed)
	v.Settle(200)
	assert.Len(t, asked, 2, "there is nothing to settle about a denial")

	c.Settle = nil
	c.Skip = func(*http.Request) bool { return true }
	judge, err = httplimit.New(c)
	require.NoError(t, err)
	v = judge.Decide(http.Header{}, r)
	assert.Equal(t, httplimit.Decision{Allowed: true, Remaining: math.MaxInt}, v.Decision)
	v.Settle(200)
}

func TestJudge_Errors(t *testing.T) {
	_, err := httplimit.New(httplimit.Config{})
	var e *httplimit.ConfigError
	require.True(t, errors.As(err, &e))
	assert.Equal(t, "Config.Policies", e.Field)
	judge, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(2), newClock()), Key: oneKey}}})
	require.NoError(t, err)
	assert.PanicsWithValue(t, "httplimit: the handler behind the middleware is nil; want a handler", func() { judge.Handler(nil) })
	assert.Equal(t, 200, get(judge.Handler(ok200)).Code)
}

func ExampleJudge_Decide() {
	logins := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	judge, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "logins", Limiter: logins, Key: httplimit.ByBasicAuthUser()}},
		Settle: func(_ *http.Request, status int) int {
			if status == http.StatusOK {
				return 0 // only failures count
			}
			return -1
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A framework whose handlers return an error, which it answers when all is done.
	type handlerFunc func(http.ResponseWriter, *http.Request) error
	limit := func(next handlerFunc) handlerFunc {
		return func(w http.ResponseWriter, r *http.Request) error {
			v := judge.Decide(w.Header(), r)
			if !v.Allowed {
				v.Answer(w)
				return nil
			}
			status := http.StatusInternalServerError // unless next returns
			defer func() { v.Settle(status) }()
			err := next(w, v.Request())
			switch {
			case err == nil:
				status = http.StatusOK
			case err.Error() == "wrong password":
				status = http.StatusUnauthorized
			}
			return err
		}
	}
	login := limit(func(w http.ResponseWriter, r *http.Request) error {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			return errors.New("wrong password")
		}
		return nil
	})
	try := func(password string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.SetBasicAuth("bob", password)
		_ = login(httptest.NewRecorder(), r)
		fmt.Println(logins.Key("bob").Peek(0).Remaining)
	}
	try("secret")
	try("guess")
	// Output:
	// 5
	// 4
}
