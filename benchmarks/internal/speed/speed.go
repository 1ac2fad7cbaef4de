// Package speed measures how long a call takes: every subject under every
// workload, in turns, with the outcome of every call checked.
package speed

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
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

// scalingSubjects are sluice under each clock, what one would write oneself, what most
// people use, and the fastest libraries with few keys and with many.
var scalingSubjects = []string{
	"sluice GCRA", "sluice GCRA, fast clock", "sluice GCRA, coarse clock", "30 lines on xsync",
	"x/time/rate in xsync", "failsafe-go in xsync", "throttled", "sethvargo/go-limiter",
}

// ScalingSubjects picks the subjects that Scaling is meant for.
func ScalingSubjects(all []peers.Subject) []peers.Subject {
	return slices.DeleteFunc(slices.Clone(all), func(s peers.Subject) bool { return !slices.Contains(scalingSubjects, s.Name) })
}

const (
	perRound = 25 // samples of a row; see samplesOf
	// fewKeys are shown to a new limiter for each sample. Up to manyKeys a limiter is kept for
	// the round, and all subjects hold about 2.6 GB then; perVisit samples are taken in a turn, after a
	// warm-up of perKept samples.
	fewKeys  = 1000
	manyKeys = 1_000_000
	perVisit = 5
	perKept  = 8
)

