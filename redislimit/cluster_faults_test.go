package redislimit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestFault_Node stops one primary of a cluster: the keys of the others do not notice.
func TestFault_Node(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	l := newLimiter(t, c.client(), Config{Limit: sluice.PerHour(1_000_000)})
	tier := newTier(t, l, TierConfig{Budget: 2 * time.Second})
	var there, elsewhere string
	for i := 0; there == "" || elsewhere == ""; i++ {
		key := fmt.Sprint("k", i)
		if slotOf(l.request(l.plan.Load(), key).key) < slots/3 {
			there = key
		} else {
			elsewhere = key
		}
	}
	await(t, "the slots are known", func() bool {
		takeFrom(t, tier, there, 1)
		takeFrom(t, tier, elsewhere, 1)
		return len(tier.router.all()) == 4
	})
	require.NoError(t, stop(c.nodes[0]))
	defer func() { require.NoError(t, resume(c.nodes[0])) }()
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			_, s, err := tier.TakeSource(ctx, there, 1)
			assert.NoError(t, err)
			assert.Equal(t, FromFallback, s)
		})
	}
	for range 100 {
		_, s := takeFrom(t, tier, elsewhere, 1)
		require.Equal(t, FromRedis, s)
	}
	wg.Wait()
	require.Equal(t, ModeDegraded, tier.Mode())
	_, s := takeFrom(t, tier, elsewhere, 1)
	require.Equal(t, FromRedis, s)
}

// TestFault_ClusterDown: a cluster that serves a key's slot no longer is not asked over and over.
func TestFault_ClusterDown(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	l := newLimiter(t, c.client(), Config{Limit: sluice.PerHour(10)})
	var told atomic.Pointer[error]
	tier := newTier(t, l, TierConfig{Budget: patient, Replicas: 2, OnMode: func(_ Mode, err error) {
		if err != nil {
			told.Store(&err)
		}
	}})
	takeFrom(t, tier, "a", 1)
	slot := slotOf(l.request(l.plan.Load(), "a").key)
	primary := c.primary(slot)
	require.NoError(t, primary.client.ClusterDelSlots(ctx, slot).Err())
	require.Equal(t, 4, admittedBySelf(t, tier, "a", 200), "a share of 5, of which 1 has been charged before")
	await(t, "it is told", func() bool { return told.Load() != nil })
	require.ErrorContains(t, *told.Load(), "CLUSTERDOWN")
	require.NoError(t, primary.client.ClusterAddSlots(ctx, slot).Err())
	await(t, "Redis is told", func() bool {
		d, s := takeFrom(t, tier, "a", 0)
		return s == FromRedis && d.Remaining == 5
	})
	await(t, "the mode is shared", func() bool { takeFrom(t, tier, "a", 0); return tier.Mode() == ModeShared })
}

// TestFault_Failover loses a primary of a cluster: the share answers, then the replica that
// takes its place, which is told what has been admitted; and nothing stays degraded.
func TestFault_Failover(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 1)
	l := newLimiter(t, c.client(), Config{Limit: sluice.PerHour(1000)})
	tier := newTier(t, l, TierConfig{Budget: 200 * time.Millisecond, Replicas: 2})
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("k", i); slotOf(l.request(l.plan.Load(), k).key) < slots/3 {
			key = k
		}
	}
	await(t, "the slots are known", func() bool {
		takeFrom(t, tier, key, 1)
		return len(tier.router.all()) == 4
	})
	require.NoError(t, c.nodes[3].client.ConfigSet(ctx, "cluster-slave-no-failover", "yes").Err()) // not yet
	c.nodes[0].kill()
	admittedBySelf(t, tier, key, 0)
	require.NoError(t, c.nodes[3].client.ConfigSet(ctx, "cluster-slave-no-failover", "no").Err())
	await(t, "the replica answers", func() bool { _, s := takeFrom(t, tier, key, 1); return s == FromRedis })
	await(t, "the mode is shared", func() bool { takeFrom(t, tier, key, 1); return tier.Mode() == ModeShared })
	await(t, "nothing is owed", func() bool {
		takeFrom(t, tier, key, 1) // which probes, if Redis is not asked again
		owed := 0
		for _, lane := range tier.router.all() {
			lane.mu.Lock()
			owed += len(lane.owed)
			lane.mu.Unlock()
		}
		return owed == 0
	})
}

