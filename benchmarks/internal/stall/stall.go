// Package stall measures how long single calls take while a limiter does what takes
// it longest: growing, sweeping, and turning over its keys at MaxKeys.
package stall

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// Config is how much is measured.
type Config struct {
	Keys    int           // that a limiter grows to, sweeps, and is bounded to
	Repeats int           // of each situation and subject
	Idle    time.Duration // how long to wait until keys that were charged once are idle

	Turnover int  // how many new keys come in a flood; 0: Keys
	AsLong   bool // the empty call is made for as long as the measured calls, instead of as often
}

// Full has the settings of the published tables. In the sweep's limit a key is
// idle after one period, with windows after two at most; a period is a second.
var Full = Config{Keys: 1 << 20, Repeats: 5, Idle: 2*sweepPeriod + 100*time.Millisecond}

// A situation is something that a limiter does while its calls are timed.
type situation struct {
	name string
	// skip says why the subject is left out; empty if it is not.
	skip func(peers.Subject) string
	once timed
}

// timed makes one run. The baseline is the same loop around an empty call.
type timed func(peers.Subject, setup) (run, baseline *hdrhistogram.Histogram, err error)

// setup is shared by the situations: the calls of the workloads on new keys.
type setup struct {
	Config
	fresh, flood workload.Workload
}

func newSetup(c Config) setup {
	if c.Turnover == 0 {
		c.Turnover = c.Keys
	}
	return setup{Config: c, fresh: workload.Fill(c.Keys), flood: workload.Flood(c.Keys)}
}

var situations = []situation{
	{"growth", keyless, growth},
	{"sweep", sweepless, sweep},
	{"flood", boundless, flood},
}

func keyless(s peers.Subject) string {
	if !s.HasKeys() {
		return "it has no keys"
	}
	return ""
}

func sweepless(s peers.Subject) string {
	if s.HasKeys() && !s.Sweeps {
		return "it drops no keys"
	}
	return keyless(s)
}

func boundless(s peers.Subject) string {
	if s.HasKeys() && !s.Bounded {
		return "it has no bound on its keys"
	}
	return keyless(s)
}

// omitted is why a subject could not be measured.
type omitted string

func (o omitted) Error() string { return string(o) }

// Run returns a row for each subject and situation: of the repeats, the run with
// the median p99.99, and likewise for its baseline.
func Run(subjects []peers.Subject, c Config, log func(format string, args ...any)) ([]results.Stall, []results.Omission, error) {
	rows := collection{measurement: "stall", pick: medianRun, log: log}
	all := newSetup(c)
	for _, sit := range situations {
		for _, s := range subjects {
			if why := sit.skip(s); why != "" {
				rows.leave(sit.name, s, why)
			} else if err := rows.add(sit.name, s, sit.once, all); err != nil {
				return nil, nil, err
			}
		}
	}
	return rows.measured, rows.left, nil
}

// A collection is the rows of a measurement, and the reasons for subjects that are left out.
type collection struct {
	measurement string
	pick        func([]*hdrhistogram.Histogram) *hdrhistogram.Histogram // the run that counts
	log         func(format string, args ...any)
	measured    []results.Stall
	left        []results.Omission
}

func (c *collection) leave(situation string, s peers.Subject, why string) {
	c.log("%s: %s, %s: left out: %s", c.measurement, situation, s.Name, why)
	c.left = append(c.left, results.Omission{Subject: s.Name, Measurement: c.measurement + ", " + situation, Reason: why})
}

// add makes the runs of a row. That a subject is omitted is no error.
func (c *collection) add(situation string, s peers.Subject, once timed, with setup) error {
	var runs, baselines []*hdrhistogram.Histogram
	for range with.Repeats {
		run, baseline, err := once(s, with)
		if why, ok := err.(omitted); ok {
			c.leave(situation, s, string(why))
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s of %s, %s: %w", c.measurement, s.Name, situation, err)
		}
		runs, baselines = append(runs, run), append(baselines, baseline)
	}
	run, baseline := c.pick(runs), c.pick(baselines)
	row := results.Stall{
		Subject:       s.Name,
		Situation:     situation,
		Keys:          with.Keys,
		Calls:         run.TotalCount(),
		P50:           run.ValueAtQuantile(50),
		P99:           run.ValueAtQuantile(99),
		P999:          run.ValueAtQuantile(99.9),
		P9999:         p9999(run),
		Max:           run.Max(),
		BaselineP9999: p9999(baseline),
		BaselineMax:   baseline.Max(),
	}
	c.measured = append(c.measured, row)
	c.log("%s: %s, %s: p99.99 %v, of which the machine %v; longest %v, of which the machine %v", c.measurement, situation, s.Name,
		time.Duration(row.P9999), time.Duration(row.BaselineP9999), time.Duration(row.Max), time.Duration(row.BaselineMax))
	return nil
}

func p9999(h *hdrhistogram.Histogram) int64 { return h.ValueAtQuantile(99.99) }

// medianRun returns one of the runs, so that its figures belong together; of an
// even number the worse one.
func medianRun(runs []*hdrhistogram.Histogram) *hdrhistogram.Histogram {
	sorted := slices.SortedFunc(slices.Values(runs), func(a, b *hdrhistogram.Histogram) int {
		return cmp.Compare(p9999(a), p9999(b))
	})
	return sorted[len(sorted)/2]
}

// calmestRun returns the one of the runs whose longest call is the least.
func calmestRun(runs []*hdrhistogram.Histogram) *hdrhistogram.Histogram {
	return slices.MinFunc(runs, func(a, b *hdrhistogram.Histogram) int { return cmp.Compare(a.Max(), b.Max()) })
}

// longest is the longest call that a histogram tells from longer ones.
const longest = time.Minute

// record times call(0), call(1), ... each by itself, as long as more says so.
// The clock is read before and after: work between two calls, such as
// counting, is no part of either.
func record(more func(i int) bool, call func(i int)) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, int64(longest), 3)
	base := time.Now()
	for i := 0; more(i); i++ {
		start := time.Since(base)
		call(i)
		took := time.Since(base) - start
		// The only error is a value out of range.
		_ = h.RecordValue(int64(min(max(took, 1), longest)))
	}
	return h
}

// upTo is the number of calls that record makes.
func upTo(n int) func(int) bool { return func(i int) bool { return i < n } }
