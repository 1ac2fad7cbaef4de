package sluice

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestSystemClock_IsUnixTime(t *testing.T) {
	// In a bubble time stands still between two reads, so they can be compared.
	synctest.Test(t, func(t *testing.T) {
		clock := SystemClock()
		for _, wait := range []time.Duration{0, 1, time.Millisecond, time.Hour, 10 * year} {
			time.Sleep(wait)
			require.Equal(t, time.Now().UnixNano(), clock.Now())
		}
	})
}

func TestSystemClock_NeverDecreases(t *testing.T) {
	clock := SystemClock()
	readConcurrently(clock, func(earlier, later int64) {
		assert.GreaterOrEqual(t, later, earlier)
	}, 20_000)
}

// readConcurrently reads clock n times from each of 8 goroutines. Every read is
// checked against the latest one that any goroutine had finished before it.
func readConcurrently(clock Clock, check func(earlier, later int64), n int) {
	var latest atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range n {
				earlier := latest.Load()
				now := clock.Now()
				if now < earlier {
					check(earlier, now)
				}
				for old := latest.Load(); now > old && !latest.CompareAndSwap(old, now); old = latest.Load() {
				}
			}
		})
	}
	wg.Wait()
}

func TestUnixNanos_ClampsToTheRangeOfAClock(t *testing.T) {
	const lastSecond = math.MaxInt64 / int64(time.Second)
	for _, c := range []struct {
		time time.Time
		want int64
	}{
		{time.Unix(0, 0), 0},
		{time.Unix(0, 1), 1},
		{time.Unix(0, -1), 0},
		{time.Unix(-1, 999_999_999), 0},
		{time.Time{}, 0},
		{start, start.UnixNano()},
		{time.Unix(lastSecond-1, 999_999_999), lastSecond*1e9 - 1},
		{time.Unix(lastSecond+1, 0), math.MaxInt64},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), math.MaxInt64},
	} {
		assert.Equal(t, c.want, unixNanos(c.time), c.time)
		assert.Equal(t, c.want, NewManualClock(c.time).Now(), c.time)
	}
}

func TestManualClock_MovesOnlyWhenTold(t *testing.T) {
	clock := NewManualClock(start)
	require.Equal(t, start.UnixNano(), clock.Now())
	clock.Advance(0)
	require.Equal(t, start.UnixNano(), clock.Now())
	clock.Advance(90 * time.Second)
	require.Equal(t, start.Add(90*time.Second).UnixNano(), clock.Now())
	clock.Set(start.Add(2 * time.Hour))
	require.Equal(t, start.Add(2*time.Hour).UnixNano(), clock.Now())
	clock.Set(start.Add(2 * time.Hour).In(time.FixedZone("", 3600)))
	require.Equal(t, start.Add(2*time.Hour).UnixNano(), clock.Now(), "the present time is not back in time")
}

func TestManualClock_RefusesToGoBack(t *testing.T) {
	clock := NewManualClock(time.Unix(100, 0).UTC())
	require.PanicsWithValue(t, "sluice: ManualClock.Advance(-1ns) would go back in time", func() { clock.Advance(-1) })
	require.PanicsWithValue(t, "sluice: ManualClock.Set(1970-01-01 00:01:38.5 +0000 UTC) would go back in time by 1.5s",
		func() { clock.Set(time.Unix(98, 500_000_000).UTC()) })
	require.Panics(t, func() { clock.Set(time.Time{}) })
	require.Equal(t, int64(100e9), clock.Now(), "a refused move leaves the clock")
}

func TestManualClock_StopsAtTheEndOfTime(t *testing.T) {
	clock := NewManualClock(start)
	clock.Advance(math.MaxInt64)
	require.Equal(t, int64(math.MaxInt64), clock.Now())
	clock.Advance(math.MaxInt64)
	clock.Advance(1)
	require.Equal(t, int64(math.MaxInt64), clock.Now())

	clock = NewManualClock(time.Time{})
	clock.Advance(math.MaxInt64)
	require.Equal(t, int64(math.MaxInt64), clock.Now())
	clock.Set(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
	require.Equal(t, int64(math.MaxInt64), clock.Now())
}

func TestManualClock_ConcurrentMovesAddUp(t *testing.T) {
	const goroutines, moves = 8, 100_000
	clock := NewManualClock(start)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			last := clock.Now()
			for range moves {
				clock.Advance(3)
				now := clock.Now()
				if now < last+3 {
					t.Errorf("Now is %d after Advance(3) from %d", now, last)
				}
				last = now
			}
		})
	}
	wg.Wait()
	require.Equal(t, start.UnixNano()+3*goroutines*moves, clock.Now(), "no Advance is lost")
}

