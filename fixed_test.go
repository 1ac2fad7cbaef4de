package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFixedWindow_Trace(t *testing.T) {
	runTrace(t, Config{Algorithm: FixedWindow, Limit: PerMinute(3)}, []traceRow{
		{at: 10 * sec, cost: 2, ok: true, remaining: 1, reset: 50 * sec},
		{at: 10 * sec, cost: 2, ok: false, remaining: 1, retry: 50 * sec, reset: 50 * sec},
		{at: 60*sec - 1, cost: 1, ok: true, remaining: 0, reset: 1},
		{at: 60*sec - 1, cost: 1, ok: false, remaining: 0, retry: 1, reset: 1},
		{at: 60 * sec, cost: 3, ok: true, remaining: 0, reset: 60 * sec}, // the next window is full again
		{at: 59 * sec, cost: 1, ok: false, remaining: 0, retry: 61 * sec, reset: 61 * sec},
		{at: 180*sec - 1, cost: 1, ok: true, remaining: 2, reset: 1},
		{at: 59 * sec, cost: 2, ok: true, remaining: 0, reset: 121 * sec}, // charged in the newest window
		{at: 179 * sec, cost: 1, ok: false, remaining: 0, retry: sec, reset: sec},
	})
}

// TestFixedWindow_BoundariesAreUnixTime, not the key's first charge.
func TestFixedWindow_BoundariesAreUnixTime(t *testing.T) {
	for _, l := range []Limit{PerSecond(1), PerMinute(1), PerHour(1), PerDay(1), Per(1, 7*time.Second)} {
		lim := mustNew(t, Config{Algorithm: FixedWindow, Limit: l, Clock: NewManualClock(start)})
		want := l.Period - time.Duration(start.UnixNano()%int64(l.Period))
		require.Equal(t, want, lim.Take("k", 1).ResetAfter, "%v", l)
	}
}

// TestFixedWindow_WordHoldsNumberAndCount in just the bits that the limit needs.
func TestFixedWindow_WordHoldsNumberAndCount(t *testing.T) {
	alg, err := newFixedWindow(PerSecond(1_000_000))
	require.Nil(t, err)
	word, ok := alg.charge(0, 5_000_000_007, 999_999)
	require.True(t, ok)
	require.Equal(t, uint64(5)<<20|999_999, word)
}
