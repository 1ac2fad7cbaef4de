package httplimit

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
	"github.com/sluice-go/sluice/limittest"
)

func TestNewTransport_RefusesWhatCannotBe(t *testing.T) {
	lim := newLimiter(t, sluice.PerSecond(1))
	for name, c := range map[string]TransportConfig{
		"TransportConfig.Key":           {Key: func(*http.Request) (string, error) { return "", nil }},
		"TransportConfig.Cost":          {Cost: func(*http.Request) int { return 1 }},
		"TransportConfig.MaxWait":       {Limiter: lim, MaxWait: -1},
		"TransportConfig.MaxRetries":    {MaxRetries: -1},
		"TransportConfig.BackoffBase":   {BackoffBase: -1},
		"TransportConfig.BackoffCap":    {BackoffCap: -1},
		"TransportConfig.MaxRetryAfter": {MaxRetryAfter: -1},
		"TransportConfig.MaxHosts":      {MaxHosts: -1},
	} {
		checkRefused(t, name, c)
	}
	checkRefused(t, "TransportConfig.MaxWait", TransportConfig{FailFast: true, MaxWait: 1})
	checkRefused(t, "TransportConfig.MaxRetries", TransportConfig{FailFast: true, MaxRetries: 1})
	checkRefused(t, "TransportConfig.MaxRetries", TransportConfig{MaxRetries: 101})
	checkRefused(t, "TransportConfig.BackoffBase", TransportConfig{BackoffBase: 2, BackoffCap: 1})
	checkRefused(t, "TransportConfig.BackoffBase", TransportConfig{BackoffBase: time.Minute})
	checkRefused(t, "TransportConfig.BackoffCap", TransportConfig{BackoffCap: fare.LongestWait + 1})
	checkRefused(t, "TransportConfig.MaxRetryAfter", TransportConfig{MaxRetryAfter: fare.LongestWait + 1})
	checkRefused(t, "TransportConfig.MaxHosts", TransportConfig{MaxHosts: 1<<20 + 1})

	tr, err := NewTransport(nil, TransportConfig{MaxRetries: 100, MaxHosts: 1 << 20, MaxRetryAfter: fare.LongestWait, BackoffCap: fare.LongestWait})
	require.NoError(t, err)
	assert.Equal(t, http.DefaultTransport, tr.base)
}

func checkRefused(t *testing.T, field string, c TransportConfig) {
	t.Helper()
	tr, err := NewTransport(nil, c)
	var e *ConfigError
	if assert.ErrorAs(t, err, &e) {
		assert.Equal(t, field, e.Field)
		assert.Contains(t, e.Reason, "want")
	}
	assert.Nil(t, tr)
}

func TestTransport_ShapesEachHostByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.PerSecond(1))})
		for range 3 {
			send(t, tr, "http://a.test/")
		}
		send(t, tr, "http://b.test/")
		send(t, tr, "http://A.test:80/other")
		assert.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second}, base.at)
	})
}

func TestTransport_KeyAndCostDecideWhatIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{
			Limiter: newLimiter(t, sluice.PerSecond(4)),
			Key:     func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil },
			Cost:    func(r *http.Request) int { return int(r.ContentLength) },
		})
		for _, tenant := range []string{"x", "x", "y"} {
			req := get(t, "http://a.test/")
			req.ContentLength = 4
			req.Header.Set("Tenant", tenant)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
		}
		assert.Equal(t, []time.Duration{0, time.Second, time.Second}, base.at)
	})
}

var (
	errKey      = errors.New("no tenant")
	errShutdown = errors.New("shutting down")
)

// canceled returns r with a context that has ended for errShutdown.
func canceled(r *http.Request) *http.Request {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errShutdown)
	return r.WithContext(ctx)
}

