package tsc

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

func newClock(unfit string, in inputs) *Clock {
	c := new(Clock)
	c.init(unfit, in)
	return c
}

// newSystemClock returns a clock of this machine's counter.
func newSystemClock() *Clock {
	base := time.Now()
	return newClock(counter.Unfit(), inputsOf(func() int64 { return base.UnixNano() + int64(time.Since(base)) }))
}

// A world is what a Clock reads in tests: a counter and a system clock at rates of
// the test's choosing. Time goes on with each reading, and rarely for long, as if the
// processor had been lost.
type world struct {
	rng   *rand.Rand
	hz    float64 // of the counter
	ppm   float64 // by which the system clock is faster than true time
	apart float64 // ns by which the counters of processors are apart
	skew  float64 // of the processor that is sample, up to apart
	cost  float64 // of a reading of the counter, ns

	ticks        uint64
	part         float64 // of a tick
	system, wall float64 // ns since the world began
	calm         bool    // the processor is never lost
	bubbled      bool    // who reads is in a bubble, whose time is bubble
	bubble       int64

	due    time.Duration // on the system clock, when the timer fires; 0 if it is not armed
	fire   func()
	losses int
	reads  int // of the counter
}

func newWorld(rng *rand.Rand, hz float64) *world {
	return &world{rng: rng, hz: hz, cost: 15, ticks: 1 << 50}
}

// pass lets time go on, without calling the timer.
func (w *world) pass(ns float64) {
	w.count(ns)
	w.system += ns * (1 + w.ppm/1e6)
	w.wall += ns * (1 + w.ppm/1e6)
}

// count lets the counter alone go on.
func (w *world) count(ns float64) {
	whole, part := math.Modf(w.part + ns*w.hz/1e9)
	w.ticks, w.part = w.ticks+uint64(whole), part
}

// sleep lets time go on, and the timer fire in between.
func (w *world) sleep(d time.Duration) {
	for end := w.system + float64(d); w.system < end; {
		next := end
		if w.due > 0 {
			next = min(end, float64(w.due))
		}
		w.pass(max(next-w.system, 1))
		if w.due > 0 && w.system >= float64(w.due) {
			w.due = 0
			w.fire()
		}
	}
}

func (w *world) read(ns float64) {
	w.pass(ns * (0.5 + w.rng.Float64()))
	if !w.calm && w.rng.IntN(500) == 0 {
		w.losses++
		w.pass(w.rng.ExpFloat64() * 1e6)
	}
}

func (w *world) counter() uint64 {
	w.reads++
	w.read(w.cost)
	if w.apart > 0 && w.rng.IntN(3) == 0 {
		w.skew = w.apart * float64(w.rng.IntN(2))
	}
	ticks := w.ticks + uint64(w.skew*w.hz/1e9)
	w.read(w.cost)
	return ticks
}

func (w *world) now() int64 {
	if w.bubbled {
		return w.bubble
	}
	return start.UnixNano() + int64(w.system)
}

func (w *world) Reset(d time.Duration) bool {
	w.due = time.Duration(w.system) + d
	return false
}

func (w *world) inputs() inputs {
	return inputs{
		counter: w.counter,
		system: func() int64 {
			w.read(15)
			now := w.now()
			w.read(15)
			return now
		},
		wall: func() (int64, bool) {
			if w.bubbled {
				return w.bubble, true
			}
			return start.UnixNano() + int64(w.wall), false
		},
		after: func(d time.Duration, f func()) timer {
			w.fire = f
			w.Reset(d)
			return w
		},
	}
}

// newClock makes a clock of this world's.
func (w *world) clock(t *testing.T) *worldClock {
	t.Helper()
	c := &worldClock{Clock: newClock("", w.inputs()), t: t, w: w}
	require.Equal(t, counter.Name, c.Source())
	return c
}

// newCalmClock returns a clock that has been used for a while, in a world without surprises.
func newCalmClock(t *testing.T) (*world, *worldClock) {
	t.Helper()
	w := newWorld(seeded.Rand(t), 2.1e9)
	w.calm = true
	c := w.clock(t)
	c.use(2000)
	return w, c
}

// A worldClock reads a Clock as its Now does, with the world's counter, and compares.
type worldClock struct {
	*Clock
	t    *testing.T
	w    *world
	last int64

	most, back int64 // that a reading has been off, and gone back by
}

func (c *worldClock) now() {
	before := c.w.now()
	now, ok := int64(0), false
	if c.Counts() {
		now, ok = c.Read(c.w.counter())
	}
	if !ok {
		now = c.ReadSlow()
	}
	c.most = max(c.most, before-now, now-c.w.now())
	c.back = max(c.back, c.last-now)
	c.last = now
}

// within demands that no reading was off by more than a bound.
func (c *worldClock) within(bound time.Duration) {
	c.t.Helper()
	require.LessOrEqual(c.t, time.Duration(c.most), bound)
}

// pause draws the time between two readings.
func (w *world) pause() time.Duration {
	switch w.rng.IntN(2000) {
	case 0:
		return time.Duration(w.rng.Int64N(int64(10 * time.Second)))
	case 1, 2, 3, 4, 5:
		return time.Duration(w.rng.Int64N(int64(20 * time.Millisecond)))
	}
	return time.Duration(w.rng.Int64N(int64(100 * time.Microsecond)))
}

var rates = []float64{24e6, 121.875e6, 1e9, 2.1e9, 5.7e9}

