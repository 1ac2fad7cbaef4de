package tsc

import (
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
)

// A systemOnly says why the clock is the system clock.
type systemOnly struct {
	why   string
	least int64 // the most that the clock has shown before
}

// health is what a Clock knows of its falls. Fields that are not atomic are guarded by the clock's mu.
type health struct {
	next   atomic.Int64 // when, by the system clock, the two are compared next
	wait   int64        // how long the two have to agree before the clock goes by the counter again
	agreed int64        // since when they agree
	healed int64        // when the clock last went back to the counter
}

const (
	// A clock heals when counter and system clock have agreed for firstWait. Each further fall doubles
	// the wait, up to lastWait, unless the clock has gone by the counter for calm waits: a cause that comes back
	// again and again leaves it the system clock for nearly all of the time, and costs little.
	firstWait, lastWait = time.Second, 1024 * time.Second
	calm                = 8

	// looks is how often the two are compared in a wait. A comparison takes some 500 ns.
	looks = 8

	never = math.MaxInt64

	// elsewhen is further behind what the clock has shown than the system clock can be, but in a bubble.
	elsewhen = int64(time.Hour)

	inBubble = "it has been read in a testing/synctest bubble"
)

// benchmarking is read once: a test may write to os.Args.
var benchmarking = benchmarks(os.Args)

// benchmarks reports whether the arguments are of a test that runs benchmarks.
func benchmarks(args []string) bool {
	for _, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name == "test.bench" && (value != "" || !given) {
			return true
		}
	}
	return false
}

// unfit says why no clock can be made of the counter. No reading can afford to ask whether it is made in a bubble, and
// all bubbles are in tests.
func unfit() string {
	if testing.Testing() && !benchmarking {
		return "in a test, which can have testing/synctest bubbles"
	}
	return counter.Unfit()
}

// wall returns the time as it is set. A bubble has no monotonic clock.
func wall() (now int64, bubbled bool) {
	t := time.Now()
	return t.UnixNano(), t == t.Round(0)
}

// fall makes the clock the system clock, and returns the time by it. The clock has shown at most least so far.
func (c *Clock) fall(why string, now, least int64) int64 {
	least = max(now, least)
	if c.wait = min(2*c.wait, int64(lastWait)); c.wait == 0 || now-c.healed > calm*c.wait/2 {
		c.wait = int64(firstWait)
	}
	c.pace = 0 // the next comparison is the first one
	if c.next.Load() != never {
		c.next.Store(0)
	}
	c.fallen.Store(&systemOnly{why, least})
	c.turns += c.turns % 2 // lines[1] is written first when the clock heals: whoever has loaded turn 0 reads lines[0]
	c.lines[0].span.Store(0)
	c.turn.Store(0)
	return least
}

// show returns the time of a fallen clock when the system clock shows now.
func (f *systemOnly) show(now int64) int64 {
	if f.least-now > elsewhen {
		return now
	}
	return max(now, f.least)
}

// readSystem is ReadSlow while the clock is the system clock.
func (c *Clock) readSystem(f *systemOnly) int64 {
	now := c.in.system()
	if now >= c.next.Load() && c.mu.TryLock() {
		c.heal()
		c.mu.Unlock()
	}
	return f.show(now)
}

// heal compares the counter with the system clock while the clock is the latter. Once each pace has been the
// one before for long enough, the clock goes by the counter from then on.
func (c *Clock) heal() {
	f := c.fallen.Load()
	s, window := c.sample()
	if f == nil || s.bubbled {
		return
	}
	was := c.pace
	pace, ok := paceOf(s.system-c.last.system, s.tick-c.last.tick)
	if ok {
		c.pace = pace
	}
	c.last = s
	c.next.Store(s.system + c.wait/looks)
	off := max(pace, was) - min(pace, was)
	switch {
	case !ok || window > c.ticks(apart) || off > was/drift:
		c.agreed = s.system
	case s.system-c.agreed >= c.wait:
		c.healed = s.system
		c.publish(s, f.show(s.system), c.ticks(fullSpan))
		c.fallen.Store(nil)
	}
}
