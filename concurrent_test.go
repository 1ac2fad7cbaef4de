package sluice

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// goDo starts n goroutines and returns a function that waits for them.
func goDo(n int, f func(g int)) (wait func()) {
	var wg sync.WaitGroup
	for g := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(g)
		}()
	}
	return wg.Wait
}

// goUntil starts n goroutines that call f again and again, for i from 0 up, and returns a function
// that ends them and waits for that.
func goUntil(n int, f func(g, i int)) (stop func()) {
	var done atomic.Bool
	wait := goDo(n, func(g int) {
		for i := 0; !done.Load(); i++ {
			f(g, i)
		}
	})
	return func() { done.Store(true); wait() }
}

// TestConcurrent_ExactlyTheBurstIsAdmitted: with the clock frozen, goroutines on a
// few hot keys admit exactly the burst of each, while other keys are added, are
// reset and swept, so that the hot keys move from table to table. It goes on
// until both contended paths have been seen: a failed swap, and a moved word.
func TestConcurrent_ExactlyTheBurstIsAdmitted(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Clock, c.Shards = NewManualClock(start), 1
		lostRaces, moves := uint64(0), uint64(0)
		rounds := 0
		for ; rounds < 500 && (rounds < 3 || lostRaces == 0 || moves == 0); rounds++ {
			l := mustNew(t, c)
			if rounds%2 == 1 {
				yieldBeforeSwap(l)
			}
			hammer(t, l)
			lostRaces += uint64(l.lostRaces.Value())
			moves += uint64(l.moves.Value())
		}
		t.Logf("%d rounds, %d failed swaps, %d moved words", rounds, lostRaces, moves)
		require.Positive(t, lostRaces, "no swap failed: the race was not run")
		require.Positive(t, moves, "no decision met a moved word: the race was not run")
	})
}

// yieldBeforeSwap makes goroutines lose the processor between deciding on a word
// and swapping it, and in the middle of a rebuild, when some words have been moved.
// On few cores they rarely do so by themselves.
func yieldBeforeSwap(l *Limiter) {
	if isWide(l) {
		setAlgorithm(l, nil, yieldingWide{l.policyOf(0).wide})
	} else {
		setAlgorithm(l, yielding{l.policyOf(0).alg}, nil)
	}
}

type yielding struct{ algorithm }

func (y yielding) charge(word uint64, now int64, cost int) (uint64, bool) {
	defer yieldSometimes()
	return y.algorithm.charge(word, now, cost)
}

func (y yielding) idleAt(word uint64) uint64 {
	defer yieldSometimes()
	return y.algorithm.idleAt(word)
}

type yieldingWide struct{ wideAlgorithm }

func (y yieldingWide) idleAt(key state) uint64 {
	defer yieldSometimes()
	return y.wideAlgorithm.idleAt(key)
}

// admit and describe yield on both sides: the word has been read, the tail has not;
// the tail has been read, the word has not been looked at again.
func (y yieldingWide) admit(key state, now int64, cost int) bool {
	yieldSometimes()
	defer yieldSometimes()
	return y.wideAlgorithm.admit(key, now, cost)
}

func (y yieldingWide) describe(key state, now int64, cost int, charges bool) (bool, int, time.Duration, time.Duration) {
	yieldSometimes()
	defer yieldSometimes()
	return y.wideAlgorithm.describe(key, now, cost, charges)
}

// commit yields with the word locked.
func (y yieldingWide) commit(key state, now int64, cost int) uint64 {
	defer yieldSometimes()
	return y.wideAlgorithm.commit(key, now, cost)
}

func yieldSometimes() {
	if rand.IntN(8) == 0 {
		runtime.Gosched()
	}
}

func hammer(t *testing.T, l *Limiter) {
	const hotKeys, callers = 2, 4
	var admitted [hotKeys]atomic.Int64
	fillers := 2000
	if crowded() {
		fillers = 100
	}
	stop := goUntil(2, func(g, i int) {
		k := l.Key(fmt.Sprint("filler", g, i%fillers))
		k.Allow()
		k.Reset() // idle at once: Sweep has something to drop
		if i%100 == 99 {
			l.Sweep()
		}
	})
	burst := burstOf(l)
	goDo(callers, func(g int) {
		cost := 1 + burst/10_000 // the wide window's burst in fewer calls
		for i := range hotKeys * burst / cost {
			hot := (g + i) % hotKeys
			switch key := fmt.Sprint("hot", hot); {
			case i%3 == 0 && l.Take(key, cost).Allowed:
				admitted[hot].Add(int64(cost))
			case i%3 != 0 && l.AllowN(key, cost):
				admitted[hot].Add(int64(cost))
			case i%64 == 0:
				l.Key(key).Peek(cost)
			}
		}
	})()
	stop()
	for hot := range admitted {
		// Less is left than a call's cost.
		for l.Allow(fmt.Sprint("hot", hot)) {
			admitted[hot].Add(1)
		}
		require.Equal(t, int64(burst), admitted[hot].Load(), "hot key %d", hot)
	}
	require.Zero(t, l.Stats().Evicted)
}

