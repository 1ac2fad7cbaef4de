// Package lag translates waits on a limiter's clock into waits in real time.
package lag

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// Of returns how far a clock can be behind: the time that has passed since its last refresh,
// and as much for one that is late.
func Of(c sluice.Clock) time.Duration {
	if r, ok := c.(interface{ Resolution() time.Duration }); ok {
		return 2 * min(max(r.Resolution(), 0), math.MaxInt64/2)
	}
	return 0
}

// Later returns a wait on a clock as a wait in real time, given how far the clock can be behind. No wait, and
// sluice.Never, are the same on both.
func Later(wait, lag time.Duration) time.Duration {
	if wait == 0 || wait == sluice.Never {
		return wait
	}
	return wait + min(lag, sluice.Never-1-wait)
}
