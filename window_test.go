package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestWindow_NumbersAreExact(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() {
		period := edgy(rng)
		for _, offset := range []int64{0, edgy(rng) % period, period - 1} {
			for _, now := range []int64{0, edgy(rng), math.MaxInt64 - edgy(rng) + 1, min(math.MaxInt64-period, period*(edgy(rng)%1000)) + 1} {
				checkWindow(t, period, offset, max(0, now))
			}
		}
	}
}

// TestWindow_TimeStandsStillAtTheEnd, and never goes back there.
func TestWindow_TimeStandsStillAtTheEnd(t *testing.T) {
	w, ok := newWindow(1000, 0, wideBits, wideBits-8, 1)
	require.True(t, ok)
	require.Equal(t, uint64(255), w.last)
	for _, now := range []int64{255_000, 255_999, 256_000, 256_001, math.MaxInt64} {
		number, elapsed := w.at(now)
		require.Equal(t, [2]uint64{255, 0}, [2]uint64{number, elapsed}, "%d", now)
	}
	require.Equal(t, uint64(255_000), w.start(255))
	require.Equal(t, uint64(math.MaxUint64), w.start(256))

	w, ok = newWindow(1000, 300, wideBits, wideBits-8, 1) // the first one ends at 300
	require.True(t, ok)
	for _, now := range []int64{254_300, 255_299, math.MaxInt64} {
		number, elapsed := w.at(now)
		require.Equal(t, [2]uint64{255, 0}, [2]uint64{number, elapsed}, "%d", now)
	}
	require.Equal(t, uint64(254_300), w.start(255))
	require.Equal(t, uint64(math.MaxUint64), w.start(256))
}

// TestWindow_LargestRateIsTheLargest: it is accepted, and one more is not.
func TestWindow_LargestRateIsTheLargest(t *testing.T) {
	for _, period := range []time.Duration{1, 3, 1000, time.Second, time.Minute, day} {
		for a, wordBits := range map[Algorithm]int{FixedWindow: 64, SlidingWindow: wideBits} {
			for _, offset := range []time.Duration{0, period / 2, min(1, period-1)} {
				rate := largestRate(period, offset, wordBits)
				if rate >= math.MaxInt {
					continue // as int on this platform
				}
				_, err := New(Config{Algorithm: a, Limit: Per(int(rate), period), Offset: offset})
				require.NoError(t, err, "%v", a)
				if rate+1 < math.MaxInt {
					_, err = New(Config{Algorithm: a, Limit: Per(int(rate+1), period), Offset: offset})
					require.ErrorContains(t, err, fmt.Sprint("want at most ", rate), "%v", a)
				}
			}
		}
	}
}

// TestWindow_NewMeetsTheHorizonWithAnyOffset: a window that begins before 1970 takes
// a number, so that time could end a period earlier.
func TestWindow_NewMeetsTheHorizonWithAnyOffset(t *testing.T) {
	for _, offset := range []time.Duration{0, 1, 999} {
		_, ok := newWindow(1000, offset, wideBits, wideBits-8, uint64(255_000-(1000-offset)%1000))
		require.True(t, ok)
		_, ok = newWindow(1000, offset, wideBits, wideBits-8, uint64(255_001-(1000-offset)%1000))
		require.False(t, ok)
	}
	_, ok := newWindow(math.MaxInt64, 1, wideBits, wideBits-1, 1)
	require.False(t, ok, "a single window is no time")
	w, ok := newWindow(1000, 0, 64, 56, 1)
	require.True(t, ok)
	require.Equal(t, uint64(191), w.last, "numbers that begin with two ones are not used")
	w, ok = newWindow(math.MaxInt64, 1, wideBits, wideBits-2, math.MaxInt64)
	require.True(t, ok)
	require.Equal(t, uint64(1), w.start(1))
}
