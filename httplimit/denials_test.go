package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// jail returns a policy that counts denials of "throttle": 2 an hour, and then a day.
func jail(l *sluice.Limiter) httplimit.Policy {
	return httplimit.Policy{Name: "jail", Limiter: l, Key: oneKey, CountsDenialsOf: "throttle"}
}

// TestCountsDenialsOf_Refused: what could never ban, or ban the wrong thing, is an error that says what would be right.
func TestCountsDenialsOf_Refused(t *testing.T) {
	limiter := newLimiter(t, sluice.Config{Limit: sluice.PerHour(2)})
	throttle := httplimit.Policy{Name: "throttle", Limiter: limiter, Key: oneKey}
	for _, c := range []struct {
		change func(p *httplimit.Policy)
		want   string
	}{
		{func(p *httplimit.Policy) { p.CountsDenialsOf = "Throttle" }, `"Throttle" is the name of no policy; want one of ["throttle" "other"]`},
		{func(p *httplimit.Policy) { p.CountsDenialsOf = "jail" }, `"jail" is the policy itself; want the name of another`},
		{func(p *httplimit.Policy) { p.CountsDenialsOf = "other" }, `"other" counts denials of this policy in turn, so that none of them ever denies; want the name of a policy that counts requests`},
		{func(p *httplimit.Policy) { p.Settle = func(*http.Request, int) int { return 0 } }, "is set, and so is Settle, which is not asked about what is denied; want one of them"},
		{func(p *httplimit.Policy) {
			p.Limiter = newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
		}, "is set for a Limiter of in-flight, and what is denied does not run; want another algorithm"},
	} {
		p, other := jail(limiter), httplimit.Policy{Name: "other", Limiter: limiter, Key: oneKey}
		if c.change(&p); p.CountsDenialsOf == "other" {
			other.CountsDenialsOf = "jail"
		}
		_, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{p, throttle, other}})
		var e *httplimit.ConfigError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, &httplimit.ConfigError{Field: "Config.Policies[0].CountsDenialsOf", Reason: c.want}, e)
	}
}

// TestCountsDenialsOf_SaysWhoBans: the request whose denial bans names both policies, as all see them, and a request is
// not asked what it costs finally. A denial of the ban is none of the throttle.
func TestCountsDenialsOf_SaysWhoBans(t *testing.T) {
	clock := sluice.NewManualClock(time.Now())
	throttle := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), Clock: clock})
	banned := newLimiter(t, sluice.Config{Limit: sluice.PerHour(4), BlockFor: 24 * time.Hour, Clock: clock, Stats: true})
	for _, settles := range []bool{false, true} {
		throttle.Key("k").Reset()
		banned.Key("k").Unblock()
		banned.Key("k").Reset()
		var charges [][]httplimit.PolicyCharge
		p := jail(banned)
		p.Cost = func(*http.Request) int { return 2 }
		var got []string
		c := httplimit.Config{
			Headers:  httplimit.Headers{RateLimit: httplimit.Draft11},
			Policies: []httplimit.Policy{p, {Name: "throttle", Limiter: throttle, Key: oneKey}},
			OnDecision: func(_ *http.Request, d httplimit.Decision) {
				got = append(got, fmt.Sprint(d.Violated, d.RetryAfter, d.Remaining))
				charges = append(charges, d.Charges)
			},
		}
		if settles {
			c.Settle = func(*http.Request, int) int { return 3 } // of the throttle, which owes 2 then
		}
		handler := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 2 {
			get(handler)
		}
		assert.Contains(t, get(handler).Header().Get("RateLimit"), `"jail";r=0;t=86400`, "as it stands now")
		stats := banned.Stats()
		get(handler)
		assert.Equal(t, stats, banned.Stats(), "what it denies itself it does not count")
		wait := "1h0m0s"
		if settles {
			wait = "3h0m0s"
		}
		assert.Equal(t, []string{"[] 0s 0", "[throttle] " + wait + " 0", "[jail throttle] 24h0m0s 0", "[jail throttle] 24h0m0s 0"}, got)
		counted := []httplimit.PolicyCharge{{Policy: "jail", Key: "k", Cost: 2}, {Policy: "throttle", Key: "k", Cost: 1}}
		looked := []httplimit.PolicyCharge{{Policy: "jail", Key: "k"}, {Policy: "throttle", Key: "k", Cost: 1}}
		assert.Equal(t, [][]httplimit.PolicyCharge{nil, counted, counted, looked}, charges)
		clock.Advance(12 * time.Hour)
		got = nil
		get(handler)
		assert.Equal(t, []string{"[jail] 12h0m0s 0"}, got)
		clock.Advance(12 * time.Hour)
	}
}

