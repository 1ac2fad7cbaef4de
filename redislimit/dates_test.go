package redislimit

import (
	"testing"
	"time"
	_ "time/tzdata" // so that every machine has the same zones

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
)

var (
	daysInNewYork = sluice.Calendar{Unit: sluice.CalendarDay, Zone: "America/New_York"}
	monthsInSeoul = sluice.Calendar{Unit: sluice.CalendarMonth, Zone: "Asia/Seoul", Day: 15}
)

// calendarModels are the models of calendars, by the calendar of a limit, in us.
var calendarModels = func() map[sluice.Calendar]*oracle.Calendar {
	all := map[sluice.Calendar]*oracle.Calendar{}
	for c, begins := range map[sluice.Calendar]func(time.Time) bool{
		daysInNewYork: func(time.Time) bool { return true },
		monthsInSeoul: func(d time.Time) bool { return d.Day() == 15 },
	} {
		zone, err := time.LoadLocation(c.Zone)
		if err != nil {
			panic(err)
		}
		all[sluice.PerCalendar(1, c).Calendar()] = &oracle.Calendar{Zone: zone, Begins: begins, Tick: time.Microsecond}
	}
	return all
}()

func micros(t *testing.T, text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at.UnixMicro()
}

// datedCall makes a call of a script by another clock than the caller's, which the bounds are of.
func datedCall(t *testing.T, s *server, l *Limiter, key string, now, caller int64, units int64) (reply, error) {
	r := l.request(l.plan.Load(), key)
	r.k, r.n = 1, units
	packed := r.arguments(caller, 3_600_000, "")
	for i := range 7 { // behind op, k and n
		packed[12+i] = byte(now >> (8 * (6 - i)))
	}
	cmd := eval(ctx, &r, packed)
	_ = s.client.Process(ctx, cmd)
	return parse(cmd, false)
}

// TestDated_ClocksApart: Redis goes by its own clock, whatever window the caller's is in, as far as that is no more than a window away.
func TestDated_ClocksApart(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		edge := micros(t, "2026-11-14T15:00:00Z")
		for _, caller := range []int64{edge - 2_000_000, edge - 1, edge, edge + 2_000_000} {
			l := newLimiter(t, s.client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(5, monthsInSeoul)})
			key := time.UnixMicro(caller).UTC().String()
			first := micros(t, "2026-10-14T15:00:00Z") // a month of 31 days, and the next one has 30
			r, err := datedCall(t, s, l, key, first, caller, 5)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.admitted)
			left, err := s.client.PTTL(ctx, l.request(l.plan.Load(), key).key).Result()
			require.NoError(t, err)
			require.InDelta(t, 31*24*time.Hour+time.Hour, left, float64(time.Minute), "to the end of the window, and the spare hour")
			r, err = datedCall(t, s, l, key, edge-1, caller, 1)
			require.NoError(t, err)
			require.Zero(t, r.admitted, "the window of Redis has gone on from its first instant to its last")
			require.EqualValues(t, 1, l.plan.Load().shape.reset(r.view))
			r, err = datedCall(t, s, l, key, edge, caller, 5)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.admitted)
			r, err = datedCall(t, s, l, key, micros(t, "2026-12-14T14:59:59Z"), caller, 1)
			require.NoError(t, err)
			require.Zero(t, r.admitted)
		}
		l := newLimiter(t, s.client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(5, monthsInSeoul)})
		for _, now := range []string{"2026-10-14T14:59:59Z", "2027-01-14T15:00:00Z"} {
			_, err := datedCall(t, s, l, "apart", micros(t, now), edge, 1)
			require.ErrorContains(t, err, "SLUICEAPART the clock of Redis and that of the caller are more than a window apart")
		}
	})
}

