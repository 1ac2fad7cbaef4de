package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

// TestTokenBucket_WordHoldsTwoNumbers: the last refill in units no finer than the
// time to fill the bucket, and what was spent since, as the drawing says.
func TestTokenBucket_WordHoldsTwoNumbers(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		l := randomLimit(rng, TokenBucket)
		alg, err := newTokenBucket(l)
		if err != nil {
			continue
		}
		a := alg.(*tokenBucket)
		unit := uint64(1) << a.coarse
		require.GreaterOrEqual(t, unit, a.schedule.burst)
		require.True(t, a.coarse == 0 || unit/2 < a.schedule.burst, "a coarser unit than needed")
		word, now := uint64(0), rng.Int64()>>rng.IntN(62)
		for range 50 {
			next, ok := a.charge(word, now, 1+rng.IntN(l.burst()))
			if ok {
				refill, spent := a.unpack(next)
				require.Zero(t, refill%unit)
				require.LessOrEqual(t, refill, a.tick(now), "the last refill lies in the future")
				require.Less(t, a.tick(now)-refill, unit)
				require.LessOrEqual(t, spent, 2*unit-1)
				require.Positive(t, spent)
				word = next
			}
			now += rng.Int64N(min(math.MaxInt64-now, 2*int64(min(unit, 1<<61))) + 1)
		}
	}
}

// TestTokenBucket_LargestWordStaysClear: the largest time and level of the tightest
// packing.
func TestTokenBucket_LargestWordStaysClear(t *testing.T) {
	for shift := range 63 {
		// The bucket fills in exactly one coarse unit of 2^shift ns.
		alg, err := newTokenBucket(Limit{Rate: 1, Period: time.Duration(1) << shift, Burst: 1})
		require.Nil(t, err)
		word, ok := alg.charge(0, math.MaxInt64, 1)
		require.True(t, ok)
		require.Less(t, word, uint64(reserved))
		_, ok = alg.charge(word, math.MaxInt64, 1)
		require.False(t, ok)
	}
}

// TestTokenBucket_RefillTimeNeverMovesBack, and a charge at an older time is spent
// since then.
func TestTokenBucket_RefillTimeNeverMovesBack(t *testing.T) {
	alg, err := newTokenBucket(PerSecond(10).WithBurst(100))
	require.Nil(t, err)
	a := alg.(*tokenBucket)
	now := start.UnixNano()
	word, ok := a.charge(0, now, 3)
	require.True(t, ok)
	refill, spent := a.unpack(word)
	older := int64(refill) - 1e8
	word, ok = a.charge(word, older, 2)
	require.True(t, ok)
	again, more := a.unpack(word)
	require.Equal(t, refill, again)
	require.Equal(t, spent+2e8, more)
}

// TestTokenInterval_NothingDrifts: after k refills exactly k*R tokens have come back,
// up to B.
func TestTokenInterval_NothingDrifts(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: TokenBucketInterval, Limit: Per(7, 100_001).WithBurst(7000)})
	const period = 100_001
	first := start.UnixNano() / period * period
	require.True(t, l.Key("k").AllowAt(first, 7000))
	for i := range 1000 {
		at := first + int64(i)*period
		require.Equal(t, 7*i, l.Key("k").PeekAt(at, 0).Remaining)
		require.Equal(t, 7*i, l.Key("k").PeekAt(at+period-1, 0).Remaining)
	}
	require.Equal(t, 7000, l.Key("k").PeekAt(first+5000*period, 0).Remaining)
}

// TestTokenInterval_WordHoldsNumberAndSpent, which has what the number leaves until 2262.
func TestTokenInterval_WordHoldsNumberAndSpent(t *testing.T) {
	alg, err := newTokenInterval(PerSecond(10).WithBurst(1_000_000), 0, 1_000_000)
	require.Nil(t, err)
	word, ok := alg.charge(0, 5_000_000_007, 999_999)
	require.True(t, ok)
	require.Equal(t, uint64(5)<<30|999_999, word)
	word, ok = alg.charge(word, 7_000_000_000, 1)
	require.True(t, ok)
	require.Equal(t, uint64(7)<<30|999_980, word)
	require.Equal(t, uint64(100_005)*1e9, alg.idleAt(word), "99,998 refills later")
}

