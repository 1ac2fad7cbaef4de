package redislimit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// lending is leases that end with no test.
var lending = Lease{Max: 1000, Life: time.Minute}

// variantsThatLend lists the variants that have leases.
func variantsThatLend() (vs []Config) {
	for _, v := range healing() {
		if v.Algorithm != sluice.InFlight {
			v.Limit = sluice.PerHour(10_000)
			vs = append(vs, v)
		}
	}
	return vs
}

// TestLease_Sizes: leases of 1, 2, 4 and more units follow each other, and decisions count
// down as without.
func TestLease_Sizes(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			l, _, now := pair(t, s.client, c)
			now.Store(startMicros - startMicros%3_600_000_000)
			tier := newTier(t, l, TierConfig{Replicas: 3, Budget: patient, Lease: lending})
			sources := ""
			for i := range 20 {
				d, from := takeFrom(t, tier, "a", 1)
				require.True(t, d.Allowed)
				require.Equal(t, 10_000-1-i, d.Remaining, "%s: call %d from %v", variantName(c), i, from)
				require.Equal(t, 10_000, d.Limit)
				require.Positive(t, d.ResetAfter)
				sources += from.String()[:1]
			}
			require.Equal(t, "rrlrllrllllrllllllll", sources, variantName(c))
			got := tier.Stats()
			require.Positive(t, got.TripTime)
			got.TripTime = 0
			require.Equal(t, Stats{Redis: 5, Lease: 15, Scripts: 5, Lent: 15, Trips: 5}, got)
		}
	})
}

// TestLease_Close: what is unused is given back, and what has been spent stays spent,
// whatever others have seen before.
func TestLease_Close(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			l, other, now := pair(t, s.client, c)
			now.Store(startMicros - startMicros%3_600_000_000)
			tier, err := NewTier(l, TierConfig{Replicas: 3, Budget: patient, Lease: lending})
			require.NoError(t, err)
			for range 14 { // the last lease is of 8 units, of which 2 are spent
				takeFrom(t, tier, "a", 1)
			}
			require.Equal(t, 10_000-14-6, take(t, other, "a", 0).Remaining, "%s: units on lease count", variantName(c))
			require.NoError(t, tier.Close(ctx))
			require.Equal(t, uint64(6), tier.Stats().Returned)
			require.Equal(t, 10_000-14, take(t, replicaOf(t, s.client, l), "a", 0).Remaining, variantName(c))
			require.Equal(t, 10_000-15, take(t, other, "a", 1).Remaining, "%s: who has seen more does not put it back", variantName(c))
			require.Positive(t, s.client.PTTL(ctx, l.request(l.plan.Load(), "a").key).Val())
		}
	})
}

// TestLease_Over: what is given back when the window is over, or after the units have been
// taken for spent, is ignored.
func TestLease_Over(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			l, other, now := pair(t, s.client, c)
			now.Store(startMicros - startMicros%3_600_000_000)
			tier, err := NewTier(l, TierConfig{Replicas: 3, Budget: patient, Lease: lending})
			require.NoError(t, err)
			for range 14 {
				takeFrom(t, tier, "a", 1)
			}
			now.Add(3_600_000_000)
			before := take(t, other, "a", 2000).Remaining
			require.NoError(t, tier.Close(ctx))
			require.Equal(t, uint64(6), tier.Stats().Returned)
			require.Equal(t, before, take(t, replicaOf(t, s.client, l), "a", 0).Remaining, variantName(c))
		}
	})
}

// TestLease_WindowEnds: a lease ends with its window.
func TestLease_WindowEnds(t *testing.T) { eachServer(t, leaseWindowEnds) }

func leaseWindowEnds(t *testing.T, s *server) {
	for _, c := range variantsThatLend() {
		l, _, now := pair(t, s.client, c)
		tier := newTier(t, l, TierConfig{Replicas: 3, Budget: patient, Lease: lending})
		now.Store(startMicros - startMicros%3_600_000_000)
		takeFrom(t, tier, "a", 1) // a window begins, if it begins with a charge
		now.Add(3_600_000_000 - 1)
		bucket := l.plan.Load().shape.letter() == 'b'
		for range 10 {
			_, from := takeFrom(t, tier, "a", 1)
			require.True(t, bucket || from == FromRedis, "%s: from %v, 1 us before the window ends", variantName(c), from)
		}
		require.NotZero(t, tier.Stats().Lent)
	}
}

