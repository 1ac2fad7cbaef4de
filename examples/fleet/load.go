package main

import (
	"context"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	callers  = 8                      // of each replica
	patience = 350 * time.Millisecond // of a caller, so that a call is in two seconds at most
)

// load is calls, as many a second whatever becomes of them.
type load struct {
	fleet  *fleet
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu     sync.Mutex
	counts map[int64]*counts // by the second in which calls were sent
}

// counts are the calls that were sent within a second, by replica.
type counts struct {
	sure   [replicas]int // admitted, and answered within that second
	across [replicas]int // admitted, and answered in the next one: decided in one of the two
	denied int
	failed int // calls without an answer
}

func newLoad(f *fleet) *load {
	l := &load{fleet: f, counts: map[int64]*counts{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start makes calls from a time on.
func (l *load) start(begin time.Time) {
	const pause = time.Second * replicas * callers / offered
	for n := range replicas * callers {
		l.all.Go(func() {
			if until(l.ctx, begin.Add(pause*time.Duration(n)/(replicas*callers))) != nil {
				return
			}
			ticks := time.NewTicker(pause)
			defer ticks.Stop()
			for l.ctx.Err() == nil {
				l.call(n % replicas)
				select {
				case <-ticks.C:
				case <-l.ctx.Done():
				}
			}
		})
	}
}

// stop ends the calls.
func (l *load) stop() {
	l.cancel()
	l.all.Wait()
}

// The one key that all calls are for.
var request = &pb.RateLimitRequest{Domain: "fleet", Descriptors: []*common.RateLimitDescriptor{
	{Entries: []*common.RateLimitDescriptor_Entry{{Key: "service", Value: "search"}}},
}}

// call asks a replica once, if it runs.
func (l *load) call(replica int) {
	client := l.fleet.replicas[replica].client.Load()
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	sent := time.Now().Unix()
	resp, err := (*client).ShouldRateLimit(ctx, request)
	back := time.Now().Unix()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[sent]
	if c == nil {
		c = &counts{}
		l.counts[sent] = c
	}
	switch {
	case err != nil:
		c.failed++
	case resp.OverallCode != pb.RateLimitResponse_OK:
		c.denied++
	case back == sent:
		c.sure[replica]++
	default:
		c.across[replica]++
	}
}

// take returns the counts of a second, and forgets them.
func (l *load) take(second int64) counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[second]
	delete(l.counts, second)
	if c == nil {
		return counts{}
	}
	return *c
}
