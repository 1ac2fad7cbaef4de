package oracle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// call is one row of a trace: a Take and all that it must say.
type call struct {
	now, cost        int64
	allowed          bool
	left             int64 // Remaining
	retryIn, resetIn int64
}

// replay runs a trace from a fresh key, each call peeked first.
func replay(t *testing.T, c Config, calls []call) {
	t.Helper()
	m := New(c)
	limit := c.Burst
	if limit == 0 {
		limit = c.Rate
	}
	for i, w := range calls {
		want := Decision{w.allowed, limit, w.left, w.retryIn, w.resetIn}
		assert.Equal(t, want, m.Peek("k", w.now, w.cost), "peek, row %d: %+v", i, w)
		assert.Equal(t, want, m.Take("k", w.now, w.cost), "row %d: %+v", i, w)
	}
}

// TestTraceFamilyWhole: 2 per 10 ns, burst 3, so T = 5 and B*T = 15.
func TestTraceFamilyWhole(t *testing.T) {
	calls := []call{
		{100, 1, true, 2, 0, 5},
		{100, 2, true, 0, 0, 15},       // TAT 115
		{100, 1, false, 0, 5, 15},      // 120-100 > 15
		{104, 1, false, 0, 1, 11},      // the last ns of denial
		{105, 1, true, 0, 0, 15},       // TAT 120
		{105, 3, false, 0, 15, 15},     // all of it: when the key is idle
		{105, 4, false, 0, Never, 15},  // above the burst
		{105, -1, false, 0, Never, 15}, // no arithmetic on it
		{105, math.MinInt64, false, 0, Never, 15},
		{112, 0, true, 1, 0, 8}, // peeks 1 unit: 125-112 <= 15
		{109, 0, false, 0, 1, 11},
		{100, 1, false, 0, 10, 20}, // older: 125-100 > 15
		{130, 1, true, 2, 0, 5},    // idle since 120; TAT 135
		{125, 1, true, 0, 0, 15},   // older: 140-125 <= 15; TAT 140
		{125, 1, false, 0, 5, 15},
		{130, 1, true, 0, 0, 15},     // TAT 145
		{-7, 1, false, 0, 135, 145},  // as 0
		{145, 3, true, 0, 0, 15},     // idle in the instant of TAT
		{159, 3, false, 2, 1, 1},     // TAT 160
		{1 << 62, 3, true, 0, 0, 15}, // idle for ages
		{math.MaxInt64, 3, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
		{math.MaxInt64 - 10, 1, false, 0, Never, Never},
	}
	for _, a := range family {
		for _, grid := range []bool{false, true} {
			replay(t, Config{Algorithm: a, Rate: 2, Period: 10, Burst: 3, Grid: grid}, calls)
		}
	}
}

// TestTraceFamilyFraction: 3 per 10 ns, burst 2, so T = 10/3 and B*T = 20/3. On
// the grid a unit is 4 ticks, the burst 8, and instant t is tick floor(1.2*t).
func TestTraceFamilyFraction(t *testing.T) {
	exact := []call{
		{0, 2, true, 0, 0, 7},  // TAT 6.67
		{3, 1, false, 0, 1, 4}, // 10-3 > 6.67; from 3.33 on
		{4, 1, true, 0, 0, 6},  // TAT 10
		{8, 1, true, 0, 0, 6},  // TAT 13.33
		{13, 2, false, 1, 1, 1},
		{14, 2, true, 0, 0, 7},  // TAT 20.67, idle at 21
		{20, 2, false, 1, 1, 1}, // not idle yet: 20.67 > 20
		{21, 2, true, 0, 0, 7},  // TAT 27.67
	}
	grid := []call{
		{0, 2, true, 0, 0, 7},   // TAT tick 8; 7 ns is tick 8
		{3, 1, false, 0, 1, 4},  // tick 3: 12-3 > 8
		{4, 1, true, 0, 0, 6},   // tick 4: 12-4 <= 8; TAT 12, tick of 10 ns
		{8, 1, true, 0, 0, 6},   // tick 9; TAT 16, tick of 14 ns
		{13, 2, false, 1, 1, 1}, // tick 15
		{14, 2, true, 0, 0, 6},  // tick 16, moved from 14 to 13.33; TAT 24, tick of 20 ns
		{20, 2, true, 0, 0, 7},  // tick 24: idle; TAT 32, and 26 ns is tick 31
		{26, 1, true, 0, 0, 4},  // tick 31: 36-31 <= 8; TAT 36, tick of 30 ns
	}
	for _, a := range family {
		c := Config{Algorithm: a, Rate: 3, Period: 10, Burst: 2}
		replay(t, c, exact)
		c.Grid = true
		replay(t, c, grid)
	}
}

// TestTraceFamilyFast: 5 per 2 ns, burst 4: more than one unit a nanosecond. On
// the grid a unit is one tick, and instant t is tick floor(2.5*t).
func TestTraceFamilyFast(t *testing.T) {
	exact := []call{
		{10, 4, true, 0, 0, 2},  // empty
		{11, 3, false, 2, 1, 1}, // 2.5 tokens
		{11, 2, true, 0, 0, 2},  // 0.5
		{12, 3, true, 0, 0, 2},  // 3.0
		{13, 3, false, 2, 1, 1}, // 2.5
		{14, 4, true, 0, 0, 2},  // full, 1 lost
	}
	grid := []call{
		{10, 4, true, 0, 0, 2},  // tick 25, TAT 29
		{11, 3, false, 2, 1, 1}, // tick 27: 32-27 > 4
		{11, 2, true, 0, 0, 2},  // TAT 31, and 12 ns is tick 30
		{12, 3, true, 0, 0, 2},  // TAT 34, and 13 ns is tick 32
		{13, 3, false, 2, 1, 1}, // tick 32: 37-32 > 4
		{14, 4, true, 0, 0, 2},  // tick 35: idle
	}
	for _, a := range family {
		c := Config{Algorithm: a, Rate: 5, Period: 2, Burst: 4}
		replay(t, c, exact)
		c.Grid = true
		replay(t, c, grid)
	}
}

// TestTraceGridIsEarlier: 3 per 10 ns, burst 1. The arrival at 2 ns is moved to
// tick 2, 1.67 ns, so that its unit is back at 5.00 ns and not at 5.33.
func TestTraceGridIsEarlier(t *testing.T) {
	for _, a := range family {
		c := Config{Algorithm: a, Rate: 3, Period: 10, Burst: 1}
		replay(t, c, []call{{2, 1, true, 0, 0, 4}, {5, 1, false, 0, 1, 1}})
		c.Grid = true
		replay(t, c, []call{{2, 1, true, 0, 0, 3}, {5, 1, true, 0, 0, 4}})
	}
}

// TestTraceFixedWindow: 3 in windows of 10 ns.
func TestTraceFixedWindow(t *testing.T) {
	replay(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10}, []call{
		{12, 2, true, 1, 0, 8},
		{19, 2, false, 1, 1, 1}, // writes nothing
		{19, 1, true, 0, 0, 1},
		{19, 4, false, 0, Never, 1},
		{19, -1, false, 0, Never, 1},
		{20, 3, true, 0, 0, 10},
		{15, 1, false, 0, 15, 15}, // older: judged in the window of 20
		{31, 1, true, 2, 0, 9},
		{25, 2, true, 0, 0, 15}, // older: charged in the window of 30
		{39, 0, false, 0, 1, 1},
		{-3, 0, false, 0, 40, 40},
		{40, 0, true, 3, 0, 0},
		{math.MaxInt64, 3, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
		{40, 1, false, 0, Never, Never},
	})
}

// TestTraceFixedWindowOffset: 3 in windows of 10 ns that begin at 4, 14, 24.
func TestTraceFixedWindowOffset(t *testing.T) {
	replay(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10, Offset: 4}, []call{
		{0, 2, true, 1, 0, 4}, // the window of -6
		{3, 2, false, 1, 1, 1},
		{4, 3, true, 0, 0, 10},
		{3, 1, false, 0, 11, 11}, // older: judged in the window of 4
		{13, 1, false, 0, 1, 1},
		{14, 1, true, 2, 0, 10},
		{23, 2, true, 0, 0, 1},
		{24, 3, true, 0, 0, 10},
		{math.MaxInt64, 3, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
	})
	// MaxInt64 ends in 7, so that it is the last instant of a window.
	replay(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10, Offset: 8}, []call{
		{math.MaxInt64 - 10, 3, true, 0, 0, 1},
		{math.MaxInt64 - 9, 3, true, 0, 0, Never},
	})
	replay(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10, Offset: 7}, []call{
		{math.MaxInt64 - 1, 3, true, 0, 0, 1},
		{math.MaxInt64, 3, true, 0, 0, Never},
	})
}

