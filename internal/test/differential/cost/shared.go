//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// The shared mode: envoyproxy/ratelimit and `sluiced serve` count in one redis-server, by turns. A decision is a descriptor
// that has been answered. Measured are the processor time of the service, without Redis; that of Redis, the commands
// that it runs, the bytes that it reads and writes; and how long calls take that come at the same rate.

// sharedRules are a rule for each load.
var sharedRules = fmt.Sprintf(`domain: d
descriptors:
- {key: cold, rate_limit: {unit: minute, requests_per_unit: 600}}
- {key: hot, rate_limit: {unit: minute, requests_per_unit: 1000000}}
- {key: over, rate_limit: {unit: day, requests_per_unit: %d}}
- {key: zipf, rate_limit: {unit: minute, requests_per_unit: 1000000}}
`, overLimit)

const (
	overLimit = 10
	hotKeys   = 16
	zipfS     = 1.1
)

// A workload makes requests of a rule.
type workload struct {
	name        string
	key         string
	descriptors int
	over        bool // all calls are denied, once the limit is reached
	fresh       bool // into an empty Redis: its memory says what a key takes
	times       int  // as many calls as of other loads: leases have to grow
	value       func() string
}

func nameOf(key uint64) string { return fmt.Sprintf("client-%08d", key) }

// workloads are all of them.
func workloads() []workload {
	cold := uint64(0)
	newKey := func() string { cold++; return nameOf(cold) }
	hotKey := func() string { return nameOf(rand.Uint64N(hotKeys)) }
	zipf := func(keys uint64) func() string {
		z := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), zipfS, 1, keys-1)
		return func() string { return nameOf(z.Uint64()) }
	}
	return []workload{
		{name: coldName, key: "cold", descriptors: 1, fresh: true, value: newKey},
		{name: "cold, 4 descriptors", key: "cold", descriptors: 4, fresh: true, value: newKey},
		{name: hotName, key: "hot", descriptors: 1, value: hotKey},
		{name: "hot, 4 descriptors", key: "hot", descriptors: 4, value: hotKey},
		{name: overName, key: "over", descriptors: 1, over: true, value: hotKey},
		{name: zipfFewName, key: "zipf", descriptors: 1, times: 4, value: zipf(100)},
		{name: zipfName, key: "zipf", descriptors: 1, times: 4, value: zipf(10_000)},
	}
}

const (
	coldName    = "cold"
	hotName     = "hot"
	overName    = "over the limit"
	zipfName    = "zipf, 10,000 keys"
	zipfFewName = "zipf, 100 keys"
)

// requests are the next n; of a load that is over its limits, the first ones reach them.
func (w *workload) requests(n int, first bool) (out []request) {
	if w.over && first {
		for i := range hotKeys * (overLimit + 1) {
			out = append(out, newRequest(w.key, nameOf(uint64(i%hotKeys))))
		}
	}
	values := make([]string, w.descriptors)
	for range n {
		for j := range values {
			values[j] = w.value()
		}
		r := newRequest(w.key, values...)
		switch {
		case !w.over:
			r.code = pb.RateLimitResponse_OK
		case !first:
			r.code = pb.RateLimitResponse_OVER_LIMIT
		}
		out = append(out, r)
	}
	return out
}

// requestsOf is requests for a subject. The empty handler has no rules, so no answer of it is looked at.
func (w *workload) requestsOf(s *subject, n int, first bool) []request {
	list := w.requests(n, first)
	if s.name == emptyKind {
		for i := range list {
			list[i].code = pb.RateLimitResponse_UNKNOWN
		}
	}
	return list
}

// A turn is the cost of a decision in some calls.
type turnCost struct {
	service  float64 // us of processor time
	redis    float64 // us of processor time
	commands float64 // that Redis has run
	sent     float64 // that it was sent
	bytes    float64 // of the network
	memory   float64 // bytes that Redis holds more, for a load that is fresh
	without  float64 // decisions that Redis has not answered in time, of all

	systemCalls, switches float64 // of the service: see counting
}

// A sharedBench is a bench with one Redis.
type sharedBench struct {
	bench
	redis    store
	flags    []string // of sluice
	client   *goredis.Client
	subjects []*subject
}

