package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// far is a Remote that is a limiter of this process, and notes its calls.
type far struct {
	*sluice.Limiter
	meanwhile func(context.Context) error // while Take is under way
	mu        sync.Mutex
	calls     []string
	refund    context.Context
	left      time.Duration // that the last Refund had
}

func (f *far) Take(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	f.note("take %s %d", key, cost)
	if f.meanwhile != nil {
		if err := f.meanwhile(ctx); err != nil {
			return sluice.Decision{}, err
		}
	}
	return f.Limiter.Take(key, cost), nil
}

func (f *far) Refund(ctx context.Context, key string, cost int) error {
	f.note("refund %s %d", key, cost)
	f.mu.Lock()
	f.refund = ctx
	if deadline, ok := ctx.Deadline(); ok {
		f.left = time.Until(deadline)
	}
	f.mu.Unlock()
	if ctx.Err() == nil {
		f.Limiter.Key(key).Refund(cost)
	}
	return ctx.Err()
}

func (f *far) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// heardCalls returns the calls since the last time.
func (f *far) heardCalls() (calls []string) {
	calls, f.calls = f.calls, nil
	return calls
}

func newFar(t *testing.T, c sluice.Config) *far { return &far{Limiter: newLimiter(t, c)} }

var errDown = errors.New("connection refused")

func TestNew_RefusesRemotesThatCannotBeMeant(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(1), newClock())
	for _, tt := range []struct {
		policy        httplimit.Policy
		field, reason string
	}{
		{httplimit.Policy{}, "Limiter", "is nil, and so is Remote"},
		{httplimit.Policy{Limiter: lim, Remote: &far{}}, "Remote", "is set, and so is Limiter"},
		{httplimit.Policy{Remote: (*far)(nil)}, "Remote", "is a nil *httplimit_test.far"},
		{httplimit.Policy{Limiter: lim, Shadow: true}, "Shadow", "want sluice.Config.Shadow"},
		{httplimit.Policy{Remote: &far{}, Limit: byLimit}, "Limit", "want a Limiter, or nil"},
	} {
		tt.policy.Name, tt.policy.Key = "p", oneKey
		_, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{tt.policy}})
		var ce *httplimit.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "Config.Policies[0]."+tt.field, ce.Field)
		assert.Contains(t, ce.Reason, tt.reason)
	}
}

// Remotes are asked in their order when the limiters have admitted, and what was charged
// before a denial is given back.
func TestRemote_AllOrNone(t *testing.T) {
	clock := newClock()
	perMinute := func(n int) sluice.Config { return sluice.Config{Limit: sluice.PerMinute(n), Clock: clock} }
	local, first, second, third := newLimiter(t, perMinute(4)), newFar(t, perMinute(10)), newFar(t, perMinute(2)), newFar(t, perMinute(10))
	var heard httplimit.Decision
	two := func(*http.Request) int { return 2 }
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "first", Remote: first, Key: byHeader("User"), Cost: two},
			{Name: "second", Remote: second, Key: byHeader("User")},
			{Name: "third", Remote: third, Key: byHeader("User")},
			{Name: "local", Limiter: local, Key: byHeader("User")},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
	}, ok200)
	for i := range 2 {
		require.Equal(t, 200, get(handler, "User", "ann").Code)
		assert.Equal(t, 1-i, heard.Remaining)
		assert.Equal(t, []string{"take ann 2"}, first.heardCalls())
		assert.Equal(t, []string{"take ann 1"}, second.heardCalls())
		assert.Equal(t, []string{"take ann 1"}, third.heardCalls())
	}

	w := get(handler, "User", "ann")
	assert.Equal(t, 429, w.Code)
	assert.JSONEq(t, `["second"]`, violated(t, w))
	assert.Equal(t, "30", w.Header().Get("Retry-After"))
	assert.Equal(t, []string{"take ann 2", "refund ann 2"}, first.heardCalls())
	assert.Equal(t, []string{"take ann 1"}, second.heardCalls())
	assert.Empty(t, third.heardCalls())
	assert.Equal(t, 2, local.Key("ann").Peek(0).Remaining)
	assert.Equal(t, 6, first.Key("ann").Peek(0).Remaining)
	assert.Equal(t, httplimit.Decision{
		Status: 429, Violated: []string{"second"}, RetryAfter: 30 * time.Second,
		Charges: []httplimit.PolicyCharge{{"local", "ann", 1}, {"first", "ann", 2}, {"second", "ann", 1}, {"third", "ann", 1}},
	}, heard)

	local.Key("ann").Debit(2)
	assert.Equal(t, 429, get(handler, "User", "ann").Code)
	assert.Equal(t, []string{"local"}, heard.Violated)
	assert.Empty(t, first.heardCalls(), "whoever is denied here is no load there")
}