// The rates of the clocks wander, by 50 ppm in 5 ms, and are off by up to 300 ppm.
func TestClock_IsWithin1usOfTheSystemClock(t *testing.T) {
	for _, hz := range rates {
		t.Run(fmt.Sprintf("hz=%g", hz), func(t *testing.T) {
			rng := seeded.Rand(t)
			w := newWorld(rng, hz)
			w.ppm = 300 - 600*rng.Float64()
			c := w.clock(t)
			since := w.system
			for range 100_000 {
				c.now()
				w.sleep(w.pause())
				if w.system-since > 5e6 {
					w.ppm = min(max(w.ppm+50-100*rng.Float64(), -300), 300)
					since = w.system
				}
			}
			c.within(time.Microsecond)
			require.Zero(t, c.back, "one processor never sees time go back")
			require.Equal(t, counter.Name, c.Source())
			require.Greater(t, c.turn.Load(), uint64(500), "calibrations")
			require.Positive(t, w.losses, "the processor has been lost")
			t.Logf("off by at most %d ns", c.most)
		})
	}
}

// A clock that is being set right changes its rate at once by 500 ppm.
func TestClock_FollowsASystemClockThatIsSetRight(t *testing.T) {
	for _, ppm := range []float64{500, -500} {
		w := newWorld(seeded.Rand(t), 2.1e9)
		c := w.clock(t)
		for i := range 20_000 {
			if i%2000 == 1000 {
				w.ppm = ppm - w.ppm
			}
			c.now()
			w.sleep(w.pause())
		}
		c.within(12 * time.Microsecond)
		require.Zero(t, c.back)
		require.Equal(t, counter.Name, c.Source())
	}
}

func TestClock_ParksWhenUnread(t *testing.T) {
	w := newWorld(seeded.Rand(t), 2.1e9)
	c := w.clock(t)
	for range 3 {
		require.Positive(t, w.due, "it watches the counter")
		for range 10 {
			w.sleep(guardEvery)
			c.now()
			require.Positive(t, w.due, "while it is being read")
		}
		turn := c.turn.Load()
		w.sleep(3 * guardEvery)
		require.Zero(t, w.due, "no timer runs while nobody reads it")
		w.sleep(time.Hour)
		require.Equal(t, turn, c.turn.Load())
		c.now()
		c.within(time.Microsecond)
	}
	require.Equal(t, counter.Name, c.Source())
}

// Lines follow each other as fast as they can, and all say the same of one tick. A reading
// of which a part is from another line says something else.
func TestClock_ConcurrentReadersSeeOneLine(t *testing.T) {
	const tick, now = 1 << 40, 1 << 60
	w := newWorld(seeded.Rand(t), 1e9)
	c := w.clock(t).Clock
	line := func(n uint64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		past := n%1000 + 1
		if n%3 == 0 {
			c.fall("and heals at once", 0, 0)
		}
		c.pace = (n%17 + 1) << paceBits
		ns := now - int64(past*(n%17+1))
		c.publish(sample{tick: tick - past, system: ns}, ns, math.MaxInt64)
	}
	line(0)
	var stop atomic.Bool
	var retries atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				got, ok := c.Read(tick)
				if !ok {
					retries.Add(1)
				} else if got != now {
					t.Errorf("read %d, which no line says", got)
					return
				}
			}
		})
	}
	n := uint64(1)
	for ; retries.Load() < 100 && n < 1<<28 && !t.Failed(); n++ {
		line(n)
	}
	stop.Store(true)
	wg.Wait()
	require.GreaterOrEqual(t, retries.Load(), int64(100), "readers must have met a new line in %d", n)
}

// While one calibrates, the others read on, and wait for nobody.
func TestClock_NobodyWaitsForACalibration(t *testing.T) {
	w, c := newCalmClock(t)
	c.mu.Lock() // whoever calibrates has lost the processor
	turn := c.turn.Load()
	for range 1000 {
		c.now()
		w.pass(float64(20 * time.Microsecond))
	}
	require.Equal(t, turn, c.turn.Load())
	c.within(time.Microsecond)
	c.mu.Unlock()
	c.use(2000)
	c.within(time.Microsecond)
	require.LessOrEqual(t, c.back, int64(time.Microsecond))
	require.Greater(t, c.turn.Load(), turn)
}

// The machine's own counter, as far as no machine can fail it.
func TestClock_TellsTheTimeOfTheSystemClock(t *testing.T) {
	c := newSystemClock()
	if why := counter.Unfit(); why != "" {
		require.Equal(t, "system clock: "+why, c.Source())
	}
	for range 100_000 {
		before := c.in.system()
		now, ok := c.Read(counter.Read())
		if !ok {
			now = c.ReadSlow()
		}
		after := c.in.system()
		require.GreaterOrEqual(t, now, before-int64(time.Millisecond), c.Source())
		require.LessOrEqual(t, now, after+int64(10*time.Millisecond), c.Source())
	}
	t.Log(c.Source())
}

// TestClock_TimeOfTicksSaturates: no pace and no number of ticks overflows.
func TestClock_TimeOfTicksSaturates(t *testing.T) {
	require.Equal(t, int64(math.MaxInt64/2), nanosOf(math.MaxUint64, math.MaxUint64))
	require.Equal(t, int64(1000), nanosOf(1000, 1<<paceBits))
	for ticks, bits := uint64(1), 0; bits < 64; ticks, bits = ticks<<1, bits+1 {
		got := nanosOf(ticks, 1<<paceBits)
		require.Equal(t, int64(min(ticks, math.MaxInt64/2)), got, "%d ticks of 1 ns", ticks)
	}
}
