package limittest

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// clockPause is how far CheckClock lets the time go on.
	clockPause = 10 * time.Millisecond

	// clockApart is the most by which a clock may be behind, or ahead of, the time that has
	// passed, beside its resolution: a FastClock promises 12 us.
	clockApart = 20 * time.Microsecond

	// clockTries is how often a clock is looked at before it is wrong: outside of a bubble a busy
	// machine can hold up a goroutine, or a refresh.
	clockTries = 20

	// farApart is further than a wall clock is set, and nearer than a bubble, which begins in 2000.
	farApart = 365 * 24 * time.Hour
)

// CheckClock returns an error if c does not tell the time by which the calling goroutine sleeps:
// its testing/synctest bubble's, or real time outside of one. Such a clock makes a test wrong
// that sleeps and expects its limits to follow. The error says how to mend that.
//
// It sleeps for 10 ms, or for two resolutions of a CoarseClock if these are longer. In a bubble that
// takes no real time, but moves the bubble's. A ManualClock is an error, too, since it does not move
// by itself.
func CheckClock(c sluice.Clock) error {
	if c == nil {
		return fmt.Errorf("limittest: CheckClock: the clock is nil; want one, such as the one in the Config of a limiter")
	}
	if _, ok := c.(*sluice.ManualClock); ok {
		return fmt.Errorf("limittest: CheckClock: a ManualClock stands still while a goroutine sleeps; call its Advance instead of time.Sleep, or take a SystemClock made in the bubble")
	}
	lag := time.Duration(0)
	if coarse, ok := c.(*sluice.CoarseClock); ok {
		lag = 2 * coarse.Resolution()
	}
	var err error
	for range clockTries {
		if err = checkOnce(c, lag); err == nil {
			return nil
		}
	}
	return err
}

// checkOnce looks at the clock before and after a pause. Each time is between two readings of the
// time that counts.
func checkOnce(c sluice.Clock, lag time.Duration) error {
	start := time.Now()
	first := c.Now()
	started := time.Now()
	time.Sleep(max(clockPause, lag))
	stop := time.Now()
	second := c.Now()
	stopped := time.Now()

	went := time.Duration(second - first)
	least, most := stop.Sub(started)-clockApart-lag, stopped.Sub(start)+clockApart+lag
	switch apart := stopped.Sub(time.Unix(0, second)); {
	case apart > farApart || apart < -farApart:
		return fmt.Errorf("limittest: CheckClock: the clock says %v at %v; make it on this side of the bubble's edge, where it is used",
			time.Unix(0, second).UTC(), stopped.UTC().Round(0))
	case went < least || went > most:
		return fmt.Errorf("limittest: CheckClock: the clock went on by %v in %v; make it on this side of the bubble's edge, where it is used", went, stopped.Sub(start))
	}
	return nil
}
