package httplimit_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

var everyAlgorithm = []sluice.Algorithm{
	sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket, sluice.SlidingWindow, sluice.SlidingLog, sluice.FixedWindow,
}

// Every response tells the limit in force for its key, and says what is true under it.
func TestHeaders_FollowLimitsThatChange(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		t.Run(fmt.Sprint("algorithm=", algorithm), func(t *testing.T) {
			clock := newClock()
			lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
			other := gcra(t, sluice.PerHour(100), clock)
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: byHeader("User")}, {Name: "other", Limiter: other, Key: oneKey}},
				Headers:  allHeaders,
			}, ok200)
			told := func(user string) (policies, remaining string) {
				h := get(handler, "User", user).Header()
				limits, err := parseSFList(h.Get("RateLimit"))
				require.NoError(t, err)
				remaining = "-"
				if limits[0].value == "p" {
					remaining = fmt.Sprint(limits[0].params["r"])
				}
				return h.Get("RateLimit-Policy"), remaining
			}
			expect := func(user, policy, remaining string) {
				t.Helper()
				const rest = `"other";q=100;w=3600`
				policies, r := told(user)
				assert.Equal(t, policy+rest, policies)
				assert.Equal(t, remaining, r)
			}
			expect("ann", `"p";q=10;w=60, `, "9")
			require.NoError(t, lim.SetLimit(sluice.PerMinute(30)))
			expect("ann", `"p";q=30;w=60, `, "28")
			require.NoError(t, lim.Key("bob").SetLimit(sluice.PerMinute(5)))
			expect("bob", `"p";q=5;w=60, `, "4")
			expect("ann", `"p";q=30;w=60, `, "27")
			require.NoError(t, lim.Key("bob").SetLimit(sluice.Unlimited))
			expect("bob", "", "-")
			require.NoError(t, lim.Key("bob").SetLimit(sluice.DenyAll))
			expect("bob", `"p";q=0, `, "0")
			lim.Key("bob").ClearLimit()
			expect("bob", `"p";q=30;w=60, `, "28")
			require.NoError(t, lim.SetLimit(sluice.PerMinute(10)))
			expect("ann", `"p";q=10;w=60, `, "6")
		})
	}
}

// A policy that limits nobody at first is told of once it does.
func TestHeaders_FollowALimitThatBeginsUnlimited(t *testing.T) {
	lim := gcra(t, sluice.Unlimited, newClock())
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
		Headers:  allHeaders,
	}, ok200)
	assert.Empty(t, get(handler).Header())
	require.NoError(t, lim.SetLimit(sluice.PerMinute(2)))
	assert.Equal(t, `"p";q=2;w=60`, get(handler).Header().Get("RateLimit-Policy"))
}

// A blocked key is told when its block ends, by every field, from the denial that
// blocks it on; and whoever waits for that long is admitted.
func TestHeaders_OfABlockedKey(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, policies := range []int{1, 2} {
			t.Run(fmt.Sprintf("algorithm=%v/policies=%d", algorithm, policies), func(t *testing.T) {
				clock := newClock()
				c := httplimit.Config{Headers: allHeaders, Policies: []httplimit.Policy{{Name: "p", Key: oneKey, Limiter: newLimiter(t, sluice.Config{
					Algorithm: algorithm, Limit: sluice.PerMinute(2), BlockFor: 10*time.Minute - time.Second/2, Clock: clock,
				})}}}
				if policies == 2 {
					c.Policies = append(c.Policies, httplimit.Policy{Name: "other", Key: oneKey, Limiter: gcra(t, sluice.PerHour(100), clock)})
				}
				handler := wrap(t, c, ok200)
				for range 2 {
					get(handler)
				}
				for _, want := range []string{"600", "599", "1"} {
					w := get(handler)
					require.Equal(t, http.StatusTooManyRequests, w.Code)
					assert.JSONEq(t, `["p"]`, violated(t, w))
					assert.Equal(t, want, w.Header().Get("Retry-After"))
					assert.Equal(t, want, w.Header().Get("X-RateLimit-Retry-After"))
					assert.Equal(t, want, w.Header().Get("X-RateLimit-Reset"))
					assert.Equal(t, "0", w.Header().Get("X-RateLimit-Remaining"))
					limits, err := parseSFList(w.Header().Get("RateLimit"))
					require.NoError(t, err)
					seconds, err := strconv.ParseInt(want, 10, 64)
					require.NoError(t, err)
					assert.Equal(t, sfItem{"p", map[string]any{"r": int64(0), "t": seconds}}, limits[0])
					clock.Advance(map[string]time.Duration{"600": time.Second, "599": 598 * time.Second, "1": time.Second}[want])
				}
				assert.Equal(t, http.StatusOK, get(handler).Code)
			})
		}
	}
}

