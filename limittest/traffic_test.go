package limittest

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// patterns are all patterns of some traffic against a limit.
func patterns(t Traffic, limit sluice.Limit) map[string]iter.Seq[Arrival] {
	return map[string]iter.Seq[Arrival]{
		"steady": t.Steady(), "poisson": t.Poisson(), "bursty": t.Bursty(20), "boundary": t.Boundary(limit),
		"flood": t.Flood(), "diurnal": t.Diurnal(10 * time.Second), "ramp": t.Ramp(10 * time.Second),
	}
}

var trafficStart = time.Date(2026, 11, 24, 12, 0, 0, 1, time.UTC)

func TestTraffic_All(t *testing.T) {
	traffic := Traffic{Seed: seeded.Rand(t).Uint64(), N: 5000, Start: trafficStart, Every: 10 * time.Millisecond, Keys: 3, MaxCost: 4}
	limit := sluice.Per(7, 100*time.Millisecond)
	other := traffic
	other.Seed++
	others := patterns(other, limit)
	for name, arrivals := range patterns(traffic, limit) {
		all := slices.Collect(arrivals)
		require.Len(t, all, 5000, name)
		assert.True(t, slices.Equal(all, slices.Collect(arrivals)), "%s: begun again", name)
		assert.True(t, slices.IsSortedFunc(all, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) }), name)
		assert.GreaterOrEqual(t, all[0].At, trafficStart.UnixNano())
		assert.Equal(t, name == "boundary", slices.Equal(all, slices.Collect(others[name])), "%s: of another seed", name)
		if name != "boundary" {
			assert.Equal(t, trafficStart.UnixNano(), all[0].At, name)
			span := time.Duration(all[4999].At - all[0].At).Seconds() // 50 s, with a standard deviation of 0.7 in most
			assert.InDelta(t, map[bool]float64{true: 35, false: 50}[name == "ramp"], span, 4, name)
		}
		keys, costs := map[string]int{}, map[int]int{}
		for _, a := range all {
			keys[a.Key]++
			costs[a.Cost]++
		}
		assert.Len(t, keys, map[bool]int{true: 5000, false: 3}[name == "flood"], name)
		if name == "boundary" {
			assert.Equal(t, map[int]int{1: 5000}, costs)
			continue
		}
		assert.Equal(t, []int{1, 2, 3, 4}, slices.Sorted(maps.Keys(costs)), name)
		for cost, n := range costs {
			assert.InDelta(t, 1250, n, 250, "%s: cost %d", name, cost)
		}
	}
}

func TestTraffic_Shapes(t *testing.T) {
	seed := seeded.Rand(t).Uint64()
	first := func(arrivals iter.Seq[Arrival], n int) (at []time.Duration) {
		for a := range arrivals {
			if at = append(at, time.Duration(a.At-trafficStart.UnixNano())); len(at) == n {
				break
			}
		}
		return at
	}
	traffic := Traffic{Seed: seed, Start: trafficStart}
	const ms = time.Millisecond
	assert.Equal(t, []time.Duration{0, ms, 2 * ms, 3 * ms}, first(traffic.Steady(), 4), "the zero Every")
	assert.Equal(t, []time.Duration{0, 0, 0, 3 * ms, 3 * ms, 3 * ms, 6 * ms}, first(traffic.Bursty(3), 7))
	assert.Equal(t, []time.Duration{0, ms}, first(traffic.Flood(), 2))

	// Of a day, the middle half has 1/2 + 1/pi, 82 %.
	traffic.Every, traffic.Start = ms, time.Unix(0, 0)
	middle := 0
	for a := range (Traffic{Seed: seed, N: 10_000, Every: ms}).Diurnal(time.Second) {
		if part := a.At % 1e9; 250e6 <= part && part < 750e6 {
			middle++
		}
	}
	assert.InDelta(t, 8183, middle, 200)

	// While it rises, a ramp has had a quarter of them half of the time ago.
	early, late := 0, 0
	for a := range (Traffic{Seed: seed, Every: ms}).Ramp(5 * time.Second) {
		if a.At >= 10e9 {
			break
		}
		if a.At < 5e9 {
			early++
		} else {
			late++
		}
	}
	assert.InDelta(t, 2500, early, 300)
	assert.InDelta(t, 7500, late, 500)

	// Half of the times of a Poisson process are below ln 2 of their mean.
	short, last := 0, int64(0)
	for a := range (Traffic{Seed: seed, N: 10_001, Every: ms}).Poisson() {
		if a.At-last < 693_147 {
			short++
		}
		last = a.At
	}
	assert.InDelta(t, 5000, short, 300)
}