// TestTraceSlidingWindowOffset: 4 in windows of 10 ns that begin at 7, 17, 27.
func TestTraceSlidingWindowOffset(t *testing.T) {
	replay(t, Config{Algorithm: SlidingWindow, Rate: 4, Period: 10, Offset: 7}, []call{
		{0, 4, true, 0, 0, 17},  // the window of -3, which counts in part until 17
		{6, 1, false, 0, 4, 11}, // 4*(10-e) + 10 <= 40 from e = 2.5, 9.5
		{9, 1, false, 0, 1, 8},
		{10, 1, true, 0, 0, 17},  // 28+10 <= 40
		{3, 1, false, 0, 9, 24},  // older: at 7; 4*(10-e)+20 <= 40 from e = 5
		{16, 2, true, 0, 0, 11},  // 4+30 <= 40
		{17, 1, true, 0, 0, 20},  // 30+10 <= 40
		{100, 4, true, 0, 0, 17}, // the window of 97
	})
}

// TestTraceSlidingWindow: 4 in windows of 10 ns.
func TestTraceSlidingWindow(t *testing.T) {
	replay(t, Config{Algorithm: SlidingWindow, Rate: 4, Period: 10}, []call{
		{8, 4, true, 0, 0, 12},
		{9, 1, false, 0, 4, 11}, // 4*(10-e) + 10 <= 40 from e = 2.5
		{12, 1, false, 0, 1, 8}, // 32+10 > 40
		{13, 1, true, 0, 0, 17}, // 28+10 <= 40
		{18, 2, true, 0, 0, 12}, // 8+30 <= 40
		{5, 1, false, 0, 15, 25},
		{18, 5, false, 0, Never, 12},
		{18, -1, false, 0, Never, 12},
		{20, 1, true, 0, 0, 20},   // 30+10 <= 40
		{11, 1, false, 0, 13, 29}, // older window: at 20; 3*(10-e)+20 <= 40 from e = 3.3
		{45, 1, true, 3, 0, 15},   // the window before is empty
		{41, 2, true, 1, 0, 19},   // older, same window
		{30, 1, true, 0, 0, 30},   // older window
		{30, 0, false, 0, 23, 30}, // 4*(10-e) + 10 <= 40 from e = 2.5
		{55, 2, true, 0, 0, 15},   // 20+20 <= 40
		{51, 1, false, 0, 7, 19},  // older in the same window: 36+30 > 40; 4*(10-e)+30 <= 40 from 7.5 is 58
		{59, 4, false, 1, 11, 11}, // 2*(10-e) + 40 <= 40 from the next window's end
		{70, 4, true, 0, 0, 20},
		{math.MaxInt64, 4, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
	})
}

// TestTraceSlidingLog: 3 in any 10 ns.
func TestTraceSlidingLog(t *testing.T) {
	replay(t, Config{Algorithm: SlidingLog, Rate: 3, Period: 10}, []call{
		{0, 1, true, 2, 0, 10},
		{4, 2, true, 0, 0, 10},
		{9, 1, false, 0, 1, 5},
		{9, 2, false, 0, 5, 5},
		{9, 4, false, 0, Never, 5},
		{9, -1, false, 0, Never, 5},
		{10, 1, true, 0, 0, 10}, // 0 no longer counts: 4 4 10
		{13, 0, false, 0, 1, 7},
		{14, 3, false, 2, 6, 6},
		{14, 2, true, 0, 0, 10},   // 10 14 14
		{12, 1, false, 0, 8, 12},  // older: all three are newer than 2
		{24, 1, true, 2, 0, 10},   // 24
		{20, 1, false, 0, 4, 14},  // older: 14 14 24 are newer than 10
		{50, 1, true, 2, 0, 10},   // 50
		{45, 1, true, 1, 0, 15},   // older: charged at 50, so 50 50
		{59, 2, false, 1, 1, 1},   // both count until 60
		{60, 3, true, 0, 0, 10},   // 60 60 60
		{-1, 1, false, 0, 70, 70}, // as 0
		{math.MaxInt64, 2, true, 1, 0, Never},
		{math.MaxInt64, 2, false, 1, Never, Never},
	})
}

// TestTraceInterval: 2 more at 4, 14, 24, and so on, up to 5.
func TestTraceInterval(t *testing.T) {
	replay(t, Config{Algorithm: TokenBucket, Interval: true, Rate: 2, Period: 10, Offset: 4, Burst: 5}, []call{
		{0, 4, true, 1, 0, 14},   // 4 missing: full after two refills
		{3, 2, false, 1, 1, 11},  // one more refill
		{3, 4, false, 1, 11, 11}, // two
		{3, 6, false, 1, Never, 11},
		{4, 3, true, 0, 0, 30},   // 3 at 4; 5 missing
		{0, 1, false, 0, 14, 34}, // older: judged after the refill of 4
		{13, 1, false, 0, 1, 21},
		{14, 1, true, 1, 0, 20}, // 4 missing
		{13, 1, true, 0, 0, 31}, // older: charged after the refill of 14; 5 missing
		{24, 2, true, 0, 0, 30}, // 5 missing again
		{53, 5, false, 4, 1, 1}, // refills at 34 and 44
		{54, 5, true, 0, 0, 30}, // 6 have come, 1 of them in vain
		{math.MaxInt64, 5, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
	})
	// A burst below the rate: a refill fills the bucket, and the rest is lost.
	replay(t, Config{Algorithm: TokenBucket, Interval: true, Rate: 7, Period: 10, Burst: 2}, []call{
		{5, 2, true, 0, 0, 5},
		{9, 1, false, 0, 1, 1},
		{10, 2, true, 0, 0, 10},
		{29, 1, true, 1, 0, 1},
	})
}

// TestTraceFirstCharge: 3 in 10 ns from the first charge on.
func TestTraceFirstCharge(t *testing.T) {
	replay(t, Config{Algorithm: FixedWindow, FirstCharge: true, Rate: 3, Period: 10}, []call{
		{12, 1, true, 2, 0, 10}, // the window of 12
		{12, 3, false, 2, 10, 10},
		{20, 2, true, 0, 0, 2},
		{21, 1, false, 0, 1, 1},
		{21, 4, false, 0, Never, 1},
		{22, 0, true, 3, 0, 0},    // over; and a peek begins no window
		{25, 3, true, 0, 0, 10},   // the window of 25
		{13, 1, false, 0, 22, 22}, // older: judged in the window of 25
		{34, 1, false, 0, 1, 1},
		{50, 1, true, 2, 0, 10}, // the window of 50
		{45, 1, true, 1, 0, 15}, // older: charged in it
		{59, 2, false, 1, 1, 1},
		{60, 3, true, 0, 0, 10},
		{-1, 1, false, 0, 70, 70}, // as 0
		{math.MaxInt64 - 10, 1, true, 2, 0, 10},
		{math.MaxInt64, 3, true, 0, 0, Never},
		{math.MaxInt64, 1, false, 0, Never, Never},
	})
}

// TestRefundOfWindows: the refunds of the window from the first charge and of the refill at
// intervals, which give back what counts and no more.
func TestRefundOfWindows(t *testing.T) {
	a := newFirstChargeWindow(Config{Period: 10}, 3)().(*firstChargeWindow)
	a.charge(12, 3)
	a.refund(15, 1)
	assert.False(t, a.admits(15, 2))
	assert.True(t, a.admits(15, 1))
	a.refund(11, 5) // older, and more than there is
	assert.True(t, a.idle(12))
	a.charge(5, 1) // older: no window before the last one
	assert.Equal(t, "12 1", a.start.String()+" "+a.count.String())
	a.refund(22, 1) // over
	assert.Equal(t, "1", a.count.String())

	b := newTokenInterval(Config{Rate: 2, Period: 10}, 5)().(*tokenInterval)
	b.charge(12, 5)
	b.refund(29, 1) // 3 of 5, after the refill of 20
	assert.Equal(t, "3", b.tokensAt(29).String())
	assert.Equal(t, "5", b.tokensAt(30).String())
	b.refund(35, 1) // full
	assert.Equal(t, "3", b.tokensAt(12).String())
	b.refund(12, 9) // older
	assert.Equal(t, "5", b.tokensAt(0).String())
}
