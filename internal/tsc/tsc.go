// Package tsc makes a clock of the processor's counter of time: the system clock, read without the
// system's help and without waiting for other instructions. sluice.FastClock says what it promises.
//
// The counter has a rate that nobody tells, and which is not that of the system clock, since that is
// set right all the time. So the time is a line through two samples of both, good for 5 ms. Then a
// reader makes the next line, which begins where the last one is, and goes faster or slower by what
// the two have come to differ by: no reading goes back for that.
//
//   - A reading is one multiplication and six loads, and no lock. There are two lines, and a count of
//     turns that says which one is in force; whoever reads one that is being replaced sees another turn
//     afterwards, and reads again.
//   - Nobody waits for a calibration. Its line goes on meanwhile, for twice its span at most.
//   - What can be wrong is found by comparison, not by knowledge of machines: a counter that jumps,
//     changes its rate, or takes long to be read makes the clock the system clock, until the two have
//     agreed for a while. One that begins anew, or has run through a suspend, has its line begun anew. One
//     that stops never comes to the end of its line, so a timer looks for that while the clock is being read.
//   - A new clock knows the rate to a part in 500 only, and so its first lines are short, each twice as
//     long as the one before.
package tsc

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
)

// A Clock is the system clock as the counter tells it. It must not be copied, and be begun by Begin.
// It is safe for concurrent use.
type Clock struct {
	// turn is the number of the line in force, lines[turn%2]; the other one is out of date, or being
	// written: see Read. It is 0 while the clock is the system clock, and lines[0] is good for nothing then.
	turn  atomic.Uint64
	lines [2]line
	_     [128 - 72]byte // what follows is written by those who calibrate

	begun  sync.Once
	mu     sync.Mutex // serialises calibrations, and guards what is not atomic
	turns  uint64     // how many lines there have been
	pace   uint64     // what a tick takes by the last samples; see paceBits
	last   sample
	in     inputs
	guard  timer                      // looks for a counter that has stopped
	armed  bool                       // it runs: somebody has been reading the clock
	looked uint64                     // the turn when it last did
	misses int                        // see maxMisses
	fallen atomic.Pointer[systemOnly] // nil unless turn is 0, or about to be
	health
}

// A line is the time as a function of the counter: ns + (tick-from)*pace.
type line struct {
	from atomic.Uint64 // ticks
	ns   atomic.Int64  // since the Unix epoch
	pace atomic.Uint64
	span atomic.Uint64 // for how many ticks it is good
}

// A sample is the counter and the clocks at one instant.
type sample struct {
	tick   uint64
	system int64
	wall   int64 // Unix time as it is set, which goes on during a suspend

	bubbled bool // who took it is in a testing/synctest bubble: system and wall are the bubble's
}

// inputs are what a Clock is made of. Those of tests do what tests want.
type inputs struct {
	counter func() uint64
	system  func() int64
	wall    func() (now int64, bubbled bool)
	after   func(time.Duration, func()) timer
}

type timer interface{ Reset(time.Duration) bool }

const (
	// fullSpan is how long a line is good. At 50 ppm it is off by 250 ns then. Making the
	// next one takes some 300 ns.
	fullSpan = 5 * time.Millisecond

	// firstSpan is that of a line whose pace is not well known; each is good for twice
	// as long as the one before. To know the pace from firstMeasure, to 50 ns, is to know it
	// to 500 ppm.
	firstSpan    = 100 * time.Microsecond
	firstMeasure = 100 * time.Microsecond

	// overrun is for how many spans a line serves while somebody makes the next one, who
	// may have lost the processor.
	overrun = 2

	// apart is the most by which the counters of two processors, and the two readings
	// of a sample, may be apart.
	apart = time.Microsecond

	// drift: drift explains a part in drift of the time that has passed, once the
	// pace is well known. Systems set their clocks right by at most 500 ppm, and counters
	// differ by less.
	drift = 1000

	// maxMisses is how often in a row the clocks may have been read too far apart to be
	// compared. A busy machine does that for some microseconds.
	maxMisses = 100

	// guardEvery is how often the counter is looked at apart from that: one that has stopped
	// never comes to the end of a line.
	guardEvery = 20 * fullSpan

	// A clock that is the same standsStill times in a row stands still, or goes by steps; one
	// that has moved movesOn times does not.
	standsStill, movesOn = 10, 50

	// A pace is the time of a tick in 2^-48 ns.
	paceBits = 48

	// A counter with less than a tick in apart is too coarse. None has 1,000 in 1 ns.
	slowestPace, fastestPace = uint64(apart) << paceBits, 1 << paceBits / 1000
)

// Begin begins a clock of that system clock, the first time. It measures the counter for about 0.1 ms.
// Where the counter is unfit the clock is the system clock.
func (c *Clock) Begin(system func() int64) {
	c.begun.Do(func() { c.init(unfit(), inputsOf(system)) })
}

