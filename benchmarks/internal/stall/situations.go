package stall

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// growth times the calls that fill an empty limiter.
func growth(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	l, err := s.New(c.fresh.Options)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	run, baseline = c.times(l, c.fresh, c.Keys)
	return run, baseline, checkKeys(l, c.fresh, c.Keys)
}

// flood times new keys at a limiter that is full.
func flood(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	l, err := s.New(c.flood.Options)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	for i := range c.flood.PopulationLen {
		l.Allow(c.flood.Population.Key(i))
	}
	run, baseline = c.times(l, c.flood, c.Turnover)
	return run, baseline, checkKeys(l, c.flood, c.Keys)
}

// checkKeys fails if the limiter has another number of keys than a workload declares.
func checkKeys(l peers.Limiter, w workload.Workload, calls int) error {
	if want := w.CheckKeys(l.Keys(), calls); want != "" {
		return fmt.Errorf("it holds %d keys, want %s", l.Keys(), want)
	}
	return nil
}

// times times so many calls of a workload, and the same loop around an empty call.
func (c setup) times(l peers.Limiter, w workload.Workload, calls int) (run, baseline *hdrhistogram.Histogram) {
	start := time.Now()
	run = allow(l, w, upTo(calls))
	return run, allow(floor.Empty(), w, c.asMuch(calls, time.Since(start)))
}

// asMuch says for how long the empty call is made: as often as the other, or, for the
// sake of the longest call, for as long.
func (c setup) asMuch(calls int, took time.Duration) func(i int) bool {
	if !c.AsLong {
		return upTo(calls)
	}
	end := time.Now().Add(took)
	return func(i int) bool { return i == 0 || time.Now().Before(end) }
}

// allow times calls of a workload, from the first on.
func allow(l peers.Limiter, w workload.Workload, more func(i int) bool) *hdrhistogram.Histogram {
	runtime.GC() // so that every run begins at the same place of the collector's cycle
	return record(more, func(i int) { l.Allow(w.Calls.Key(i)) })
}

const (
	sweepPeriod = time.Second
	sweepRate   = 5000
	// liveKeys are called while idle keys are swept. Each is called in turn, so that
	// every shard is met often, and more often than sweepRate a second (any limiter
	// that takes less than 780 ns a call), so that none of them becomes idle.
	liveKeys = 256
)

// sweep times calls on live keys while another goroutine sweeps idle ones, each of
// which has been charged once and has had the time to become idle.
func sweep(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	l, err := s.New(peers.Options{Rate: sweepRate, Period: sweepPeriod, Burst: sweepRate, Expect: c.Keys + liveKeys})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if l.Keys() < 0 {
		return nil, nil, omitted("it sweeps when it pleases and cannot tell its keys, so that nobody knows when")
	}
	c.fill(l)
	time.Sleep(c.Idle)
	// No fresh key is among the flood's.
	live := func(i int) string { return c.flood.Calls.Key(i % liveKeys) }
	for i := range sweepRate * liveKeys { // their whole burst
		l.Allow(live(i))
	}
	before := l.Keys()
	run, baseline = c.timesBeside(l.Sweep, l, live)
	after := l.Keys()
	switch {
	case before < c.Keys:
		return nil, nil, omitted(fmt.Sprintf("it swept by itself before it was asked to: %d keys of %d were left", before, c.Keys+liveKeys))
	case after > c.Keys/2:
		return nil, nil, omitted(fmt.Sprintf("it cannot be asked to sweep: of %d keys, %d idle ones, %d were left", before, c.Keys, after))
	}
	return run, baseline, nil
}

// fill shows each of the keys once.
func (c setup) fill(l peers.Limiter) {
	for i := range c.Keys {
		l.Allow(c.fresh.Calls.Key(i))
	}
}

// timesBeside times calls while another goroutine works, and then the same loop around
// an empty call, while another goroutine needs the other processor as much.
func (c setup) timesBeside(work func(), l peers.Limiter, key func(i int) string) (run, baseline *hdrhistogram.Histogram) {
	start := time.Now()
	run = beside(work, func(i int) { l.Allow(key(i)) })
	more, e := c.asMuch(int(run.TotalCount()), time.Since(start)), floor.Empty()
	var done atomic.Bool
	baseline = besideUntil(func(i int) bool {
		done.Store(!more(i))
		return !done.Load()
	}, func() {
		for !done.Load() {
		}
	}, func(i int) { e.Allow(key(i)) })
	return run, baseline
}

// beside times calls from the moment work is about to begin in another goroutine
// until it has ended.
func beside(work func(), call func(i int)) *hdrhistogram.Histogram {
	var done atomic.Bool
	// One call at least: a limiter with nothing to sweep is done at once.
	return besideUntil(func(i int) bool { return i == 0 || !done.Load() }, func() {
		work()
		done.Store(true)
	}, call)
}

// besideUntil times calls as long as more says so, from the moment work is about to
// begin in another goroutine, and waits for both.
func besideUntil(more func(i int) bool, work func(), call func(i int)) *hdrhistogram.Histogram {
	runtime.GC()
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		close(begun)
		work()
	}()
	<-begun
	h := record(more, call)
	<-ended
	return h
}
