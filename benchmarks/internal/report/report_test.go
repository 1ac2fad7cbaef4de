package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/vg"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

func TestMedian(t *testing.T) {
	assert.Equal(t, 3.0, median([]float64{9, 3, 1}))
	assert.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	assert.True(t, math.IsNaN(median(nil)))
	unsorted := []float64{3, 1, 2}
	median(unsorted)
	assert.Equal(t, []float64{3, 1, 2}, unsorted, "the order is that of the rounds")
	assert.Equal(t, 2.0, medianMillis([]time.Duration{time.Millisecond, 2 * time.Millisecond, time.Second}))
}

func TestPairedRatio_SlownessOfTheMachineCancelsOut(t *testing.T) {
	a, b := []float64{10, 40, 80}, []float64{20, 80, 40}
	assert.Equal(t, 0.5, PairedRatio(a, b))
	assert.Equal(t, 1.0, median(a)/median(b), "which is what the ratio of medians says")
	assert.Equal(t, 0.5, PairedRatio([]float64{10, 900, 10, 40, 40, 1}, []float64{20, 80}), "three samples a round and one")
	assert.Equal(t, 2.0, PairedRatio([]float64{20, 80}, []float64{10, 900, 10, 40, 40, 1}), "one sample a round and three")
	assert.True(t, math.IsNaN(PairedRatio(nil, b)))
}

func TestLeastAndSpread(t *testing.T) {
	assert.Equal(t, 2.0, least([]float64{3, 2, 9}))
	assert.True(t, math.IsNaN(least(nil)))
	assert.Equal(t, 0.4, spread([]float64{10, 8, 1, 12, 900}))
	assert.True(t, math.IsNaN(spread(nil)))
}

func budgetsOf(r results.Results) map[string]budget {
	found := map[string]budget{}
	for _, b := range newView(r).budgets() {
		found[b.what] = b
	}
	return found
}

func TestBudgets_OfTheFixtureAreMet(t *testing.T) {
	list := newView(fixture()).budgets()
	assert.Len(t, list, (6+6+5)+6+2+4+1+2+3+6+4+1)
	for _, b := range list {
		want := "met"
		// The fixture has no other algorithm under a coarse clock.
		if strings.HasPrefix(b.what, "coarse clock, slowest") {
			want = "not measured"
		}
		assert.Equal(t, want, b.verdict(), "%s: %v", b.what, b)
	}
	assert.Equal(t, "budgets: 44 met, 0 missed, 2 not measured", Summary(fixture()))
}

// sixteen is the budget of AllowEach.
const sixteen = "coarse clock, AllowEach of 16 keys of 1M uniform, for each key, against one by one"

func TestBudgets_Figures(t *testing.T) {
	found := budgetsOf(fixture())
	hot := found["system clock against the best library: hot"]
	assert.Equal(t, 0.5, hot.measured)
	assert.Equal(t, "50 to 100 ns ("+juju+")", hot.basis, "the bare limiter and the baseline are faster and no libraries")
	assert.Equal(t, throttled, newView(fixture()).bestLibrary(columns[2]), "each row has its own best library")
	assert.InDelta(t, 200.0/900, found["system clock against the best library: new keys"].measured, 1e-9)
	slowest := found["system clock, slowest one-word algorithm against GCRA: hot"]
	assert.Equal(t, 1.2, slowest.measured, "the log does not count")
	assert.Contains(t, slowest.basis, window)
	assert.Equal(t, 23.56, found["memory at 1M keys"].measured)
	assert.InDelta(t, 200.0/240, found["flood of new keys at MaxKeys against filling: throughput"].measured, 1e-9)
	stalled := found["coarse clock, p99.99 of Allow during a flood"]
	assert.Equal(t, 0.08, stalled.measured)
	assert.Contains(t, stalled.basis, "of an empty call 20.0 us")

	assert.InDelta(t, 0.38, found["fast clock against the best library: hot"].measured, 1e-9)
	assert.NotContains(t, found, "fast clock against the best library: new keys")
	assert.InDelta(t, 100.0/110, found["new keys denied at MaxKeys against the denial of known ones"].measured, 1e-9)
	assert.InDelta(t, 29.0/150, found[sixteen].measured, 1e-9)
	worst := found["memory at any size above 10,000 keys, one word"]
	assert.Equal(t, 29.0, worst.measured, "1,000 keys are few, throttled is not ours, and the log not of one word")
	assert.Equal(t, gcraSystem+" with 20,000 keys", worst.basis)
	mean := found["memory on average over these sizes"]
	assert.InDelta(t, 23, mean.measured, 1e-9)
	assert.Equal(t, gcraSystem+", 3 sizes up to 40,000 keys", mean.basis)
	assert.Equal(t, 23.0, found["memory at MaxKeys, full, one word"].measured)
	tail := found["longest Allow during sweeping 10M keys"]
	assert.Equal(t, 0.09, tail.measured)
	assert.Contains(t, tail.basis, "130.0 us, of empty ones in as much time 40.0 us")
}