// TestLease_Costs: a call that does not fit into the lease gives it back first.
func TestLease_Costs(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			c.Limit = sluice.PerHour(100)
			l, _, now := pair(t, s.client, c)
			now.Store(startMicros - startMicros%3_600_000_000)
			tier := newTier(t, l, TierConfig{Replicas: 1, Budget: patient, Lease: Lease{Max: 50, Life: 30 * time.Minute}})
			for range 7 { // a lease of 4, with 3 left
				takeFrom(t, tier, "a", 1)
			}
			d, err := tier.Peek(ctx, "a", 3)
			require.NoError(t, err)
			require.Equal(t, 90, d.Remaining)
			d, from := takeFrom(t, tier, "a", 0)
			require.Equal(t, 93, d.Remaining)
			require.Equal(t, FromLease, from)
			d, err = tier.Peek(ctx, "a", 93)
			require.NoError(t, err)
			require.True(t, d.Allowed, "%s: the lease comes back for it", variantName(c))
			d, from = takeFrom(t, tier, "a", 93)
			require.True(t, d.Allowed)
			require.Equal(t, 0, d.Remaining)
			require.Equal(t, FromRedis, from)
			d, _ = takeFrom(t, tier, "a", 1)
			require.False(t, d.Allowed)
			d, _ = takeFrom(t, tier, "a", 101)
			require.Equal(t, sluice.Never, d.RetryAfter)
			d, _ = takeFrom(t, tier, "a", -1)
			require.False(t, d.Allowed)
		}
	})
}

// TestLease_Refund: units that were admitted from a lease can be given back, and Reset
// makes the key fresh, without what is on lease.
func TestLease_Refund(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variantsThatLend() {
			c.Limit = sluice.PerHour(1000)
			l, other, now := pair(t, s.client, c)
			now.Store(startMicros - startMicros%3_600_000_000)
			tier := newTier(t, l, TierConfig{Replicas: 1, Budget: patient, Lease: lending})
			for range 14 {
				takeFrom(t, tier, "a", 1)
			}
			require.NoError(t, tier.Refund(ctx, "a", 14))
			require.Equal(t, 1000-6, take(t, other, "a", 0).Remaining, variantName(c))
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromLease, from, "%s: the lease goes on", variantName(c))
			require.Equal(t, 1000-6, take(t, other, "a", 0).Remaining, variantName(c))
			require.NoError(t, tier.Reset(ctx, "a"))
			require.Equal(t, 1000, take(t, other, "a", 0).Remaining, variantName(c))
			_, from = takeFrom(t, tier, "a", 1)
			require.Equal(t, FromRedis, from)
		}
	})
}

// TestLease_Waiting: callers that wait for Redis are admitted first, in their order, from a
// lease that comes.
func TestLease_Waiting(t *testing.T) { eachServer(t, leaseWaiting) }

func leaseWaiting(t *testing.T, s *server) {
	for _, waiting := range []int{2, 4, 6} {
		l, _, _ := pair(t, s.client, Config{Limit: sluice.PerHour(10_000)})
		tier := newTier(t, l, TierConfig{Replicas: 1, Budget: patient, Lease: lending})
		for range 4 { // the next lease is of 4 units
			takeFrom(t, tier, "a", 1)
		}
		for range 2 {
			takeFrom(t, tier, "a", 1)
		}
		lane, c := tier.router.first, tier.shared.newCall("a", 1, true)
		c.terms = tier.terms
		of := tier.leases.loan(&c.request, tier.subject("a"), time.Now())
		withoutSenders(t, lane)
		g, _, err := lane.join(c.request, of, time.Now())
		require.NoError(t, err)
		lane.mu.Lock()
		batch := lane.take()
		lane.mu.Unlock()
		require.Len(t, batch.groups, 1)
		var waiters []*waiter
		var next *group
		for range waiting {
			g, w, err := lane.join(c.request, of, time.Now())
			require.NoError(t, err)
			next, waiters = g, append(waiters, w)
		}
		left := next.waiters[1]
		require.False(t, lane.leave(left))
		require.True(t, lane.exchange(context.Background(), batch))
		require.NoError(t, g.err)
		require.Equal(t, int64(4), g.lend)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, (&asked{lane: lane, group: next, waiter: waiters[0]}).await(ended), "it has been admitted")
		startSenders(lane)
		<-next.done
		rank := 0
		for _, w := range waiters {
			if w == left {
				require.False(t, w.leased)
				continue
			}
			require.Equal(t, rank < 4, w.leased, "caller %d of %d", rank, waiting)
			if w.leased {
				require.Equal(t, 10_000-8-rank, w.decision.Remaining)
				require.True(t, lane.leave(w), "it has been admitted")
			} else {
				require.Equal(t, int64(rank-4), w.rank)
			}
			rank++
		}
	}
}

