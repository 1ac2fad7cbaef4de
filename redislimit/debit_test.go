package redislimit

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCharge: a charge counts whether the units are there or not, for all who share the key.
func TestCharge(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			c.Limit, c.Offset = sluice.Per(10, 1000*24*time.Hour), 0
			l := newLimiter(t, s.client, c)
			tier := newTier(t, replicaOf(t, s.client, l), TierConfig{Budget: patient})
			take(t, l, "a", 7)
			d, err := tier.Debit(ctx, "a", 5)
			require.NoError(t, err)
			require.False(t, d.Allowed, variantName(c))
			require.Zero(t, d.Remaining)
			require.Positive(t, d.RetryAfter)
			require.False(t, take(t, l, "a", 1).Allowed)
			d, err = l.Debit(ctx, "b", 3)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.Equal(t, 7, d.Remaining)
			for _, cost := range []int{0, -1} {
				d, err = tier.Debit(ctx, "b", cost)
				require.NoError(t, err)
				require.Equal(t, 7, d.Remaining)
			}
			require.NoError(t, l.Refund(ctx, "b", 3))
			require.Equal(t, 9, take(t, l, "b", 1).Remaining)
			_, err = l.Debit(ctx, "c", math.MaxInt) // beyond what numbers can be
			require.NoError(t, err)
			require.False(t, take(t, l, "c", 1).Allowed)
		}
	})
}

// TestCharge_Blocked: a block lasts for as long as the cost would count.
func TestCharge_Blocked(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			c.Limit, c.Offset, c.BlockFor = sluice.PerMinute(10), 0, time.Second
			var now atomic.Int64
			now.Store(startMicros)
			l := frozen(newLimiter(t, s.client, c), &now)
			take(t, l, "a", 10)
			before := take(t, l, "a", 1).RetryAfter
			now.Add(int64(before/2) / micro)
			began := time.Now()
			d, err := l.Debit(ctx, "a", 1000)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.GreaterOrEqual(t, d.RetryAfter, before/2-time.Microsecond, variantName(c))
			switch {
			case c.Algorithm < sluice.SlidingWindow:
				require.Greater(t, d.RetryAfter, 90*time.Minute, variantName(c))
			case c.Algorithm == sluice.SlidingLog, c.Algorithm == sluice.FixedWindowFirstCharge:
				require.Equal(t, time.Minute, d.RetryAfter, variantName(c))
			}
			require.NoError(t, keyExpires(t, s.client, l, d.RetryAfter+time.Duration(l.spare)*time.Millisecond, began))
			require.False(t, take(t, l, "a", 1).Allowed)
		}
	})
}

// TestCharge_Outage: without Redis the share is charged, and Redis is told later; or FailClosed
// says that nobody has been.
func TestCharge_Outage(t *testing.T) { eachClientBeside(t, chargeOutage) }

func chargeOutage(t *testing.T, connect connector) {
	for _, policy := range []OnUnavailable{LocalShare, FailClosed} {
		f := newFault(t, connect, TierConfig{OnUnavailable: policy, Replicas: 2}, sluice.PerHour(10))
		_, err := f.tier.Debit(ctx, "a", 1)
		require.NoError(t, err)
		f.waits(300 * time.Millisecond)
		f.proxy.hole.Store(true)
		d, err := f.tier.Debit(ctx, "a", 2)
		if policy == FailClosed {
			require.ErrorIs(t, err, ErrUnavailable)
			f.proxy.cut(true) // or Close would wait until the client reads no longer
			continue
		}
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, 2, d.Remaining, "of a share of 5, with what was charged before")
		var wg sync.WaitGroup
		for range 50 { // until Redis is not asked any more
			wg.Go(func() {
				_, err := f.tier.Debit(ctx, "b", 1)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		_, err = f.tier.Debit(ctx, "b", 10)
		require.NoError(t, err)
		d, from := takeFrom(t, f.tier, "b", 1)
		require.Equal(t, FromFallback, from)
		require.False(t, d.Allowed)
		f.proxy.mend()
		f.recovers()
		await(t, "Redis is told, of a burst", func() bool {
			d, err := replicaOf(t, f.s.client, f.lim).Peek(ctx, "b", 1)
			require.NoError(t, err)
			return !d.Allowed
		})
	}
}

// TestCharge_Owed: what is owed counts when a key is given back units, too.
func TestCharge_Owed(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		tier := newTier(t, l, TierConfig{Budget: patient})
		lane := tier.router.first
		lane.mu.Lock()
		lane.owedFrom = time.Now().Add(time.Hour) // unless with a call
		lane.owe(l.plan.Load(), l.request(l.plan.Load(), "a").key, 8, time.Now())
		lane.mu.Unlock()
		require.NoError(t, tier.Refund(ctx, "a", 3))
		d, err := replicaOf(t, s.client, l).Peek(ctx, "a", 0)
		require.NoError(t, err)
		require.Equal(t, 5, d.Remaining)
	})
}