// Beside a ratio stands what hashed buckets reach, and beside a missed one also what the
// parts alone would.
func TestBudgets_WhatIsAttainable(t *testing.T) {
	const hot, fastHot = "system clock against the best library: hot", "fast clock against the best library: hot"
	found := budgetsOf(fixture())
	assert.Equal(t, "0.520 x", found[hot].hashed)
	assert.Equal(t, "0.520 x", found[fastHot].hashed, "they have one clock")
	assert.Equal(t, "-", found["system clock against the best library: new keys"].hashed, "no key is new to them")
	assert.Empty(t, found["memory at 1M keys"].hashed)
	assert.NotContains(t, found[hot].basis, "alone")

	r := fixture()
	for i, s := range r.Speed {
		if s.Subject == gcraSystem {
			r.Speed[i].Samples = rounds(1000)
		}
	}
	found = budgetsOf(r)
	// The driver's 2, the clock's 34, the hash's 8, three loads of 0.5 and a CAS of 5.
	assert.Contains(t, found[hot].basis, "; driver, clock, hash, loads and CAS alone are 51 ns, 0.51 x")
	assert.Contains(t, found["system clock against the best library: denied"].basis, "; driver, clock, hash and loads alone are 46 ns, 0.46 x")
	b := found["system clock against the best library: new keys"]
	assert.Equal(t, missed, b.verdict())
	assert.NotContains(t, b.basis, "alone", "such a call is not the sum of those parts")
	assert.Contains(t, Text(r), "0.520 x")
}

