package rulestore

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// TestUpstreamServer: calls are counted by how they ended, and the mode turns after five failures in a row and at the first answer.
func TestUpstreamServer(t *testing.T) {
	server := servers.StartRedis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	var dial atomic.Pointer[func(context.Context) error]
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
		if f := dial.Load(); f != nil {
			return nil, (*f)(ctx)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}})
	defer client.Close()
	fail := func(f func(context.Context) error) {
		dial.Store(&f)
		require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err())
	}
	var modes []redislimit.Mode
	u := newUpstream(t, client, UpstreamConfig{OnUnavailable: redislimit.FailOpen, OnMode: func(mode redislimit.Mode, cause error) {
		require.Equal(t, mode == redislimit.ModeDegraded, cause != nil)
		modes = append(modes, mode)
	}})
	e, err := rules.New(load(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}]"), rules.Config{Store: u})
	require.NoError(t, err)
	ask := func(hits uint64, refund bool) {
		t.Helper()
		var resp rules.Response
		d := rules.Descriptor{Entries: []rules.Entry{{Key: "k", Value: "x"}}, Hits: &hits, Refund: refund}
		require.NoError(t, e.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{d}}, &resp))
	}
	require.Len(t, u.Servers(), 1)
	s := u.Servers()[0]
	for range 3 {
		ask(1, false)
	}
	stats := s.Stats()
	require.EqualValues(t, 3, stats.Redis)
	require.EqualValues(t, 3, stats.Trips)
	require.Positive(t, stats.TripTime)

	fail(func(context.Context) error { return net.ErrClosed })
	for i := range 5 {
		require.Equal(t, redislimit.ModeShared, s.Mode(), "after %d", i)
		ask(2, false)
	}
	require.Equal(t, redislimit.ModeDegraded, s.Mode())
	ask(1, true)   // nothing is admitted
	ask(11, false) // nor more than the limit is
	stats = s.Stats()
	require.EqualValues(t, 3, stats.Redis)
	require.EqualValues(t, 7, stats.Fallback)
	require.EqualValues(t, 7, stats.Failed)
	require.EqualValues(t, 10, stats.Unshared)
	require.EqualValues(t, 1, stats.Outages)
	require.EqualValues(t, 3, stats.Trips)
	require.EqualValues(t, 2, s.Status().Unshared, "since the mode has begun")
	require.Error(t, s.Status().Cause)

	dial.Store(nil)
	ask(1, false)
	require.Equal(t, redislimit.ModeShared, s.Mode())
	require.Equal(t, []redislimit.Mode{redislimit.ModeDegraded, redislimit.ModeShared}, modes)

	fail(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	u.config.Budget = time.Millisecond
	ask(1, false)
	require.EqualValues(t, 1, s.Stats().Late, "%+v", s.Stats())
	require.EqualValues(t, 7, s.Stats().Failed)
}
