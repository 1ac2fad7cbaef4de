package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// A column is a workload in a mode: one column of the speed tables.
type column struct{ title, workload, mode string }

const (
	serial = "serial"
	oneCPU = "parallel-1"
	twoCPU = "parallel-2"
)

// columns are the columns of the README's table, and the rows of the budgets.
var columns = []column{
	{"hot", "hot", serial},
	{"1,000 keys", "thousand", serial},
	{"1M Zipf", "zipf", serial},
	{"1M uniform", "uniform", serial},
	{"denied", "denied", serial},
	{"new keys", "new", serial},
	{"2 cores, hot", "hot", twoCPU},
	{"2 cores, Zipf", "zipf", twoCPU},
}

// view finds things in the results.
type view struct {
	results.Results
	subjects map[string]results.Subject
	speed    map[speedKey][]float64
	floor    map[string][]float64
	memory   map[string]results.Memory
	stall    map[[2]string]results.Stall // by subject and situation
}

type speedKey struct{ subject, workload, mode string }

func newView(r results.Results) *view {
	v := &view{
		Results:  r,
		subjects: map[string]results.Subject{},
		speed:    map[speedKey][]float64{},
		floor:    map[string][]float64{},
		memory:   map[string]results.Memory{},
		stall:    map[[2]string]results.Stall{},
	}
	for _, s := range r.Subjects {
		v.subjects[s.Name] = s
	}
	for _, s := range r.Speed {
		v.speed[speedKey{s.Subject, s.Workload, s.Mode}] = s.Samples
	}
	for _, f := range r.Floor {
		v.floor[f.Part] = f.Samples
	}
	for _, m := range r.Memory {
		v.memory[m.Subject] = m
	}
	for _, s := range r.Stall {
		v.stall[[2]string{s.Subject, s.Situation}] = s
	}
	return v
}

func (v *view) row(subject, workload, mode string) []float64 {
	return v.speed[speedKey{subject, workload, mode}]
}

func (v *view) samples(subject string, c column) []float64 { return v.row(subject, c.workload, c.mode) }

// A clock is the source of time of a sluice subject.
const (
	system = peers.System
	fast   = peers.Fast
	coarse = peers.Coarse
)

// fastFallen is in how many limiters a fast clock was the system clock.
func (v *view) fastFallen() (fallen, all int) {
	for source, limiters := range v.Machine.FastClock {
		all += limiters
		if strings.HasPrefix(source, "system clock") {
			fallen += limiters
		}
	}
	return fallen, all
}

// clockName is the name of a clock in tables. A fast clock that was the system clock, in all
// limiters or in some, says so.
func (v *view) clockName(clock string) string {
	name := clock + " clock"
	if fallen, all := v.fastFallen(); clock == fast && fallen > 0 {
		return fmt.Sprintf("%s (the system clock in %d of %d limiters)", name, fallen, all)
	}
	return name
}

func isOurs(s results.Subject) bool { return s.Kind == string(peers.Ours) }

// isOneWord reports whether a key's whole state is one word: all but the log.
func isOneWord(s results.Subject) bool { return !s.PerUnit }

// ours returns the own subjects under a clock, of one word a key.
func (v *view) ours(clock string) []results.Subject {
	var found []results.Subject
	for _, s := range v.Subjects {
		if isOurs(s) && s.Clock == clock && isOneWord(s) {
			found = append(found, s)
		}
	}
	return found
}

// gcra is the name of the own subject with the default algorithm, or "".
func (v *view) gcra(clock string) string {
	for _, s := range v.ours(clock) {
		if s.Stands() {
			return s.Name
		}
	}
	return ""
}

// hashed is the name of the hashed buckets, or "".
func (v *view) hashed() string {
	for _, s := range v.Subjects {
		if s.Kind == string(peers.Approximate) {
			return s.Name
		}
	}
	return ""
}

// bestLibrary is the fastest published limiter in a column that takes keys, by
// itself or with a concurrent map around it; "" if none was measured.
func (v *view) bestLibrary(c column) string {
	best, least := "", math.Inf(1)
	for _, s := range v.Subjects {
		if s.Kind != string(peers.Library) && s.Kind != string(peers.Keyed) {
			continue
		}
		if m := median(v.samples(s.Name, c)); m < least {
			best, least = s.Name, m
		}
	}
	return best
}

// bySpeed returns the subjects for which keep holds, fastest first in the first
// column; those without a figure there come last, as they came.
func (v *view) bySpeed(keep func(results.Subject) bool) []results.Subject {
	var list []results.Subject
	for _, s := range v.Subjects {
		if keep(s) {
			list = append(list, s)
		}
	}
	rank := func(s results.Subject) float64 {
		if m := median(v.samples(s.Name, columns[0])); !math.IsNaN(m) {
			return m
		}
		return math.Inf(1)
	}
	slices.SortStableFunc(list, func(a, b results.Subject) int { return cmp.Compare(rank(a), rank(b)) })
	return list
}

func everyone(results.Subject) bool { return true }
