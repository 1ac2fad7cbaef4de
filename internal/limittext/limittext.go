// Package limittext has the text form of a limit: "100/s", "20/m burst 5", "7/1m30s", "10 at once, lease 1m",
// "1000 per month in Asia/Seoul", "unlimited".
//
// People write limits into configurations by hand, so a text means what it seems to mean, or is an error
// that says how to write it: no signs, no fractions of units, no capital letters that a unit of another length
// could be meant by, no number without a unit. Parse and Text are inverse to each other.
package limittext

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/calendar"
)

// A Limit is Rate units per Period, and Burst at once, or 0 for the rate. With AtOnce for its Burst it is Rate
// units in use at once, which come back by themselves after a lease of Period. With a Calendar it is Rate units in each of the
// calendar's windows, and the Period is the Calendar's Longest.
type Limit struct {
	Rate     int
	Period   time.Duration
	Burst    int
	Calendar calendar.Calendar
}

// Unlimited is the limit that has a word for it.
var Unlimited = Limit{Rate: math.MaxInt, Period: time.Second}

// AtOnce is the Burst of limits of units in use. No limit of a rate has it.
const AtOnce = math.MinInt32

const day = 24 * time.Hour

// Text returns the shortest text that Parse reads back.
func (l Limit) Text() string {
	if l == Unlimited {
		return unlimitedText
	}
	if l.Burst == AtOnce {
		return strconv.Itoa(l.Rate) + atOnceText + durationString(l.Period)
	}
	s := strconv.Itoa(l.Rate) + "/" + periodString(l.Period)
	if l.Calendar.Unit != calendar.None {
		s = strconv.Itoa(l.Rate) + " per " + l.Calendar.Text()
	}
	if l.Burst != 0 {
		s += " burst " + strconv.Itoa(l.Burst)
	}
	return s
}

const (
	unlimitedText = "unlimited"
	atOnceText    = " at once, lease "
	limitForms    = `want "N/unit" or "N/duration", optionally " burst B", as in "100/s", "20/m burst 5", "1000/24h"; for in-flight "N at once, lease DURATION"; for windows of a calendar "N per month in ZONE"`
)

// periodUnits are the names of units, the first of each the one that Text uses.
var periodUnits = []struct {
	period time.Duration
	names  []string
}{
	{time.Second, []string{"s", "sec", "second"}},
	{time.Minute, []string{"m", "min", "minute"}},
	{time.Hour, []string{"h", "hr", "hour"}},
	{day, []string{"d", "day"}},
	{7 * day, []string{"w", "week"}},
}

// Parse reads a limit, as sluice.ParseLimit says. An error begins with "sluice: limit", and the text.
func Parse(s string) (Limit, error) {
	switch trimmed := strings.TrimSpace(s); {
	case trimmed == unlimitedText:
		return Unlimited, nil
	case strings.EqualFold(trimmed, unlimitedText):
		return Limit{}, fmt.Errorf("sluice: limit %q: want %q, in small letters", s, unlimitedText)
	}
	fields := strings.Fields(s)
	if count, lease, ok := strings.Cut(strings.Join(fields, " "), atOnceText); ok {
		return parseAtOnce(s, count, lease)
	}
	if len(fields) > 1 && fields[1] == "per" {
		return parseCalendar(s, fields)
	}
	if len(fields) != 1 && (len(fields) != 3 || fields[1] != "burst") {
		return Limit{}, fmt.Errorf("sluice: limit %q: %s", s, limitForms)
	}
	count, unit, ok := strings.Cut(fields[0], "/")
	if !ok {
		return Limit{}, fmt.Errorf("sluice: limit %q has no period: %s", s, limitForms)
	}
	rate, err := parseCount(count)
	if err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: rate %w", s, err)
	}
	period, err := parsePeriod(unit)
	if err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: period %w", s, err)
	}
	l := Limit{Rate: rate, Period: period}
	if len(fields) == 1 {
		return l, nil
	}
	if l.Burst, err = parseBurst(s, fields[2]); err != nil {
		return Limit{}, err
	}
	return l, nil
}

