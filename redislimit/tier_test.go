package redislimit

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// patient is a budget that no answer of a healthy server misses, on a machine that is busy
// with other things.
const patient = 10 * time.Second

// newTier returns a tier that is closed at the test's end.
func newTier(tb testing.TB, l *Limiter, cfg TierConfig) *Tier {
	tb.Helper()
	cfg.Replicas = max(cfg.Replicas, 1)
	t, err := NewTier(l, cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		c, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		require.NoError(tb, t.Close(c))
	})
	return t
}

func takeFrom(tb testing.TB, t *Tier, key string, cost int) (sluice.Decision, Source) {
	tb.Helper()
	d, s, err := t.TakeSource(ctx, key, cost)
	require.NoError(tb, err)
	return d, s
}

// await polls until holds does, for half a minute at most.
func await(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if holds() {
			return
		}
		<-time.After(time.Millisecond)
	}
	require.Fail(tb, "not within half a minute", what)
}

// TestTier_Coalesces: callers of a key share scripts, each has a decision of its own, and
// exactly the burst is admitted.
func TestTier_Coalesces(t *testing.T) {
	eachServerClient(t, func(t *testing.T, client redis.UniversalClient) {
		for _, c := range variants {
			c.Limit, c.Offset, c.Prefix = sluice.PerHour(1000), 0, newPrefix()
			var now atomic.Int64
			now.Store(startMicros)
			tiers := make([]*Tier, 2)
			for i := range tiers {
				tiers[i] = newTier(t, frozen(newLimiter(t, client, c), &now), TierConfig{Budget: patient})
			}
			remaining := make([]int, 1000)
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for range 20 {
						d, err := tiers[i%2].Take(ctx, "a", 1)
						if assert.NoError(t, err) && d.Allowed {
							lock.Lock()
							remaining[d.Remaining]++
							lock.Unlock()
						}
					}
				})
			}
			wg.Wait()
			for i, n := range remaining {
				require.Equal(t, 1, n, "%s: decisions with %d remaining", variantName(c), i)
			}
			scripts, calls := uint64(0), uint64(0)
			for _, tier := range tiers {
				st := tier.Stats()
				scripts, calls = scripts+st.Scripts, calls+st.Redis+st.Cache
				require.Zero(t, st.Fallback)
			}
			require.Equal(t, uint64(64*20), calls)
			require.Less(t, scripts, calls/2, "%s: scripts", variantName(c))
		}
	})
}

var lock sync.Mutex

// TestTier_FirstComeFirstServed: within a group ranks are those of arrival, without those
// that have left.
func TestTier_FirstComeFirstServed(t *testing.T) { eachServerClient(t, tierFirstComeFirstServed) }

func tierFirstComeFirstServed(t *testing.T, client redis.UniversalClient) {
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(10)}), TierConfig{Budget: patient})
	l := tier.router.first
	withoutSenders(t, l)
	c := tier.shared.newCall("a", 1, true)
	var waiters []*waiter
	var g *group
	for range 5 {
		group, w, err := l.join(c.request, nil, time.Now())
		require.NoError(t, err)
		require.True(t, g == nil || g == group)
		g, waiters = group, append(waiters, w)
	}
	require.False(t, l.leave(waiters[1]))
	startSenders(l)
	<-g.done
	require.NoError(t, g.err)
	require.Equal(t, int64(4), g.k)
	for i, rank := range []int64{0, -1, 1, 2, 3} {
		if rank >= 0 {
			require.Equal(t, rank, waiters[i].rank)
			require.Equal(t, 9-int(rank), tier.decision(&c, tier.subject("a"), g, rank).Remaining)
		}
	}
	l.leave(waiters[0]) // which changes nothing any more
	require.Equal(t, int64(4), g.k)
}

// TestTier_Context: who leaves before the call is sent is not charged.
func TestTier_Context(t *testing.T) { eachServerClient(t, tierContext) }

func tierContext(t *testing.T, client redis.UniversalClient) {
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(10)}), TierConfig{Budget: patient})
	l := tier.router.first
	withoutSenders(t, l)
	leaving, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		_, err := tier.Take(leaving, "a", 4)
		done <- err
	}()
	await(t, "the call waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.waiting) == 1
	})
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	_, err := tier.Take(leaving, "a", 4)
	require.ErrorIs(t, err, context.Canceled)
	c := tier.shared.newDebit(tier.shared.plan.Load(), "a", 4)
	_, w, err := l.join(c.request, nil, time.Now())
	require.NoError(t, err)
	require.False(t, l.leave(w), "a charge as well")
	l.mu.Lock()
	l.senders = 0
	l.mu.Unlock()
	d, _ := takeFrom(t, tier, "a", 1)
	require.Equal(t, 9, d.Remaining)
}

// TestTier_Memory: what is denied stays denied without Redis, for this cost and larger ones,
// and no longer than it has to.
func TestTier_Memory(t *testing.T) {
	eachServerClient(t, func(t *testing.T, client redis.UniversalClient) {
		require.NoError(t, memoryHolds(t, client))
	})
}

