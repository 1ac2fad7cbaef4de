package sluice

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// edgy draws a number from 1 to 2^63-1, of any magnitude, often next to a power
// of two.
func edgy(rng *rand.Rand) int64 {
	n := rng.Int64() >> rng.IntN(63)
	if rng.IntN(2) == 0 {
		n = int64(1)<<rng.IntN(63) + int64(rng.IntN(5)) - 2
	}
	return max(1, n)
}

func TestSchedule_TicksAreExact(t *testing.T) {
	rng := seeded.Rand(t)
	checked := 0
	for range depth.Ops() {
		rate, period := int64(edgy(rng)), edgy(rng)
		l := Limit{Rate: int(min(rate, math.MaxInt-1)), Period: time.Duration(period), Burst: 1}
		s, err := newSchedule(l)
		if err != nil {
			continue
		}
		checked++
		for _, now := range []int64{0, edgy(rng), math.MaxInt64 - edgy(rng), s.end} {
			checkSchedule(t, &s, int64(l.Rate), period, now)
		}
	}
	require.Greater(t, checked, depth.Ops()/4)
}

// TestSchedule_ArrivalsMoveByLessThanOneNanosecond: a tick is at most 1 ns, and an
// arrival is judged at the tick before it.
func TestSchedule_ArrivalsMoveByLessThanOneNanosecond(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() / 10 {
		s, err := newSchedule(Limit{Rate: 1 + rng.IntN(math.MaxInt32-1), Period: time.Duration(edgy(rng)), Burst: 1})
		if err != nil {
			continue
		}
		require.GreaterOrEqual(t, s.num, s.den, "a tick is longer than 1 ns")
		now := rng.Int64N(s.end)
		require.Greater(t, s.tick(now+1), s.tick(now), "two arrivals 1 ns apart share a tick")
	}
}

func TestSchedule_WholeIntervalIsIdentity(t *testing.T) {
	for _, l := range []Limit{PerSecond(1), PerSecond(1000), PerMinute(20), PerSecond(1_000_000_000), PerDay(1)} {
		s, err := newSchedule(l)
		require.Nil(t, err)
		for _, now := range []int64{0, 1, start.UnixNano(), math.MaxInt64 - 2} {
			require.Equal(t, uint64(now), s.tick(now), "%v", l)
		}
	}
}

func TestSchedule_RefusesWhatDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		field string
	}{
		{Limit{Rate: 1, Period: math.MaxInt64, Burst: 2}, "Limit.Burst"},
		{Limit{Rate: 1, Period: 100 * 365 * day, Burst: 3}, "Limit.Burst"},
		{Limit{Rate: 5, Period: 1}, "Limit.Rate"},
		{Limit{Rate: math.MaxInt32 - 1, Period: 100}, "Limit.Rate"},
		{Limit{Rate: math.MaxInt - 1, Period: 1, Burst: 1}, "Limit.Rate"},
	} {
		_, err := newSchedule(c.limit)
		require.NotNil(t, err, "%v", c.limit)
		require.Equal(t, c.field, err.Field)
	}
	for _, l := range []Limit{
		{Rate: 1, Period: maxBurst, Burst: 1},
		{Rate: 1, Period: 73 * 365 * day, Burst: 2},
		{Rate: 4, Period: 1},
		{Rate: math.MaxInt32 - 1, Period: math.MaxInt32/4 + 1},
	} {
		_, err := newSchedule(l)
		require.Nil(t, err, "%v", l)
	}
}

// TestSchedule_AdoptsNothingOfAKeyThatIsFresh, and of another one what it owes, rounded up.
func TestSchedule_AdoptsNothingOfAKeyThatIsFresh(t *testing.T) {
	old, err := newSchedule(PerSecond(3).WithBurst(5))
	require.Nil(t, err)
	next, err := newSchedule(PerMinute(7).WithBurst(5))
	require.Nil(t, err)
	now := start.UnixNano()
	for _, full := range []uint64{0, old.tick(now) - 1, old.tick(now)} {
		require.Zero(t, next.adopt(&old, full, now))
	}
	require.Equal(t, next.tick(now)+next.unit, next.adopt(&old, old.tick(now)+old.unit, now), "one unit is one unit")
	require.Equal(t, next.tick(now)+(next.unit-1)/old.unit+1, next.adopt(&old, old.tick(now)+1, now), "and a tick not less")
}