// TestConcurrent_ContentionIsNeverADenial: goroutines that together ask for no more
// than the burst are all admitted, and Peek sees no less than what is left, however
// often the table is replaced under them.
func TestConcurrent_ContentionIsNeverADenial(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		const callers, calls = 3, 150
		c.Clock, c.Shards = NewManualClock(start), 1
		moves := uint64(0)
		for rounds := 0; rounds < 2000 && (rounds < 4 || moves < 100); rounds++ {
			l := mustNew(t, c)
			if rounds%2 == 1 {
				yieldBeforeSwap(l)
			}
			stop := goUntil(1, func(_, i int) {
				k := l.KeyUint64(uint64(i % 100))
				k.Allow()
				k.Reset()
				l.Sweep()
			})
			goDo(callers, func(int) {
				for range calls {
					if !l.Take("hot", 1).Allowed {
						t.Error("denied within the burst")
					}
					if l.Key("hot").Peek(0).Remaining < burstOf(l)-callers*calls {
						t.Error("Peek sees more spent than there was")
					}
				}
			})()
			stop()
			moves += uint64(l.moves.Value())
			require.Equal(t, burstOf(l)-callers*calls, l.Key("hot").Peek(0).Remaining)
		}
		require.GreaterOrEqual(t, moves, uint64(20), "few decisions met a moved word: the race was not run")
	})
}

// TestConcurrent_TornReadsOfALogDoNotCount: the log is full of units that are old
// enough, and calls for half of them come at once. A call that reads a place which
// another has just taken must look again, and not take it for the oldest.
func TestConcurrent_TornReadsOfALogDoNotCount(t *testing.T) {
	const limit, callers = 60, 3
	retried := uint64(0)
	for rounds := 0; rounds < 2000 && (rounds < 200 || retried < 50); rounds++ {
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(limit)})
		require.True(t, l.AllowN("k", limit))
		clock.Advance(time.Second)
		yieldBeforeSwap(l)
		goDo(callers, func(g int) {
			last := limit
			for i := range limit / 2 / callers {
				if g == 0 && i%2 == 0 && !l.Allow("k") || (g > 0 || i%2 == 1) && !l.Take("k", 1).Allowed {
					t.Error("denied, though half of the log is old enough")
				}
				left := l.Key("k").Peek(0).Remaining
				if left < limit/2 || left > last {
					t.Errorf("Peek sees %d left, after it had seen %d", left, last)
				}
				last = left
			}
		})()
		retried += uint64(l.lostRaces.Value())
	}
	require.GreaterOrEqual(t, retried, uint64(50), "few swaps failed: the race was not run")
}

// TestConcurrent_PeekSeesOneStateOfALog: a Peek whose tail has been written while it
// read would find more than half of the places taken, and none left.
func TestConcurrent_PeekSeesOneStateOfALog(t *testing.T) {
	for range 300 {
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(60)})
		require.True(t, l.AllowN("k", 60))
		clock.Advance(time.Second)
		yieldBeforeSwap(l)
		wait := goDo(1, func(int) {
			l.AllowN("k", 25)
			l.AllowN("k", 25)
		})
		for left := 60; left != 10; {
			left = l.Key("k").Peek(0).Remaining
			require.Contains(t, []int{60, 35, 10}, left)
		}
		wait()
	}
}

// TestConcurrent_NewKeysAdmitTheirBurst: goroutines meet at keys that are just being
// added. Were the id stored before the word, a charge in between would be lost.
func TestConcurrent_NewKeysAdmitTheirBurst(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		keys := 30_000
		if crowded() || raceEnabled {
			keys = 300
		}
		c.Clock, c.MaxKeys = NewManualClock(start), -1
		c.Limit = PerMinute(2)
		if name := t.Name(); c.Algorithm == SlidingWindow && strings.HasSuffix(name, "wide") {
			c.Limit = PerSecond(100_000)
		}
		l := mustNew(t, c)
		cost := burstOf(l) / 2
		var admitted atomic.Int64
		goDo(3, func(int) {
			for i := range keys {
				if l.KeyUint64(uint64(i)).AllowN(cost) {
					admitted.Add(1)
				}
			}
		})()
		require.Equal(t, int64(2*keys), admitted.Load())
	})
}

