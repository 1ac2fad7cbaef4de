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
		if s.Kind == peers.Bare {
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
	before := settled()
	// No key becomes idle while it is measured.
	o := workload.Once
	o.Expect = keys
	l, err := s.New(o)
	if err != nil {
		return results.Memory{}, err
	}
	fill(l, known, 0, keys)
	after := settled()
	if n := l.Keys(); n >= 0 && n != keys {
		l.Close()
		return results.Memory{}, fmt.Errorf("it holds %d keys after %d were charged", n, keys)
	}
	row := results.Memory{
		Subject:       s.Name,
		Keys:          keys,
		BytesPerKey:   perKey(before.HeapAlloc, after.HeapAlloc, keys),
		ObjectsPerKey: perKey(before.HeapObjects, after.HeapObjects, keys),
		GC:            timeGC(),
	}
	l.Close() // the last use of l: from here on it is garbage
	settled()
	row.GCWithout = timeGC()
	return row, nil
}

// fill charges the keys from one to another once. Each is a string of its own that nobody else holds,
// as a server cuts them from its requests: a limiter that keeps it pays for it, and
// one that does not lets it go.
func fill(l peers.Limiter, known workload.Sequence, from, to int) {
	for i := from; i < to; i++ {
		l.Allow(strings.Clone(known.Key(i)))
	}
}

// settled returns the statistics of a heap without garbage: what is released by a
// finalizer or a sync.Pool takes a second collection.
func settled() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// perKey is the growth from before to after for each key. A heap that has shrunk
// by something else has grown by less than nothing: the result may be negative.
func perKey(before, after uint64, keys int) float64 {
	return (float64(after) - float64(before)) / float64(keys)
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
// known beforehand. What the runtime allocates for itself meanwhile is counted with
// them, so that none is a figure near 0.
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
	for i := range calls {
		l.Allow(w.Calls.Key(i))
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}
