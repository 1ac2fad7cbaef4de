// Package limittext has the text form of a limit: "100/s", "20/m burst 5", "7/1m30s", "10 at once, lease 1m",
// "unlimited".
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
)

// A Limit is Rate units per Period, and Burst at once, or 0 for the rate. With AtOnce for its Burst it is Rate
// units in use at once, which come back by themselves after a lease of Period.
type Limit struct {
	Rate   int
	Period time.Duration
	Burst  int
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
	if l.Burst != 0 {
		s += " burst " + strconv.Itoa(l.Burst)
	}
	return s
}

const (
	unlimitedText = "unlimited"
	atOnceText    = " at once, lease "
	limitForms    = `want "N/unit" or "N/duration", optionally " burst B", as in "100/s", "20/m burst 5", "1000/24h"; for in-flight "N at once, lease DURATION"`
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
	if l.Burst, err = parseCount(fields[2]); err != nil {
		return Limit{}, fmt.Errorf("sluice: limit %q: burst %w", s, err)
	}
	if l.Burst == 0 {
		return Limit{}, fmt.Errorf("sluice: limit %q: burst 0 admits nothing; want at least 1, or leave it out for the rate", s)
	}
	return l, nil
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
	return Limit{units, d, AtOnce}, nil
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