// A block that does not end has no time to be told.
func TestHeaders_OfAKeyThatIsBlockedForGood(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(2), Clock: newClock()})
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
			Headers:  allHeaders,
		}, ok200)
		require.True(t, lim.Key("k").Block(math.MaxInt64))
		w := get(handler)
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.Equal(t, `"p";q=2;w=60`, w.Header().Get("RateLimit-Policy"), "%v", algorithm)
		assert.Equal(t, `"p";r=0`, w.Header().Get("RateLimit"), "%v", algorithm)
		for _, name := range []string{"Retry-After", "X-RateLimit-Retry-After", "X-RateLimit-Reset"} {
			assert.Empty(t, w.Header().Values(name), "%v: %s", algorithm, name)
		}
	}
}

// A handler that settles at more than remains has not been denied anything: it must not
// block the key. Nor does a block make up for what is charged and given back.
func TestSettle_DoesNotBlock(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), BlockFor: time.Hour, Stats: true, Clock: newClock()})
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
			Settle:   func(*http.Request, int) int { return 20 },
		}, ok200)
		assert.Equal(t, http.StatusOK, get(handler).Code)
		d := lim.Key("k").Peek(1)
		assert.Zero(t, d.Remaining)
		assert.LessOrEqual(t, d.RetryAfter, 2*time.Minute, "%v: the key is blocked", algorithm)
		assert.Zero(t, lim.Stats().Denied, "%v", algorithm)
	}
}

// Limits, blocks and plans change while requests run: nothing is torn, and what is told
// is always one of the limits.
func TestMiddleware_LimitsChangeWhileRequestsRun(t *testing.T) {
	limits := []sluice.Limit{sluice.PerMinute(10), sluice.PerHour(1000), sluice.Unlimited, sluice.DenyAll}
	want := map[string]bool{`"p";q=10;w=60`: true, `"p";q=1000;w=3600`: true, "": true, `"p";q=0`: true}
	for _, algorithm := range everyAlgorithm {
		lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: limits[0]})
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: byHeader("User")}},
			Headers:  allHeaders,
			Settle:   func(*http.Request, int) int { return 0 },
		}, ok200)
		done := make(chan struct{})
		var changes, requests sync.WaitGroup
		changes.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				assert.NoError(t, lim.SetLimit(limits[i%4]))
				assert.NoError(t, lim.Key("1").SetLimit(limits[i/4%4]))
				lim.Key("2").Block(time.Millisecond)
				lim.Key("1").ClearLimit()
			}
		})
		for g := range 4 {
			requests.Go(func() {
				for range 300 {
					w := get(handler, "User", strconv.Itoa(g%3))
					assert.Contains(t, want, w.Header().Get("RateLimit-Policy"))
					_, err := parseSFList(w.Header().Get("RateLimit"))
					assert.NoError(t, err)
				}
			})
		}
		requests.Wait()
		close(done)
		changes.Wait()
	}
}

// Beyond the units of Soft, whoever asks for one unit is told to wait for the first that
// comes back, which is one of Soft, whatever other headers say so.
func TestHeaders_SoftMakesNoWaitLonger(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, headers := range []httplimit.Headers{{}, allHeaders} {
			clock := newClock()
			lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(6), Soft: 3, Clock: clock})
			var d httplimit.Decision
			handler := wrap(t, httplimit.Config{
				Policies:   []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
				Headers:    headers,
				OnDecision: func(_ *http.Request, got httplimit.Decision) { d = got },
			}, ok200)
			for i := range 9 {
				clock.Advance(time.Second / 2)
				require.Equal(t, http.StatusOK, get(handler).Code)
				if headers.RateLimit == httplimit.Draft11 && i >= 6 {
					limits, err := parseSFList(get(wrap(t, httplimit.Config{
						Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 0 }}},
						Headers:  headers,
					}, ok200)).Header().Get("RateLimit"))
					require.NoError(t, err)
					assert.Equal(t, int64(0), limits[0].params["r"], "%v: units of Soft are not shown", algorithm)
					assert.Positive(t, limits[0].params["t"], "%v", algorithm)
				}
			}
			w := get(handler)
			require.Equal(t, http.StatusTooManyRequests, w.Code)
			want := (d.RetryAfter + time.Second - 1) / time.Second
			assert.Equal(t, strconv.Itoa(int(want)), w.Header().Get("Retry-After"), "%v", algorithm)
			clock.Advance(want * time.Second)
			assert.Equal(t, http.StatusOK, get(handler).Code, "%v", algorithm)
			assert.Equal(t, algorithm != sluice.FixedWindow, d.OverSoft, "%v", algorithm)
		}
	}
}

