package sluice

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/tsc"
)

// Clock tells the time to a limiter.
//
// Now returns nanoseconds since the Unix epoch. It never returns a negative
// number, and never goes back by more than a microsecond or so: by as much as it
// goes back, calls are judged as if they had come earlier. It is called
// from many goroutines at once, also with locks of the limiter held, so it must not
// call the limiter.
type Clock interface{ Now() int64 }

// SystemClock returns a clock that tells the wall time of its creation plus the
// monotonic time since. It does not follow later steps of the wall clock, so no
// step can admit or deny a call. If the monotonic clock stops while the machine is
// suspended, as on Linux, it lags by that time.
//
// It tells the time of the testing/synctest bubble in which it is read, which begins in the year 2000. So a limiter at
// package level, used in a bubble, limits new keys there by the bubble's time; keys that have been charged
// outside stay as they were. A limiter whose first keys come in a bubble sweeps on that bubble's timer, and no more
// after its end. Make limiters in the bubble.
func SystemClock() Clock { return newSystemClock() }

func newSystemClock() *systemClock {
	base := time.Now()
	wall := unixNanos(base)
	return &systemClock{base: base, wall: wall, zero: wall - int64(base.Sub(monotonicZero))}
}

type systemClock struct {
	base time.Time
	wall int64
	zero int64 // its time at monotonicZero
}

// Now implements Clock. time.Since of a base with a monotonic reading costs one
// clock read, where time.Now costs two.
func (c *systemClock) Now() int64 { return c.wall + int64(time.Since(c.base)) }

// monotonicZero is the same for all system clocks, so that one reading tells the time of each: zero + monotonic().
var monotonicZero = time.Now()

func monotonic() int64 { return int64(time.Since(monotonicZero)) }

// unixNanos returns t as nanoseconds since 1970, clamped to the range of a Clock.
func unixNanos(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// CoarseClock is the system clock read once every resolution instead of once a
// call, which makes a decision up to about twice as fast.
//
// A call is judged as if it had arrived up to one refresh earlier. Between two
// refreshes time stands still. So a limit whose burst is smaller than the units that
// come back in one resolution admits at most a burst per resolution. If the process
// gets too little processor time, refreshes come late and the clock lags by as much:
// calls are then denied that an exact clock would admit. The next refresh sets the
// clock right. It never runs ahead.
//
// The RetryAfter of a denial counts from the refresh by which the call was judged, and a
// call that comes that much later may be judged before the next refresh: a client that waits
// in real time adds Resolution, or twice that, since a refresh can be late. (httplimit does,
// and Wait asks again.)
//
// The refresh runs on a timer that is armed only while the clock is being read;
// a clock that is no longer read stops its timer and needs no Close. The first
// read after a pause is exact. The timer belongs to the bubble of the first read: a
// clock that is used inside a testing/synctest bubble must be made there and not be
// used outside. A CoarseClock is safe for concurrent use and must be made by
// NewCoarseClock.
type CoarseClock struct {
	// now is the time if it has been read since the last refresh, ^time if it has not
	// been read since, and coarseParked if it is not being refreshed. So a read
	// is one load: if that is negative, the timer must learn that there are readers.
	now atomic.Int64

	resolution time.Duration
	base       Clock
	mu         sync.Mutex // serialises ticks and waking, and guards the rest
	timer      *time.Timer
	quiet      int // ticks in a row without a read
}

// coarseParked is ^math.MaxInt64, a time that is never reached.
const coarseParked = math.MinInt64

// coarseQuietTicks is how many refreshes may pass unread before the clock parks.
// Waking costs a timer and a lock, a few hundred ns; the value was not tuned.
const coarseQuietTicks = 100

// minCoarseResolution keeps the timer from taking a whole processor.
const minCoarseResolution = 10 * time.Microsecond

// NewCoarseClock returns a clock that is refreshed every resolution; 0 means
// 1 ms, and less than 10 us counts as 10 us. It panics if resolution is negative.
func NewCoarseClock(resolution time.Duration) *CoarseClock {
	if resolution < 0 {
		panic(fmt.Sprintf("sluice: NewCoarseClock: resolution %v is negative; want 0 for 1ms, or a positive duration", resolution))
	}
	if resolution == 0 {
		resolution = time.Millisecond
	}
	c := &CoarseClock{resolution: max(resolution, minCoarseResolution), base: SystemClock()}
	c.now.Store(coarseParked)
	return c
}

// Resolution returns how often the clock is refreshed, which is how far Now can be behind
// the time if no refresh is late.
func (c *CoarseClock) Resolution() time.Duration { return c.resolution }

// Now implements Clock.
func (c *CoarseClock) Now() int64 {
	if now := c.now.Load(); now >= 0 {
		return now
	}
	return c.touch()
}

// touch marks the clock as being read, and wakes it if it has parked.
func (c *CoarseClock) touch() int64 {
	for {
		now := c.now.Load()
		switch {
		case now >= 0:
			return now
		case now == coarseParked:
			c.wake()
		case c.now.CompareAndSwap(now, ^now):
			return ^now
		}
	}
}

func (c *CoarseClock) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.Load() != coarseParked {
		return
	}
	c.quiet = 0
	c.now.Store(c.base.Now())
	c.timer = time.AfterFunc(c.resolution, c.tick)
}

