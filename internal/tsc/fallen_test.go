package tsc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// The tests in this file are about clocks that have fallen, and heal.

// useFor reads the clock a thousand times in a while.
func (c *worldClock) useFor(d time.Duration) {
	for range 1000 {
		c.now()
		c.w.sleep(d / 1000)
	}
}

// fall reads the clock until it has fallen.
func (c *worldClock) fall() {
	c.t.Helper()
	for range 1_000_000 {
		if c.now(); !c.Counts() {
			return
		}
		c.w.sleep(time.Duration(c.w.rng.Int64N(int64(20 * time.Microsecond))))
	}
	c.t.Fatal("it has not fallen")
}

// causes make a clock fall, and pass.
var causes = map[string]func(w *world, c *worldClock){
	"a slew as chrony allows": func(w *world, c *worldClock) {
		w.ppm = 83_333
		c.fall()
		c.useFor(firstWait / 2)
		w.ppm = 0
	},
	"a slow slew": func(w *world, c *worldClock) {
		w.ppm = -2000
		c.fall()
		c.useFor(firstWait / 2)
		w.ppm = 0
	},
	"counters apart once": func(w *world, c *worldClock) {
		w.ticks += 10_000_000 // 5 ms
		c.fall()
		w.ticks -= 10_000_000
	},
	"a jump": func(w *world, c *worldClock) {
		w.count(float64(time.Hour))
		c.fall()
	},
	"a stall": func(w *world, c *worldClock) {
		w.cost = 1500
		c.fall()
		w.cost = 15
	},
	"a counter that stops": func(w *world, c *worldClock) {
		hz := w.hz
		w.hz = 0
		c.useFor(time.Second)
		require.False(c.t, c.Counts())
		w.hz = hz
	},
	"another machine": func(w *world, c *worldClock) {
		w.hz *= 1.1
		w.ticks = 0
		c.fall()
	},
	"a far slower one, and back": func(w *world, c *worldClock) {
		if w.hz /= 80; w.hz < 10e6 {
			w.hz *= 80 * 80
		}
		c.fall()
	},
	"a bubble": func(w *world, c *worldClock) {
		w.bubbled, w.bubble = true, start.AddDate(-26, 0, 0).UnixNano()
		c.fall()
		w.bubbled = false
	},
	"a bubble whose time has overtaken": func(w *world, c *worldClock) {
		w.bubbled, w.bubble = true, start.AddDate(100, 0, 0).UnixNano()
		c.fall()
		c.use(1000)
		w.bubbled = false
		c.last = 0
	},
}

// A clock heals after a second in which nothing was wrong, and until then it is the system clock. It neither goes
// back nor ahead for that.
func TestClock_HealsAfterEachCause(t *testing.T) {
	for name, cause := range causes {
		t.Run(name, func(t *testing.T) {
			w, c := newCalmClock(t)
			for range 3 {
				cause(w, c)
				from := w.system
				require.False(t, c.Counts())
				w.sleep(20 * time.Millisecond) // the system clock may have to catch up
				c.most, c.back = 0, 0
				for !c.Counts() && w.system-from < 2*float64(firstWait) {
					c.now()
					w.sleep(time.Duration(w.rng.Int64N(int64(time.Millisecond))))
				}
				require.Equal(t, counter.Name, c.Source())
				require.GreaterOrEqual(t, w.system-from, float64(firstWait)*0.9)
				for range 100_000 { // for longer than calm waits
					c.now()
					w.sleep(time.Duration(w.rng.Int64N(int64(200 * time.Microsecond))))
				}
				c.within(time.Microsecond)
				require.LessOrEqual(t, c.back, int64(time.Microsecond))
				require.Equal(t, counter.Name, c.Source())
			}
		})
	}
}

// A cause that comes again and again leaves the clock the system clock for nearly all of the time; once it
// is over, the clock heals.
func TestClock_ACauseThatComesBackCostsLittle(t *testing.T) {
	for _, every := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 20 * time.Second, 5 * time.Minute} {
		w, c := newCalmClock(t)
		falls, counts, counted, all := 0, true, 0, 0
		for next := 0.0; w.system < float64(3*time.Hour); {
			if w.system >= next {
				next = w.system + float64(every)
				w.count(float64(100 * time.Millisecond))
			}
			c.now()
			if all++; c.Counts() {
				counted++
			} else if counts {
				falls++
			}
			counts = c.Counts()
			w.sleep(4 * time.Millisecond)
		}
		t.Logf("every %v: %d falls, %d%% of the time by the counter", every, falls, 100*counted/all)
		if every < (calm+1)*firstWait {
			require.LessOrEqual(t, falls, 12, "%v: each wait is twice the one before", every)
		}
		c.within(10*time.Millisecond + time.Microsecond)

		c.useFor(2 * lastWait)
		require.Equal(t, counter.Name, c.Source(), every)
	}
}

