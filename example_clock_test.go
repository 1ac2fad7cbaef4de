package sluice_test

import (
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// A test of your own code moves the time itself.
func ExampleManualClock() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1), Clock: clock}))

	fmt.Println(lim.Allow("login:ann"))
	clock.Advance(time.Minute - 1)
	fmt.Println(lim.Allow("login:ann"))
	clock.Advance(1)
	fmt.Println(lim.Allow("login:ann"))
	// Output:
	// true
	// false
	// true
}

// A coarse clock makes decisions up to about twice as fast. One clock can serve many
// limiters, and none of them has to be closed.
func ExampleNewCoarseClock() {
	clock := sluice.NewCoarseClock(time.Millisecond)
	perUser := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1000), Clock: clock}))
	perHost := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5000), Clock: clock}))
	fmt.Println(perUser.Allow("ann") && perHost.Allow("192.0.2.1"))
	// Output: true
}

// A fast clock makes a decision a quarter cheaper, where the processor has a counter for it.
func ExampleNewFastClock() {
	clock := sluice.NewFastClock()
	if why, slow := strings.CutPrefix(clock.Source(), "system clock: "); slow {
		log.Println("the clock is no faster than the system's:", why)
	}
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1), Clock: clock}))
	fmt.Println(lim.Allow("ann"), lim.Allow("ann"))
	// Output: true false
}