var unsendable = map[string]struct {
	config TransportConfig
	change func(*http.Request) *http.Request
	want   error
	text   string
}{
	"key": {
		config: TransportConfig{Key: func(*http.Request) (string, error) { return "", errKey }},
		want:   errKey, text: "httplimit: the request has no key: no tenant",
	},
	"cost above burst": {
		config: TransportConfig{Cost: func(*http.Request) int { return 6 }},
		want:   ErrLimited, text: "never",
	},
	"negative cost": {
		config: TransportConfig{Cost: func(*http.Request) int { return -1 }, MaxWait: time.Second},
		want:   ErrLimited, text: "never",
	},
	"canceled": {
		change: canceled,
		want:   errShutdown,
	},
	"no URL": {
		change: func(r *http.Request) *http.Request { r.URL = nil; return r },
		text:   "httplimit: the request has no URL",
	},
	"Unicode host": {
		change: func(r *http.Request) *http.Request { r.URL.Host = "ｅxample.test"; return r },
		text:   "not ASCII; want its xn-- form",
	},
	"long host": {
		change: func(r *http.Request) *http.Request { r.URL.Host = strings.Repeat("a", 513); return r },
		text:   "513 bytes long; want at most 512",
	},
}

// A request that fails before the base has seen it has its body closed, once.
func TestTransport_FailsBeforeTheBaseIsCalled(t *testing.T) {
	for name, c := range unsendable {
		t.Run(name, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			c.config.Limiter = newLimiter(t, sluice.PerSecond(5))
			tr := newTestTransport(t, base, c.config)
			body := newTrackedBody("data")
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://a.test/", body)
			require.NoError(t, err)
			if c.change != nil {
				req = c.change(req)
			}
			resp, err := tr.RoundTrip(req)
			require.Error(t, err)
			assert.Nil(t, resp)
			if c.want != nil {
				assert.ErrorIs(t, err, c.want)
			}
			assert.ErrorContains(t, err, c.text)
			assert.Equal(t, 1, body.closed)
			assert.Zero(t, base.count())
			assert.Equal(t, 5, tr.config.Limiter.Key("a.test").Peek(0).Remaining, "a request that was not sent was charged")
		})
	}
}

func TestTransport_CostThatIsNeverAdmitted(t *testing.T) {
	for _, c := range []TransportConfig{{}, {FailFast: true}, {MaxWait: time.Hour}} {
		c.Limiter, c.Cost = newLimiter(t, sluice.PerSecond(5)), func(*http.Request) int { return 6 }
		tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), c)
		_, err := tr.RoundTrip(get(t, "http://a.test/"))
		e := limitError(t, err)
		assert.Equal(t, sluice.Never, e.RetryAfter)
		assert.NotErrorIs(t, e, fare.ErrMaxWait)
		assert.False(t, e.Timeout())
	}
}

func TestTransport_FailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.PerMinute(2)), FailFast: true})
		client := &http.Client{Transport: tr}
		for range 2 {
			send(t, tr, "http://a.test/")
		}
		time.Sleep(10 * time.Second)
		_, err := client.Get("http://a.test/")
		e := limitError(t, err)
		assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: 20 * time.Second}, e)
		assert.EqualError(t, e, "httplimit: a.test: the limiter admits the request after 20s")
		var ue *url.Error
		require.ErrorAs(t, err, &ue)
		assert.False(t, ue.Timeout())
		assert.Equal(t, 2, base.count())
		assert.Equal(t, 10*time.Second, time.Since(base.start), "it waited")
	})
}

func TestTransport_FailFastWhileTheHostIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(denyFirst(1, http.StatusTooManyRequests, "Retry-After", "7"))
		lim := newLimiter(t, sluice.PerSecond(5))
		tr := newTestTransport(t, base, TransportConfig{Limiter: lim, FailFast: true})
		send(t, tr, "http://a.test/")
		time.Sleep(2 * time.Second)
		_, err := tr.RoundTrip(get(t, "http://a.test/"))
		e := limitError(t, err)
		assert.Equal(t, &LimitError{Host: "a.test", Held: true, RetryAfter: 5 * time.Second}, e)
		assert.EqualError(t, e, "httplimit: a.test: the host has asked for no requests; it takes them after 5s")
		assert.Equal(t, 5, lim.Key("a.test").Peek(0).Remaining, "a request that was not sent was charged")
		assert.Equal(t, http.StatusOK, send(t, tr, "http://b.test/"))
		time.Sleep(5 * time.Second)
		assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))
	})
}

