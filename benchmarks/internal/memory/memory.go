// Package memory measures what a limiter that holds many keys weighs, what it costs
// the garbage collector, and whether deciding allocates.
package memory

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/speed"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// How often a collection is timed, with the limiter and without. Short ones, of which
// one in a few is held up by the operating system for a tick of 4 ms, are timed the
// most often; long ones as often as gcEnough allows, but not less than gcLeast.
const (
	gcLeast  = 7
	gcMost   = 31
	gcEnough = time.Second
)

// Run fills every subject that takes keys with as many of them. It fails if a
// subject can tell its keys and has another number of them.
func Run(subjects []peers.Subject, keys int, log func(format string, args ...any)) ([]results.Memory, error) {
	var rows []results.Memory
	known := workload.Uniform(keys).Population
	for _, s := range subjects {
		if !s.HasKeys() {
			continue
		}
		row, err := measure(s, known, keys)
		if err != nil {
			return nil, fmt.Errorf("memory of %s: %w", s.Name, err)
		}
		log("memory: %s: %.1f B and %.2f objects a key", s.Name, row.BytesPerKey, row.ObjectsPerKey)
		rows = append(rows, row)
	}
	return rows, nil
}

func measure(s peers.Subject, known workload.Sequence, keys int) (results.Memory, error) {
	// No key becomes idle while it is measured.
	o := workload.Once
	o.Expect = keys
	w, err := newScale(s, o)
	if err != nil {
		return results.Memory{}, err
	}
	w.fill(known, keys)
	row := results.Memory{Subject: s.Name, Keys: keys}
	row.BytesPerKey, row.ObjectsPerKey = w.weigh(keys)
	if err := w.checkKeys(); err != nil {
		w.Close()
		return results.Memory{}, err
	}
	row.GC = timeGC()
	w.Close()
	w.Limiter = nil // from here on it is garbage
	settled()
	row.GCWithout = timeGC()
	return row, nil
}

// A heap is how much of it is in use.
type heap struct{ bytes, objects uint64 }

// settled returns a heap without garbage: memory that is released by a finalizer or a
// sync.Pool takes a second collection.
func settled() heap {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap{m.HeapAlloc, m.HeapObjects}
}

// A scale is a limiter that is filled, and the heap as it was before there was one.
type scale struct {
	peers.Limiter
	before  heap
	charged int // keys
}

func newScale(s peers.Subject, o peers.Options) (*scale, error) {
	before := settled()
	l, err := s.New(o)
	return &scale{Limiter: l, before: before}, err
}

// fill charges further keys once, until so many have been. Each is a string of its own that nobody else holds,
// as a server cuts them from its requests: a limiter that keeps it pays for it, and
// one that does not lets it go.
func (w *scale) fill(known workload.Sequence, keys int) {
	for ; w.charged < keys; w.charged++ {
		w.Allow(strings.Clone(known.Key(w.charged)))
	}
}

// weigh returns by how much the heap has grown, for each of so many keys. If something else has
// shrunk meanwhile, that may be negative.
func (w *scale) weigh(keys int) (bytesPerKey, objectsPerKey float64) {
	after := settled()
	perKey := func(before, after uint64) float64 { return (float64(after) - float64(before)) / float64(keys) }
	return perKey(w.before.bytes, after.bytes), perKey(w.before.objects, after.objects)
}

// checkKeys fails if the limiter can tell its keys and has another number of them than it was charged for.
func (w *scale) checkKeys() error {
	if n := w.Keys(); n >= 0 && n != w.charged {
		return fmt.Errorf("it holds %d keys after %d were charged", n, w.charged)
	}
	return nil
}

func timeGC() []time.Duration {
	var times []time.Duration
	for begin := time.Now(); len(times) < gcLeast || len(times) < gcMost && time.Since(begin) < gcEnough; {
		start := time.Now()
		runtime.GC()
		times = append(times, time.Since(start))
	}
	return times
}

// Allocs counts the allocations of the calls of every workload whose keys are all
// known beforehand. The runtime allocates, too, meanwhile, and that is counted with
// them: no allocations is a figure near 0.
func Allocs(subjects []peers.Subject, workloads []workload.Workload, calls int) ([]results.Allocs, error) {
	var rows []results.Allocs
	for _, w := range workloads {
		for _, s := range subjects {
			if w.Unique || w.Excludes(s) != "" {
				continue
			}
			l, err := speed.Prepare(s, w)
			if err != nil {
				return nil, fmt.Errorf("allocations of %w", err)
			}
			rows = append(rows, results.Allocs{Subject: s.Name, Workload: w.Name, PerCall: allocs(l, w, calls)})
			l.Close()
		}
	}
	return rows, nil
}

func allocs(l peers.Limiter, w workload.Workload, calls int) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.Drive(l, 0, calls)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}
