package redislimit

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestFault_FewCalls: a process that makes a call now and then finds out that Redis is gone as well: a few that fail one after
// another are an outage, of which OnMode tells, and no call waits any more. It finds out that Redis is back without a call.
func TestFault_FewCalls(t *testing.T) { eachClientBeside(t, faultFewCalls) }

func faultFewCalls(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(100))
	takeFrom(t, f.tier, "a", 1)
	f.waits(quick)
	require.NoError(t, stop(f.s))
	for i := range breakerRun {
		require.Equal(t, ModeShared, f.tier.Mode(), "after %d calls", i)
		_, from := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, FromFallback, from)
	}
	require.Equal(t, ModeDegraded, <-f.modes)
	for range 100 {
		_, from := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, FromFallback, from)
	}
	require.Equal(t, uint64(breakerRun), f.tier.Stats().Late)
	f.waits(patient)
	require.NoError(t, resume(f.s))
	require.Equal(t, ModeShared, <-f.modes)
	require.Len(t, f.modes, 0)
	_, from := takeFrom(t, f.tier, "a", 1)
	require.Equal(t, FromRedis, from)
	require.Equal(t, uint64(1), f.tier.Stats().Outages)
}

// TestFault_Noise: calls that fail now and then are no outage, however few there are.
func TestFault_Noise(t *testing.T) { eachClientBeside(t, faultNoise) }

func faultNoise(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{}, sluice.PerHour(100))
	for range 3 {
		f.waits(quick)
		f.proxy.hole.Store(true)
		for range breakerRun - 1 {
			_, from := takeFrom(t, f.tier, "a", 1)
			require.Equal(t, FromFallback, from)
		}
		f.waits(patient)
		f.proxy.mend()
		await(t, "Redis answers", func() bool { _, from := takeFrom(t, f.tier, "a", 1); return from == FromRedis })
	}
	require.Zero(t, f.tier.Stats().Outages)
	require.Len(t, f.modes, 0)
}

// TestFault_Return: a server is stopped for 6.5 s. Three processes call it all the time, and one begins just before it
// goes on. All find out within a quarter of a second, however long the outage was; until then
// they are admitted no more than TestComeback says.
func TestFault_Return(t *testing.T) {
	t.Parallel() // it mostly waits
	const replicas, budget, stopped = 4, 50 * time.Millisecond, 6500 * time.Millisecond
	limit := sluice.PerSecond(400).WithBurst(50)
	s := start(t, anyServer(t).binary)
	defer s.kill()
	var (
		mu    sync.Mutex
		units []admission
		wg    sync.WaitGroup
		tiers []*Tier
		back  [replicas]time.Duration // first answer of Redis after the end
		end   atomic.Int64            // of the outage
	)
	begun, done, prefix := time.Now(), make(chan struct{}), newPrefix()
	join := func(i int) {
		client := redis.NewClient(&redis.Options{Addr: s.addr, ReadTimeout: 5 * time.Second})
		t.Cleanup(func() { client.Close() })
		tier := newTier(t, newLimiter(t, client, Config{Limit: limit, Prefix: prefix}), TierConfig{Replicas: replicas, Budget: budget})
		tiers = append(tiers, tier)
		wg.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				from := time.Since(begun)
				d, source, err := tier.TakeSource(ctx, "a", 1)
				assert.NoError(t, err)
				to := time.Since(begun)
				mu.Lock()
				if d.Allowed {
					units = append(units, admission{int64(from), int64(to)})
				}
				if at := end.Load(); at > 0 && back[i] == 0 && source == FromRedis {
					back[i] = to - time.Duration(at)
				}
				mu.Unlock()
			}
		})
	}
	wait := func(d time.Duration) { <-time.After(d) }
	for i := range replicas - 1 {
		join(i)
	}
	wait(time.Second)
	require.NoError(t, stop(s))
	wait(stopped - 20*time.Millisecond)
	join(replicas - 1)
	wait(20 * time.Millisecond)
	require.NoError(t, resume(s))
	end.Store(int64(time.Since(begun)))
	await(t, "all are back", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for i, tier := range tiers {
			if back[i] == 0 || tier.Mode() != ModeShared {
				return false
			}
		}
		return true
	})
	wait(time.Second)
	close(done)
	wg.Wait()
	lag, outages := time.Duration(0), uint64(1)
	for i, tier := range tiers {
		lag, outages = max(lag, back[i]), max(outages, tier.Stats().Outages)
	}
	got := excess(units, limit)
	bound := float64(limit.Burst)*float64(1+outages) + float64(limit.Rate)*(lag+budget).Seconds() + replicas
	what := fmt.Sprintf("back after %v, %v; %.0f more than WorstCase, at most %.0f", back, lag, got, bound)
	t.Log(what)
	require.LessOrEqual(t, got, bound, what)
	require.LessOrEqual(t, lag, longestPause+budget+slack(), what)
}