// Run measures all subjects and returns a row for each one, workload and mode that
// do not exclude each other.
//
// Within a round the subjects take turns, workload by workload, in an order that is
// drawn anew each time, so that nobody always follows the same one. A turn is about one
// sample of each row, or a few of one row where others have taken the cache meanwhile, so
// that a machine that is slow for a second is slow for all subjects. Only where a limiter is
// used up by a sample, or holds more keys than all subjects could at once, it is about
// all samples of the round, and no other limiter exists at that time. Workloads of the
// same population, like the two of a million keys, share a limiter.
//
// Run stops at the first sample whose outcome is not as declared. log may be nil.
func Run(ctx context.Context, c Config, subjects []peers.Subject, log func(format string, args ...any)) ([]results.Speed, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	r := runner{
		config: c.withDefaults(), order: rand.New(rand.NewPCG(1, 2)), // the same in every run
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
	switch n := g[0].PopulationLen; {
	case g[0].Unique || n > manyKeys:
		return r.passes(ctx, subjects, g, perRound)
	case n > fewKeys:
		return r.passesOfKept(ctx, subjects, g)
	}
	return r.passes(ctx, subjects, g, 1)
}

// passes takes so many samples of each row in a turn.
func (r *runner) passes(ctx context.Context, subjects []peers.Subject, g []workload.Workload, each int) error {
	for r.first = 0; r.first < perRound; r.first += each {
		r.end = r.first + each
		if err := r.pass(ctx, subjects, g, r.config.Modes); err != nil {
			return err
		}
	}
	return nil
}

// passesOfKept makes all limiters first, which takes longer than all turns, and goes row by
// row, so that the turns of one are close to each other.
func (r *runner) passesOfKept(ctx context.Context, subjects []peers.Subject, g []workload.Workload) error {
	r.kept = map[string]*instance{}
	defer r.closeKept()
	r.first, r.end = 0, 0
	if err := r.pass(ctx, subjects, g, r.config.Modes); err != nil {
		return err
	}
	freshMemory()
	for r.first = 0; r.first < perRound; r.first += perVisit {
		r.end = r.first + perVisit
		for i := range g {
			for j := range r.config.Modes {
				if err := r.pass(ctx, subjects, g[i:i+1], r.config.Modes[j:j+1]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pass gives every subject a turn.
func (r *runner) pass(ctx context.Context, subjects []peers.Subject, g []workload.Workload, modes []Mode) error {
	for _, i := range r.order.Perm(len(subjects)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.visit(subjects[i], g, modes); err != nil {
			return err
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

// An instance is a limiter and how many units it has been asked for, its population aside.
type instance struct {
	peers.Limiter
	units int
}

type runner struct {
	config     Config
	order      *rand.Rand
	round      int
	first, end int                  // the samples of the round that a turn is about
	kept       map[string]*instance // by subjects, from one turn to the next; nil: none is
	rows       map[row]*results.Speed
	calls      map[row]int // of a sample
}

// visit is the turn of one subject under workloads of a group.
func (r *runner) visit(s peers.Subject, g []workload.Workload, modes []Mode) error {
	l := r.kept[s.Name]
	done := func() {
		if l == nil || r.kept != nil {
			return
		}
		l.Close()
		l = nil
		if r.end-r.first > 1 {
			freshMemory()
		}
	}
	defer done()
	for _, w := range g {
		for _, m := range modes {
			if Excludes(s, w, m) != "" || r.first >= samplesOf(w, m) {
				continue
			}
			if l == nil {
				made, err := Prepare(s, w)
				if err != nil {
					return err
				}
				l = &instance{Limiter: made}
				if r.kept != nil {
					r.kept[s.Name] = l
				}
			}
			if err := r.samples(l, s, w, m); err != nil {
				return err
			}
			if w.Unique {
				done()
			}
		}
	}
	return nil
}

func (r *runner) closeKept() {
	for _, l := range r.kept {
		l.Close()
	}
	r.kept = nil
	freshMemory()
}

// freshMemory lets the next limiter start with no garbage to collect, and with memory that
// is as new to the process as any other's. One of few keys needs neither.
func freshMemory() { debug.FreeOSMemory() }

// spend counts the calls of a workload whose limit must not be spent. That they
// would be denied is known only to those limiters that keep their limit.
func (l *instance) spend(s peers.Subject, w workload.Workload, calls int) error {
	l.units += calls
	if w.AdmitRatio == 1 && !w.Unique && l.units > w.Options.Burst {
		return fmt.Errorf("%s, %s: %d calls are more than the %d units of the limit: take shorter samples", s.Name, w.Name, l.units, w.Options.Burst)
	}
	return nil
}

// samples takes the turn's samples of one row.
func (r *runner) samples(l *instance, s peers.Subject, w workload.Workload, m Mode) error {
	id := row{s.Name, w.Name, m.Name}
	if r.rows[id] == nil {
		r.rows[id] = &results.Speed{Subject: s.Name, Workload: w.Name, Mode: m.Name, Keys: w.Keys}
	}
	end, mode := min(r.end, samplesOf(w, m)), slices.Index(r.config.Modes, m)
	for i := r.first; i < end; i++ {
		calls, from := w.Calls.Len(), 0
		if !w.Unique {
			// The same calls for all subjects, new calls for the next sample.
			from = ((r.round*perRound+i)*len(r.config.Modes) + mode) * 100_003
			var err error
			if calls, err = r.warm(l, s, w, m, id, from, i == r.first); err != nil {
				return err
			}
		}
		if err := l.spend(s, w, calls); err != nil {
			return err
		}
		take := sample
		if i == end-1 && (r.kept == nil || r.end == perRound) {
			take = Sample
		}
		d, err := take(l.Limiter, s, w, m, from, calls)
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

// warm makes the calls that come before a sample's, to bring the caches into
// the state of a limiter in use: an eighth as many, but perKept times as many where others
// have used the caches since. In the first round it also finds out how many calls
// a sample takes; the later rounds take as many.
func (r *runner) warm(l *instance, s peers.Subject, w workload.Workload, m Mode, id row, from int, first bool) (int, error) {
	if calls, ok := r.calls[id]; ok {
		n := calls / 8
		if first && r.kept != nil {
			n = perKept * calls
		}
		if err := l.spend(s, w, n); err != nil {
			return 0, err
		}
		_, err := sample(l.Limiter, s, w, m, from-n, n)
		return calls, err
	}
	want := r.config.Round / time.Duration(samplesOf(w, m))
	for calls := 1024; ; calls *= 2 {
		if err := l.spend(s, w, calls); err != nil {
			return 0, err
		}
		d, err := sample(l.Limiter, s, w, m, from-calls, calls)
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
