package oracle

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// move is one row of a trace with refunds: units charged, which must be admitted,
// or if negative given back; and what a look at one unit must then say.
type move struct {
	now, units    int64
	left, resetIn int64
}

func play(t *testing.T, c Config, moves []move) {
	t.Helper()
	m := New(c)
	for i, w := range moves {
		if w.units < 0 {
			m.Refund("k", w.now, -w.units)
		} else {
			assert.Equal(t, w.units == 0 && w.left > 0 || w.units > 0, m.Take("k", w.now, w.units).Allowed, "row %d: %+v", i, w)
		}
		d := m.Peek("k", w.now, 0)
		assert.Equal(t, [2]int64{w.left, w.resetIn}, [2]int64{d.Remaining, d.ResetAfter}, "row %d: %+v", i, w)
	}
}

// TestRefundFamily: 2 per 10 ns, burst 3, so T = 5.
func TestRefundFamily(t *testing.T) {
	for _, a := range family {
		play(t, Config{Algorithm: a, Rate: 2, Period: 10, Burst: 3}, []move{
			{100, -1, 3, 0}, // nothing yet to give back
			{100, 3, 0, 15},
			{100, -1, 1, 10}, // TAT 110
			{107, -1, 3, 0},  // 3 of 5 ns that 1 unit is worth were owed
			{107, -3, 3, 0},
			{108, 1, 2, 5},   // TAT 113
			{106, 0, 1, 7},   // older
			{110, -9, 3, 0},  // above the burst: as 3
			{106, 0, 2, 4},   // older: TAT 110 all the same
			{106, 1, 1, 9},   // TAT 115
			{130, -1, 3, 0},  // came back by itself long ago
			{114, 0, 2, 1},   // which the refund did not touch
			{114, 2, 0, 11},  // TAT 125
			{100, -1, 0, 20}, // a refund at an older time counts like any other: TAT 120
		})
	}
}

// TestRefundFixedWindow: 3 in windows of 10 ns.
func TestRefundFixedWindow(t *testing.T) {
	play(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10}, []move{
		{12, 3, 0, 8},
		{15, -2, 2, 5},
		{15, -5, 3, 0},
		{5, 0, 3, 0},   // older: nothing is counted in the window of 12 either
		{5, 1, 2, 15},  // but that is the key's
		{25, -1, 3, 0}, // nothing of an earlier window
		{15, 0, 2, 5},
		{5, -1, 3, 0}, // older: from the key's window
	})
}

// TestRefundSlidingWindow: 4 in windows of 10 ns.
func TestRefundSlidingWindow(t *testing.T) {
	play(t, Config{Algorithm: SlidingWindow, Rate: 4, Period: 10}, []move{
		{8, 4, 0, 12},
		{15, 1, 1, 15},
		{15, -1, 2, 5},
		{15, 2, 0, 15},
		{15, -3, 2, 5}, // 2 of the present window, 1 of 4 before: 3*5/10 used
		{15, -3, 4, 0},
		{7, 0, 4, 0},
		{7, 1, 3, 23},  // older: in the window of 15
		{38, -1, 4, 0}, // two windows on: nothing is counted
		{18, 0, 3, 12},
	})
}

// TestRefundSlidingLog: 3 in any 10 ns.
func TestRefundSlidingLog(t *testing.T) {
	play(t, Config{Algorithm: SlidingLog, Rate: 3, Period: 10}, []move{
		{0, 1, 2, 10},
		{4, 1, 1, 10},
		{6, -1, 2, 4}, // the unit of 4: 0
		{6, 2, 0, 10}, // 0 6 6
		{10, 1, 0, 10},
		{11, -2, 2, 5}, // the units of 10 and 6; the one of 0 is forgotten: 6
		{9, 0, 2, 7},
		{12, 2, 0, 10}, // 6 12 12
		{12, -1, 1, 10},
		{12, -9, 3, 0},
		{12, 3, 0, 10},
		{30, -1, 3, 0}, // no longer counts; the newest all the same: 12 12
		{12, 1, 0, 10},
	})
}

// TestRefundIgnores what cannot be given back.
func TestRefundIgnores(t *testing.T) {
	for _, a := range all {
		m := New(Config{Algorithm: a, Rate: 3, Period: 10})
		m.Refund("k", 12, 1)
		assert.Empty(t, m.keys, "a key that was never charged is not tracked")
		m.Take("k", 12, 2)
		for _, cost := range []int64{0, -1, math.MinInt64} {
			m.Refund("k", 12, cost)
			assert.Equal(t, int64(1), m.Peek("k", 12, 0).Remaining, names[a])
		}
		m.Refund("k", 12, math.MaxInt64)
		assert.True(t, m.Idle("k", 12))
		New(Config{Algorithm: a}).Refund("k", 1, 1)
		New(Config{Algorithm: a, Rate: math.MaxInt64}).Refund("k", 1, 1)
	}
}

