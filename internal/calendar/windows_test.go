package calendar

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata" // so that every machine has the same zones

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// zoneNames have summer time on both sides of the equator, none, changes at midnight and a minute after it, a day that was
// skipped, offsets of quarters of an hour, and the largest offsets.
var zoneNames = []string{
	"UTC", "Asia/Seoul", "Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles", "America/Sao_Paulo", "Asia/Beirut",
	"America/St_Johns", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Kiritimati", "Etc/GMT+12", "Asia/Kathmandu", "Australia/Lord_Howe",
	"Africa/Cairo", "Asia/Gaza", "Asia/Tehran", "America/Havana", "America/Asuncion", "Africa/Casablanca", "Antarctica/Troll", "Africa/Monrovia",
	"Pacific/Chatham", "Atlantic/Azores", "America/Scoresbysund", "Asia/Amman", "America/Nuuk", "Pacific/Enderbury",
}

var kinds = []Calendar{
	{Unit: Day}, {Unit: Week}, {Unit: Week, Day: 7}, {Unit: Month}, {Unit: Month, Day: 15}, {Unit: Month, Day: 28}, {Unit: Quarter},
	{Unit: Quarter, Month: time.February, Day: 3}, {Unit: Quarter, Month: time.December}, {Unit: Year}, {Unit: Year, Month: time.April, Day: 6},
	{Unit: Year, Month: time.December, Day: 28},
}

// label names the window of an instant in words of its own: the first date of the window of the date. It is the newest that the clocks of the
// zone have shown, looked at minute by minute for a day and a bit.
func label(c Calendar, zone *time.Location, at time.Time) string {
	first := time.Time{} // noon of the newest date, in UTC
	for back := 26 * time.Hour; back >= 0; back -= time.Minute {
		y, m, d := at.Add(-back).In(zone).Date()
		if date := time.Date(y, m, d, 12, 0, 0, 0, time.UTC); date.After(first) {
			first = date
		}
	}
	begins := func(t time.Time) bool {
		switch c.Unit {
		case Week:
			return int(t.Weekday()+6)%7+1 == c.Day
		case Month:
			return t.Day() == c.Day
		case Quarter:
			return t.Day() == c.Day && (t.Month()-c.Month+12)%3 == 0
		case Year:
			return t.Day() == c.Day && t.Month() == c.Month
		}
		return true
	}
	for !begins(first) {
		first = first.AddDate(0, 0, -1)
	}
	return first.Format(time.DateOnly)
}

// checkEdges looks at both sides of the boundary after an instant, and at the instant.
func checkEdges(t *testing.T, w *Windows, at int64) {
	c, zone := w.Calendar, w.in
	n := w.At(at)
	begin, end := w.Start(n), w.Start(n+1)
	require.LessOrEqual(t, begin, uint64(at))
	require.Less(t, uint64(at), end)
	require.Equal(t, n, w.find(at))
	name := label(c, zone, time.Unix(0, at))
	if begin > 0 {
		require.Equal(t, name, label(c, zone, time.Unix(0, int64(begin))), "%v at %d: from %d on", c, at, begin)
		require.Less(t, label(c, zone, time.Unix(0, int64(begin)-1)), name, "%v at %d: before %d", c, at, begin)
		require.Less(t, w.At(int64(begin)-1), n)
	}
	if end <= math.MaxInt64 {
		require.Equal(t, name, label(c, zone, time.Unix(0, int64(end)-1)), "%v at %d: to %d", c, at, end)
		require.Greater(t, label(c, zone, time.Unix(0, int64(end))), name, "%v at %d: from the end %d on", c, at, end)
		require.Greater(t, w.At(int64(end)), n)
	}
}

// TestWindows_Edges: random instants, and every change of the clocks, in all zones and units.
func TestWindows_Edges(t *testing.T) {
	rng := seeded.Rand(t)
	for _, zone := range zoneNames {
		for _, c := range kinds {
			c.Zone = zone
			w, err := New(c)
			require.NoError(t, err)
			for range depth.Of(1, 2, 10) {
				checkEdges(t, w, rng.Int64())
			}
			for _, at := range []int64{0, math.MaxInt64, int64(w.Start(1)) - 1, int64(w.Start(1))} {
				checkEdges(t, w, at)
			}
			require.Equal(t, w.Last(), w.At(math.MaxInt64))
			require.Equal(t, uint64(math.MaxUint64), w.Start(w.Last()+1))
			require.Equal(t, uint64(math.MaxUint64), w.Start(w.Last()+1000))
		}
	}
}

