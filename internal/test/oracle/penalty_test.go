package oracle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A penalised call is one of 1 unit, or of cost: whether it passes and how long to wait.
type penalised struct {
	now, cost int64
	allowed   bool
	left      int64
	retryIn   int64
	resetIn   int64
}

func playPenalised(t *testing.T, m *Model, calls []penalised) {
	t.Helper()
	for i, w := range calls {
		want := Decision{w.allowed, m.main.limit, w.left, w.retryIn, w.resetIn}
		assert.Equal(t, want, m.Take("k", w.now, w.cost), "row %d: %+v", i, w)
		if w.allowed {
			continue
		}
		again := m.Peek("k", w.now, w.cost)
		assert.Equal(t, want, again, "row %d: the wait is not that of the key as it is left", i)
	}
}

// TestBlockForTrace: 2 per 10 ns, burst 3, and a denial blocks for 12 ns.
func TestBlockForTrace(t *testing.T) {
	for _, a := range family {
		m := New(Config{Algorithm: a, Rate: 2, Period: 10, Burst: 3, BlockFor: 12})
		playPenalised(t, m, []penalised{
			{100, 3, true, 0, 0, 15},
			{100, 4, false, 0, Never, 15}, // blocks nobody
			{100, 0, false, 0, 5, 15},     // nor this
			{101, 1, false, 0, 14, 14},    // until 115, when the key would be fresh
			{101, 4, false, 0, Never, 14},
			{90, 2, false, 0, 25, 25}, // older
			{114, 0, false, 0, 1, 1},
			{115, 2, true, 1, 0, 10},   // TAT 125
			{114, 2, false, 0, 12, 12}, // until 126, when TAT is over
			{125, 1, false, 0, 1, 1},
			{126, 3, true, 0, 0, 15},
		})
		m.Unblock("k") // is not blocked
		assert.Zero(t, m.Peek("k", 126, 0).Remaining)
		assert.False(t, m.Block("k", 126, 0))
		assert.True(t, m.Block("k", 126, 1))
		m.Refund("k", 126, 3)
		playPenalised(t, m, []penalised{{126, 1, false, 0, 15, 15}})
		assert.False(t, m.Idle("k", 140))
		assert.True(t, m.Idle("k", 141))
		m.Unblock("k")
		playPenalised(t, m, []penalised{{126, 3, true, 0, 0, 15}})
		assert.True(t, m.Block("k", 127, Never))
		playPenalised(t, m, []penalised{{Never, 1, false, 0, Never, Never}})
		m.Reset("k")
		playPenalised(t, m, []penalised{{126, 3, true, 0, 0, 15}})
	}
}

// TestBlockEnd: beyond it, a block has no end.
func TestBlockEnd(t *testing.T) {
	m := New(Config{Rate: 1, Period: 10, BlockEnd: 50})
	m.Block("k", 10, 39)
	assert.Equal(t, int64(39), m.Peek("k", 10, 1).RetryAfter)
	m.Block("k", 10, 40)
	assert.Equal(t, Never, m.Peek("k", 10, 1).RetryAfter)
	w := New(Config{Rate: 1, Period: 10})
	w.Block("k", 10, math.MaxInt64-10)
	assert.Equal(t, int64(math.MaxInt64-10), w.Peek("k", 10, 1).RetryAfter)
	w.Block("k", 10, math.MaxInt64-9)
	assert.Equal(t, Never, w.Peek("k", 10, 1).RetryAfter)
}

// TestCountDeniedTrace: 4 in 10 ns.
func TestCountDeniedTrace(t *testing.T) {
	playPenalised(t, New(Config{Algorithm: FixedWindow, Rate: 4, Period: 10, CountDenied: true}), []penalised{
		{1, 2, true, 2, 0, 9},
		{2, 3, false, 0, 8, 8},
		{3, 1, false, 0, 7, 7},
		{10, 4, true, 0, 0, 10},
	})
	playPenalised(t, New(Config{Algorithm: FixedWindow, FirstCharge: true, Rate: 4, Period: 10, CountDenied: true}), []penalised{
		{5, 2, true, 2, 0, 10},
		{7, 3, false, 0, 8, 8},
		{15, 4, true, 0, 0, 10},
	})
	playPenalised(t, New(Config{Algorithm: SlidingWindow, Rate: 4, Period: 10, CountDenied: true}), []penalised{
		{1, 3, true, 1, 0, 19},
		{2, 2, false, 0, 13, 18}, // 4 in this window; 40-4e+20 <= 40 from e = 5
		{12, 1, false, 0, 3, 18}, // 4*8 + 10 > 40; 1 in this window; 4*(10-e)+20 <= 40 from e = 5
		{15, 1, true, 0, 0, 15},  // 20 + 10 + 10
	})
	playPenalised(t, New(Config{Algorithm: SlidingLog, Rate: 3, Period: 10, CountDenied: true}), []penalised{
		{0, 3, true, 0, 0, 10},
		{4, 2, false, 0, 10, 10}, // 0 4 4
		{9, 1, false, 0, 5, 10},  // 4 4 9
		{14, 2, true, 0, 0, 10},  // 9 14 14
		{6, 1, false, 0, 18, 18}, // older: at 14; 14 14 14
		{24, 3, true, 0, 0, 10},
	})
}
