// Package speed measures how long a call takes: every subject under every
// workload, in turns, with the outcome of every call checked.
package speed

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// Config says how much to measure. Zero fields have defaults.
type Config struct {
	Rounds    int                 // 0: 5
	Round     time.Duration       // about how long a row is sampled in a round; 0: 80 ms
	Modes     []Mode              // nil: Modes()
	Workloads []workload.Workload // nil: workload.All(workload.Full())
}

func (c Config) withDefaults() Config {
	if c.Rounds == 0 {
		c.Rounds = 5
	}
	if c.Round == 0 {
		c.Round = 80 * time.Millisecond
	}
	if c.Modes == nil {
		c.Modes = Modes()
	}
	if c.Workloads == nil {
		c.Workloads = workload.All(workload.Full())
	}
	return c
}

// Scaling returns the configuration for the cost over the number of keys, from
// 10^3 to the given number, at most 10^7.
func Scaling(maxKeys int) Config {
	c := Config{Modes: Modes()[:1]}
	for keys := 1000; keys <= min(maxKeys, 1e7); keys *= 10 {
		c.Workloads = append(c.Workloads, workload.Uniform(keys))
	}
	return c
}

// ScalingSubjects picks those of the subjects that Scaling is meant for: sluice
// under each clock, what one would write oneself, what most people use, and the
// fastest libraries that remember every key.
func ScalingSubjects(all []peers.Subject) []peers.Subject {
	var picked []peers.Subject
	for _, s := range all {
		switch s.Name {
		case "sluice GCRA", "sluice GCRA, fast clock", "sluice GCRA, coarse clock", "30 lines on xsync",
			"x/time/rate in sync.Map", "failsafe-go in xsync", "throttled":
			picked = append(picked, s)
		}
	}
	return picked
}

const (
	perRound = 25   // samples of a row; see samplesOf
	fewKeys  = 1000 // are shown to a new limiter for each of them
)

// Run measures all subjects and returns a row for each one, workload and mode that
// do not exclude each other.
//
// Within a round the subjects take turns, workload by workload, in an order that is
// drawn anew each time, so that nobody always follows the same one. A turn is about one
// sample of each row, so that a machine that is slow for a second is slow for all
// subjects. Only where a limiter must be shown many keys first, it is about all samples
// of the round. Workloads of the same population, like the two of a million keys, are
// sampled one after the other in all modes while one limiter holds that population; no
// other limiter exists at that time.
//
// Run stops at the first sample whose outcome is not as declared. log may be nil.
func Run(ctx context.Context, c Config, subjects []peers.Subject, log func(format string, args ...any)) ([]results.Speed, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	r := runner{
		config: c.withDefaults(), order: rand.New(rand.NewPCG(3, 4)), // the same in every run
		rows: map[row]*results.Speed{}, calls: map[row]int{},
	}
	for round := range r.config.Rounds {
		r.round = round
		for _, g := range group(r.config.Workloads) {
			start := time.Now()
			if err := r.turns(ctx, subjects, g); err != nil {
				return nil, err
			}
			log("round %d of %d: %s took %v", round+1, r.config.Rounds, names(g), time.Since(start).Round(time.Millisecond))
		}
	}
	return r.results(subjects), nil
}

// turns takes the round's samples of a group of workloads.
func (r *runner) turns(ctx context.Context, subjects []peers.Subject, g []workload.Workload) error {
	each := perRound // samples of a row in a turn
	if g[0].PopulationLen <= fewKeys && !g[0].Unique {
		each = 1
	}
	for r.first = 0; r.first < perRound; r.first += each {
		r.end = r.first + each
		for _, i := range r.order.Perm(len(subjects)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.visit(subjects[i], g); err != nil {
				return err
			}
		}
	}
	return nil
}

// group puts workloads together that one limiter can serve.
func group(all []workload.Workload) [][]workload.Workload {
	var groups [][]workload.Workload
	for i, w := range all {
		if i > 0 && !w.Unique && w.Options == all[i-1].Options && w.Population == all[i-1].Population {
			last := len(groups) - 1
			groups[last] = append(groups[last], w)
			continue
		}
		groups = append(groups, []workload.Workload{w})
	}
	return groups
}

func names(g []workload.Workload) string {
	s := g[0].Name
	for _, w := range g[1:] {
		s += ", " + w.Name
	}
	return s
}

type row struct{ subject, workload, mode string }

type runner struct {
	config     Config
	order      *rand.Rand
	round      int
	first, end int // the samples of the round that a turn is about
	units      int // that the current limiter has been asked for, its population aside
	rows       map[row]*results.Speed
	calls      map[row]int // of a sample
}

