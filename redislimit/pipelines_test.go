package redislimit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A countedRedis is a fake one that counts the pipelines that are under way.
type countedRedis struct {
	*fakeRedis
	counting sync.Mutex
	now      int
	most     int // at once
	largest  int // calls of one of them
}

func (c *countedRedis) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return c.answer(ctx, []redis.Cmder{cmd}) }
}

func (c *countedRedis) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return c.answer
}

func (c *countedRedis) answer(ctx context.Context, cmds []redis.Cmder) error {
	c.note(1, len(cmds))
	defer c.note(-1, 0)
	return c.fakeRedis.answer(ctx, cmds)
}

func (c *countedRedis) note(more, calls int) {
	c.counting.Lock()
	defer c.counting.Unlock()
	c.now += more
	c.most, c.largest = max(c.most, c.now), max(c.largest, calls)
}

func (c *countedRedis) counts() (now, most, largest int) {
	c.counting.Lock()
	defer c.counting.Unlock()
	return c.now, c.most, c.largest
}

// counted is bubble with such a Redis, which takes so long for one way.
func counted(t *testing.T, budget, trip time.Duration, f func(t *testing.T, tier *Tier, c *countedRedis)) {
	synctest.Test(t, func(t *testing.T) {
		c := &countedRedis{fakeRedis: &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return trip }}}
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(c)
		tier, err := NewTier(newLimiter(t, client, Config{Limit: sluice.PerHour(1000)}), TierConfig{Replicas: 1, Budget: budget})
		require.NoError(t, err)
		f(t, tier, c)
		require.NoError(t, tier.Close(context.Background()))
	})
}

// TestTier_Pipelines: however many call, two pipelines are under way, of 64 calls at most.
func TestTier_Pipelines(t *testing.T) {
	counted(t, patient, time.Millisecond, func(t *testing.T, tier *Tier, c *countedRedis) {
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				for range 3 {
					_, from, err := tier.TakeSource(context.Background(), fmt.Sprint("k", i), 1)
					assert.NoError(t, err)
					assert.Equal(t, FromRedis, from)
				}
			})
		}
		wg.Wait()
		_, most, largest := c.counts()
		require.Equal(t, maxSenders, most)
		require.Equal(t, maxBatch, largest)
		require.Equal(t, 3000, c.count())
	})
}

// TestTier_LatePipelines: a Redis that answers nothing keeps no more pipelines than some that are
// late and two that are not yet. It is told later of calls that were not sent.
func TestTier_LatePipelines(t *testing.T) {
	counted(t, 20*time.Millisecond, 300*time.Millisecond, func(t *testing.T, tier *Tier, c *countedRedis) {
		for i := range 9 { // of a call, then of two
			var wg sync.WaitGroup
			for j := range min(i+1, 2) {
				wg.Go(func() {
					time.Sleep(time.Duration(j)) // so that each has a pipeline of its own
					_, from, err := tier.TakeSource(context.Background(), fmt.Sprint("k", 2*i+j), 1)
					assert.NoError(t, err)
					assert.Equal(t, FromFallback, from)
				})
			}
			wg.Wait()
			forgives(tier)
		}
		_, most, _ := c.counts()
		require.Equal(t, maxLate+1, most)
		time.Sleep(3 * time.Second)
		now, _, _ := c.counts()
		require.Zero(t, now)
		c.mu.Lock()
		defer c.mu.Unlock()
		require.Equal(t, 17, len(c.keys), "what was not sent is owed")
	})
}

// TestTier_ContextAfter: a caller who leaves after the call has been sent gets the context's
// error at once, and the charge stands. Nobody else notices.
func TestTier_ContextAfter(t *testing.T) {
	counted(t, 100*time.Millisecond, 5*time.Millisecond, func(t *testing.T, tier *Tier, c *countedRedis) {
		begin := time.Now()
		leaving, cancel := context.WithTimeout(context.Background(), 3*time.Millisecond)
		defer cancel()
		_, err := tier.Take(leaving, "a", 7)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Millisecond, time.Since(begin))
		time.Sleep(10 * time.Millisecond)
		d, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 1000-7-1, d.Remaining)

		var wg sync.WaitGroup
		for i := range 4 { // two go out alone; the others share a call after that
			wg.Go(func() {
				time.Sleep(time.Duration(i))
				ctx := context.Background()
				if i == 2 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, 15*time.Millisecond)
					defer cancel()
				}
				d, from, err := tier.TakeSource(ctx, "a", 1)
				if i == 2 {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					return
				}
				assert.NoError(t, err)
				assert.Equal(t, FromRedis, from)
				assert.Equal(t, 1000-8-i-1, d.Remaining)
			})
		}
		wg.Wait()
	})
}
