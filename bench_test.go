package sluice

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/keyid"
	"github.com/sluice-go/sluice/internal/test/depth"
)

// The benchmarks compare the algorithms on equal terms: every one gets the same
// keys in the same order, and a limit under which every call of a workload has
// the same outcome, so that no algorithm is faster for denying more. The driver
// checks both: it fails a benchmark whose number of keys, or share of admitted
// calls, is not what the workload declares.
//
//	workload  keys                        limit      admitted
//	hot       one, by string              generous   all
//	thousand  1,000, uniform, by string   generous   all
//	zipf      1,000,000, Zipf 1.1         generous   all
//	uniform   1,000,000, uniform          generous   all
//	denied    one, by string              1          none
//	fill      new ones only, into an      never      all
//	          empty limiter, replaced
//	          when it holds 2^20 keys
//	flood     new ones only, into a full  never      all
//	          one: MaxKeys is 2^20
//
// The workloads on a million keys name them by number (KeyUint64): a million
// strings would miss the cache as often as the limiter does and be measured, too.
const (
	million  = 1_000_000
	fullKeys = 1 << 20
)

// generous is never spent: 2^30 units in a window that began in 1970 and ends in
// 2116, so that even the sliding window takes one word. never returns nothing
// within the window: keys of it do not become idle.
var (
	generous = Per(1<<30, 1<<62)
	never    = Per(8, 146*year)
)

// generousLog is for the sliding log, which keeps every unit. Its units return
// after 1 ns, so that it admits a call unless the key has had limit others since
// the clock was read, which happens to a goroutine that loses the processor just
// then. The driver lets it deny 1 call in 50 for that.
func generousLog(limit int) Limit { return Per(limit, 1) }

const logSlack = 50

// A workload is what the driver runs and checks.
type workload struct {
	name     string
	keys     int   // distinct keys that it calls for
	logLimit int   // the sliding log's limit under SystemClock
	limit    Limit // the other algorithms' limit
	admitted bool
}

var (
	// The ring of the sliding log is 8 KiB a key here,
	hot      = workload{"hot", 1, 1 << 10, generous, true}
	thousand = workload{"thousand", 1000, 1 << 10, generous, true}
	// 64 bytes a key here, so that a million of them take 100 MB,
	zipf    = workload{"zipf", million, 8, generous, true}
	uniform = workload{"uniform", million, 8, generous, true}
	// and one unit here, that does not return before 2115.
	denying = workload{"denied", 1, 0, Per(1, 146*year), false}
	// New keys are charged once, so that nothing need return here.
	filling  = workload{"fill", fullKeys, 0, never, true}
	flooding = workload{"flood", fullKeys, 0, never, true}
)

// A coarse clock is refreshed once in 1 ms, and later while all processors are
// busy. coarseLogOne and coarseLogMany are the calls that the sliding log admits to
// one key, and to each of 1,000, until then. For a million keys there is no memory
// for such rings, and in parallel they would not do either: see runs.
const (
	coarseLogOne  = maxLog
	coarseLogMany = 1 << 12
)

// runs reports whether the workload has a declared outcome for the algorithm. The
// sliding log under a coarse clock has none with a million keys, nor in parallel,
// where refreshes wait for the scheduler to preempt somebody.
func (w workload) runs(a Algorithm, clock string, parallel bool) bool {
	if a == InFlight && w.name == flooding.name {
		return false // it evicts no keys
	}
	return a != SlidingLog || clock != "coarse" || w.logLimit == 0 || w.keys < million && !parallel
}

func (w workload) config(a Algorithm, c Clock) Config {
	limit := w.limit
	if a == SlidingLog && w.logLimit > 0 {
		_, coarse := c.(*CoarseClock)
		switch {
		case coarse && w.keys == 1:
			limit = generousLog(coarseLogOne)
		case coarse:
			limit = generousLog(coarseLogMany)
		default:
			limit = generousLog(w.logLimit)
		}
	}
	// A sweep would change the number of keys.
	return Config{Algorithm: a, Limit: limit, Clock: c, MaxKeys: -1, TTL: 24 * time.Hour}
}

// newKeysConfig is for limiters whose every key is charged once.
func newKeysConfig(a Algorithm, c Clock) Config {
	return Config{Algorithm: a, Limit: never, Clock: c, MaxKeys: fullKeys}
}

// starts numbers the cursors of all benchmarks, so that no two of them begin at the
// same place or meet: each has 2^40 numbers for itself.
var starts atomic.Uint64

func newCursor() uint64 {
	n := starts.Add(1)
	return n<<40 + n*7919
}

