package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// A budget is one promise of the design and its measurement.
type budget struct {
	what     string
	relation relation
	bound    float64
	unit     string // of bound and measured
	decimals int
	measured float64 // NaN: not measured
	basis    string  // the figures behind measured, and whose they are
	hashed   string  // the same of hashed buckets in place of sluice, where that says something
}

// newBudget returns a budget of which nothing has been measured.
func newBudget(what string, r relation, bound float64, unit string, decimals int) budget {
	return budget{what: what, relation: r, bound: bound, unit: unit, decimals: decimals, measured: math.NaN()}
}

// newRatio returns a budget for the time of a as a multiple of b's. The two %s of
// basis are their medians.
func newRatio(what string, r relation, bound float64, decimals int, a, b []float64, basis string) budget {
	ratio := newBudget(what, r, bound, "x", decimals)
	ratio.measured, ratio.basis = PairedRatio(a, b), fmt.Sprintf(basis, figure(median(a)), figure(median(b)))
	return ratio
}

// raise has x measured if it is more than the figure so far. A NaN is no figure.
func (b *budget) raise(x float64, basis string, args ...any) {
	if !math.IsNaN(x) && !(x <= b.measured) {
		b.measured, b.basis = x, fmt.Sprintf(basis, args...)
	}
}

type relation string

const (
	atMost  relation = "<="
	below   relation = "<"
	atLeast relation = ">="
)

// The verdicts.
const (
	met         = "met"
	missed      = "MISSED"
	notMeasured = "not measured"
)

func (b budget) verdict() string {
	ok := false
	switch {
	case math.IsNaN(b.measured):
		return notMeasured
	case b.relation == atMost:
		ok = b.measured <= b.bound
	case b.relation == below:
		ok = b.measured < b.bound
	case b.relation == atLeast:
		ok = b.measured >= b.bound
	}
	if ok {
		return met
	}
	return missed
}

// quantity prints a figure in the budget's unit. It has one digit more than the
// bound needs, so that a narrow miss does not look like the bound itself.
func (b budget) quantity(x float64) string {
	if math.IsNaN(x) {
		return unknown
	}
	return strings.TrimSpace(fixed(x, b.decimals) + " " + b.unit)
}

// budgets are the figures that the design keeps, in its order.
func (v *view) budgets() []budget {
	// Bounds by columns: hot, 1,000 keys, Zipf, uniform, denied, new keys, 2 cores hot and Zipf.
	list := slices.Concat(
		v.speedBudgets(fast, []float64{0.45, 0.4, 0.29, 0.28, 0.42, noBound, 0.48}),
		v.speedBudgets(system, []float64{0.78, 0.67, 0.39, 0.3, 0.73, 0.44}),
		v.speedBudgets(coarse, []float64{0.29, 0.26, 0.24, 0.24, 0.25}),
		v.hashedBudgets(system, 1.05),
		v.hashedBudgets(fast, 0.75),
	)
	gcra := v.gcra(system)
	list = append(list,
		newRatio("new keys denied at MaxKeys against the denial of known ones", atMost, 1.8, 2,
			v.row(gcra, "refused", serial), v.row(gcra, "full", serial), "%s to %s ns, keys equally often"),
		newRatio("flood of new keys at MaxKeys against filling: throughput", atLeast, 0.65, 2,
			v.row(gcra, "new", serial), v.row(gcra, "flood", serial), "%s ns a new key while filling, %s at MaxKeys"))
	for _, clock := range []string{system, coarse} {
		list = append(list, v.algorithmBudget(clock, columns[0]), v.algorithmBudget(clock, columns[1]))
	}
	coarseGCRA := v.gcra(coarse)
	list = append(list, newRatio(v.clockName(coarse)+", AllowEach of 16 keys of 1M uniform, for each key, against one by one", atMost, 0.5, 2,
		v.row(coarseGCRA, "each-16", serial), v.row(coarseGCRA, "uniform", serial), "%s to %s ns"))
	list = slices.Concat(list, v.memoryBudgets(), v.curveBudgets())
	for _, situation := range []string{"growth", "flood"} {
		for _, clock := range []string{system, fast, coarse} {
			list = append(list, v.stallBudget(clock, situation))
		}
	}
	for _, t := range tails {
		if t.situation != "growth" && t.situation != "flood" {
			list = append(list, v.tailBudget(t.situation, t.title))
		}
	}
	return append(list, v.allocBudget())
}

// noBound is the bound of a column without a budget.
const noBound = 0

// speedBudgets compares the default algorithm with the best library: bounds by
// columns. Beside it stands the ratio of hashed buckets, and where
// the bound is missed, the ratio of the parts of a decision alone.
func (v *view) speedBudgets(clock string, bounds []float64) []budget {
	var list []budget
	for i, bound := range bounds {
		if bound == noBound {
			continue
		}
		c := columns[i]
		best := v.bestLibrary(c)
		other := v.samples(best, c)
		b := newRatio(v.clockName(clock)+" against the best library: "+c.title, atMost, bound, 3,
			v.samples(v.gcra(clock), c), other, "%s to %s ns")
		b.basis += " (" + best + ")"
		b.hashed = b.quantity(PairedRatio(v.samples(v.hashed(), c), other))
		if parts := v.floorOf(c, clock); b.verdict() == missed && !math.IsNaN(parts) {
			b.basis += fmt.Sprintf("; %s alone are %s ns, %s x", floorParts(c), figure(parts), fixed(parts/median(other), 2))
		}
		list = append(list, b)
	}
	return list
}

