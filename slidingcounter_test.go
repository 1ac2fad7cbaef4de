package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestSlidingWindow_LayoutFollowsTheLimit(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		wide  bool
	}{
		{PerSecond(32_767), false}, {PerSecond(32_768), true},
		{PerMinute(262_143), false}, {PerMinute(262_144), true},
		{PerHour(2_097_151), false}, {PerHour(2_097_152), true},
		{PerDay(8_388_607), false}, {PerDay(8_388_608), true},
		{PerSecond(1_000_000), true}, {PerDay(100_000_000), true}, {PerDay(1_000_000_000), true},
	} {
		l := mustNew(t, Config{Algorithm: SlidingWindow, Limit: c.limit})
		require.Equal(t, c.wide, isWide(l), "%v", c.limit)
	}
}

// TestSlidingWindow_LayoutsAgree: both packings of one limit decide alike.
func TestSlidingWindow_LayoutsAgree(t *testing.T) {
	rng := seeded.Rand(t)
	for range 300 {
		limit := Per(1+rng.IntN(1000), time.Duration(1+rng.Int64N(int64(time.Hour))))
		offset := time.Duration(rng.Int64N(int64(limit.Period)))
		word, wide, err := newSlidingWindow(limit, offset, limit.Rate)
		require.Nil(t, err)
		require.Nil(t, wide)
		a := word.(*slidingWindowWord).slidingWindow
		var ok bool
		a.window, ok = newWindow(limit.Period, offset, wideBits, a.bits, minHorizon)
		require.True(t, ok)
		one := mustNew(t, Config{Algorithm: SlidingWindow, Limit: limit, Offset: offset, Clock: NewManualClock(start)})
		two := mustNew(t, Config{Algorithm: SlidingWindow, Limit: limit, Offset: offset, Clock: NewManualClock(start)})
		setAlgorithm(two, nil, &slidingWindowWide{a})
		now := start.UnixNano()
		for range 100 {
			now += rng.Int64N(int64(limit.Period))
			cost := 1 + rng.IntN(limit.Rate)
			require.Equal(t, one.Key("k").TakeAt(now, cost), two.Key("k").TakeAt(now, cost))
		}
	}
}

// TestSlidingWindow_DebitsOfTheLastWindow: units that the count has no room for go to the next
// window, and are lost where there is none.
func TestSlidingWindow_DebitsOfTheLastWindow(t *testing.T) {
	l := mustNew(t, Config{Algorithm: SlidingWindow, Limit: PerMinute(10)})
	a := l.policyOf(0).alg.(*slidingWindowWord).slidingWindow
	most := uint64(1)<<a.bits - 1
	require.Equal(t, counts{5, most, 3}, a.add(counts{5, most - 4, 3}, 4))
	require.Equal(t, counts{6, 2, most}, a.add(counts{5, most - 4, 3}, 6))
	require.Equal(t, counts{6, most, most}, a.add(counts{5, most, 3}, 2*most))
	require.Equal(t, counts{a.last, most, 3}, a.add(counts{a.last, most - 4, 3}, 6))
}
