package main

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/speed"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// BenchmarkAllow runs the rows of the tables one by one, with the same checks, for
// looking closer at some of them:
//
//	go test -run '^$' -bench 'Allow/workload=zipf/mode=serial/subject=sluice_GCRA$' -count 6
//
// The published numbers come from the program, which has the subjects take turns.
// With -short the large populations are small.
func BenchmarkAllow(b *testing.B) {
	sizes := workload.Full()
	if testing.Short() {
		sizes = workload.Sizes{Million: 20_000, New: 1 << 14}
	}
	for _, w := range workload.All(sizes) {
		b.Run("workload="+w.Name, func(b *testing.B) {
			for _, m := range speed.Modes() {
				b.Run("mode="+m.Name, func(b *testing.B) {
					for _, s := range peers.All() {
						benchmark(b, s, w, m)
					}
				})
			}
		})
	}
}

func benchmark(b *testing.B, s peers.Subject, w workload.Workload, m speed.Mode) {
	if speed.Excludes(s, w, m) != "" {
		return
	}
	// The function of a benchmark is called several times, with more and more calls,
	// and can go on with the limiter it has.
	var l peers.Limiter
	units := 0 // that l has been asked for
	defer func() {
		if l != nil {
			l.Close()
		}
	}()
	b.Run("subject="+s.Name, func(b *testing.B) {
		b.ReportAllocs()
		var total time.Duration
		for done := 0; done < b.N; {
			b.StopTimer()
			calls := b.N - done
			switch {
			case w.Unique:
				calls = min(calls, w.Calls.Len())
			case w.AdmitRatio == 1:
				calls = min(calls, w.Options.Burst/2)
			}
			if l == nil || w.Unique || w.AdmitRatio == 1 && units+calls > w.Options.Burst {
				l, units = prepare(b, l, s, w), 0
			}
			units += calls
			b.StartTimer()
			d, err := speed.Sample(l, s, w, m, done, calls)
			if err != nil {
				b.Fatal(err)
			}
			total += d
			done += calls
		}
		// Without what the checks took.
		b.ReportMetric(float64(total)/float64(b.N), "ns/op")
	})
}

func prepare(b *testing.B, old peers.Limiter, s peers.Subject, w workload.Workload) peers.Limiter {
	if old != nil {
		old.Close()
	}
	l, err := speed.Prepare(s, w)
	if err != nil {
		b.Fatal(err)
	}
	return l
}
