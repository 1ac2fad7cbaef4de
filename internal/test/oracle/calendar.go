package oracle

import (
	"math"
	"math/big"
	"time"
)

// A Calendar makes the windows of FixedWindow those of dates: the window of an instant is the first date, at or before its own
// date in the zone, that begins one. The clocks of the zone must not be set back over midnight.
type Calendar struct {
	Zone   *time.Location
	Begins func(date time.Time) bool // noon of a date, in UTC
	Tick   time.Duration             // the unit of instants; 0 is 1 ns. Seconds have a whole number of it
}

func (c *Calendar) tick() int64 { return max(1, int64(c.Tick)) }

// firstDate returns the first date of the window of an instant, in days since 1970.
func (c *Calendar) firstDate(t int64) int64 {
	y, m, d := time.Unix(0, t*c.tick()).In(c.Zone).Date()
	date := time.Date(y, m, d, 12, 0, 0, 0, time.UTC)
	for !c.Begins(date) {
		date = date.AddDate(0, 0, -1)
	}
	return int64(math.Floor(float64(date.Unix()) / 86400))
}

// begin returns the first instant from 1970 on of the windows that begin on a date or later, by bisection.
func (c *Calendar) begin(date int64) int64 {
	if c.firstDate(0) >= date {
		return 0
	}
	from, to := int64(0), math.MaxInt64/c.tick()
	for to-from > 1 {
		if middle := from + (to-from)/2; c.firstDate(middle) < date {
			from = middle
		} else {
			to = middle
		}
	}
	return to
}

// Window names the window of an instant, by its first date, and returns when it ends.
func (c *Calendar) Window(t int64) (name, end int64) {
	name = c.firstDate(t)
	return name, c.begin(name + 1)
}

// worst is R for each window that a span of d can touch: it begins an instant before a window, and every window is tried.
func (c *Calendar) worst(rate, d int64) *big.Int {
	var begins []int64
	last := c.firstDate(math.MaxInt64 / c.tick())
	for date := c.firstDate(0) + 1; date <= last; date++ {
		if c.Begins(time.Unix(date*86400+43200, 0).UTC()) {
			y, m, day := time.Unix(date*86400, 0).UTC().Date()
			begins = append(begins, time.Date(y, m, day, 0, 0, 0, 0, c.Zone).UnixNano()/c.tick())
		}
	}
	most, from := 0, 0
	for to := range begins {
		for begins[to]-begins[from] >= d && from < to {
			from++
		}
		most = max(most, to-from+1)
	}
	if d == 0 {
		most = 0
	}
	return new(big.Int).Mul(big.NewInt(int64(most)+1), big.NewInt(rate))
}