func memoryHolds(tb testing.TB, client redis.UniversalClient) error {
	l := newLimiter(tb, client, Config{Limit: sluice.PerHour(10)})
	tier := newTier(tb, l, TierConfig{Budget: patient, MaxStale: time.Hour})
	steps := []struct {
		cost      int
		allowed   bool
		source    Source
		remaining int
	}{
		{7, true, FromRedis, 3}, {5, false, FromRedis, 3}, {5, false, FromCache, 3}, {6, false, FromCache, 3}, {4, false, FromRedis, 3},
		{4, false, FromCache, 3}, {3, true, FromRedis, 0}, {11, false, FromRedis, 0}, {0, false, FromRedis, 0}, {1, false, FromRedis, 0}, {9, false, FromCache, 0},
	}
	last := time.Duration(math.MaxInt64)
	for i, step := range steps {
		d, s := takeFrom(tb, tier, "a", step.cost)
		if d.Allowed != step.allowed || s != step.source || d.Remaining != step.remaining {
			return fmt.Errorf("step %d, cost %d: %+v from %v, want %+v", i, step.cost, d, s, step)
		}
		if step.cost == 5 && !d.Allowed {
			if d.RetryAfter >= last || d.RetryAfter < 11*time.Minute {
				return fmt.Errorf("step %d: wait of %v after one of %v", i, d.RetryAfter, last)
			}
			last = d.RetryAfter
		}
	}
	return nil
}

// TestTier_MemoryEnds: refunds, resets and other limits show; what another replica gives
// back does after MaxStale; and a wait that is over is over.
func TestTier_MemoryEnds(t *testing.T) {
	eachServerClient(t, func(t *testing.T, client redis.UniversalClient) {
		c := Config{Limit: sluice.PerHour(10), Prefix: newPrefix()}
		l := newLimiter(t, client, c)
		tier := newTier(t, l, TierConfig{Budget: patient, MaxStale: time.Hour})
		deny := func(tier *Tier) {
			t.Helper()
			for range 11 {
				takeFrom(t, tier, "a", 1)
			}
			d, s := takeFrom(t, tier, "a", 1)
			require.False(t, d.Allowed)
			require.Equal(t, FromCache, s)
		}
		deny(tier)
		require.NoError(t, tier.Refund(ctx, "a", 2))
		d, _ := takeFrom(t, tier, "a", 1)
		require.Equal(t, 1, d.Remaining)
		deny(tier)
		require.NoError(t, tier.Reset(ctx, "a"))
		d, _ = takeFrom(t, tier, "a", 1)
		require.Equal(t, 9, d.Remaining)
		deny(tier)
		require.NoError(t, l.SetLimit(sluice.PerHour(20)))
		d, _ = takeFrom(t, tier, "a", 1)
		require.Equal(t, 9, d.Remaining)
		require.NoError(t, l.SetLimit(sluice.PerHour(10)))

		brief := newTier(t, l, TierConfig{Budget: patient, MaxStale: 20 * time.Millisecond})
		for d.Allowed {
			d, _ = takeFrom(t, brief, "a", 1)
		}
		require.NoError(t, newLimiter(t, client, c).Reset(ctx, "a"))
		await(t, "another's reset shows", func() bool { d, _ := takeFrom(t, brief, "a", 1); return d.Allowed })

		quick := newTier(t, newLimiter(t, client, Config{Limit: sluice.Per(1, 30*time.Millisecond)}), TierConfig{Budget: patient})
		takeFrom(t, quick, "a", 1)
		await(t, "the wait ends", func() bool { d, _ := takeFrom(t, quick, "a", 1); return d.Allowed })
	})
}

// TestTier_Constant does not need Redis.
func TestTier_Constant(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.Unlimited}), TierConfig{Replicas: 3})
	d, s := takeFrom(t, tier, "a", math.MaxInt)
	require.True(t, d.Allowed)
	require.Equal(t, FromCache, s)
	require.NoError(t, tier.Refund(ctx, "a", 1))
}

// TestBreaker_Ratio: it opens when half of 20 calls within a second have failed, and no sooner.
func TestBreaker_Ratio(t *testing.T) {
	var b breaker
	now := time.Unix(1_700_000_000, 0)
	made := now.Add(-time.Millisecond)
	for range breakerCalls - 1 { // at once, so that they are no run
		require.False(t, b.note(now, made, 1, false))
	}
	now = now.Add(breakerWindow)
	require.False(t, b.note(now, made, 21, true))
	require.False(t, b.note(now, made, 20, false), "20 of 41")
	require.True(t, b.note(now, made, 1, false), "21 of 42")
	require.False(t, b.note(now, made, 1000, true), "what was sent before does not close it")
	require.Equal(t, breakerOpen, b.state)
}

