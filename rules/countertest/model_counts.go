package countertest

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/rules"
)

// of is the count of a value under a rule.
func (m *model) of(domain string, r *rule, value string) (c counter) {
	text := entriesOf([]rules.Entry{{Key: r.key, Value: value}})
	if r.share {
		text = "shared " + r.path()
	}
	unit := unitOf(r.unit)
	second := false
	for _, o := range m.set {
		second = second || r.name != "" && o.then == r.name
	}
	windows := r.algorithm == "" || r.algorithm == "fixed-window"
	if windows && r.then == "" && !second && (!r.admitted || domain == "a") {
		c = m.window(domain, text, unit, r.requests)
		if c.calendar = r.dates(); c.calendar != nil {
			name, _ := c.calendar.Window(m.at)
			c.id = fmt.Sprint(domain, text, " calendar ", unit, name)
		}
	} else {
		name := r.algorithm
		if name == "" {
			name = "fixed-window"
		}
		id := fmt.Sprint(domain, "/", r.path(), " ", name, " ", r.unit, r.calendar)
		if m.limiters[id] == nil {
			config := oracle.Named(name)
			config.Rate, config.Period, config.Grid, config.Calendar = r.requests, int64(unit.Period()), true, r.dates()
			m.limiters[id] = oracle.New(config)
		}
		c = counter{id: id + " " + text, lim: m.limiters[id], key: text, limit: r.requests, period: int64(unit.Period()), inFlight: name == "in-flight"}
	}
	c.path, c.whose, c.debt = domain+"/"+r.path(), fmt.Sprint(domain, text), 10*r.requests
	if r.debt >= 0 {
		c.debt = r.debt
	}
	for i := range m.set {
		if s := &m.set[i]; r.then != "" && s.name == r.then {
			of := value
			if s.value != "" {
				of = s.value
			}
			more := m.of(domain, s, of)
			c.second = &more
		}
	}
	return c
}

// window is a window that counts all hits. All limits of its unit share it.
func (m *model) window(domain, text string, unit rules.Unit, limit int64) counter {
	period := int64(unit.Period())
	return counter{id: fmt.Sprint(domain, text, unit, m.at/period), key: text, limit: limit, period: period}
}

// zone is where the calendars of rules are.
const zone = "America/New_York"

// calendars are the calendars, by unit.
var calendars = func() map[string]*oracle.Calendar {
	in, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	begins := map[string]func(d time.Time) bool{
		"day":   func(time.Time) bool { return true },
		"month": func(d time.Time) bool { return d.Day() == 1 },
		"year":  func(d time.Time) bool { return d.Day() == 1 && d.Month() == time.January },
	}
	all := map[string]*oracle.Calendar{}
	for unit, f := range begins {
		all[unit] = &oracle.Calendar{Zone: in, Begins: f}
	}
	return all
}()

// dates is the calendar of a rule, or nil.
func (r *rule) dates() *oracle.Calendar {
	if !r.calendar {
		return nil
	}
	return calendars[r.unit]
}

// until is the time to the end of the window of c.
func (m *model) until(c *counter) time.Duration {
	if c.calendar != nil {
		_, end := c.calendar.Window(m.at)
		return time.Duration(end - m.at)
	}
	return time.Duration(c.period - m.at%c.period)
}