// The units of a request that a Remote has denied are given back to the key as far as they have not come back by themselves
// while the Remote was asked, whatever others have charged meanwhile.
func TestRemote_GivesBackWhatHasNotComeBack(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, waits := range []time.Duration{0, 12 * time.Second, 46 * time.Second, 2 * time.Hour} {
			t.Run(fmt.Sprintf("algorithm=%v/waits=%v", algorithm, waits), func(t *testing.T) {
				clock := newClock()
				lim, twin := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock}),
					newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
				for _, l := range []*sluice.Limiter{lim, twin} { // the twin sees nothing of the request
					require.True(t, l.AllowN("k", 2))
				}
				denies := newFar(t, sluice.Config{Limit: sluice.DenyAll})
				denies.meanwhile = func(context.Context) error {
					clock.Advance(waits)
					for _, l := range []*sluice.Limiter{lim, twin} {
						require.True(t, l.AllowN("k", 4))
					}
					return nil
				}
				handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
					{Name: "a", Limiter: lim, Key: oneKey}, {Name: "b", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return 2 }},
					{Name: "far", Remote: denies, Key: oneKey},
				}}, ok200)
				require.Equal(t, 429, get(handler).Code)
				want, got := twin.Key("k").Peek(0).Remaining, lim.Key("k").Peek(0).Remaining
				if algorithm == sluice.SlidingWindow && waits == 46*time.Second {
					assert.LessOrEqual(t, got, want, "the units of a window that is over are not given back")
				} else {
					assert.Equal(t, want, got)
				}
			})
		}
	}
}

