package redislimit

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// healing lists the variants whose state is put back.
func healing() (vs []Config) {
	for _, v := range variants {
		if v.Algorithm != sluice.SlidingLog && v.Offset == 0 {
			v.Limit = sluice.PerHour(10)
			vs = append(vs, v)
		}
	}
	return vs
}

// pair returns two replicas that share a limit, at a time that the test tells.
func pair(tb testing.TB, client redis.UniversalClient, c Config) (a, b *Limiter, now *atomic.Int64) {
	c.Prefix = newPrefix()
	now = new(atomic.Int64)
	now.Store(startMicros)
	return frozen(newLimiter(tb, client, c), now), frozen(newLimiter(tb, client, c), now), now
}

func forget(tb testing.TB, client redis.UniversalClient, l *Limiter, key string) {
	tb.Helper()
	n, err := client.Del(ctx, l.request(l.plan.Load(), key).key).Result()
	require.NoError(tb, err)
	require.Equal(tb, int64(1), n)
}

// TestHeal: what Redis has lost is put back by whoever has seen it last, admitted or denied.
func TestHeal(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range healing() {
			a, b, _ := pair(t, s.client, c)
			take(t, a, "x", 7)
			forget(t, s.client, a, "x")
			require.Equal(t, 2, take(t, a, "x", 1).Remaining, variantName(c))
			forget(t, s.client, a, "x")
			require.False(t, take(t, a, "x", 3).Allowed, variantName(c))
			require.Equal(t, 1, take(t, b, "x", 1).Remaining, "%s: the denial has put the key back", variantName(c))
			forget(t, s.client, a, "x")
			d, err := b.Peek(ctx, "x", 2)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.False(t, take(t, a, "x", 2).Allowed, "%s: so does Peek", variantName(c))
		}
	})
}

// TestHeal_Block: a block is put back as well.
func TestHeal_Block(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range healing() {
			c.BlockFor = 2 * time.Hour
			a, b, now := pair(t, s.client, c)
			require.False(t, func() bool { take(t, a, "x", 7); return take(t, a, "x", 7).Allowed }())
			forget(t, s.client, a, "x")
			d := take(t, a, "x", 1)
			require.False(t, d.Allowed)
			require.Equal(t, 2*time.Hour, d.RetryAfter, variantName(c))
			require.False(t, take(t, b, "x", 1).Allowed)
			now.Add(int64(2 * time.Hour / time.Microsecond))
			require.Equal(t, 9, take(t, b, "x", 1).Remaining, "%s: then it is fresh", variantName(c))
		}
	})
}

// TestHeal_Refund: what has been given back stays given back, whatever other replicas have
// seen before.
func TestHeal_Refund(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range healing() {
			require.NoError(t, refundHolds(t, s.client, c))
		}
	})
}

func refundHolds(tb testing.TB, client redis.UniversalClient, c Config) error {
	a, b, _ := pair(tb, client, c)
	take(tb, a, "x", 9)
	if err := b.Refund(ctx, "x", 5); err != nil {
		return err
	}
	if got := take(tb, a, "x", 1).Remaining; got != 5 {
		return fmt.Errorf("%s: 9 charged, 5 given back, 1 charged: %d remain of 10", variantName(c), got)
	}
	if err := b.Reset(ctx, "x"); err != nil {
		return err
	}
	if got := take(tb, a, "x", 1).Remaining; got != 9 {
		return fmt.Errorf("%s: reset, 1 charged: %d remain of 10", variantName(c), got)
	}
	return nil
}

// TestHeal_ResetAfterLoss: a Reset holds against replicas that have seen more than Redis.
func TestHeal_ResetAfterLoss(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range healing() {
			a, b, now := pair(t, s.client, c)
			take(t, a, "x", 9)
			require.NoError(t, b.Refund(ctx, "x", 1))
			take(t, a, "x", 1)
			forget(t, s.client, a, "x")
			now.Add(1000)
			require.NoError(t, replicaOf(t, s.client, a).Reset(ctx, "x"))
			require.Equal(t, 9, take(t, a, "x", 1).Remaining, variantName(c))
		}
	})
}