func TestManualClock_ConcurrentSetNeverGoesBack(t *testing.T) {
	clock := NewManualClock(start)
	var wg sync.WaitGroup
	for g := range int64(4) {
		wg.Go(func() {
			for last := clock.Now(); last < start.UnixNano()+200_000; {
				// Far and near targets from one place: the far one must stay.
				target := last + 1 + 10*g
				func() {
					defer func() {
						if recover() != nil { // another goroutine was further on
							target = last
						}
					}()
					clock.Set(time.Unix(0, target))
				}()
				runtime.Gosched()
				now := clock.Now()
				if now < target {
					t.Errorf("Now is %d after Set(%d)", now, target)
				}
				last = now
			}
		})
	}
	wg.Wait()
}

func TestNewCoarseClock_RefusesANegativeResolution(t *testing.T) {
	require.PanicsWithValue(t, "sluice: NewCoarseClock: resolution -1s is negative; want 0 for 1ms, or a positive duration",
		func() { NewCoarseClock(-time.Second) })
}

// parked looks at a CoarseClock without reading it.
func (c *CoarseClock) parked() bool { return c.now.Load() == coarseParked }

func TestCoarseClock_Resolution(t *testing.T) {
	for resolution, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, 1: 10 * time.Microsecond, time.Second: time.Second,
	} {
		require.Equal(t, want, NewCoarseClock(resolution).Resolution())
	}
}

func TestCoarseClock_IsRefreshedEveryResolution(t *testing.T) {
	for given, resolution := range map[time.Duration]time.Duration{
		0: time.Millisecond, 1: minCoarseResolution, 10 * time.Microsecond: 10 * time.Microsecond,
		17 * time.Microsecond: 17 * time.Microsecond, time.Minute: time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := NewCoarseClock(given)
			woke := time.Now().UnixNano()
			require.Equal(t, woke, clock.Now(), "the first read is exact")
			for tick := range int64(10) {
				// Right after a refresh, in the middle, and right before the next one.
				for _, wait := range []time.Duration{0, resolution / 2, resolution - 1 - resolution/2} {
					time.Sleep(wait)
					synctest.Wait()
					require.Equal(t, woke+tick*int64(resolution), clock.Now(), "resolution %v", resolution)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait() // the refresh is due now
			}
		})
	}
}

// requireParks demands that a clock of 1 ms that has just been read parks after the
// quiet ticks, and not before.
func requireParks(t *testing.T, clock *CoarseClock) {
	t.Helper()
	time.Sleep(coarseQuietTicks * time.Millisecond)
	synctest.Wait()
	require.False(t, clock.parked())
	time.Sleep(time.Millisecond)
	synctest.Wait()
	require.True(t, clock.parked())
}

func TestCoarseClock_ParksWhenUnreadAndWakesExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewCoarseClock(time.Millisecond)
		require.True(t, clock.parked(), "a clock that has not been read needs no timer")
		for range 3 {
			require.Equal(t, time.Now().UnixNano(), clock.Now(), "the first read after a pause is exact")
			require.False(t, clock.parked())

			// The tick after the read finds it read, and then come the quiet ones.
			requireParks(t, clock)

			// A tick that still came would store the time.
			time.Sleep(time.Hour + 123*time.Nanosecond)
			synctest.Wait()
			require.True(t, clock.parked(), "no timer fires while parked")
		}
	})
}

func TestCoarseClock_StaysAwakeWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewCoarseClock(time.Millisecond)
		clock.Now()
		for range 50 {
			time.Sleep((coarseQuietTicks - 1) * time.Millisecond)
			synctest.Wait()
			require.False(t, clock.parked())
			require.Equal(t, time.Now().UnixNano(), clock.Now())
		}
	})
}

// Were the timer armed once for each of several readers that find the clock parked,
// ticks would come several times as often, and it would park too early.
func TestCoarseClock_ManyWakersArmOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewCoarseClock(time.Millisecond)
		for range 20 {
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					if now := time.Now().UnixNano(); clock.Now() != now {
						t.Errorf("woke at %d to another time", now)
					}
				})
			}
			wg.Wait()
			clock.touch() // a reader that found it parked, and got the lock last
			requireParks(t, clock)
		}
	})
}

