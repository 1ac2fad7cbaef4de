package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// A budget is one promise of the design and what was measured of it.
type budget struct {
	what     string
	relation relation
	bound    float64
	unit     string // of bound and measured
	decimals int
	measured float64 // NaN: not measured
	basis    string  // the figures behind measured, and whose they are
	sketch   string  // the same of the sketch in place of sluice, where that says something
}

// newBudget returns a budget of which nothing has been measured.
func newBudget(what string, r relation, bound float64, unit string, decimals int) budget {
	return budget{what: what, relation: r, bound: bound, unit: unit, decimals: decimals, measured: math.NaN()}
}

// newRatio returns a budget for the time of a as a multiple of that of b. The two %s of
// basis are their medians.
func newRatio(what string, r relation, bound float64, decimals int, a, b []float64, basis string) budget {
	ratio := newBudget(what, r, bound, "x", decimals)
	ratio.measured, ratio.basis = PairedRatio(a, b), fmt.Sprintf(basis, figure(median(a)), figure(median(b)))
	return ratio
}

// raise has x measured if it is more than what was so far. A NaN is no figure.
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

// budgets are the promises of DESIGN.md in their order.
func (v *view) budgets() []budget {
	clocks := []string{system, fast, coarse}
	// Bounds by columns: hot, 1,000 keys, Zipf, uniform, denied, new keys, 2 cores hot and Zipf.
	list := slices.Concat(
		v.speedBudgets(system, []float64{0.65, 0.62, 0.36, 0.34, 0.65, 0.4, 0.7, 0.4}),
		v.speedBudgets(fast, []float64{0.55, 0.55, 0.32, 0.25, 0.52, noBound, 0.65}),
		v.speedBudgets(coarse, []float64{0.27, 0.27, 0.22, 0.22, 0.24}),
	)
	few := []column{columns[0], columns[1], columns[4], columns[6]}
	list = append(list, v.sketchBudget(system, 1.15, "worst workload", columns), v.sketchBudget(coarse, 1.35, "worst workload of up to 1,000 keys", few))
	for _, clock := range clocks {
		list = append(list, v.floorBudget(clock))
	}
	gcra := v.gcra(system)
	list = append(list, newRatio("denied calls: throughput of two cores against one", atLeast, 1.8, 2,
		v.row(gcra, "denied", oneCPU), v.row(gcra, "denied", twoCPU), "a call each %s to %s ns"))
	for _, clock := range []string{system, coarse} {
		list = append(list, v.algorithmBudget(clock, columns[0]), v.algorithmBudget(clock, columns[1]))
	}
	list = slices.Concat(list, v.batchBudgets(), v.memoryBudgets(), v.curveBudgets())
	list = append(list,
		newRatio("flood of new keys at MaxKeys against filling: throughput", atLeast, 0.8, 2,
			v.row(gcra, "new", serial), v.row(gcra, "flood", serial), "%s ns a new key while filling, %s at MaxKeys"),
		newRatio("new keys denied at MaxKeys against the denial of known ones", atMost, 1, 2,
			v.row(gcra, "refused", serial), v.row(gcra, "full", serial), "%s to %s ns, keys equally often"))
	for _, situation := range []string{"growth", "sweep", "flood"} {
		for _, clock := range clocks {
			list = append(list, v.stallBudget(clock, situation))
		}
	}
	for _, t := range tails {
		list = append(list, v.tailBudget(t.situation, t.title))
	}
	return append(list, v.allocBudget())
}

// noBound is the bound of a column without a budget.
const noBound = 0

// speedBudgets compares the default algorithm with the best library: bounds by
// columns. Beside it stands what to compare it with: the ratio of the sketch, and where
// the bound is missed, that of the parts of a decision alone.
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
		b.sketch = b.quantity(PairedRatio(v.samples(v.sketch(clock), c), other))
		if parts := v.floorOf(c, clock); b.verdict() == missed && !math.IsNaN(parts) {
			b.basis += fmt.Sprintf("; %s alone are %s ns, %s x", floorParts(c), figure(parts), fixed(parts/median(other), 2))
		}
		list = append(list, b)
	}
	return list
}

// sketchBudget compares the default algorithm with the sketch: the worst of the columns
// counts.
func (v *view) sketchBudget(clock string, bound float64, about string, cols []column) budget {
	b := newBudget(v.clockName(clock)+" against the sketch: "+about, atMost, bound, "x", 2)
	for _, c := range cols {
		own, other := v.samples(v.gcra(clock), c), v.samples(v.sketch(clock), c)
		b.raise(PairedRatio(own, other), "%s: %s to %s ns", c.title, figure(median(own)), figure(median(other)))
	}
	return b
}