// TestDated_ExpiresWithItsWindow, and not sooner: a year is 366 days at most.
func TestDated_ExpiresWithItsWindow(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range []sluice.Calendar{monthsInSeoul, {Unit: sluice.CalendarYear}, {Unit: sluice.CalendarDay, Zone: "Pacific/Apia"}} {
			l := newLimiter(t, s.client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(5, c)})
			require.True(t, take(t, l, "k", 5).Allowed)
			d := take(t, l, "k", 1)
			require.False(t, d.Allowed)
			_, ends, err := c.Window(time.Now())
			require.NoError(t, err)
			require.InDelta(t, time.Until(ends).Seconds(), d.RetryAfter.Seconds(), 60)
			key := l.request(l.plan.Load(), "k").key
			left, err := s.client.PTTL(ctx, key).Result()
			require.NoError(t, err)
			require.InDelta(t, time.Until(ends).Seconds(), left.Seconds(), 60)
			require.Greater(t, left, d.RetryAfter-time.Minute)
		}
	})
}

// TestDated_Arguments: windows without an instant are left out, and the ends of time stay in range.
func TestDated_Arguments(t *testing.T) {
	bounds := func(c sluice.Calendar, now int64) (all []int64) {
		s, err := newDated(Config{Limit: sluice.PerCalendar(5, c)})
		require.NoError(t, err)
		b := s.arguments(nil, now)
		require.Len(t, b, 5*7)
		for ; len(b) > 0; b = b[7:] {
			all = append(all, number(string(b[:7])))
		}
		return all[1:]
	}
	apia := sluice.Calendar{Unit: sluice.CalendarDay, Zone: "Pacific/Apia"}
	at := func(text string) int64 { return micros(t, text) }
	require.Equal(t, []int64{at("2011-12-28T10:00:00Z"), at("2011-12-29T10:00:00Z"), at("2011-12-30T10:00:00Z"), at("2011-12-31T10:00:00Z")}, bounds(apia, at("2011-12-30T09:00:00Z")))
	require.Equal(t, []int64{at("2011-12-29T10:00:00Z"), at("2011-12-30T10:00:00Z"), at("2011-12-31T10:00:00Z"), at("2012-01-01T10:00:00Z")}, bounds(apia, at("2011-12-30T11:00:00Z")))
	require.Equal(t, []int64{0, 0, at("1970-02-01T00:00:00Z"), at("1970-03-01T00:00:00Z")}, bounds(sluice.Calendar{Unit: sluice.CalendarMonth}, 1))
	end := bounds(sluice.Calendar{Unit: sluice.CalendarYear}, exact-2)
	require.IsIncreasing(t, end[:3])
	require.Equal(t, int64(exact-1), end[3])
}

// TestDated_Refusals: what would begin other counts, or read others, is an error.
func TestDated_Refusals(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		dated := sluice.PerCalendar(5, monthsInSeoul)
		l := newLimiter(t, s.client, Config{Algorithm: sluice.FixedWindow, Limit: dated})
		require.EqualError(t, l.SetLimit(sluice.PerDay(5)), `redislimit: Limit: "5/d" in the place of "5 per month in Asia/Seoul starting 15": units in windows by a calendar have other keys in Redis than units in windows of a period; want a limiter made with such a limit`)
		require.True(t, take(t, l, "k", 4).Allowed)
		require.NoError(t, l.SetLimit(sluice.PerCalendar(5, daysInNewYork)))
		require.False(t, take(t, l, "k", 2).Allowed, "spent units count in the windows of the other calendar")
		require.NoError(t, l.SetLimit(sluice.DenyAll))
		require.NoError(t, l.SetLimit(dated))
		_, err := New(s.client, Config{Algorithm: sluice.GCRA, Limit: dated, Prefix: "p"})
		require.ErrorContains(t, err, "knows no calendar")
		_, err = New(s.client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(5, sluice.Calendar{Unit: sluice.CalendarDay, Zone: "Mars"}), Prefix: "p"})
		require.EqualError(t, err, `redislimit: Limit: there is no time zone "Mars"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`)
	})
}
