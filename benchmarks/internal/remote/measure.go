package remote

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Workload is callers and their keys.
type Workload struct {
	Name     string
	Callers  int
	Keys     int
	Replicas int     // limiters that share the limit, each with a client of its own; the callers are spread over them
	Denied   bool    // the limit has been spent
	Load     float64 // the part of the limit that is asked for; 0: as fast as the callers can
	Procs    int     // GOMAXPROCS of the callers; 0: as it is
}

// Workloads returns all of them.
func Workloads() []Workload {
	return []Workload{
		{Name: "1 caller, 1 key", Callers: 1, Keys: 1, Replicas: 1},
		{Name: "1 caller, 10,000 keys", Callers: 1, Keys: 10_000, Replicas: 1},
		{Name: "1 caller, 1 key, GOMAXPROCS=1", Callers: 1, Keys: 1, Replicas: 1, Procs: 1},
		{Name: "1 caller, 10,000 keys, GOMAXPROCS=1", Callers: 1, Keys: 10_000, Replicas: 1, Procs: 1},
		{Name: "128 callers, 1 key", Callers: 128, Keys: 1, Replicas: 1},
		{Name: "128 callers, 10,000 keys", Callers: 128, Keys: 10_000, Replicas: 1},
		{Name: "128 callers, 1 key, denied", Callers: 128, Keys: 1, Replicas: 1, Denied: true},
		{Name: "8 replicas of 16 callers, 1 key", Callers: 128, Keys: 1, Replicas: 8},
		{Name: "8 replicas of 16 callers, 1 key, 0.95 of 20,000 per 2 s", Callers: 128, Keys: 1, Replicas: 8, Load: 0.95},
	}
}

// limit is one that is never spent, one that a single call spends, or one that is nearly
// asked for.
func (w Workload) limit() Limit {
	switch {
	case w.Denied:
		return Limit{1, time.Hour}
	case w.Load > 0:
		return Limit{20_000, 2 * time.Second}
	}
	return Limit{60_000_000, time.Minute}
}

// pause is the time between two calls of a caller.
func (w Workload) pause() time.Duration {
	if w.Load == 0 {
		return 0
	}
	l := w.limit()
	return time.Duration(float64(l.Period) * float64(w.Callers) / (float64(l.Units) * w.Load))
}

// A Sample is a subject under a workload for a while.
type Sample struct {
	Workload, Subject string

	PerSecond float64       // decisions
	P50, P99  time.Duration // of a call
	CPU       time.Duration // of Redis, a decision
	Script    time.Duration // that Redis spends in a call of the script
	Scripts   float64       // calls of the script, a decision
	Commands  float64       // that Redis runs, in scripts too, a decision
	Admitted  float64       // of the decisions
}

// Config is how much is measured.
type Config struct {
	Rounds int
	Sample time.Duration
	Log    func(format string, args ...any)
}

// Run measures all subjects under all workloads, in turns: in each round each of them once, in
// an order that is drawn, so that nobody always follows the same one.
func Run(ctx context.Context, c Config, s *Server) ([]Sample, error) {
	var samples []Sample
	for _, w := range Workloads() {
		c.Log("%s", w.Name)
		more, err := c.under(ctx, w, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		samples = append(samples, more...)
	}
	return samples, nil
}

// under measures all subjects under a workload.
func (c Config) under(ctx context.Context, w Workload, s *Server) ([]Sample, error) {
	keys := make([]string, w.Keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", i)
	}
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	subjects := Subjects(w)
	calls := make([]calls, len(subjects))
	for i, subject := range subjects {
		takes := make([]Take, w.Replicas)
		for j := range takes {
			take, end, err := subject.New(s.Addr, w.limit(), w.Replicas)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subject.Name, err)
			}
			defer end()
			takes[j] = take
		}
		calls[i] = w.of(takes, keys)
		if _, err := calls[i](ctx, c.Sample/10); err != nil { // connections, scripts, the one unit
			return nil, fmt.Errorf("%s: %w", subject.Name, err)
		}
	}
	var samples []Sample
	order := rand.New(rand.NewPCG(1, 2)) // the same in every run
	for range c.Rounds {
		for _, i := range order.Perm(len(subjects)) {
			sample, err := measure(ctx, s, calls[i], c.Sample)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[i].Name, err)
			}
			sample.Workload, sample.Subject = w.Name, subjects[i].Name
			samples = append(samples, sample)
		}
	}
	return samples, nil
}