// A wait that does not fit is not begun, whatever is waited for.
func TestTransport_WaitThatDoesNotFitFailsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		maxWait, deadline time.Duration
		held              bool
		sent              bool
		err               error
	}{
		"limiter, no bound":         {sent: true},
		"limiter, deadline":         {deadline: time.Second, err: context.DeadlineExceeded},
		"limiter, later deadline":   {deadline: 3 * time.Second, sent: true},
		"limiter, MaxWait":          {maxWait: time.Second, err: fare.ErrMaxWait},
		"limiter, longer MaxWait":   {maxWait: 3 * time.Second, sent: true},
		"limiter, MaxWait first":    {maxWait: time.Second, deadline: 1500 * time.Millisecond, err: fare.ErrMaxWait},
		"limiter, deadline first":   {maxWait: 1500 * time.Millisecond, deadline: time.Second, err: context.DeadlineExceeded},
		"limiter, MaxWait in time":  {maxWait: 3 * time.Second, deadline: time.Hour, sent: true},
		"limiter, deadline in time": {maxWait: time.Hour, deadline: 3 * time.Second, sent: true},
		"hold, no bound":            {held: true, sent: true},
		"hold, deadline":            {held: true, deadline: 2 * time.Second, err: context.DeadlineExceeded},
		"hold, later deadline":      {held: true, deadline: 2*time.Second + 1, sent: true},
		"hold, MaxWait":             {held: true, maxWait: 2*time.Second - 1, err: fare.ErrMaxWait},
		"hold, MaxWait just enough": {held: true, maxWait: 2 * time.Second, sent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, config := respond(http.StatusOK), TransportConfig{MaxWait: c.maxWait}
				if c.held {
					first = respond(http.StatusServiceUnavailable, "Retry-After", "2")
				} else {
					config.Limiter = newLimiter(t, sluice.Per(1, 2*time.Second))
				}
				base := newFakeBase(func(n int, _ *http.Request) *http.Response {
					if n == 0 {
						return first
					}
					return respond(http.StatusOK)
				})
				tr := newTestTransport(t, base, config)
				send(t, tr, "http://a.test/")
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				_, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
				if c.sent {
					require.NoError(t, err)
					assert.Equal(t, 2*time.Second, time.Since(base.start))
					return
				}
				e := limitError(t, err)
				assert.Equal(t, &LimitError{Host: "a.test", Held: c.held, RetryAfter: 2 * time.Second, Err: e.Err}, e)
				assert.ErrorIs(t, err, c.err)
				assert.Equal(t, errors.Is(c.err, context.DeadlineExceeded), e.Timeout())
				assert.Zero(t, time.Since(base.start), "it waited in vain")
				assert.Equal(t, 1, base.count())
			})
		})
	}
}

// MaxWait is for all waits of a request together.
func TestTransport_MaxWaitCoversHoldAndLimiter(t *testing.T) {
	for _, c := range []struct {
		maxWait time.Duration
		sent    bool
	}{{3*time.Second - 1, true}, {3*time.Second - 2, false}} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(denyFirst(1, http.StatusTooManyRequests, "Retry-After", "2"))
			lim := newLimiter(t, sluice.PerSecond(1))
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxWait: c.maxWait})
			send(t, tr, "http://a.test/")
			time.AfterFunc(2*time.Second-1, func() { lim.Allow("a.test") }) // free again in 1 s
			_, err := tr.RoundTrip(get(t, "http://a.test/"))
			if c.sent {
				require.NoError(t, err)
				assert.Equal(t, 3*time.Second-1, base.at[1])
				return
			}
			e := limitError(t, err)
			assert.ErrorIs(t, e, fare.ErrMaxWait)
			assert.False(t, e.Held)
			assert.Equal(t, 2*time.Second, time.Since(base.start))
		})
	}
}