func TestTraffic_BoundaryAttacksEachWindow(t *testing.T) {
	limit := sluice.PerSecond(2)
	got := slices.Collect(Traffic{N: 9, Start: trafficStart, Keys: 2}.Boundary(limit))
	b := trafficStart.Truncate(time.Second).UnixNano() + 2e9
	want := []Arrival{
		{b - 1, "key-0", 1}, {b - 1, "key-0", 1}, {b, "key-0", 1}, {b, "key-0", 1},
		{b + 2e9 - 1, "key-1", 1}, {b + 2e9 - 1, "key-1", 1}, {b + 2e9, "key-1", 1}, {b + 2e9, "key-1", 1},
		{b + 4e9 - 1, "key-0", 1},
	}
	assert.Equal(t, want, got)

	month := slices.Collect(Traffic{N: 3, Start: time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)}.Boundary(sluice.PerCalendar(1, sluice.Calendar{Unit: sluice.CalendarMonth})))
	edges := []int64{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano(), time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC).UnixNano()}
	assert.Equal(t, []int64{edges[0] - 1, edges[0], edges[1] - 1}, []int64{month[0].At, month[1].At, month[2].At})

	// It is what a fixed window admits most of.
	clock := sluice.NewManualClock(trafficStart)
	lim := sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.FixedWindow, Limit: limit, Clock: clock}))
	for _, a := range got {
		clock.Set(time.Unix(0, a.At))
		assert.True(t, lim.Allow(a.Key), a)
	}
}

// TestTraffic_EndsWithTime: a sequence without an N ends at the last nanosecond.
func TestTraffic_EndsWithTime(t *testing.T) {
	traffic := Traffic{Start: time.Unix(0, math.MaxInt64-10e9), Every: time.Second}
	for name, arrivals := range patterns(traffic, sluice.PerSecond(1)) {
		n := 0
		for a := range arrivals {
			n++
			require.Less(t, a.At, int64(math.MaxInt64), name)
		}
		assert.Less(t, n, 100, name)
		if name != "boundary" {
			assert.Positive(t, n, name)
		}
	}
	traffic.Every = math.MaxInt64
	for name, arrivals := range patterns(traffic, sluice.Per(1, math.MaxInt64)) {
		for range arrivals {
			break
		}
		assert.LessOrEqual(t, len(slices.Collect(arrivals)), 20, name)
	}
}

func TestTraffic_RefusesWhatCannotBe(t *testing.T) {
	for _, traffic := range []Traffic{{N: -1}, {Every: -1}, {Keys: -1}, {MaxCost: -1}} {
		assert.Panics(t, func() { traffic.Steady() })
		assert.Panics(t, func() { traffic.Boundary(sluice.PerSecond(1)) })
	}
	assert.PanicsWithValue(t, "limittest: Traffic.Bursty: size is 0; want a positive one", func() { Traffic{}.Bursty(0) })
	assert.Panics(t, func() { Traffic{}.Diurnal(0) })
	assert.Panics(t, func() { Traffic{}.Ramp(-1) })
	assert.Panics(t, func() { Traffic{}.Boundary(sluice.DenyAll) })
}