// calls calls limiters for a while. An error is one of a call, or a decision that there cannot
// have been.
type calls func(ctx context.Context, d time.Duration) (*outcome, error)

// An outcome is the result of calls.
type outcome struct {
	took     *hdrhistogram.Histogram // each of them
	admitted int
	all      time.Duration
}

func newOutcome() *outcome { return &outcome{took: hdrhistogram.New(1, int64(time.Minute), 3)} }

// of returns the calls of a workload. Each caller goes through the keys, from one of its own on.
func (w Workload) of(takes []Take, keys []string) calls {
	spent := !w.Denied
	return func(ctx context.Context, d time.Duration) (*outcome, error) {
		if !spent {
			if _, err := takes[0](ctx, keys[0]); err != nil {
				return nil, err
			}
			spent = true
		}
		if w.Procs > 0 {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(w.Procs))
		}
		var group sync.WaitGroup
		var mu sync.Mutex
		all, failure := newOutcome(), error(nil)
		start := time.Now()
		for caller := range w.Callers {
			group.Go(func() {
				o, err := w.until(ctx, start.Add(d), takes[caller%len(takes)], keys, caller)
				mu.Lock()
				defer mu.Unlock()
				all.took.Merge(o.took)
				all.admitted += o.admitted
				if err != nil {
					failure = err
				}
			})
		}
		group.Wait()
		all.all = time.Since(start)
		return all, failure
	}
}

// until is one caller. It makes one call at least, or a sample on a busy machine could be
// of none.
func (w Workload) until(ctx context.Context, end time.Time, take Take, keys []string, caller int) (*outcome, error) {
	o, pause := newOutcome(), w.pause()
	next := time.Now().Add(pause * time.Duration(caller) / time.Duration(w.Callers))
	for i := caller * len(keys) / w.Callers; ; i++ {
		if pause > 0 {
			time.Sleep(time.Until(next))
			next = next.Add(pause)
		}
		before := time.Now()
		allowed, err := take(ctx, keys[i%len(keys)])
		if err != nil {
			return o, err
		}
		if allowed == w.Denied && w.Load == 0 {
			return o, fmt.Errorf("allowed=%v, where %v was to be", allowed, !w.Denied)
		}
		after := time.Now()
		if err := o.took.RecordValue(max(1, int64(after.Sub(before)))); err != nil {
			return o, err
		}
		if allowed {
			o.admitted++
		}
		if !after.Before(end) {
			return o, ctx.Err()
		}
	}
}

func measure(ctx context.Context, s *Server, call calls, d time.Duration) (sample Sample, err error) {
	before, err := s.usage(ctx)
	if err != nil {
		return sample, err
	}
	o, err := call(ctx, d)
	if err != nil {
		return sample, err
	}
	after, err := s.usage(ctx)
	if err != nil {
		return sample, err
	}
	n, used := o.took.TotalCount(), after.since(before)
	return Sample{
		PerSecond: float64(n) / o.all.Seconds(),
		P50:       time.Duration(o.took.ValueAtQuantile(50)),
		P99:       time.Duration(o.took.ValueAtQuantile(99)),
		CPU:       used.cpu / time.Duration(n),
		Script:    used.script / time.Duration(max(used.scripts, 1)),
		Scripts:   float64(used.scripts) / float64(n),
		Commands:  float64(used.commands) / float64(n),
		Admitted:  float64(o.admitted) / float64(n),
	}, nil
}
