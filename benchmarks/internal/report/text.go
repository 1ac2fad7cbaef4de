package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Text is the whole of the results as tables for a terminal. Nothing is left out
// because somebody loses by it.
func Text(r results.Results) string {
	v := newView(r)
	var b strings.Builder
	section := func(title, about string, t *table) {
		if len(t.rows) > 0 {
			fmt.Fprintf(&b, "\n%s\n%s\n\n%s", title, about, t.text())
		}
	}
	b.WriteString(v.heading())
	section("BUDGETS", budgetsAbout, v.budgetTable())
	section("SPEED, ONE GOROUTINE", nsACall, v.speedTable(columns[:6], everyone))
	section("SPEED, TWO GOROUTINES ON TWO CORES", "ns in which either of them finishes a call.", v.speedTable(v.parallelColumns(), everyone))
	section("SPEED BESIDE HASHED BUCKETS, AND WHAT STRINGS AND CLOCKS COST", stringsAbout, v.stringsTable())
	section("SPEED, EVERY ROW", nsACall+" Spread: how far the middle half of the samples lies apart, as a part of the median.", v.everyRow())
	section("OWN SPEED AS A MULTIPLE OF ITS FLOOR",
		"Floor: driver, clock, hash, 3 loads and a CAS (none where denied), each at its least. Cache misses are not in it.", v.multiples())
	section("SPEED OVER THE NUMBER OF KEYS", nsACall, v.scalingTable())
	section("MEMORY AND GARBAGE COLLECTION", "Heap only. GC: median of runtime.GC() with the limiter, and with it gone; a tick of 4 ms is the operating system's.", v.memoryTable())
	section("MEMORY OVER THE NUMBER OF KEYS", "Heap, bytes a key. Each limiter is filled on and on; its tables grow at certain sizes."+v.curveNote(), v.curveTable())
	section("MEMORY AT MAXKEYS", "Heap, for each key that is tracked once MaxKeys keys have come.", v.fullTable())
	section("LATENCY OF SINGLE CALLS", "The run with the median p99.99. Empty: the same loop around an empty call, which is what the machine adds.", v.stallTable())
	section("LATENCY OF SINGLE CALLS, WITH THE MOST TO MOVE",
		"Of several runs the one with the least max, which is the least disturbed. Empty: the same loop around an empty call, for as long, likewise.", v.tailsTable())
	section("PARTS ALONE", "ns each.", v.floorTable())
	section("ALLOCATIONS", "A call, over a million calls on keys that are known.", v.allocTable())
	section("LEFT OUT", "And why.", v.omittedTable())
	section("SUBJECTS", "What they are, and what to know about them.", v.subjectTable())
	section("MODULES", "Versions.", v.versionTable())
	return b.String()
}

const budgetsAbout = "Ratios are medians of the ratios of samples that were taken by turns. Hashed buckets: the same figure of an approximate limiter without ids, whose keys share buckets."

const stringsAbout = "ns a call, median; made: strings that were copied just before their call; stored: strings that lie where they were made once; else they come in the order of the calls.\nThe last row is the driver's loop around an atomic add of a key's first byte: the strings are in all other rows. Clock: its reading alone."

const nsACall = "ns a call, median, lower is better."

func (v *view) heading() string {
	m := v.Machine
	return fmt.Sprintf("sluice beside other limiters\n\n%s, %d cores, %s/%s, %s\n%s, commit %s, %d rounds, all subjects by turns in each\n%s",
		m.CPU, m.Cores, m.OS, m.Arch, m.Go, m.Date, m.Commit, m.Rounds, v.fastSources())
}

// fastSources is a line on the sources of fast clocks; "" if there were none.
func (v *view) fastSources() string {
	var parts []string
	for _, source := range slices.Sorted(maps.Keys(v.Machine.FastClock)) {
		parts = append(parts, fmt.Sprintf("%s (%d limiters)", source, v.Machine.FastClock[source]))
	}
	if len(parts) == 0 {
		return ""
	}
	return "fast clocks: " + strings.Join(parts, "; ") + "\n"
}

// speedTable has a row for every subject that keep holds for and that has a figure.
func (v *view) speedTable(cols []column, keep func(results.Subject) bool) *table {
	t := &table{head: []string{"limiter"}, align: "l" + strings.Repeat("r", len(cols)), bold: map[int]bool{}}
	for _, c := range cols {
		t.head = append(t.head, c.title)
	}
	for _, s := range v.bySpeed(keep) {
		if !v.hasAny(s.Name, cols) {
			continue
		}
		t.bold[len(t.rows)] = isOurs(s)
		row := []string{s.Name}
		for _, c := range cols {
			row = append(row, figure(median(v.samples(s.Name, c))))
		}
		t.add(row...)
	}
	return t
}