// tick refreshes the time and arms the next tick, or parks. It runs on a timer
// and not in a goroutine of its own, so that a testing/synctest bubble can end
// while the clock is awake. At most one tick is armed at any time.
func (c *CoarseClock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	unread := ^c.base.Now()
	if c.now.Swap(unread) >= 0 {
		c.quiet = 0
	} else if c.quiet++; c.quiet >= coarseQuietTicks && c.now.CompareAndSwap(unread, coarseParked) {
		return
	}
	c.timer.Reset(c.resolution)
}

// FastClock is the system clock, read from the processor's counter of time (TSC on amd64,
// CNTVCT_EL0 on arm64) without a call of the system and without waiting for other instructions.
// All FastClocks of a process share one comparison of the counter with the system clock, which is made some
// 200 times a second while one of them is being read. Clocks that are no longer read stop its timer, and need no Close.
//
// A reading is within 1 us of the system clock while the rates of the two change by no more
// than 50 ppm in 5 ms, and within 12 us while the system clock is being set right by up to 500 ppm. While the
// process's first clock is new, until it has compared the two half a dozen times, a reading is within 2 us, or 5 us if
// the counters of two processors are apart by more than 0.4 us. A reading may be less than an
// earlier one, by up to 1 us: the processor reads the counter ahead of other instructions, and
// the counters of two processors may be apart. A limiter judges a time that has gone back as
// strictly as if it had not. So a time that goes back admits nothing more, and a call can be judged
// as if it had come up to 1 us earlier.
//
// If counter and system clock have come to differ, it goes faster or slower until they agree. It
// steps to the system clock if it has not been read for 10 ms, and if the counter has begun anew or
// the machine was suspended. If the two differ by more than 0.1% of the time that has passed
// (4% when it is new, half as much after each of the first comparisons), and no suspend explains
// it, or if reading them together takes long, it falls: it is the system clock. It can be
// ahead then, by at most 10 ms, and stands still until the system clock has caught up. It detects
// a counter that stops within 0.2 s.
//
// It goes back to the counter when the rates of the two have agreed, to 0.1%, for a second; for twice as long after
// each further fall, up to 17 minutes, unless it has gone by the counter for eight times as long in between.
//
// It is the system clock for good if processor or kernel do not say that the counter is steady, if the system clock
// goes by large steps, on processors other than amd64 and arm64, and with the build tag purego.
//
// In a test, too, it is the system clock, since the test may have testing/synctest bubbles, and no reading can afford to
// ask whether it is in one. So it tells the time of the bubble in which it is read, wherever it was made. A test that
// runs benchmarks (go test -bench) has the counter: there, a bubble that begins within 10 ms of a reading outside, or is
// concurrent with such readings, can see real time.
//
// A FastClock is safe for concurrent use and must be made by NewFastClock.
type FastClock struct {
	zero int64    // its time at monotonicZero
	_    [56]byte // a cache line: nothing that is written is next to it
}

