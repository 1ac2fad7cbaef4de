package sluice

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // so that every machine has the same zones

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// monthly is a calendar that begins months on a day in a zone with summer time.
var monthly = Calendar{Unit: CalendarMonth, Zone: "America/New_York", Day: 15}

// A dated is a calendar and its model. The clocks of these zones are never set back over midnight.
type dated struct {
	calendar Calendar
	model    *oracle.Calendar
}

var dateds = func() (all []dated) {
	every := func(time.Time) bool { return true }
	for _, c := range []struct {
		calendar Calendar
		begins   func(date time.Time) bool
	}{
		{Calendar{Unit: CalendarDay, Zone: "America/New_York"}, every},
		{Calendar{Unit: CalendarDay, Zone: "Australia/Lord_Howe"}, every},
		{Calendar{Unit: CalendarWeek, Zone: "Europe/Berlin"}, func(d time.Time) bool { return d.Weekday() == time.Monday }},
		{monthly, func(d time.Time) bool { return d.Day() == 15 }},
		{Calendar{Unit: CalendarMonth, Zone: "Asia/Seoul"}, func(d time.Time) bool { return d.Day() == 1 }},
		{Calendar{Unit: CalendarQuarter, Month: time.February}, func(d time.Time) bool { return d.Day() == 1 && d.Month()%3 == 2 }},
		{Calendar{Unit: CalendarYear, Zone: "Europe/London", Month: time.April, Day: 6}, func(d time.Time) bool { return d.Day() == 6 && d.Month() == time.April }},
	} {
		zone, err := time.LoadLocation(c.calendar.Zone)
		if err != nil {
			panic(err)
		}
		all = append(all, dated{c.calendar, &oracle.Calendar{Zone: zone, Begins: c.begins}})
	}
	return all
}()

// plainWindow stands for the limit of a period of some days.
var plainWindow = dated{}

func (d dated) limit(n int) Limit {
	if d.model == nil {
		return Per(n, 20*day)
	}
	return PerCalendar(n, d.calendar)
}

func (d dated) oracle(n int, c Config) oracle.Config {
	return oracle.Config{
		Algorithm: oracle.FixedWindow, Rate: int64(n), Period: int64(d.limit(n).Period), Calendar: d.model,
		BlockFor: int64(c.BlockFor), CountDenied: c.CountDenied, BlockEnd: int64(endless),
	}
}

func requireModel(t *testing.T, want oracle.Decision, got Decision, what string, args ...any) {
	t.Helper()
	require.Equal(t, Decision{
		Allowed: want.Allowed, Limit: int(want.Limit), Remaining: int(want.Remaining),
		RetryAfter: time.Duration(want.RetryAfter), ResetAfter: time.Duration(want.ResetAfter),
	}, got, what, args)
}

// datedGap draws how far time moves on: often to an edge, to the nanosecond, and sometimes by centuries.
func datedGap(rng *rand.Rand, c Calendar, now int64) int64 {
	begins, ends, err := c.Window(time.Unix(0, now))
	if err != nil {
		panic(err)
	}
	edge := ends.UnixNano() - now
	gaps := []int64{0, 0, 0, 1, edge - 1, edge, edge, edge + 1, rng.Int64N(ends.UnixNano()-begins.UnixNano()) + 1, rng.Int64N(int64(800 * day)), int64(23 * time.Hour)}
	if rng.IntN(40) == 0 {
		gaps = []int64{rng.Int64N(1 << 62)}
	}
	return gaps[rng.IntN(len(gaps))]
}

