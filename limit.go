package sluice

import (
	"fmt"
	"math"
	"time"
	"unique"

	"github.com/sluice-go/sluice/internal/calendar"
	"github.com/sluice-go/sluice/internal/limittext"
)

// Limit is the policy for a key: in the long run Rate units of cost per Period,
// and at most Burst units at once.
type Limit struct {
	// Rate is the number of units per Period. 0 denies everything, whatever Burst
	// is. math.MaxInt admits everything, and takes no Burst; on a 32-bit platform
	// that is 2147483647.
	Rate int
	// Period is the time over which Rate is stated. It must be positive.
	Period time.Duration
	// Burst is the total cost that a fresh key can be charged at once, at least 1.
	// 0 means Rate. For the window algorithms it must be 0 or Rate. AtOnce sets it to a mark.
	Burst int

	calendar unique.Handle[calendar.Calendar] // of PerCalendar, or zero
}

// Two limits that every algorithm accepts.
var (
	// Unlimited admits every call whose cost is not negative and keeps no state.
	Unlimited = Per(math.MaxInt, time.Second)
	// DenyAll denies every call.
	DenyAll = Limit{Rate: 0, Period: time.Second}
)

const day = 24 * time.Hour

// Per returns a limit of n units per period, with a burst of n. As everywhere, a plain number
// is a Duration in nanoseconds: ten a minute are Per(10, time.Minute), and Per(10, 60)
// limits next to nothing.
func Per(n int, period time.Duration) Limit { return Limit{Rate: n, Period: period} }

// PerSecond returns a limit of n units per second, with a burst of n.
func PerSecond(n int) Limit { return Per(n, time.Second) }

// PerMinute returns a limit of n units per minute, with a burst of n.
func PerMinute(n int) Limit { return Per(n, time.Minute) }

// PerHour returns a limit of n units per hour, with a burst of n.
func PerHour(n int) Limit { return Per(n, time.Hour) }

// PerDay returns a limit of n units per 24 hours, with a burst of n.
func PerDay(n int) Limit { return Per(n, day) }

// AtOnce returns the limit of n units in use at once, for InFlight alone: other algorithms refuse it. Units that
// are not given back or renewed come back by themselves after the lease, the Period, as InFlight says.
func AtOnce(n int, lease time.Duration) Limit {
	return Limit{Rate: n, Period: lease, Burst: limittext.AtOnce}
}

// PerCalendar returns the limit of n units in each window of a calendar, for FixedWindow alone: other algorithms refuse it. Its
// Period is the length of the longest window, as if all days had 24 hours. RetryAfter, ResetAfter and WorstCase are exact. What is wrong with c, New says.
func PerCalendar(n int, c Calendar) Limit {
	inner := c.inner()
	return Limit{Rate: n, Period: inner.Longest(), calendar: unique.Make(inner)}
}

// Calendar returns the calendar of a limit of PerCalendar, with what is zero replaced by what it stands for. It is the zero
// value for other limits.
func (l Limit) Calendar() Calendar { return outer(l.dates()) }

// dates is Calendar, as the windows want it.
func (l Limit) dates() calendar.Calendar {
	if l.calendar == (unique.Handle[calendar.Calendar]{}) {
		return calendar.Calendar{}
	}
	return l.calendar.Value()
}

// dated reports whether the limit has a calendar.
func (l Limit) dated() bool { return l.calendar != (unique.Handle[calendar.Calendar]{}) }

// WithBurst returns the limit with its burst set to n units in total. An n of 0 is the rate
// again, not a burst of nothing. A limit of AtOnce becomes a rate.
func (l Limit) WithBurst(n int) Limit {
	l.Burst = n
	return l
}

// Share returns the limit for each of n replicas that together keep to l and do not know
// of each other. Rate and Burst are divided by n and rounded down, but not to 0: a Burst
// below n becomes 1, and a Rate below n becomes 1 per n*Period/Rate, rounded up. So in the
// long run all shares together admit at most as much as l, and at once at most its burst,
// or n units if that is more. A period that does not fit into a Duration becomes the
// longest one. Of AtOnce(m, lease) each share is m/n units, but at least 1, with the same lease; of PerCalendar(m, c)
// m/n units, but at least 1, with the same calendar.
// DenyAll and Unlimited do not change, and an n below 1 counts as 1.
//
// Shares round down by up to n-1 units in all: of 10 a second, three replicas get 3 each.
func (l Limit) Share(n int) Limit {
	if n <= 1 || l.Rate <= 0 || l.Rate == math.MaxInt || l.Period <= 0 {
		return l
	}
	switch {
	case l.Rate >= n:
		l.Rate /= n
	case l.Burst == limittext.AtOnce || l.dated():
		l.Rate = 1
	default:
		period, rest := mulDiv(uint64(l.Period), uint64(n), uint64(l.Rate))
		if rest > 0 {
			period++
		}
		l.Rate, l.Period = 1, time.Duration(min(period, math.MaxInt64))
	}
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/n)
	}
	return l
}