// counted is what all FastClocks read: monotonic(), by the counter. It is no field, so a reading follows no pointer.
var counted tsc.Clock

// NewFastClock returns a clock that agrees with a SystemClock made now. The first one measures the
// counter for about 0.1 ms.
func NewFastClock() *FastClock {
	counted.Begin(monotonic)
	return &FastClock{zero: newSystemClock().zero}
}

// Source returns the source of the time at present: "TSC" or "CNTVCT_EL0"; or "system clock: " and the
// reason. It is the same for all FastClocks.
func (c *FastClock) Source() string { return counted.Source() }

// Now implements Clock.
func (c *FastClock) Now() int64 {
	if counted.Counts() {
		if since, ok := counted.Read(counter.Read()); ok {
			return c.zero + since
		}
	}
	return c.slowNow()
}

// slowNow is inlined nowhere: Now would save more registers for it, which takes 3% of a decision.
//
//go:noinline
func (c *FastClock) slowNow() int64 { return c.zero + counted.ReadSlow() }

// ManualClock is a clock that moves only when told to, for tests and for
// replaying recorded traffic. It is safe for concurrent use and must be made by
// NewManualClock.
type ManualClock struct {
	now      atomic.Int64 // written under mu
	mu       sync.Mutex
	sleepers map[*sleeper]struct{} // guarded by mu
}

// A sleeper is a Wait whose time has not come.
type sleeper struct {
	at    uint64
	awake chan struct{} // closed when its time has come
}

// errMoved says that a sleeper has been woken, since its time may have moved.
var errMoved = errors.New("moved")

// sleepUntil returns when the clock has been moved to at, or errMoved when wake has something to receive.
func (c *ManualClock) sleepUntil(ctx context.Context, wake <-chan struct{}, at uint64) error {
	c.mu.Lock()
	if at <= uint64(c.Now()) { // the clock may have been moved before this call had the lock
		c.mu.Unlock()
		return nil
	}
	s := &sleeper{at: at, awake: make(chan struct{})}
	if c.sleepers == nil {
		c.sleepers = map[*sleeper]struct{}{}
	}
	c.sleepers[s] = struct{}{}
	c.mu.Unlock()
	select {
	case <-s.awake:
		return nil
	case <-wake:
		c.forget(s)
		return errMoved
	case <-ctx.Done():
		c.forget(s)
		return ctx.Err()
	}
}

func (c *ManualClock) forget(s *sleeper) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sleepers, s)
}

// moveLocked moves the time, and wakes the sleepers whose time has come.
func (c *ManualClock) moveLocked(now int64) {
	c.now.Store(now)
	for s := range c.sleepers {
		if s.at <= uint64(now) {
			close(s.awake)
			delete(c.sleepers, s)
		}
	}
}

// NewManualClock returns a clock that stands at start. Times before 1970 count
// as 1970, times beyond the year 2262 as the last representable nanosecond.
func NewManualClock(start time.Time) *ManualClock {
	c := &ManualClock{}
	c.now.Store(unixNanos(start))
	return c
}

// Now implements Clock.
func (c *ManualClock) Now() int64 { return c.now.Load() }

// Advance moves the clock forward by d and stops at the last representable
// nanosecond. It panics if d is negative: a clock never goes back.
func (c *ManualClock) Advance(d time.Duration) {
	if d < 0 {
		panic(fmt.Sprintf("sluice: ManualClock.Advance(%v) would go back in time", d))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	c.moveLocked(now + min(int64(d), math.MaxInt64-now))
}

// Set moves the clock to t, which must not be earlier than its present time; if
// it is, Set panics.
func (c *ManualClock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, now := unixNanos(t), c.Now()
	if next < now {
		panic(fmt.Sprintf("sluice: ManualClock.Set(%v) would go back in time by %v", t, time.Duration(now-next)))
	}
	c.moveLocked(next)
}