// TestCalendar_AgainstTheModel: takes, peeks, debits, refunds, resets, older times, changes between calendars and to windows of a
// period, snapshots and sweeps, with and without penalties.
func TestCalendar_AgainstTheModel(t *testing.T) {
	rng := seeded.Rand(t)
	for round := range 60 {
		of := dateds[round%len(dateds)]
		config := Config{Algorithm: FixedWindow, Hash: HashStable, CountDenied: round%3 == 1}
		if round%5 == 4 {
			config.BlockFor = 40 * day
		}
		n := 1 + rng.IntN(20)
		config.Limit = of.limit(n)
		at := traceStart(rng)
		clock := NewManualClock(time.Unix(0, at))
		config.Clock = clock
		l := mustNew(t, config)
		model := oracle.New(of.oracle(n, config))
		for range 150 {
			if gap := datedGap(rng, of.pick(), at); gap <= math.MaxInt64-at {
				at += gap
			}
			clock.Set(time.Unix(0, at))
			name := []string{"a", "b"}[rng.IntN(2)]
			k, cost := l.Key(name), []int{0, 1, 1, 1, 2, n, n + 1, 1 + rng.IntN(n)}[rng.IntN(8)]
			now := at
			forgets := round%2 == 0 // idle keys, and then an older time is judged as at the time of that
			if !forgets && rng.IntN(6) == 0 {
				now = max(0, at-rng.Int64N(int64(70*day)))
			}
			switch rng.IntN(14) {
			case 0:
				if forgets {
					l.Sweep()
				}
			case 1:
				model.Refund(name, at, int64(cost))
				k.Refund(cost)
			case 2:
				requireModel(t, model.Debit(name, at, int64(cost)), k.Debit(cost), "debit %d", cost)
			case 3:
				requireModel(t, model.Peek(name, now, int64(cost)), k.PeekAt(now, cost), "peek %d at %d of %v", cost, now, of)
			case 4:
				if forgets && rng.IntN(3) == 0 {
					of, n = append(dateds, plainWindow)[rng.IntN(len(dateds)+1)], 1+rng.IntN(20)
					require.NoError(t, l.SetLimit(of.limit(n)))
					model.SetLimit(at, of.oracle(n, config))
				}
			case 5:
				if rng.IntN(3) == 0 {
					model.Reset(name)
					k.Reset()
				}
			case 6:
				if forgets && rng.IntN(3) == 0 {
					l = goneOn(t, l, config, of.limit(n))
				}
			default:
				requireModel(t, model.Take(name, now, int64(cost)), k.TakeAt(now, cost), "take %d at %d of %v", cost, now, of)
			}
		}
	}
}

func (d dated) pick() Calendar {
	if d.model == nil {
		return monthly
	}
	return d.calendar
}

// traceStart is mostly in our years, and sometimes at an end of time.
func traceStart(rng *rand.Rand) int64 {
	starts := []int64{0, start.UnixNano(), start.UnixNano(), start.UnixNano() + rng.Int64N(int64(400*day)), rng.Int64(), math.MaxInt64 - int64(100*day)}
	return starts[rng.IntN(len(starts))]
}

// goneOn is a limiter that has gone on from a snapshot of l.
func goneOn(t *testing.T, l *Limiter, config Config, limit Limit) *Limiter {
	var b bytes.Buffer
	require.NoError(t, l.Snapshot(&b))
	config.Limit = limit
	next := mustNew(t, config)
	require.NoError(t, next.Restore(&b))
	return next
}