// drive runs call serially or on GOMAXPROCS goroutines, each with a cursor of its
// own, and checks that the calls have the outcome that the workload declares. It
// costs 1 to 2 ns a call, the same for all (BenchmarkFloor/part=driver).
func drive(b *testing.B, w workload, l *Limiter, parallel bool, call func(cursor uint64) bool) (calls int) {
	b.Helper()
	b.ReportAllocs()
	admitted := 0
	if parallel {
		var sum, total atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			i, yes, n := newCursor(), 0, 0
			for ; pb.Next(); n++ {
				if call(i) {
					yes++
				}
				i++
			}
			sum.Add(int64(yes))
			total.Add(int64(n))
		})
		calls, admitted = int(total.Load()), int(sum.Load())
	} else {
		for i := newCursor(); b.Loop(); i++ {
			if call(i) {
				admitted++
			}
			calls++
		}
	}
	least, most := 0, 0
	if w.admitted {
		least, most = calls, calls
	}
	if w.logLimit > 0 && isWide(l) {
		least -= 1 + calls/logSlack
	}
	if admitted < least || admitted > most {
		b.Fatalf("%d of %d calls admitted; the workload declares %d to %d", admitted, calls, least, most)
	}
	return calls
}

func checkKeys(b *testing.B, w workload, l *Limiter) {
	b.Helper()
	if l.Len() != w.keys {
		b.Fatalf("%d keys; the workload declares %d", l.Len(), w.keys)
	}
}

// eachCase runs f as a sub-benchmark for the first clocks, serially and in parallel,
// and every algorithm, under one workload.
func eachCase(b *testing.B, w workload, clocksUsed int, f func(b *testing.B, a Algorithm, c Clock, parallel bool)) {
	for _, mode := range []string{"serial", "parallel"} {
		for _, clock := range clocks[:clocksUsed] {
			for _, a := range algorithms {
				if !w.runs(a, clock.name, mode == "parallel") {
					continue
				}
				b.Run(fmt.Sprintf("workload=%s/mode=%s/clock=%s/algorithm=%v", w.name, mode, clock.name, a), func(b *testing.B) {
					f(b, a, clock.new(), mode == "parallel")
				})
			}
		}
	}
}

// BenchmarkAllow is the table: each workload, mode, clock and algorithm.
func BenchmarkAllow(b *testing.B) {
	benchOneKey(b, hot)
	benchThousand(b)
	benchOneKey(b, denying)
	benchMillion(b, zipf, len(clocks), zipfIndexes())
	benchMillion(b, uniform, 2, uniformIndexes())
	benchNewKeys(b)
}

func benchOneKey(b *testing.B, w workload) {
	eachCase(b, w, len(clocks), func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		l := mustNew(b, w.config(a, c))
		if !w.admitted && !l.Allow("user:42") {
			b.Fatal("the first call is admitted under any limit")
		}
		drive(b, w, l, parallel, func(uint64) bool { return l.Allow("user:42") })
		checkKeys(b, w, l)
	})
}

func benchThousand(b *testing.B) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%04d", i)
	}
	r := rand.New(rand.NewPCG(1, 1))
	const orderLen = 1 << 16
	order := make([]string, orderLen)
	for i := range order {
		order[i] = keys[r.IntN(len(keys))]
	}
	eachCase(b, thousand, len(clocks), func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		l := mustNew(b, thousand.config(a, c))
		for _, key := range order {
			l.Allow(key) // counts the distinct keys, and builds the tables
		}
		drive(b, thousand, l, parallel, func(i uint64) bool { return l.Allow(order[i%orderLen]) })
		checkKeys(b, thousand, l)
	})
}

// sequenceLen is how many calls a sequence of indexes into the million keys has
// before it repeats itself; as a power of two, so that wrapping is a mask.
const sequenceLen = 1 << 21

var zipfIndexes = sync.OnceValue(func() []uint32 {
	z := rand.NewZipf(rand.New(rand.NewPCG(2, 2)), 1.1, 1, million-1)
	return indexes(func() uint64 { return z.Uint64() })
})

var uniformIndexes = sync.OnceValue(func() []uint32 {
	r := rand.New(rand.NewPCG(3, 3))
	return indexes(func() uint64 { return r.Uint64N(million) })
})

func indexes(next func() uint64) []uint32 {
	s := make([]uint32, sequenceLen)
	for i := range s {
		s[i] = uint32(next())
	}
	return s
}

