package oracle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A shift is a row of a trace with changes of the limit: the limit that is set, if there is
// one, then units charged, and what a look at one unit must say.
type shift struct {
	now           int64
	set           *Config
	units         int64
	left, resetIn int64
}

// playShifts plays the rows by changes of the limit of all, and by changes of the key's.
func playShifts(t *testing.T, c Config, rows []shift) {
	t.Helper()
	for _, own := range []bool{false, true} {
		m := New(c)
		if c.Algorithm == SlidingLog {
			m.largest = 100 // of a limiter that has had a larger limit
		}
		for i, w := range rows {
			if w.set != nil {
				to := *w.set
				to.Algorithm, to.FirstCharge, to.Interval, to.Grid = c.Algorithm, c.FirstCharge, c.Interval, c.Grid
				if own {
					m.SetKeyLimit("k", w.now, to)
				} else {
					m.SetLimit(w.now, to)
				}
			}
			if w.units > 0 {
				assert.True(t, m.Take("k", w.now, w.units).Allowed, "row %d: %+v", i, w)
			}
			d := m.Peek("k", w.now, 0)
			assert.Equal(t, [2]int64{w.left, w.resetIn}, [2]int64{d.Remaining, d.ResetAfter}, "own %v, row %d: %+v", own, i, w)
		}
	}
}

var unlimited, denyAll = &Config{Rate: math.MaxInt64}, &Config{}

func TestChangeFamily(t *testing.T) {
	for _, a := range family {
		playShifts(t, Config{Algorithm: a, Rate: 2, Period: 10, Burst: 3, Grid: true}, []shift{
			{now: 100, units: 3, left: 0, resetIn: 15},
			{now: 105, set: &Config{Rate: 1, Period: 10, Burst: 2}, left: 0, resetIn: 20}, // 2 units
			{now: 115, left: 1, resetIn: 10},
			{now: 115, set: unlimited, units: 1000, left: math.MaxInt64},
			{now: 120, set: &Config{Rate: 2, Period: 10, Burst: 3}, left: 2, resetIn: 3}, // half a unit, 2.5 ns
			{now: 120, set: &Config{Rate: 2, Period: 10, Burst: 100}, units: 50, left: 49, resetIn: 253},
			{now: 120, set: &Config{Rate: 2, Period: 10, Burst: 3}, left: 0, resetIn: 253},
			{now: 220, set: denyAll, left: 0},
			{now: 340, set: &Config{Rate: 2, Period: 10, Burst: 3}, left: 0, resetIn: 33},
			{now: 373, set: &Config{Rate: 1, Period: 1000}, left: 1},
		})
	}
}

func TestChangeFixedWindow(t *testing.T) {
	playShifts(t, Config{Algorithm: FixedWindow, Rate: 3, Period: 10}, []shift{
		{now: 12, units: 3, left: 0, resetIn: 8},
		{now: 13, set: &Config{Rate: 5, Period: 10}, left: 2, resetIn: 7},
		{now: 13, set: &Config{Rate: 2, Period: 10}, left: 0, resetIn: 7},
		{now: 14, set: &Config{Rate: 4, Period: 15}, left: 1, resetIn: 1},
		{now: 14, set: &Config{Rate: 4, Period: 10, Offset: 3}, left: 1, resetIn: 9},
		{now: 23, set: &Config{Rate: 4, Period: 1000}, left: 4},
	})
	playShifts(t, Config{Algorithm: FixedWindow, FirstCharge: true, Rate: 3, Period: 10}, []shift{
		{now: 12, units: 3, left: 0, resetIn: 10},
		{now: 14, set: &Config{Rate: 4, Period: 5}, left: 1, resetIn: 3},
		{now: 15, set: &Config{Rate: 4, Period: 2}, left: 1, resetIn: 2}, // begun anew
		{now: 16, set: &Config{Rate: 2, Period: 20}, left: 0, resetIn: 19},
		{now: 35, set: &Config{Rate: 2, Period: 1000}, left: 2},
	})
}

func TestChangeSlidingWindow(t *testing.T) {
	playShifts(t, Config{Algorithm: SlidingWindow, Rate: 4, Period: 10}, []shift{
		{now: 12, units: 4, left: 0, resetIn: 18},
		{now: 24, set: &Config{Rate: 6, Period: 10}, left: 3, resetIn: 6}, // 2.4 of 4
		{now: 24, set: &Config{Rate: 4, Period: 7}, left: 1, resetIn: 11}, // 3 in [21, 28)
		{now: 31, left: 2, resetIn: 4},                                    // 3*4/7
	})
}

func TestChangeSlidingLog(t *testing.T) {
	playShifts(t, Config{Algorithm: SlidingLog, Rate: 3, Period: 10}, []shift{
		{now: 12, units: 2, left: 1, resetIn: 10},
		{now: 15, units: 1, left: 0, resetIn: 10},
		{now: 16, set: &Config{Rate: 2, Period: 4}, left: 1, resetIn: 3},
		{now: 17, set: &Config{Rate: 5, Period: 10}, left: 4, resetIn: 8}, // of 12 no more
		{now: 25, set: &Config{Rate: 5, Period: 1000}, left: 5},
	})
}