// byLimit is a request's own limit: that of its header Limit.
func byLimit(r *http.Request) (limit sluice.Limit, err error) {
	return limit, limit.UnmarshalText([]byte(r.Header.Get("Limit")))
}

// A request that brings a limit goes by it, with what its key has spent, and is told of it;
// one without goes by the limit of its key.
func TestPolicy_LimitOfARequest(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, policies := range []int{1, 2} {
			t.Run(fmt.Sprintf("algorithm=%v/policies=%d", algorithm, policies), func(t *testing.T) {
				clock := newClock()
				lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(3), Clock: clock})
				c := httplimit.Config{
					Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: byHeader("User"), Limit: byLimit}},
					Headers:  httplimit.Headers{RateLimitPolicy: httplimit.Draft11, XRemaining: true},
				}
				if policies == 2 {
					c.Policies = append(c.Policies, httplimit.Policy{Name: "other", Limiter: gcra(t, sluice.Unlimited, clock), Key: oneKey})
				}
				handler := wrap(t, c, ok200)
				for i, want := range []struct {
					limit, told, remaining string
					status                 int
				}{
					{"", `"p";q=3;w=60`, "2", 200},
					{"1/m", `"p";q=1;w=60`, "0", 429},
					{"", `"p";q=3;w=60`, "1", 200},
					{"", `"p";q=3;w=60`, "0", 200},
					{"", `"p";q=3;w=60`, "0", 429},
					{"5/m", `"p";q=5;w=60`, "1", 200},
					{"5/m", `"p";q=5;w=60`, "0", 200},
					{"5/m", `"p";q=5;w=60`, "0", 429},
					{"0/s", `"p";q=0`, "0", 429},
					{"unlimited", "", "", 200},
				} {
					w := get(handler, "User", "ann", "Limit", want.limit)
					assert.Equal(t, want.status, w.Code, i)
					assert.Equal(t, want.told, w.Header().Get("RateLimit-Policy"), i)
					assert.Equal(t, want.remaining, w.Header().Get("X-RateLimit-Remaining"), i)
				}
				assert.Equal(t, sluice.PerMinute(3), lim.Key("ann").Limit(), "nothing is kept for the key")
			})
		}
	}
}

// A limit that is none is an error like one of the key: no limiter is asked.
func TestPolicy_LimitErrors(t *testing.T) {
	errNone := errors.New("no such customer")
	for _, tt := range []struct {
		name  string
		limit func(*http.Request) (sluice.Limit, error)
		act   httplimit.KeyErrorAction
		want  int
		check func(error) bool
	}{
		{"an error", func(*http.Request) (sluice.Limit, error) { return sluice.PerSecond(1), errNone }, httplimit.KeyErrorSkip, 400,
			func(err error) bool { return errors.Is(err, errNone) }},
		{"no key", func(*http.Request) (sluice.Limit, error) { return sluice.Limit{}, httplimit.ErrNoKey }, httplimit.KeyErrorSkip, 200,
			func(err error) bool { return errors.Is(err, httplimit.ErrNoKey) }},
		{"no key, denied", func(*http.Request) (sluice.Limit, error) { return sluice.Limit{}, httplimit.ErrNoKey }, httplimit.KeyErrorDeny, 400,
			func(err error) bool { return errors.Is(err, httplimit.ErrNoKey) }},
		{"a limit that New refuses", func(*http.Request) (sluice.Limit, error) { return sluice.Limit{Rate: 1}, nil }, httplimit.KeyErrorSkip, 400,
			func(err error) bool { return errors.As(err, new(*sluice.ConfigError)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lim := gcra(t, sluice.PerMinute(3), newClock())
			var heard error
			handler := wrap(t, httplimit.Config{
				Policies:   []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Limit: tt.limit}},
				OnKeyError: tt.act,
				OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d.KeyError },
			}, ok200)
			assert.Equal(t, tt.want, get(handler).Code)
			assert.True(t, tt.check(heard), "%v", heard)
			assert.Zero(t, lim.Len())
		})
	}
}

// The key gets what a request gives back that has brought a limit.
func TestPolicy_LimitOfARequestIsSettled(t *testing.T) {
	cost := 0
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(3), newClock()), Key: oneKey, Limit: byLimit}},
		Settle:   func(*http.Request, int) int { return cost },
	}, ok200)
	assert.Equal(t, http.StatusOK, get(handler, "Limit", "1/m").Code)
	cost = 1
	assert.Equal(t, http.StatusOK, get(handler, "Limit", "1/m").Code)
	assert.Equal(t, http.StatusTooManyRequests, get(handler, "Limit", "1/m").Code)
	assert.Equal(t, http.StatusOK, get(handler).Code)
}