// stringsColumns are the workloads that stringsTable has a column for.
var stringsColumns = []column{
	columns[0], columns[1], columns[4],
	columns[2], {"Zipf, made", "zipf-made", serial}, {"Zipf, stored", "zipf-stored", serial},
	columns[3], {"uniform, made", "uniform-made", serial}, {"uniform, stored", "uniform-stored", serial},
}

// stringsTable has hashed buckets beside sluice under each clock, and the parts of a call that are none of a limiter's.
func (v *view) stringsTable() *table {
	t := &table{head: []string{"limiter"}, align: "l" + strings.Repeat("r", len(stringsColumns)+1), bold: map[int]bool{}}
	for _, c := range stringsColumns {
		t.head = append(t.head, c.title)
	}
	t.head = append(t.head, "clock")
	if v.hashed() == "" {
		return t
	}
	for _, s := range v.bySpeed(func(s results.Subject) bool { return isOurs(s) && s.Stands() || s.Name == v.hashed() }) {
		row := []string{s.Name}
		for _, c := range stringsColumns {
			row = append(row, figure(median(v.samples(s.Name, c))))
		}
		t.add(append(row, figure(median(v.floor[clockPart(s.Clock)])))...)
	}
	row := []string{"the strings alone"}
	for _, c := range stringsColumns {
		row = append(row, figure(median(v.floor[floor.Strings(c.workload)])))
	}
	t.add(append(row, unknown)...)
	return t
}

// parallelColumns are all workloads that were run on two cores, in the order in
// which they were measured.
func (v *view) parallelColumns() []column {
	var cols []column
	for _, s := range v.Speed {
		c := column{s.Workload, s.Workload, twoCPU}
		if s.Mode == twoCPU && !slices.Contains(cols, c) {
			cols = append(cols, c)
		}
	}
	return cols
}

func (v *view) everyRow() *table {
	t := &table{head: []string{"workload", "mode", "limiter", "keys", "ns", "least", "spread", "samples"}, align: "lllrrrrr"}
	rows := slices.Clone(v.Speed)
	order := map[string]int{}
	for _, s := range rows {
		if key := s.Workload + s.Mode; order[key] == 0 {
			order[key] = len(order) + 1
		}
	}
	slices.SortStableFunc(rows, func(a, b results.Speed) int {
		return cmp.Or(cmp.Compare(order[a.Workload+a.Mode], order[b.Workload+b.Mode]), cmp.Compare(median(a.Samples), median(b.Samples)))
	})
	for _, s := range rows {
		t.add(s.Workload, s.Mode, s.Subject, grouped(int64(s.Keys)), figure(median(s.Samples)), figure(least(s.Samples)),
			fixed(100*spread(s.Samples), 0)+"%", grouped(int64(len(s.Samples))))
	}
	return t
}

// floorOf is the cost of the parts of one call of a workload; NaN where a call is not
// the sum of parts, as for a new key, or with two cores. Cache misses are not among
// them: the misses of one call overlap with the work of the next, so that calls can be
// faster than a miss.
func (v *view) floorOf(c column, clock string) float64 {
	parts := v.part(floor.Driver) + v.clockFloor(clock) + v.otherParts()
	switch {
	case c.mode != serial:
	case c.workload == "denied":
		return parts - v.part(floor.CAS)
	case c.workload == "hot" || c.workload == "thousand" || c.workload == "zipf" || c.workload == "uniform":
		return parts
	}
	return math.NaN()
}

// floorParts names the parts of floorOf.
func floorParts(c column) string {
	if c.workload == "denied" {
		return "driver, clock, hash and loads"
	}
	return "driver, clock, hash, loads and CAS"
}

func (v *view) multiples() *table {
	t := &table{head: []string{"limiter", "clock", "workload", "ns", "floor", "multiple"}, align: "lllrrr"}
	for _, s := range v.Speed {
		subject := v.subjects[s.Subject]
		if !isOurs(subject) {
			continue
		}
		ns, parts := median(s.Samples), v.floorOf(column{s.Workload, s.Workload, s.Mode}, subject.Clock)
		if !math.IsNaN(parts) {
			t.add(s.Subject, subject.Clock, s.Workload, figure(ns), figure(parts), fixed(ns/parts, 2))
		}
	}
	return t
}

func (v *view) scalingTable() *table {
	var keys []int
	for _, s := range v.Scaling {
		if !slices.Contains(keys, s.Keys) {
			keys = append(keys, s.Keys)
		}
	}
	slices.Sort(keys)
	t := &table{head: []string{"limiter"}, align: "l" + strings.Repeat("r", len(keys))}
	for _, n := range keys {
		t.head = append(t.head, grouped(int64(n)))
	}
	for _, name := range v.scalingSubjects() {
		row := []string{name}
		for _, n := range keys {
			cell := unknown
			for _, s := range v.Scaling {
				if s.Subject == name && s.Keys == n {
					cell = figure(median(s.Samples))
				}
			}
			row = append(row, cell)
		}
		t.add(row...)
	}
	return t
}