// When MaxWait has been used up to the last nanosecond, what needs no wait still passes.
func TestTransport_NothingLeftOfMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(denyFirst(1, http.StatusTooManyRequests, "Retry-After", "2"))
		lim := newLimiter(t, sluice.PerSecond(1))
		tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxWait: 2 * time.Second})
		send(t, tr, "http://a.test/")
		assert.Equal(t, http.StatusOK, send(t, tr, "http://a.test/"))

		tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "2"))
		time.AfterFunc(2*time.Second-1, func() { lim.Allow("a.test") })
		_, err := tr.RoundTrip(get(t, "http://a.test/"))
		assert.ErrorIs(t, limitError(t, err), fare.ErrMaxWait)
	})
}

func TestTransport_CancelEndsAWaitPromptly(t *testing.T) {
	errCause := errors.New("user went away")
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			lim := newLimiter(t, sluice.PerMinute(1))
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
			if held {
				tr.heed("a.test", respond(http.StatusServiceUnavailable, "Retry-After", "60"))
			} else {
				lim.Allow("a.test")
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			body := newTrackedBody("data")
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a.test/", body)
			require.NoError(t, err)
			time.AfterFunc(7*time.Second, func() { cancel(errCause) })
			_, err = tr.RoundTrip(req)
			assert.ErrorIs(t, err, errCause)
			assert.NotErrorIs(t, err, ErrLimited)
			assert.Equal(t, 7*time.Second, time.Since(base.start))
			assert.Equal(t, 1, body.closed)
			assert.Zero(t, base.count())
			time.Sleep(time.Minute)
			assert.True(t, lim.Allow("a.test"), "a request that was not sent was charged")
		})
	}
}

// A cancelingClock ends a context while the limiter decides.
type cancelingClock struct{ cancel context.CancelFunc }

func (c *cancelingClock) Now() int64 {
	if c.cancel != nil {
		c.cancel()
	}
	return 1
}

func TestTransport_ContextThatEndsDuringTheChargeSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	clock := &cancelingClock{}
	lim, err := sluice.New(sluice.Config{Limit: sluice.PerHour(5), Clock: clock})
	require.NoError(t, err)
	base := newFakeBase(always(http.StatusOK))
	tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
	clock.cancel = cancel
	_, err = tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, base.count())
	assert.Equal(t, 5, lim.Key("a.test").Peek(0).Remaining)
}

// At no time has a key been sent more than its burst and what it earned since.
func TestTransport_ConcurrentRequestsKeepTheLimit(t *testing.T) {
	const clients, each = 8, 10
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.PerSecond(10).WithBurst(5))})
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for range each {
					send(t, tr, "http://a.test/")
				}
			})
		}
		wg.Wait()
		require.Equal(t, clients*each, base.count())
		checker := limittest.NewChecker(limittest.Of(tr.config.Limiter, 0))
		for _, at := range base.at {
			checker.Record(int64(at), "a.test", 1, true)
		}
		assert.NoError(t, checker.Err())
		assert.Equal(t, 7500*time.Millisecond, base.at[clients*each-1], "slower than the limit")
	})
}

func TestTransport_PassesOnWhatTheBaseReturns(t *testing.T) {
	errBase := errors.New("no route")
	for name, c := range map[string]struct {
		resp *http.Response
		err  error
	}{
		"error":              {nil, errBase},
		"nothing at all":     {nil, nil},
		"response and error": {respond(http.StatusTooManyRequests, "Retry-After", "9"), errBase},
		"no header, no body": {&http.Response{StatusCode: http.StatusServiceUnavailable}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			base := roundTripFunc(func(*http.Request) (*http.Response, error) { calls++; return c.resp, c.err })
			tr := newTestTransport(t, base, TransportConfig{MaxRetries: 1})
			resp, err := tr.RoundTrip(get(t, "http://a.test/"))
			assert.Equal(t, c.err, err)
			assert.Equal(t, c.resp, resp)
			if c.resp == nil || c.err != nil {
				assert.Equal(t, 1, calls)
			}
		})
	}
}

type closingBase struct {
	roundTripFunc
	closed int
}

func (b *closingBase) CloseIdleConnections() { b.closed++ }

func TestTransport_CloseIdleConnections(t *testing.T) {
	base := &closingBase{}
	client := &http.Client{Transport: newTestTransport(t, base, TransportConfig{})}
	client.CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	newTestTransport(t, base.roundTripFunc, TransportConfig{}).CloseIdleConnections() // has no such method
}