// TestCalendar_SnapshotOfAnotherCalendar: spent units count on, in the window of the calendar that the limiter has now, and a key's
// own calendar comes along.
func TestCalendar_SnapshotOfAnotherCalendar(t *testing.T) {
	clock := NewManualClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	config := Config{Algorithm: FixedWindow, Hash: HashStable, Clock: clock, Limit: PerCalendar(10, monthly)}
	l := mustNew(t, config)
	l.Take("a", 4)
	own := PerCalendar(7, Calendar{Unit: CalendarYear, Zone: "Asia/Seoul"})
	require.NoError(t, l.Key("b").SetLimit(own))
	l.Take("b", 3)
	var b bytes.Buffer
	require.NoError(t, l.Snapshot(&b))
	file := b.Bytes()
	config.Limit = PerCalendar(10, Calendar{Unit: CalendarDay, Zone: "Asia/Seoul"})
	next := mustNew(t, config)
	require.NoError(t, next.Restore(bytes.NewReader(file)))
	require.Equal(t, 6, next.Key("a").Peek(0).Remaining)
	require.Equal(t, 3*time.Hour, next.Key("a").Peek(0).ResetAfter, "to midnight in Seoul")
	require.Equal(t, own, next.Key("b").Limit())
	require.Equal(t, time.Date(2026, 12, 31, 15, 0, 0, 0, time.UTC), time.Unix(0, clock.Now()).UTC().Add(next.Key("b").Peek(0).ResetAfter))

	// A zone that is not there, in a snapshot that somebody has made.
	at := bytes.Index(file, []byte("America/New_York"))
	file[at] = 'X'
	require.ErrorIs(t, mustNew(t, config).Restore(bytes.NewReader(file)), ErrBadSnapshot)
}

// TestCalendar_OtherAlgorithmsRefuse it, wherever a limit comes from.
func TestCalendar_OtherAlgorithmsRefuse(t *testing.T) {
	limit := PerCalendar(1000, monthly)
	for a := GCRA; a <= InFlight; a++ {
		c := Config{Algorithm: a, Limit: PerDay(5)}
		if a == FixedWindow {
			require.NoError(t, mustNew(t, c).SetLimit(limit))
			continue
		}
		want := fmt.Sprintf(`sluice: Limit: "1000 per month in America/New_York starting 15" with %v, which knows no calendar; want Algorithm: FixedWindow, or a limit such as sluice.PerDay(1000)`, a)
		l := mustNew(t, c)
		require.EqualError(t, l.SetLimit(limit), want)
		require.EqualError(t, l.Key("k").SetLimit(limit), want)
		_, err := l.Key("k").WithLimit(limit)
		require.EqualError(t, err, want)
		c.Limit = limit
		_, err = New(c)
		require.EqualError(t, err, want)
		c.Limit.Rate = 0
		_, err = New(c)
		require.ErrorContains(t, err, "knows no calendar")
	}
}

