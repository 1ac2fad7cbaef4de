//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// The fleet mode: some processes of envoyproxy/ratelimit and as many of `sluiced serve` count in one redis-server, by turns,
// with the default budget of sluice. All processes of one program get besideRate calls a second together, and then as many as they
// answer. Beside them may run programs that want all the processors.

const (
	besideProcesses = 3
	besideRate      = 1500 // calls a second of all processes together
	besideSeconds   = 30   // of a load in which leases have to grow
)

// judgedLeast bounds the part of the decisions that Redis makes in time, with busy programs beside.
const judgedLeast = 0.95

// A load is a workload and how its calls come.
type load struct {
	workload
	saturated bool // as many calls as are answered
	seconds   int  // of calls at besideRate, if they are not as many as of other loads
}

func (l *load) text() string {
	if l.saturated {
		return l.name + ", saturated"
	}
	return fmt.Sprintf("%s, %d calls a second to %d processes", l.name, besideRate, besideProcesses)
}

// besideLoads are all of them. With busy programs there is only the cold one, each of whose calls asks Redis.
func besideLoads(busy int) (out []load) {
	for _, w := range workloads() {
		switch {
		case w.name == coldName && busy > 0:
			out = append(out, load{workload: w})
		case busy > 0:
		case w.name == coldName, w.name == hotName:
			out = append(out, load{workload: w}, load{workload: w, saturated: true})
		case w.name == zipfName:
			out = append(out, load{workload: w, seconds: besideSeconds})
		}
	}
	return out
}

// openBeside starts a Redis, and the processes of each program.
func openBeside(ctx context.Context, dir string, others []string) (_ *sharedBench, err error) {
	b, err := newShared(dir)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	b.flags = []string{"--redis", b.redis.url}
	several := func(name string, one func(name string) (*subject, error)) {
		if err == nil {
			var s *subject
			if s, err = b.several(ctx, name, besideProcesses, one); err == nil {
				b.subjects = append(b.subjects, s)
			}
		}
	}
	several(emptyKind, func(name string) (*subject, error) { return b.self(name, emptyKind) })
	several(upstreamService, func(name string) (*subject, error) { return b.upstream(name, sharedRules, b.redis) })
	several(sluiceName, func(name string) (*subject, error) { return b.sluice(name, b.program, sharedRules, b.flags...) })
	for _, o := range others {
		label, path, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want NAME=PROGRAM", o)
		}
		several(label, func(name string) (*subject, error) {
			return b.sluice(name, path, sharedRules, append(b.flags, "--store-prefix", label)...)
		})
	}
	return b, err
}

// several makes one subject of n processes.
func (b *bench) several(ctx context.Context, name string, n int, one func(name string) (*subject, error)) (*subject, error) {
	out := &subject{name: name}
	for i := range n {
		s, err := one(fmt.Sprint(name, " ", i))
		if err != nil {
			return nil, err
		}
		out.addresses, out.metrics, out.debug, out.pids = append(out.addresses, s.addresses...), append(out.metrics, s.metrics...), append(out.debug, s.debug...), append(out.pids, s.pids...)
	}
	return out, out.dial(ctx)
}

// keepBusy starts n processes that want a processor each.
func (b *bench) keepBusy(n int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range n {
		if _, _, err := b.start(fmt.Sprint("busy", i), []string{kindVariable + "=" + busyKind, "GOMAXPROCS=1"}, program); err != nil {
			return err
		}
	}
	return nil
}

// runBeside measures, and reports whether all budgets are kept.
func runBeside(ctx context.Context, rounds, calls, busy int, others []string) (bool, error) {
	if rounds < 1 || calls < 100 || busy < 0 {
		return false, errors.New("want at least one round, 100 calls, and no negative number of busy programs")
	}
	dir, err := os.MkdirTemp("", "sluice-cost")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	b, err := openBeside(ctx, dir, others)
	if err != nil {
		return false, err
	}
	defer b.close()
	if err := b.keepBusy(busy); err != nil {
		return false, err
	}
	kept := true
	for _, l := range besideLoads(busy) {
		t, err := b.beside(ctx, &l, rounds, calls)
		if err != nil {
			return false, err
		}
		t.printSystem()
		kept = t.besideBudgets(&l, busy) && kept
	}
	return kept, nil
}

