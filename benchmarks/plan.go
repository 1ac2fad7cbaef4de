package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/machine"
	"github.com/sluice-go/sluice/benchmarks/internal/memory"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/speed"
	"github.com/sluice-go/sluice/benchmarks/internal/stall"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// A plan is the measurements that the command line asks for.
type plan struct {
	rounds    int
	only      string
	workloads []string
	parts     []string
	quick     bool
	out       string
}

// complete reports whether the plan leaves nothing out.
func (p plan) complete() bool {
	return p.only == "" && len(p.workloads) == 0 && len(p.parts) == 0 && !p.quick
}

// isPublished reports whether a folder is the folder of the published results, however it
// is spelled.
func isPublished(folder string) bool {
	path, err := filepath.Abs(folder)
	own, ownErr := filepath.Abs(published)
	return folder != "" && err == nil && ownErr == nil && path == own
}

// folder is where the results go.
func (p plan) folder() (string, error) {
	switch {
	case p.complete() && (p.out == "" || isPublished(p.out)):
		return published, checkPages()
	case p.out != "":
		return p.out, nil
	}
	return os.MkdirTemp("", "sluice-benchmarks-")
}

// A part is one kind of measurement.
type part struct {
	name string
	run  func(*measurement, context.Context, *results.Results) error
}

// The parts in the order in which they are made: the long ones last.
var parts = []part{
	{"memory", (*measurement).memory},
	{"curve", (*measurement).curve},
	{"allocs", (*measurement).allocs},
	{"stall", (*measurement).stall},
	{"tails", (*measurement).tails},
	{"floor", (*measurement).floor},
	{"speed", (*measurement).speed},
	{"scaling", (*measurement).scaling},
}

func partNames() []string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return names
}

// sizes are how much is measured.
type sizes struct {
	workload    workload.Sizes
	round       time.Duration
	scalingKeys int
	memoryKeys  int
	curve       memory.CurveConfig
	allocCalls  int
	stall       stall.Config
	tails       stall.TailConfig
}

var (
	full = sizes{
		workload: workload.Full(), scalingKeys: 1e7, memoryKeys: 1_000_000, allocCalls: 1_000_000,
		curve: memory.FullCurve, stall: stall.Full, tails: stall.FullTails,
	}
	// Windows are not idle after so short a wait, so that they are left out.
	small = sizes{
		workload: workload.Sizes{Million: 10_000, New: 1 << 13}, round: 2 * time.Millisecond,
		scalingKeys: 10_000, memoryKeys: 10_000, allocCalls: 10_000,
		curve: memory.CurveConfig{From: 1000, To: 20_000, PeersTo: 5000, MaxKeys: []int{10_000}},
		stall: stall.Config{Keys: 1 << 13, Repeats: 1, Idle: 50 * time.Millisecond},
		tails: stall.TailConfig{Keys: 10_000, LogKeys: 100, LogUnits: 1000, Repeats: 1, Idle: 50 * time.Millisecond},
	}
)

// A measurement is a plan whose names have been found.
type measurement struct {
	sizes
	rounds    int
	subjects  []peers.Subject
	workloads []workload.Workload
	parts     []part
	available func() int64 // bytes of memory
	log       func(format string, args ...any)
}