func TestCalendar_ConfigErrors(t *testing.T) {
	for want, c := range map[string]Config{
		`sluice: Offset: 1h0m0s with the limit "5 per day in UTC", whose calendar says where windows begin; want 0`:                                 {Limit: PerCalendar(5, Calendar{Unit: CalendarDay}), Offset: time.Hour},
		"sluice: Limit: a calendar has no unit 0; want day, week, month, quarter or year":                                                           {Limit: PerCalendar(5, Calendar{Zone: "UTC"})},
		"sluice: Limit: a calendar has no unit 9; want day, week, month, quarter or year":                                                           {Limit: PerCalendar(5, Calendar{Unit: 9})},
		"sluice: Limit: a month cannot begin on day 31, which not every month has; want 1 to 28":                                                    {Limit: PerCalendar(5, Calendar{Unit: CalendarMonth, Day: 31})},
		"sluice: Limit: a month cannot begin on day -1, which not every month has; want 1 to 28":                                                    {Limit: PerCalendar(5, Calendar{Unit: CalendarMonth, Day: -1})},
		"sluice: Limit: a month cannot begin in month 4; want a unit of quarter or year with it, or none":                                           {Limit: PerCalendar(5, Calendar{Unit: CalendarMonth, Month: 4})},
		"sluice: Limit: a year cannot begin in month 13; want 1 to 12":                                                                              {Limit: PerCalendar(5, Calendar{Unit: CalendarYear, Month: 13})},
		"sluice: Limit: a week cannot begin on day 8; want 1 for Monday to 7 for Sunday":                                                            {Limit: PerCalendar(5, Calendar{Unit: CalendarWeek, Day: 8})},
		"sluice: Limit: a day cannot begin on day 2; want a unit of month, quarter or year with it, or none":                                        {Limit: PerCalendar(5, Calendar{Unit: CalendarDay, Day: 2})},
		`sluice: Limit: there is no time zone "Mars"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`:                                {Limit: PerCalendar(5, Calendar{Unit: CalendarDay, Zone: "Mars"})},
		`sluice: Limit: the time zone "Local" is another one on each machine; want a name such as "Asia/Seoul" or "UTC"`:                            {Limit: PerCalendar(5, Calendar{Unit: CalendarDay, Zone: "Local"})},
		`sluice: Limit: the name of the time zone has 41 bytes; want at most 40, as in "Asia/Seoul"`:                                                {Limit: PerCalendar(5, Calendar{Unit: CalendarDay, Zone: strings.Repeat("x", 41)})},
		fmt.Sprintf("sluice: Limit.Rate: %d with a calendar, of which nothing would come back; want Unlimited, or a rate below %[1]d", math.MaxInt): {Limit: PerCalendar(math.MaxInt, Calendar{Unit: CalendarDay})},
		"sluice: Limit.Burst: 3 with fixed-window; a window algorithm admits at most the rate at once, want 0 or 5":                                 {Limit: PerCalendar(5, Calendar{Unit: CalendarDay}).WithBurst(3)},
		"sluice: Limit.Rate: -1 is negative; want units per period, or 0 to deny everything":                                                        {Limit: PerCalendar(-1, Calendar{Unit: CalendarDay})},
	} {
		c.Algorithm = FixedWindow
		_, err := New(c)
		require.EqualError(t, err, want)
	}
	l := PerCalendar(5, monthly)
	l.Period = time.Hour
	_, err := New(Config{Algorithm: FixedWindow, Limit: l})
	require.EqualError(t, err, "sluice: Limit.Period: 1h0m0s with a calendar, which says how long windows are; want the limit as PerCalendar makes it")
	if math.MaxInt == math.MaxInt64 {
		most := math.MaxInt >> 12 // 51 bits
		_, err = New(Config{Algorithm: FixedWindow, Limit: PerCalendar(most+1, monthly)})
		require.EqualError(t, err, fmt.Sprintf("sluice: Limit.Rate: %d: the count leaves too few of 64 bits for the number of the window; want at most %d", most+1, most))
		full := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(most, monthly)})
		require.True(t, full.AllowN("k", most))
		require.False(t, full.Allow("k"))
	}
}

// TestCalendar_LimitsAreValues: equal where they mean the same, in text and back, and shared among replicas.
func TestCalendar_LimitsAreValues(t *testing.T) {
	require.Equal(t, PerCalendar(5, Calendar{Unit: CalendarDay}), PerCalendar(5, Calendar{Unit: CalendarDay, Zone: "UTC", Month: time.January, Day: 1}))
	again := PerCalendar(5, monthly)
	require.True(t, PerCalendar(5, monthly) == again)
	require.False(t, PerCalendar(5, monthly) == PerCalendar(5, Calendar{Unit: CalendarMonth, Zone: "America/New_York"}))
	require.Equal(t, Calendar{}, PerDay(5).Calendar())
	require.Equal(t, Calendar{CalendarMonth, "America/New_York", time.January, 15}, PerCalendar(5, monthly).Calendar())
	for _, text := range []string{"1000 per month in Asia/Seoul starting 15", "7 per week in UTC starting sunday", "7 per year in Europe/London starting 04-06", "0 per day in UTC", "5 per quarter in UTC burst 5"} {
		l, err := ParseLimit(text)
		require.NoError(t, err)
		require.Equal(t, text, l.String())
		again, err := l.MarshalText()
		require.NoError(t, err)
		var back Limit
		require.NoError(t, back.UnmarshalText(again))
		require.Equal(t, l, back)
	}
	_, err := PerCalendar(5, Calendar{Unit: CalendarDay, Zone: "Mars"}).MarshalText()
	require.ErrorContains(t, err, "no time zone")
	require.Equal(t, PerCalendar(3, monthly), PerCalendar(10, monthly).Share(3))
	require.Equal(t, PerCalendar(1, monthly), PerCalendar(2, monthly).Share(3), "a share has no longer period")
	require.Equal(t, 31*day, PerCalendar(10, monthly).Period)
	require.Equal(t, "CalendarUnit(9)", CalendarUnit(9).String())
	var u CalendarUnit
	require.NoError(t, u.UnmarshalText([]byte("quarter")))
	require.Equal(t, CalendarQuarter, u)
}

