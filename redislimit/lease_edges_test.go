package redislimit

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// TestLease_Bounded: there are no more loans than keys that may be tracked, and those that
// are not used make room.
func TestLease_Bounded(t *testing.T) {
	bubble(t, TierConfig{MaxKeys: 64, Lease: Lease{Max: 100}}, sluice.PerSecond(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		count := func() (n int) {
			for i := range tier.leases.shards {
				s := &tier.leases.shards[i]
				s.mu.Lock()
				n += len(s.loans)
				s.mu.Unlock()
			}
			return n
		}
		for i := range 1000 {
			takeFrom(t, tier, fmt.Sprint(i), 1)
		}
		require.LessOrEqual(t, count(), 64)
		time.Sleep(time.Second)
		for range 3 {
			takeFrom(t, tier, "new", 1)
		}
		require.Equal(t, uint64(1), tier.Stats().Lease, "old ones have made room")
		require.LessOrEqual(t, count(), 64)
	})
}

// TestLease_BadConfig: each has an error that names the field.
func TestLease_BadConfig(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	second := Config{Limit: sluice.PerSecond(100)}
	for _, c := range []struct {
		cfg   Config
		lease Lease
		field string
	}{
		{second, Lease{Max: -1}, "Lease.Max"},
		{second, Lease{Life: time.Millisecond}, "Lease.Max"},
		{second, Lease{Max: 1, Life: -1}, "Lease.Life"},
		{second, Lease{Max: 1, Life: 5*time.Millisecond - 1}, "Lease.Life"},
		{second, Lease{Max: 1, Life: time.Second/2 + 1}, "Lease.Life"},
		{Config{Limit: sluice.PerDay(100)}, Lease{Max: 1, Life: time.Hour + 1}, "Lease.Life"},
		{Config{Limit: sluice.Per(100, 9*time.Millisecond)}, Lease{Max: 1}, "Lease.Life"},
		{Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerSecond(100)}, Lease{Max: 1}, "Lease"},
		{Config{Limit: sluice.PerSecond(100), BlockFor: time.Second}, Lease{Max: 1}, "Lease"},
	} {
		_, err := NewTier(newLimiter(t, client, c.cfg), TierConfig{Replicas: 1, Lease: c.lease})
		var bad *ConfigError
		require.ErrorAs(t, err, &bad, "%+v", c.lease)
		require.Equal(t, c.field, bad.Field)
	}
	for _, c := range []struct {
		cfg   Config
		lease Lease
		life  time.Duration
	}{
		{second, Lease{Max: 1}, defaultLife},
		{second, Lease{Max: math.MaxInt, Life: 5 * time.Millisecond}, 5 * time.Millisecond},
		{second, Lease{Max: 1, Life: time.Second / 2}, time.Second / 2},
		{Config{Limit: sluice.Per(100, 60*time.Millisecond)}, Lease{Max: 1}, 30 * time.Millisecond},
	} {
		tier := newTier(t, newLimiter(t, client, c.cfg), TierConfig{Replicas: 1, Lease: c.lease})
		require.Equal(t, int64(c.life), tier.terms.life)
	}
	for budget, life := range map[time.Duration]time.Duration{ // any Budget that fits into half of a period has a Life that fits
		50 * time.Millisecond: defaultLife, 51 * time.Millisecond: 102 * time.Millisecond,
		200 * time.Millisecond: 400 * time.Millisecond, 400 * time.Millisecond: 500 * time.Millisecond,
	} {
		tier := newTier(t, newLimiter(t, client, second), TierConfig{Replicas: 1, Budget: budget, Lease: Lease{Max: 1}})
		require.Equal(t, int64(life), tier.terms.life, "Budget %v", budget)
	}
	require.Equal(t, "lease", FromLease.String())
}

// TestLease_CloseInFlight: a lease that comes while the tier closes goes back at once.
func TestLease_CloseInFlight(t *testing.T) {
	bubble(t, TierConfig{Budget: 50 * time.Millisecond, Lease: Lease{Max: 100}}, sluice.PerSecond(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		takeFrom(t, tier, "a", 1)
		fake.slow(10 * time.Millisecond)
		go tier.Take(context.Background(), "a", 1)
		time.Sleep(time.Millisecond)
		require.NoError(t, tier.Close(context.Background()))
		require.Equal(t, uint64(1), tier.Stats().Lent)
		require.Equal(t, uint64(1), tier.Stats().Returned)
		out, _ := fake.onLease(time.Now().UnixMicro(), tier.shared.plan.Load().shape.(bucket))
		require.Zero(t, out)
	})
}

