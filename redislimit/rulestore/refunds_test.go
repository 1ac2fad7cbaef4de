package rulestore

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// TestStore_Forgets: what rules that are gone have counted with is closed, when no call can be under way any more: nothing is left of
// their domains.
func TestStore_Forgets(t *testing.T) {
	s := newStore(t, servers.StartRedis(t).Addr, Config{StoreConfig: redislimit.StoreConfig{Budget: time.Minute}})
	var pending []func()
	s.after = func(d time.Duration, f func()) {
		require.GreaterOrEqual(t, d, 24*time.Minute, "a call may take so many budgets")
		pending = append(pending, f)
	}
	set := func(domain string) *rules.Set {
		return load(t, "domain: "+domain+"\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}, {key: l, rate_limit: {unit: day, requests_per_unit: 5, algorithm: gcra}}]\n")
	}
	e, err := rules.New(set("d0"), rules.Config{Store: s})
	require.NoError(t, err)
	for _, next := range []string{"d1", "d2", "d1"} {
		require.NoError(t, e.Swap(set(next)))
	}
	require.Len(t, s.refunds.domains, 3)
	for _, f := range pending {
		f()
	}
	require.Len(t, s.refunds.domains, 1)
	require.Contains(t, s.refunds.domains, "d1")
}

// TestStore_ReportsPolls: that Redis does not say who is sent refunds is told once, and again after it has said it.
func TestStore_ReportsPolls(t *testing.T) {
	server := servers.StartRedis(t)
	var away atomic.Bool
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}})
	defer client.Close()
	client.AddHook(hook{&away})
	told := make(chan error, 10)
	// Without the polls of newRefunds, of which the first may come between those of this test.
	r := &refunds{client: client, key: "p:refunds", report: func(err error) { told <- err }, domains: map[string]*domain{}}
	r.running, r.end = context.WithCancel(t.Context())
	require.NoError(t, r.poll())
	for range 2 {
		away.Store(true)
		for range 3 {
			r.failed(r.poll())
		}
		require.ErrorContains(t, <-told, "away")
		away.Store(false)
		r.failed(r.poll())
	}
	require.Empty(t, told)
	away.Store(true)
	r.failed(r.tell(r.enter("d")))
	require.ErrorContains(t, <-told, "away")
	r.close()(t.Context())
	r.failed(errors.New("the end"))
	require.Empty(t, told)
}

// hook makes commands fail.
type hook struct{ away *atomic.Bool }

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.away.Load() {
			cmd.SetErr(errors.New("away"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestStore_CloseEndsAll: after Close nothing of this package or of redislimit runs, though no engine has been closed.
func TestStore_CloseEndsAll(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr})
	defer client.Close()
	s, err := New(client, Config{PerSecond: client, StoreConfig: redislimit.StoreConfig{Budget: 5 * time.Second}})
	require.NoError(t, err)
	e, err := rules.New(load(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 500, algorithm: gcra}}]\n"), rules.Config{Store: s, Leases: true})
	require.NoError(t, err)
	for i := range 200 {
		d := rules.Descriptor{Entries: []rules.Entry{{Key: "k", Value: "x"}}, Refund: i%20 == 0}
		require.NoError(t, e.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{d}}, new(rules.Response)))
	}
	require.NoError(t, s.Close(t.Context()))
	running := func() string {
		all := make([]byte, 1<<20)
		return string(all[:runtime.Stack(all, true)])
	}
	require.Eventually(t, func() bool {
		return !strings.Contains(running(), "created by github.com/sluice-go/sluice/redislimit") && !strings.Contains(running(), "rulestore.newRefunds")
	}, 10*time.Second, time.Millisecond, "%s", running())
}

// TestDecide_GiveBackIsALook: the decision of a GiveBack is that of a Peek of 0 under the call's limit.
func TestDecide_GiveBackIsALook(t *testing.T) {
	store := newStore(t, servers.StartRedis(t).Addr, Config{})
	store.sentRefunds(t)
	limit := sluice.Per(10, 365*24*time.Hour)
	counter, err := store.Open(rules.StoreLimit{Domain: "d", Limit: limit, Algorithm: sluice.FixedWindow})
	require.NoError(t, err)
	memory, err := sluice.New(sluice.Config{Algorithm: sluice.FixedWindow, Limit: limit})
	require.NoError(t, err)
	for _, c := range []struct{ take, back int }{{7, 3}, {6, 0}, {0, 4}} {
		calls := []rules.StoreCall{{Counter: counter, Key: "k", Hits: uint64(c.take)}, {Counter: counter, Key: "k", Op: rules.GiveBack, Hits: uint64(c.back)}}
		require.NoError(t, store.Decide(calls))
		memory.Take("k", c.take)
		memory.Key("k").Refund(c.back)
		want, got := memory.Key("k").Peek(0), calls[1].Decision
		require.InDelta(t, want.RetryAfter, got.RetryAfter, float64(time.Minute), "%+v", c)
		require.InDelta(t, want.ResetAfter, got.ResetAfter, float64(time.Minute), "%+v", c)
		got.RetryAfter, got.ResetAfter = want.RetryAfter, want.ResetAfter
		require.Equal(t, want, got, "%+v", c)
	}
	none := []rules.StoreCall{{Counter: counter, Key: "k", Op: rules.GiveBack, Hits: 1, Limit: sluice.Limit{Period: limit.Period}}}
	require.NoError(t, store.Decide(none))
	require.Equal(t, sluice.Never, none[0].Decision.RetryAfter)
	require.False(t, none[0].Decision.Allowed)
}
