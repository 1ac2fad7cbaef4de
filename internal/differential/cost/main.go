//go:build linux

// Command cost measures what a call costs `sluice serve`, beside an empty handler of gRPC and
// beside envoyproxy/ratelimit with a Redis: the processor time of the servers, by the same client, in
// rounds in which all take turns. Run it in the folder above.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const usage = `usage: GOWORK=off go run ./cost [--rounds N] [--calls N] [NAME=PROGRAM...]

Measures sluice of this tree beside an empty handler and envoyproxy/ratelimit with Redis, and says which
budgets are kept. Each NAME=PROGRAM is another sluice to measure beside them.
`

func main() {
	if kind := os.Getenv(kindVariable); kind != "" {
		serve(kind)
	}
	rounds := flag.Int("rounds", 5, "rounds, each of which measures every server once")
	calls := flag.Int("calls", 10_000, "calls of a measurement")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	ok, err := run(context.Background(), *rounds, *calls, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// The names of subjects that budgets are about.
const (
	sluiceName = "sluice serve"
	few, many  = "sluice serve, 1,000 rules", "sluice serve, 100,000 rules"
)

// rulesText is n rules, the last of which is the one that is asked for.
func rulesText(n int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "- {key: key%d, value: value%d, rate_limit: {unit: minute, requests_per_unit: 1000}}\n", i/10, i)
	}
	b.WriteString("- {key: client, rate_limit: {unit: day, requests_per_unit: 4000000000}}\n")
	return b.String()
}

// build builds sluice of this tree.
func build(dir string) (string, error) {
	program := filepath.Join(dir, "sluice")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/sluice")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "GOWORK=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building sluice: %w\n%s", err, out)
	}
	return program, nil
}

// subjects starts all servers.
func (b *bench) subjects(ctx context.Context, others []string) (list []*subject, err error) {
	program, err := build(b.dir)
	if err != nil {
		return nil, err
	}
	add := func(s *subject, e error) {
		if err == nil {
			err = e
		}
		if err == nil {
			list = append(list, s)
			err = s.dial(ctx)
		}
	}
	add(b.self(emptyKind))
	add(b.sluice(sluiceName, program, rulesText(1)))
	add(b.sluice(few, program, rulesText(1000)))
	add(b.sluice(many, program, rulesText(100_000)))
	add(b.upstream(rulesText(1)))
	for _, o := range others {
		name, path, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want NAME=PROGRAM", o)
		}
		add(b.sluice(name, path, rulesText(1)))
	}
	return list, err
}

var descriptorCounts = []int{1, 4, 10}

// run measures, and reports whether all budgets are kept.
func run(ctx context.Context, rounds, calls int, others []string) (bool, error) {
	if rounds < 1 || calls < 1 {
		return false, errors.New("want at least one round, and one call")
	}
	dir, err := os.MkdirTemp("", "sluice-cost")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	b := &bench{dir: dir}
	defer b.close()
	list, err := b.subjects(ctx, others)
	if err != nil {
		return false, err
	}
	kept := true
	for _, n := range descriptorCounts {
		samples := map[*subject][]sample{}
		for round := range rounds + 1 {
			for _, i := range rand.Perm(len(list)) {
				s := list[i]
				one, err := s.measure(ctx, calls, n)
				if err != nil {
					return false, err
				}
				if round > 0 { // the first one warms up
					samples[s] = append(samples[s], one)
				}
			}
		}
		t := table{list, samples, n}
		t.print()
		kept = t.budgets() && kept
	}
	return kept, nil
}

// table is what has been measured with a number of descriptors.
type table struct {
	list        []*subject
	samples     map[*subject][]sample
	descriptors int
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// ratio is the median, over the rounds, of what one subject's sample is beside another's.
func (t *table) ratio(a, b *subject, value func(sample) float64) float64 {
	var list []float64
	for i := range t.samples[a] {
		list = append(list, value(t.samples[a][i])/value(t.samples[b][i]))
	}
	return median(list)
}

func cpu(s sample) float64  { return s.cpu }
func rate(s sample) float64 { return s.rate }

func (t *table) print() {
	fmt.Printf("\n%d descriptors, %s\n", t.descriptors, time.Now().UTC().Format(time.DateTime))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "server\tµs of processor a call\tleast\tmost\tof the empty handler's\tcalls a second\t")
	for _, s := range t.list {
		var cpus, rates []float64
		for _, x := range t.samples[s] {
			cpus, rates = append(cpus, x.cpu), append(rates, x.rate)
		}
		m := median(cpus)
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t\n", s.name, m, cpus[0], cpus[len(cpus)-1], t.ratio(s, t.list[0], cpu), median(rates))
	}
	_ = w.Flush()
}

// A budget is a ratio that is to be kept: at most, or at least if most is 0.
type budget struct {
	descriptors int
	what, of    string
	value       func(sample) float64
	most, least float64
}

const upstreamName = "envoyproxy/ratelimit + Redis"

var budgets = []budget{
	{1, sluiceName, emptyKind, cpu, 1.15, 0},
	{10, sluiceName, emptyKind, cpu, 1.25, 0},
	{1, sluiceName, upstreamName, cpu, 0.40, 0},
	{4, sluiceName, upstreamName, cpu, 0.33, 0},
	{1, sluiceName, upstreamName, rate, 0, 2},
	{4, sluiceName, upstreamName, rate, 0, 2},
	{1, many, few, cpu, 1.1, 0},
}

// budgets says which of them are kept.
func (t *table) budgets() bool {
	byName := map[string]*subject{}
	for _, s := range t.list {
		byName[s.name] = s
	}
	all := true
	for _, b := range budgets {
		if b.descriptors != t.descriptors {
			continue
		}
		got := t.ratio(byName[b.what], byName[b.of], b.value)
		want, kept := fmt.Sprintf("processor time, at most %.2f", b.most), got <= b.most
		if b.least != 0 {
			want, kept = fmt.Sprintf("calls a second, at least %.2f", b.least), got >= b.least
		}
		word := "kept"
		if !kept {
			word, all = "MISSED", false
		}
		fmt.Printf("%s: %s beside %s: %s: %.2f\n", word, b.what, b.of, want, got)
	}
	return all
}
