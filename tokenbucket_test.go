package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

func TestTokenBucket_Trace(t *testing.T) {
	runTrace(t, Config{Algorithm: TokenBucket, Limit: PerSecond(2).WithBurst(4)}, bucketTrace)
}

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
