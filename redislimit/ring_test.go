package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestFault_RingShard: of two shards of a ring one is stopped. Its keys get their share; those of the other go on as if
// nothing had happened.
func TestFault_RingShard(t *testing.T) {
	t.Parallel() // it mostly waits
	shards := map[string]*server{"a": start(t, anyServer(t).binary), "b": start(t, anyServer(t).binary)}
	addrs := map[string]string{}
	for name, s := range shards {
		defer s.kill()
		addrs[name] = s.addr
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs, ReadTimeout: 5 * time.Second, HeartbeatFrequency: time.Hour})
	defer ring.Close()
	tier := newTier(t, newLimiter(t, ring, Config{Limit: sluice.PerHour(100)}), TierConfig{Replicas: 2, Budget: patient})
	var of [2][]string // keys: those of shard a, and of b
	for i := range 40 {
		key := fmt.Sprint("k", i)
		_, from := takeFrom(t, tier, key, 1)
		require.Equal(t, FromRedis, from)
		client, err := ring.GetShardClientForKey(tier.shared.request(tier.shared.plan.Load(), key).key)
		require.NoError(t, err)
		if client.Options().Addr == addrs["a"] {
			of[0] = append(of[0], key)
		} else {
			of[1] = append(of[1], key)
		}
	}
	require.NotEmpty(t, of[0])
	require.NotEmpty(t, of[1])
	require.NoError(t, stop(shards["a"]))
	defer func() { require.NoError(t, resume(shards["a"])) }()
	lost := tier.router.lane(tier.shared.request(tier.shared.plan.Load(), of[0][0]).key, time.Now())
	r := tier.shared.request(tier.shared.plan.Load(), of[0][0])
	lost.mu.Lock()
	lost.outcome(&group{request: r, waiters: make([]*waiter, 100*breakerCalls)}, errLate, time.Now())
	lost.mu.Unlock()
	require.Equal(t, ModeDegraded, tier.Mode())
	for i := range 200 {
		_, from := takeFrom(t, tier, of[0][i%len(of[0])], 1)
		require.Equal(t, FromFallback, from)
		_, from = takeFrom(t, tier, of[1][i%len(of[1])], 1)
		require.Equal(t, FromRedis, from)
	}
}