// TestTokenInterval_Refund gives back what is missing at that time, and not more.
func TestTokenInterval_Refund(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: TokenBucketInterval, Limit: PerMinute(2).WithBurst(9)})
	require.True(t, l.AllowN("k", 9))
	l.Key("k").Refund(3)
	require.Equal(t, 3, l.Key("k").Peek(0).Remaining)
	clock.Advance(time.Minute)
	require.Equal(t, 5, l.Key("k").Peek(0).Remaining)
	l.Key("k").Refund(1)
	require.Equal(t, 6, l.Key("k").Peek(0).Remaining)
	clock.Advance(time.Minute)
	require.Equal(t, 8, l.Key("k").Peek(0).Remaining, "counted from the refund on")
	l.Key("k").Refund(9)
	require.Equal(t, Decision{Allowed: true, Limit: 9, Remaining: 9}, l.Key("k").Peek(0))
	require.Equal(t, 1, l.Sweep(), "a full bucket is idle")
	require.True(t, l.Allow("k"))
	clock.Advance(time.Hour)
	before := snapshot(l)
	l.Key("k").Refund(1)
	require.Equal(t, before, snapshot(l), "it has come back by itself")
}

// TestTokenInterval_EndOfTime: numbers run out before the clock does, and the bucket is
// never refilled again.
func TestTokenInterval_EndOfTime(t *testing.T) {
	c := Config{Algorithm: TokenBucketInterval, Limit: Per(1, 1).WithBurst(3)}
	alg, err := newTokenInterval(c.Limit, 0, c.Limit.burst())
	require.Nil(t, err)
	end := int64(alg.(*tokenInterval).last)
	require.Equal(t, int64(3)<<60-1, end)
	l := mustNew(t, c)
	k := l.Key("k")
	require.True(t, k.AllowAt(end-1, 3))
	require.Equal(t, Decision{Allowed: true, Limit: 3, ResetAfter: Never}, k.TakeAt(end, 1))
	for _, now := range []int64{end, end + 1, math.MaxInt64} {
		require.Equal(t, Decision{Limit: 3, RetryAfter: Never, ResetAfter: Never}, k.TakeAt(now, 1))
	}
	require.Equal(t, Decision{Limit: 3, RetryAfter: Never, ResetAfter: Never}, k.TakeAt(end-1, 1), "older")
	require.Greater(t, l.policyOf(0).alg.idleAt(wordOf(l, k.id)), uint64(math.MaxInt64))
}

func TestTokenInterval_RefusesWhatItCannotKeep(t *testing.T) {
	interval := func(l Limit) Config { return Config{Algorithm: TokenBucketInterval, Limit: l} }
	requireConfigError(t, interval(Per(4, 1)), "Limit.Rate",
		"4 at once with a refill every 1ns: the count leaves too few of 64 bits for the number of the refill, which would run out before 2043; want at most 3")
	requireConfigError(t, interval(Per(1, 1).WithBurst(5)), "Limit.Burst",
		"5 at once with a refill every 1ns: the count leaves too few of 64 bits for the number of the refill, which would run out before 2043; want at most 3")
	for _, period := range []time.Duration{1, 3, 1000, time.Second, day} {
		for _, offset := range []time.Duration{0, period / 2} {
			most := largestRate(period, offset, 64)
			if most >= math.MaxInt {
				continue // on a 32-bit machine
			}
			c := interval(Per(1, period).WithBurst(int(most)))
			c.Offset = offset
			_, err := New(c)
			require.NoError(t, err)
			c.Limit.Burst++
			_, err = New(c)
			require.ErrorContains(t, err, fmt.Sprint("want at most ", most))
		}
	}
	// Longer to fill than time goes on: exact, and never idle.
	l, _ := newFrozen(t, Config{Algorithm: TokenBucketInterval, Limit: Per(1, year).WithBurst(1000)})
	require.Equal(t, Decision{Allowed: true, Limit: 1000, ResetAfter: Never}, l.Take("k", 1000))
	require.Less(t, l.Take("k", 1).RetryAfter, year)
}