// TestCharge_WhileAllIsDenied: while DenyAll has the place of a limit, units are charged and given back as under that limit,
// as by package sluice. Under Unlimited nothing is.
func TestCharge_WhileAllIsDenied(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			for _, tiered := range []bool{false, true} {
				c.Limit, c.Offset = sluice.Per(10, 1000*24*time.Hour), 0
				local := sluice.Must(sluice.New(sluice.Config{Algorithm: c.Algorithm, Limit: c.Limit}))
				l := newLimiter(t, s.client, c)
				var shared interface {
					Debit(ctx context.Context, key string, cost int) (sluice.Decision, error)
					Refund(ctx context.Context, key string, cost int) error
				} = l
				if tiered {
					shared = newTier(t, l, TierConfig{Budget: patient, OnUnavailable: FailOpen})
				}
				set := func(limit sluice.Limit) {
					require.NoError(t, l.SetLimit(limit))
					require.NoError(t, local.SetLimit(limit))
				}
				refund := func(cost int) {
					require.NoError(t, shared.Refund(ctx, "a", cost))
					local.Key("a").Refund(cost)
				}
				charge := func(cost int) {
					d, err := shared.Debit(ctx, "a", cost)
					require.NoError(t, err)
					require.Equal(t, local.Key("a").Debit(cost), d, variantName(c))
				}
				left := func(want int) {
					t.Helper()
					set(c.Limit)
					require.Equal(t, want, local.Key("a").Peek(0).Remaining, "%s, here", variantName(c))
					require.Equal(t, want, take(t, l, "a", 0).Remaining, "%s, tier: %v", variantName(c), tiered)
				}
				take(t, l, "a", 10)
				local.Take("a", 10)
				set(sluice.Unlimited)
				refund(3)
				charge(1)
				set(sluice.DenyAll)
				refund(2)
				charge(1)
				left(1)
				set(sluice.DenyAll)
				refund(math.MaxInt)
				left(10)
			}
		}
	})
}

// TestCharge_WhileAllIsDenied_Owed: what is charged under DenyAll while Redis does not answer is told later, and a call under
// it that tells of what is owed tells of all.
func TestCharge_WhileAllIsDenied_Owed(t *testing.T) {
	for _, policy := range []OnUnavailable{LocalShare, FailOpen} {
		bubble(t, TierConfig{OnUnavailable: policy}, sluice.PerHour(10), func(t *testing.T, tier *Tier, fake *fakeRedis) {
			l := tier.router.first
			breaks := func(open bool) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.breaker = breaker{}
				if open {
					l.breaker.state, l.breaker.until = breakerOpen, time.Now().Add(time.Hour)
				}
			}
			breaks(true)
			takeFrom(t, tier, "a", 5)
			require.NoError(t, tier.shared.SetLimit(sluice.DenyAll))
			d, err := tier.Debit(t.Context(), "a", 3)
			require.NoError(t, err)
			require.Equal(t, tier.shared.plan.Load().decideConstant(0), d)
			require.Zero(t, fake.count())
			breaks(false)
			require.NoError(t, tier.Refund(t.Context(), "a", 1))
			require.Equal(t, 1, fake.count())
			require.NoError(t, tier.shared.SetLimit(sluice.PerHour(10)))
			d, err = tier.Peek(t.Context(), "a", 0)
			require.NoError(t, err)
			require.Equal(t, 10-5-3+1, d.Remaining)
		})
	}
}