// beside measures all subjects under a load, by turns.
func (b *sharedBench) beside(ctx context.Context, l *load, rounds, calls int) (*sharedTable, error) {
	t := &sharedTable{name: l.text(), list: b.subjects, costs: map[*subject][]turnCost{}}
	n := calls
	if l.seconds > 0 {
		n = l.seconds * besideRate
	}
	for round := range rounds + 1 {
		for _, i := range rand.Perm(len(b.subjects)) {
			s := b.subjects[i]
			var counting *counting
			cost, err := b.counted(ctx, s, &l.workload, l.requestsOf(s, n, round == 0), func(list []request) (err error) {
				if counting, err = countingOf(s); err != nil { // that of the calls that warm up is dropped
					return err
				}
				if l.saturated {
					_, err = s.measure(ctx, len(list), inFlight, list)
				} else {
					_, err = s.offered(ctx, list, besideRate)
				}
				return errors.Join(err, counting.end())
			})
			if err != nil {
				return nil, err
			}
			decisions := float64(n - n/4)
			cost.systemCalls, cost.switches = counting.systemCalls/decisions, counting.switches/decisions
			if round > 0 { // the first one warms up
				t.costs[s] = append(t.costs[s], cost)
			}
		}
	}
	return t, b.goroutines(ctx, t, l, n)
}

// goroutines measures how often goroutines begin to run, in one turn of each subject. To trace them costs, so that nothing else is measured
// meanwhile.
func (b *sharedBench) goroutines(ctx context.Context, t *sharedTable, l *load, n int) error {
	t.goroutines = map[*subject]float64{}
	for _, s := range b.subjects {
		if len(s.debug) == 0 {
			continue
		}
		list := l.requestsOf(s, min(n, 2*besideRate), false)
		ended := make(chan error, 1)
		went := 0.0
		go func() {
			var err error
			went, err = s.goroutineStarts()
			ended <- err
		}()
		_, err := s.offered(ctx, list, besideRate)
		if err := errors.Join(err, <-ended); err != nil {
			return err
		}
		t.goroutines[s] = went * float64(len(s.pids)) / (besideRate * traced.Seconds())
	}
	return nil
}

// printSystem prints the table of this mode.
func (t *sharedTable) printSystem() {
	fmt.Printf("\n%s, for each decision, %s, %d processors\n", t.name, time.Now().UTC().Format(time.DateTime), runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "server\tµs of the service\tleast\tcalls of the system\tswitches\tgoroutines\tµs of Redis\tcommands run\tsent\twithout Redis, %\t")
	for _, s := range t.list {
		least := t.costs[s][0].service
		for _, c := range t.costs[s] {
			least = min(least, c.service)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.3f\t%.3f\t%.2f\t\n", s.name, t.median(s, service), least,
			t.median(s, func(c turnCost) float64 { return c.systemCalls }), t.median(s, func(c turnCost) float64 { return c.switches }), t.goroutines[s],
			t.median(s, redis), t.median(s, commands), t.median(s, sent), t.median(s, without))
	}
	_ = w.Flush()
}

var besideMost = map[string]float64{coldName: 0.5, hotName: 0.3}

// besideBudgets says which budgets are kept.
func (t *sharedTable) besideBudgets(l *load, busy int) bool {
	byName := named(t.list)
	us, them := byName[sluiceName], byName[upstreamService]
	if busy > 0 {
		judged := 1 - t.median(us, without)/100
		return verdict(judged >= judgedLeast, fmt.Sprintf("%s, with %d busy programs: judged by Redis within the budget, at least %.2f", t.name, busy, judgedLeast), judged)
	}
	kept := true
	if most, ok := besideMost[l.name]; ok {
		got := t.ratio(us, them, service)
		kept = verdict(got <= most, fmt.Sprintf("%s, %s beside %s: processor time of the service, at most %.2f", t.name, us.name, them.name, most), got)
	}
	most := 1.05 // of cold calls; what the processes ask once a second is the rest
	if l.name != coldName {
		most = 0.3
	}
	return verdict(t.median(us, sent) <= most, fmt.Sprintf("%s: commands sent a decision, at most %.2f", t.name, most), t.median(us, sent)) && kept
}