func TestCalendar_Window(t *testing.T) {
	begins, ends, err := monthly.Window(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 15, 5, 0, 0, 0, time.UTC), begins)
	require.Equal(t, time.Date(2026, 12, 15, 5, 0, 0, 0, time.UTC), ends)
	begins, _, err = monthly.Window(time.Time{})
	require.NoError(t, err)
	require.Equal(t, time.Unix(0, 0).UTC(), begins)
	_, ends, err = monthly.Window(time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC))
	require.NoError(t, err)
	require.Equal(t, int64(math.MaxInt64), ends.UnixNano())
	_, _, err = Calendar{Unit: CalendarDay, Zone: "Mars"}.Window(time.Now())
	require.EqualError(t, err, `sluice: Calendar: there is no time zone "Mars"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`)
}

// TestCalendar_WorstCase: as the model has it, and a limiter reaches it around an edge.
func TestCalendar_WorstCase(t *testing.T) {
	for _, of := range dateds {
		l := mustNew(t, Config{Algorithm: FixedWindow, Limit: of.limit(10), Soft: 3})
		model := oracle.New(of.oracle(13, Config{}))
		for _, d := range []time.Duration{0, 1, time.Hour, 23 * time.Hour, day, day + 1, 27*day + 23*time.Hour, 28*day + 1, 31 * day, 59*day + 1, 365*day + 1, 366*day + 1, 3660 * day} {
			require.Equal(t, model.WorstCase(int64(d)).Int64(), int64(l.WorstCase(d)), "%v %v", of.calendar, d)
		}
	}
	_, edge, err := monthly.Window(start)
	require.NoError(t, err)
	clock := NewManualClock(edge.Add(-1))
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(10, monthly), Clock: clock})
	require.True(t, l.AllowN("k", 10))
	clock.Advance(1)
	require.True(t, l.AllowN("k", 10))
	require.Equal(t, 20, l.WorstCase(1))
}

// TestCalendar_KeysStayForTheirWindow, and go with it.
func TestCalendar_KeysStayForTheirWindow(t *testing.T) {
	begins, ends, err := Calendar{Unit: CalendarYear}.Window(start)
	require.NoError(t, err)
	clock := NewManualClock(begins)
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(1, Calendar{Unit: CalendarYear}), Clock: clock})
	for i := range 3000 {
		require.True(t, l.KeyUint64(uint64(i)).Allow())
	}
	clock.Set(ends.Add(-1))
	require.Zero(t, l.Sweep())
	for i := range 3000 {
		d := l.KeyUint64(uint64(i)).Take(1)
		require.Equal(t, Decision{Limit: 1, RetryAfter: 1, ResetAfter: 1}, d)
	}
	clock.Advance(1)
	require.Equal(t, 3000, l.Sweep())
}

// TestCalendar_WaitForTheNextWindow, over the hour that summer time skips.
func TestCalendar_WaitForTheNextWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, err := time.LoadLocation("America/New_York")
		require.NoError(t, err)
		time.Sleep(time.Until(time.Date(2026, 3, 8, 0, 0, 0, 0, zone)))
		l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(2, Calendar{Unit: CalendarDay, Zone: "America/New_York"})})
		require.True(t, l.AllowN("k", 2))
		begun := time.Now()
		require.NoError(t, l.Wait(context.Background(), "k", 1))
		require.Equal(t, 23*time.Hour, time.Since(begun).Round(time.Microsecond))
		s := l.Key("k").Status()
		require.Equal(t, day, s.ResetAfter.Round(time.Second))
		require.Equal(t, day, s.WindowAfter.Round(time.Second))
		_, err = l.Key("k").Reserve(1, time.Hour)
		require.ErrorIs(t, err, ErrNotReservable)
	})
}