// TestRefundUndoes: a charge and its refund in the same instant leave no trace that
// a call then, or later, could see; where the key owed something before, exactly
// that is left. And clones do not notice.
func TestRefundUndoes(t *testing.T) {
	eachConfig(t, 100, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		tr := newTrace(rng, c)
		for range 60 {
			_, cost := tr.next()
			if rng.IntN(4) == 0 {
				m.Refund("k", tr.now, cost)
			}
			before := m.Peek("k", tr.now, 0)
			charge := 1 + rng.Int64N(m.main.limit)
			charged := m.Peek("k", tr.now, charge)
			if m.Take("k", tr.now, charge).Allowed {
				snapshot := m.keys["k"].state.clone()
				m.Refund("k", tr.now, charge)
				if after := m.Peek("k", tr.now, 0); c.Algorithm != SlidingWindow {
					require.Equal(t, before, after, "%+v", c)
				} else {
					require.Equal(t, before.Remaining, after.Remaining, "%+v", c)
				}
				m.keys["k"].state = snapshot
				again := m.Peek("k", tr.now, 0)
				require.Equal(t, charged.Remaining, again.Remaining, "the clone has changed")
				require.Equal(t, charged.ResetAfter, again.ResetAfter, "the clone has changed")
			}
		}
	})
}

// TestRefundFamilyAgrees: the three buckets are one, with refunds too.
func TestRefundFamilyAgrees(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Of(75, 75, 300) {
		c := randomConfig(rng)
		tr := newTrace(rng, c)
		models := make([]*Model, len(family))
		for i, a := range family {
			c.Algorithm = a
			models[i] = New(c)
		}
		for range 80 {
			now, cost := tr.next()
			refund := rng.IntN(3) == 0
			for i, m := range models {
				if refund {
					m.Refund("k", now, cost)
				}
				require.Equal(t, models[0].Peek("k", now, cost), m.Peek("k", now, cost), "%s %+v", names[i], c)
				if i > 0 {
					require.Equal(t, models[0].Idle("k", now), m.Idle("k", now))
				}
			}
			for _, m := range models {
				m.Take("k", now, cost)
			}
		}
	}
}

// TestTakeAll: two models, by hand.
func TestTakeAll(t *testing.T) {
	m := New(Config{Rate: 2, Period: 10, Burst: 3})
	w := New(Config{Algorithm: FixedWindow, Rate: 4, Period: 10})
	all := func(now int64, charges ...Charge) AllDecision {
		for i := range charges {
			charges[i].Now = now
		}
		return TakeAll(charges)
	}
	made := func(left, resetIn int64) Decision { return Decision{true, m.main.limit, left, 0, resetIn} }
	counted := func(left, resetIn int64) Decision { return Decision{true, w.main.limit, left, 0, resetIn} }
	assert.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: math.MaxInt64, Each: []Decision{}}, TakeAll(nil))
	assert.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: 1, Each: []Decision{made(1, 10), counted(2, 10), made(1, 10)}},
		all(100, Charge{Model: m, Key: "a", Cost: 1}, Charge{Model: w, Key: "a", Cost: 2}, Charge{Model: m, Key: "a", Cost: 1}))
	assert.Equal(t, AllDecision{Denied: 1, Remaining: 1, RetryAfter: 5, Each: []Decision{counted(2, 10), {false, 3, 1, 5, 10}}},
		all(100, Charge{Model: w, Key: "a", Cost: 2}, Charge{Model: m, Key: "a", Cost: 2}))
	assert.Equal(t, AllDecision{Denied: 0, Remaining: 1, RetryAfter: 10, Each: []Decision{{false, 4, 2, 10, 10}, {false, 3, 1, 5, 10}}},
		all(100, Charge{Model: w, Key: "a", Cost: 3}, Charge{Model: m, Key: "a", Cost: 2}))
	never := Decision{false, 3, 1, Never, 10}
	assert.Equal(t, AllDecision{Denied: 1, Remaining: 1, RetryAfter: Never, Each: []Decision{counted(2, 10), never, never}},
		all(100, Charge{Model: w, Key: "a", Cost: 0}, Charge{Model: m, Key: "a", Cost: 1}, Charge{Model: m, Key: "a", Cost: -1}))
	never = Decision{false, 4, 2, Never, 10}
	assert.Equal(t, AllDecision{Denied: 0, Remaining: 2, RetryAfter: Never, Each: []Decision{never, never}},
		all(100, Charge{Model: w, Key: "a", Cost: math.MaxInt64}, Charge{Model: w, Key: "a", Cost: math.MaxInt64}))
	assert.Equal(t, int64(1), m.Peek("a", 100, 0).Remaining)
	assert.Equal(t, int64(2), w.Peek("a", 100, 0).Remaining)
}
