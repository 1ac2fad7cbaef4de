// Package calendar has windows that follow the dates of a time zone: days, weeks, months, quarters and years.
//
// A window begins at the first instant at which the clocks of the zone show its first date, or a later one. So a
// day without midnight, or without any hour, begins when the next time of the zone does, and clocks that are set
// back over midnight do not begin the day before again.
package calendar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Calendar says where windows begin. Its zero value is no calendar.
type Calendar struct {
	Unit  Unit
	Zone  string     // a name of the IANA time zone database
	Month time.Month // the first month of a year, or of a quarter; otherwise January
	Day   int        // the first day of a month, quarter or year, 1 to 28; of a week, from 1 for Monday to 7; otherwise 1
}

// Unit is what a window is in the calendar.
type Unit uint8

// The units.
const (
	None Unit = iota
	Day
	Week
	Month
	Quarter
	Year
)

// Units are the names of the units.
var Units = []string{"none", "day", "week", "month", "quarter", "year"}

const (
	// MaxZone is the most bytes that the name of a zone has. The longest name in the database has 32.
	MaxZone = 40
	// maxDay is the largest day that each month has.
	maxDay = 28
	day    = 24 * time.Hour
)

var longest = [...]time.Duration{Day: day, Week: 7 * day, Month: 31 * day, Quarter: 92 * day, Year: 366 * day}

// Longest returns the length of the longest window, but for changes of summer time.
func (c Calendar) Longest() time.Duration {
	if int(c.Unit) < len(longest) {
		return longest[c.Unit]
	}
	return 0
}

// Filled returns c with what is zero replaced by what it stands for: UTC, January, the first day, Monday. Calendars of the same
// windows are then equal, except for zones of several names.
func (c Calendar) Filled() Calendar {
	if c.Unit == None {
		return c
	}
	c.Zone, c.Month, c.Day = cmp.Or(c.Zone, "UTC"), cmp.Or(c.Month, time.January), cmp.Or(c.Day, 1)
	return c
}

// Check returns an error if c, which is Filled, is not a calendar.
func (c Calendar) Check() error {
	_, err := c.zone()
	return cmp.Or(c.checkDates(), err)
}

func (c Calendar) checkDates() error {
	monthly := c.Unit == Quarter || c.Unit == Year
	switch {
	case c.Unit == None || int(c.Unit) >= len(Units):
		return fmt.Errorf("a calendar has no unit %d; want day, week, month, quarter or year", c.Unit)
	case c.Unit == Week && (c.Day < 1 || c.Day > 7):
		return fmt.Errorf("a week cannot begin on day %d; want 1 for Monday to 7 for Sunday", c.Day)
	case c.Unit == Day && c.Day != 1:
		return fmt.Errorf("a day cannot begin on day %d; want a unit of month, quarter or year with it, or none", c.Day)
	case c.Day < 1 || c.Day > maxDay:
		return fmt.Errorf("a %s cannot begin on day %d, which not every month has; want 1 to %d", c.Unit, c.Day, maxDay)
	case monthly && (c.Month < time.January || c.Month > time.December):
		return fmt.Errorf("a %s cannot begin in month %d; want 1 to 12", c.Unit, int(c.Month))
	case !monthly && c.Month != time.January:
		return fmt.Errorf("a %s cannot begin in month %d; want a unit of quarter or year with it, or none", c.Unit, int(c.Month))
	}
	return nil
}

var zones sync.Map // of name to *time.Location; no more than there are zones

// zone returns the time zone.
func (c Calendar) zone() (*time.Location, error) {
	if z, ok := zones.Load(c.Zone); ok {
		return z.(*time.Location), nil
	}
	z, err := load(c.Zone, time.LoadLocation)
	if err == nil {
		zones.Store(c.Zone, z)
	}
	return z, err
}

// load loads a zone of that name, or says why it cannot.
func load(name string, from func(string) (*time.Location, error)) (*time.Location, error) {
	switch {
	case name == "Local":
		return nil, errors.New(`the time zone "Local" is another one on each machine; want a name such as "Asia/Seoul" or "UTC"`)
	case len(name) > MaxZone:
		return nil, fmt.Errorf("the name of the time zone has %d bytes; want at most %d, as in \"Asia/Seoul\"", len(name), MaxZone)
	}
	z, err := from(name)
	if err == nil {
		return z, nil
	}
	if _, missing := from("Europe/London"); missing != nil {
		return nil, fmt.Errorf("the time zone %q cannot be loaded, since this machine has no time zone database: want import _ \"time/tzdata\" in the program, or the package tzdata installed", name)
	}
	return nil, fmt.Errorf("there is no time zone %q; want a name such as \"Asia/Seoul\", \"America/New_York\" or \"UTC\"", name)
}

