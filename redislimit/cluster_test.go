package redislimit

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

const slots = 16384

// A cluster is three primaries, each with a third of the slots, and their replicas.
type cluster struct {
	tb      testing.TB
	nodes   []*server // first the primaries
	clients []*redis.ClusterClient
}

// startCluster starts one with so many replicas, of the first primaries.
func startCluster(tb testing.TB, binary string, replicas int) *cluster {
	c := &cluster{tb: tb}
	dir := tb.TempDir() // which goes once the nodes have ended
	tb.Cleanup(c.stop)
	for i := range 3 + replicas {
		config := filepath.Join(dir, fmt.Sprint("nodes", i, ".conf"))
		c.nodes = append(c.nodes, start(tb, binary, "--cluster-enabled", "yes", "--cluster-config-file", config,
			"--cluster-node-timeout", "500", "--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"))
	}
	c.meet()
	for i, n := range c.nodes[:3] {
		require.NoError(tb, n.client.ClusterAddSlotsRange(ctx, i*slots/3, (i+1)*slots/3-1).Err())
	}
	asked := time.Now()
	c.await("the primaries agree", func() bool {
		if time.Since(asked) > 3*time.Second { // on a busy machine a handshake can time out
			asked = time.Now()
			c.meet()
		}
		return c.count("cluster_state:ok") == len(c.nodes) && c.count("cluster_known_nodes:"+fmt.Sprint(len(c.nodes))) == len(c.nodes)
	})
	for i, n := range c.nodes[3:] {
		id := c.nodes[i].client.ClusterMyID(ctx).Val()
		c.await("the replica knows its primary", func() bool { return n.client.ClusterReplicate(ctx, id).Err() == nil })
		c.await("it is in step", func() bool { return strings.Contains(n.client.Info(ctx, "replication").Val(), "master_link_status:up") })
	}
	return c
}

// meet introduces all nodes to the first one.
func (c *cluster) meet() {
	host, port, _ := net.SplitHostPort(c.nodes[0].addr)
	for _, n := range c.nodes[1:] {
		require.NoError(c.tb, n.client.ClusterMeet(ctx, host, port).Err())
	}
}

// count returns of how many nodes the info on the cluster contains a text.
func (c *cluster) count(text string) (n int) {
	for _, node := range c.nodes {
		if strings.Contains(node.client.ClusterInfo(ctx).Val(), text) {
			n++
		}
	}
	return n
}

func (c *cluster) await(what string, holds func() bool) {
	c.tb.Helper()
	for range 3000 {
		if holds() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	require.Fail(c.tb, "not within half a minute", what)
}

func (c *cluster) client() *redis.ClusterClient {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.addr
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	c.clients = append(c.clients, client)
	return client
}

func (c *cluster) stop() {
	for _, client := range c.clients {
		client.Close()
	}
	for _, n := range c.nodes {
		n.kill()
	}
}

// TestCluster: keys live on all nodes, no call crosses slots, and slots that move are found.
func TestCluster(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	t.Run("everywhere", func(t *testing.T) { clusterWide(t, c) })
	t.Run("store", func(t *testing.T) { clusterStore(t, c) })
	t.Run("holds", func(t *testing.T) { clusterHolds(t, c) })
	t.Run("moved", func(t *testing.T) { clusterMoved(t, c) })
}

func clusterWide(t *testing.T, c *cluster) {
	client := c.client()
	for _, cfg := range variants {
		cfg.Limit, cfg.Offset = sluice.PerHour(10), 0
		l := newLimiter(t, client, cfg)
		keys := make([]string, 60)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i%30)
		}
		for i, r := range pipelined(l, 4, keys...) {
			require.NoError(t, r.err)
			require.Equal(t, 10-4*(1+i/30), r.Remaining, variantName(cfg))
		}
	}
	for _, n := range c.nodes {
		require.NotZero(t, n.client.DBSize(ctx).Val())
	}
}