func (v *view) scalingSubjects() []string {
	var names []string
	for _, s := range v.Scaling {
		if !slices.Contains(names, s.Subject) {
			names = append(names, s.Subject)
		}
	}
	return names
}

// byBytes are the memory rows, the lightest first.
func (v *view) byBytes() []results.Memory {
	return slices.SortedStableFunc(slices.Values(v.Memory), func(a, b results.Memory) int {
		return cmp.Compare(a.BytesPerKey, b.BytesPerKey)
	})
}

func (v *view) memoryTable() *table {
	t := &table{head: []string{"limiter", "keys", "B a key", "objects a key", "GC ms", "without", "adds"}, align: "lrrrrrr"}
	for _, m := range v.byBytes() {
		with, without := medianMillis(m.GC), medianMillis(m.GCWithout)
		t.add(m.Subject, grouped(int64(m.Keys)), fixed(m.BytesPerKey, 1), fixed(math.Abs(m.ObjectsPerKey), 2),
			fixed(with, 2), fixed(without, 2), fixed(with-without, 2))
	}
	return t
}

func (v *view) stallTable() *table {
	t := &table{
		head:  []string{"during", "limiter", "calls", "p50", "p99", "p99.9", "p99.99", "max", "empty p99.99", "empty max"},
		align: "llrrrrrrrr",
	}
	for _, s := range v.Stall {
		t.add(s.Situation, s.Subject, grouped(s.Calls), nanos(s.P50), nanos(s.P99), nanos(s.P999), nanos(s.P9999), nanos(s.Max),
			nanos(s.BaselineP9999), nanos(s.BaselineMax))
	}
	return t
}

func (v *view) tailsTable() *table {
	t := &table{
		head:  []string{"during", "limiter", "keys", "calls", "p50", "p99.99", "max", "empty max", "own"},
		align: "llrrrrrrr",
	}
	for _, s := range v.Tails {
		t.add(s.Situation, s.Subject, grouped(int64(s.Keys)), grouped(s.Calls), nanos(s.P50), nanos(s.P9999), nanos(s.Max),
			nanos(s.BaselineMax), nanos(s.Own()))
	}
	return t
}

func (v *view) floorTable() *table {
	t := &table{head: []string{"part", "least", "median", "spread"}, align: "lrrr"}
	for _, f := range v.Floor {
		t.add(f.Part, figure(least(f.Samples)), figure(median(f.Samples)), fixed(100*spread(f.Samples), 0)+"%")
	}
	return t
}

func (v *view) allocTable() *table {
	t := &table{head: []string{"limiter"}, align: "l"}
	rows := map[string][]string{}
	for _, a := range v.Allocs {
		if !slices.Contains(t.head, a.Workload) {
			t.head, t.align = append(t.head, a.Workload), t.align+"r"
		}
	}
	for _, a := range v.Allocs {
		if rows[a.Subject] == nil {
			rows[a.Subject] = append([]string{a.Subject}, slices.Repeat([]string{unknown}, len(t.head)-1)...)
			t.rows = append(t.rows, rows[a.Subject])
		}
		rows[a.Subject][slices.Index(t.head, a.Workload)] = fixed(a.PerCall, 5)
	}
	return t
}

// omittedTable has a row for each reason, with all whom it concerns.
func (v *view) omittedTable() *table {
	t := &table{head: []string{"measurement", "reason", "limiters"}, align: "lll"}
	type why struct{ measurement, reason string }
	var order []why
	names := map[why][]string{}
	for _, o := range v.Omitted {
		w := why{o.Measurement, o.Reason}
		if names[w] == nil {
			order = append(order, w)
		}
		names[w] = append(names[w], o.Subject)
	}
	for _, w := range order {
		who := strings.Join(names[w], "; ")
		if _, known := v.subjects[names[w][0]]; known && len(names[w]) == len(v.Subjects) {
			who = "all"
		}
		t.add(w.measurement, w.reason, who)
	}
	return t
}

var kinds = map[string]string{
	string(peers.Ours):     "sluice",
	string(peers.Library):  "limiter that takes a key",
	string(peers.Keyed):    "limiter of one key, in a map",
	string(peers.Bare):     "limiter of one key",
	string(peers.Baseline): "what one would write oneself",

	string(peers.Approximate): "approximate: keys that collide share a bucket",
}

func (v *view) subjectTable() *table {
	t := &table{head: []string{"limiter", "kind", "module", "note"}, align: "llll"}
	for _, s := range v.Subjects {
		t.add(s.Name, cmp.Or(kinds[s.Kind], s.Kind), strings.TrimSpace(s.Module+" "+v.Machine.Versions[s.Module]), s.Note)
	}
	return t
}

func (v *view) versionTable() *table {
	t := &table{head: []string{"module", "version"}, align: "ll"}
	for _, path := range slices.Sorted(maps.Keys(v.Machine.Versions)) {
		t.add(path, v.Machine.Versions[path])
	}
	return t
}
