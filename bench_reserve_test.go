package sluice

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

// BenchmarkReserve makes a reservation and cancels any of those that are open.
func BenchmarkReserve(b *testing.B) {
	for _, open := range []int{1, 1_000, 40_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			l := mustNew(b, Config{Limit: PerSecond(1_000_000).WithBurst(100), Clock: NewManualClock(start)})
			k := l.Key("k")
			all := make([]*Reservation, open)
			for i := range all {
				all[i] = mustReserve(b, k, 1)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				r, err := k.Reserve(1, math.MaxInt64)
				if err != nil {
					b.Fatal(err)
				}
				i := rng.IntN(open)
				all[i].Cancel()
				all[i] = r
			}
		})
	}
}

// BenchmarkWait_Cancelled has so many calls wait for one key, and cancels all of them.
func BenchmarkWait_Cancelled(b *testing.B) {
	for _, waiting := range []int{1_000, 20_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			l := mustNew(b, Config{Limit: PerSecond(1).WithBurst(1)})
			k := l.Key("k")
			k.Allow()
			for b.Loop() {
				ctx, cancel := context.WithCancel(context.Background())
				var all sync.WaitGroup
				for range waiting {
					all.Go(func() { _ = k.Wait(ctx, 1) })
				}
				cancel()
				all.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(waiting), "ns/wait")
		})
	}
}