// TestCalendar_TakeAllSettles gives units back in their window and no other.
func TestCalendar_TakeAllSettles(t *testing.T) {
	_, edge, err := monthly.Window(start)
	require.NoError(t, err)
	clock := NewManualClock(edge.Add(-time.Hour))
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(10, monthly), Clock: clock})
	rs, late := make([]*Reservation, 1), make([]*Reservation, 1)
	require.True(t, TakeAllReservations(rs, nil, Charge{l.Key("k"), 6}).Allowed)
	require.True(t, TakeAllReservations(late, nil, Charge{l.Key("k"), 4}).Allowed)
	rs[0].Settle(1)
	require.Equal(t, 5, l.Key("k").Peek(0).Remaining)
	clock.Advance(2 * time.Hour)
	require.True(t, l.AllowN("k", 3))
	late[0].Settle(0)
	require.Equal(t, 7, l.Key("k").Peek(0).Remaining, "those units are of the window before")
}

// TestCalendar_ConcurrentChanges: many goroutines over an edge, while the limit changes between calendars.
func TestCalendar_ConcurrentChanges(t *testing.T) {
	_, edge, err := monthly.Window(start)
	require.NoError(t, err)
	clock := NewManualClock(edge.Add(-time.Second))
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(100, monthly), Clock: clock, Stats: true})
	for range 3 {
		goDo(8, func(g int) {
			for i := range 100 {
				l.Allow("k")
				if g == 0 && i%20 == 0 {
					require.NoError(t, l.SetLimit(PerCalendar(100, []Calendar{monthly, {Unit: CalendarMonth, Zone: "Asia/Seoul", Day: 10}}[i/20%2])))
				}
			}
		})()
		require.NoError(t, l.SetLimit(PerCalendar(100, monthly)))
		clock.Advance(2 * time.Second)
	}
	require.LessOrEqual(t, l.Stats().Admitted, uint64(200))
	require.GreaterOrEqual(t, l.Stats().Admitted, uint64(100))
}

// TestCalendar_OverAnEdge: each window admits its limit, and no more, when all come at once.
func TestCalendar_OverAnEdge(t *testing.T) {
	c := Calendar{Unit: CalendarDay, Zone: "Europe/Berlin"}
	clock := NewManualClock(time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC))
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(50, c), Clock: clock, Stats: true})
	for i := range uint64(5) {
		goDo(8, func(int) {
			for range 50 {
				l.Allow("k")
			}
		})()
		require.Equal(t, 50*(i+1), l.Stats().Admitted)
		clock.Advance(day)
	}
}

func TestCalendar_NothingIsAllocated(t *testing.T) {
	clock := NewManualClock(start)
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerCalendar(5, Calendar{Unit: CalendarDay, Zone: "Europe/Berlin"}), Clock: clock})
	k := l.Key("k")
	k.Allow()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		k.Take(1)
		k.Peek(1)
		clock.Advance(5 * time.Hour)
	}))
}

// BenchmarkAllow_Calendar is a hot key in the window of now.
func BenchmarkAllow_Calendar(b *testing.B) {
	for _, limit := range []Limit{PerDay(1 << 30), PerCalendar(1<<30, Calendar{Unit: CalendarDay, Zone: "America/New_York"})} {
		b.Run(limit.String(), func(b *testing.B) {
			l := Must(New(Config{Algorithm: FixedWindow, Limit: limit, Clock: NewFastClock()}))
			k := l.Key("k")
			for b.Loop() {
				k.Allow()
			}
		})
	}
}