var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// Starts returns the text of the first date that ParseStarts reads, or "" if it is the default.
func (c Calendar) Starts() string {
	switch c = c.Filled(); {
	case c.Month == time.January && c.Day == 1:
		return ""
	case c.Unit == Week && c.Day <= len(weekdays):
		return weekdays[c.Day-1]
	case c.Unit == Quarter || c.Unit == Year:
		return fmt.Sprintf("%02d-%02d", int(c.Month), c.Day)
	}
	return strconv.Itoa(c.Day)
}

// ParseStarts sets the first date: of a month its day, as in 15; of a quarter or a year month and day, as in 04-06; of a week
// the name of the day.
func (c *Calendar) ParseStarts(s string) error {
	c.Month, c.Day = time.January, 1
	want := ""
	switch c.Unit {
	case Week:
		if c.Day = slices.Index(weekdays, s) + 1; c.Day > 0 {
			return nil
		}
		want = "monday to sunday"
	case Month:
		if n, ok := number(s); ok {
			c.Day = n
			return c.checkDates()
		}
		want = fmt.Sprintf("a day from 1 to %d", maxDay)
	case Quarter, Year:
		month, of, ok := strings.Cut(s, "-")
		m, isMonth := number(month)
		d, isDay := number(of)
		if ok && isMonth && isDay {
			c.Month, c.Day = time.Month(m), d
			return c.checkDates()
		}
		want = "a month and a day, such as 04-06"
	default:
		return fmt.Errorf("a %s begins at midnight, not on %q; want it without", c.Unit, s)
	}
	return fmt.Errorf("a %s cannot begin on %q; want %s", c.Unit, s, want)
}

// number reads one or two digits.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil && len(s) <= 2
}

// Text returns the text that Parse reads: "month in Asia/Seoul starting 15".
func (c Calendar) Text() string {
	c = c.Filled()
	text := c.Unit.String() + " in " + c.Zone
	if s := c.Starts(); s != "" {
		text += " starting " + s
	}
	return text
}

// Forms says how calendars are written.
const Forms = `"N per UNIT in ZONE", optionally " starting DATE", as in "1000 per day in Asia/Seoul", "1000 per month in UTC starting 15", "9 per year in Europe/London starting 04-06"`

// ParseUnit sets the unit.
func (c *Calendar) ParseUnit(s string) error {
	i := slices.Index(Units, s)
	if i <= 0 {
		return fmt.Errorf("%q is no unit of a calendar; want day, week, month, quarter or year", s)
	}
	c.Unit = Unit(i)
	return nil
}

// String returns the name, or a number for a unit that has none.
func (u Unit) String() string {
	if int(u) < len(Units) {
		return Units[u]
	}
	return strconv.Itoa(int(u))
}

// Fields returns the calendar as fields: "unit: month, zone: Asia/Seoul, starts: 15".
func (c Calendar) Fields() string {
	text := "unit: " + c.Unit.String() + ", zone: " + c.Zone
	if s := c.Starts(); s != "" {
		text += ", starts: " + s
	}
	return text
}

// Parse reads the words of a calendar, which Text writes. Without a zone it is of UTC.
func Parse(words []string) (c Calendar, err error) {
	if len(words) == 0 {
		return c, errors.New("it has no unit; want " + Forms)
	}
	if err := c.ParseUnit(words[0]); err != nil {
		return c, fmt.Errorf("%w, or for windows of a fixed length %q", err, "N/"+words[0])
	}
	words = words[1:]
	if len(words) > 1 && words[0] == "in" {
		c.Zone = words[1]
		words = words[2:]
	}
	c = c.Filled()
	if len(words) == 2 && words[0] == "starting" {
		if err := c.ParseStarts(words[1]); err != nil {
			return c, err
		}
		words = nil
	}
	if len(words) > 0 {
		return c, fmt.Errorf("%q is out of place; want %s", strings.Join(words, " "), Forms)
	}
	return c, c.Check()
}