// TestWindows_ChangesOfTheClocks: days around each change from 1970 to 2037.
func TestWindows_ChangesOfTheClocks(t *testing.T) {
	rng := seeded.Rand(t)
	for _, zone := range zoneNames {
		w, err := New(Calendar{Unit: Day, Zone: zone})
		require.NoError(t, err)
		for at := time.Unix(0, 0).In(w.in); ; {
			before := at
			_, end := at.ZoneBounds()
			if end.IsZero() || end.Year() > 2037 {
				break
			}
			if rng.IntN(12) == 0 || zone == "America/St_Johns" || zone == "Pacific/Apia" {
				for _, off := range []time.Duration{-24 * time.Hour, -time.Hour, -1, 0, time.Hour, 24 * time.Hour} {
					checkEdges(t, w, end.Add(off+time.Duration(rng.Int64N(int64(time.Minute)))).UnixNano())
				}
			}
			if at = end; !at.After(before) { // see cursor.enter
				at = before.Add(24 * time.Hour)
			}
		}
	}
}

// TestWindows_Days are the days that the papers wrote about.
func TestWindows_Days(t *testing.T) {
	at := func(s string) int64 {
		when, err := time.Parse(time.RFC3339, s)
		require.NoError(t, err)
		return when.UnixNano()
	}
	for _, c := range []struct {
		calendar          Calendar
		now, begins, ends string
	}{
		{Calendar{Unit: Day, Zone: "America/New_York"}, "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},    // 23 hours
		{Calendar{Unit: Day, Zone: "America/New_York"}, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},    // 25 hours
		{Calendar{Unit: Day, Zone: "Australia/Lord_Howe"}, "2026-04-05T00:00:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"}, // 24.5 hours
		{Calendar{Unit: Day, Zone: "America/Sao_Paulo"}, "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},   // no midnight
		{Calendar{Unit: Day, Zone: "Asia/Beirut"}, "2022-03-27T12:00:00Z", "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z"},         // no midnight
		{Calendar{Unit: Day, Zone: "America/Havana"}, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},      // midnight twice
		{Calendar{Unit: Day, Zone: "America/St_Johns"}, "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},    // back to 23:01 the day before
		{Calendar{Unit: Day, Zone: "Pacific/Apia"}, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},        // before the day that was skipped
		{Calendar{Unit: Day, Zone: "Pacific/Apia"}, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{Calendar{Unit: Month, Zone: "Asia/Seoul"}, "2024-02-29T14:59:59Z", "2024-01-31T15:00:00Z", "2024-02-29T15:00:00Z"}, // a leap year
		{Calendar{Unit: Month, Zone: "Asia/Seoul", Day: 15}, "2026-11-28T00:00:00Z", "2026-11-14T15:00:00Z", "2026-12-14T15:00:00Z"},
		{Calendar{Unit: Month, Zone: "Europe/Berlin"}, "2026-10-10T00:00:00Z", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"}, // 31 days and an hour
		{Calendar{Unit: Quarter, Zone: "UTC"}, "2026-11-28T00:00:00Z", "2026-10-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{Calendar{Unit: Quarter, Zone: "UTC", Month: time.December}, "2027-01-28T00:00:00Z", "2026-12-01T00:00:00Z", "2027-03-01T00:00:00Z"},
		{Calendar{Unit: Year, Zone: "Europe/London", Month: time.April, Day: 6}, "2026-11-28T00:00:00Z", "2026-04-05T23:00:00Z", "2027-04-05T23:00:00Z"},
		{Calendar{Unit: Week, Zone: "UTC"}, "2026-11-28T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{Calendar{Unit: Week, Zone: "UTC", Day: 7}, "2026-11-28T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
	} {
		w, err := New(c.calendar)
		require.NoError(t, err)
		n := w.At(at(c.now))
		require.Equal(t, uint64(at(c.begins)), w.Start(n), "%v", c)
		require.Equal(t, uint64(at(c.ends)), w.Start(n+1), "%v", c)
		require.Equal(t, n+1-1, w.At(int64(w.Start(n+1))-1))
		require.Less(t, n, w.At(int64(w.Start(n+1))))
	}
}

// TestWindows_AnyOrder: the answers do not depend on what was asked before.
func TestWindows_AnyOrder(t *testing.T) {
	rng := seeded.Rand(t)
	for _, unit := range []Unit{Day, Month} {
		w, err := New(Calendar{Unit: unit, Zone: "America/New_York"})
		require.NoError(t, err)
		begins := []uint64{}
		for n := range uint64(40) {
			begins = append(begins, w.Start(n))
		}
		for range 2000 {
			n := rng.Uint64N(39)
			at := begins[n] + rng.Uint64N(begins[n+1]-begins[n])
			require.Equal(t, n, w.At(int64(at)))
			require.Equal(t, begins[n], w.Start(n))
		}
	}
}

// TestWindows_Concurrent: many ask for times of many windows.
func TestWindows_Concurrent(t *testing.T) {
	w, err := New(Calendar{Unit: Day, Zone: "Europe/Berlin"})
	require.NoError(t, err)
	done := make(chan bool)
	for g := range 4 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			good := true
			for range 3000 {
				at := rng.Int64N(int64(400 * day))
				n := w.At(at)
				good = good && w.Start(n) <= uint64(at) && uint64(at) < w.Start(n+1)
			}
			done <- good
		}()
	}
	for range 4 {
		require.True(t, <-done)
	}
}

func TestWindows_AllocateNothing(t *testing.T) {
	w, err := New(Calendar{Unit: Day, Zone: "Europe/Berlin"})
	require.NoError(t, err)
	now := int64(0)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		now += int64(7 * time.Hour)
		w.Start(w.At(now))
	}))
}

// TestWindows_Touched: what any span can touch, found by trying each boundary.
func TestWindows_Touched(t *testing.T) {
	for _, c := range []Calendar{{Unit: Month, Zone: "Europe/Berlin"}, {Unit: Year, Zone: "Asia/Seoul"}, {Unit: Day, Zone: "Pacific/Apia"}} {
		w, err := New(c)
		require.NoError(t, err)
		from, to := uint64(0), w.Last()
		if c.Unit == Day {
			from, to = 15000, 15500 // in 2011 a day was skipped
		}
		tried := func(d int64) (most uint64) {
			for n := from + 1; n <= to; n++ {
				begin := int64(w.Start(n)) - 1
				touched := uint64(0)
				for m := n - 1; m <= w.Last() && (m < n || int64(w.Start(m)) <= begin+d && w.Start(m) <= math.MaxInt64); m++ {
					if w.Start(m) != w.Start(m+1) {
						touched++
					}
				}
				most = max(most, touched)
			}
			return most
		}
		for _, d := range []int64{0, 1, 2, int64(time.Hour), int64(23 * time.Hour), int64(day), int64(day) + 1, int64(28*day) - int64(time.Hour), int64(28*day) - int64(time.Hour) + 1, int64(28 * day), int64(28*day) + 1, int64(59 * day), int64(90 * day), int64(365 * day), int64(365*day) + 1, int64(366*day) + 1} {
			require.Equal(t, tried(d), w.Touched(d), "%v %v", c, time.Duration(d))
		}
	}
	w, err := New(Calendar{Unit: Day})
	require.NoError(t, err)
	require.Equal(t, w.Last()+1, w.Touched(math.MaxInt64))
}

func FuzzWindows(f *testing.F) {
	f.Add(uint8(3), uint8(2), int64(1_700_000_000))
	f.Fuzz(func(t *testing.T, zone, kind uint8, at int64) {
		c := kinds[int(kind)%len(kinds)]
		c.Zone = zoneNames[int(zone)%len(zoneNames)]
		w, err := New(c)
		require.NoError(t, err)
		checkEdges(t, w, at&math.MaxInt64)
	})
}
