package redislimit

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// answersHere returns a tier that answers key "lease" from a lease and denies key "denied"
// from memory, without a Redis.
func answersHere(tb testing.TB) *Tier {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	tb.Cleanup(func() { client.Close() })
	l, err := New(client, Config{Limit: sluice.PerHour(1_000_000_000), Prefix: "bench"})
	require.NoError(tb, err)
	t, err := NewTier(l, TierConfig{Replicas: 1, MaxStale: time.Hour, Lease: Lease{Max: 1000, Life: 30 * time.Minute}})
	require.NoError(tb, err)
	now, p := time.Now(), l.plan.Load()
	c := l.newCallOf(p, "lease", 1, true)
	c.terms = t.terms
	h := t.leases.loan(&c.request, t.subject("lease"), now)
	h.shard.mu.Lock()
	t.leases.open(h, &c.request, &reply{view: view{c: 1 << 40}}, int64(now.Sub(t.began)))
	h.shard.mu.Unlock()
	c = l.newCallOf(p, "denied", 1, true)
	t.remember(&c, t.subject("denied"), &group{request: c.request, batch: &batch{sent: now}, reply: reply{view: view{a: exact / 2}}})
	return t
}

// TestAllocs: answers from a lease, and denials from memory, allocate nothing.
func TestAllocs(t *testing.T) {
	tier := answersHere(t)
	for key, want := range map[string]Source{"lease": FromLease, "denied": FromCache} {
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			_, from, err := tier.TakeSource(context.Background(), key, 1)
			if from != want || err != nil {
				t.Fatal(from, err)
			}
		}), key)
	}
}

// BenchmarkAnswers compares answers of a tier that do not ask Redis with those of the
// local limiter. The ratio counts: at most 4.
func BenchmarkAnswers(b *testing.B) {
	local := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1_000_000_000)}))
	b.Run("local", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			local.Take("lease", 1)
		}
	})
	tier := answersHere(b)
	for _, key := range []string{"lease", "denied"} {
		b.Run(key, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = tier.Take(context.Background(), key, 1)
			}
		})
	}
}
