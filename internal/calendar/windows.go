package calendar

import (
	"math"
	"sync/atomic"
	"time"
)

// Windows are the windows of a calendar, from the window in which 1970 begins in UTC, number 0, to the window in which the
// clocks of this library end, in 2262. They are safe for concurrent use, and allocate nothing. A window has no instant if
// the zone has skipped its dates.
type Windows struct {
	Calendar
	in    *time.Location
	first int64  // the ordinal of window 0
	last  uint64 // the number of the last window

	// current is the number that was found last, and starts has, at its number modulo its length, where a window that was asked
	// for begins: number+1, and in secondBits seconds. Each entry is whole by itself.
	current atomic.Uint64
	starts  [16]atomic.Uint64
}

const (
	second      = uint64(time.Second)
	secondBits  = 34 // to the year 2514
	daySeconds  = 24 * 60 * 60
	maxOffset   = 2 * daySeconds // more than any zone is off UTC
	lastSeconds = math.MaxInt64 / int64(time.Second)
)

// New returns the windows of a calendar.
func New(c Calendar) (*Windows, error) {
	c = c.Filled()
	if err := c.Check(); err != nil {
		return nil, err
	}
	zone, err := c.zone()
	if err != nil {
		return nil, err
	}
	w := &Windows{Calendar: c, in: zone, last: math.MaxUint32}
	w.first = w.ordinalOf(0)
	for w.begin(w.first+1) <= 0 {
		w.first++
	}
	w.last = w.find(math.MaxInt64)
	w.current.Store(0)
	return w, nil
}

// Last is the number of the last window.
func (w *Windows) Last() uint64 { return w.last }

// At returns the number of the window of now, which is not negative, in nanoseconds since 1970.
func (w *Windows) At(now int64) uint64 {
	n := w.current.Load()
	if t := uint64(now); w.Start(n) <= t && t < w.Start(n+1) {
		return n
	}
	return w.find(now)
}

// Start returns the first nanosecond of a window after 1970: 0 for window 0, and math.MaxUint64 after the last window.
func (w *Windows) Start(number uint64) uint64 {
	if e := w.starts[number%16].Load(); e>>secondBits == number+1 {
		return e & (1<<secondBits - 1) * second
	}
	return w.startSlow(number)
}

func (w *Windows) startSlow(number uint64) uint64 {
	if number > w.last {
		return math.MaxUint64
	}
	at := max(w.begin(w.first+int64(number)), 0)
	if at > lastSeconds {
		return math.MaxUint64
	}
	w.starts[number%16].Store((number+1)<<secondBits | uint64(at))
	return uint64(at) * second
}

// find is At for a window that is not the current one, and makes it the current one.
func (w *Windows) find(now int64) uint64 {
	n := uint64(max(w.ordinalOf(now/int64(second))-w.first, 0))
	for w.Start(n+1) <= uint64(now) { // clocks were set back over midnight, or a window has no instant
		n++
	}
	w.current.Store(n)
	return n
}

// Touched returns how many windows a closed span of d >= 0 ns can have an instant of, at most.
func (w *Windows) Touched(d int64) uint64 {
	if d == 0 {
		return 1
	}
	// Of each pair of boundaries less than d apart, the instant before the first begins a span of d that holds both.
	oldest, newest := w.cursor(w.first), w.cursor(w.first)
	begin := oldest.next()
	most, open := uint64(0), uint64(0)
	for {
		at := newest.next()
		if at > lastSeconds {
			return most + 1
		}
		open++
		for at-begin > (d-1)/int64(second) {
			begin = oldest.next()
			open--
		}
		most = max(most, open)
	}
}

// begin returns when the window of an ordinal begins, in seconds since 1970.
func (w *Windows) begin(ordinal int64) int64 {
	c := w.cursor(ordinal)
	return c.begin()
}

// ordinalOf returns the ordinal of the window that the date at an instant, in seconds, is in: windows are counted from 1970 in
// any zone.
func (w *Windows) ordinalOf(at int64) int64 {
	y, m, d := time.Unix(at, 0).In(w.in).Date()
	switch w.Unit {
	case Day:
		return utc(y, m, d) / daySeconds
	case Week:
		return floorDiv(utc(y, m, d)/daySeconds-w.monday(), 7)
	}
	months := int64(y-1970)*12 + int64(m-time.January)
	if d < w.Calendar.Day {
		months--
	}
	return floorDiv(months-int64(w.Month-time.January), w.months())
}

// date returns midnight of the first date of an ordinal, as if it were in UTC.
func (w *Windows) date(ordinal int64) int64 {
	switch w.Unit {
	case Day:
		return ordinal * daySeconds
	case Week:
		return (ordinal*7 + w.monday()) * daySeconds
	}
	return utc(1970, w.Month+time.Month(ordinal*w.months()), w.Calendar.Day)
}

// monday is the day, since 1970, on which week 0 begins; 1970 began on a Thursday.
func (w *Windows) monday() int64 { return int64(w.Calendar.Day-1) - 3 }

// months is how many months a window has.
func (w *Windows) months() int64 {
	switch w.Unit {
	case Quarter:
		return 3
	case Year:
		return 12
	}
	return 1
}

func utc(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix()
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// A cursor goes from window to window. It is in a span of time in which the zone is off UTC by the same seconds.
type cursor struct {
	*Windows
	ordinal          int64
	from, end, ahead int64 // in seconds
}

func (w *Windows) cursor(ordinal int64) cursor {
	c := cursor{Windows: w, ordinal: ordinal}
	c.enter(w.date(ordinal) - maxOffset)
	return c
}

// begin returns when the cursor's window begins: when the clocks of the zone first show its first date, or a later one.
func (c *cursor) begin() int64 {
	date := c.date(c.ordinal)
	for {
		if at := max(c.from, date-c.ahead); at < c.end {
			return at
		}
		c.enter(c.end)
	}
}

// next goes on to the next window that begins later, and returns when it does.
func (c *cursor) next() int64 {
	before := c.begin()
	for {
		c.ordinal++
		if at := c.begin(); at > before {
			return at
		}
	}
}

// enter goes to the span of a time.
func (c *cursor) enter(at int64) {
	t := time.Unix(at, 0).In(c.in)
	_, ahead := t.Zone()
	c.from, c.end, c.ahead = at, math.MaxInt64, int64(ahead)
	if _, end := t.ZoneBounds(); !end.IsZero() {
		// On the last day of a leap year beyond the table of a zone, ZoneBounds has the beginning of that day as the end.
		c.end = max(end.Unix(), at+3600)
	}
}
