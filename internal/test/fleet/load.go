package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A Call is one call of a service: decided at some time between Sent and Back.
type Call struct {
	Key, Value string
	Sent, Back time.Time
	Admitted   bool
	Err        error
}

// Took is how long the caller has waited.
func (c *Call) Took() time.Duration { return c.Back.Sub(c.Sent) }

// A Load is open-loop: calls start on schedule.
type Load struct {
	Rate int                             // calls a second
	Next func(i int) (key, value string) // of call i
}

// workers is how many callers wait at once.
const workers = 32

// request is a call for one entry, of one hit.
func request(key, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "fleet", Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

// Until loads the services in turns until a time, and returns all calls.
func (l *Load) Until(services []*Service, end time.Time) []Call {
	began := time.Now()
	return l.While(services, func(now time.Time) bool { return now.Before(end) }, began)
}

// While is Until, as long as on says so of a due time. The first call is due at began.
func (l *Load) While(services []*Service, on func(time.Time) bool, began time.Time) []Call {
	var next atomic.Int64
	parts := make([][]Call, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				due := began.Add(time.Duration(i) * time.Second / time.Duration(l.Rate))
				if !on(due) {
					return
				}
				time.Sleep(time.Until(due))
				if !on(time.Now()) {
					return
				}
				key, value := l.Next(i)
				parts[w] = append(parts[w], call(services[i%len(services)], key, value))
			}
		})
	}
	wg.Wait()
	var all []Call
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func call(s *Service, key, value string) Call {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := Call{Key: key, Value: value, Sent: time.Now().Round(0)}
	c.Admitted, c.Err = s.ask(ctx, request(key, value))
	c.Back = time.Now().Round(0)
	return c
}

// Warm makes a call of each service for a key without a limit, so that a load does not wait for connections.
func (f *Fleet) Warm() {
	for _, s := range f.Services {
		call(s, "nothing", "")
	}
}

// Of returns the calls for a key and value. An empty value is any.
func Of(calls []Call, key, value string) (out []Call) {
	for _, c := range calls {
		if c.Key == key && (value == "" || c.Value == value) {
			out = append(out, c)
		}
	}
	return out
}

// Admitted counts the calls that were.
func Admitted(calls []Call) (n int) {
	for i := range calls {
		if calls[i].Admitted {
			n++
		}
	}
	return n
}

// Errors counts the calls that failed, and returns the first error.
func Errors(calls []Call) (n int, first error) {
	for i := range calls {
		if calls[i].Err != nil {
			if n++; first == nil {
				first = calls[i].Err
			}
		}
	}
	return n, first
}

// Longest is how long the slowest answer took, and the one that 1 % are slower than.
func Longest(calls []Call) (longest, p99 time.Duration) {
	took := make([]time.Duration, len(calls))
	for i := range calls {
		took[i] = calls[i].Took()
	}
	if len(took) == 0 {
		return 0, 0
	}
	sortDurations(took)
	return took[len(took)-1], took[len(took)*99/100]
}
