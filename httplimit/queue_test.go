package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/metrics"
)

func newQueue(t testing.TB, c httplimit.QueueConfig) *httplimit.Queue {
	t.Helper()
	q, err := httplimit.NewQueue(c)
	require.NoError(t, err)
	return q
}

func queued(q *httplimit.Queue) (waiting uint64) {
	q.Metrics("q").Read(func(d *metrics.Desc, v uint64, _ ...string) {
		if d.Name == "sluice.queue.waiting" {
			waiting = v
		}
	})
	return waiting
}

// eventually waits for something that other goroutines do in real time.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 20*time.Second, time.Millisecond, what)
}

// A site is a server with a queue of 4, 3 for a client, before a limit of 2 in a minute.
type site struct {
	t      *testing.T
	client *http.Client
	url    string
	clock  *sluice.ManualClock
	queue  *httplimit.Queue
	served chan string
	told   chan httplimit.Decision
}

func newSite(t *testing.T, h2 bool) *site {
	s := &site{t: t, clock: newClock(), queue: newQueue(t, httplimit.QueueConfig{MaxWaiting: 4, MaxPerKey: 3, MaxWait: time.Hour}),
		served: make(chan string, 100), told: make(chan httplimit.Decision, 100)}
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "per-user", Limiter: gcra(t, sluice.PerMinute(2), s.clock), Key: byHeader("User")}},
		Queue:    s.queue,
		Headers:  httplimit.Headers{ServerTiming: true, RateLimit: httplimit.Draft11, XReset: httplimit.ResetDelta},
		OnDecision: func(_ *http.Request, d httplimit.Decision) {
			if d.Waited > 0 || !d.Allowed {
				s.told <- d
			}
		},
	})
	require.NoError(t, err)
	s.client, s.url = serve(t, h2, limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.served <- r.URL.Path
	})))
	return s
}

// ask makes a request, which has a body unless that is empty.
func (s *site) ask(ctx context.Context, user, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("User", user)
	resp, err := s.client.Do(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return resp, err
}

// waits makes a request that waits.
func (s *site) waits(ctx context.Context, user, path, body string) <-chan *http.Response {
	s.t.Helper()
	done, before := make(chan *http.Response, 1), queued(s.queue)
	go func() {
		resp, _ := s.ask(ctx, user, path, body)
		done <- resp
	}()
	eventually(s.t, "the request to wait", func() bool { return queued(s.queue) == before+1 })
	return done
}

// pass demands that a request passes at once.
func (s *site) pass(user string) {
	s.t.Helper()
	resp, err := s.ask(s.t.Context(), user, "/", "")
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	require.Empty(s.t, resp.Header.Get("Server-Timing"))
	<-s.served
}

// Over real connections requests pass in the order in which they came, say for how long they have waited, and give their places
// back when their clients go.
func TestQueue_OverTCP(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		s := newSite(t, h2)
		s.pass("ann")
		s.pass("ann")
		first := s.waits(t.Context(), "ann", "/first", "")
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.waits(ctx, "ann", "/gone", "")
		third := s.waits(t.Context(), "ann", "/third", "")
		resp, err := s.ask(t.Context(), "ann", "/denied", "")
		require.NoError(t, err)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, "120", resp.Header.Get("Retry-After"), "three are in front")
		assert.Contains(t, resp.Header.Get("RateLimit"), `"per-user";r=0`)
		assert.Empty(t, resp.Header.Get("Server-Timing"))
		assert.Equal(t, []string{"per-user"}, (<-s.told).Violated)
		s.pass("bob")

		cancel()
		require.Nil(t, <-gone)
		eventually(t, "the place to be free", func() bool { return queued(s.queue) == 2 })
		d := <-s.told
		assert.Equal(t, httplimit.StatusClientGone, d.Status)
		assert.Positive(t, d.Waited)
		for _, c := range []struct {
			path string
			done <-chan *http.Response
		}{{"/first", first}, {"/third", third}} {
			s.clock.Advance(30 * time.Second)
			require.Equal(t, c.path, <-s.served)
			resp := <-c.done
			require.NotNil(t, resp)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			milliseconds, ok := strings.CutPrefix(resp.Header.Get("Server-Timing"), "queue;dur=")
			require.True(t, ok, resp.Header)
			waited, err := strconv.ParseFloat(milliseconds, 64)
			require.NoError(t, err)
			d := <-s.told
			assert.True(t, d.Allowed)
			assert.InDelta(t, d.Waited.Seconds()*1000, waited, 0.001)
		}
		assert.Zero(t, queued(s.queue))
	}
}