// replicaOf returns a replica of l that has seen nothing.
func replicaOf(tb testing.TB, client redis.UniversalClient, l *Limiter) *Limiter {
	replica := newLimiter(tb, client, l.config)
	replica.clock, replica.spare = l.clock, l.spare
	return replica
}

// TestHeal_Time: what is put back has drained in between.
func TestHeal_Time(t *testing.T) { eachServer(t, healTime) }

func healTime(t *testing.T, s *server) {
	a, _, now := pair(t, s.client, Config{Limit: sluice.PerHour(10)})
	take(t, a, "x", 10)
	forget(t, s.client, a, "x")
	now.Add(int64(18 * time.Minute / time.Microsecond))
	require.Equal(t, 2, take(t, a, "x", 1).Remaining)
	now.Add(int64(48 * time.Minute / time.Microsecond))
	forget(t, s.client, a, "x")
	require.Equal(t, 9, take(t, a, "x", 1).Remaining)
}

// TestHeal_Restart kills a server and starts an empty one in its place.
func TestHeal_Restart(t *testing.T) {
	eachServer(t, func(t *testing.T, shared *server) {
		s := start(t, shared.binary)
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		take(t, l, "x", 8)
		require.NoError(t, s.client.FlushAll(ctx).Err())
		require.Equal(t, 1, take(t, l, "x", 1).Remaining, "after FLUSHALL")
		s.kill()
		empty := start(t, shared.binary)
		defer empty.kill()
		l.client = empty.client
		require.Equal(t, 0, take(t, l, "x", 1).Remaining, "after a restart")
	})
}

// TestHeal_Evicted fills a server until it evicts.
func TestHeal_Evicted(t *testing.T) {
	eachServer(t, func(t *testing.T, shared *server) {
		s := start(t, shared.binary)
		defer s.kill()
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		take(t, l, "x", 8)
		key := l.request(l.plan.Load(), "x").key
		require.NoError(t, s.client.ConfigSet(ctx, "maxmemory-policy", "volatile-random").Err()) // only keys that expire go
		require.NoError(t, s.client.ConfigSet(ctx, "maxmemory", "4mb").Err())
		for i := 0; s.client.Exists(ctx, key).Val() > 0; i++ {
			require.Less(t, i, 1000, "it evicts")
			_ = s.client.Set(ctx, fmt.Sprint("other", i), make([]byte, 100_000), 0) // fails once nothing is left that can go
		}
		require.NoError(t, s.client.ConfigSet(ctx, "maxmemory", "0").Err())
		require.Equal(t, 1, take(t, l, "x", 1).Remaining)
	})
}

// TestMemory: of two replies the newer counts, room is bounded, and who is fresh goes.
func TestMemory(t *testing.T) {
	state := func(gen, at byte) string {
		return "b" + strings.Repeat("\x00", 5) + string(gen) + strings.Repeat("\x00", 6) + string(at)
	}
	m := memory{newTable[string](16)}
	m.see("a", state(1, 5), 5, 10)
	m.see("a", state(1, 4), 5, 10)
	require.Equal(t, state(1, 5), m.last("a"), "an older reply comes late")
	m.see("a", state(2, 4), 5, 10)
	require.Equal(t, state(2, 4), m.last("a"), "a refund is newer")
	m.see("a", state(1, 1), 11, 20)
	require.Equal(t, state(1, 1), m.last("a"), "the key had become fresh")
	m.see("a", state(1, 2), 12, 12)
	require.Empty(t, m.last("a"), "it is fresh")
	m.see("a", "", 12, 20)
	require.Empty(t, m.last("a"))
	for i := range 1000 {
		m.see(fmt.Sprint(i), state(1, 1), 1, int64(2+i))
	}
	n := 0
	for i := range m.shards {
		n += len(m.shards[i].entries)
	}
	require.LessOrEqual(t, n, 16)
	none := memory{newTable[string](-1)}
	none.see("a", state(1, 1), 1, 2)
	require.Empty(t, none.last("a"))
}

// TestRemember_None: without a memory nothing is put back.
func TestRemember_None(t *testing.T) {
	s := anyServer(t)
	l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10), Remember: -1})
	take(t, l, "x", 8)
	forget(t, s.client, l, "x")
	require.Equal(t, 9, take(t, l, "x", 1).Remaining)
}
