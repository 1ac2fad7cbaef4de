package tsc

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// The tests in this file are about counters and system clocks that a Clock cannot trust.

func TestClock_ProcessorsWhoseCountersAreApart(t *testing.T) {
	for _, hz := range rates {
		w := newWorld(seeded.Rand(t), hz)
		w.ppm, w.apart = 30, 200
		c := w.clock(t)
		for range 50_000 {
			c.now()
			c.now()
			w.sleep(w.pause())
		}
		c.within(time.Microsecond)
		require.LessOrEqual(t, c.back, int64(time.Microsecond))
		require.Positive(t, c.back, "or they were not apart")
		require.Equal(t, counter.Name, c.Source())
	}
}

// Where counters are apart, the first 0.1 ms tell the rate to 0.2% only. One who reads on a
// long time after that must not take the rest for a counter that cannot be trusted.
func TestClock_AYoungClockLeftAlone(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		w := newWorld(rng, rates[rng.IntN(len(rates))])
		w.ppm, w.apart = 300-600*rng.Float64(), 200
		c := w.clock(t)
		for range rng.IntN(5) {
			c.now()
			w.sleep(time.Duration(rng.Int64N(int64(time.Second)) >> rng.IntN(20)))
		}
		c.use(1000)
		c.within(2 * time.Microsecond)
		require.Equal(t, counter.Name, c.Source())
	}
}

// A suspend of a young clock is no drift either.
func TestClock_ASuspendOfAYoungClock(t *testing.T) {
	rng := seeded.Rand(t)
	for range 1000 {
		w := newWorld(rng, 2.1e9)
		w.calm = true
		c := w.clock(t)
		c.now()
		const asleep = 2 * time.Second
		w.sleep(20*asleep + time.Duration(rng.Int64N(int64(10*asleep))))
		w.wall += float64(asleep)
		w.count(float64(asleep))
		c.now()
		c.most = 0
		c.use(500)
		c.within(time.Microsecond)
		require.Equal(t, counter.Name, c.Source())
	}
}

// requireFallen demands that the clock is the system clock, has not gone back, and
// once the system clock has caught up tells its time to the nanosecond.
func (c *worldClock) requireFallen(why string) {
	c.t.Helper()
	require.Equal(c.t, "system clock: "+why, c.Source())
	c.w.sleep(20 * time.Millisecond)
	c.most = 0
	c.use(1000)
	require.Zero(c.t, c.most)
	require.Zero(c.t, c.back)
	require.Equal(c.t, "system clock: "+why, c.Source())
}

// use reads the clock for a while.
func (c *worldClock) use(readings int) {
	for range readings {
		c.now()
		c.w.sleep(time.Duration(c.w.rng.Int64N(int64(20 * time.Microsecond))))
	}
}

func TestClock_AJumpNobodyCanExplain(t *testing.T) {
	for _, jump := range []time.Duration{2 * time.Millisecond, 100 * time.Millisecond, time.Hour, 50 * year} {
		w, c := newCalmClock(t)
		c.within(time.Microsecond)
		w.count(float64(jump))
		c.use(1000)
		c.within(10*time.Millisecond + time.Microsecond)
		require.True(t, strings.HasPrefix(c.Source(), "system clock: in "), c.Source())
		c.requireFallen(strings.TrimPrefix(c.Source(), "system clock: "))
	}
}

// Where the counter begins anew, the system clock says how late it is.
func TestClock_ACounterThatBeginsAnew(t *testing.T) {
	w := newWorld(seeded.Rand(t), 2.1e9)
	c := w.clock(t)
	for range 20 {
		c.use(2000)
		w.sleep(time.Duration(w.rng.Int64N(int64(time.Second))))
		w.ticks = 0
		c.use(1)
	}
	c.within(time.Microsecond)
	require.Zero(t, c.back)
	require.Equal(t, counter.Name, c.Source())

	// On another machine it has another rate, too: by 10% in 200 us, 20 us.
	c.use(2000)
	w.calm = true
	w.hz *= 1.1
	w.ticks = 0
	c.use(1000)
	c.within(50 * time.Microsecond)
	c.requireFallen(strings.TrimPrefix(c.Source(), "system clock: "))
}

// The counter runs through a suspend, or not; the system clock does not, as on Linux.
func TestClock_ASuspendIsNoTime(t *testing.T) {
	for _, runs := range []bool{false, true} {
		for _, asleep := range []time.Duration{2 * time.Second, time.Hour, 365 * day} {
			w := newWorld(seeded.Rand(t), 2.1e9)
			c := w.clock(t)
			for range 5 {
				c.use(2000)
				w.sleep(w.pause())
				w.wall += float64(asleep) + 0.1e9*w.rng.Float64() // to a part of a second
				if runs {
					w.count(float64(asleep))
				}
			}
			c.use(2000)
			c.within(time.Microsecond)
			require.LessOrEqual(t, c.back, int64(time.Microsecond))
			require.Equal(t, counter.Name, c.Source())
		}
	}
}