// Each budget is missed by figures just beyond its bound, and says so.
func TestBudgets_Missed(t *testing.T) {
	speed := func(subject, workload, mode string, ns float64) func(*results.Results) {
		return func(r *results.Results) {
			for i, s := range r.Speed {
				if s.Subject == subject && s.Workload == workload && s.Mode == mode {
					r.Speed[i].Samples = rounds(ns)
				}
			}
		}
	}
	stalled := func(r *results.Results) {
		for i := range r.Stall {
			r.Stall[i].P9999 = 100_001
		}
	}
	for what, change := range map[string]func(*results.Results){
		"system clock against the best library: hot":                        speed(gcraSystem, "hot", serial, 78.1),
		"system clock against the best library: 1M Zipf":                    speed(gcraSystem, "zipf", serial, 118),
		"system clock against the best library: new keys":                   speed(gcraSystem, "new", serial, 400),
		"coarse clock against the best library: denied":                     speed(gcraCoarse, "denied", serial, 26),
		"fast clock against the best library: 1M uniform":                   speed(gcraFast, "uniform", serial, 197),
		"fast clock against the best library: 2 cores, hot":                 speed(gcraFast, "hot", twoCPU, 79),
		"system clock against hashed buckets: hot":                          speed(gcraSystem, "hot", serial, 54.7),
		"system clock against hashed buckets: denied":                       speed(gcraSystem, "denied", serial, 56.8),
		"fast clock against hashed buckets: 1,000 keys":                     speed(gcraFast, "thousand", serial, 50.4),
		"new keys denied at MaxKeys against the denial of known ones":       speed(gcraSystem, "refused", serial, 199),
		"flood of new keys at MaxKeys against filling: throughput":          speed(gcraSystem, "flood", serial, 401),
		"system clock, slowest one-word algorithm against GCRA: 1,000 keys": speed(window, "thousand", serial, 78),
		sixteen: speed(gcraCoarse, "each-16", serial, 76),
		"memory at any size above 10,000 keys, one word":            func(r *results.Results) { r.Curve[2].Bytes[2] = 30.1 },
		"memory on average over these sizes":                        func(r *results.Results) { r.Curve[1].Bytes[3] = 21.2 },
		"memory at MaxKeys, full, one word":                         func(r *results.Results) { r.Full[0].BytesPerKey = 24.1 },
		"longest Allow during SetLimit of 10M keys":                 func(r *results.Results) { r.Tails[3].Max += 51_000 },
		"longest Allow during a Snapshot of 10M keys":               func(r *results.Results) { r.Tails[4].Max += 51_000 },
		"longest Allow during growth of a log of 1,000 units a key": func(r *results.Results) { r.Tails[5].Max, r.Tails[5].BaselineMax = 9e6, 4e6 },
		"memory at 1M keys":                                         func(r *results.Results) { r.Memory[1].BytesPerKey = 30.1 },
		"heap objects at 1M keys: none but the tables":              func(r *results.Results) { r.Memory[1].ObjectsPerKey = 0.01 },
		"system clock, p99.99 of Allow during a growth":             stalled,
		"coarse clock, p99.99 of Allow during a flood":              stalled,
		"allocations of a decision":                                 func(r *results.Results) { r.Allocs[0].PerCall = 1 },
	} {
		r := fixture()
		change(&r)
		assert.Equal(t, "MISSED", budgetsOf(r)[what].verdict(), what)
		assert.Contains(t, Summary(r), what)
		assert.Contains(t, Text(r), "MISSED", "a missed budget is shown")
	}
}

func TestBudgets_OfNothingAreNotMeasured(t *testing.T) {
	for _, b := range newView(results.Results{}).budgets() {
		assert.Equal(t, "not measured", b.verdict(), b.what)
	}
	assert.NotContains(t, Text(results.Results{}), "NaN")
}

func TestText_HasEverySubjectAndTable(t *testing.T) {
	text := Text(fixture())
	for _, s := range fixture().Subjects {
		assert.Contains(t, text, s.Name)
	}
	for _, want := range []string{
		"BUDGETS", "SPEED, ONE GOROUTINE", "TWO GOROUTINES", "EVERY ROW", "MULTIPLE OF ITS FLOOR", "NUMBER OF KEYS", "MEMORY",
		"WHAT STRINGS AND CLOCKS COST", "approximate: keys that collide share a bucket", "LATENCY", "MOST TO MOVE", "MEMORY OVER", "MEMORY AT MAXKEYS", "fast clocks: TSC (12 limiters)", "PARTS ALONE", "ALLOCATIONS", "LEFT OUT", "SUBJECTS", "MODULES",
		"Example CPU, 2 cores, linux/amd64, go1.26", "2026-01-02, commit abc1234, 3 rounds", "it has no keys", "v2.15.0", "One mutex.",
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "NaN")
}

// A fast clock that is the system clock must not pass for one.
func TestClockName_SaysWhereAFastClockIsTheSystemClock(t *testing.T) {
	const hot = " against the best library: hot"
	for want, sources := range map[string]map[string]int{
		"fast clock": {"CNTVCT_EL0": 3},
		"fast clock (the system clock in 3 of 3 limiters)": {"system clock: no counter": 2, "system clock: late": 1},
		"fast clock (the system clock in 1 of 4 limiters)": {"TSC": 3, "system clock: late": 1},
		"fast clock (the system clock in 2 of 4 limiters)": {"TSC": 2, "system clock: a": 1, "system clock: b": 1},
	} {
		r := fixture()
		r.Machine.FastClock = sources
		assert.Contains(t, budgetsOf(r), want+hot)
		assert.Contains(t, budgetsOf(r), "system clock"+hot)
		for source := range sources {
			assert.Contains(t, Text(r), source)
		}
		assert.Equal(t, strings.Contains(want, "system"), strings.Contains(Readme(r), "The fast clock was the system clock in "))
	}
	r := fixture()
	r.Machine.FastClock = nil // results of before there were any
	assert.Contains(t, budgetsOf(r), "fast clock"+hot)
	assert.NotContains(t, Text(r), "fast clocks:")
}

