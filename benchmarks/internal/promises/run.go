package promises

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/limittest"
)

// Config says how long and how often.
type Config struct {
	Rounds int           // how often each subject meets each situation
	Span   time.Duration // how long a pattern takes; goroutines that meet take three times as long, and the high rate a sixth
	Seed   uint64
	Log    func(format string, args ...any)
}

// A Result is the outcome of a subject.
type Result struct {
	Subject, Module string
	Says, Most      string
	Runs            int    // how many situations it was in, over all rounds
	Admitted        uint64 // units in all of them

	// Broken is in how many of the runs the promise was broken, and in which situations. Smallest is the counterexample
	// with the fewest units.
	Broken     int
	Situations []string
	Smallest   *Counterexample
}

// A Counterexample is a span in which more was admitted than promised, wherever in its time each call was judged.
type Counterexample struct {
	Situation      string
	Limit          string
	Admitted, Most int
	Span           time.Duration
}

// A situation is a limit, and its traffic.
type situation struct {
	name  string
	limit peers.Options
	drive func(c Config, allow func(key string) bool, recorder *limittest.Recorder)
}

// The limits: one whose interval is whole, one whose is not, and one of 666 2/3 ns.
var (
	whole  = peers.Options{Rate: 10, Period: 20 * time.Millisecond, Burst: 10}
	uneven = peers.Options{Rate: 3, Period: 10 * time.Millisecond, Burst: 3}
	high   = peers.Options{Rate: 1500, Period: time.Millisecond, Burst: 500}
)

func limitOf(o peers.Options) sluice.Limit { return sluice.Per(o.Rate, o.Period).WithBurst(o.Burst) }

// patterns are limittest's, of three times as many units as the limit admits on average.
func patterns(o peers.Options) map[string]func(limittest.Traffic) iter.Seq[limittest.Arrival] {
	return map[string]func(limittest.Traffic) iter.Seq[limittest.Arrival]{
		"steady":   limittest.Traffic.Steady,
		"Poisson":  limittest.Traffic.Poisson,
		"bursty":   func(t limittest.Traffic) iter.Seq[limittest.Arrival] { return t.Bursty(2 * o.Burst) },
		"boundary": func(t limittest.Traffic) iter.Seq[limittest.Arrival] { return t.Boundary(limitOf(o)) },
		"flood":    besideFlood,
		"diurnal":  func(t limittest.Traffic) iter.Seq[limittest.Arrival] { return t.Diurnal(5 * o.Period) },
		"ramp":     func(t limittest.Traffic) iter.Seq[limittest.Arrival] { return t.Ramp(5 * o.Period) },
	}
}

// besideFlood is a busy key among new ones.
func besideFlood(t limittest.Traffic) iter.Seq[limittest.Arrival] {
	t.Every /= 10
	return func(yield func(limittest.Arrival) bool) {
		n := 0
		for a := range t.Flood() {
			if n++; n%10 == 0 {
				a.Key = "busy"
			}
			if !yield(a) {
				return
			}
		}
	}
}

var patternNames = []string{"steady", "Poisson", "bursty", "boundary", "flood", "diurnal", "ramp"}

func situations() []situation {
	var all []situation
	for _, o := range []peers.Options{whole, uneven} {
		for _, name := range patternNames {
			pattern := patterns(o)[name]
			all = append(all, situation{name, o, func(c Config, allow func(string) bool, r *limittest.Recorder) {
				follow(c, pattern(limittest.Traffic{
					Seed: c.Seed, Start: time.Unix(0, clock.Now()).Add(time.Millisecond), Every: max(1, o.Period/time.Duration(3*o.Rate)),
				}), allow, r)
			}})
		}
		all = append(all, situation{"4 goroutines", o, func(c Config, allow func(string) bool, r *limittest.Recorder) {
			hammer(4, 3*c.Span, allow, r)
		}})
	}
	return append(all, situation{"one goroutine", high, func(c Config, allow func(string) bool, r *limittest.Recorder) {
		hammer(1, c.Span/6, allow, r)
	}})
}

// clock is of all arrivals and recorders: Unix time, by the monotonic clock.
var clock = sluice.SystemClock()

// follow makes the calls as they arrive, or late where a call takes long, for a span.
func follow(c Config, arrivals iter.Seq[limittest.Arrival], allow func(string) bool, r *limittest.Recorder) {
	end := clock.Now() + int64(c.Span)
	for a := range arrivals {
		now := clock.Now()
		for ; now < a.At && now < end; now = clock.Now() {
		}
		if now >= end {
			return
		}
		r.Call(a.Key, a.Cost, func() bool { return allow(a.Key) })
	}
}

// hammer has goroutines ask for one key as fast as they can, for a span.
func hammer(goroutines int, span time.Duration, allow func(string) bool, r *limittest.Recorder) {
	end := clock.Now() + int64(span)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for clock.Now() < end {
				r.Call("k", 1, func() bool { return allow("k") })
			}
		})
	}
	wg.Wait()
}

// Run drives the subjects through all situations, each in a new limiter.
func Run(ctx context.Context, c Config, subjects []Subject) ([]Result, error) {
	var all []Result
	for _, s := range subjects {
		r := Result{Subject: s.Name, Module: s.Module, Says: s.Says, Most: s.Most}
		for round := range c.Rounds {
			c := c
			c.Seed += uint64(round)
			for _, in := range situations() {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if err := r.meet(c, s, in); err != nil {
					return nil, fmt.Errorf("%s: %w", s.Name, err)
				}
			}
		}
		if r.Admitted == 0 {
			return nil, fmt.Errorf("%s: nothing was admitted", s.Name)
		}
		c.Log("%s: broken in %d of %d runs", s.Name, r.Broken, r.Runs)
		all = append(all, r)
	}
	return all, nil
}

// meet is one run.
func (r *Result) meet(c Config, s Subject, in situation) error {
	l, err := s.New(in.limit)
	if err != nil {
		return err
	}
	defer l.Close()
	recorder := limittest.NewRecorder(clock)
	in.drive(c, l.Allow, recorder)
	r.Runs++
	r.Admitted += recorder.Admitted()
	v, broken := recorder.Check(s.Promise(in.limit)).(*limittest.Violation)
	if !broken {
		return nil
	}
	r.Broken++
	limit := limitOf(in.limit).String()
	if name := in.name + ", " + limit; len(r.Situations) == 0 || r.Situations[len(r.Situations)-1] != name {
		r.Situations = append(r.Situations, name)
	}
	if r.Smallest == nil || v.Admitted < r.Smallest.Admitted {
		r.Smallest = &Counterexample{Situation: in.name, Limit: limit, Admitted: v.Admitted, Most: v.Most, Span: v.Span()}
	}
	return nil
}
