package redislimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// newStore returns a store with a prefix of its own, that is closed at the end.
func newStore(tb testing.TB, client redis.UniversalClient, cfg StoreConfig) *Store {
	tb.Helper()
	if cfg.Prefix == "" {
		cfg.Prefix = newPrefix()
	}
	if cfg.Budget == 0 {
		cfg.Budget = patient
	}
	cfg.Replicas = max(cfg.Replicas, 1)
	s, err := NewStore(client, cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close(context.Background())) })
	return s
}

func limitOf(tb testing.TB, s *Store, cfg LimitConfig) *StoreLimit {
	tb.Helper()
	l, err := s.Limit(cfg)
	require.NoError(tb, err)
	return l
}

// do makes calls that nothing keeps from being made.
func do(tb testing.TB, s *Store, calls ...StoreCall) []StoreResult {
	tb.Helper()
	out := make([]StoreResult, len(calls))
	require.NoError(tb, s.Do(context.Background(), calls, out))
	return out
}

// oneByOne makes the call of a Store with Limiters that nobody shares: its reference.
func oneByOne(t *testing.T, l *Limiter, key string, cost int, op Op) sluice.Decision {
	if op >= OpDebit && cost < 1 {
		op, cost = OpPeek, 0
	}
	peek := func(n int) sluice.Decision {
		d, err := l.Peek(ctx, key, n)
		require.NoError(t, err)
		return d
	}
	switch op {
	case OpTake:
		d, err := l.Take(ctx, key, cost)
		require.NoError(t, err)
		return d
	case OpDebit:
		before := peek(cost)
		d, err := l.Debit(ctx, key, cost)
		require.NoError(t, err)
		return l.plan.Load().charged(d, before)
	case OpRefund:
		for n := cost; n > 0; n -= l.Limit().Capacity() { // of which Refund gives back a burst at most
			require.NoError(t, l.Refund(ctx, key, min(n, l.Limit().Capacity())))
			if l.config.Algorithm == sluice.SlidingLog {
				break
			}
		}
		return peek(0)
	}
	return peek(cost)
}

// charged returns the decision of OpDebit. d is the decision of Debit, and before the decision of a Peek right before it.
func (p *plan) charged(d, before sluice.Decision) sluice.Decision {
	d.Allowed = before.Allowed
	return d
}

// storeVariants are the shapes that limits can have.
func storeVariants() []LimitConfig {
	var all []LimitConfig
	for _, c := range variants {
		c.Offset *= time.Duration(time.Millisecond) // it is there, or not
		all = append(all, LimitConfig{Algorithm: c.Algorithm, Offset: c.Offset, BlockFor: c.BlockFor})
	}
	return all
}

// TestStore_Trace: calls that Do makes together have the outcome that they have one after another, each by a Limiter
// of its own limit.
func TestStore_Trace(t *testing.T) { eachServer(t, storeTrace) }

func storeTrace(t *testing.T, server *server) {
	rng := seeded.Rand(t)
	now := time.Now().UnixMicro()
	clock := func() int64 { return now }
	for round := range depth.Of(8, 20, 100) {
		s := newStore(t, server.client, StoreConfig{MaxStale: 1, TimeSource: CallerClock})
		s.link.clock, s.link.spare = clock, 3_600_000 // Redis goes by another time than the trace
		var limits []*StoreLimit
		var references []*Limiter
		for i, c := range storeVariants() {
			c.Name = fmt.Sprintf("%d{~%%%d", i, round)
			for range 100 {
				c.BlockFor = []time.Duration{0, 0, time.Second}[rng.IntN(3)]
				c.Limit = sluice.Per(1+rng.IntN(12), []time.Duration{time.Second, time.Minute, time.Hour}[rng.IntN(3)])
				if l, err := s.Limit(c); err == nil {
					limits = append(limits, l)
					break
				}
			}
			l := newLimiter(t, server.client, c.config())
			l.clock, l.spare = clock, 3_600_000
			references = append(references, l)
		}
		for range 40 {
			calls, want := make([]StoreCall, 1+rng.IntN(40)), []sluice.Decision(nil)
			for i := range calls {
				of := rng.IntN(len(limits))
				calls[i] = StoreCall{Limit: limits[of], Key: []string{"a", "b{x}"}[rng.IntN(2)], Cost: rng.IntN(5) - 1 + rng.IntN(2)*rng.IntN(20), Op: Op(rng.IntN(4))}
				if calls[i].Op == OpDebit && limits[of].config.BlockFor > 0 {
					calls[i].Op = OpTake // a Debit makes a block longer by what the caller has seen before the block, too
				}
				want = append(want, oneByOne(t, references[of], calls[i].Key, calls[i].Cost, calls[i].Op))
			}
			for i, r := range do(t, s, calls...) {
				require.NoError(t, r.Err)
				sameDecision(t, calls[i], want[i], r)
			}
			now += rng.Int64N(1 + 1<<rng.IntN(32))
		}
	}
}

func sameDecision(t *testing.T, c StoreCall, want sluice.Decision, r StoreResult) {
	d := r.Decision
	if c.Op == OpDebit {
		d.RetryAfter, want.RetryAfter = 0, 0
	}
	if r.Source == FromCache { // which answers later than it was judged
		d.RetryAfter, want.RetryAfter, d.ResetAfter, want.ResetAfter = 0, 0, 0, 0
	}
	require.Equal(t, want, d, "%v %v of %v from %v, limit %v", c.Op, c.Cost, c.Key, r.Source, c.Limit.config)
	if c.Op == OpPeek && d.Allowed {
		d.Remaining += max(c.Cost, 0) // which has not been charged
	}
	if p := c.Limit.plan.Load(); r.Source == FromRedis && c.Limit.config.BlockFor == 0 {
		require.Equal(t, int64(d.Remaining), max(0, p.burst-r.Count), "%v %d of %v: %+v", c.Op, c.Cost, c.Limit.config, r)
	}
}