// A machine that is held up itself must not make a budget met.
func TestTailBudget_HiddenByTheMachine(t *testing.T) {
	const what = "longest Allow during sweeping 10M keys"
	r := fixture()
	r.Tails[1].Max, r.Tails[1].BaselineMax = 4_100_000, 4_000_000
	found := budgetsOf(r)
	assert.NotContains(t, found, what)
	assert.Equal(t, notMeasured, found[what+": hidden by the machine, which held up an empty call for 4.00 ms"].verdict())
}

func TestCurveTable_ARowASize(t *testing.T) {
	tab := newView(fixture()).curveTable()
	assert.Equal(t, []string{"keys", throttled, gcraSystem, window, logName}, tab.head)
	require.Len(t, tab.rows, 4)
	assert.Equal(t, []string{"20,000", "81.0", "29.0", "22.0", "140.0"}, tab.rows[1])
	assert.Equal(t, []string{"40,000", "-", "18.0", "17.0", "120.0"}, tab.rows[3])
	assert.Contains(t, Text(fixture()), "Others only up to 20,000 keys")
}

func TestMultiples_OfTheFloorOfEachWorkload(t *testing.T) {
	rows := map[string][]string{}
	for _, row := range newView(fixture()).multiples().rows {
		rows[row[0]+" "+row[2]] = row
	}
	assert.Equal(t, []string{gcraSystem, system, "hot", "50", "51", "0.99"}, rows[gcraSystem+" hot"])
	assert.Equal(t, "46", rows[gcraSystem+" denied"][4], "a denial has no CAS")
	assert.Equal(t, "51", rows[gcraSystem+" uniform"][4], "misses are not in it")
	assert.Equal(t, "21", rows[gcraCoarse+" hot"][4])
	assert.NotContains(t, rows, gcraSystem+" new")
	assert.NotContains(t, rows, throttled+" hot")
}

func TestSpeedTable_FastestFirstAndEveryColumn(t *testing.T) {
	tab := newView(fixture()).speedTable(columns, results.Subject.Stands)
	var names []string
	for _, row := range tab.rows {
		names = append(names, row[0])
	}
	assert.Equal(t, []string{gcraCoarse, gcraFast, bare, gcraSystem, hashedName, diy, juju, throttled}, names)
	assert.Equal(t, []string{bare, "40", "-", "-", "-", "40", "-", "60", "-"}, tab.rows[2])
	assert.Equal(t, []string{throttled, "120", "140", "300", "700", "110", "900", "150", "260"}, tab.rows[7])
}

func TestStringsTable_TheLimitersAndWhatIsNotTheirs(t *testing.T) {
	tab := newView(fixture()).stringsTable()
	assert.Equal(t, []string{"limiter", "hot", "1,000 keys", "denied", "1M Zipf", "Zipf, made", "Zipf, stored", "1M uniform", "uniform, made", "uniform, stored", "clock"}, tab.head)
	assert.Equal(t, [][]string{
		{gcraCoarse, "25", "26", "22", "60", "-", "-", "150", "-", "-", "4.0"},
		{gcraFast, "38", "50", "40", "80", "-", "-", "170", "-", "-", "15"},
		{gcraSystem, "50", "55", "45", "90", "101", "-", "200", "-", "433", "34"},
		{hashedName, "52", "67", "54", "80", "-", "-", "180", "-", "356", "31"},
		{"the strings alone", "2.0", "-", "-", "-", "17", "-", "-", "-", "77", "-"},
	}, tab.rows)
	before := fixture() // results of before there were hashed buckets
	before.Subjects = before.Subjects[:len(before.Subjects)-1]
	assert.Empty(t, newView(before).stringsTable().rows)
}

