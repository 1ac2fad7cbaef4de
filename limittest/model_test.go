package limittest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestModel_IsTheLimiter: with each algorithm and each thing that a model knows, call by call.
func TestModel_IsTheLimiter(t *testing.T) {
	rng := seeded.Rand(t)
	limit := sluice.Per(5, 7*time.Second)
	for _, c := range []sluice.Config{
		{Limit: limit.WithBurst(9)},
		{Algorithm: sluice.TokenBucket, Limit: limit},
		{Algorithm: sluice.TokenBucketInterval, Limit: limit.WithBurst(8), Offset: time.Second},
		{Algorithm: sluice.LeakyBucket, Limit: limit},
		{Algorithm: sluice.SlidingWindow, Limit: limit, CountDenied: true},
		{Algorithm: sluice.SlidingLog, Limit: limit, BlockFor: 10 * time.Second},
		{Algorithm: sluice.FixedWindow, Limit: limit, Offset: 3 * time.Second},
		{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(90, sluice.Calendar{Unit: sluice.CalendarDay, Zone: "America/New_York"})},
		{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(90, sluice.Calendar{Unit: sluice.CalendarWeek, Zone: "Asia/Seoul", Day: 7})},
		{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(90, sluice.Calendar{Unit: sluice.CalendarMonth, Day: 15})},
		{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(90, sluice.Calendar{Unit: sluice.CalendarQuarter, Month: time.December})},
		{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(90, sluice.Calendar{Unit: sluice.CalendarYear, Month: time.April, Day: 6})},
		{Algorithm: sluice.FixedWindowFirstCharge, Limit: limit},
		{Limit: sluice.Unlimited}, {Limit: sluice.DenyAll},
	} {
		clock := sluice.NewManualClock(time.Unix(1e9, 0))
		c.Clock = clock
		lim := sluice.Must(sluice.New(c))
		var model Limiter = must(NewModel(c))
		traffic := Traffic{Seed: rng.Uint64(), N: depth.Of(300, 1_000, 20_000), Start: time.Unix(1e9, 0), Every: time.Second, Keys: 2, MaxCost: 4}
		if c.Limit.Rate == 90 { // of a calendar
			traffic.Every = c.Limit.Period / 60
		}
		admitted := 0
		for a := range traffic.Poisson() {
			clock.Set(time.Unix(0, a.At))
			require.Equal(t, model.(*Model).Peek(a.At, a.Key, a.Cost), lim.Key(a.Key).Peek(a.Cost), "%+v: %+v", c, a)
			want := model.Take(a.At, a.Key, a.Cost)
			require.Equal(t, want, lim.Take(a.Key, a.Cost), "%+v: %+v", c, a)
			if want.Allowed {
				admitted++
			}
			switch rng.IntN(50) {
			case 0:
				lim.Key(a.Key).Refund(2)
				model.(*Model).Refund(a.At, a.Key, 2)
			case 1:
				lim.Key(a.Key).Reset()
				model.(*Model).Reset(a.Key)
			}
		}
		assert.True(t, admitted > 0 == (c.Limit.Rate > 0), "%+v", c)
	}
}

func must(m *Model, err error) *Model {
	if err != nil {
		panic(err)
	}
	return m
}

func TestModel_WorstCaseIsTheLimiters(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Of(300, 1_000, 20_000) {
		c := randomConfig(rng)
		c.Soft = 0
		lim, model := sluice.Must(sluice.New(c)), must(NewModel(c))
		for range 5 {
			d := time.Duration(rng.Int64N(1<<(1+rng.IntN(62)))) - 1
			require.Equal(t, lim.WorstCase(d), model.WorstCase(d), "%+v within %d", c, d)
		}
	}
	assert.Equal(t, math.MaxInt, must(NewModel(sluice.Config{Limit: sluice.Unlimited})).WorstCase(0))
	assert.Equal(t, 0, must(NewModel(sluice.Config{Limit: sluice.DenyAll})).WorstCase(1))
}

func TestNewModel_RefusesWhatItDoesNotKnow(t *testing.T) {
	limit := sluice.PerSecond(1)
	for field, c := range map[string]sluice.Config{
		"Shadow":       {Limit: limit, Shadow: true},
		"Soft":         {Limit: limit, Soft: 1},
		"TopDenied":    {Limit: limit, TopDenied: 1},
		"CountDenied":  {Limit: limit, CountDenied: true},
		"Limit.Period": {Limit: sluice.Limit{Rate: 1}},
		"Algorithm":    {Limit: limit, Algorithm: 9},
	} {
		m, err := NewModel(c)
		var e *sluice.ConfigError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, field, e.Field)
		assert.Contains(t, e.Reason, "want")
		assert.Nil(t, m)
	}
}
