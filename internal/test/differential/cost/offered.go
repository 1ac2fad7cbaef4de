//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// offeredRate is how many calls come in a second, whether earlier ones have been answered or not.
const offeredRate = 2000

// offered makes the calls of a list at random times, at a rate, and returns how long each has taken from when it was due.
func (s *subject) offered(ctx context.Context, list []request, rate float64) ([]time.Duration, error) {
	took := make([]time.Duration, len(list))
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	runtime.LockOSThread() // a timer of Go would be late by up to 1 ms
	defer runtime.UnlockOSThread()
	next := monotonic()
	for i := range list {
		next += time.Duration(rand.ExpFloat64() / rate * float64(time.Second))
		due := next
		at := unix.NsecToTimespec(int64(due))
		for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil) == unix.EINTR {
		}
		all.Go(func() {
			if err := s.call(ctx, i%len(s.conns), list[i]); err != nil {
				failed.Store(&err)
			}
			took[i] = monotonic() - due
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return sorted(took), nil
}

// monotonic is the time by the clock that calls are due by.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// latencies measures upstream and sluice at the same rate, and reports whether sluice's calls take no longer.
func (b *sharedBench) latencies(ctx context.Context, w *workload, rounds, calls int) (bool, error) {
	pair := []*subject{named(b.subjects)[upstreamService], named(b.subjects)[sluiceName]}
	quantiles := []float64{0.5, 0.99}
	var took [2][2][]float64 // by subject and quantile, ms
	var ratios [2][]float64
	late := 0.0
	for round := range rounds + 1 {
		for _, i := range rand.Perm(len(pair)) {
			list := w.requests(calls, round == 0)
			var all []time.Duration
			cost, err := b.counted(ctx, pair[i], w, list, func(list []request) (err error) {
				all, err = pair[i].offered(ctx, list, offeredRate)
				return err
			})
			if err != nil {
				return false, err
			}
			if round == 0 { // it warms up
				continue
			}
			late = max(late, cost.without)
			for q := range quantiles {
				took[i][q] = append(took[i][q], milliseconds(quantile(all, quantiles[q])))
			}
		}
		for q := range quantiles {
			if round > 0 {
				ratios[q] = append(ratios[q], took[1][q][round-1]/took[0][q][round-1])
			}
		}
	}
	fmt.Printf("\n%s, %d calls a second; at most %.2f %% of sluice's in a turn were decided without Redis\n", w.name, offeredRate, 100*late)
	kept := true
	for q := range quantiles {
		fmt.Printf("p%.0f: %s %.3f ms, %s %.3f ms\n", 100*quantiles[q], pair[0].name, median(took[0][q]), pair[1].name, median(took[1][q]))
		ratio := median(ratios[q])
		kept = verdict(ratio <= 1, fmt.Sprintf("%s, p%.0f beside %s: at most 1.00", w.name, 100*quantiles[q], pair[0].name), ratio) && kept
	}
	return kept, nil
}