func TestTable_TextAndMarkdown(t *testing.T) {
	tab := &table{head: []string{"name", "ns"}, align: "lr", bold: map[int]bool{1: true}}
	tab.add("a", "1,000")
	tab.add("longer", unknown)
	assert.Equal(t, "name       ns\na       1,000\nlonger      -\n", tab.text())
	assert.Equal(t, "| name | ns |\n|---|--:|\n| a | 1,000 |\n| **longer** | - |\n", tab.markdown())
}

func TestFigures(t *testing.T) {
	for want, x := range map[string]float64{"0.3": 0.31, "9.9": 9.94, "10": 9.96, "57": 57.4, "1,431": 1431, "1,000,001": 1e6 + 1, "-": math.NaN(), "-1,234": -1234} {
		assert.Equal(t, want, figure(x))
	}
	for want, ns := range map[string]int64{"950 ns": 950, "12.5 us": 12_500, "1.5 us": 1500, "3.10 ms": 3_100_000} {
		assert.Equal(t, want, nanos(ns))
	}
}

func TestReplace_OnlyBetweenTheMarkers(t *testing.T) {
	page := "before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n"
	got, err := Replace(page, "x", "new\n")
	require.NoError(t, err)
	assert.Equal(t, "before\n<!-- x:begin -->\nnew\n<!-- x:end -->\nafter\n", got)
	body, err := Section(got, "x")
	require.NoError(t, err)
	assert.Equal(t, "new\n", body)
	again, err := Replace(got, "x", "new\n")
	require.NoError(t, err)
	assert.Equal(t, got, again)
	for _, bad := range []string{"", "<!-- x:begin -->\n", page + page, "<!-- x:end -->\n<!-- x:begin -->\n"} {
		_, err := Replace(bad, "x", "new")
		assert.Error(t, err, bad)
	}
}

func TestAllocTable_ARowALimiter(t *testing.T) {
	r := results.Results{Allocs: []results.Allocs{{Subject: "a", Workload: "hot", PerCall: 2}, {Subject: "b", Workload: "hot"}, {Subject: "a", Workload: "denied", PerCall: 1}}}
	tab := newView(r).allocTable()
	assert.Equal(t, []string{"limiter", "hot", "denied"}, tab.head)
	assert.Equal(t, [][]string{{"a", "2.00000", "1.00000"}, {"b", "0.00000", "-"}}, tab.rows)
}

func TestOmittedTable_ARowAReason(t *testing.T) {
	r := results.Results{Subjects: make([]results.Subject, 3), Omitted: []results.Omission{
		{Subject: "a", Measurement: "x", Reason: "r"}, {Subject: "b", Measurement: "y", Reason: "s"}, {Subject: "c", Measurement: "x", Reason: "r"},
	}}
	assert.Equal(t, [][]string{{"x", "r", "a; c"}, {"y", "s", "b"}}, newView(r).omittedTable().rows)
	r.Subjects = r.Subjects[:2]
	assert.Equal(t, "a; c", newView(r).omittedTable().rows[0][2], "they are no subjects")
	r.Subjects = []results.Subject{{Name: "a"}, {Name: "c"}}
	assert.Equal(t, "all", newView(r).omittedTable().rows[0][2])
}

func TestReadme_TableChartsAndCommand(t *testing.T) {
	text := Readme(fixture())
	for _, want := range []string{
		"| **" + gcraSystem + "** | **50** |",
		"(benchmarks/results/speed.svg)", "abc1234", "2026-01-02", "go run .",
	} {
		assert.Contains(t, text, want)
	}
	for _, other := range []string{logName, throttled, hashedName} {
		assert.NotContains(t, text, other, "the others are in results.txt")
	}
}

// TestReadme_SpeaksOfTheRowsThatItHas: what the README says of a kind of row beside its table is of a row
// that is there.
func TestReadme_SpeaksOfTheRowsThatItHas(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	require.NoError(t, err)
	table, err := Section(string(page), Benchmarks)
	require.NoError(t, err)
	if !strings.Contains(table, "\n| "+hashedName) {
		assert.NotContains(t, strings.ToLower(string(page)), "hashed bucket")
	}
}