func TestChangeInterval(t *testing.T) {
	playShifts(t, Config{Algorithm: TokenBucket, Interval: true, Rate: 2, Period: 10, Burst: 5}, []shift{
		{now: 12, units: 5, left: 0, resetIn: 28},
		{now: 13, set: &Config{Rate: 1, Period: 10, Burst: 6}, left: 1, resetIn: 47},
		{now: 14, set: &Config{Rate: 1, Period: 7, Burst: 6}, left: 1, resetIn: 35},
		{now: 21, set: &Config{Rate: 3, Period: 7, Burst: 3}, left: 0, resetIn: 14},
	})
}

// TestChangeOfSomeKeys: a key with a limit of its own does not follow the others'.
func TestChangeOfSomeKeys(t *testing.T) {
	two, five, nine := Config{Algorithm: FixedWindow, Rate: 2, Period: 10}, Config{Algorithm: FixedWindow, Rate: 5, Period: 10}, Config{Algorithm: FixedWindow, Rate: 9, Period: 10}
	m := New(two)
	m.Take("a", 12, 2)
	m.Take("b", 12, 1)
	m.SetKeyLimit("a", 12, five)
	m.SetLimit(12, nine)
	assert.Equal(t, [2]int64{3, 8}, [2]int64{m.Peek("a", 12, 0).Remaining, m.Peek("b", 12, 0).Remaining})
	m.ClearKeyLimit("b", 12)
	m.ClearKeyLimit("a", 12)
	assert.Equal(t, [2]int64{7, 8}, [2]int64{m.Peek("a", 12, 0).Remaining, m.Peek("b", 12, 0).Remaining})
}

// TestPenalties: denials count, and under a limit with a block they block for 30 ns,
// whatever the limit.
func TestPenalties(t *testing.T) {
	c := Config{Algorithm: FixedWindow, Rate: 2, Period: 10, CountDenied: true}
	m := New(c)
	m.Take("k", 12, 1)
	assert.Equal(t, Decision{Limit: 2, RetryAfter: 8, ResetAfter: 8}, m.Take("k", 12, 2), "the denial filled the window")
	c.Rate, c.BlockFor = 1, 30
	m.SetLimit(14, c)
	assert.Equal(t, Decision{Limit: 1, RetryAfter: 30, ResetAfter: 30}, m.Take("k", 14, 1))
	m.Refund("k", 15, 1)
	c.Rate = 7
	m.SetLimit(16, c)
	assert.Equal(t, Decision{Limit: 7, RetryAfter: 27, ResetAfter: 27}, m.Take("k", 17, 1))
	assert.True(t, m.Take("k", 44, 7).Allowed)
	assert.True(t, m.Block("k", 45, 1))
	assert.Equal(t, int64(5), m.Peek("k", 45, 1).RetryAfter, "no less than it would take")
	m.Unblock("k")
	assert.True(t, m.Take("k", 45, 7).Allowed)
	m.SetLimit(45, *unlimited)
	assert.True(t, m.Block("k", 45, 1))
	assert.Equal(t, int64(5), m.Peek("k", 45, 1).RetryAfter, "units come back as before")
}

// TestBlocksThroughChanges: a block stays, one that is over is forgotten.
func TestBlocksThroughChanges(t *testing.T) {
	c := Config{Rate: 2, Period: 10}
	m := New(c)
	m.Block("k", 100, 10)
	m.SetLimit(105, *unlimited)
	assert.Equal(t, Decision{Limit: math.MaxInt64, RetryAfter: 5, ResetAfter: 5}, m.Take("k", 105, 7))
	assert.True(t, m.Blocked("k", 105))
	assert.False(t, m.Idle("k", 105))
	m.SetLimit(106, c)
	assert.True(t, m.Blocked("k", 109))
	assert.False(t, m.Blocked("k", 110))
	assert.True(t, m.Blocked("k", 109), "an older time")
	c.Rate = 3
	m.SetLimit(110, c)
	assert.False(t, m.Blocked("k", 109))
}

// TestBlockUnderDenyAll: it is remembered.
func TestBlockUnderDenyAll(t *testing.T) {
	c := Config{Rate: 2, Period: 10}
	m := New(*denyAll)
	assert.True(t, m.Block("k", 100, 50))
	assert.False(t, m.Block("k", 100, 0))
	m.SetKeyLimit("k", 100, c)
	assert.True(t, m.Blocked("k", 149))
	assert.False(t, m.Blocked("k", 150))
	m.Unblock("k")
	m.SetKeyLimit("k", 100, *denyAll)
	assert.True(t, m.Block("k", 100, 50))
	m.ClearKeyLimit("k", 101) // to DenyAll again, with the key's base
	assert.False(t, m.Blocked("k", 101), "by a block")
	assert.True(t, m.Block("other", 101, 50))
	m.SetLimit(102, c)
	assert.True(t, m.Blocked("k", 102))
	assert.True(t, m.Blocked("other", 102))
}
