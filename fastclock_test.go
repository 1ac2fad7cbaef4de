package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/seeded"
	"github.com/sluice-go/sluice/internal/traces"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fastWorld is what a FastClock reads in tests: a counter and a system clock at rates of
// the test's choosing. Time goes on with each reading, and rarely for long, as if the
// processor had been lost.
type fastWorld struct {
	rng   *rand.Rand
	hz    float64 // of the counter
	ppm   float64 // by which the system clock is faster than true time
	apart float64 // ns by which the counters of processors are apart
	skew  float64 // of the processor that is reading, up to apart
	cost  float64 // of a reading of the counter, ns

	ticks        uint64
	part         float64 // of a tick
	system, wall float64 // ns since the world began
	calm         bool    // the processor is never lost

	due    time.Duration // on the system clock, when the timer fires; 0 if it is not armed
	fire   func()
	losses int
}

func newFastWorld(rng *rand.Rand, hz float64) *fastWorld {
	return &fastWorld{rng: rng, hz: hz, cost: 15, ticks: 1 << 50}
}

// pass lets time go on, without calling the timer.
func (w *fastWorld) pass(ns float64) {
	w.count(ns)
	w.system += ns * (1 + w.ppm/1e6)
	w.wall += ns * (1 + w.ppm/1e6)
}

// count lets the counter alone go on.
func (w *fastWorld) count(ns float64) {
	whole, part := math.Modf(w.part + ns*w.hz/1e9)
	w.ticks, w.part = w.ticks+uint64(whole), part
}