// A client of HTTP/2 that goes gives its place back although its body has not been read.
func TestQueue_ABodyThatIsNotReadOverHTTP2(t *testing.T) {
	s := newSite(t, true)
	s.pass("ann")
	s.pass("ann")
	ctx, cancel := context.WithCancel(t.Context())
	gone := s.waits(ctx, "ann", "/gone", "a body")
	cancel()
	require.Nil(t, <-gone)
	eventually(t, "the place to be free", func() bool { return queued(s.queue) == 0 })
}

// The body of a request that has waited is there for the handler.
func TestQueue_TheBodyWaitsToo(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		q := newQueue(t, httplimit.QueueConfig{MaxWaiting: 4, MaxPerKey: 3, MaxWait: time.Hour})
		clock := newClock()
		limit, err := httplimit.New(httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(1), clock), Key: oneKey}}, Queue: q,
		})
		require.NoError(t, err)
		client, url := serve(t, h2, limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		})))
		for i := range 2 {
			done := make(chan string, 1)
			go func() {
				resp, err := client.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", 1<<16)))
				if !assert.NoError(t, err) {
					return
				}
				defer resp.Body.Close()
				got, _ := io.ReadAll(resp.Body)
				done <- string(got)
			}()
			if i > 0 {
				eventually(t, "the request to wait", func() bool { return queued(q) == 1 })
				clock.Advance(time.Minute)
			}
			require.Len(t, <-done, 1<<16)
		}
	}
}

// Nobody waits for a Remote, which is asked when the turn has come; what the Limiters have charged is given back then.
func TestQueue_ARemoteDeniesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := gcra(t, sluice.PerMinute(2), nil), gcra(t, sluice.PerHour(2), nil)
		q := newQueue(t, httplimit.QueueConfig{MaxWaiting: 4, MaxPerKey: 3, MaxWait: time.Hour})
		var last httplimit.Decision
		handler := wrap(t, httplimit.Config{
			Policies:   []httplimit.Policy{{Name: "near", Limiter: near, Key: oneKey}, {Name: "far", Remote: limiterAsRemote{far}, Key: oneKey}},
			Queue:      q,
			OnDecision: func(_ *http.Request, d httplimit.Decision) { last = d },
		}, ok200)
		require.Equal(t, http.StatusOK, get(handler).Code)
		require.Equal(t, http.StatusOK, get(handler).Code)
		began := time.Now()
		require.Equal(t, http.StatusTooManyRequests, get(handler).Code)
		require.Equal(t, 30*time.Second, time.Since(began), "it has waited for the Limiter")
		require.Equal(t, []string{"far"}, last.Violated)
		require.Equal(t, 30*time.Second, last.Waited)
		require.Equal(t, 1, near.Key("k").Peek(0).Remaining)
		require.Zero(t, queued(q))
	})
}

// limiterAsRemote is a Remote that is near.
type limiterAsRemote struct{ l *sluice.Limiter }

func (r limiterAsRemote) Take(_ context.Context, key string, cost int) (sluice.Decision, error) {
	return r.l.Take(key, cost), nil
}

func (r limiterAsRemote) Refund(_ context.Context, key string, cost int) error {
	r.l.Key(key).Refund(cost)
	return nil
}