// TestBench_SequencesAreWhatTheySay checks the sequences themselves: how many
// distinct keys they call for, and how much of it goes to the first.
func TestBench_SequencesAreWhatTheySay(t *testing.T) {
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full draws 4 million random numbers")
	}
	for name, c := range map[string]struct {
		sequence           []uint32
		leastKeys, maxKeys int
		leastTop, mostTop  int // calls for the most frequent key
	}{
		// 1,000,000*(1-exp(-2.097)) = 877,000
		"uniform": {uniformIndexes(), 875_000, 880_000, 5, 25},
		// 1/(sum of k^-1.1 up to a million) = 13.2% go to the first key.
		"zipf": {zipfIndexes(), 150_000, 250_000, sequenceLen / 9, sequenceLen / 7},
	} {
		counts := map[uint32]int{}
		top := 0
		for _, i := range c.sequence {
			counts[i]++
			top = max(top, counts[i])
			if i >= million {
				t.Fatalf("%s: index %d", name, i)
			}
		}
		if n := len(counts); n < c.leastKeys || n > c.maxKeys || top < c.leastTop || top > c.mostTop {
			t.Errorf("%s: %d distinct keys, %d calls for the first", name, n, top)
		}
	}
}

// millions are the limiters with a million keys, one an algorithm, made once for
// all workloads and clocks: filling one takes longer than a benchmark.
var millions = map[Algorithm]*Limiter{}

// millionKeys returns a limiter that tracks the numbers below a million. All of
// them have been charged, so the sequences call for no other key.
func millionKeys(b *testing.B, a Algorithm, c Clock) *Limiter {
	b.Helper()
	l := millions[a]
	if l == nil {
		l = mustNew(b, zipf.config(a, c))
		for i := range uint64(million) {
			l.KeyUint64(i).Allow()
		}
		millions[a] = l
		runtime.GC() // what growing has left behind
	}
	l.clock = c // all of them tell Unix time; nobody uses the limiter now
	return l
}

func benchMillion(b *testing.B, w workload, clocksUsed int, sequence []uint32) {
	eachCase(b, w, clocksUsed, func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		l := millionKeys(b, a, c)
		b.ResetTimer()
		drive(b, w, l, parallel, func(i uint64) bool {
			return l.KeyUint64(uint64(sequence[i%sequenceLen])).Allow()
		})
		checkKeys(b, w, l)
	})
}

func benchNewKeys(b *testing.B) {
	clear(millions) // gives back 300 MB
	eachCase(b, filling, 1, benchFill)
	full := map[Algorithm]*Limiter{}
	eachCase(b, flooding, 1, func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		if full[a] == nil {
			full[a] = mustNew(b, newKeysConfig(a, c))
			for i := newCursor(); full[a].Stats().Evicted == 0; i++ {
				full[a].KeyUint64(i).Allow()
			}
		}
		benchFlood(b, full[a], parallel)
	})
}

// benchFill adds keys to an empty limiter, and starts over with another one when
// it holds fullKeys.
func benchFill(b *testing.B, a Algorithm, c Clock, parallel bool) {
	const every = 1024 // calls between two looks at the length
	var current atomic.Pointer[Limiter]
	current.Store(mustNew(b, newKeysConfig(a, c)))
	var keys atomic.Int64
	calls := drive(b, filling, current.Load(), parallel, func(i uint64) bool {
		l := current.Load()
		if i%every == 0 && l.Len() > fullKeys*15/16 {
			if next := mustNew(b, newKeysConfig(a, c)); current.CompareAndSwap(l, next) {
				keys.Add(int64(l.Len()))
			}
		}
		return l.KeyUint64(i).Allow()
	})
	// Calls that were under way when their limiter was replaced are not counted.
	distinct := int(keys.Load()) + current.Load().Len()
	if slack := every * runtime.GOMAXPROCS(0); distinct > calls || distinct < calls-slack {
		b.Fatalf("%d distinct keys in %d calls; the workload declares that all are new", distinct, calls)
	}
}

// benchFlood adds keys to a full limiter, each of which pushes another one out.
func benchFlood(b *testing.B, l *Limiter, parallel bool) {
	gone := func() int { s := l.Stats(); return s.Keys + int(s.Evicted+s.Swept) }
	before := gone()
	b.ResetTimer()
	calls := drive(b, flooding, l, parallel, func(i uint64) bool { return l.KeyUint64(i).Allow() })
	if distinct := gone() - before; distinct != calls {
		b.Fatalf("%d distinct keys in %d calls; the workload declares that all are new", distinct, calls)
	}
	if n := l.Len(); n > fullKeys || n < fullKeys*3/4 {
		b.Fatalf("%d keys; the workload declares about %d", n, fullKeys)
	}
}

// BenchmarkTake and BenchmarkPeek are the hot key of BenchmarkAllow, described.
func BenchmarkTake(b *testing.B) {
	benchDecision(b, func(l *Limiter) Decision { return l.Take("user:42", 1) })
}