// hashedBudgets compares the default algorithm with hashed buckets, which keep no ids, where a call does not wait for memory.
func (v *view) hashedBudgets(clock string, bound float64) (list []budget) {
	for _, c := range []column{columns[0], columns[1], columns[4]} {
		list = append(list, newRatio(v.clockName(clock)+" against hashed buckets: "+c.title, atMost, bound, 3,
			v.samples(v.gcra(clock), c), v.samples(v.hashed(), c), "%s to %s ns"))
	}
	return list
}

// part is the cost of a part alone, at the least: a floor on a disturbed machine
// would be one that calls can be below.
func (v *view) part(name string) float64 { return least(v.floor[name]) }

// otherParts are the parts of a decision but the clock: the hash, the loads of
// the table, the id and the word, and the CAS.
func (v *view) otherParts() float64 {
	return v.part(floor.Maphash) + 3*v.part(floor.Load) + v.part(floor.CAS)
}

func (v *view) clockFloor(clock string) float64 { return v.part(clockPart(clock)) }

// clockPart is the part of a clock of peers.Subject.
func clockPart(clock string) string {
	switch clock {
	case coarse:
		return floor.CoarseClock
	case fast:
		return floor.FastClock
	case peers.Runtime:
		return floor.NanoTime
	}
	return floor.SystemClock
}

// algorithmBudget compares the slowest one-word algorithm with GCRA.
func (v *view) algorithmBudget(clock string, c column) budget {
	b := newBudget(fmt.Sprintf("%s, slowest one-word algorithm against GCRA: %s", v.clockName(clock), c.title), atMost, 1.26, "x", 2)
	gcra := v.samples(v.gcra(clock), c)
	for _, s := range v.ours(clock) {
		if own := v.samples(s.Name, c); !s.Stands() {
			b.raise(PairedRatio(own, gcra), "%s to %s ns (%s)", figure(median(own)), figure(median(gcra)), s.Name)
		}
	}
	return b
}

// memoryBudgets judge the own subjects of one word: the worst of them.
func (v *view) memoryBudgets() []budget {
	bytes := newBudget("memory at 1M keys", atMost, 30, "B a key", 2)
	objects := newBudget("heap objects at 1M keys: none but the tables", atMost, 0.0025, "a key", 4)
	for _, s := range append(v.ours(system), v.ours(coarse)...) {
		if m, ok := v.memory[s.Name]; ok {
			bytes.raise(m.BytesPerKey, "most of all: %s", s.Name)
			objects.raise(m.ObjectsPerKey, "most of all: %s", s.Name)
		}
	}
	return []budget{bytes, objects}
}

// tails are the situations of results.Results.Tails.
var tails = []struct{ situation, title string }{
	{"growth", "growing to 10M keys"},
	{"sweep", "sweeping 10M keys"},
	{"flood", "a flood of new keys at MaxKeys = 10M"},
	{"set-limit", "SetLimit of 10M keys"},
	{"snapshot", "a Snapshot of 10M keys"},
	{"log", "growth of a log of 1,000 units a key"},
}

// tailBudget is about the longest call, less the longest empty one. Where the machine holds
// up an empty call for longer than the budget, a call that is held up no longer tells nothing.
func (v *view) tailBudget(situation, title string) budget {
	b := newBudget("longest Allow during "+title, atMost, 0.1, "ms", 3)
	for _, s := range v.Tails {
		if s.Situation != situation {
			continue
		}
		b.raise(float64(s.Own())/1e6, "%s, %s keys: worst of %s calls %s, of empty ones in as much time %s",
			s.Subject, grouped(int64(s.Keys)), grouped(s.Calls), nanos(s.Max), nanos(s.BaselineMax))
		if b.verdict() == met && float64(s.BaselineMax)/1e6 > b.bound {
			b.what += ": hidden by the machine, which held up an empty call for " + nanos(s.BaselineMax)
			b.measured = math.NaN()
		}
	}
	return b
}

func (v *view) stallBudget(clock, situation string) budget {
	b := newBudget(fmt.Sprintf("%s, p99.99 of Allow during a %s", v.clockName(clock), situation), atMost, 0.1, "ms", 3)
	if s, ok := v.stall[[2]string{v.gcra(clock), situation}]; ok {
		b.raise(float64(s.P9999)/1e6, "of an empty call %s; worst of %s calls %s, of empty ones %s",
			nanos(s.BaselineP9999), grouped(s.Calls), nanos(s.Max), nanos(s.BaselineMax))
	}
	return b
}

// allocBudget includes the objects that the runtime allocates for itself meanwhile.
func (v *view) allocBudget() budget {
	b := newBudget("allocations of a decision", below, 0.001, "a call", 5)
	for _, a := range v.Allocs {
		if isOurs(v.subjects[a.Subject]) {
			b.raise(a.PerCall, "most of all: %s, %s", a.Subject, a.Workload)
		}
	}
	return b
}

func (v *view) budgetTable() *table {
	t := &table{head: []string{"what", "budget", "measured", "hashed buckets", "verdict", "from"}, align: "lrrrll"}
	for _, b := range v.budgets() {
		if math.IsNaN(b.measured) {
			b.basis, b.hashed = "", ""
		}
		t.add(b.what, string(b.relation)+" "+strings.TrimSpace(fmt.Sprint(b.bound)+" "+b.unit), b.quantity(b.measured), b.hashed, b.verdict(), b.basis)
	}
	return t
}

// Summary counts the verdicts in one line, and names the missed budgets.
func Summary(r results.Results) string {
	counts := map[string]int{}
	var lost []string
	for _, b := range newView(r).budgets() {
		counts[b.verdict()]++
		if b.verdict() == missed {
			lost = append(lost, b.what)
		}
	}
	line := fmt.Sprintf("budgets: %d met, %d missed, %d not measured", counts[met], counts[missed], counts[notMeasured])
	if len(lost) > 0 {
		line += "; missed: " + strings.Join(lost, "; ")
	}
	return line
}
