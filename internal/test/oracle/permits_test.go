package oracle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestPermits_ByHand: 4 at once, in windows of 10 ns.
func TestPermits_ByHand(t *testing.T) {
	m := New(Config{Algorithm: InFlight, Rate: 4, Period: 10})
	acquire := func(now, n int64) *Permit {
		t.Helper()
		p, ok := m.Acquire("k", now, n)
		require.True(t, ok)
		return &p
	}
	left := func(now, want int64) {
		t.Helper()
		require.Equal(t, want, m.Peek("k", now, 0).Remaining)
	}
	a, b := acquire(12, 1), acquire(19, 2)
	require.Equal(t, Permit{"k", 10, 2}, *b)
	_, ok := m.Acquire("k", 20, 2)
	require.False(t, ok)
	require.True(t, m.Renew(a, 20))
	require.Equal(t, Permit{"k", 20, 1}, *a)
	require.True(t, m.Release(b, 29))
	require.False(t, m.Release(b, 29), "a second time")
	require.False(t, m.Renew(b, 29), "after the release")
	left(29, 3)
	c := acquire(29, 3)
	require.True(t, m.Release(a, 39), "a has been renewed")
	left(39, 1)
	require.False(t, m.Renew(c, 40), "c has lapsed")
	left(40, 4)

	d, e := acquire(45, 1), acquire(15, 1)
	require.Equal(t, d, e, "an older time is that of the newest window")
	f, g := acquire(50, 1), acquire(51, 1)
	left(51, 0)
	require.True(t, m.Release(d, 42), "at an older time")
	m.Refund("k", 51, 1) // of the window before, which is that of e
	require.False(t, m.Release(e, 51), "it does not take the units of another window")
	left(51, 2)
	require.True(t, m.Block("k", 51, 5))
	require.False(t, m.Release(f, 51))
	m.Unblock("k")
	left(51, 4)
	acquire(51, 1)
	require.True(t, m.Renew(g, 51), "of one window, permits are alike")
	m.Reset("k")
	require.False(t, m.Renew(g, 51))
	none := acquire(51, 0)
	require.False(t, m.Release(none, 51))
	left(51, 4)
	for _, c := range []Config{{Algorithm: SlidingWindow, Rate: 4, Period: 10}, {Algorithm: InFlight}, {Algorithm: InFlight, Rate: math.MaxInt64}} {
		require.Panics(t, func() { New(c).Acquire("k", 1, 1) })
	}
}

// TestPermits_AreHolders: each permit holds its units until it is released, or until the window after that of
// its charge, or its last renewal, has ended. What is left is what nobody holds.
func TestPermits_AreHolders(t *testing.T) {
	type holder struct {
		Permit
		units, window int64
	}
	rng := seeded.Rand(t)
	for range 50 {
		const rate, period = 6, 10
		m := New(Config{Algorithm: InFlight, Rate: rate, Period: period})
		var all []*holder
		held := func(h *holder, now int64) bool { return h.units > 0 && now/period <= h.window+1 }
		for now, step := int64(100), 0; step < 200; step++ {
			now += rng.Int64N(6) * rng.Int64N(3)
			used := int64(0)
			for _, h := range all {
				if held(h, now) {
					used += h.units
				}
			}
			require.Equal(t, rate-used, m.Peek("k", now, 0).Remaining)
			n, op := 1+rng.Int64N(3), rng.IntN(4)
			if op < 2 || len(all) == 0 {
				p, ok := m.Acquire("k", now, n)
				require.Equal(t, used+n <= rate, ok)
				if ok {
					all = append(all, &holder{p, n, now / period})
				}
				continue
			}
			h := all[max(0, len(all)-8)+rng.IntN(min(len(all), 8))]
			if was := held(h, now); op == 2 {
				require.Equal(t, was, m.Release(&h.Permit, now))
				h.units = 0
			} else {
				require.Equal(t, was, m.Renew(&h.Permit, now))
				h.window = now / period
				if !was {
					h.units = 0
				}
			}
		}
	}
}
