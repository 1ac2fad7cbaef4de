//go:build linux

// Command cost measures the cost of a call to `sluiced serve`, beside an empty handler of gRPC and
// beside envoyproxy/ratelimit with a Redis: the processor time of the servers, by the same client, in
// rounds in which all take turns; and how long a reload of its rules takes, and calls meanwhile. With --shared both
// count in one Redis: see shared.go. With --fleet several processes of each do: see beside.go. Run it in the folder above.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-go/sluice/internal/test/servers"
)

const usage = `usage: GOWORK=off go run ./cost [--shared | --fleet [--busy N]] [--rounds N] [--calls N] [NAME=PROGRAM...]

Measures sluice of this tree beside an empty handler and envoyproxy/ratelimit with Redis, and says which
budgets are kept. Each NAME=PROGRAM is another sluice to measure beside them. With --shared both count in one
redis-server, and what that has to do is measured, too. With --fleet three processes of each do, under sluice's
default budget, and what they ask of the system is measured, too; beside them run as many busy programs as
--busy says.
`

func main() {
	if kind := os.Getenv(kindVariable); kind != "" {
		serve(kind)
	}
	rounds := flag.Int("rounds", 5, "rounds, each of which measures every server once")
	calls := flag.Int("calls", 10_000, "calls of a measurement")
	shared := flag.Bool("shared", false, "measure both on one redis-server")
	fleet := flag.Bool("fleet", false, "measure three processes of both on one redis-server")
	busy := flag.Int("busy", 0, "programs beside a fleet that want all processors")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	measures := run
	if *shared {
		measures = runShared
	}
	if *fleet {
		measures = func(ctx context.Context, rounds, calls int, others []string) (bool, error) {
			return runBeside(ctx, rounds, calls, *busy, others)
		}
	}
	ok, err := measures(context.Background(), *rounds, *calls, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// The names of subjects that budgets are about.
const (
	sluiceName = "sluiced serve"
	few, many  = "sluiced serve, 1,000 rules", "sluiced serve, 100,000 rules"
)

// asked is the limit of the rule that is asked for.
const asked = 4_000_000_000

// rulesText is n rules, the last of which is the one that is asked for.
func rulesText(n int) string { return rulesWith(n, asked) }

func rulesWith(n, limit int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "- {key: key%d, value: value%d, rate_limit: {unit: minute, requests_per_unit: 1000}}\n", i/10, i)
	}
	fmt.Fprintf(&b, "- {key: client, rate_limit: {unit: day, requests_per_unit: %d}}\n", limit)
	return b.String()
}

// subjects starts all servers.
func (b *bench) subjects(ctx context.Context, others []string) (list []*subject, err error) {
	b.program, err = servers.BuildSluiced(b.dir)
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
	add(b.self(emptyKind, emptyKind))
	add(b.sluice(sluiceName, b.program, rulesText(1)))
	add(b.sluice(few, b.program, rulesText(1000)))
	add(b.sluice(many, b.program, rulesText(100_000)))
	add(b.upstreamAlone(rulesText(1)))
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
				one, err := s.measure(ctx, calls, inFlight, requests(1000, n))
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
	byName := named(list)
	same, err := turns(ctx, byName[few], byName[many], 10*rounds*calls/turn)
	if err != nil {
		return false, err
	}
	reloads, err := b.reloads(ctx, 10*rounds)
	return kept && same && reloads, err
}

// turn is how many calls a server answers before it is another one's turn.
const turn = 1000

// turns measures two servers by turns, and reports whether they cost the same. It adds all up: the
// garbage collector of the one with many rules runs once in 30,000 calls, and then for as long as 4,000 of them
// take, so a median of short measurements would be with it or without it.
func turns(ctx context.Context, few, many *subject, n int) (bool, error) {
	var sums [2]float64
	var ratios []float64
	for range n {
		var now [2]float64
		for _, i := range rand.Perm(2) {
			one, err := []*subject{few, many}[i].measure(ctx, turn, inFlight, requests(1000, 1))
			if err != nil {
				return false, err
			}
			now[i] = one.cpu
			sums[i] += one.cpu
		}
		ratios = append(ratios, now[1]/now[0])
	}
	got := sums[1] / sums[0]
	fmt.Printf("\n%d turns of %d calls: %s %.1f µs a call, %s %.1f µs; median of their ratios %.2f\n",
		n, turn, few.name, sums[0]/float64(n), many.name, sums[1]/float64(n), median(ratios))
	return verdict(got <= manyMost, fmt.Sprintf("%s beside %s: processor time of all turns, at most %.2f", many.name, few.name, manyMost), got), nil
}

// manyMost bounds the cost of a call with 100,000 rules, over the cost with 1,000.
const manyMost = 1.1

// table has the measurements with a number of descriptors.
type table struct {
	list        []*subject
	samples     map[*subject][]sample
	descriptors int
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// ratio is the median, over the rounds, of the value of one measurement over the value of another.
func ratio[T any](a, b []T, value func(T) float64) float64 {
	var list []float64
	for i := range a {
		list = append(list, value(a[i])/value(b[i]))
	}
	return median(list)
}

// ratio is the median, over the rounds, of one subject's sample over another's.
func (t *table) ratio(a, b *subject, value func(sample) float64) float64 {
	return ratio(t.samples[a], t.samples[b], value)
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
}

// budgets says which of them are kept.
func (t *table) budgets() bool {
	byName := named(t.list)
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
		all = verdict(kept, b.what+" beside "+b.of+": "+want, got) && all
	}
	return all
}

// verdict says whether a budget is kept, and returns it.
func verdict(kept bool, budget string, got float64) bool {
	word := "kept"
	if !kept {
		word = "MISSED"
	}
	fmt.Printf("%s: %s: %.2f\n", word, budget, got)
	return kept
}

func named(list []*subject) map[string]*subject {
	out := map[string]*subject{}
	for _, s := range list {
		out[s.name] = s
	}
	return out
}
