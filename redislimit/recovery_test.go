package redislimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A stoppable is a fakeRedis with outages, as one that has been stopped: calls wait for its end, or for the client to
// give up.
type stoppable struct {
	*fakeRedis
	mu  sync.Mutex
	end chan struct{} // or nil
}

func (s *stoppable) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return s.answer(ctx, []redis.Cmder{cmd}) }
}

func (s *stoppable) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return s.answer(ctx, cmds) }
}

func (s *stoppable) answer(ctx context.Context, cmds []redis.Cmder) error {
	s.mu.Lock()
	end := s.end
	s.mu.Unlock()
	if end == nil {
		return s.fakeRedis.answer(ctx, cmds)
	}
	select {
	case <-end:
		return s.fakeRedis.answer(context.Background(), cmds)
	case <-time.After(5 * time.Second): // the timeout of go-redis
	}
	for _, cmd := range cmds {
		cmd.SetErr(context.DeadlineExceeded)
	}
	return context.DeadlineExceeded
}

// stops begins an outage, and returns what ends it.
func (s *stoppable) stops() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = make(chan struct{})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.end)
		s.end = nil
	}
}

// A comeback is replicas before a Redis that is stopped for a while, and who calls them as often as a limit admits a key
// two and a half times.
type comeback struct {
	testing.TB
	redis  *stoppable
	limit  sluice.Limit
	tiers  []*Tier
	wg     sync.WaitGroup
	done   chan struct{}
	pulses bool

	mu    sync.Mutex
	units []admission
	late  int // of units: admitted without Redis by replicas that were not degraded
	begun time.Time
}

const comebackReplicas = 4

func newComeback(tb testing.TB, pulses bool) *comeback {
	c := &comeback{
		TB: tb, pulses: pulses, limit: sluice.PerSecond(400).WithBurst(50), done: make(chan struct{}), begun: time.Now(),
		redis: &stoppable{fakeRedis: &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return 200 * time.Microsecond }}},
	}
	return c
}

// join starts a replica, which calls a key, or none while that is empty. With pulses, nor do all in every other fifth of a second.
func (c *comeback) join(key func() string) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(c.redis)
	l, err := New(struct{ redis.UniversalClient }{client}, Config{Limit: c.limit, Prefix: "comeback"})
	require.NoError(c, err)
	t, err := NewTier(l, TierConfig{Replicas: comebackReplicas})
	require.NoError(c, err)
	c.tiers = append(c.tiers, t)
	c.wg.Go(func() {
		defer client.Close()
		for {
			select {
			case <-c.done:
				assert.NoError(c, t.Close(context.Background()))
				return
			case <-time.After(time.Millisecond):
			}
			key := key()
			if key == "" || c.pulses && time.Since(c.begun)/(200*time.Millisecond)%2 == 1 {
				continue
			}
			from, mode := time.Since(c.begun), t.Mode()
			d, source, err := t.TakeSource(context.Background(), key, 1)
			assert.NoError(c, err)
			if d.Allowed && key == "a" {
				c.mu.Lock()
				if source == FromFallback && mode == ModeShared {
					c.late++
				}
				c.units = append(c.units, admission{int64(from), int64(time.Since(c.begun))})
				c.mu.Unlock()
			}
		}
	})
}

func always(key string) func() string { return func() string { return key } }

// leave ends all replicas, and returns by how much they were admitted too much.
func (c *comeback) leave() float64 {
	close(c.done)
	c.wg.Wait()
	return excess(c.units, c.limit)
}

// findsOut is for how long a process may not find out that Redis answers again.
const findsOut = longestPause + defaultBudget

// TestComeback: after an outage that all replicas have found out about they have been admitted a burst too much, and no more,
// however long it takes them to find out that it is over. One that begins just before its end, or has made no
// call in it, is admitted what Redis does not know of yet: another burst, and what the limit admits until the others have found out.
func TestComeback(t *testing.T) {
	for _, down := range []time.Duration{300 * time.Millisecond, 2 * time.Second, 6500 * time.Millisecond} {
		for _, last := range []string{"calls", "calls another key", "calls nothing", "begins before its end", "begins after its end"} {
			for _, pulses := range []bool{false, true} {
				t.Run(fmt.Sprintf("outage=%v/last=%s/pulses=%v", down, last, pulses), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { comeBack(t, down, last, pulses) })
				})
			}
		}
	}
}

// comeBack has an outage for as long. last is what the last replica does meanwhile, with the key of the others.
func comeBack(t *testing.T, down time.Duration, last string, pulses bool) {
	c := newComeback(t, pulses)
	for range comebackReplicas - 1 {
		c.join(always("a"))
	}
	burst, rate := float64(c.limit.Burst), float64(c.limit.Rate)
	bound := 2*burst + rate*findsOut.Seconds() + comebackReplicas // shares are rounded up
	var key atomic.Value
	key.Store("a")
	meanwhile := "a"
	switch last {
	case "calls another key":
		meanwhile = "b"
		fallthrough
	case "calls":
		bound = burst + comebackReplicas
	case "calls nothing":
		meanwhile = ""
	}
	if !strings.HasPrefix(last, "begins") {
		c.join(func() string { return key.Load().(string) })
	}
	time.Sleep(time.Second)
	end := c.redis.stops()
	key.Store(meanwhile)
	time.Sleep(down - 10*time.Millisecond)
	if last == "begins before its end" {
		c.join(always("a"))
	}
	time.Sleep(10 * time.Millisecond)
	end()
	key.Store("a")
	if last == "begins after its end" {
		c.join(always("a"))
	}
	time.Sleep(findsOut + returnPause + firstPause)
	for i, tier := range c.tiers {
		require.Equal(t, ModeShared, tier.Mode(), "replica %d", i)
	}
	time.Sleep(time.Second)
	got := c.leave()
	t.Logf("%.0f more than WorstCase, at most %.0f", got, bound)
	require.LessOrEqual(t, got, bound)
}
