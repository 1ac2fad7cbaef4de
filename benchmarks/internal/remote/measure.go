package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Workload is who asks for what.
type Workload struct {
	Name    string
	Callers int
	Keys    int
	Denied  bool // the limit has been spent
}

// Workloads returns all of them.
func Workloads() []Workload {
	return []Workload{
		{"1 caller, 1 key", 1, 1, false},
		{"1 caller, 10,000 keys", 1, 10_000, false},
		{"128 callers, 1 key", 128, 1, false},
		{"128 callers, 10,000 keys", 128, 10_000, false},
		{"128 callers, 1 key, denied", 128, 1, true},
	}
}

// limit is one that is never spent, or one that a single call spends.
func (w Workload) limit() Limit {
	if w.Denied {
		return Limit{1, time.Hour}
	}
	return Limit{60_000_000, time.Minute}
}

// A Sample is a subject under a workload for a while.
type Sample struct {
	Workload, Subject string

	PerSecond float64       // decisions
	P50, P99  time.Duration // of a call
	CPU       time.Duration // of Redis, a decision
	Script    time.Duration // that Redis spends in a call of the script
	Commands  float64       // that Redis is sent, a decision
}

// Config is how much is measured.
type Config struct {
	Rounds int
	Sample time.Duration
	Log    func(format string, args ...any)
}

// Run measures all subjects under all workloads, in turns: in each round each of them once.
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
	subjects := Subjects()
	calls := make([]calls, len(subjects))
	for i, subject := range subjects {
		take, end, err := subject.New(s.Addr, w.limit())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", subject.Name, err)
		}
		defer end()
		calls[i] = take.of(w, keys)
		if _, _, err := calls[i](ctx, c.Sample/10); err != nil { // connections, scripts, the one unit
			return nil, fmt.Errorf("%s: %w", subject.Name, err)
		}
	}
	var samples []Sample
	for range c.Rounds {
		for i, subject := range subjects {
			sample, err := measure(ctx, s, calls[i], c.Sample)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subject.Name, err)
			}
			sample.Workload, sample.Subject = w.Name, subject.Name
			samples = append(samples, sample)
		}
	}
	return samples, nil
}

// calls calls a limiter for a while, and returns how long that was and how long each call
// took. An error is one of a call, or a decision that there cannot have been.
type calls func(ctx context.Context, d time.Duration) (*hdrhistogram.Histogram, time.Duration, error)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

// of returns the calls of a workload. Each caller goes through the keys, from one of its own on.
func (take Take) of(w Workload, keys []string) calls {
	spent := !w.Denied
	return func(ctx context.Context, d time.Duration) (*hdrhistogram.Histogram, time.Duration, error) {
		if !spent {
			if _, err := take(ctx, keys[0]); err != nil {
				return nil, 0, err
			}
			spent = true
		}
		var group sync.WaitGroup
		var mu sync.Mutex
		all, failure := newHistogram(), error(nil)
		start := time.Now()
		for caller := range w.Callers {
			group.Go(func() {
				h, err := take.until(ctx, start.Add(d), keys, caller*len(keys)/w.Callers, !w.Denied)
				mu.Lock()
				defer mu.Unlock()
				all.Merge(h)
				if err != nil {
					failure = err
				}
			})
		}
		group.Wait()
		return all, time.Since(start), failure
	}
}

// until is one caller. It makes one call at least, or a sample on a busy machine could be
// of none.
func (take Take) until(ctx context.Context, end time.Time, keys []string, i int, want bool) (*hdrhistogram.Histogram, error) {
	h := newHistogram()
	for before := time.Now(); ; i++ {
		allowed, err := take(ctx, keys[i%len(keys)])
		if err != nil {
			return h, err
		}
		if allowed != want {
			return h, fmt.Errorf("allowed=%v, where %v was to be", allowed, want)
		}
		after := time.Now()
		if err := h.RecordValue(max(1, int64(after.Sub(before)))); err != nil {
			return h, err
		}
		if before = after; !before.Before(end) {
			return h, ctx.Err()
		}
	}
}

func measure(ctx context.Context, s *Server, call calls, d time.Duration) (sample Sample, err error) {
	before, err := s.usage(ctx)
	if err != nil {
		return sample, err
	}
	h, took, err := call(ctx, d)
	if err != nil {
		return sample, err
	}
	after, err := s.usage(ctx)
	if err != nil {
		return sample, err
	}
	n, used := h.TotalCount(), after.since(before)
	return Sample{
		PerSecond: float64(n) / took.Seconds(),
		P50:       time.Duration(h.ValueAtQuantile(50)),
		P99:       time.Duration(h.ValueAtQuantile(99)),
		CPU:       used.cpu / time.Duration(n),
		Script:    used.script / time.Duration(max(used.scripts, 1)),
		Commands:  float64(used.commands) / float64(n),
	}, nil
}