// visit is the turn of one subject under the workloads of a group.
func (r *runner) visit(s peers.Subject, g []workload.Workload) error {
	var l peers.Limiter
	done := func() {
		if l == nil {
			return
		}
		l.Close()
		l = nil
		if r.end-r.first > 1 {
			// The next limiter starts with no garbage to collect, and with memory that is
			// as new to the process as any other's. One of few keys needs neither.
			debug.FreeOSMemory()
		}
	}
	defer done()
	for _, w := range g {
		for i, m := range r.config.Modes {
			if Excludes(s, w, m) != "" || r.first >= samplesOf(w, m) {
				continue
			}
			if l == nil {
				var err error
				if l, err = Prepare(s, w); err != nil {
					return err
				}
				r.units = 0
			}
			if err := r.samples(l, s, w, m, i); err != nil {
				return err
			}
			if w.Unique {
				done()
			}
		}
	}
	return nil
}

// spend counts the calls of a workload whose limit must not be spent. That they
// would be denied is known only to those limiters that keep their limit.
func (r *runner) spend(s peers.Subject, w workload.Workload, calls int) error {
	r.units += calls
	if w.AdmitRatio == 1 && !w.Unique && r.units > w.Options.Burst {
		return fmt.Errorf("%s, %s: %d calls are more than the %d units of the limit: take shorter samples", s.Name, w.Name, r.units, w.Options.Burst)
	}
	return nil
}

// samples takes the turn's samples of one row.
func (r *runner) samples(l peers.Limiter, s peers.Subject, w workload.Workload, m Mode, mode int) error {
	id := row{s.Name, w.Name, m.Name}
	if r.rows[id] == nil {
		r.rows[id] = &results.Speed{Subject: s.Name, Workload: w.Name, Mode: m.Name, Keys: w.Keys}
	}
	end := min(r.end, samplesOf(w, m))
	for i := r.first; i < end; i++ {
		calls, from := w.Calls.Len(), 0
		if !w.Unique {
			// The same calls for all subjects, others for the next sample.
			from = ((r.round*perRound+i)*len(r.config.Modes) + mode) * 100_003
			var err error
			if calls, err = r.warm(l, s, w, m, id, from); err != nil {
				return err
			}
		}
		if err := r.spend(s, w, calls); err != nil {
			return err
		}
		take := sample
		if i == end-1 {
			take = Sample
		}
		d, err := take(l, s, w, m, from, calls)
		if err != nil {
			return err
		}
		// Hundredths are more than anybody reads.
		r.rows[id].Samples = append(r.rows[id].Samples, math.Round(100*float64(d)/float64(calls))/100)
	}
	return nil
}

// samplesOf returns how many samples of a row there are in a round: one if it is a pass over all
// calls, or of goroutines that share a processor, as these take turns every 10 ms.
func samplesOf(w workload.Workload, m Mode) int {
	if w.Unique || m.Procs == 1 {
		return 1
	}
	return perRound
}

// warm makes the calls that come before those of a sample, to bring the caches into
// the state of a limiter in use. In the first round it also finds out how many calls
// a sample takes; the later rounds take as many.
func (r *runner) warm(l peers.Limiter, s peers.Subject, w workload.Workload, m Mode, id row, from int) (int, error) {
	if calls, ok := r.calls[id]; ok {
		if err := r.spend(s, w, calls/8); err != nil {
			return 0, err
		}
		_, err := sample(l, s, w, m, from-calls/8, calls/8)
		return calls, err
	}
	want := r.config.Round / time.Duration(samplesOf(w, m))
	for calls := 1024; ; calls *= 2 {
		if err := r.spend(s, w, calls); err != nil {
			return 0, err
		}
		d, err := sample(l, s, w, m, from-calls, calls)
		if err != nil {
			return 0, err
		}
		if d >= want/8 {
			r.calls[id] = max(1, int(float64(calls)*float64(want)/float64(d)))
			return r.calls[id], nil
		}
	}
}

// results returns the rows by workload and mode, and within them in the order of
// the subjects.
func (r *runner) results(subjects []peers.Subject) []results.Speed {
	var all []results.Speed
	for _, w := range r.config.Workloads {
		for _, m := range r.config.Modes {
			for _, s := range subjects {
				if res := r.rows[row{s.Name, w.Name, m.Name}]; res != nil {
					all = append(all, *res)
				}
			}
		}
	}
	return all
}

// Missing says for each row that Run leaves out why it does.
func (c Config) Missing(subjects []peers.Subject) []results.Omission {
	c = c.withDefaults()
	var missing []results.Omission
	for _, w := range c.Workloads {
		for _, m := range c.Modes {
			for _, s := range subjects {
				if why := Excludes(s, w, m); why != "" {
					missing = append(missing, results.Omission{Measurement: "speed, " + w.Name + ", " + m.Name, Subject: s.Name, Reason: why})
				}
			}
		}
	}
	return missing
}
