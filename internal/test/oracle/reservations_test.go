package oracle

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReservations_ByHand: one unit a second, two at once; times in seconds.
func TestReservations_ByHand(t *testing.T) {
	const s = 1_000_000_000
	r := NewReservations(Config{Rate: 1, Burst: 2, Period: s, Grid: true})
	require.True(t, r.Take(0, 2).Allowed)
	reserve := func(now, cost, wait int64) *Event {
		t.Helper()
		got, e, out := r.Reserve(now*s, cost, 100*s)
		require.Equal(t, Reserved, out)
		require.Equal(t, wait*s, got)
		return e
	}
	a, b, c := reserve(0, 1, 1), reserve(0, 2, 3), reserve(0, 1, 4)
	require.Equal(t, int64(6*s), r.TAT().Int64())
	settle := func(e *Event, now, actual, least, most int64) {
		t.Helper()
		bounds := r.Settle(e, now*s, actual)
		require.Equal(t, least*s, bounds.Least.Int64())
		require.Equal(t, most*s, bounds.Most.Int64())
		require.True(t, r.Observe(uint64(least*s), bounds))
	}
	settle(a, 0, 0, 6, 6) // b fills the bucket at 3, whatever was before
	settle(a, 0, 0, 6, 6)
	settle(b, 0, 1, 5, 5) // b from 3 to 4, c from 4 to 5
	settle(b, 0, 0, 5, 5)
	settle(c, 0, 0, 4, 4)
	_, _, out := r.Reserve(0, 1, 3*s-1)
	require.Equal(t, TooLate, out)
	settle(reserve(0, 1, 3), 0, 3, 7, 7)
	require.False(t, r.Rest(7*s-1))
	require.True(t, r.Rest(7*s))

	q := NewReservations(Config{Algorithm: LeakyBucket, Rate: 1, Burst: 2, Period: s, Grid: true})
	for i, want := range []Outcome{Reserved, Reserved, QueueFull} {
		wait, _, out := q.Reserve(0, 1, 100*s)
		require.Equal(t, want, out)
		if out == Reserved {
			require.Equal(t, int64(i)*s, wait)
		}
	}
	_, _, out = q.Reserve(0, -1, 0)
	require.Equal(t, Negative, out)
	_, _, out = q.Reserve(0, 3, 0)
	require.Equal(t, TooMuch, out)
}
