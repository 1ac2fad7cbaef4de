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
	bound    float64
	relation relation
	unit     string // of bound and measured
	decimals int
	measured float64 // NaN: not measured
	basis    string  // the figures behind measured, and whose they are
	sketch   string  // the same of the sketch in place of sluice, where that says something
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
	var list []budget
	// Bounds by columns: hot, 1,000 keys, Zipf, uniform, denied, new keys, 2 cores hot and Zipf.
	list = append(list, v.speedBudgets(system, []float64{0.65, 0.62, 0.36, 0.34, 0.65, 0.4, 0.7, 0.4})...)
	list = append(list, v.speedBudgets(fast, []float64{0.55, 0.55, 0.32, 0.25, 0.52, noBound, 0.65})...)
	list = append(list, v.speedBudgets(coarse, []float64{0.27, 0.27, 0.22, 0.22, 0.24})...)
	few := []column{columns[0], columns[1], columns[4], columns[6]}
	list = append(list, v.sketchBudget(system, 1.15, "worst workload", columns), v.sketchBudget(coarse, 1.35, "worst workload of up to 1,000 keys", few))
	for _, clock := range []string{system, fast, coarse} {
		list = append(list, v.floorBudget(clock))
	}
	list = append(list, v.deniedBudget())
	for _, clock := range []string{system, coarse} {
		list = append(list, v.algorithmBudget(clock, columns[0]), v.algorithmBudget(clock, columns[1]))
	}
	list = append(list, v.batchBudgets()...)
	list = append(list, v.memoryBudgets()...)
	list = append(list, v.curveBudgets()...)
	list = append(list, v.floodBudget(), v.refusalBudget())
	for _, situation := range []string{"growth", "sweep", "flood"} {
		for _, clock := range []string{system, fast, coarse} {
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
		own, best := v.samples(v.gcra(clock), c), v.bestLibrary(c)
		other := v.samples(best, c)
		b := budget{
			what:  v.clockName(clock) + " against the best library: " + c.title,
			bound: bound, relation: atMost, unit: "x", decimals: 3,
			measured: PairedRatio(own, other),
			basis:    fmt.Sprintf("%s to %s ns (%s)", figure(median(own)), figure(median(other)), best),
		}
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
	b := budget{
		what:  v.clockName(clock) + " against the sketch: " + about,
		bound: bound, relation: atMost, unit: "x", decimals: 2, measured: math.NaN(),
	}
	for _, c := range cols {
		own, other := v.samples(v.gcra(clock), c), v.samples(v.sketch(clock), c)
		if ratio := PairedRatio(own, other); !math.IsNaN(ratio) && !(ratio <= b.measured) {
			b.measured = ratio
			b.basis = fmt.Sprintf("%s: %s to %s ns", c.title, figure(median(own)), figure(median(other)))
		}
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
	return budget{
		what:  v.clockName(clock) + ", hot key against clock + 1.6 x (hash + 3 loads + CAS)",
		bound: 1, relation: atMost, unit: "x", decimals: 3,
		measured: hot / allowed,
		basis: fmt.Sprintf("%s, driver included, to %s ns (clock %s, other parts %s), all at their least",
			figure(hot), figure(allowed), figure(v.clockFloor(clock)), figure(v.otherParts())),
	}
}

func (v *view) deniedBudget() budget {
	name := v.gcra(system)
	one, two := v.speed[speedKey{name, "denied", oneCPU}], v.speed[speedKey{name, "denied", twoCPU}]
	return budget{
		what:  "denied calls: throughput of two cores against one",
		bound: 1.8, relation: atLeast, unit: "x", decimals: 2,
		measured: PairedRatio(one, two),
		basis:    fmt.Sprintf("a call each %s to %s ns", figure(median(one)), figure(median(two))),
	}
}

// algorithmBudget compares the slowest one-word algorithm with GCRA.
func (v *view) algorithmBudget(clock string, c column) budget {
	b := budget{
		what:  fmt.Sprintf("%s, slowest one-word algorithm against GCRA: %s", v.clockName(clock), c.title),
		bound: 1.25, relation: atMost, unit: "x", decimals: 2,
		measured: math.NaN(),
	}
	base := v.samples(v.gcra(clock), c)
	for _, s := range v.ours(clock) {
		own := v.samples(s.Name, c)
		ratio := PairedRatio(own, base)
		if !s.Stands() && !math.IsNaN(ratio) && !(ratio <= b.measured) {
			b.measured = ratio
			b.basis = fmt.Sprintf("%s to %s ns (%s)", figure(median(own)), figure(median(base)), s.Name)
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
	bytes := budget{what: "memory at 1M keys", bound: 30, relation: atMost, unit: "B a key", decimals: 2, measured: math.NaN()}
	// The tables themselves are objects: a few hundred for a million keys.
	objects := budget{what: "heap objects at 1M keys: none but the tables", bound: 0.001, relation: below, unit: "a key", decimals: 4, measured: math.NaN()}
	var added []float64
	for _, s := range append(v.ours(system), v.ours(coarse)...) {
		m, ok := v.memory[s.Name]
		if !ok {
			continue
		}
		if !(m.BytesPerKey <= bytes.measured) {
			bytes.measured, bytes.basis = m.BytesPerKey, "most of all: "+s.Name
		}
		if !(m.ObjectsPerKey <= objects.measured) {
			objects.measured, objects.basis = m.ObjectsPerKey, "most of all: "+s.Name
		}
		added = append(added, medianMillis(m.GC)-medianMillis(m.GCWithout))
	}
	gc := budget{what: "a limiter of 1M keys adds to runtime.GC()", bound: 0.1, relation: below, unit: "ms", decimals: 2, measured: median(added)}
	if len(added) > 0 {
		gc.basis = fmt.Sprintf("median of %d limiters, from %.2f to %.2f", len(added), slices.Min(added), slices.Max(added))
	}
	return []budget{bytes, objects, gc}
}

func (v *view) floodBudget() budget {
	name := v.gcra(system)
	fill, flood := v.speed[speedKey{name, "new", serial}], v.speed[speedKey{name, "flood", serial}]
	return budget{
		what:  "flood of new keys at MaxKeys against filling: throughput",
		bound: 0.8, relation: atLeast, unit: "x", decimals: 2,
		measured: PairedRatio(fill, flood),
		basis:    fmt.Sprintf("%s ns a new key while filling, %s at MaxKeys", figure(median(fill)), figure(median(flood))),
	}
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
	b := budget{what: "longest Allow during " + title, bound: 0.2, relation: atMost, unit: "ms", decimals: 2, measured: math.NaN()}
	for _, s := range v.Tails {
		if s.Situation == situation {
			b.measured = float64(s.Own()) / 1e6
			b.basis = fmt.Sprintf("%s, %s keys: worst of %s calls %s, of empty ones in as much time %s",
				s.Subject, grouped(int64(s.Keys)), grouped(s.Calls), nanos(s.Max), nanos(s.BaselineMax))
			if b.verdict() == met && float64(s.BaselineMax)/1e6 > b.bound {
				b.what += ": hidden by the machine, which held up an empty call for " + nanos(s.BaselineMax)
				b.measured = math.NaN()
			}
		}
	}
	return b
}

// refusalBudget compares what a full limiter that denies new keys takes to deny one with
// what it takes to deny one of as many keys that it has.
func (v *view) refusalBudget() budget {
	name := v.gcra(system)
	refused, full := v.speed[speedKey{name, "refused", serial}], v.speed[speedKey{name, "full", serial}]
	return budget{
		what:  "new keys denied at MaxKeys against the denial of known ones",
		bound: 1, relation: atMost, unit: "x", decimals: 2,
		measured: PairedRatio(refused, full),
		basis:    fmt.Sprintf("%s to %s ns, keys equally often", figure(median(refused)), figure(median(full))),
	}
}

// batchBudgets are about AllowEach on a million keys, each equally often.
func (v *view) batchBudgets() []budget {
	name := v.gcra(coarse)
	of := func(workload string) []float64 { return v.speed[speedKey{name, workload, serial}] }
	alone, singly, one, many := of("uniform"), of("singly"), of("each-1"), of("each-16")
	return []budget{{
		what:  v.clockName(coarse) + ", AllowEach of 16 keys of 1M uniform",
		bound: 40, relation: atMost, unit: "ns a key", decimals: 1,
		measured: median(many),
		basis:    fmt.Sprintf("one by one %s ns, %s x", figure(median(alone)), fixed(PairedRatio(many, alone), 2)),
	}, {
		what:  v.clockName(coarse) + ", AllowEach of one key against AllowN",
		bound: 1, relation: atMost, unit: "x", decimals: 2,
		measured: PairedRatio(one, singly),
		basis:    fmt.Sprintf("%s to %s ns, 1M uniform, in the same loop", figure(median(one)), figure(median(singly))),
	}}
}

func (v *view) stallBudget(clock, situation string) budget {
	b := budget{
		what:  fmt.Sprintf("%s, p99.99 of Allow during a %s", v.clockName(clock), situation),
		bound: 1, relation: below, unit: "ms", decimals: 3, measured: math.NaN(),
	}
	if s, ok := v.stall[[2]string{v.gcra(clock), situation}]; ok {
		b.measured = float64(s.P9999) / 1e6
		b.basis = fmt.Sprintf("of an empty call %s; worst of %s calls %s, of empty ones %s",
			nanos(s.BaselineP9999), grouped(s.Calls), nanos(s.Max), nanos(s.BaselineMax))
	}
	return b
}

func (v *view) allocBudget() budget {
	// It includes the objects that the runtime allocates for itself meanwhile.
	b := budget{what: "allocations of a decision", bound: 0.001, relation: below, unit: "a call", decimals: 5, measured: math.NaN()}
	for _, a := range v.Allocs {
		if isOurs(v.subjects[a.Subject]) && !(a.PerCall <= b.measured) {
			b.measured, b.basis = a.PerCall, fmt.Sprintf("most of all: %s, %s", a.Subject, a.Workload)
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