const cachedName = "envoyproxy/ratelimit + local cache"

// newShared builds the program and starts a Redis. The caller closes it, also after an error.
func newShared(dir string) (b *sharedBench, err error) {
	b = &sharedBench{bench: bench{dir: dir}}
	if b.program, err = servers.BuildSluiced(dir); err != nil {
		return b, err
	}
	if b.redis, err = b.tcpRedis(); err != nil {
		return b, err
	}
	b.client = goredis.NewClient(&goredis.Options{Addr: b.redis.socket})
	b.ends = append(b.ends, func() { _ = b.client.Close() })
	return b, nil
}

// openShared starts a Redis, and all subjects on it; those that are sluice with flags.
func openShared(ctx context.Context, dir string, others []string, flags ...string) (_ *sharedBench, err error) {
	b, err := newShared(dir)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	add := func(s *subject, e error) {
		if err == nil {
			err = e
		}
		if err == nil {
			b.subjects = append(b.subjects, s)
			err = s.dial(ctx)
		}
	}
	add(b.self(emptyKind, emptyKind))
	add(b.upstream(upstreamService, sharedRules, b.redis))
	add(b.upstream(cachedName, sharedRules, b.redis, "CACHE_KEY_PREFIX=cached", "LOCAL_CACHE_SIZE_IN_BYTES=16777216"))
	b.flags = append([]string{"--redis", b.redis.url}, flags...)
	add(b.sluice(sluiceName, b.program, sharedRules, b.flags...))
	for _, o := range others {
		name, path, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want NAME=PROGRAM", o)
		}
		add(b.sluice(name, path, sharedRules, append(b.flags, "--store-prefix", name)...))
	}
	return b, err
}

const upstreamService = "envoyproxy/ratelimit"

// settle is how long leases of earlier turns take to come back, which Redis would have to do in the next one.
const settle = 250 * time.Millisecond

// counted makes calls of requests, in some way, and returns the cost of a decision. A quarter of them warms up.
func (b *sharedBench) counted(ctx context.Context, s *subject, w *workload, list []request, calls func([]request) error) (turnCost, error) {
	time.Sleep(settle)
	if w.fresh {
		if err := b.client.FlushAll(ctx).Err(); err != nil {
			return turnCost{}, err
		}
	}
	warm := len(list) / 4
	if err := calls(list[:warm]); err != nil {
		return turnCost{}, fmt.Errorf("%s: %w", w.name, err)
	}
	before, err := b.totals(ctx, s)
	if err != nil {
		return turnCost{}, err
	}
	if err := calls(list[warm:]); err != nil {
		return turnCost{}, fmt.Errorf("%s: %w", w.name, err)
	}
	after, err := b.totals(ctx, s)
	did, n := after.redis.minus(before.redis), float64((len(list)-warm)*w.descriptors)
	return turnCost{
		service: micros(after.service-before.service) / n, redis: micros(did.cpu) / n, commands: float64(did.commands) / n,
		sent: float64(did.sent) / n, bytes: float64(did.bytes) / n, memory: float64(did.memory) / n, without: (after.without - before.without) / n,
	}, err
}

// totals are all that has been spent so far.
type totals struct {
	service time.Duration
	redis   redisState
	without float64
}

