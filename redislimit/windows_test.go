package redislimit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestShape_Letters: states of different forms are under different names in Redis. Buckets share theirs.
func TestShape_Letters(t *testing.T) {
	for letter, configs := range map[string][]Config{
		"b": {{Algorithm: sluice.GCRA}, {Algorithm: sluice.TokenBucket}, {Algorithm: sluice.LeakyBucket}},
		"w": {{Algorithm: sluice.FixedWindow}},
		"d": {{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(5, daysInNewYork)}},
		"i": {{Algorithm: sluice.TokenBucketInterval}},
		"a": {{Algorithm: sluice.FixedWindowFirstCharge}},
		"s": {{Algorithm: sluice.SlidingWindow}},
		"f": {{Algorithm: sluice.InFlight}},
		"l": {{Algorithm: sluice.SlidingLog}},
	} {
		for _, c := range configs {
			if c.Limit == (sluice.Limit{}) {
				c.Limit = sluice.PerMinute(5)
			}
			s, err := newShape(c)
			require.NoError(t, err)
			require.Equal(t, letter, string(s.letter()), "%+v", c)
		}
	}
}

// TestAligned_Boundary: boundaries are at offset + k*period, before 1970 as well. One that no int64 has never comes.
func TestAligned_Boundary(t *testing.T) {
	w := aligned{period: 10, offset: 3}
	for now, want := range map[int64]int64{3: 10, 4: 9, 12: 1, 13: 10, 0: 3, -7: 10, -8: 1} {
		require.Equal(t, want, w.boundary(now, 1), "at %d", now)
		require.Equal(t, want+20, w.boundary(now, 3), "at %d", now)
	}
	require.Zero(t, w.soonest(view{now: 4}, 1), "others may give units back at any time")
	w = aligned{period: maxPeriod}
	require.Equal(t, int64(math.MaxInt64), w.boundary(0, exact))
	require.Equal(t, int64(math.MaxInt64), w.boundary(0, math.MaxInt64/maxPeriod+1))
	require.Equal(t, int64(2*maxPeriod), w.boundary(0, 2))
}