// While it is the system clock it reads that and nothing else, but for a few comparisons.
func TestClock_FallenReadsNoCounter(t *testing.T) {
	w, c := newCalmClock(t)
	w.count(float64(time.Hour))
	c.fall()
	w.hz = 0 // it cannot heal
	reads := w.reads
	c.useFor(firstWait)
	require.LessOrEqual(t, w.reads-reads, (looks+2)*20, "each comparison samples at most 10 times")
	w.sleep(time.Millisecond)
	c.now()
	reads = w.reads
	c.use(50)
	require.Equal(t, reads, w.reads)
}

// Whoever reads a fallen clock in a bubble sees the bubble's time, before and after the time outside.
func TestClock_FallenShowsABubbleItsTime(t *testing.T) {
	for _, year := range []int{2000, 2100} {
		w, c := newCalmClock(t)
		w.bubbled, w.bubble = true, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
		w.sleep(overrun * fullSpan)
		for range 100 {
			c.now()
			require.Equal(t, w.bubble, c.last)
			w.bubble += int64(time.Second)
			w.sleep(time.Second)
		}
		require.Equal(t, "system clock: "+inBubble, c.Source(), "a bubble does not heal it")
		w.bubbled = false
		c.most, c.back, c.last = 0, 0, 0
		c.useFor(20 * time.Millisecond)
		require.Zero(t, c.most)
		require.Zero(t, c.back)
	}
}

// A clock that begins in a bubble heals outside.
func TestClock_BegunInABubble(t *testing.T) {
	w := newWorld(seeded.Rand(t), 1e9)
	w.bubbled, w.bubble = true, start.AddDate(-26, 0, 0).UnixNano()
	c := &worldClock{Clock: newClock("", w.inputs()), t: t, w: w}
	require.Equal(t, "system clock: "+inBubble, c.Source())
	c.now()
	require.Equal(t, w.bubble, c.last)
	w.bubbled, w.calm, c.most = false, true, 0
	c.useFor(2 * firstWait)
	require.Equal(t, counter.Name, c.Source())
	c.within(time.Microsecond)
}

func TestWall_KnowsABubble(t *testing.T) {
	now, bubbled := wall()
	require.False(t, bubbled)
	require.WithinDuration(t, time.Now(), time.Unix(0, now), time.Hour)
	synctest.Test(t, func(t *testing.T) {
		now, bubbled := wall()
		require.True(t, bubbled)
		require.Equal(t, time.Now().UnixNano(), now)
	})
}

func TestBenchmarks_OfTheArguments(t *testing.T) {
	for arg, want := range map[string]bool{
		"-test.bench=.": true, "--test.bench=^$": true, "-test.bench": true, "-test.bench=": false,
		"-test.benchtime=1s": false, "-bench=.": false, "": false,
	} {
		require.Equal(t, want, benchmarks([]string{"a.test", "-test.v", arg}), arg)
	}
	require.Equal(t, benchmarking, unfit() != "in a test, which can have testing/synctest bubbles")
}

// Whoever has loaded turn 0 reads lines[0], also while the clock heals, and gets nothing from it.
func TestClock_TurnZeroIsGoodForNothing(t *testing.T) {
	w, c := newCalmClock(t)
	for range 6 {
		c.mu.Lock()
		tick := c.Clock.last.tick
		_, ok := c.Read(tick)
		require.True(t, ok)
		c.Clock.fall("and heals at once", 0, 0)
		_, ok = c.Read(tick)
		require.False(t, ok)
		c.pace = 1 << paceBits
		for range 1 + w.rng.IntN(2) {
			require.Zero(t, c.lines[0].span.Load())
			s, _ := c.sample()
			c.publish(s, s.system, 1000)
			if c.turns%2 == 1 {
				require.Zero(t, c.lines[0].span.Load(), "the first line after a fall is lines[1]")
			}
		}
		c.mu.Unlock()
	}
}
