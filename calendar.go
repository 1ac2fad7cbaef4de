package sluice

import (
	"time"

	"github.com/sluice-go/sluice/internal/calendar"
)

// Calendar cuts time into windows by the dates of a time zone, for limits such as 1000 a month: see PerCalendar. Windows are
// as long as their days and months are: 23 or 25 hours where summer time begins or ends, 28 to 31 days.
//
// A window begins at the first instant at which the clocks of the zone show its first date, or a later one. A
// day whose midnight is skipped begins when the clocks go on, and clocks that are set back over midnight begin no day again.
type Calendar struct {
	// Unit is what a window is. It has to be given.
	Unit CalendarUnit
	// Zone is the name of a time zone in the IANA database, of at most 40 bytes, such as "Asia/Seoul". "" means "UTC". "Local" is
	// refused, since it is another zone on each machine. Zones are found as by time.LoadLocation: a program that runs
	// where there is no database imports time/tzdata.
	Zone string
	// Month is the first month of a year, such as the first month of a tax year, and of a quarter. 0 means January. The other units have none.
	Month time.Month
	// Day is the first day of a month, quarter or year, 1 to 28, and of a week from 1 for Monday to 7 for Sunday. 0 means 1. A day has none.
	Day int
}

// CalendarUnit is what a window of a Calendar is.
type CalendarUnit uint8

// The units of calendars. Their text forms are day, week, month, quarter and year.
const (
	CalendarDay     = CalendarUnit(calendar.Day)
	CalendarWeek    = CalendarUnit(calendar.Week)
	CalendarMonth   = CalendarUnit(calendar.Month)
	CalendarQuarter = CalendarUnit(calendar.Quarter)
	CalendarYear    = CalendarUnit(calendar.Year)
)

// String returns the text form, or CalendarUnit(n) for a value that has none.
func (u CalendarUnit) String() string { return enumString("CalendarUnit", calendar.Units, u) }

// MarshalText returns the text form; a value that has none is an error. The zero value is "none".
func (u CalendarUnit) MarshalText() ([]byte, error) {
	return enumMarshal("calendar unit", calendar.Units, u)
}

// UnmarshalText accepts exactly the text forms.
func (u *CalendarUnit) UnmarshalText(text []byte) error {
	return enumUnmarshal("calendar unit", calendar.Units, u, text)
}

func (c Calendar) inner() calendar.Calendar {
	return calendar.Calendar{Unit: calendar.Unit(c.Unit), Zone: c.Zone, Month: c.Month, Day: c.Day}.Filled()
}

func outer(c calendar.Calendar) Calendar {
	return Calendar{CalendarUnit(c.Unit), c.Zone, c.Month, c.Day}
}

// Window returns when the window that contains t begins, and when it ends: the first instant of the next one. Of a time before 1970
// or after 2262 it is the first or the last window of these years; the first one begins with 1970 in UTC, and the last
// one ends with the clocks of this package. The error is a *ConfigError about the calendar.
func (c Calendar) Window(t time.Time) (begins, ends time.Time, err error) {
	w, err := calendar.New(c.inner())
	if err != nil {
		return begins, ends, configErrorf("Calendar", "%v", err)
	}
	n := w.At(unixNanos(t))
	at := func(nanos uint64) time.Time { return time.Unix(0, int64(min(nanos, 1<<63-1))).In(t.Location()) }
	return at(w.Start(n)), at(w.Start(n + 1)), nil
}
