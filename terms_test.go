package sluice

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKeyLimit_WhereTheLimiterHasNoAlgorithm: a limiter that has been Unlimited or
// DenyAll from the start can take back a key that has spent something.
func TestKeyLimit_WhereTheLimiterHasNoAlgorithm(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		limit := c.Limit
		for _, c.Limit = range []Limit{Unlimited, DenyAll} {
			l, _ := newFrozen(t, c)
			require.NoError(t, l.Key("other").SetLimit(DenyAll))
			require.NoError(t, l.Key("k").SetLimit(limit))
			require.True(t, l.AllowN("k", 300))
			l.Key("k").ClearLimit()
			require.Equal(t, c.Limit == Unlimited, l.AllowN("k", 1))
			require.NoError(t, l.Key("k").SetLimit(DenyAll))
			require.False(t, l.Allow("k"))
			require.NoError(t, l.Key("k").SetLimit(limit))
			require.Equal(t, 300, spentOf(l, "k"))
			l.Key("k").ClearLimit()
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, 300, spentOf(l, "k"))
		}
	})
}

// TestKeyLimit_CountsWhatOthersCould: a limit of a key that was first used when the
// limiter's was small keeps what a key has spent under a larger one.
func TestKeyLimit_CountsWhatOthersCould(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		small, large := Per(10, c.Limit.Period), Per(4000, c.Limit.Period)
		require.NoError(t, l.SetLimit(small))
		require.NoError(t, l.Key("early").SetLimit(Per(5, c.Limit.Period)))
		require.True(t, l.AllowN("early", 5))
		require.NoError(t, l.SetLimit(large))
		require.True(t, l.AllowN("k", 3000))
		require.NoError(t, l.Key("k").SetLimit(Per(5, c.Limit.Period)))
		l.Key("k").ClearLimit()
		require.Equal(t, 3000, spentOf(l, "k"))
		require.False(t, l.Allow("early"))
	})
}

// TestKeyLimit_UnlimitedKeepsTheRateOfTheKey: units go on coming back as they did
// before, whatever the limiter's rate was when such a limit was first used.
func TestKeyLimit_UnlimitedKeepsTheRateOfTheKey(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, constant := range []Limit{Unlimited, DenyAll} {
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1000)})
			require.NoError(t, l.Key("other").SetLimit(constant))
			require.NoError(t, l.Key("k").SetLimit(PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k", 1000))
			require.NoError(t, l.Key("k").SetLimit(constant))
			clock.Advance(5 * time.Second)
			require.NoError(t, l.Key("k").SetLimit(PerSecond(1).WithBurst(1000)))
			require.Equal(t, 500, spentOf(l, "k"), "under a limit of its own before")

			require.NoError(t, l.SetLimit(PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k2", 1000))
			require.NoError(t, l.Key("k2").SetLimit(constant))
			clock.Advance(5 * time.Second)
			l.Key("k2").ClearLimit()
			require.Equal(t, 500, spentOf(l, "k2"), "under the limiter's limit before")
		}
	}
}

// TestTerms_WhatTheLimitCountsIsInTheTable: a key that comes back with as much as the words of all keys
// can count is under their policy. One with more is not, and keeps all of it.
func TestTerms_WhatTheLimitCountsIsInTheTable(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		common := l.policyOf(0)
		for _, more := range []int{0, 1} {
			k := l.Key(fmt.Sprint("k", more))
			spent := common.reach + more
			require.NoError(t, k.SetLimit(Per(2*spent, c.Limit.Period)))
			require.True(t, k.AllowN(spent))
			k.ClearLimit()
			require.Equal(t, more == 0 || common.bucket() != nil, l.locate(k.id).policy == common, "%d more", more)
			require.NoError(t, k.SetLimit(Per(2*spent, c.Limit.Period)))
			require.Equal(t, spent, 2*spent-k.Peek(0).Remaining, "%d more", more)
		}
	})
}

// TestTerms_KeepAFewPolicies for the limits that their keys come from, however many those are.
func TestTerms_KeepAFewPolicies(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		limit := c.Limit
		c.Limit = Unlimited
		l, _ := newFrozen(t, c)
		for i := range 2*maxVariants + 1 {
			limit.Rate++
			k := l.KeyUint64(uint64(i))
			require.NoError(t, k.SetLimit(limit))
			require.True(t, k.AllowN(5))
			k.ClearLimit()
			require.Len(t, l.own.Load().policies, i%maxVariants+1)
			require.NoError(t, k.SetLimit(limit))
			require.Equal(t, 5, limit.Capacity()-k.Peek(0).Remaining)
		}
	})
}

// TestTerms_TheLargestLog: what fills it is kept under a small limit.
func TestTerms_TheLargestLog(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerMinute(5)})
	k := l.Key("k")
	require.NoError(t, k.SetLimit(PerMinute(maxLog)))
	require.True(t, k.AllowN(maxLog))
	k.ClearLimit()
	require.False(t, k.Allow())
	require.NoError(t, k.SetLimit(PerMinute(maxLog)))
	require.Zero(t, k.Peek(0).Remaining)
}

// TestTerms_KeepReservationsOfTheSameWindows, and of no others: an end or a stamp would mean another time.
func TestTerms_KeepReservationsOfTheSameWindows(t *testing.T) {
	kinds := []Config{
		{Algorithm: FixedWindow},
		{Algorithm: FixedWindowFirstCharge},
		{Algorithm: SlidingWindow},
		{Algorithm: TokenBucketInterval},
	}
	policyWith := func(c Config, limit Limit, offset time.Duration) *policy {
		if c.Limit = limit; c.Algorithm != FixedWindowFirstCharge {
			c.Offset = offset
		}
		return mustNew(t, c).policyOf(0)
	}
	for i, from := range kinds {
		p := policyWith(from, PerMinute(7), 0)
		for j, to := range kinds {
			same := i == j
			interval := to.Algorithm == TokenBucketInterval
			require.Equal(t, same, policyWith(to, PerMinute(7), 0).keepsReservations(p), "%v, %v", from, to)
			require.Equal(t, same && !interval, policyWith(to, PerMinute(9), 0).keepsReservations(p), "%v, %v", from, to)
			require.Equal(t, same, policyWith(to, PerMinute(7).WithBurst(7), 0).keepsReservations(p), "%v, %v", from, to)
			require.False(t, policyWith(to, PerHour(7), 0).keepsReservations(p), "%v, %v", from, to)
			require.Equal(t, same && to.Algorithm == FixedWindowFirstCharge, policyWith(to, PerMinute(7), sec).keepsReservations(p), "%v, %v", from, to)
		}
	}
	word, wide := policyWith(kinds[2], PerMinute(7), 0), policyWith(kinds[2], PerMinute(4_000_000), 0)
	require.NotNil(t, wide.wide)
	require.True(t, wide.keepsReservations(word) && word.keepsReservations(wide), "one word or two")
}
