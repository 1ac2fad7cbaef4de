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
	list := v.speedBudgets(system, []float64{0.65, 0.62, 0.36, 0.34, 0.65, 0.4, 0.7, 0.4})
	list = append(list, v.speedBudgets(coarse, []float64{0.27, 0.27, 0.28, 0.30, 0.25})...)
	list = append(list, v.floorBudget(system), v.floorBudget(coarse), v.deniedBudget())
	for _, clock := range []string{system, coarse} {
		list = append(list, v.algorithmBudget(clock, columns[0]), v.algorithmBudget(clock, columns[1]))
	}
	list = append(list, v.memoryBudgets()...)
	list = append(list, v.floodBudget())
	for _, situation := range []string{"growth", "sweep", "flood"} {
		list = append(list, v.stallBudget(system, situation), v.stallBudget(coarse, situation))
	}
	return append(list, v.allocBudget())
}

// speedBudgets compares the default algorithm with the best library: bounds by
// columns. Beside it stands what to compare it with: the ratio of the sketch, and where
// the bound is missed, that of the parts of a decision alone.
func (v *view) speedBudgets(clock string, bounds []float64) []budget {
	list := make([]budget, len(bounds))
	for i, bound := range bounds {
		c := columns[i]
		own, best := v.samples(v.gcra(clock), c), v.bestLibrary(c)
		other := v.samples(best, c)
		list[i] = budget{
			what:  clock + " clock against the best library: " + c.title,
			bound: bound, relation: atMost, unit: "x", decimals: 3,
			measured: PairedRatio(own, other),
			basis:    fmt.Sprintf("%s to %s ns (%s)", figure(median(own)), figure(median(other)), best),
		}
		list[i].sketch = list[i].quantity(PairedRatio(v.samples(v.sketch(clock), c), other))
		if parts := v.floorOf(c, clock); list[i].verdict() == missed && !math.IsNaN(parts) {
			list[i].basis += fmt.Sprintf("; %s alone are %s ns, %s x", floorParts(c), figure(parts), fixed(parts/median(other), 2))
		}
	}
	return list
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
	if clock == coarse {
		return v.part(floor.CoarseClock)
	}
	return v.part(floor.SystemClock)
}

func (v *view) floorBudget(clock string) budget {
	hot := median(v.samples(v.gcra(clock), columns[0]))
	allowed := v.clockFloor(clock) + 1.6*v.otherParts()
	return budget{
		what:  clock + " clock, hot key against clock + 1.6 x (hash + 3 loads + CAS)",
		bound: 1, relation: atMost, unit: "x", decimals: 3,
		measured: hot / allowed,
		basis: fmt.Sprintf("%s, driver included, to %s ns (clock %s, other parts %s, at their least)",
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
		what:  fmt.Sprintf("%s clock, slowest one-word algorithm against GCRA: %s", clock, c.title),
		bound: 1.4, relation: atMost, unit: "x", decimals: 2,
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
	bytes := budget{what: "memory at 1M keys", bound: 34, relation: atMost, unit: "B a key", decimals: 2, measured: math.NaN()}
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
	gc := budget{what: "a limiter of 1M keys adds to runtime.GC()", bound: 1, relation: below, unit: "ms", decimals: 2, measured: median(added)}
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
		bound: 0.5, relation: atLeast, unit: "x", decimals: 2,
		measured: PairedRatio(fill, flood),
		basis:    fmt.Sprintf("%s ns a new key while filling, %s at MaxKeys", figure(median(fill)), figure(median(flood))),
	}
}

func (v *view) stallBudget(clock, situation string) budget {
	b := budget{
		what:  fmt.Sprintf("%s clock, p99.99 of Allow during a %s", clock, situation),
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
	// What the runtime allocates for itself meanwhile is counted with it.
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
