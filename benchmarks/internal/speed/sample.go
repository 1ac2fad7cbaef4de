package speed

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// A Mode is how many goroutines call a limiter, on how many processors.
type Mode struct {
	Name       string
	Procs      int // GOMAXPROCS; 0: as it is
	Goroutines int
}

// Modes returns the modes of the tables. parallel-1 shows what a goroutine costs
// the others when it is preempted in the middle of a call; parallel-2 shows two
// processors that want the same memory.
func Modes() []Mode {
	return []Mode{
		{"serial", 0, 1},
		{"parallel-1", 1, 4},
		{"parallel-2", 2, 2},
	}
}

// Excludes returns why there is no row for the subject under the workload in the
// mode, or "" if there is one.
func Excludes(s peers.Subject, w workload.Workload, m Mode) string {
	if why := w.Excludes(s); why != "" {
		return why
	}
	if why := m.excludes(w); why != "" {
		return why
	}
	if s.PerUnit && m.Goroutines > 1 && w.Options.Burst > 1<<10 {
		// A goroutine that loses the processor for 60 ms after it has read the clock
		// comes back with a time before everything that a log of 2^20 units holds.
		return "a preempted call can be denied, rightly, so its outcome is not defined"
	}
	return ""
}

func (m Mode) excludes(w workload.Workload) string {
	switch {
	case m.Procs > runtime.NumCPU():
		return "the machine has fewer processors"
	case w.Strings != workload.Streamed && m.Goroutines > 1:
		return "one goroutine tells what strings cost"
	case w.Unique && m.Procs == 1:
		// A sample of new keys needs a limiter of its own, which takes seconds, and
		// what waits there is the same as in the other workloads.
		return "waiting is measured with the other workloads"
	case w.Unique && w.Options.MaxKeys > 0 && m.Goroutines > 1:
		return "each sample needs a full limiter of its own, and the time that takes"
	}
	return ""
}

// chunk is how many calls in a row a goroutine claims: enough for the claim not to
// matter, few enough that all goroutines finish together.
const chunk = 256

// Prepare makes a limiter for a workload and calls for the workload's population.
func Prepare(s peers.Subject, w workload.Workload) (peers.Limiter, error) {
	l, err := s.New(w.OptionsFor(s))
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", s.Name, w.Name, err)
	}
	for i := range w.PopulationLen {
		if !l.Allow(w.Population.Key(i)) && !w.Options.DenyNew {
			l.Close()
			return nil, fmt.Errorf("%s, %s: call %d of the population is denied, want admitted", s.Name, w.Name, i)
		}
	}
	return l, nil
}

// Sample times a number of calls as one block, beginning with call from of the
// sequence, and checks their outcome against the workload's declaration: the
// admitted calls, and the keys that the limiter tracks afterwards.
func Sample(l peers.Limiter, s peers.Subject, w workload.Workload, m Mode, from, calls int) (time.Duration, error) {
	d, err := sample(l, s, w, m, from, calls)
	if err != nil {
		return 0, err
	}
	if keys := l.Keys(); w.CheckKeys(keys, calls) != "" {
		return 0, fmt.Errorf("%s, %s, %s: %d keys tracked, want %s", s.Name, w.Name, m.Name, keys, w.CheckKeys(keys, calls))
	}
	return d, nil
}

// sample is Sample without a look at the keys. Some limiters count them by going
// through all of them, which brings them into the cache or drives other keys out.
func sample(l peers.Limiter, s peers.Subject, w workload.Workload, m Mode, from, calls int) (time.Duration, error) {
	d, admitted := drive(l, w, m, from, calls)
	if want := w.Admits(calls); admitted != want {
		return 0, fmt.Errorf("%s, %s, %s: %d of %d calls admitted, want %d", s.Name, w.Name, m.Name, admitted, calls, want)
	}
	return d, nil
}

func drive(l peers.Limiter, w workload.Workload, m Mode, from, calls int) (time.Duration, int) {
	if m.Procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(m.Procs))
	}
	if m.Goroutines == 1 {
		start := time.Now()
		admitted := run(l, w, from, from+calls)
		return time.Since(start), admitted
	}
	return driveParallel(l, w, m.Goroutines, from, calls)
}

// driveParallel hands out the calls in chunks, each to one goroutine.
func driveParallel(l peers.Limiter, w workload.Workload, goroutines, from, calls int) (time.Duration, int) {
	var admitted, claimed atomic.Int64
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-begin
			sum := 0
			for {
				lo := int(claimed.Add(chunk)) - chunk
				if lo >= calls {
					break
				}
				sum += run(l, w, from+lo, from+min(lo+chunk, calls))
			}
			admitted.Add(int64(sum))
		})
	}
	start := time.Now()
	close(begin)
	wg.Wait()
	return time.Since(start), int(admitted.Load())
}

func run(l peers.Limiter, w workload.Workload, from, to int) (admitted int) {
	if w.Batch > 0 {
		b := l.(peers.Batcher).Batch(w.Batch)
		if w.Singly {
			return runBatches(b, b.AllowSingly, w, from, to)
		}
		return runBatches(b, b.Allow, w, from, to)
	}
	return w.Drive(l, from, to)
}

// runBatches is the loop around every measured call on a batch of keys.
//
//go:noinline
func runBatches(b peers.Batch, allow func() int, w workload.Workload, from, to int) (admitted int) {
	for i := from; i < to; {
		for end := min(i+w.Batch, to); i < end; i++ {
			b.Add(w.Calls.Key(i))
		}
		admitted += allow()
	}
	return admitted
}