func TestNewQueue_ConfigErrors(t *testing.T) {
	good := httplimit.QueueConfig{MaxWaiting: 10, MaxPerKey: 2, MaxWait: time.Second}
	for _, tt := range []struct {
		change        func(*httplimit.QueueConfig)
		field, reason string
	}{
		{func(c *httplimit.QueueConfig) { c.MaxWaiting = 0 }, "MaxWaiting", "at least 1"},
		{func(c *httplimit.QueueConfig) { c.MaxWaiting = -1 }, "MaxWaiting", "-1"},
		{func(c *httplimit.QueueConfig) { c.MaxPerKey = 0 }, "MaxPerKey", "1 to 10"},
		{func(c *httplimit.QueueConfig) { c.MaxPerKey = 11 }, "MaxPerKey", "11"},
		{func(c *httplimit.QueueConfig) { c.MaxWait = 0 }, "MaxWait", "more than 0"},
		{func(c *httplimit.QueueConfig) { c.MaxWait = time.Hour + 1 }, "MaxWait", "up to 1h"},
	} {
		c := good
		tt.change(&c)
		_, err := httplimit.NewQueue(c)
		var ce *httplimit.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "QueueConfig."+tt.field, ce.Field)
		assert.Contains(t, ce.Reason, tt.reason)
		assert.Contains(t, ce.Reason, "want")
	}

	q := newQueue(t, good)
	lim := gcra(t, sluice.PerSecond(1), nil)
	near := httplimit.Policy{Name: "p", Limiter: lim, Key: oneKey}
	with := func(change func(*httplimit.Policy)) httplimit.Policy { p := near; change(&p); return p }
	for _, tt := range []struct {
		queue  *httplimit.Queue
		policy httplimit.Policy
		reason string
	}{
		{new(httplimit.Queue), near, "want one of NewQueue"},
		{nil, with(func(p *httplimit.Policy) { p.MaxPerKey = 1 }), "want a Queue, or 0"},
		{q, with(func(p *httplimit.Policy) { p.MaxPerKey = 11 }), "want 1 to 10"},
		{q, with(func(p *httplimit.Policy) { p.MaxPerKey = -1 }), "want 1 to 10"},
		{q, with(func(p *httplimit.Policy) { p.Limiter, p.Remote = nil, limiterAsRemote{lim} }), "nobody waits for a Remote"},
		{q, with(func(p *httplimit.Policy) { p.Limiter, p.Remote, p.MaxPerKey = nil, limiterAsRemote{lim}, 1 }), "want a MaxPerKey of 0"},
		{q, with(func(p *httplimit.Policy) {
			p.Limiter = newLimiter(t, sluice.Config{Limit: sluice.PerSecond(1), Shadow: true})
		}), "in shadow mode"},
		{q, with(func(p *httplimit.Policy) {
			p.Limiter = newLimiter(t, sluice.Config{Limit: sluice.PerSecond(1), BlockFor: time.Minute})
		}), "want a BlockFor of 0"},
		{q, with(func(p *httplimit.Policy) {
			p.Limiter = newLimiter(t, sluice.Config{Limit: sluice.PerSecond(1), Algorithm: sluice.FixedWindow, CountDenied: true})
		}), "want no CountDenied"},
	} {
		_, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{tt.policy}, Queue: tt.queue})
		var ce *httplimit.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "Config.Queue", ce.Field)
		assert.Contains(t, ce.Reason, tt.reason)
	}
}

// A policy that bans counts requests that are turned away, once each, and none that waits.
func TestQueue_BansCountWhoIsTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ban := newLimiter(t, sluice.Config{Limit: sluice.PerHour(2), BlockFor: 24 * time.Hour})
		q := newQueue(t, httplimit.QueueConfig{MaxWaiting: 4, MaxPerKey: 1, MaxWait: time.Hour})
		decisions := make(chan httplimit.Decision, 10)
		handler := wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{
				{Name: "users", Limiter: gcra(t, sluice.PerMinute(1), nil), Key: oneKey},
				{Name: "ban", Limiter: ban, Key: oneKey, CountsDenialsOf: "users"},
			},
			Queue:      q,
			OnDecision: func(_ *http.Request, d httplimit.Decision) { decisions <- d },
		}, ok200)
		require.Equal(t, http.StatusOK, get(handler).Code)
		require.True(t, (<-decisions).Allowed)
		for range 2 { // they wait, and pass
			require.Equal(t, http.StatusOK, get(handler).Code)
			require.Equal(t, time.Minute, (<-decisions).Waited)
		}
		require.Equal(t, 2, ban.Key("k").Peek(0).Remaining)
		go get(handler)
		synctest.Wait()
		require.EqualValues(t, 1, queued(q))
		require.Equal(t, http.StatusTooManyRequests, get(handler).Code)
		require.Equal(t, []string{"users"}, (<-decisions).Violated)
		require.Equal(t, 1, ban.Key("k").Peek(0).Remaining)
		require.Equal(t, http.StatusTooManyRequests, get(handler).Code)
		d := <-decisions
		require.Equal(t, []string{"users", "ban"}, d.Violated)
		require.Equal(t, 24*time.Hour, d.RetryAfter)
		d = <-decisions // of the one that waits, whose turn comes
		require.False(t, d.Allowed)
		require.Equal(t, []string{"ban"}, d.Violated)
		require.Equal(t, time.Minute, d.Waited)
		require.Zero(t, queued(q))
	})
}