// The committed pages say what the committed results say.
func TestPages_AreGeneratedFromTheResults(t *testing.T) {
	root := filepath.Join("..", "..")
	var r results.Results
	err := results.Load(filepath.Join(root, "results", results.File), &r)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no results have been committed: go run . in benchmarks/ makes them")
	}
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "..", "README.md"))
	require.NoError(t, err)
	got, err := Section(string(text), Benchmarks)
	require.NoError(t, err)
	assert.Equal(t, Readme(r), got, "README.md is not what go run . report makes of the results")
	rows := 2 + len(readmePeers) // the head, and the line below it
	for _, s := range r.Subjects {
		if isOurs(s) && s.Stands() {
			rows++
		}
	}
	assert.Equal(t, rows, strings.Count(Readme(r), "\n|"))
	text, err = os.ReadFile(filepath.Join(root, "results", "results.txt"))
	require.NoError(t, err)
	assert.Equal(t, Text(r), string(text))
}

func TestCharts_AreWellFormedAndNameTheSubjects(t *testing.T) {
	charts, err := Charts(fixture())
	require.NoError(t, err)
	var files []string
	for _, c := range charts {
		files = append(files, c.File)
		d := xml.NewDecoder(strings.NewReader(string(c.SVG)))
		for err = nil; err == nil; {
			_, err = d.Token()
		}
		assert.Equal(t, io.EOF, err, c.File)
		assert.Contains(t, string(c.SVG), gcraSystem, c.File)
		assert.NotContains(t, string(c.SVG), "NaN", c.File)
		assert.Contains(t, string(c.SVG), "Arial", c.File)
	}
	assert.Equal(t, []string{"speed.svg", "keys.svg", "cores.svg", "memory.svg", "curve.svg", "stall.svg", "tails.svg"}, files)

	again, err := Charts(fixture())
	require.NoError(t, err)
	assert.Equal(t, charts, again, "what is committed changes only with the results")

	none, err := Charts(results.Results{})
	require.NoError(t, err)
	assert.Empty(t, none)
}

func TestFullLength_OneOutlierDoesNotDwarfTheOthers(t *testing.T) {
	assert.Equal(t, 50.0, fullLength([][]float64{{10, 10, 1000, math.NaN()}}, false))
	assert.Equal(t, 1000.0, fullLength([][]float64{{10, 10, 1000, math.NaN()}}, true))
	assert.Equal(t, 20.0, fullLength([][]float64{{10}, {20}}, false))
	assert.Equal(t, 1.0, fullLength([][]float64{{math.NaN()}}, false))
}

func TestSpreadOut_LabelsDoNotOverlapAndKeepTheirOrder(t *testing.T) {
	got := spreadOut([]vg.Length{50, 10, 51, 52}, 10)
	assert.InDelta(t, 10, float64(got[1]), 1e-9, "what has room stays")
	assert.InDelta(t, 51, float64(got[2]), 1, "the others move both ways")
	assert.Greater(t, float64(got[2]-got[0]), 9.9)
	assert.Greater(t, float64(got[3]-got[2]), 9.9)
}

func TestFloorParts_AreThoseThatTheReportLooksFor(t *testing.T) {
	v := newView(fixture())
	for _, part := range []string{floor.Driver, floor.SystemClock, floor.CoarseClock, floor.NanoTime, floor.Maphash, floor.Load, floor.CAS, floor.Miss16} {
		assert.NotEmpty(t, v.floor[part], part)
	}
}

// TestCharts_AnyPage: charts can be read on a dark page, and every text has the room that it was laid out with, in any font.
func TestCharts_AnyPage(t *testing.T) {
	charts, err := Charts(fixture())
	require.NoError(t, err)
	for _, c := range charts {
		svg := string(c.SVG)
		assert.Equal(t, strings.Count(svg, "<text "), strings.Count(svg, " textLength=\""), c.File)
		assert.Contains(t, svg, "@media (prefers-color-scheme: dark)", c.File)
		for _, dark := range []string{"[style*=\"fill:#FFFFFF\"]{fill:#0D1117 !important}", "[style*=\"fill:#24292F\"]{fill:#E6EDF3 !important}"} {
			assert.Contains(t, svg, dark, c.File)
		}
		assert.Contains(t, svg, "sans-serif", c.File)
	}
}