// clusterMoved moves the slot of two keys while calls go on, of a limiter and of a tier: the
// client follows MOVED and ASK, and each call is charged once.
func clusterMoved(t *testing.T, c *cluster) {
	l := newLimiter(t, c.client(), Config{Limit: sluice.PerHour(100), Prefix: "{moved}", Remember: -1})
	tier := newTier(t, newLimiter(t, c.client(), l.config), TierConfig{Budget: patient})
	left := 99
	step := func(what string) {
		t.Helper()
		require.Equal(t, left, take(t, l, "a", 1).Remaining, what)
		d, from := takeFrom(t, tier, "b", 1)
		require.Equal(t, FromRedis, from, "the tier, %s", what)
		require.Equal(t, left, d.Remaining, "the tier, %s", what)
		left--
	}
	slot := slotOf(l.request(l.plan.Load(), "a").key)
	step("at first")
	// The slot is not the test's alone: keys of the tests before can be in it.
	require.NoError(t, c.primary(slot).client.Set(ctx, "{moved}", "a stranger's", 0).Err())
	m := c.migrate(t, slot)
	step("still there")
	m.moveKeys()
	step("ASK")
	out := pipelined(l, 1, "a", "a")
	require.NoError(t, out[1].err)
	require.Equal(t, 95, out[1].Remaining, "ASK, in a pipeline")
	require.NoError(t, tier.Refund(ctx, "b", 1))
	takeFrom(t, tier, "b", 3)
	left -= 2
	m.end()
	step("MOVED")
	require.Zero(t, tier.Stats().Failed)
}

// primary returns the primary that had slot at first.
func (c *cluster) primary(slot int) *server {
	i := 0
	for slot >= (i+1)*slots/3 {
		i++
	}
	return c.nodes[i]
}

// A migration moves a slot from one primary to another, in the steps of redis-cli.
type migration struct {
	t            *testing.T
	slot         int
	from, to     *server
	fromID, toID string
}

// migrate begins to move slot to another primary. Of a key that is not there, the first one answers ASK from now on.
func (c *cluster) migrate(t *testing.T, slot int) *migration {
	from := c.primary(slot)
	to := c.nodes[(slices.Index(c.nodes, from)+1)%3]
	m := &migration{t: t, slot: slot, from: from, to: to, fromID: from.client.ClusterMyID(ctx).Val(), toID: to.client.ClusterMyID(ctx).Val()}
	m.setSlot(to, "importing", m.fromID)
	m.setSlot(from, "migrating", m.toID)
	return m
}

func (m *migration) setSlot(of *server, state, id string) {
	m.t.Helper()
	require.NoError(m.t, of.client.Do(ctx, "cluster", "setslot", m.slot, state, id).Err())
}

// moveKeys moves every key of the slot.
func (m *migration) moveKeys() {
	host, port, _ := net.SplitHostPort(m.to.addr)
	for _, key := range m.from.client.ClusterGetKeysInSlot(ctx, m.slot, slots).Val() {
		require.NoError(m.t, m.from.client.Migrate(ctx, host, port, key, 0, 5*time.Second).Err())
	}
	require.Zero(m.t, m.from.client.ClusterCountKeysInSlot(ctx, m.slot).Val())
}

// end gives the slot away, with the keys that are left.
func (m *migration) end() {
	m.moveKeys()
	m.setSlot(m.to, "node", m.toID)
	m.setSlot(m.from, "node", m.toID)
}

// TestCluster_Failover loses a primary with writes that its replica has not got: they are
// put back by whoever has seen them.
func TestCluster_Failover(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 1)
	primary, replica := c.nodes[0], c.nodes[3]
	l := newLimiter(t, c.client(), Config{Limit: sluice.PerHour(100)})
	var keys []string
	for i := 0; len(keys) < 5; i++ {
		key := fmt.Sprint("k", i)
		if slot := c.nodes[0].client.ClusterKeySlot(ctx, l.request(l.plan.Load(), key).key).Val(); slot < slots/3 {
			keys = append(keys, key)
			take(t, l, key, 40)
		}
	}
	c.await("the replica has them", func() bool { return replica.client.DBSize(ctx).Val() == 5 })
	// A replica that is stopped gets no more.
	require.NoError(t, stop(replica))
	for _, key := range keys {
		require.Equal(t, 20, take(t, l, key, 40).Remaining)
	}
	primary.kill()
	require.NoError(t, resume(replica))
	c.await("the replica is promoted", func() bool { return strings.Contains(replica.client.Info(ctx, "replication").Val(), "role:master") })
	c.await("the cluster is whole", func() bool {
		_, err := l.Peek(ctx, keys[0], 1)
		return err == nil
	})
	for _, key := range keys {
		require.Equal(t, 19, take(t, l, key, 1).Remaining, "the lost charge of %s counts", key)
	}
}

func stop(s *server) error   { return signal(s, "STOP") }
func resume(s *server) error { return signal(s, "CONT") }

func signal(s *server, name string) error {
	p, err := os.FindProcess(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	return p.Signal(signals[name])
}
