package limittext

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/calendar"
)

func per(n int, period time.Duration) Limit { return Limit{Rate: n, Period: period} }
func perSecond(n int) Limit                 { return per(n, time.Second) }
func perMinute(n int) Limit                 { return per(n, time.Minute) }
func perHour(n int) Limit                   { return per(n, time.Hour) }
func perDay(n int) Limit                    { return per(n, day) }

func dated(n int, c calendar.Calendar) Limit {
	return Limit{Rate: n, Period: c.Longest(), Calendar: c}
}

func (l Limit) withBurst(n int) Limit {
	l.Burst = n
	return l
}

func TestParse_Good(t *testing.T) {
	for s, want := range map[string]Limit{
		"100/s":                   perSecond(100),
		"20/m":                    perMinute(20),
		"7/h":                     perHour(7),
		"7/hr":                    perHour(7),
		"7/hour burst 3":          perHour(7).withBurst(3),
		"5/sec":                   perSecond(5),
		"5/second":                perSecond(5),
		"5/min":                   perMinute(5),
		"5/minute":                perMinute(5),
		"5/day":                   perDay(5),
		"5/w":                     per(5, 7*day),
		"5/week":                  per(5, 7*day),
		"5/168h":                  per(5, 7*day),
		"1/d":                     perDay(1),
		"20/m burst 5":            perMinute(20).withBurst(5),
		"  20/m   burst\t5\n":     perMinute(20).withBurst(5),
		"100/s burst 100":         perSecond(100).withBurst(100),
		"1000/24h":                perDay(1000),
		"1000/24h0m0s":            perDay(1000),
		"5/1m":                    perMinute(5),
		"5/90s":                   per(5, 90*time.Second),
		"5/1m30s":                 per(5, 90*time.Second),
		"5/1.5h":                  per(5, 90*time.Minute),
		"5/250ms":                 per(5, 250*time.Millisecond),
		"5/1ns":                   per(5, 1),
		"5/1us":                   per(5, time.Microsecond),
		"5/2562047h":              per(5, 2562047*time.Hour),
		"5/2540400h10m10s":        per(5, 2540400*time.Hour+10*time.Minute+10*time.Second),
		"0/s":                     perSecond(0),
		"0/m":                     perMinute(0),
		"007/s":                   perSecond(7),
		"10 at once, lease 1m":    {Rate: 10, Period: time.Minute, Burst: AtOnce},
		" 1  at once,\tlease 90s": {Rate: 1, Period: 90 * time.Second, Burst: AtOnce},
		"0 at once, lease 24h":    {Rate: 0, Period: day, Burst: AtOnce},
		"1000 per month in Asia/Seoul starting 15": dated(1000, calendar.Calendar{Unit: calendar.Month, Zone: "Asia/Seoul", Month: 1, Day: 15}),
		" 1000  per month\tin Asia/Seoul ":         dated(1000, calendar.Calendar{Unit: calendar.Month, Zone: "Asia/Seoul", Month: 1, Day: 1}),
		"5 per day":                                dated(5, calendar.Calendar{Unit: calendar.Day, Zone: "UTC", Month: 1, Day: 1}),
		"5 per day in UTC burst 5":                 dated(5, calendar.Calendar{Unit: calendar.Day, Zone: "UTC", Month: 1, Day: 1}).withBurst(5),
		"0 per week starting sunday":               dated(0, calendar.Calendar{Unit: calendar.Week, Zone: "UTC", Month: 1, Day: 7}),
		"9 per week in UTC starting monday":        dated(9, calendar.Calendar{Unit: calendar.Week, Zone: "UTC", Month: 1, Day: 1}),
		"9 per quarter in UTC starting 02-01":      dated(9, calendar.Calendar{Unit: calendar.Quarter, Zone: "UTC", Month: 2, Day: 1}),
		"9 per year in Europe/London starting 4-6": dated(9, calendar.Calendar{Unit: calendar.Year, Zone: "Europe/London", Month: 4, Day: 6}),
		"unlimited":               Unlimited,
		" unlimited ":             Unlimited,
		"2147483647/s burst 1":    perSecond(math.MaxInt32).withBurst(1),
		"1/s burst 2147483647":    perSecond(1).withBurst(math.MaxInt32),
		maxIntText + "/s":         Unlimited,
		maxIntText + "/5m0s":      per(math.MaxInt, 5*time.Minute),
		"1/s burst " + maxIntText: perSecond(1).withBurst(math.MaxInt),
	} {
		got, err := Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
}

var maxIntText = fmt.Sprint(math.MaxInt)

func TestParse_BadSaysWhatIsWrongAndWhatIsWanted(t *testing.T) {
	const forms = `want "N/unit" or "N/duration", optionally " burst B", as in "100/s", "20/m burst 5", "1000/24h"; for in-flight "N at once, lease DURATION"; for windows of a calendar "N per month in ZONE"`
	number := "is not a whole number from 0 to " + maxIntText
	for s, want := range map[string]string{
		"":                                   forms,
		"   ":                                forms,
		"100/s 5":                            forms,
		"100/s burst":                        forms,
		"100/s burst 5 6":                    forms,
		"100/s Burst 5":                      forms,
		"100/s burst=5 x":                    forms,
		"100 / s":                            forms,
		"100":                                "has no period: " + forms,
		"Unlimited":                          `want "unlimited", in small letters`,
		" UNLIMITED":                         `want "unlimited", in small letters`,
		"/s":                                 `rate "" ` + number,
		"-1/s":                               `rate "-1" ` + number,
		"+1/s":                               `rate "+1" ` + number,
		"1.5/s":                              `rate "1.5" ` + number,
		"1e3/s":                              `rate "1e3" ` + number,
		"1_000/s":                            `rate "1_000" ` + number,
		"0x10/s":                             `rate "0x10" ` + number,
		"9223372036854775808/s":              `rate "9223372036854775808" ` + number,
		"5/":                                 `period "" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/S":                                `period "S" is no unit; want "s"`,
		"5/M":                                `period "M" is no unit; want "m"`,
		"5/Day":                              `period "Day" is no unit; want "day"`,
		"5/minutes":                          `period "minutes" is no unit; want "minute"`,
		"5/ms":                               `period "ms" is no unit; want "1ms"`,
		"5/MS":                               `period "MS" is no unit; want "1ms"`,
		"5/us":                               `period "us" is no unit; want "1us"`,
		"5/30S":                              `period "30S" is no unit; want "30s"`,
		"5/2d":                               `period "2d" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/10":                               `period "10" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/s/s":                              `period "s/s" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/2562048h":                         `period "2562048h" is too long; want at most 2562047h, 292 years`,
		"5/1e7h":                             `period "1e7h" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/0s":                               `period "0s" is not positive`,
		"5/-1s":                              `period "-1s" is not positive`,
		"10 at once":                         forms,
		"10 at once, lease":                  forms,
		"10 at once lease 1m":                forms,
		"10 At Once, lease 1m":               forms,
		"-1 at once, lease 1m":               `number "-1" ` + number,
		"10/s at once, lease 1m":             `number "10/s" ` + number,
		maxIntText + " at once, lease 1m":    fmt.Sprintf(`want at most %d at once, or "unlimited"`, math.MaxInt-1),
		"10 at once, lease m":                `lease "m" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease 0s":               `lease "0s" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease -1s":              `lease "-1s" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease 1m burst 5":       `lease "1m burst 5" is not a positive duration, such as 30s or 1m`,
		"5/month":                            `period "month" has no fixed length; want "N per month in UTC", by the calendar`,
		"5/Year":                             `period "Year" has no fixed length; want "N per year in UTC", by the calendar`,
		"-1 per month":                       `rate "-1" ` + number,
		maxIntText + " per month":            fmt.Sprintf(`want at most %d, or "unlimited"`, math.MaxInt-1),
		"5 per":                              "it has no unit; want " + calendar.Forms,
		"5 per minute":                       `"minute" is no unit of a calendar; want day, week, month, quarter or year, or for windows of a fixed length "N/minute"`,
		"5 per none":                         `"none" is no unit of a calendar; want day, week, month, quarter or year, or for windows of a fixed length "N/none"`,
		"5 per month in":                     `"in" is out of place; want ` + calendar.Forms,
		"5 per month starting 15 in UTC":     `"starting 15 in UTC" is out of place; want ` + calendar.Forms,
		"5 per month in Mars/Base":           `there is no time zone "Mars/Base"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`,
		"5 per month in ../etc/passwd":       `there is no time zone "../etc/passwd"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`,
		"5 per month in Local":               `the time zone "Local" is another one on each machine; want a name such as "Asia/Seoul" or "UTC"`,
		"5 per month in UTC starting 31":     "a month cannot begin on day 31, which not every month has; want 1 to 28",
		"5 per month in UTC starting 0":      "a month cannot begin on day 0, which not every month has; want 1 to 28",
		"5 per month in UTC starting monday": `a month cannot begin on "monday"; want a day from 1 to 28`,
		"5 per year in UTC starting 15":      `a year cannot begin on "15"; want a month and a day, such as 04-06`,
		"5 per year in UTC starting 13-01":   "a year cannot begin in month 13; want 1 to 12",
		"5 per year in UTC starting 02-29":   "a year cannot begin on day 29, which not every month has; want 1 to 28",
		"5 per week in UTC starting 1":       `a week cannot begin on "1"; want monday to sunday`,
		"5 per day in UTC starting 6":        `a day begins at midnight, not on "6"; want it without`,
		"5 per day in UTC burst 0":           "burst 0 admits nothing; want at least 1, or leave it out for the rate",
		"5/s burst -1":                       `burst "-1" ` + number,
		"5/s burst x":                        `burst "x" ` + number,
		"5/s burst 0":                        "burst 0 admits nothing; want at least 1, or leave it out for the rate",
	} {
		got, err := Parse(s)
		sep := ": "
		if s == "100" {
			sep = " "
		}
		require.EqualError(t, err, fmt.Sprintf("sluice: limit %q%s%s", s, sep, want))
		require.Equal(t, Limit{}, got, s)
	}
}

// FuzzParse: what is accepted survives the round trip through Text, and
// nothing panics.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"100/s", "20/m burst 5", "1000/24h", "7/1m30s burst 9", "unlimited", "10 at once, lease 1m", "5 per month in Asia/Seoul starting 15", "5 per year starting 4-6 burst 5", "0/s", "1/1ns", "-1/s", "1/s burst", "9/µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(l.Text())
		if err != nil || again != l {
			t.Fatalf("Parse(%q) = %#v; its Text %q gives %#v, %v", s, l, l.Text(), again, err)
		}
	})
}
