// Package guard tells a lost fast path from a busy machine: it measures sluice
// beside code that one would write oneself, in turns, and compares the ratios with bounds
// that only something large can break.
package guard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/speed"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// The subjects, by the names of package peers.
const (
	diy    = "30 lines on xsync"
	hashed = "hashed buckets (approximate)"
	system = "sluice GCRA"
	coarse = "sluice GCRA, coarse clock"
)

// A Bound is the most that a subject may take of a baseline's time.
type Bound struct {
	Subject, Baseline, Workload string
	Most                        float64
}

// Bounds are the guarded ratios. When they were chosen, a call took 0.58 to 0.62 of the
// time of the 30 lines under the system clock and 0.20 to 0.26 under a coarse one; beside
// two to four other busy processes on two cores the ratios reached 0.77 and 0.33. A
// second reading of the clock made 0.88 to 1.06 of the former, and an allocation of 8
// bytes 0.36 to 0.56 of the latter. Of the time of hashed buckets a call took 0.97 to 1.25, and
// a second reading of the clock makes 1.7 of it. A lock that nobody holds is lost in the noise, at
// 5 ns: the tests of the library look for it in the source (TestHotPath).
var Bounds = []Bound{
	{system, diy, "hot", 0.90},
	{system, diy, "thousand", 0.90},
	{system, diy, "denied", 0.90},
	{coarse, diy, "hot", 0.36},
	{coarse, diy, "thousand", 0.42},
	{coarse, diy, "denied", 0.36},
	{system, hashed, "hot", 1.55},
	{system, hashed, "thousand", 1.55},
	{system, hashed, "denied", 1.55},
}

// Config is how much is measured: seven rounds of 100 ms of four subjects under
// three workloads, 10 s in all.
var Config = speed.Config{Rounds: 7, Round: 100 * time.Millisecond}

// A Row is a bound and its measurement.
type Row struct {
	Bound
	Ratio float64 // NaN: not measured
}

// Lost reports whether the bound is broken. A row that was not measured is lost, too.
func (r Row) Lost() bool { return !(r.Ratio <= r.Most) }

// String is the row as a line.
func (r Row) String() string {
	return fmt.Sprintf("%-25s  %-8s  %.2f of the time of %s, at most %.2f", r.Subject, r.Workload, r.Ratio, r.Baseline, r.Most)
}

// Run measures the ratios of the bounds, one goroutine at a time.
func Run(ctx context.Context, c speed.Config) ([]Row, error) {
	var subjects []peers.Subject
	for _, s := range peers.All() {
		switch s.Name {
		case diy, hashed, system, coarse:
			subjects = append(subjects, s)
		}
	}
	c.Modes = speed.Modes()[:1]
	// The workloads on many keys are not guarded, and so are small.
	for _, w := range workload.All(workload.Sizes{Million: 1 << 10, New: 1 << 10}) {
		if slices.ContainsFunc(Bounds, func(b Bound) bool { return b.Workload == w.Name }) {
			c.Workloads = append(c.Workloads, w)
		}
	}
	measured, err := speed.Run(ctx, c, subjects, nil)
	if err != nil {
		return nil, err
	}
	return judge(Bounds, measured), nil
}

// judge compares samples that were taken by turns.
func judge(bounds []Bound, measured []results.Speed) []Row {
	samples := map[[2]string][]float64{}
	for _, s := range measured {
		samples[[2]string{s.Subject, s.Workload}] = s.Samples
	}
	rows := make([]Row, len(bounds))
	for i, b := range bounds {
		own, other := samples[[2]string{b.Subject, b.Workload}], samples[[2]string{b.Baseline, b.Workload}]
		rows[i] = Row{b, report.PairedRatio(own, other)}
	}
	return rows
}