// TestConcurrent_EveryWindowAdmitsItsLimit moves time from window to window while
// keys are charged and swept all the time. A sweep that forgave a key charged
// after the sweep had read the clock would let more than the limit pass.
func TestConcurrent_EveryWindowAdmitsItsLimit(t *testing.T) {
	for _, c := range variants {
		if c.Algorithm == SlidingWindow || c.Algorithm == InFlight || c.Offset != 0 {
			continue
		}
		t.Run("variant="+variantName(c), func(t *testing.T) {
			t.Parallel()
			clock := NewManualClock(time.Unix(1_790_000_100, 0)) // a minute's edge
			c.Limit, c.Clock, c.Shards, c.TTL = PerMinute(50), clock, 1, 1
			l := mustNew(t, c)
			stop := goUntil(1, func(int, int) {
				l.Sweep()
				runtime.Gosched()
			})
			for i := 0; i < 100_000 && (i < 200 || l.Stats().Swept < 10); i++ {
				var admitted atomic.Int64
				goDo(3, func(int) {
					for range 60 {
						if l.Allow("k") {
							admitted.Add(1)
						}
					}
				})()
				require.Equal(t, int64(50), admitted.Load())
				clock.Advance(time.Minute)
				if i%2 == 1 {
					runtime.Gosched() // on one processor the sweeper hardly runs otherwise
				}
			}
			stop()
			require.GreaterOrEqual(t, l.Stats().Swept, uint64(10), "no sweep dropped the key: the race was not run")
		})
	}
}

// TestConcurrent_MovingClockStaysWithinWorstCase: whatever the schedule, no key is
// admitted more than WorstCase of the whole span, and no less than its burst without the room that may be left at its end.
func TestConcurrent_MovingClockStaysWithinWorstCase(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.TTL, c.MaxKeys = 1, -1
		l, clock := newFrozen(t, c)
		rng := seeded.Rand(t)
		seeds := []uint64{rng.Uint64(), rng.Uint64(), rng.Uint64()}
		var admitted [4]atomic.Int64
		goDo(len(seeds), func(g int) {
			rng := rand.New(rand.NewPCG(seeds[g], 0))
			for i := range 5000 {
				key := rng.IntN(len(admitted))
				cost := 1 + rng.IntN(burstOf(l)/100)
				if l.AllowN(fmt.Sprint("key", key), cost) {
					admitted[key].Add(int64(cost))
				}
				switch {
				case i%16 == 0:
					clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / 500)))
				case i%512 == 1:
					l.Sweep()
				case i%8 == 1:
					l.Allow(fmt.Sprint("filler", rng.IntN(1000)))
				}
			}
		})()
		span := time.Duration(clock.Now() - start.UnixNano())
		for key := range admitted {
			require.LessOrEqual(t, admitted[key].Load(), int64(l.WorstCase(span)))
			require.Greater(t, admitted[key].Load(), int64(burstOf(l))*99/100)
		}
	})
}

// TestConcurrent_LenNeverExceedsMaxKeys floods a small limiter from all sides. Time stands
// still, since keys that become idle meanwhile are dropped, and Len says how fast the
// machine is.
func TestConcurrent_LenNeverExceedsMaxKeys(t *testing.T) {
	for _, o := range overflows {
		t.Run("overflow="+o.String(), func(t *testing.T) {
			t.Parallel()
			l, _ := newFrozen(t, Config{Limit: PerSecond(10), MaxKeys: 100, Overflow: o, Shards: 4})
			var done atomic.Bool
			watcher := goDo(1, func(int) {
				for !done.Load() {
					if n := l.Len(); n > 100 {
						t.Errorf("Len() = %d with MaxKeys 100", n)
						return
					}
					runtime.Gosched()
				}
			})
			goDo(4, func(g int) {
				for i := range 5000 {
					l.Allow(fmt.Sprint("key", g, i))
				}
			})()
			done.Store(true)
			watcher()
			require.LessOrEqual(t, l.Len(), 100)
			require.GreaterOrEqual(t, l.Len(), 50)
			if o == OverflowEvictSoonest {
				require.Zero(t, l.Stats().Untracked, "contention is no denial")
			}
		})
	}
}
