package replay

import "time"

// A Clock is the time of a log. It is common to all clients and never goes back: it stands at
// the latest time of any request so far. Logs are written when requests end, and
// by many workers at once, so a request that is a little earlier than the one
// before it is the rule; a server would have decided it at the time it came up.
//
// The zero Clock has seen no request.
type Clock struct {
	Now   int64 // the latest time so far, in nanoseconds since 1970
	First int64 // the earliest
	// Late counts the requests earlier than one before them, and MaxLate is the furthest that one was behind.
	Late    int64
	MaxLate time.Duration
	Unit    time.Duration // a second, unless a time was not a whole number of them; 0 before the first
}

// Advance moves the clock to the time of a request, which must not be negative, unless it is past that. It
// returns Now.
func (c *Clock) Advance(at int64) int64 {
	if c.Unit == 0 {
		c.Now, c.First, c.Unit = at, at, time.Second
	}
	if at%int64(time.Second) != 0 {
		c.Unit = 1
	}
	c.First = min(c.First, at)
	if at < c.Now {
		c.Late++
		c.MaxLate = max(c.MaxLate, time.Duration(c.Now-at))
	}
	c.Now = max(c.Now, at)
	return c.Now
}