// part is what a part costs alone, at the least: a floor on a disturbed machine
// would be one that calls can be below.
func (v *view) part(name string) float64 { return least(v.floor[name]) }

// otherParts are what a decision is made of but the clock: the hash, the loads of
// the table, the id and the word, and the CAS.
func (v *view) otherParts() float64 {
	return v.part(floor.Maphash) + 3*v.part(floor.Load) + v.part(floor.CAS)
}

func (v *view) clockFloor(clock string) float64 {
	switch clock {
	case coarse:
		return v.part(floor.CoarseClock)
	case fast:
		return v.part(floor.FastClock)
	}
	return v.part(floor.SystemClock)
}

func (v *view) floorBudget(clock string) budget {
	hot := least(v.samples(v.gcra(clock), columns[0])) // as the parts are
	allowed := v.clockFloor(clock) + 1.6*v.otherParts()
	b := newBudget(v.clockName(clock)+", hot key against clock + 1.6 x (hash + 3 loads + CAS)", atMost, 1, "x", 3)
	b.raise(hot/allowed, "%s, driver included, to %s ns (clock %s, other parts %s), all at their least",
		figure(hot), figure(allowed), figure(v.clockFloor(clock)), figure(v.otherParts()))
	return b
}

// algorithmBudget compares the slowest one-word algorithm with GCRA.
func (v *view) algorithmBudget(clock string, c column) budget {
	b := newBudget(fmt.Sprintf("%s, slowest one-word algorithm against GCRA: %s", v.clockName(clock), c.title), atMost, 1.25, "x", 2)
	gcra := v.samples(v.gcra(clock), c)
	for _, s := range v.ours(clock) {
		if own := v.samples(s.Name, c); !s.Stands() {
			b.raise(PairedRatio(own, gcra), "%s to %s ns (%s)", figure(median(own)), figure(median(gcra)), s.Name)
		}
	}
	return b
}

// memoryBudgets judge the own subjects of one word: the worst of them, except the
// collections. A collection takes a fraction of a millisecond, or, where the
// operating system interrupts it, 4 ms, and the median of one subject can be either.
// All of these limiters look the same to the collector, so the median of their
// differences is what it has to do.
func (v *view) memoryBudgets() []budget {
	bytes := newBudget("memory at 1M keys", atMost, 30, "B a key", 2)
	// The tables themselves are objects: a few hundred for a million keys.
	objects := newBudget("heap objects at 1M keys: none but the tables", below, 0.001, "a key", 4)
	var added []float64
	for _, s := range append(v.ours(system), v.ours(coarse)...) {
		if m, ok := v.memory[s.Name]; ok {
			bytes.raise(m.BytesPerKey, "most of all: %s", s.Name)
			objects.raise(m.ObjectsPerKey, "most of all: %s", s.Name)
			added = append(added, medianMillis(m.GC)-medianMillis(m.GCWithout))
		}
	}
	gc := newBudget("a limiter of 1M keys adds to runtime.GC()", below, 0.1, "ms", 2)
	if len(added) > 0 {
		gc.raise(median(added), "median of %d limiters, from %.2f to %.2f", len(added), slices.Min(added), slices.Max(added))
	}
	return []budget{bytes, objects, gc}
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
	b := newBudget("longest Allow during "+title, atMost, 0.2, "ms", 2)
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

// batchBudgets are about AllowEach on a million keys, each equally often.
func (v *view) batchBudgets() []budget {
	of := func(workload string) []float64 { return v.row(v.gcra(coarse), workload, serial) }
	alone, many := of("uniform"), of("each-16")
	sixteen := newBudget(v.clockName(coarse)+", AllowEach of 16 keys of 1M uniform", atMost, 40, "ns a key", 1)
	sixteen.raise(median(many), "one by one %s ns, %s x", figure(median(alone)), fixed(PairedRatio(many, alone), 2))
	return []budget{sixteen, newRatio(v.clockName(coarse)+", AllowEach of one key against AllowN", atMost, 1, 2,
		of("each-1"), of("singly"), "%s to %s ns, 1M uniform, in the same loop")}
}

func (v *view) stallBudget(clock, situation string) budget {
	b := newBudget(fmt.Sprintf("%s, p99.99 of Allow during a %s", v.clockName(clock), situation), below, 1, "ms", 3)
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
	t := &table{head: []string{"what", "budget", "measured", "sketch", "verdict", "from"}, align: "lrrrll"}
	for _, b := range v.budgets() {
		if math.IsNaN(b.measured) {
			b.basis, b.sketch = "", ""
		}
		t.add(b.what, string(b.relation)+" "+strings.TrimSpace(fmt.Sprint(b.bound)+" "+b.unit), b.quantity(b.measured), b.sketch, b.verdict(), b.basis)
	}
	return t
}

// Summary counts the verdicts in one line, and names what is missed.
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