// TestOnce_Cluster: the client of a cluster, which tries again in a loop of its own, does not send a
// charge again either.
func TestOnce_Cluster(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	var loses atomic.Bool
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{c.nodes[0].addr}, MinRetryBackoff: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &losingConn{Conn: conn, loses: loses.Load}, err
		},
	})
	defer client.Close()
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(100), Prefix: "{once}"})
	take(t, l, "warm", 1)
	loses.Store(true)
	_, err := l.Take(ctx, "a", 1)
	require.Error(t, err)
	out := pipelined(l, 1, "b", "c")
	require.Error(t, out[0].err)
	require.Error(t, out[1].err)
	loses.Store(false)
	for _, key := range []string{"a", "b", "c"} {
		d, err := replicaOf(t, client, l).Peek(ctx, key, 0)
		require.NoError(t, err)
		require.Equal(t, 99, d.Remaining, key)
	}
}

// TestOnce_Redirected: calls that a cluster's client has sent on to where their slot is now, and whose answers
// are lost there, may have been charged: Redis is not told of them again, though the last answer to them was a
// redirection.
func TestOnce_Redirected(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	for _, how := range []string{"ASK", "MOVED"} {
		t.Run(how, func(t *testing.T) { onceRedirected(t, c, how == "MOVED") })
	}
}

func onceRedirected(t *testing.T, c *cluster, moved bool) {
	var lossy atomic.Pointer[string]
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{c.nodes[0].addr},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &losingConn{Conn: conn, loses: func() bool { at := lossy.Load(); return at != nil && *at == addr }}, err
		},
	})
	defer client.Close()
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(100), Prefix: fmt.Sprint("{redirected", moved, "}")})
	tier := newTier(t, l, TierConfig{Budget: patient})
	_, err := l.Peek(ctx, "a", 0) // the client knows the slots
	require.NoError(t, err)
	m := c.migrate(t, slotOf(l.request(l.plan.Load(), "a").key))
	require.NoError(t, m.to.client.ScriptLoad(ctx, l.plan.Load().shape.script().text).Err())
	if moved {
		m.end()
	} else {
		defer m.end()
	}
	lossy.Store(&m.to.addr)
	lane := tier.router.first
	tier.router.asked.Store(time.Now().Add(time.Hour).UnixNano()) // so that all calls are in this lane
	locked := func(f func()) {
		lane.mu.Lock()
		defer lane.mu.Unlock()
		f()
	}
	withoutSenders(t, lane)
	keys := []string{"a", "b", "c"}
	var wg sync.WaitGroup
	for _, key := range keys {
		wg.Go(func() {
			_, s, err := tier.TakeSource(ctx, key, 1)
			assert.NoError(t, err)
			assert.Equal(t, FromFallback, s)
		})
	}
	await(t, "all wait, for one pipeline", func() (all bool) {
		locked(func() { all = len(lane.waiting) == len(keys) })
		return all
	})
	startSenders(lane)
	wg.Wait()
	lossy.Store(nil)
	await(t, "nothing more is sent", func() (rest bool) {
		locked(func() { rest = lane.senders+lane.late+len(lane.owed) == 0 })
		return rest
	})
	for _, key := range keys {
		d, err := replicaOf(t, client, l).Peek(ctx, key, 0)
		require.NoError(t, err)
		require.Equal(t, 99, d.Remaining, key)
	}
}

// A losingConn ends in the place of an answer to a script.
type losingConn struct {
	net.Conn
	loses func() bool
	asked atomic.Bool
}

func (c *losingConn) Write(b []byte) (int, error) {
	c.asked.Store(bytes.Contains(b, []byte("evalsha")))
	return c.Conn.Write(b)
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.loses() && c.asked.Load() {
		c.Close() // the client may read on
		return 0, io.EOF
	}
	return n, err
}