func parseBurst(s, count string) (int, error) {
	n, err := parseCount(count)
	switch {
	case err != nil:
		return 0, fmt.Errorf("sluice: limit %q: burst %w", s, err)
	case n == 0:
		return 0, fmt.Errorf("sluice: limit %q: burst 0 admits nothing; want at least 1, or leave it out for the rate", s)
	}
	return n, nil
}

func parseAtOnce(s, count, lease string) (Limit, error) {
	units, err := parseCount(count)
	if err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: number %w", s, err)
	}
	if units == math.MaxInt {
		return Limit{}, fmt.Errorf("sluice: limit %q: want at most %d at once, or %q", s, math.MaxInt-1, unlimitedText)
	}
	d, err := time.ParseDuration(lease)
	if err != nil || d <= 0 {
		return Limit{}, fmt.Errorf("sluice: limit %q: lease %q is not a positive duration, such as 30s or 1m", s, lease)
	}
	return Limit{Rate: units, Period: d, Burst: AtOnce}, nil
}

// parseCalendar reads fields of which the second one is "per".
func parseCalendar(s string, fields []string) (Limit, error) {
	var burst []string
	if n := len(fields); n > 3 && fields[n-2] == "burst" {
		fields, burst = fields[:n-2], fields[n-1:]
	}
	units, err := parseCount(fields[0])
	if err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: rate %w", s, err)
	}
	if units == math.MaxInt {
		return Limit{}, fmt.Errorf("sluice: limit %q: want at most %d, or %q", s, math.MaxInt-1, unlimitedText)
	}
	c, err := calendar.Parse(fields[2:])
	if err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: %w", s, err)
	}
	l := Limit{Rate: units, Period: c.Longest(), Calendar: c}
	if len(burst) == 0 {
		return l, nil
	}
	if l.Burst, err = parseBurst(s, burst[0]); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// parseCount reads a run of decimal digits. strconv.Atoi alone would take signs.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, strconv.IntSize-1)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", s, math.MaxInt)
	}
	return int(n), nil
}

func parsePeriod(s string) (time.Duration, error) {
	if period, ok := unitPeriod(s); ok {
		return period, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, badPeriod(s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is not positive", s)
	}
	return d, nil
}

// badPeriod is the error about a text that is neither a unit nor a duration.
func badPeriod(s string) error {
	zeros := strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '0'
		}
		return r
	}, s)
	if _, err := time.ParseDuration(zeros); err == nil {
		return fmt.Errorf("%q is too long; want at most 2562047h, 292 years", s)
	}
	small := strings.ToLower(s)
	for _, want := range []string{small, "1" + small, strings.TrimSuffix(small, "s")} { // "1ms" before "m"
		_, unit := unitPeriod(want)
		if _, err := time.ParseDuration(want); unit || err == nil {
			return fmt.Errorf("%q is no unit; want %q", s, want)
		}
	}
	if slices.Contains(calendar.Units[1:], small) {
		return fmt.Errorf("%q has no fixed length; want %q, by the calendar", s, "N per "+small+" in UTC")
	}
	return fmt.Errorf("%q is neither a unit (s, m, h, d, w, or second, minute, hour, day, week) nor a duration such as 30s or 24h", s)
}

func unitPeriod(name string) (period time.Duration, ok bool) {
	for _, unit := range periodUnits {
		if slices.Contains(unit.names, name) {
			return unit.period, true
		}
	}
	return 0, false
}

// periodString returns the shortest form that parsePeriod reads back.
func periodString(d time.Duration) string {
	for _, unit := range periodUnits {
		if d == unit.period {
			return unit.names[0]
		}
	}
	return durationString(d)
}

// durationString returns the shortest form that time.ParseDuration reads back.
func durationString(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-len("0s")]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-len("0m")]
	}
	return s
}