// sleep lets time go on, and the timer fire in between.
func (w *fastWorld) sleep(d time.Duration) {
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

func (w *fastWorld) read(ns float64) {
	w.pass(ns * (0.5 + w.rng.Float64()))
	if !w.calm && w.rng.IntN(500) == 0 {
		w.losses++
		w.pass(w.rng.ExpFloat64() * 1e6)
	}
}

func (w *fastWorld) counter() uint64 {
	w.read(w.cost)
	if w.apart > 0 && w.rng.IntN(3) == 0 {
		w.skew = w.apart * float64(w.rng.IntN(2))
	}
	ticks := w.ticks + uint64(w.skew*w.hz/1e9)
	w.read(w.cost)
	return ticks
}

func (w *fastWorld) now() int64 { return start.UnixNano() + int64(w.system) }

func (w *fastWorld) Reset(d time.Duration) bool {
	w.due = time.Duration(w.system) + d
	return false
}

func (w *fastWorld) inputs() fastInputs {
	return fastInputs{
		counter: w.counter,
		system: func() int64 {
			w.read(15)
			now := w.now()
			w.read(15)
			return now
		},
		wall: func() int64 { return start.UnixNano() + int64(w.wall) },
		after: func(d time.Duration, f func()) timer {
			w.fire = f
			w.Reset(d)
			return w
		},
	}
}

// newClock makes a clock of this world's.
func (w *fastWorld) newClock(t *testing.T) *worldClock {
	t.Helper()
	c := &worldClock{FastClock: newFastClock("", w.inputs()), t: t, w: w}
	require.Equal(t, counter.Name, c.Source())
	return c
}

// newCalmClock returns a clock that has been used for a while, in a world without surprises.
func newCalmClock(t *testing.T) (*fastWorld, *worldClock) {
	t.Helper()
	w := newFastWorld(seeded.Rand(t), 2.1e9)
	w.calm = true
	c := w.newClock(t)
	c.use(2000)
	return w, c
}

// A worldClock reads a FastClock as its Now does, with the world's counter, and compares.
type worldClock struct {
	*FastClock
	t    *testing.T
	w    *fastWorld
	last int64

	most, back int64 // that a reading has been off, and gone back by
}

func (c *worldClock) now() {
	before := c.w.now()
	now, ok := c.read(c.w.counter())
	if !ok {
		now = c.readSlow()
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
func (w *fastWorld) pause() time.Duration {
	switch w.rng.IntN(2000) {
	case 0:
		return time.Duration(w.rng.Int64N(int64(10 * time.Second)))
	case 1, 2, 3, 4, 5:
		return time.Duration(w.rng.Int64N(int64(20 * time.Millisecond)))
	}
	return time.Duration(w.rng.Int64N(int64(100 * time.Microsecond)))
}

var fastRates = []float64{24e6, 121.875e6, 1e9, 2.1e9, 5.7e9}

// The rates of the clocks wander, by 50 ppm in 5 ms, and are off by up to 300 ppm.
func TestFastClock_IsWithin1usOfTheSystemClock(t *testing.T) {
	for _, hz := range fastRates {
		t.Run(fmt.Sprintf("hz=%g", hz), func(t *testing.T) {
			rng := seeded.Rand(t)
			w := newFastWorld(rng, hz)
			w.ppm = 300 - 600*rng.Float64()
			c := w.newClock(t)
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
func TestFastClock_FollowsASystemClockThatIsSetRight(t *testing.T) {
	for _, ppm := range []float64{500, -500} {
		w := newFastWorld(seeded.Rand(t), 2.1e9)
		c := w.newClock(t)
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

func TestFastClock_ParksWhenUnread(t *testing.T) {
	w := newFastWorld(seeded.Rand(t), 2.1e9)
	c := w.newClock(t)
	for range 3 {
		require.Positive(t, w.due, "it watches the counter")
		for range 10 {
			w.sleep(fastGuard)
			c.now()
			require.Positive(t, w.due, "while it is being read")
		}
		turn := c.turn.Load()
		w.sleep(3 * fastGuard)
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
func TestFastClock_ConcurrentReadersSeeOneLine(t *testing.T) {
	const tick, now = 1 << 40, 1 << 60
	w := newFastWorld(seeded.Rand(t), 1e9)
	c := w.newClock(t).FastClock
	line := func(n uint64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		past := n%1000 + 1
		c.pace = (n%17 + 1) << paceBits
		ns := now - int64(past*(n%17+1))
		c.publish(fastSample{tick: tick - past, system: ns}, ns, math.MaxInt64)
	}
	line(0)
	var stop atomic.Bool
	var retries atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				got, ok := c.read(tick)
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
func TestFastClock_NobodyWaitsForACalibration(t *testing.T) {
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
func TestFastClock_TellsTheTimeOfTheSystemClock(t *testing.T) {
	c := NewFastClock()
	if why := counter.Unfit(); why != "" {
		require.Equal(t, "system clock: "+why, c.Source())
	}
	for range 100_000 {
		before := c.in.system()
		now := c.Now()
		after := c.in.system()
		require.GreaterOrEqual(t, now, before-int64(time.Millisecond), c.Source())
		require.LessOrEqual(t, now, after+int64(10*time.Millisecond), c.Source())
	}
	t.Log(c.Source())
}

func TestFastClock_ConcurrentReadingsHardlyGoBack(t *testing.T) {
	clock := NewFastClock()
	readConcurrently(clock, func(earlier, later int64) {
		assert.GreaterOrEqual(t, later, earlier-int64(time.Millisecond), clock.Source())
	}, 20_000)
}

// Inside a bubble time stands still while the counter runs.
func TestFastClock_FollowsABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewFastClock()
		require.True(t, strings.HasPrefix(clock.Source(), "system clock: "), clock.Source())
		l := mustNew(t, Config{Limit: PerMinute(7), Clock: clock})
		require.True(t, l.timed, "it tells the system's time, so a timer may sweep")
		for range 50 {
			require.Equal(t, time.Now().UnixNano(), clock.Now())
			d := l.Take("k", 1)
			for ; d.Allowed; d = l.Take("k", 1) {
			}
			time.Sleep(d.RetryAfter - 1)
			require.False(t, l.Allow("k"), "1 ns before RetryAfter")
			time.Sleep(time.Nanosecond)
			require.True(t, l.Allow("k"), "at RetryAfter")
		}
	})
}

// A staggeringClock is up to 1 us behind, by another time at each reading, as processors'
// counters can make a FastClock.
type staggeringClock struct {
	exact ManualClock
	rng   *rand.Rand
	said  []int64
}

func (c *staggeringClock) Now() int64 {
	now := c.exact.Now() - c.rng.Int64N(int64(fastApart)+1)
	c.said = append(c.said, now)
	return now
}

// Whatever is admitted, the exact model admits at the newest time that the key has been
// charged at, or forgotten as idle. The limiter is swept and its keys are looked at in between.
func TestFastClock_ModelAdmitsWhatIsAdmittedBehindTime(t *testing.T) {
	for _, variant := range variants {
		t.Run(variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range depth.Of(20, 60, 300) {
				staggering(t, rng, variant)
			}
		})
	}
}

func staggering(t *testing.T, rng *rand.Rand, variant Config) {
	clock := &staggeringClock{rng: rng}
	clock.exact.now.Store(start.UnixNano())
	c := randomConfig(rng, variant)
	c.Clock, c.TTL, c.MaxKeys = clock, time.Duration(1+rng.IntN(5000)), 1000
	l, err := New(c)
	if err != nil {
		return // a limit that no limiter takes
	}
	model := traces.NewCounting(oracleConfig(c))
	newest := map[string]int64{}
	keys := []string{"a", "b", "c"}
	for range 300 {
		key := keys[rng.IntN(len(keys))]
		gaps := []int64{0, 0, rng.Int64N(100), rng.Int64N(1000), rng.Int64N(5000), min(traces.RandomGap(rng, traces.Limit(c.Limit), c.Offset, clock.exact.Now()), 1<<50)}
		clock.exact.now.Add(gaps[rng.IntN(len(gaps))])
		switch rng.IntN(8) {
		case 0:
			l.Sweep()
		case 1:
			l.Peek(key, 1)
		default:
			cost, id := traces.RandomCost(rng, c.Limit.burst()), l.Key(key).id
			tracked := l.locate(id).slot != nil
			clock.said = nil
			d := l.Take(key, cost)
			if !d.Allowed || cost <= 0 {
				continue
			}
			now := clock.said[0] // a new key's shard asks again, to find out what is idle
			newest[key] = max(newest[key], now)
			if !tracked {
				newest[key] = max(newest[key], l.shardOf(id).floor)
			}
			want := model.Take(key, newest[key], int64(cost))
			require.True(t, want.Allowed, "%s cost %d: admitted at %d, and the model denies at %d: %+v\n%v",
				key, cost, now, newest[key], want, c)
		}
	}
}

// TestFastClock_TimeOfTicksSaturates: no pace and no number of ticks overflows.
func TestFastClock_TimeOfTicksSaturates(t *testing.T) {
	require.Equal(t, int64(math.MaxInt64/2), nanosOf(math.MaxUint64, math.MaxUint64))
	require.Equal(t, int64(1000), nanosOf(1000, 1<<paceBits))
	for ticks, bits := uint64(1), 0; bits < 64; ticks, bits = ticks<<1, bits+1 {
		got := nanosOf(ticks, 1<<paceBits)
		require.Equal(t, int64(min(ticks, math.MaxInt64/2)), got, "%d ticks of 1 ns", ticks)
	}
}