func BenchmarkPeek(b *testing.B) {
	benchDecision(b, func(l *Limiter) Decision { return l.Key("user:42").Peek(1) })
}

func benchDecision(b *testing.B, call func(l *Limiter) Decision) {
	for _, a := range algorithms {
		b.Run(fmt.Sprintf("workload=hot/mode=serial/clock=system/algorithm=%v", a), func(b *testing.B) {
			l := mustNew(b, hot.config(a, SystemClock()))
			l.Allow("user:42")
			drive(b, hot, l, false, func(uint64) bool { return call(l).Allowed })
			checkKeys(b, hot, l)
		})
	}
}

// BenchmarkStats is the hot key of BenchmarkAllow with Config.Stats.
func BenchmarkStats(b *testing.B) {
	eachCase(b, hot, len(clocks), func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		config := hot.config(a, c)
		config.Stats = true
		l := mustNew(b, config)
		before := l.Stats().Admitted
		calls := drive(b, hot, l, parallel, func(uint64) bool { return l.Allow("user:42") })
		if n := l.Stats().Admitted - before; n != uint64(calls) {
			b.Fatalf("%d of %d calls were counted", n, calls)
		}
	})
}

// BenchmarkTopDenied is BenchmarkAllow/workload=denied with Config.TopDenied, for one
// key and for a thousand that are denied in turn, of which 100 can be listed.
func BenchmarkTopDenied(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("user:%04d", i)
	}
	for _, w := range []struct {
		workload
		names []string
	}{{denying, names[:1]}, {workload{name: "denied-thousand", keys: 1000}, names}} {
		eachCase(b, w.workload, len(clocks), func(b *testing.B, a Algorithm, c Clock, parallel bool) {
			config := denying.config(a, c)
			config.TopDenied = 100
			l := mustNew(b, config)
			for _, name := range w.names {
				l.Allow(name)
			}
			drive(b, w.workload, l, parallel, func(i uint64) bool { return l.Allow(w.names[i%uint64(len(w.names))]) })
			checkKeys(b, w.workload, l)
		})
	}
}

// BenchmarkFloor measures the parts that a decision cannot do without. None of them
// is admitted or denied; each says true.
func BenchmarkFloor(b *testing.B) {
	system, fast, coarse := SystemClock(), NewFastClock(), NewCoarseClock(0)
	seeded, stable := keyid.New(false), keyid.New(true)
	key, keyBytes := "user:42", []byte("user:42")
	addr := netip.MustParseAddr("192.0.2.1")
	var word atomic.Uint64
	for _, part := range []struct {
		name string
		call func(i uint64) bool
	}{
		{"driver", func(uint64) bool { return true }},
		{"clock/clock=system", func(uint64) bool { return system.Now() > 0 }},
		{"clock/clock=fast", func(uint64) bool { return fast.Now() > 0 }},
		{"clock/clock=coarse", func(uint64) bool { return coarse.Now() > 0 }},
		{"hash/form=string/hash=seeded", func(uint64) bool { return seeded.String(key) > 0 }},
		{"hash/form=string/hash=stable", func(uint64) bool { return stable.String(key) > 0 }},
		{"hash/form=bytes/hash=seeded", func(uint64) bool { return seeded.Bytes(keyBytes) > 0 }},
		{"hash/form=uint64/hash=seeded", func(i uint64) bool { return seeded.Uint64(i) > 0 }},
		{"hash/form=addr/hash=seeded", func(uint64) bool { return seeded.Addr(addr) > 0 }},
		{"cas", func(uint64) bool { w := word.Load(); return word.CompareAndSwap(w, w+1) }},
	} {
		b.Run("part="+part.name, func(b *testing.B) { drive(b, filling, nil, false, part.call) })
	}
}

// BenchmarkMemory fills a limiter with a million keys. ns/op is for all of them;
// B/key is the heap that they hold in the end. The sliding log's limit is 8.
func BenchmarkMemory(b *testing.B) {
	for _, a := range algorithms {
		b.Run(fmt.Sprintf("keys=1000000/algorithm=%v", a), func(b *testing.B) {
			var l *Limiter
			for b.Loop() {
				l = mustNew(b, newKeysConfig(a, SystemClock()))
				for i := range uint64(million) {
					l.KeyUint64(i).Allow()
				}
			}
			full, _ := heap()
			if l.Len() != million {
				b.Fatalf("%d keys", l.Len())
			}
			l = nil
			empty, _ := heap()
			b.ReportMetric(float64(full-empty)/million, "B/key")
		})
	}
}
