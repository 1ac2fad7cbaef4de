package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWindow_NumbersAreExact(t *testing.T) {
	rng := newRand(t)
	for range modelOps() {
		period := edgy(rng)
		for _, now := range []int64{0, edgy(rng), math.MaxInt64 - edgy(rng) + 1, min(math.MaxInt64-period, period*(edgy(rng)%1000)) + 1} {
			checkWindow(t, period, max(0, now))
		}
	}
}

// TestWindow_TimeStandsStillAtTheEnd, and never goes back there.
func TestWindow_TimeStandsStillAtTheEnd(t *testing.T) {
	w, ok := newWindow(1000, 8, 1)
	require.True(t, ok)
	require.Equal(t, uint64(254), w.last)
	for _, now := range []int64{254_000, 254_999, 255_000, 255_001, math.MaxInt64} {
		number, elapsed := w.at(now)
		require.Equal(t, [2]uint64{254, 0}, [2]uint64{number, elapsed}, "%d", now)
	}
	require.Equal(t, uint64(254_000), w.start(254))
	require.Equal(t, uint64(math.MaxUint64), w.start(255))
}

// TestWindow_LargestRateIsTheLargest: it is accepted, and one more is not.
func TestWindow_LargestRateIsTheLargest(t *testing.T) {
	for _, period := range []time.Duration{1, 3, 1000, time.Second, time.Minute, day} {
		for a, wordBits := range map[Algorithm]int{FixedWindow: 64, SlidingWindow: 63} {
			rate := largestRate(period, wordBits)
			if rate >= math.MaxInt {
				continue // as int on this platform
			}
			_, err := New(Config{Algorithm: a, Limit: Per(int(rate), period)})
			require.NoError(t, err, "%v", a)
			if rate+1 < math.MaxInt {
				_, err = New(Config{Algorithm: a, Limit: Per(int(rate+1), period)})
				require.ErrorContains(t, err, "want at most ", "%v", a)
			}
		}
	}
}