// TestCountsDenialsOf_Shadow: a ban that is tried out denies nobody, and counts what is denied, or would be in shadow mode;
// a ban in force counts only what is denied.
func TestCountsDenialsOf_Shadow(t *testing.T) {
	for _, c := range []struct {
		throttle, ban bool // in shadow mode
		want          []string
	}{
		{false, true, []string{"[] []", "[throttle] []", "[throttle] []", "[throttle] []"}},
		{true, true, []string{"[] []", "[] [throttle]", "[] [throttle jail]", "[] [throttle jail]"}},
		{true, false, []string{"[] []", "[] [throttle]", "[] [throttle]", "[] [throttle]"}},
	} {
		clock := sluice.NewManualClock(time.Now())
		throttle := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), Clock: clock, Shadow: c.throttle})
		banned := newLimiter(t, sluice.Config{Limit: sluice.PerHour(2), BlockFor: 24 * time.Hour, Clock: clock, Shadow: c.ban})
		var got []string
		handler := wrap(t, httplimit.Config{
			Policies:   []httplimit.Policy{{Name: "throttle", Limiter: throttle, Key: oneKey}, jail(banned)},
			OnDecision: func(_ *http.Request, d httplimit.Decision) { got = append(got, fmt.Sprint(d.Violated, d.WouldDeny)) },
		}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 4 {
			get(handler)
		}
		assert.Equal(t, c.want, got)
		clock.Advance(time.Hour)
		got = nil
		get(handler)
		want := map[bool]string{true: "[] [jail]", false: "[] []"}[c.ban]
		assert.Equal(t, []string{want}, got)
	}
}

var errAway = errors.New("away")

// awayFar is a Remote that does not answer.
type awayFar struct{}

func (awayFar) Take(context.Context, string, int) (sluice.Decision, error) {
	return sluice.Decision{}, errAway
}
func (awayFar) Refund(context.Context, string, int) error { return nil }

// TestCountsDenialsOf_Remote: a Remote counts what Limiters and Remotes deny. If it does not answer, the request is denied
// all the same, and the error told.
func TestCountsDenialsOf_Remote(t *testing.T) {
	clock := sluice.NewManualClock(time.Now())
	remote := newFar(t, sluice.Config{Limit: sluice.PerHour(2), BlockFor: 24 * time.Hour, Clock: clock})
	far := newFar(t, sluice.Config{Limit: sluice.PerHour(1), Clock: clock})
	p := jail(nil)
	p.Remote = remote
	var last httplimit.Decision
	c := httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "throttle", Remote: far, Key: oneKey}, p},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { last = d },
	}
	handler := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get(handler)
	assert.True(t, last.Allowed)
	assert.Equal(t, []string{"take k 0"}, remote.heardCalls())
	get(handler)
	assert.Equal(t, []string{"throttle"}, last.Violated)
	get(handler)
	assert.Equal(t, []string{"throttle", "jail"}, last.Violated)
	assert.Equal(t, 24*time.Hour, last.RetryAfter)
	assert.Equal(t, []string{"take k 1", "take k 1", "take k 1"}, remote.heardCalls())
	clock.Advance(2 * time.Hour)
	get(handler)
	assert.Equal(t, []string{"jail"}, last.Violated)
	assert.Equal(t, 1, far.Key("k").Peek(0).Remaining, "given back")

	c.Policies[1].Remote = awayFar{}
	c.Policies[0].Remote, c.Policies[0].Limiter = nil, newLimiter(t, sluice.Config{Limit: sluice.DenyAll})
	handler = wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	assert.Equal(t, http.StatusTooManyRequests, get(handler).Code)
	assert.ErrorIs(t, last.RemoteError, errAway)
}

// TestCountsDenialsOf_LargeCost: a request that costs more than the ban has room for uses it up.
func TestCountsDenialsOf_LargeCost(t *testing.T) {
	for _, remote := range []bool{false, true} {
		for _, cost := range []int{2, 3, 4, 5000} {
			clock := sluice.NewManualClock(time.Now())
			config := sluice.Config{Limit: sluice.PerHour(3), BlockFor: 24 * time.Hour, Clock: clock}
			p := jail(newLimiter(t, config))
			bans := p.Limiter
			if p.Cost = func(*http.Request) int { return cost }; remote {
				far := newFar(t, config)
				bans, p.Limiter, p.Remote = far.Limiter, nil, far
			}
			var last httplimit.Decision
			handler := wrap(t, httplimit.Config{
				Policies:   []httplimit.Policy{{Name: "throttle", Limiter: newLimiter(t, sluice.Config{Limit: sluice.DenyAll}), Key: oneKey}, p},
				OnDecision: func(_ *http.Request, d httplimit.Decision) { last = d },
			}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			if get(handler); cost == 2 {
				assert.Equal(t, []string{"throttle"}, last.Violated)
				get(handler)
			}
			assert.Equal(t, []string{"throttle", "jail"}, last.Violated, "%d, remote %v", cost, remote)
			clock.Advance(23 * time.Hour)
			assert.Equal(t, time.Hour, bans.Key("k").Peek(1).RetryAfter, "%d, remote %v", cost, remote)
		}
	}
}