func inputsOf(system func() int64) inputs {
	return inputs{
		counter: counter.ReadInOrder,
		system:  system,
		wall:    wall,
		after:   func(d time.Duration, f func()) timer { return time.AfterFunc(d, f) },
	}
}

// init begins a clock of these inputs; of the system clock alone if there is a reason why the
// counter is unfit.
func (c *Clock) init(unfit string, in inputs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = in
	if unfit != "" {
		c.next.Store(never)
	} else if unfit = c.begin(); unfit == "" {
		return
	}
	c.fall(unfit, 0, 0)
}

// begin measures the counter and makes the first line. If it cannot it says why.
func (c *Clock) begin() (unfit string) {
	for range maxMisses {
		c.pace = 0
		first, before := c.sample()
		if first.bubbled {
			return inBubble
		}
		for now, moves, still := first.system, 0, 0; moves < movesOn || now < first.system+int64(firstMeasure); {
			was := now
			if now = c.in.system(); now != was {
				moves, still = moves+1, 0
			} else if still++; still == standsStill {
				c.next.Store(never)
				return "time stands still while the counter runs, or goes by large steps"
			}
		}
		second, after := c.sample()
		pace, ok := paceOf(second.system-first.system, second.tick-first.tick)
		if c.pace = pace; ok && max(before, after) <= c.ticks(apart) {
			c.publish(second, second.system, c.ticks(firstSpan))
			return ""
		}
	}
	return "the counter cannot be compared with the system clock to 1 us"
}

// Source returns what the clock reads now: "TSC" or "CNTVCT_EL0"; or "system clock: " and why.
func (c *Clock) Source() string {
	if f := c.fallen.Load(); f != nil {
		return "system clock: " + f.why
	}
	return counter.Name
}

// Counts reports whether the clock goes by the counter: whether it is worth reading.
func (c *Clock) Counts() bool { return c.turn.Load() != 0 }

// Read returns the time at a tick, which counter.Read has returned just now, unless the line in force is not good for that, or there
// has been another one while it was being read.
//
// The fields are never those of two lines: a writer of this one has made the other one's
// turn first.
//
//	reader:  loads turn, 6             loads from      loads ns, pace, span     loads turn, 7: not ok
//	writer:               writes 1, turn = 7   writes 0 (for 8)
//
// The tick must be of before the load. Were a line loaded, the processor lost, and then the
// counter read, the line would be used at any time. This way the line is too new at worst,
// begins after the tick, and is not good for it.
func (c *Clock) Read(tick uint64) (int64, bool) {
	turn := c.turn.Load()
	l := &c.lines[turn%2]
	tick -= l.from.Load()
	ns, _ := bits.Mul64(tick<<(64-paceBits), l.pace.Load())
	return l.ns.Load() + int64(ns), tick < l.span.Load() && c.turn.Load() == turn
}

// ReadSlow returns the time now, in every case. It is for a caller that Read, which is small enough to be
// inlined, has failed: a function of both took 4% longer. Nobody waits for another one's calibration: the line goes
// on meanwhile, and when it has gone too far the system clock does.
func (c *Clock) ReadSlow() int64 {
	for {
		if f := c.fallen.Load(); f != nil {
			return c.readSystem(f)
		}
		if c.mu.TryLock() {
			now := c.calibrate()
			c.mu.Unlock()
			return now
		}
		tick, turn := c.in.counter(), c.turn.Load()
		l := &c.lines[turn%2]
		past, reach := int64(tick-l.from.Load()), int64(l.span.Load())*overrun
		now := l.at(min(past, reach))
		switch {
		case turn == 0 || c.turn.Load() != turn:
		case past > reach:
			return max(now, c.in.system())
		default:
			return now
		}
	}
}

// at returns the time that a line shows some ticks after its beginning, and not before that.
func (l *line) at(past int64) int64 {
	return l.ns.Load() + nanosOf(uint64(max(past, 0)), l.pace.Load())
}