// bubble runs f with a tier before a fake Redis, in a time of its own.
func bubble(t *testing.T, cfg TierConfig, limit sluice.Limit, f func(t *testing.T, tier *Tier, fake *fakeRedis)) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return 0 }}
		client := fake.client()
		defer client.Close()
		cfg.Replicas = max(cfg.Replicas, 1)
		tier, err := NewTier(newLimiter(t, client, Config{Limit: limit}), cfg)
		require.NoError(t, err)
		f(t, tier, fake)
		require.NoError(t, tier.Close(context.Background()))
	})
}

// slow sets how long one way takes.
func (f *fakeRedis) slow(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trip = func() time.Duration { return d }
}

// count returns how many calls there have been.
func (f *fakeRedis) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// held returns what is known of key a.
func (t *Tier) held() (h struct{ granted, left, spent, size int64 }) {
	of := t.leases.loan(&request{plan: t.shared.plan.Load()}, t.subject("a"), time.Now())
	if of == nil {
		return h
	}
	of.shard.mu.Lock()
	defer of.shard.mu.Unlock()
	h.granted, h.left, h.spent, h.size = of.granted, of.left, of.spent, of.size
	return h
}

// onLease returns the units that the fake holds to be out.
func (f *fakeRedis) onLease(now int64, b bucket) (out, debt int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.keys {
		s.advance(b, now)
		out, debt = out+s.o1+s.o2, debt+ceilDiv(s.debt, b.unit)
	}
	return out, debt
}

// TestLease_Late: a lease that comes after its caller has gone is spent all the same, and
// given back if it comes after its end.
func TestLease_Late(t *testing.T) {
	bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(100).WithBurst(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		takeFrom(t, tier, "a", 1)
		fake.slow(10 * time.Millisecond)
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		time.Sleep(20 * time.Millisecond)
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromLease, from, "a unit came late")

		fake.slow(60 * time.Millisecond)
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		fake.slow(0)
		time.Sleep(130 * time.Millisecond)
		require.Equal(t, uint64(3), tier.Stats().Lent)
		require.Equal(t, uint64(2), tier.Stats().Returned, "two units came too late")
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
	})
}

// TestLease_Ends: a lease is not spent after its end, and what is unused then goes back
// with one call. One that is spent needs none: Redis takes it for spent two epochs later.
func TestLease_Ends(t *testing.T) {
	limit := sluice.PerSecond(20).WithBurst(1000)
	bubble(t, TierConfig{Lease: Lease{Max: 100, Life: 500 * time.Millisecond}}, limit, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		b := tier.shared.plan.Load().shape.(bucket)
		for range 9 { // the last lease is of 8 units, with 7 left
			takeFrom(t, tier, "a", 1)
		}
		for range 4 {
			takeFrom(t, tier, "a", 1)
		}
		n := fake.count()
		time.Sleep(494 * time.Millisecond) // a hundredth before life is over
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromLease, from)
		time.Sleep(time.Millisecond)
		require.Equal(t, n, fake.count())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, n+1, fake.count(), "it is given back by itself")
		out, _ := fake.onLease(time.Now().UnixMicro(), b)
		require.Zero(t, out)
		require.Equal(t, uint64(6), tier.Stats().Returned)

		takeFrom(t, tier, "a", 1)
		time.Sleep(time.Millisecond)
		for tier.held().left > 0 {
			takeFrom(t, tier, "a", 1)
		}
		n = fake.count()
		out, before := fake.onLease(time.Now().UnixMicro(), b)
		require.Positive(t, out)
		time.Sleep(2 * 510 * time.Millisecond)
		require.Equal(t, n, fake.count())
		left, debt := fake.onLease(time.Now().UnixMicro(), b)
		require.Zero(t, left)
		require.InDelta(t, before+out-20, debt, 10, "it has become debt within two epochs, and only then begun to drain")
	})
}