func (l Limit) validate() *ConfigError {
	if l.dated() {
		if err := l.validateCalendar(); err != nil {
			return err
		}
	}
	switch {
	case l.Period <= 0:
		return configErrorf("Limit.Period", "%v is not positive; want a positive duration, as in sluice.PerSecond(100)", l.Period)
	case l.Rate < 0:
		return configErrorf("Limit.Rate", "%d is negative; want units per period, or 0 to deny everything", l.Rate)
	case l.Rate == math.MaxInt && l.dated():
		return configErrorf("Limit.Rate", "%d with a calendar, of which nothing would come back; want Unlimited, or a rate below %d", l.Rate, math.MaxInt)
	case l.Rate == math.MaxInt && l.Burst != 0:
		return configErrorf("Limit.Burst", "%d with an unlimited rate, under which no burst would hold; want 0, or a rate below %d", l.Burst, math.MaxInt)
	case l.Burst < 0 && l.Burst != limittext.AtOnce:
		return configErrorf("Limit.Burst", "%d is negative; want 0 for the rate, or at least 1", l.Burst)
	}
	return nil
}

// validateCalendar returns an error if the calendar of a limit cannot be kept.
func (l Limit) validateCalendar() *ConfigError {
	c := l.dates()
	if err := c.Check(); err != nil {
		return configErrorf("Limit", "%v", err)
	}
	if l.Period != c.Longest() {
		return configErrorf("Limit.Period", "%v with a calendar, which says how long windows are; want the limit as PerCalendar makes it", l.Period)
	}
	return nil
}

// burst returns the units that can be admitted at once.
func (l Limit) burst() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Rate
}

// interval returns the time that one unit takes to return, rounded up.
func (l Limit) interval() time.Duration {
	return (l.Period-1)/time.Duration(l.Rate) + 1
}

// String returns the text form that ParseLimit reads: "100/s", "20/m burst 5",
// "7/1m30s", "10 at once, lease 1m", "1000 per month in Asia/Seoul starting 15", or "unlimited" for Unlimited.
func (l Limit) String() string {
	return limittext.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst, Calendar: l.dates()}.Text()
}

// MarshalText returns the text form, which is empty for the zero Limit, so that a
// configuration without a limit can be written. Any other limit that New would refuse
// under every algorithm is an error.
func (l Limit) MarshalText() ([]byte, error) {
	if l == (Limit{}) {
		return []byte{}, nil
	}
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("sluice: limit has no text form: %s: %s", err.Field, err.Reason)
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads the form that ParseLimit describes. An empty text is the zero Limit,
// which New refuses.
func (l *Limit) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*l = Limit{}
		return nil
	}
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// ParseLimit reads a limit: a whole number of units, a slash, and a unit (s, sec, second;
// m, min, minute; h, hr, hour; d, day; w, week) or a duration that time.ParseDuration
// reads; then optionally the word burst and a whole number. "10 at once, lease 1m" is
// AtOnce(10, time.Minute), "unlimited" stands for Unlimited, "0/s" is DenyAll.
//
// "1000 per month in Asia/Seoul" is PerCalendar: per, and day, week, month, quarter or year; then optionally in and a zone,
// which is UTC without; then optionally starting and a first date: 15 of a month, 04-06, with the month, of a quarter or a year, sunday of a week.
//
// String is its inverse.
func ParseLimit(s string) (Limit, error) {
	l, err := limittext.Parse(s)
	out := Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst}
	if l.Calendar.Unit != calendar.None {
		out.calendar = unique.Make(l.Calendar)
	}
	return out, err
}

// constant reports whether the limit decides without the key's state.
func (l Limit) constant() bool { return l.Rate == 0 || l.Rate == math.MaxInt }

// Capacity returns the most that can be admitted at once: the burst, under the window
// algorithms the rate. It is the Limit of a Decision, and so without Config.Soft:
// math.MaxInt under Unlimited and 0 under DenyAll.
func (l Limit) Capacity() int {
	if l.constant() {
		return l.Rate
	}
	return l.burst()
}
