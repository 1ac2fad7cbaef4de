// Command soak reads a FastClock beside the system clock for as long as it is told, and prints how far
// apart they have been:
//
//	go run ./internal/soak -for 1h
//
// It takes a twentieth of a processor, so that the machine can be as busy as it is elsewhere. It fails
// if a reading was more than 1 us off, or if the clock is, or has become, the system clock.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/counter"
)

const (
	bound  = int64(time.Microsecond)
	burst  = 300
	pause  = time.Millisecond // between two bursts
	breaks = 3 * time.Second  // the longest in which nobody reads the clock; a break comes as seldom
)

// A watch reads a clock between two readings of the system clock.
type watch struct {
	name         string
	clock        sluice.Clock
	system       sluice.Clock
	readings     int
	last         int64
	below, above int64 // most that it was below the reading before it, and above the one after it
	back         int64 // most that it went back
}

func (w *watch) read() {
	before := w.system.Now()
	now := w.clock.Now()
	after := w.system.Now()
	w.readings++
	w.below, w.above = max(w.below, before-now), max(w.above, now-after)
	w.back = max(w.back, w.last-now)
	w.last = now
}

func (w *watch) String() string {
	return fmt.Sprintf("%s: %d readings, at most %d ns below the system clock and %d ns above, back by %d ns",
		w.name, w.readings, w.below, w.above, w.back)
}

func (w *watch) off() bool { return max(w.below, w.above) > bound }

func main() {
	last := flag.Duration("for", time.Hour, "how long")
	flag.Parse()
	clock := sluice.NewFastClock()
	fmt.Println("the clock reads", clock.Source())
	busy := &watch{name: "in use", clock: clock, system: sluice.SystemClock()}
	idle := &watch{name: "after breaks", clock: clock, system: sluice.SystemClock()}
	end := time.Now().Add(*last)
	for next := time.Now(); time.Now().Before(end); {
		for range burst {
			busy.read()
		}
		time.Sleep(pause)
		if now := time.Now(); now.After(next) {
			time.Sleep(time.Duration(rand.Int64N(int64(breaks))))
			idle.read()
			next = time.Now().Add(breaks)
		}
	}
	fmt.Println(busy)
	fmt.Println(idle)
	if busy.off() || idle.off() || clock.Source() != counter.Name {
		fmt.Printf("want at most %d ns, and %s as the source; it is %s\n", bound, counter.Name, clock.Source())
		os.Exit(1)
	}
}