func (b *sharedBench) totals(ctx context.Context, s *subject) (out totals, err error) {
	if out.without, err = s.withoutRedis(ctx); err != nil {
		return out, err
	}
	if out.redis, err = b.redis.state(ctx, b.client); err != nil {
		return out, err
	}
	out.service, err = s.cpu()
	return out, err
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// patience is how long sluice waits for Redis: the programs and the client want all the processors that there are, and by its
// default of 5 ms it would go on without Redis, at no cost. Leases live as long with both.
const patience = "50ms"

// runShared measures, and reports whether the budgets of latencies and of several processes are kept.
func runShared(ctx context.Context, rounds, calls int, others []string) (bool, error) {
	if rounds < 1 || calls < 100 {
		return false, errors.New("want at least one round, and 100 calls")
	}
	dir, err := os.MkdirTemp("", "sluice-cost")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	b, err := openShared(ctx, dir, others, "--store-budget", patience)
	if err != nil {
		return false, err
	}
	defer b.close()
	kept := true
	for _, w := range workloads() {
		t, err := b.turns(ctx, &w, rounds, calls)
		if err != nil {
			return false, err
		}
		t.print()
		t.printRatios()
	}
	for _, w := range workloads() {
		if w.descriptors > 1 {
			continue
		}
		same, err := b.latencies(ctx, &w, rounds, calls/2)
		if err != nil {
			return false, err
		}
		kept = same && kept
	}
	scales, err := b.fleet(ctx, rounds, calls/4)
	return kept && scales, err
}

// turns measures all subjects by turns.
func (b *sharedBench) turns(ctx context.Context, w *workload, rounds, calls int) (*sharedTable, error) {
	t := &sharedTable{name: w.name, list: b.subjects, costs: map[*subject][]turnCost{}}
	for round := range rounds + 1 {
		for _, i := range rand.Perm(len(b.subjects)) {
			s := b.subjects[i]
			list := w.requestsOf(s, calls*max(w.times, 1), round == 0)
			cost, err := b.counted(ctx, s, w, list, func(list []request) error {
				_, err := s.measure(ctx, len(list), inFlightShared, list)
				return err
			})
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first one warms up
				t.costs[s] = append(t.costs[s], cost)
			}
		}
	}
	return t, nil
}

// sharedTable has the measurements of a workload.
type sharedTable struct {
	name  string
	list  []*subject
	costs map[*subject][]turnCost

	goroutines map[*subject]float64 // how many begin to run for a decision, if that was counted
}

// median is the median of a subject's turns.
func (t *sharedTable) median(s *subject, value func(turnCost) float64) float64 {
	var list []float64
	for _, c := range t.costs[s] {
		list = append(list, value(c))
	}
	return median(list)
}

// ratio is the median, over the rounds, of one subject's turn over another's.
func (t *sharedTable) ratio(a, b *subject, value func(turnCost) float64) float64 {
	return ratio(t.costs[a], t.costs[b], value)
}

func service(c turnCost) float64  { return c.service }
func redis(c turnCost) float64    { return c.redis }
func commands(c turnCost) float64 { return c.commands }
func sent(c turnCost) float64     { return c.sent }
func traffic(c turnCost) float64  { return c.bytes }
func memory(c turnCost) float64   { return c.memory }
func without(c turnCost) float64  { return 100 * c.without }

func (t *sharedTable) print() {
	fmt.Printf("\n%s, for each decision, %s\n", t.name, time.Now().UTC().Format(time.DateTime))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "server\tµs of the service\tµs of Redis\tcommands run\tsent\tbytes sent and received\tbytes held\twithout Redis, %\t")
	for _, s := range t.list {
		fmt.Fprintf(w, "%s\t%.1f\t%.2f\t%.3f\t%.3f\t%.0f\t%.0f\t%.2f\t\n", s.name,
			t.median(s, service), t.median(s, redis), t.median(s, commands), t.median(s, sent), t.median(s, traffic), t.median(s, memory), t.median(s, without))
	}
	_ = w.Flush()
}

// printRatios prints sluice's figures over upstream's.
func (t *sharedTable) printRatios() {
	byName := named(t.list)
	us, them, floor := byName[sluiceName], byName[upstreamService], byName[emptyKind]
	fmt.Printf("%s: of the service's time, %s takes %.2f of %s's, and what is beyond the empty handler's %.2f; Redis %.2f; bytes %.2f; commands %.2f\n", t.name,
		us.name, t.ratio(us, them, service), them.name, (t.median(us, service)-t.median(floor, service))/(t.median(them, service)-t.median(floor, service)),
		t.ratio(us, them, redis), t.ratio(us, them, traffic), t.ratio(us, them, commands))
}

// quantile of a list in order.
func quantile(list []time.Duration, q float64) time.Duration {
	return list[min(int(q*float64(len(list))), len(list)-1)]
}

func sorted(list []time.Duration) []time.Duration {
	slices.Sort(list)
	return list
}
