package limittext

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func per(n int, period time.Duration) Limit { return Limit{Rate: n, Period: period} }
func perSecond(n int) Limit                 { return per(n, time.Second) }
func perMinute(n int) Limit                 { return per(n, time.Minute) }
func perHour(n int) Limit                   { return per(n, time.Hour) }
func perDay(n int) Limit                    { return per(n, day) }

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
		"10 at once, lease 1m":    {10, time.Minute, AtOnce},
		" 1  at once,\tlease 90s": {1, 90 * time.Second, AtOnce},
		"0 at once, lease 24h":    {0, day, AtOnce},
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
	const forms = `want "N/unit" or "N/duration", optionally " burst B", as in "100/s", "20/m burst 5", "1000/24h"; for in-flight "N at once, lease DURATION"`
	number := "is not a whole number from 0 to " + maxIntText
	for s, want := range map[string]string{
		"":                                forms,
		"   ":                             forms,
		"100/s 5":                         forms,
		"100/s burst":                     forms,
		"100/s burst 5 6":                 forms,
		"100/s Burst 5":                   forms,
		"100/s burst=5 x":                 forms,
		"100 / s":                         forms,
		"100":                             "has no period: " + forms,
		"Unlimited":                       `want "unlimited", in small letters`,
		" UNLIMITED":                      `want "unlimited", in small letters`,
		"/s":                              `rate "" ` + number,
		"-1/s":                            `rate "-1" ` + number,
		"+1/s":                            `rate "+1" ` + number,
		"1.5/s":                           `rate "1.5" ` + number,
		"1e3/s":                           `rate "1e3" ` + number,
		"1_000/s":                         `rate "1_000" ` + number,
		"0x10/s":                          `rate "0x10" ` + number,
		"9223372036854775808/s":           `rate "9223372036854775808" ` + number,
		"5/":                              `period "" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/S":                             `period "S" is no unit; want "s"`,
		"5/M":                             `period "M" is no unit; want "m"`,
		"5/Day":                           `period "Day" is no unit; want "day"`,
		"5/minutes":                       `period "minutes" is no unit; want "minute"`,
		"5/ms":                            `period "ms" is no unit; want "1ms"`,
		"5/MS":                            `period "MS" is no unit; want "1ms"`,
		"5/us":                            `period "us" is no unit; want "1us"`,
		"5/30S":                           `period "30S" is no unit; want "30s"`,
		"5/2d":                            `period "2d" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/10":                            `period "10" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/s/s":                           `period "s/s" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/2562048h":                      `period "2562048h" is too long; want at most 2562047h, 292 years`,
		"5/1e7h":                          `period "1e7h" is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h`,
		"5/0s":                            `period "0s" is not positive`,
		"5/-1s":                           `period "-1s" is not positive`,
		"10 at once":                      forms,
		"10 at once, lease":               forms,
		"10 at once lease 1m":             forms,
		"10 At Once, lease 1m":            forms,
		"-1 at once, lease 1m":            `number "-1" ` + number,
		"10/s at once, lease 1m":          `number "10/s" ` + number,
		maxIntText + " at once, lease 1m": fmt.Sprintf(`want at most %d at once, or "unlimited"`, math.MaxInt-1),
		"10 at once, lease m":             `lease "m" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease 0s":            `lease "0s" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease -1s":           `lease "-1s" is not a positive duration, such as 30s or 1m`,
		"10 at once, lease 1m burst 5":    `lease "1m burst 5" is not a positive duration, such as 30s or 1m`,
		"5/s burst -1":                    `burst "-1" ` + number,
		"5/s burst x":                     `burst "x" ` + number,
		"5/s burst 0":                     "burst 0 admits nothing; want at least 1, or leave it out for the rate",
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
	for _, s := range []string{"100/s", "20/m burst 5", "1000/24h", "7/1m30s burst 9", "unlimited", "10 at once, lease 1m", "0/s", "1/1ns", "-1/s", "1/s burst", "9/µs"} {
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