// TestLease_Halves: who leaves most of its leases unused gets smaller ones, and in the end
// none.
func TestLease_Halves(t *testing.T) {
	bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		for range 40 {
			takeFrom(t, tier, "a", 1)
		}
		require.Equal(t, int64(32), tier.held().size)
		time.Sleep(time.Second)
		for size := int64(16); size > 0; size /= 2 {
			require.Equal(t, size, tier.held().size)
			takeFrom(t, tier, "a", 1)
			require.Equal(t, size, tier.held().granted)
			time.Sleep(time.Second)
		}
		n := fake.count()
		for range 5 {
			takeFrom(t, tier, "a", 1)
			time.Sleep(time.Second)
		}
		require.Equal(t, n+5, fake.count(), "a key with few calls costs one call each")
	})
}

// TestLease_Denied: a denied replica asks again after a while that grows with the denials
// that it gets, and says so; and not later than half of life where others hold units.
func TestLease_Denied(t *testing.T) {
	cfg := TierConfig{Replicas: 64, Lease: Lease{Max: 100}}
	bubble(t, cfg, sluice.PerSecond(1000).WithBurst(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		other := newLimiter(t, fake.client(), tier.shared.config)
		defer other.client.Close()
		waits, longest := 0, time.Duration(0)
		for range 300 {
			other.Take(context.Background(), "a", 100) // someone else is always first
			_, err := other.Take(context.Background(), "a", 1)
			require.NoError(t, err)
			for d, err := other.Take(context.Background(), "a", 1); err == nil && d.Allowed; {
				d, err = other.Take(context.Background(), "a", 1)
			}
			d, from := takeFrom(t, tier, "a", 1)
			require.False(t, d.Allowed)
			if from == FromRedis {
				waits++
				longest = max(longest, d.RetryAfter)
			}
			time.Sleep(time.Millisecond)
		}
		require.Less(t, waits, 30, "calls to Redis in 300 ms, of which each has a unit to give")
		require.Greater(t, longest, 20*time.Millisecond)
		require.LessOrEqual(t, longest, 51*time.Millisecond, "half of life, after a unit is due")
	})
}

// TestLease_SetLimit: under another limit the lease is not spent but given back, and
// neither is one asked for that half of the period could not hold.
func TestLease_SetLimit(t *testing.T) {
	bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		for range 14 {
			takeFrom(t, tier, "a", 1)
		}
		require.NoError(t, tier.shared.SetLimit(sluice.PerSecond(1000).WithBurst(10)))
		d, from := takeFrom(t, tier, "a", 1)
		require.False(t, d.Allowed, "14 have been spent")
		require.Equal(t, FromRedis, from)
		require.Equal(t, uint64(6), tier.Stats().Returned)
		require.NoError(t, tier.shared.SetLimit(sluice.Per(1000, 150*time.Millisecond)))
		for range 10 {
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromRedis, from)
		}
	})
}

// TestLease_Clock: a clock of Redis that jumps ahead gives back no more than the burst, and
// what is on lease. One that goes back gives nothing, and takes no more than what would have
// come back by the time that it is there again.
func TestLease_Clock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, 30 * time.Millisecond, -time.Hour, -30 * time.Millisecond} {
		var at atomic.Int64
		bubble(t, TierConfig{Lease: Lease{Max: 100}}, sluice.PerSecond(1000).WithBurst(100), func(t *testing.T, tier *Tier, _ *fakeRedis) {
			begin := time.Now()
			tier.shared.clock = func() int64 { return begin.UnixMicro() + time.Since(begin).Microseconds() + at.Load() }
			admitted := 0
			for i := range 400 {
				if i == 200 {
					at.Store(step.Microseconds())
				}
				for range 4 {
					if d, _ := takeFrom(t, tier, "a", 1); d.Allowed {
						admitted++
					}
				}
				time.Sleep(time.Millisecond)
			}
			most, least := 100+400, 100+400
			if step > 0 {
				most += min(100, int(step/time.Millisecond)) + int(tier.terms.largest(tier.shared.plan.Load()))
			} else {
				least -= min(200, int(-step/time.Millisecond))
			}
			require.LessOrEqual(t, admitted, most+1, "%v", step)
			least -= int(tier.terms.pause(tier.shared.plan.Load()) / int64(time.Millisecond)) // which is still to come
			require.GreaterOrEqual(t, admitted, least*97/100, "%v", step)
		})
	}
}