// TestLease_CloseChanging: what is given back at the end is told under the limit that it was lent
// under, whatever lease comes for the key right after that.
func TestLease_CloseChanging(t *testing.T) {
	bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		ls, lent := tier.leases, tier.shared.plan.Load()
		for _, key := range keysOfShard(tier, 2) {
			for range 14 {
				takeFrom(t, tier, key, 1)
			}
		}
		require.NoError(t, tier.shared.SetLimit(sluice.PerSecond(500)))
		settle, settled := ls.settle, 0
		ls.settle = func(name string, p *plan, s leasing) {
			require.Same(t, lent, p, name)
			settled++
			for i := range ls.shards { // an answer to a call that was under way
				ls.shards[i].mu.Lock()
				for _, h := range ls.shards[i].loans {
					h.plan = tier.shared.plan.Load()
				}
				ls.shards[i].mu.Unlock()
			}
			settle(name, p, s)
		}
		ls.end()
		require.Equal(t, 2, settled)
	})
}

// keysOfShard returns keys whose loans are in one shard.
func keysOfShard(tier *Tier, n int) (keys []string) {
	first := tier.leases.shard(tier.subject("0").id)
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint(i)
		if tier.leases.shard(tier.subject(key).id) == first {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestLease_DeniedByLeases: who is denied what others hold asks again after a pause, in
// case it has come back.
func TestLease_DeniedByLeases(t *testing.T) {
	bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		other := newLimiter(t, fake.client(), tier.shared.config)
		defer other.client.Close()
		take(t, other, "a", 40)
		r := other.request(other.plan.Load(), "a")
		r.k, r.lend, r.share, r.epoch = 1, 50, 1, 10_000
		answer, err := other.run(context.Background(), r)
		require.NoError(t, err)
		require.Equal(t, int64(50), answer.c)
		d, from := takeFrom(t, tier, "a", 20)
		require.False(t, d.Allowed)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 110*time.Millisecond, d.RetryAfter, "if they do not come back")
		time.Sleep(8 * time.Millisecond)
		_, from = takeFrom(t, tier, "a", 20)
		require.Equal(t, FromCache, from)
		r.k, r.lend, r.since, r.unused = 0, 0, answer.now, 50
		_, err = other.run(context.Background(), r)
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
		d, from = takeFrom(t, tier, "a", 20)
		require.True(t, d.Allowed)
		require.Equal(t, FromRedis, from)
	})
}

// TestLease_CallerLeft: a call that is not made, since its caller has left, takes nothing of the lease along: what is unused
// is given back later.
func TestLease_CallerLeft(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			for _, charge := range []bool{true, false} {
				l, other, now := pair(t, s.client, c)
				now.Store(startMicros - startMicros%3_600_000_000)
				tier, err := NewTier(l, TierConfig{Replicas: 3, Budget: patient, Lease: lending})
				require.NoError(t, err)
				for range 14 { // the last lease is of 8 units, of which 2 are spent
					takeFrom(t, tier, "a", 1)
				}
				call := l.newCall("a", 100, false)
				if charge {
					call = l.newDebit(l.plan.Load(), "a", 100)
				}
				lane := tier.router.first
				withoutSenders(t, lane)
				_, w, err := lane.join(call.request, tier.leases.loan(&call.request, tier.subject("a"), time.Now()), time.Now())
				require.NoError(t, err)
				require.False(t, lane.leave(w))
				lane.mu.Lock()
				lane.senders = 0
				require.Nil(t, lane.take())
				lane.mu.Unlock()
				require.Equal(t, int64(2), tier.held().spent, "%s, charge: %v", variantName(c), charge)
				require.NoError(t, tier.Close(ctx))
				require.Equal(t, 10_000-14, take(t, other, "a", 0).Remaining, "%s, charge: %v", variantName(c), charge)
				require.Equal(t, uint64(5+1), tier.Stats().Scripts, "the leases, and what is given back")
			}
		}
	})
}
