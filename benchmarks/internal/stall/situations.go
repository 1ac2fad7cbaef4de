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
	run = allow(l, c.fresh)
	if want := c.fresh.CheckKeys(l.Keys(), c.Keys); want != "" && !s.Lossy {
		return nil, nil, fmt.Errorf("it holds %d keys, want %s", l.Keys(), want)
	}
	return run, allow(floor.Empty(), c.fresh), nil
}

// flood times new keys at a limiter that is full of others.
func flood(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	l, err := s.New(c.flood.Options)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	for i := range c.flood.PopulationLen {
		l.Allow(c.flood.Population.Key(i))
	}
	run = allow(l, c.flood)
	if want := c.flood.CheckKeys(l.Keys(), c.Keys); want != "" {
		return nil, nil, fmt.Errorf("it holds %d keys, want %s", l.Keys(), want)
	}
	return run, allow(floor.Empty(), c.flood), nil
}

// allow times one pass over the calls of a workload.
func allow(l peers.Limiter, w workload.Workload) *hdrhistogram.Histogram {
	runtime.GC() // so that every run begins at the same place of the collector's cycle
	return record(upTo(w.Calls.Len()), func(i int) { l.Allow(w.Calls.Key(i)) })
}

const (
	sweepPeriod = time.Second
	sweepRate   = 5000
	// liveKeys are called while the others are swept. Each is called in turn, so that
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
	for i := range c.Keys {
		l.Allow(c.fresh.Calls.Key(i))
	}
	time.Sleep(c.Idle)
	// No fresh key is among those of the flood.
	live := func(i int) string { return c.flood.Calls.Key(i % liveKeys) }
	for i := range sweepRate * liveKeys { // their whole burst
		l.Allow(live(i))
	}
	before := l.Keys()
	run = beside(l.Sweep, func(i int) { l.Allow(live(i)) })
	after := l.Keys()
	switch {
	case before < c.Keys && !s.Lossy:
		return nil, nil, omitted(fmt.Sprintf("it swept by itself before it was asked to: %d keys of %d were left", before, c.Keys+liveKeys))
	case after > c.Keys/2:
		return nil, nil, omitted(fmt.Sprintf("it cannot be asked to sweep: of %d keys, %d idle ones, %d were left", before, c.Keys, after))
	}
	e, calls := floor.Empty(), int(run.TotalCount())
	// In place of the sweep something that needs the other processor as much.
	var done atomic.Bool
	baseline = besideUntil(upTo(calls), func() {
		for !done.Load() {
		}
	}, func(i int) {
		e.Allow(live(i))
		if i == calls-1 {
			done.Store(true)
		}
	})
	return run, baseline, nil
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
