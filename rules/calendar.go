package rules

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/calendar"
)

// readCalendar reads "calendar" of a rate_limit.
func (r *rateLimitReader) readCalendar(f field) {
	if f.value.Kind != yaml.MappingNode {
		r.errorAt(f.value, r.path, "calendar is %s; want a map with unit, and perhaps zone and starts", show(f.value))
		return
	}
	var c calendar.Calendar
	by := last(r.fields(f.value, r.path))
	for _, f := range by {
		switch f.name {
		case "unit":
			text := r.text(f, r.path)
			if err := c.ParseUnit(text); err != nil {
				r.errorAt(f.value, r.path, "calendar: %v", err)
				return
			}
		case "zone":
			c.Zone = r.text(f, r.path)
		case "starts":
		default:
			r.unknown(f, r.path, inCalendar)
		}
	}
	if c.Unit == calendar.None {
		r.errorAt(f.value, r.path, "calendar has no unit; want day, week, month, quarter or year")
		return
	}
	c = c.Filled()
	if f, ok := by.get("starts"); ok {
		if err := c.ParseStarts(r.word(f, r.path)); err != nil {
			r.errorAt(f.value, r.path, "starts: %v", err)
			return
		}
	}
	at := f.value
	if zone, ok := by.get("zone"); ok {
		at = zone.value
	}
	dates, err := calendar.New(c)
	if err != nil {
		r.errorAt(at, r.path, "zone: %v", err)
		return
	}
	r.out.dates = dates
}

// word is text, or a number as it is written.
func (l *loader) word(f field, path string) string {
	if f.value.Kind == yaml.ScalarNode && scalarKind(f.value) == intKind {
		return f.value.Value
	}
	return l.text(f, path)
}

// checkCalendar reports whether the rule has a calendar, and refuses other keys for the length of the windows beside it.
func (r *rateLimitReader) checkCalendar() bool {
	f, ok := r.by.get("calendar")
	if !ok || isNull(f.value) {
		return false
	}
	for _, name := range []string{"unit", "period", "unit_multiplier"} {
		if f, ok := r.by.get(name); ok {
			r.errorAt(f.key, r.path, "calendar and %s are both given; want %s deleted, since the calendar has a unit of its own", name, name)
		}
	}
	if dates := r.out.dates; dates != nil {
		r.out.calendar = sluice.Calendar{Unit: sluice.CalendarUnit(dates.Unit), Zone: dates.Zone, Month: dates.Month, Day: dates.Day}
		r.out.period, r.out.unit = time.Duration(dates.Longest()), UnknownUnit
	}
	return true
}
