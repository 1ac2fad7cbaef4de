package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

func TestRemote_Settle(t *testing.T) {
	for _, tt := range []struct {
		settled int
		open    time.Duration // the request
		before  int           // units that the key has been charged before it
		want    []string
	}{
		{3, 0, 0, []string{"take k 3"}},
		{-1, 0, 0, []string{"take k 3"}},
		{0, 0, 0, []string{"take k 3", "refund k 3"}},
		{1, 0, 4, []string{"take k 3", "refund k 2"}},
		{0, 6 * time.Second, 0, []string{"take k 3", "refund k 2"}}, // one has come back
		{0, 7 * time.Second, 0, []string{"take k 3", "refund k 2"}},
		{0, 18 * time.Second, 0, []string{"take k 3"}},
		{0, time.Hour, 4, []string{"take k 3"}},
		{0, 24 * time.Second, 4, []string{"take k 3", "refund k 3"}}, // of 7, 4 are back
		{5, 0, 0, []string{"take k 3", "take k 0", "take k 2"}},
		{50, 0, 0, []string{"take k 3", "take k 0", "take k 7"}}, // all that remains
		{5, 0, 7, []string{"take k 3", "take k 0"}},
	} {
		t.Run(fmt.Sprintf("settled=%d/open=%v/before=%d", tt.settled, tt.open, tt.before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				remote := newFar(t, sluice.Config{Limit: sluice.PerMinute(10), BlockFor: time.Hour})
				remote.Limiter.Take("k", tt.before)
				handler := wrap(t, httplimit.Config{
					Policies: []httplimit.Policy{{Name: "far", Remote: remote, Key: oneKey, Cost: func(*http.Request) int { return 3 }}},
					Settle:   func(*http.Request, int) int { return tt.settled },
				}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(tt.open) }))
				assert.Equal(t, 200, get(handler).Code)
				assert.Equal(t, tt.want, remote.heardCalls())
				assert.Less(t, remote.Key("k").Peek(0).RetryAfter, time.Hour, "nobody has been blocked")
			})
		})
	}
}

// owing is a far that can be charged more than remains.
type owing struct{ *far }

func (o owing) Debit(_ context.Context, key string, cost int) (sluice.Decision, error) {
	o.note("charge %s %d", key, cost)
	return o.Limiter.Key(key).Debit(cost), nil
}

// A Remote that can make debts is charged all that a request has cost.
func TestRemote_SettleInDebt(t *testing.T) {
	remote := owing{newFar(t, sluice.Config{Limit: sluice.PerMinute(10), Clock: newClock()})}
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "far", Remote: remote, Key: oneKey, Cost: func(*http.Request) int { return 3 }}},
		Settle:   func(*http.Request, int) int { return 50 },
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, []string{"take k 3", "charge k 47"}, remote.heardCalls())
	assert.Equal(t, 246*time.Second, remote.Key("k").Peek(1).RetryAfter, "40 units are owed, and one is to come")
}

// A request does not get back units that others charge while a Remote is asked.
func TestRemote_SettleOfALimiterIsOfTheDecision(t *testing.T) {
	clock := newClock()
	lim, remote := gcra(t, sluice.PerMinute(10), clock), newFar(t, sluice.Config{Limit: sluice.PerMinute(10)})
	remote.meanwhile = func(context.Context) error { lim.Allow("k"); lim.AllowN("k", 4); return nil }
	get(wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "local", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 3 }}, {Name: "far", Remote: remote, Key: oneKey}},
		Settle:   func(*http.Request, int) int { return 0 },
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { clock.Advance(18 * time.Second) })))
	assert.Equal(t, 5, lim.Key("k").Peek(0).Remaining, "all 3 have come back by themselves")
}

// Each policy is settled, whatever it counts by, with Decide as with the middleware, and an
// error of one keeps none of the others from it.
func TestRemote_SettleOfAll(t *testing.T) {
	for _, decides := range []bool{false, true} {
		clock := newClock()
		lim, remote, fails := gcra(t, sluice.PerMinute(5), clock), newFar(t, sluice.Config{Limit: sluice.PerMinute(5)}), newFar(t, sluice.Config{Limit: sluice.PerMinute(5)})
		judge, err := httplimit.New(httplimit.Config{
			Policies: []httplimit.Policy{{Name: "fails", Remote: fails, Key: oneKey}, {Name: "far", Remote: remote, Key: oneKey}, {Name: "local", Limiter: lim, Key: oneKey}},
			Settle:   func(*http.Request, int) int { return 0 },
		})
		require.NoError(t, err)
		breakIt := func() { fails.meanwhile = func(context.Context) error { return errDown } }
		if decides {
			v := judge.Decide(http.Header{}, httptest.NewRequest(http.MethodGet, "/", nil))
			require.True(t, v.Allowed)
			breakIt()
			v.Settle(200)
		} else {
			get(judge.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { breakIt() })))
		}
		assert.Equal(t, []string{"take k 1", "refund k 1"}, remote.heardCalls())
		assert.Equal(t, 5, lim.Key("k").Peek(0).Remaining)
	}
}