func TestClock_ACounterThatStops(t *testing.T) {
	w, c := newCalmClock(t)
	w.hz = 0
	for range 1000 {
		c.now()
		w.sleep(time.Millisecond)
	}
	c.within(2*guardEvery + time.Millisecond)
	c.requireFallen("the counter has stopped")
}

// One that has stopped while nobody read the clock is found by the first who does.
func TestClock_ACounterThatStopsWhileParked(t *testing.T) {
	w, c := newCalmClock(t)
	w.sleep(time.Second)
	require.Zero(t, w.due, "it has parked")
	w.hz = 0
	w.sleep(time.Second)
	c.now()
	c.within(time.Microsecond)
	c.requireFallen(strings.TrimPrefix(c.Source(), "system clock: "))
}

func TestClock_ACounterThatChangesItsFrequency(t *testing.T) {
	for _, factor := range []float64{0.001, 0.1, 0.5, 0.99, 0.998, 1.002, 1.01, 2, 10, 1000} {
		w, c := newCalmClock(t)
		w.hz *= factor
		for range 20_000 {
			c.now()
			w.sleep(time.Duration(w.rng.Int64N(int64(20 * time.Microsecond))))
		}
		if factor > 1 {
			c.within(10 * time.Millisecond)
		}
		require.Equal(t, c.back, int64(0), factor)
		c.requireFallen(strings.TrimPrefix(c.Source(), "system clock: "))
	}
}

// A counter that the hypervisor or the kernel reads for the program is of no use.
func TestClock_ACounterThatIsSlowToRead(t *testing.T) {
	w := newWorld(seeded.Rand(t), 2.1e9)
	w.calm, w.cost = true, 1500
	require.Equal(t, "system clock: the counter cannot be compared with the system clock to 1 us", newClock("", w.inputs()).Source())

	w.cost = 15
	c := w.clock(t)
	for range 10 {
		c.use(2000)
		w.cost = 1500 // for a while, on a busy machine
		c.use(maxMisses / 2)
		w.cost = 15
	}
	c.use(2000)
	require.Equal(t, counter.Name, c.Source())
	c.within(2 * time.Microsecond) // of which a reading takes a part here

	w.cost = 1500
	c.use(2000)
	c.requireFallen("reading the counter takes too long")
}

func TestClock_ACounterThatIsUnfitFromTheBeginning(t *testing.T) {
	for name, hz := range map[string]float64{"stopped": 0, "coarse": 32_768, "too fast": 1e13} {
		w := newWorld(seeded.Rand(t), hz)
		require.Equal(t, "system clock: the counter cannot be compared with the system clock to 1 us",
			newClock("", w.inputs()).Source(), name)
	}
	w := newWorld(seeded.Rand(t), 1e9)
	c := newClock("somebody says so", w.inputs())
	require.Equal(t, "system clock: somebody says so", c.Source())
	unfit := &worldClock{Clock: c, t: t, w: w}
	unfit.requireFallen("somebody says so")
	unfit.useFor(24 * time.Hour)
	unfit.requireFallen("somebody says so")
	require.Zero(t, w.due, "it needs no timer")
	require.Zero(t, w.reads, "it needs no counter")
}

// On a system whose clock goes on by half a millisecond at a time.
func TestClock_ACoarseSystemClock(t *testing.T) {
	w := newWorld(seeded.Rand(t), 1e9)
	in := w.inputs()
	exact := in.system
	in.system = func() int64 { return exact() / 500_000 * 500_000 }
	const why = "system clock: time stands still while the counter runs, or goes by large steps"
	c := &worldClock{Clock: newClock("", in), t: t, w: w}
	require.Equal(t, why, c.Source())
	c.useFor(24 * time.Hour)
	require.Equal(t, why, c.Source())
}

// TestClock_FallenBeforeItsTurn: whoever waited to correct the clock while it fell reads the system clock.
func TestClock_FallenBeforeItsTurn(t *testing.T) {
	w, c := newCalmClock(t)
	w.count(float64(time.Hour))
	c.use(1000)
	why := c.Source()
	require.True(t, strings.HasPrefix(why, "system clock: in "), why)
	c.mu.Lock()
	defer c.mu.Unlock()
	least := w.now()
	now := c.calibrate()
	require.LessOrEqual(t, least, now)
	require.LessOrEqual(t, now, max(w.now(), c.fallen.Load().least))
	require.Equal(t, why, c.Source())
}
