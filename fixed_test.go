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

// TestFixedWindow_WordHoldsNumberAndCount, which has what the number leaves until 2262.
func TestFixedWindow_WordHoldsNumberAndCount(t *testing.T) {
	alg, err := newFixedWindow(PerSecond(1_000_000), 0, 1_000_000)
	require.Nil(t, err)
	word, ok := alg.charge(0, 5_000_000_007, 999_999)
	require.True(t, ok)
	require.Equal(t, uint64(5)<<30|999_999, word)
}

// TestFixedWindow_OffsetTrace: windows from second 15 to second 15. The trace begins
// at a minute's edge, which lies in the window of 45 s ago.
func TestFixedWindow_OffsetTrace(t *testing.T) {
	runTrace(t, Config{Algorithm: FixedWindow, Limit: PerMinute(3), Offset: 15 * sec}, []traceRow{
		{at: 0, cost: 2, ok: true, remaining: 1, reset: 15 * sec},
		{at: 15*sec - 1, cost: 2, ok: false, remaining: 1, retry: 1, reset: 1},
		{at: 15 * sec, cost: 3, ok: true, remaining: 0, reset: 60 * sec},
		{at: 0, cost: 1, ok: false, remaining: 0, retry: 75 * sec, reset: 75 * sec}, // older
		{at: 60 * sec, cost: 1, ok: false, remaining: 0, retry: 15 * sec, reset: 15 * sec},
		{at: 75 * sec, cost: 1, ok: true, remaining: 2, reset: 60 * sec},
	})
}

// TestFixedWindow_OffsetMakesTheDayOfATimeZone, as the documentation says.
func TestFixedWindow_OffsetMakesTheDayOfATimeZone(t *testing.T) {
	korea := time.FixedZone("KST", 9*60*60)
	for _, c := range []struct {
		offset time.Duration
		starts time.Time
	}{
		{15 * time.Hour, time.Date(2026, 9, 22, 0, 0, 0, 0, korea)},
		{0, time.Date(2026, 9, 22, 9, 0, 0, 0, korea)},
	} {
		clock := NewManualClock(c.starts.Add(-1))
		l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerDay(10), Offset: c.offset, Clock: clock})
		require.Equal(t, time.Duration(1), l.Take("k", 10).ResetAfter)
		clock.Advance(1)
		require.Equal(t, day, l.Take("k", 10).ResetAfter)
	}
	monday := time.Date(2026, 9, 21, 0, 0, 0, 0, time.UTC)
	require.Equal(t, time.Monday, monday.Weekday())
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: Per(10, 7*day), Offset: 4 * day, Clock: NewManualClock(monday)})
	require.Equal(t, 7*day, l.Take("k", 1).ResetAfter)
}

// TestFixedWindow_BeforeTheFirstOffset 1970 lies in a window that began before it.
func TestFixedWindow_BeforeTheFirstOffset(t *testing.T) {
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: Per(3, 10), Offset: 4, Clock: NewManualClock(time.Unix(0, 0))})
	k := l.Key("k")
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: 4}, k.TakeAt(0, 2))
	require.Equal(t, Decision{Limit: 3, Remaining: 1, RetryAfter: 1, ResetAfter: 1}, k.TakeAt(3, 2))
	require.Equal(t, Decision{Allowed: true, Limit: 3, ResetAfter: 10}, k.TakeAt(4, 3))
	k.Reset()
	require.True(t, k.AllowAt(3, 2))
	l.refundAt(k.id, 3, 1)
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 2, ResetAfter: 1}, peekAt(l, k.id, 3, 0))
	require.Equal(t, uint64(4), l.policyOf(0).alg.idleAt(wordOf(l, k.id)))
}
