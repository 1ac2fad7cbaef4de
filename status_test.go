package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/seeded"
)

// windowAfter is when the window of a charge at now ends, of a key that is not ahead of now.
func windowAfter(c Config, now int64, reset time.Duration) time.Duration {
	switch {
	case c.Anchor == AnchorFirstCharge && reset > 0:
		return reset
	case c.Anchor == AnchorFirstCharge:
		return c.Limit.Period
	case c.Algorithm != FixedWindow && c.Algorithm != SlidingWindow && c.Refill != RefillInterval:
		return 0
	}
	period, since := uint64(c.Limit.Period), uint64(now)
	if c.Offset > 0 {
		since += period - uint64(c.Offset)
	}
	return time.Duration(period - since%period)
}

// statusOf is what the exact model makes of a key, tried for what the limiter says first.
func statusOf(c Config, model *oracle.Model, name string, now int64, got Status) Status {
	seen := Decision{Remaining: got.Remaining + c.Soft, RetryAfter: got.NextAfter, ResetAfter: got.ResetAfter}
	d := fromOracle(model.Guess(guess(seen)).Peek(name, now, 0))
	s := Status{Limit: c.Limit, Remaining: max(0, d.Remaining-c.Soft), ResetAfter: d.ResetAfter}
	next := int64(max(d.Remaining, c.Soft)) + 1
	if d.Remaining == 0 {
		next = 1
	}
	if next <= int64(c.enforced().burst()) {
		s.NextAfter = time.Duration(model.Peek(name, now, next).RetryAfter)
	}
	s.WindowAfter = windowAfter(c, now, d.ResetAfter)
	return s
}

// TestStatus_IsTheModels on random traces of all variants, in all fields, through all forms.
func TestStatus_IsTheModels(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			missing, soft := 0, 0
			for range depth.Of(200, 400, 5_000) {
				c := randomConfig(rng, variant)
				if _, err := New(c); err != nil {
					continue // more than a word can tell
				}
				tr := newTracer(t, rng, c, false)
				if rng.IntN(3) == 0 && c.Limit.burst() < 1<<20 && c.Limit.Period <= day {
					tr.cfg.Soft = 1 + rng.IntN(4)
					l, err := New(tr.cfg)
					if err != nil {
						continue // a count that leaves too few bits
					}
					tr.lim, tr.model = l, newCounting(oracleConfig(tr.cfg), l.policyOf(0))
				}
				for range 20 {
					tr.advance(tr.gap())
					cost := tr.cost()
					tr.note("cost %d", cost)
					d := tr.lim.Take("k", cost)
					tr.model.Guess(guess(d)).Take("k", tr.now, int64(cost))
					k, got := tr.lim.Key("k"), tr.lim.Status("k")
					want := statusOf(tr.cfg, tr.model, "k", tr.now, got)
					tr.equal(want, got, "Limiter.Status")
					tr.equal(want, k.Status(), "Key.Status")
					tr.equal(want, k.StatusAt(tr.now), "StatusAt")
					tr.equal(k.Peek(cost), k.PeekAt(tr.now, cost), "PeekAt")
					if want.NextAfter > 0 && want.NextAfter < Never && tr.now < tr.stop-int64(want.NextAfter) {
						missing++
						before, after := k.StatusAt(tr.now+int64(want.NextAfter)-1), k.StatusAt(tr.now+int64(want.NextAfter))
						tr.equal(want.Remaining, before.Remaining, "Remaining 1 ns before NextAfter")
						if tr.cfg.Soft == 0 {
							require.Greater(t, after.Remaining, want.Remaining, "NextAfter\n%s", tr)
						} else {
							soft++
							require.True(t, after.Remaining > want.Remaining || want.Remaining == 0 && k.PeekAt(tr.now+int64(want.NextAfter), 1).Allowed, "NextAfter\n%s", tr)
						}
					}
				}
			}
			require.NotZero(t, missing)
			require.NotZero(t, soft)
		})
	}
}

// TestStatus_Edges: blocks, limits that never end, and limits that keys and calls have.
func TestStatus_Edges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		limit := l.Config().Limit
		k := l.Key("k")
		window := l.Status("k").WindowAfter
		assert.Equal(t, Status{Limit: limit, Remaining: limit.Capacity(), WindowAfter: window}, l.Status("k"), "fresh")

		require.True(t, k.Block(sec))
		assert.Equal(t, Status{Limit: limit, NextAfter: sec, WindowAfter: window, ResetAfter: sec}, k.Status())
		k.Block(Never)
		assert.Equal(t, Status{Limit: limit, NextAfter: Never, WindowAfter: window, ResetAfter: Never}, k.Status())
		require.NoError(t, k.SetLimit(Unlimited))
		assert.Equal(t, Status{Limit: Unlimited, NextAfter: Never, ResetAfter: Never}, k.Status(), "blocked, if unlimited")
		k.Unblock()
		assert.Equal(t, Status{Limit: Unlimited, Remaining: math.MaxInt}, k.Status())
		require.NoError(t, k.SetLimit(DenyAll))
		assert.Equal(t, Status{Limit: DenyAll, NextAfter: Never}, k.Status())
		k.ClearLimit()

		smaller := limit
		smaller.Rate, smaller.Burst = 1, 0
		view, err := k.WithLimit(smaller)
		require.NoError(t, err)
		require.True(t, k.Allow())
		was := k.Status()
		assert.Equal(t, smaller, view.Status().Limit)
		assert.Zero(t, view.Status().Remaining)
		assert.Equal(t, view.Peek(1).RetryAfter, view.Status().NextAfter)
		assert.Equal(t, was, k.Status(), "nothing has changed")
		require.False(t, view.Allow(), "which puts the key under its limit")
		assert.Equal(t, was.Limit, k.Status().Limit)
		clock.Advance(time.Duration(1))
		assert.Equal(t, k.Peek(0).Remaining, k.Status().Remaining)
	})
}

// TestStatus_BlockOfATail: a block that is over is looked through, whatever it has left.
func TestStatus_BlockOfATail(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		require.True(t, l.Block("k", sec))
		clock.Advance(time.Hour)
		assert.Equal(t, l.Status("other"), l.Status("k"))
	})
}

// TestStatus_WhileAKeyMoves is that of the key before, or after.
func TestStatus_WhileAKeyMoves(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		c.Clock = clock
		l := mustNew(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(300))
		for _, move := range []func(){func() { assert.NoError(t, k.SetLimit(Per(1000, c.Limit.Period))) }, k.ClearLimit, func() { assert.NoError(t, l.SetLimit(Per(2000, c.Limit.Period))) }} {
			before := k.StatusAt(start.UnixNano())
			var s Status
			whileMoved(clock, move, func() { s = k.StatusAt(start.UnixNano()) })
			require.Contains(t, []Status{before, k.StatusAt(start.UnixNano())}, s)
			require.Equal(t, 300, k.Limit().Capacity()-k.Peek(0).Remaining)
		}
	})
}
