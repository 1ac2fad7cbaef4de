// Package floor measures what the parts of a decision cost alone: no limiter that
// is made of them can be faster than their sum.
package floor

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/puzpuzpuz/xsync/v4"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// The parts, by the names under which the report finds them.
const (
	Driver      = "driver: a loop around an empty limiter"
	TimeSince   = "time.Since"
	TimeNow     = "time.Now"
	SystemClock = "sluice.SystemClock"
	FastClock   = "sluice.FastClock"
	NanoTime    = "runtime.nanotime, by linkname"
	CoarseClock = "sluice.CoarseClock"
	Maphash     = "maphash.String of a key"
	XXHash      = "xxhash of a key"
	Load        = "atomic load"
	Add         = "atomic add"
	CAS         = "atomic CAS, alone"
	Contended   = "atomic CAS, two goroutines on one word"
	Miss16      = "dependent load, 16 MB at random"
	Miss160     = "dependent load, 160 MB at random"
	MapLoad     = "xsync.Map.Load, 1,000 keys"
)

// perSample is how often a part runs for one sample: 1 to 150 ms of it.
const perSample = 1 << 20

// Strings is the part of a workload's strings: the driver's loop over its calls, around a limiter that only looks at them.
func Strings(w string) string { return "driver and strings: " + w }

// Run takes one sample of each part a round, so that sample i of one part was taken
// within a second of sample i of every other. The workloads are those whose strings are parts.
func Run(rounds int, workloads []workload.Workload) []results.Floor {
	return run(rounds, perSample, append(all(16<<20, 160<<20), stringsOf(workloads)...))
}

// A part runs itself n times.
type part struct {
	name string
	run  func(n int)
}

func run(rounds, n int, parts []part) []results.Floor {
	rows := make([]results.Floor, len(parts))
	for i, p := range parts {
		rows[i].Part = p.name
		p.run(n / 16) // brings code and data into the caches
	}
	for range rounds {
		for i, p := range parts {
			start := time.Now()
			p.run(n)
			rows[i].Samples = append(rows[i].Samples, float64(time.Since(start))/float64(n))
		}
	}
	return rows
}

// sinkInt keeps the compiler from dropping results that nobody looks at.
var sinkInt atomic.Int64

// empty is a limiter that does nothing.
type empty struct{}

//go:noinline
func (empty) Allow(string) bool { return true }
func (empty) Keys() int         { return -1 }
func (empty) Sweep()            {}
func (empty) Close()            {}

// Empty returns a limiter that does nothing, for the cost of the loop around it. Where it were
// inlined, the compiler would know the limiter, and call it without the interface.
//
//go:noinline
func Empty() peers.Limiter { return empty{} }

// reader is a limiter that looks at each key, and at none before it is done with the one before: no limiter that changes a word can, either.
type reader struct {
	empty
	sum atomic.Int64
}

func (r *reader) Allow(key string) bool {
	r.sum.Add(int64(key[0]))
	return true
}

// hot is the workload of that name, and key its key.
var (
	hot = workload.Uniform(1)
	key = hot.Calls.Key(0)
)

func all(small, large int) []part {
	parts := append(clocks(), hashes()...)
	parts = append(parts, atomics()...)
	return append(parts,
		part{Miss16, misses(small)},
		part{Miss160, misses(large)},
		part{MapLoad, mapLoads()},
	)
}

// stringsOf has a part for each workload of single calls on known keys.
func stringsOf(workloads []workload.Workload) (parts []part) {
	for _, w := range workloads {
		if w.Batch > 0 || w.Unique || w.Options.MaxKeys > 0 {
			continue
		}
		at := 0 // a sample goes on where the one before has ended: its strings are not in the cache
		parts = append(parts, part{Strings(w.Name), func(n int) {
			var l reader
			sinkInt.Store(int64(w.Drive(&l, at, at+n)))
			at += n
		}})
	}
	return parts
}

func clocks() []part {
	system, fast, coarse, base := sluice.SystemClock(), sluice.NewFastClock(), sluice.NewCoarseClock(0), time.Now()
	return []part{
		{Driver, func(n int) { sinkInt.Store(int64(hot.Drive(Empty(), 0, n))) }},
		{TimeSince, loop(func() int64 { return int64(time.Since(base)) })},
		{TimeNow, loop(func() int64 { return int64(time.Now().Nanosecond()) })},
		{SystemClock, loop(system.Now)},
		{FastClock, loop(fast.Now)},
		{CoarseClock, loop(coarse.Now)},
		{NanoTime, loop(peers.RuntimeNow)},
	}
}

func hashes() []part {
	seed := maphash.MakeSeed()
	return []part{
		{Maphash, func(n int) {
			var x uint64
			for range n {
				x ^= maphash.String(seed, key)
			}
			sinkInt.Store(int64(x))
		}},
		{XXHash, func(n int) {
			var x uint64
			for range n {
				x ^= xxhash.Sum64String(key)
			}
			sinkInt.Store(int64(x))
		}},
	}
}

// loop calls f through a function value, which costs 1 to 2 ns, as the call of a
// clock through its interface does. Functions that are called directly have loops of their own.
func loop(f func() int64) func(n int) {
	return func(n int) {
		var x int64
		for range n {
			x ^= f()
		}
		sinkInt.Store(x)
	}
}

func atomics() []part {
	// Each on cache lines of its own.
	word := new(struct {
		_ [128]byte
		atomic.Int64
		_ [128]byte
	})
	return []part{
		{Load, func(n int) {
			var x int64
			for range n {
				x ^= word.Load()
			}
			sinkInt.Store(x)
		}},
		{Add, func(n int) {
			for range n {
				word.Add(1)
			}
		}},
		{CAS, func(n int) {
			for range n {
				old := word.Load()
				word.CompareAndSwap(old, old+1)
			}
		}},
		{Contended, func(n int) {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for range n / 2 {
						for old := word.Load(); !word.CompareAndSwap(old, old+1); old = word.Load() {
						}
					}
				})
			}
			wg.Wait()
		}},
	}
}

// line is a cache line that names the next one to load.
type line struct {
	next uint64
	_    [56]byte
}

// misses follows one cycle through all lines in random order (Sattolo's algorithm),
// so that each load waits for the one before and no prefetcher can guess it.
func misses(bytes int) func(n int) {
	lines := make([]line, bytes/64)
	for i := range lines {
		lines[i].next = uint64(i)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := len(lines) - 1; i > 0; i-- {
		j := r.IntN(i)
		lines[i].next, lines[j].next = lines[j].next, lines[i].next
	}
	at := uint64(0)
	return func(n int) {
		for range n {
			at = lines[at].next
		}
		sinkInt.Store(int64(at))
	}
}

func mapLoads() func(n int) {
	m := xsync.NewMap[string, int64]()
	for i := range 1000 {
		m.Store(string([]byte{byte(i), byte(i >> 8)}), int64(i))
	}
	m.Store(key, 1)
	return loop(func() int64 { x, _ := m.Load(key); return x })
}