// TestBreaker_Run: however few calls there are, some that fail one after another open it, and one that does not ends the run. Calls that fail
// together are one failure.
func TestBreaker_Run(t *testing.T) {
	for _, pace := range []time.Duration{time.Millisecond, time.Second, time.Hour} {
		var b breaker
		now := time.Unix(1_700_000_000, 0)
		call := func(ok bool) bool {
			now = now.Add(pace)
			return b.note(now, now.Add(-pace/2), 1, ok)
		}
		for range breakerRun - 1 {
			require.False(t, call(false))
		}
		require.False(t, call(true))
		for range breakerRun - 1 {
			require.False(t, call(false))
		}
		for range breakerRun {
			require.False(t, b.note(now, now.Add(-pace/2), 1, false), "made before the last one has failed")
		}
		require.True(t, call(false), "a call each %v", pace)
	}
}

// TestBreaker_Pauses: they grow up to a quarter of a second. Then there is a return, which ends as a closed breaker does: not by one failure.
func TestBreaker_Pauses(t *testing.T) {
	var b breaker
	now := time.Unix(1_700_000_000, 0)
	require.True(t, b.note(now, now, breakerCalls, false))
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, longestPause, longestPause} {
		require.LessOrEqual(t, b.left(now), pause)
		require.GreaterOrEqual(t, b.left(now), pause*3/4)
		now = now.Add(b.left(now))
		b.wait(now)
	}
	b.returns(now)
	require.Equal(t, returnPause, b.left(now))
	require.False(t, b.note(now, now, 1, true))
	require.False(t, b.note(now, now, 1, false))
	require.Equal(t, breakerReturning, b.state)
	require.True(t, b.note(now, now, breakerCalls, false))
	require.Equal(t, breakerOpen, b.state)
	require.LessOrEqual(t, b.left(now), firstPause)
}

// TestSlots compares with Redis's own.
func TestSlots(t *testing.T) {
	c := start(t, anyServer(t).binary, "--cluster-enabled", "yes", "--cluster-config-file", t.TempDir()+"/nodes.conf")
	defer c.kill()
	rng := seeded.Rand(t)
	keys := []string{"", "{}", "{}x", "{a}", "x{a}y{b}", "{", "}{", "{{a}}", "a{}{b}"}
	for range 300 {
		b := make([]byte, rng.IntN(40))
		for i := range b {
			b[i] = "{}ab\x00\xff"[rng.IntN(6)]
		}
		keys = append(keys, string(b))
	}
	for _, key := range keys {
		require.Equal(t, c.client.ClusterKeySlot(ctx, key).Val(), int64(slotOf(key)), "%q", key)
	}
}

// TestTier_BadConfig: each has an error that names the field.
func TestTier_BadConfig(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(10)})
	for _, c := range []struct {
		cfg   TierConfig
		field string
	}{
		{TierConfig{}, "Replicas"},
		{TierConfig{Replicas: -1}, "Replicas"},
		{TierConfig{Replicas: 1, Budget: -1}, "Budget"},
		{TierConfig{Replicas: 1, Budget: 5}, "Budget"}, // ms were meant
		{TierConfig{Replicas: 1, Budget: 100*time.Microsecond - 1}, "Budget"},
		{TierConfig{Replicas: 1, Budget: time.Hour}, "Budget"},
		{TierConfig{Replicas: 1, OnUnavailable: 3}, "OnUnavailable"},
		{TierConfig{Replicas: 1, MaxKeys: -1}, "MaxKeys"},
		{TierConfig{Replicas: 1, MaxStale: -1}, "MaxStale"},
	} {
		_, err := NewTier(l, c.cfg)
		var bad *ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, c.field, bad.Field)
	}
	_, err := NewTier(nil, TierConfig{Replicas: 1})
	require.Error(t, err)
	require.Equal(t, "open", FailOpen.String())
	require.Equal(t, "fallback", FromFallback.String())
	require.Equal(t, "Mode(9)", Mode(9).String())
}

// TestTier_Close: later calls fail, and nothing is left running.
func TestTier_Close(t *testing.T) { eachServerClient(t, tierClose) }

func tierClose(t *testing.T, client redis.UniversalClient) {
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(10)})
	take(t, l, "a", 1)
	before := runtime.NumGoroutine()
	tier, err := NewTier(l, TierConfig{Replicas: 1, Budget: patient})
	require.NoError(t, err)
	for i := range 20 {
		takeFrom(t, tier, fmt.Sprint(i), 1)
	}
	require.NoError(t, tier.Close(ctx))
	require.NoError(t, tier.Close(ctx))
	_, err = tier.Take(ctx, "a", 1)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, tier.Refund(ctx, "a", 1), ErrClosed)
	require.ErrorIs(t, tier.Reset(ctx, "a"), ErrClosed)
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// percentile returns that of durations, which it sorts.
func percentile(ds []time.Duration, p int) time.Duration {
	sort.Slice(ds, func(i, j int) bool { return ds[i] < ds[j] })
	return ds[len(ds)*p/100]
}