// That this test ends at all is the proof: a bubble with a goroutine that is
// blocked for good, or one that never stops sleeping, fails.
func TestCoarseClock_BubbleEndsWhileItIsAwake(t *testing.T) {
	var clock *CoarseClock
	synctest.Test(t, func(t *testing.T) {
		clock = NewCoarseClock(0)
		clock.Now()
		time.Sleep(10 * time.Millisecond)
		clock.Now()
	})
	require.False(t, clock.parked(), "it was awake at the end")
}

func TestCoarseClock_NeverDecreasesNorRunsAhead(t *testing.T) {
	clock := NewCoarseClock(10 * time.Microsecond)
	var latest atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			// Until each reader has seen the time change 2000 times.
			for seen, last := 0, int64(0); seen < 2000; {
				earlier := latest.Load()
				now := clock.Now()
				exact := clock.base.Now()
				if now < earlier || now > exact {
					t.Errorf("read %d, after another read of %d and before the exact clock said %d", now, earlier, exact)
					return
				}
				for old := latest.Load(); now > old && !latest.CompareAndSwap(old, now); old = latest.Load() {
				}
				if now != last {
					seen, last = seen+1, now
				}
				runtime.Gosched() // or the clock waits for a processor
			}
		})
	}
	wg.Wait()
}

// Readers that pause for longer and shorter than it takes to park meet every
// state of the clock.
func TestCoarseClock_NeverDecreasesAcrossParking(t *testing.T) {
	rng := seeded.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		clock := NewCoarseClock(time.Millisecond)
		var latest atomic.Int64
		var parkings atomic.Int64
		var wg sync.WaitGroup
		for range 6 {
			r := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for range 300 {
					time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
					if clock.parked() {
						parkings.Add(1)
					}
					earlier := latest.Load()
					now := clock.Now()
					exact := time.Now().UnixNano()
					if now < earlier || now > exact || now <= exact-int64(2*time.Millisecond) {
						t.Errorf("read %d at %d, after a read of %d", now, exact, earlier)
					}
					for old := latest.Load(); now > old && !latest.CompareAndSwap(old, now); old = latest.Load() {
					}
				}
			})
		}
		wg.Wait()
		require.Greater(t, parkings.Load(), int64(50), "it must have parked and woken many times")
	})
}

func TestLimiter_NilClockFollowsABubble(t *testing.T) {
	for _, a := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Algorithm: a, Limit: PerMinute(7)})
			for range 50 {
				d := l.Take("k", 1)
				for ; d.Allowed; d = l.Take("k", 1) {
				}
				require.Positive(t, d.RetryAfter)
				time.Sleep(d.RetryAfter - 1)
				require.False(t, l.Allow("k"), "%v: 1 ns before RetryAfter", a)
				time.Sleep(time.Nanosecond)
				require.True(t, l.Allow("k"), "%v: at RetryAfter", a)
			}
			// The bubble ends with the sweep timer armed. A sweep that is due at this very
			// instant disarms it for a moment.
			synctest.Wait()
			require.True(t, l.armed.Load())
		})
	}
}

func TestLimiter_CoarseClockFollowsABubble(t *testing.T) {
	for _, a := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			clock := NewCoarseClock(time.Millisecond)
			l := mustNew(t, Config{Algorithm: a, Limit: PerMinute(7), Clock: clock})
			require.True(t, l.timed, "a coarse clock tells the system's time, so a timer may sweep")
			for range 20 {
				d := l.Take("k", 1)
				for ; d.Allowed; d = l.Take("k", 1) {
				}
				// Each call counts as having arrived up to one refresh early.
				time.Sleep(d.RetryAfter - time.Millisecond - 1)
				require.False(t, l.Allow("k"), "%v", a)
				time.Sleep(2*time.Millisecond + 1)
				synctest.Wait()
				require.True(t, l.Allow("k"), "%v", a)
			}
		})
	}
}

// TestCoarseClock_WokenTwice: who comes second leaves the clock as it is.
func TestCoarseClock_WokenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewCoarseClock(time.Millisecond)
		woken := clock.Now()
		timer := clock.timer
		time.Sleep(time.Millisecond / 2)
		clock.wake()
		require.Equal(t, woken, clock.Now())
		require.Same(t, timer, clock.timer)
	})
}