// calibrate compares the counter with the system clock, makes the line that is in force from
// now on, and returns the time by that. The caller holds mu.
//
// The new line begins where the old one is, so that no reading goes back. A reader that
// loads the old line before the new one's turn, after this sample, can be ahead of the new
// one, if that is slower: by 5 ns a 0.1 ms at 50 ppm.
func (c *Clock) calibrate() int64 {
	if f := c.fallen.Load(); f != nil {
		return f.show(c.in.system())
	}
	l := &c.lines[c.turns%2]
	span := int64(l.span.Load())
	s, window := c.sample()
	past := int64(s.tick - c.last.tick)
	if s.bubbled {
		c.fall(inBubble, c.last.system, l.at(span*overrun))
		return s.system
	}
	if -int64(c.ticks(apart)) <= past && past < span && window <= c.ticks(apart) {
		return l.at(past) // another processor's counter is behind, or somebody else was faster
	}

	passed, elapsed := nanosOf(uint64(max(past, 0)), l.pace.Load()), s.system-c.last.system
	behind := s.system - l.ns.Load() - passed
	shown := l.at(min(past, span*overrun)) // the most that anybody can have read
	if past > span*overrun {               // nobody has read on
		shown = max(shown, s.system)
	}
	c.misses++
	switch {
	case window > c.ticks(apart) && c.misses < maxMisses:
		return shown
	case window > c.ticks(apart):
		return c.fall("reading the counter takes too long", s.system, shown)
	case max(behind, -behind) <= int64(apart)+elapsed/c.trusted(span) && !slept(elapsed, s.wall-c.last.wall, passed):
		if pace, ok := paceOf(elapsed, uint64(past)); ok {
			c.pace = (c.pace + pace) / 2
		}
		return c.publish(s, shown, min(2*uint64(span), c.ticks(fullSpan)))
	case past < 0, slept(elapsed, s.wall-c.last.wall, passed):
		// Before, the line was right: nobody has read more than what is now.
		return c.publish(s, s.system, c.ticks(firstSpan))
	}
	return c.fall(fmt.Sprintf("in %v of the counter it went on by %v", time.Duration(passed), time.Duration(elapsed)), s.system, shown)
}

// trusted returns how exactly the pace is known when lines are good for a span: to one part in
// so many. Its first sample is as long as the first span, and four apart cover what all
// samples so far can have been wrong by: 4% of the first line.
func (c *Clock) trusted(span int64) int64 {
	return min(drift, nanosOf(uint64(span), c.pace)/int64(4*apart))
}

// slept reports whether the counter has run through a suspend, during which the system clock
// stands still.
func slept(system, wall, counted int64) bool {
	asleep := wall - system
	return asleep >= int64(time.Second) && max(counted-wall, wall-counted) <= asleep/2
}

// publish puts a line in force that begins with a sample and shows ns there. At the end of
// its span it agrees with the system clock, if nothing has changed.
func (c *Clock) publish(s sample, ns int64, span uint64) int64 {
	c.last, c.misses = s, 0
	c.turns++
	l := &c.lines[c.turns%2]
	l.from.Store(s.tick)
	l.ns.Store(ns)
	l.pace.Store(c.pace + uint64((s.system-ns)<<paceBits/int64(span))) // signed: it wraps to a difference
	l.span.Store(span)
	c.turn.Store(c.turns)
	c.arm()
	return ns
}

func (c *Clock) arm() {
	switch {
	case c.armed:
		return
	case c.guard == nil:
		c.guard = c.in.after(guardEvery, c.look)
	default:
		c.guard.Reset(guardEvery)
	}
	c.armed = true
}

// look finds out whether the counter has stopped, and looks again later while the clock is
// being read. Where it is not, its line has ended: the next reading calibrates, whatever the
// counter does until then.
func (c *Clock) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	if c.fallen.Load() != nil {
		return
	}
	s, _ := c.sample()
	switch past := s.tick - c.last.tick; {
	case c.turns != c.looked || s.system-c.last.system < int64(overrun*fullSpan):
		c.looked = c.turns
		c.arm()
	case past < c.lines[c.turns%2].span.Load():
		c.fall("the counter has stopped", s.system, 0)
	}
}

// sample reads the counter and the clocks together: the counter was read within the window,
// in ticks, around the system clock.
func (c *Clock) sample() (s sample, window uint64) {
	window = math.MaxUint64
	for range 10 { // between two of which the processor may be lost
		before := c.in.counter()
		system := c.in.system()
		if w := c.in.counter() - before; w < window {
			s.tick, s.system, window = before+w/2, system, w
		}
		if window <= c.ticks(apart)/4 {
			break
		}
	}
	s.wall, s.bubbled = c.in.wall()
	return s, window
}

// ticks returns how many ticks d takes. They are 0 before the pace is known.
func (c *Clock) ticks(d time.Duration) uint64 {
	if c.pace == 0 {
		return 0
	}
	ticks, _ := bits.Div64(uint64(d)>>(64-paceBits), uint64(d)<<paceBits, c.pace)
	return ticks
}

// nanosOf returns the time that ticks take at a pace: at most half of all time.
func nanosOf(ticks, pace uint64) int64 {
	high, low := bits.Mul64(ticks, pace)
	if high >= 1<<(paceBits-2) {
		return math.MaxInt64 / 2
	}
	return int64(high<<(64-paceBits) | low>>paceBits)
}

// paceOf returns what each of the ticks takes, if that can be.
func paceOf(nanos int64, ticks uint64) (pace uint64, ok bool) {
	high := uint64(nanos) >> (64 - paceBits)
	if nanos <= 0 || ticks <= high {
		return 0, false
	}
	pace, _ = bits.Div64(high, uint64(nanos)<<paceBits, ticks)
	return pace, fastestPace <= pace && pace <= slowestPace
}