// resolve finds the subjects and parts that the plan names. A name of nothing is an error.
func (p plan) resolve(log func(format string, args ...any)) (*measurement, error) {
	m := &measurement{sizes: full, rounds: p.rounds, available: machine.Available, log: log}
	if p.quick {
		m.sizes = small
	}
	if isPublished(p.out) && !p.complete() {
		return nil, fmt.Errorf("--out %s: a part of a run does not replace the published results", p.out)
	}
	if p.rounds < 1 {
		return nil, fmt.Errorf("--rounds %d: want 1 or more", p.rounds)
	}
	only, err := regexp.Compile(p.only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	for _, s := range peers.All() {
		if only.MatchString(s.Name) {
			m.subjects = append(m.subjects, s)
		}
	}
	if len(m.subjects) == 0 {
		return nil, fmt.Errorf("--only %q matches no subject", p.only)
	}
	m.parts, err = pick("--parts", parts, p.parts, func(p part) string { return p.name })
	if err != nil {
		return nil, err
	}
	m.workloads, err = pick("--workloads", workload.All(m.sizes.workload), p.workloads, func(w workload.Workload) string { return w.Name })
	return m, err
}

// pick returns the named elements of all, in their own order; without names, all.
func pick[T any](flag string, all []T, names []string, name func(T) string) ([]T, error) {
	var picked []T
	known := make([]string, len(all))
	for i, x := range all {
		known[i] = name(x)
		if len(names) == 0 || slices.Contains(names, known[i]) {
			picked = append(picked, x)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("%s: there is no %q, only %s", flag, n, strings.Join(known, ", "))
		}
	}
	return picked, nil
}

func (m *measurement) run(ctx context.Context) (results.Results, error) {
	var r results.Results
	modules := []string{"github.com/puzpuzpuz/xsync/v4", "github.com/cespare/xxhash/v2"}
	for _, s := range m.subjects {
		r.Subjects = append(r.Subjects, results.Describe(s))
		modules = append(modules, s.Module)
	}
	for _, module := range peers.Absent {
		r.Omitted = append(r.Omitted, results.Omission{
			Measurement: "everything", Subject: module,
			Reason: "its module could not be fetched (403), so nothing was measured of it and no claim covers it",
		})
	}
	r.Machine = machine.Describe(time.Now(), m.rounds, modules)
	for _, p := range m.parts {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		m.log("%s", p.name)
		if err := p.run(m, ctx, &r); err != nil {
			return r, err
		}
	}
	if r.Floor != nil && r.Speed != nil {
		m.log("floor, again") // the calls lie between the two
		if err := m.floor(ctx, &r); err != nil {
			return r, err
		}
	}
	r.Machine.FastClock = peers.FastSources()
	return r, nil
}

func (m *measurement) memory(_ context.Context, r *results.Results) (err error) {
	r.Memory, err = memory.Run(m.subjects, m.memoryKeys, m.log)
	return err
}

func (m *measurement) curve(_ context.Context, r *results.Results) (err error) {
	r.Curve, r.Full, err = memory.Curve(m.subjects, m.sizes.curve, m.log)
	return err
}

// allocs leaves the workloads on a million keys out: a call allocates as much there.
func (m *measurement) allocs(_ context.Context, r *results.Results) (err error) {
	few := slices.DeleteFunc(slices.Clone(m.workloads), func(w workload.Workload) bool { return w.Keys > 1000 })
	r.Allocs, err = memory.Allocs(m.subjects, few, m.allocCalls)
	return err
}

func (m *measurement) stall(_ context.Context, r *results.Results) error {
	standing := slices.DeleteFunc(slices.Clone(m.subjects), func(s peers.Subject) bool { return !s.Stands() })
	rows, left, err := stall.Run(standing, m.sizes.stall, m.log)
	r.Stall, r.Omitted = rows, append(r.Omitted, left...)
	return err
}

// tails leaves a machine alone that has too little memory for so many keys.
func (m *measurement) tails(_ context.Context, r *results.Results) error {
	if needs, has := m.sizes.tails.Needs(), m.available(); has < needs {
		m.log("tails: left out: they take %d MB of memory, and there are %d", needs>>20, has>>20)
		r.Omitted = append(r.Omitted, results.Omission{
			Subject: "sluice", Measurement: "tails", Reason: fmt.Sprintf("they take %d MB of memory, and there were %d", needs>>20, has>>20),
		})
		return nil
	}
	rows, left, err := stall.RunTails(m.subjects, m.sizes.tails, m.log)
	r.Tails, r.Omitted = rows, append(r.Omitted, left...)
	return err
}

// floorRounds is how many samples of a part there are for one of a call. The least
// of them counts, and there should be a quiet moment among them.
const floorRounds = 3

// floor adds samples to those that there are.
func (m *measurement) floor(_ context.Context, r *results.Results) error {
	rows := floor.Run(floorRounds*m.rounds, m.workloads)
	for i := range r.Floor {
		rows[i].Samples = append(r.Floor[i].Samples, rows[i].Samples...)
	}
	r.Floor = rows
	return nil
}

func (m *measurement) speed(ctx context.Context, r *results.Results) (err error) {
	c := speed.Config{Rounds: m.rounds, Round: m.round, Workloads: m.workloads}
	r.Omitted = append(r.Omitted, c.Missing(m.subjects)...)
	r.Speed, err = speed.Run(ctx, c, m.subjects, m.log)
	return err
}

func (m *measurement) scaling(ctx context.Context, r *results.Results) (err error) {
	c := speed.Scaling(m.scalingKeys)
	c.Rounds, c.Round = m.rounds, m.round
	r.Scaling, err = speed.Run(ctx, c, speed.ScalingSubjects(m.subjects), m.log)
	return err
}
