package redislimit

import (
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// texts returns how many texts of scripts a server has been sent.
func (s *server) texts(t *testing.T) int {
	stats := s.client.Info(ctx, "commandstats").Val()
	m := regexp.MustCompile(`cmdstat_eval:calls=(\d+)`).FindStringSubmatch(stats)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// connections returns how many have been made to a server.
func (s *server) connections(t *testing.T) string {
	m := regexp.MustCompile(`total_connections_received:(\d+)`).FindString(s.client.Info(ctx, "stats").Val())
	require.NotEmpty(t, m)
	return m
}

// reaches has a store reach servers, which then get neither a text of a script nor a connection for the first calls.
func reaches(t *testing.T, s *Store, servers ...*server) {
	plain := limitOf(t, s, LimitConfig{Name: "plain", Limit: sluice.PerHour(100)})
	window := limitOf(t, s, LimitConfig{Name: "window", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(100)})
	holds := limitOf(t, s, LimitConfig{Name: "holds", Limit: sluice.PerHour(100), MaxHolds: 10})
	first, second := limitOf(t, s, LimitConfig{Name: "first", Tag: "t", Limit: sluice.PerHour(100)}), limitOf(t, s, LimitConfig{Name: "second", Tag: "t", Limit: sluice.PerHour(100), MaxHolds: 10})
	limitOf(t, s, LimitConfig{Name: "nothing", Limit: sluice.Limit{Period: time.Second}})
	keys := func() (n int64) {
		for _, server := range servers {
			n += server.client.DBSize(ctx).Val()
		}
		return n
	}
	before := keys()
	require.NoError(t, s.Reach(ctx))
	require.Equal(t, before, keys(), "nothing is written")
	state := func() (all []string) {
		for _, server := range servers {
			all = append(all, fmt.Sprint(server.texts(t)), server.connections(t))
		}
		return all
	}
	reached := state()
	for i := range 30 {
		key := fmt.Sprint("key", i)
		for _, r := range do(t, s, StoreCall{Limit: plain, Key: key, Cost: 1}, StoreCall{Limit: window, Key: key, Cost: 1}, StoreCall{Limit: holds, Key: key, Cost: 1, Op: OpHold, TTL: time.Hour}) {
			require.NoError(t, r.Err)
			require.Equal(t, FromRedis, r.Source)
		}
	}
	for _, calls := range [][]StoreCall{
		{{Limit: first, Key: "a", Cost: 1}, {Limit: first, Key: "b", Cost: 1}},
		{{Limit: first, Key: "a", Cost: 1}, {Limit: second, Key: "a", Cost: 1, Op: OpHold, TTL: time.Hour}},
	} {
		all, err := s.DoAll(ctx, calls, make([]StoreResult, len(calls)))
		require.NoError(t, err)
		require.True(t, all.Allowed)
	}
	require.Equal(t, reached, state(), "texts and connections of the servers, before the first calls and after")
}

// TestReach: the first calls need neither a dial nor the text of a script, of a single server or of a cluster.
func TestReach(t *testing.T) {
	t.Run("single", func(t *testing.T) {
		s := start(t, anyServer(t).binary)
		defer s.kill()
		client, err := NewClient(&redis.Options{Addr: s.addr})
		require.NoError(t, err)
		defer client.Close()
		store := newStore(t, client, StoreConfig{})
		reaches(t, store, s)
		require.NotNil(t, store.router.first.direct, "a lone caller can lead")
		require.NoError(t, store.Reach(ctx), "again")
	})
	t.Run("cluster", func(t *testing.T) {
		c := startCluster(t, anyServer(t).binary, 0)
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.nodes[0].addr}})
		defer client.Close()
		reaches(t, newStore(t, client, StoreConfig{}), c.nodes...)
	})
}

// TestReach_Error: it is the client's, or that of Redis, and then Reach can be called again.
func TestReach_Error(t *testing.T) {
	s := start(t, anyServer(t).binary)
	defer s.kill()
	require.NoError(t, s.client.ConfigSet(ctx, "requirepass", "right").Err())
	for _, replicas := range []int{0, 2} {
		var password atomic.Value
		password.Store("wrong")
		client := redis.NewClient(&redis.Options{Addr: s.addr, CredentialsProvider: func() (string, string) { return "", password.Load().(string) }})
		defer client.Close()
		store, err := NewStore(client, StoreConfig{Prefix: newPrefix(), Replicas: replicas})
		require.NoError(t, err)
		require.ErrorContains(t, store.Reach(ctx), "WRONGPASS", "without limits")
		limitOf(t, store, LimitConfig{Name: "a", Limit: sluice.PerHour(100)})
		require.ErrorContains(t, store.Reach(ctx), "WRONGPASS")
		password.Store("right")
		require.NoError(t, store.Reach(ctx))
		require.NoError(t, store.Close(ctx))
		require.ErrorIs(t, store.Reach(ctx), ErrClosed)
	}
}

// TestStore_Uncounted: a process that has never reached Redis does not know of how many processes its share is. It does not take the whole
// limit for its share, unless it is told how many there are; FailOpen admits as ever.
func TestStore_Uncounted(t *testing.T) {
	free := freePort(t)
	s := &server{binary: anyServer(t).binary, addr: fmt.Sprint("127.0.0.1:", free)}
	open := func(cfg StoreConfig) (*Store, *StoreLimit) {
		client := redis.NewClient(&redis.Options{Addr: s.addr, DialerRetries: 1})
		t.Cleanup(func() { client.Close() })
		cfg.Prefix, cfg.Budget = newPrefix(), patient
		store, err := NewStore(client, cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close(ctx)) })
		return store, limitOf(t, store, LimitConfig{Name: "a", Limit: sluice.PerHour(100), MaxHolds: 10})
	}
	store, limit := open(StoreConfig{})
	for range 3 * breakerRun { // before the breaker opens, and after
		for _, op := range []Op{OpTake, OpPeek, OpDebit, OpRefund, OpHold} {
			r := do(t, store, StoreCall{Limit: limit, Key: "a", Cost: 1, Op: op, TTL: time.Hour})[0]
			require.ErrorIs(t, r.Err, ErrUnavailable, op)
			require.ErrorIs(t, r.Err, errUncounted, op)
		}
		calls := []StoreCall{{Limit: limit, Key: "a", Cost: 1}}
		_, err := store.DoAll(ctx, calls, make([]StoreResult, 1))
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, errUncounted)
	}
	require.Zero(t, store.Stats().Unshared)
	two, share := open(StoreConfig{Replicas: 2})
	require.Equal(t, 50, do(t, two, StoreCall{Limit: share, Key: "a", Op: OpPeek})[0].Decision.Remaining)
	always, admits := open(StoreConfig{OnUnavailable: FailOpen})
	require.True(t, do(t, always, StoreCall{Limit: admits, Key: "a", Cost: 1})[0].Decision.Allowed)

	require.True(t, s.launch(t))
	defer s.kill()
	await(t, "it is counted", func() bool { return store.Reach(ctx) == nil })
	s.kill()
	await(t, "its share decides", func() bool {
		r := do(t, store, StoreCall{Limit: limit, Key: "b", Op: OpPeek})[0]
		return r.Err == nil && r.Source == FromFallback && r.Decision.Remaining == 100
	})
}