// An error is neither a denial nor an admission.
func TestRemote_Errors(t *testing.T) {
	clock := newClock()
	lim, before, fails := gcra(t, sluice.PerMinute(4), clock), newFar(t, sluice.Config{Limit: sluice.PerMinute(5), Clock: clock}), &far{}
	fails.meanwhile = func(context.Context) error { return errDown }
	var heard httplimit.Decision
	served := false
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "local", Limiter: lim, Key: oneKey}, {Name: "before", Remote: before, Key: oneKey}, {Name: "fails", Remote: fails, Key: oneKey},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		Settle:     func(*http.Request, int) int { t.Error("settled"); return 0 },
		Headers:    allHeaders,
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
	w := get(handler)
	assert.False(t, served)
	assert.Equal(t, 503, w.Code)
	assert.Equal(t, http.Header{
		"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"1"}, "X-Ratelimit-Retry-After": {"1"},
	}, w.Header())
	assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503}`, w.Body.String())
	assert.ErrorIs(t, heard.RemoteError, errDown)
	assert.EqualError(t, heard.RemoteError, `httplimit: policy "fails": connection refused`)
	assert.Equal(t, 503, heard.Status)
	assert.Equal(t, time.Second, heard.RetryAfter)
	assert.Empty(t, heard.Violated)
	assert.Equal(t, 4, heard.Remaining)
	assert.Equal(t, 4, lim.Key("k").Peek(0).Remaining)
	assert.Equal(t, []string{"take k 1", "refund k 1"}, before.heardCalls())
}

type ctxKey struct{}

// Take has the context of the request. Its charge is given back in any case, also
// for a client that has gone, within a second.
func TestRemote_ContextOfAClientThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, first, hangs := newLimiter(t, sluice.Config{Limit: sluice.PerMinute(5)}), newFar(t, sluice.Config{Limit: sluice.PerMinute(5)}), &far{}
		hangs.meanwhile = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var heard httplimit.Decision
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{
				{Name: "local", Limiter: lim, Key: oneKey}, {Name: "first", Remote: first, Key: oneKey}, {Name: "hangs", Remote: hangs, Key: oneKey},
			},
			OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		}, ok200)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "v"))
		time.AfterFunc(3*time.Second, cancel)
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		assert.ErrorIs(t, heard.RemoteError, context.Canceled)
		assert.Equal(t, 503, heard.Status)
		assert.Equal(t, []string{"take k 1", "refund k 1"}, first.heardCalls())
		assert.Equal(t, "v", first.refund.Value(ctxKey{}))
		assert.Equal(t, time.Second, first.left)
		assert.Equal(t, 5, lim.Key("k").Peek(0).Remaining)
		assert.Equal(t, 5, first.Key("k").Peek(0).Remaining)
	})
}

// The same through a real server, whose client hangs up.
func TestRemote_AClientThatHangsUp(t *testing.T) {
	asked, done := make(chan struct{}), make(chan httplimit.Decision, 1)
	lim, hangs := gcra(t, sluice.PerMinute(5), newClock()), &far{}
	hangs.meanwhile = func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	}
	client, url := serve(t, false, wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "local", Limiter: lim, Key: oneKey}, {Name: "hangs", Remote: hangs, Key: oneKey}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { done <- d },
	}, ok200))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	_, err = client.Do(req)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, (<-done).RemoteError, context.Canceled)
	assert.Equal(t, 5, lim.Key("k").Peek(0).Remaining)
}

// Shadow charges as if it were enforced, and denies nobody, whatever the Remote says.
func TestRemote_Shadow(t *testing.T) {
	clock := newClock()
	shadow, own := newFar(t, sluice.Config{Limit: sluice.PerMinute(2), Clock: clock}), newFar(t, sluice.Config{Limit: sluice.PerMinute(1), Shadow: true, Clock: clock})
	fails, failsToo := &far{meanwhile: func(context.Context) error { return errDown }}, &far{meanwhile: func(context.Context) error { return errors.New("another") }}
	enforced := gcra(t, sluice.PerMinute(4), clock)
	var heard httplimit.Decision
	settled := 1
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "shadow", Remote: shadow, Shadow: true, Key: oneKey},
			{Name: "fails", Remote: fails, Shadow: true, Key: oneKey},
			{Name: "fails, too", Remote: failsToo, Shadow: true, Key: oneKey},
			{Name: "its own", Remote: own, Key: oneKey},
			{Name: "local shadow", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(3), Shadow: true, Clock: clock}), Key: oneKey},
			{Name: "enforced", Limiter: enforced, Key: oneKey},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
		Settle:     func(*http.Request, int) int { return settled },
		Headers:    allHeaders,
	}, ok200)
	for i, want := range [][]string{nil, {"its own"}, {"its own", "shadow"}, {"its own", "local shadow", "shadow"}} {
		w := get(handler)
		assert.Equal(t, 200, w.Code)
		assert.Equal(t, want, heard.WouldDeny)
		assert.ErrorIs(t, heard.RemoteError, errDown, "the first")
		assert.NotContains(t, w.Header().Get("RateLimit"), "shadow")
		assert.Equal(t, 3-i, enforced.Key("k").Peek(0).Remaining)
	}
	shadow.heardCalls()
	own.heardCalls()
	assert.Equal(t, 429, get(handler).Code)
	assert.Equal(t, []string{"enforced"}, heard.Violated)
	assert.NoError(t, heard.RemoteError)
	assert.Empty(t, shadow.heardCalls(), "nobody is asked in vain")

	// A request gets back no units that it has not charged.
	enforced.Key("k").Reset()
	settled = 0
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, []string{"take k 1"}, shadow.heardCalls())
	assert.Equal(t, []string{"take k 1"}, own.heardCalls())
	shadow.Key("k").Reset()
	own.Key("k").Reset()
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, []string{"take k 1", "refund k 1"}, shadow.heardCalls())
	assert.Equal(t, []string{"take k 1", "refund k 1"}, own.heardCalls())
}

// A cost of 0 asks, and there is nothing to be given back.
func TestRemote_CostOfNothing(t *testing.T) {
	clock := newClock()
	free, last := newFar(t, sluice.Config{Limit: sluice.PerMinute(5), Clock: clock}), newFar(t, sluice.Config{Limit: sluice.PerMinute(1), Clock: clock})
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: "free", Remote: free, Key: oneKey, Cost: func(*http.Request) int { return 0 }}, {Name: "last", Remote: last, Key: oneKey},
	}}, ok200)
	assert.Equal(t, 200, get(handler).Code)
	assert.Equal(t, 429, get(handler).Code)
	assert.Equal(t, []string{"take k 0", "take k 0"}, free.heardCalls())
}

func TestRemote_OverSoft(t *testing.T) {
	clock := newClock()
	soft, last := newFar(t, sluice.Config{Limit: sluice.PerMinute(1), Soft: 2, Clock: clock}), newFar(t, sluice.Config{Limit: sluice.PerMinute(2), Clock: clock})
	var heard []bool
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "soft", Remote: soft, Key: oneKey}, {Name: "last", Remote: last, Key: oneKey}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = append(heard, d.OverSoft) },
	}, ok200)
	for _, want := range []int{200, 200, 429} {
		assert.Equal(t, want, get(handler).Code)
	}
	assert.Equal(t, []bool{false, true, false}, heard)
}

// A Remote that is denied takes back what a Remote in shadow mode of its own has charged, and
// nothing that it has not.
func TestRemote_TakesBackFromShadows(t *testing.T) {
	clock := newClock()
	own := newFar(t, sluice.Config{Limit: sluice.PerMinute(1), Shadow: true, Clock: clock})
	denies := newFar(t, sluice.Config{Limit: sluice.DenyAll})
	var heard httplimit.Decision
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "own", Remote: own, Key: oneKey}, {Name: "denies", Remote: denies, Key: oneKey}},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { heard = d },
	}, ok200)
	get(handler)
	assert.Equal(t, []string{"take k 1", "refund k 1"}, own.heardCalls())
	own.Limiter.Take("k", 1)
	get(handler)
	assert.Equal(t, []string{"take k 1"}, own.heardCalls())
	assert.Nil(t, heard.WouldDeny, "of a request that is denied")
	assert.Equal(t, sluice.Never, heard.RetryAfter)
}

// Headers tell what the Remote has said; it does not say its rate.
func TestRemote_Headers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, second := newLimiter(t, sluice.Config{Limit: sluice.PerMinute(6)}), newFar(t, sluice.Config{Limit: sluice.PerMinute(2)})
		first := newFar(t, sluice.Config{Limit: sluice.PerMinute(4)})
		unlimited := newFar(t, sluice.Config{Limit: sluice.Unlimited})
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{
				{Name: "local", Limiter: lim, Key: oneKey}, {Name: "first", Remote: first, Key: oneKey}, {Name: "second", Remote: second, Key: oneKey},
				{Name: "unlimited", Remote: unlimited, Key: oneKey},
			},
			Headers: allHeaders,
		}, ok200)
		tell := func(status int, limit, x, reset string) {
			t.Helper()
			w := get(handler)
			assert.Equal(t, status, w.Code)
			assert.Equal(t, `"local";q=6;w=60, "first";q=4, "second";q=2`, w.Header().Get("RateLimit-Policy"))
			assert.Equal(t, limit, w.Header().Get("RateLimit"))
			assert.Equal(t, x, w.Header().Get("X-RateLimit-Remaining"))
			assert.Equal(t, reset, w.Header().Get("X-RateLimit-Reset"))
		}
		tell(200, `"local";r=5;t=50, "first";r=3, "second";r=1`, "1", "30")
		tell(200, `"local";r=4;t=40, "first";r=2, "second";r=0`, "0", "60")
		tell(429, `"local";r=4;t=40, "first";r=2, "second";r=0;t=30`, "0", "60") // as before the denial

		alone := wrap(t, httplimit.Config{Policies: []httplimit.Policy{{Name: "far", Remote: first, Key: oneKey}}, Headers: allHeaders}, ok200)
		assert.Equal(t, `"far";q=4`, get(alone).Header().Get("RateLimit-Policy"))

		lim.Key("k").Debit(4)
		w := get(handler)
		assert.Equal(t, `"local";r=0;t=10`, w.Header().Get("RateLimit"), "Remotes have not been asked")
		assert.Equal(t, "10", w.Header().Get("Retry-After"))
	})
}

// However many ask at once, exactly as many pass as the Remote admits, and nothing else stays
// charged to the others.
func TestRemote_ConcurrentRequestsAreAllOrNone(t *testing.T) {
	clock := newClock()
	lim := gcra(t, sluice.PerMinute(1000), clock)
	first, second := newFar(t, sluice.Config{Limit: sluice.PerMinute(1000), Clock: clock}), newFar(t, sluice.Config{Limit: sluice.PerMinute(40), Clock: clock})
	var served, denied atomic.Int32
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "first", Remote: first, Key: oneKey}, {Name: "second", Remote: second, Key: oneKey}, {Name: "local", Limiter: lim, Key: oneKey}},
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if get(handler).Code == 429 {
					denied.Add(1)
				}
			}
		})
	}
	group.Wait()
	assert.EqualValues(t, 40, served.Load())
	assert.EqualValues(t, 360, denied.Load())
	assert.Equal(t, 960, lim.Key("k").Peek(0).Remaining)
	assert.Equal(t, 960, first.Key("k").Peek(0).Remaining)
	assert.Zero(t, second.Key("k").Peek(0).Remaining)
	assert.Equal(t, 360, len(slices.DeleteFunc(first.heardCalls(), func(c string) bool { return c != "refund k 1" })))
}
