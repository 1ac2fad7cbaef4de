package fleet

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// Streams is a soak of holds: each stream holds an estimate of a request, of tokens and of a place among those that run at
// once, asks for more while it grows, and settles. A third of the clients die on the way, some between a call and its
// answer; meanwhile services are killed and started again, and the store is killed, halted, slowed, and loses its answers.
//
// Redis writes each command to its disk before it answers, so that its death loses nothing, and the account is exact. If it
// Forgets, it has no disk: then the account is of the units that services remember together; see risk.
type Streams struct {
	Program, Server string
	Seed            uint64 // of the streams and of the faults
	Streams, AtOnce int
	Forgets         bool
	Out             io.Writer
}

// streamTTL is how long a hold lasts that nobody settles or extends. Faults and the patience of clients are shorter.
const streamTTL = 5 * time.Second

// streamPeriod is the lease of streams that run at once.
const streamPeriod = 6 * time.Second

// streamUsers share limits. Those of the last one are tight.
const streamUsers, streamServices = 3, 3

const tightUser = "u2"

const (
	streamPlaces   = 32      // of streams at once, for each user
	streamTokens   = 1 << 30 // more than there is demand for
	streamTight    = 20_000  // less
	streamRequests = 60      // a second
)

// Every stream has a limit of its own besides, which tells its part of the other limits.
var streamRules = fmt.Sprintf(`domain: streams
sluice: {atomic: true}
descriptors:
- {key: requests, rate_limit: {unit: second, requests_per_unit: %d, algorithm: gcra}}
- {key: tokens, rate_limit: {unit: year, requests_per_unit: %d}}
- {key: tokens, value: %s, rate_limit: {unit: year, requests_per_unit: %d}}
- {key: streams, rate_limit: {period: %v, requests_per_unit: %d, algorithm: in-flight}}
- {key: own, rate_limit: {unit: year, requests_per_unit: %d}}
`, streamRequests, streamTokens, tightUser, streamTight, streamPeriod, streamPlaces, streamTokens)

// An instance is a process of a replica, from its start to its death.
type instance struct {
	*Service
	began, died time.Time // died is zero if it is alive
	// The answers of each kind that clients have read, and the calls whose outcome nobody has told them.
	done, denied, gone, unknown [verbs]atomic.Int64
}

// streaming is a soak that runs.
type streaming struct {
	*Streams
	store    *Store
	fleet    *Fleet
	replicas [streamServices]atomic.Pointer[instance]
	losses   []loss
	streams  []*stream
	faults   map[string]int
}

// Run soaks, prints the account, and returns the first of it that is wrong.
func (s *Streams) Run() error {
	dir, err := os.MkdirTemp("", "sluice-streams-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run := &streaming{Streams: s, faults: map[string]int{}}
	disk := []string{"--dir", dir, "--appendonly", "yes", "--appendfsync", "always"}
	if s.Forgets {
		disk = nil
	}
	if run.store, err = Open(s.Server, Single, streamServices, disk...); err != nil {
		return err
	}
	defer run.store.Close()
	// A call that waits for longer than its client does makes a late copy, which is what this is about.
	run.fleet, err = New(s.Program, streamRules, streamServices, run.store.URLs, "--replicas", fmt.Sprint(streamServices),
		"--on-store-failure", "closed", "--store-budget", "100ms")
	if err != nil {
		return err
	}
	defer run.fleet.Close()
	for i, service := range run.fleet.Services {
		run.replicas[i].Store(&instance{Service: service, began: time.Now()})
	}
	fmt.Fprintf(s.Out, "%s, seed %d, %d streams\n", run.store.Version, s.Seed, s.Streams)
	run.plan()
	err = run.load()
	if err != nil {
		return err
	}
	return run.settleUp()
}

// plan makes up the streams: a third of them dies.
func (s *streaming) plan() {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	order := r.Perm(s.Streams.Streams)
	for i := range s.Streams.Streams {
		s.streams = append(s.streams, newStream(i, rand.New(rand.NewPCG(r.Uint64(), 2)), order[i] < s.Streams.Streams/3))
	}
}

// load runs the streams, while faults come.
func (s *streaming) load() error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range s.AtOnce {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(s.streams); i = int(next.Add(1)) - 1 {
				s.streams[i].live(s)
			}
		})
	}
	end := make(chan struct{})
	broken := make(chan error, 1)
	go func() { broken <- s.breakThings(end) }()
	wg.Wait()
	close(end)
	return <-broken
}

// breakThings makes one fault after another until the end, and then leaves everything whole.
func (s *streaming) breakThings(end chan struct{}) error {
	r := rand.New(rand.NewPCG(s.Seed, 3))
	for {
		select {
		case <-end:
			return nil
		case <-time.After(time.Duration(200+r.IntN(800)) * time.Millisecond):
		}
		if err := s.fault(r); err != nil {
			return err
		}
	}
}

// fault makes a fault of less than a second.
func (s *streaming) fault(r *rand.Rand) error {
	server, i := s.store.Servers[0], r.IntN(streamServices)
	lasts := time.Duration(r.IntN(700)) * time.Millisecond
	name := []string{"a service killed", "a service killed", "Redis killed", "Redis halted", "answers lost", "connections cut", "slow", "both killed"}[r.IntN(8)]
	s.faults[name]++
	proxy := s.store.Proxies[i]
	switch name {
	case "a service killed":
		return s.restart(i, lasts)
	case "Redis killed":
		return s.lose(func() error { time.Sleep(lasts); return nil })
	case "Redis halted":
		if err := server.Stop(); err != nil {
			return err
		}
		time.Sleep(lasts)
		return server.Continue()
	case "answers lost":
		proxy.Lose(true)
		time.Sleep(lasts)
		proxy.Lose(false)
	case "connections cut":
		proxy.Cut()
	case "slow":
		proxy.Slow(80 * time.Millisecond)
		time.Sleep(lasts)
		proxy.Slow(0)
	default:
		return s.lose(func() error { return s.restart(i, lasts/2) })
	}
	return nil
}

// lose kills Redis, and starts it again after something else.
func (s *streaming) lose(meanwhile func() error) error {
	server, l := s.store.Servers[0], loss{killed: time.Now()}
	server.Kill()
	err := meanwhile()
	l.back = time.Now()
	if again := server.Restart(); err == nil {
		err = again
	}
	s.losses = append(s.losses, l)
	return err
}

// restart kills a service, and starts another one in its place after a time.
func (s *streaming) restart(i int, after time.Duration) error {
	old := s.replicas[i].Load()
	old.died = time.Now()
	old.Kill()
	time.Sleep(after)
	if err := s.fleet.start(i, s.store.URLs[i]); err != nil {
		return err
	}
	s.replicas[i].Store(&instance{Service: s.fleet.Services[i], began: time.Now()})
	return nil
}

// settleUp waits until all holds have lapsed, and looks at the counts. By then no place may be taken.
func (s *streaming) settleUp() error {
	if err := s.fleet.Healed(); err != nil {
		return err
	}
	// A call without an answer may be made a little later than its client has given up.
	due := s.lastTouch().Add(streamTTL + time.Second)
	if s.Forgets { // units in flight of lost holds come back with their windows
		due = s.lastTouch().Add(2*streamPeriod + time.Second)
	}
	time.Sleep(time.Until(due))
	counts, err := s.counts()
	if err != nil {
		return err
	}
	judge := account{streams: s.streams, counts: counts, losses: s.losses, forgets: s.Forgets}
	text, err := judge.judge()
	for _, in := range s.live() {
		if wrong := in.metrics(); err == nil {
			err = wrong
		}
	}
	fmt.Fprintf(s.Out, "%s, %v\n", text, s.faults)
	return err
}

func (s *streaming) live() (all []*instance) {
	for i := range s.replicas {
		all = append(all, s.replicas[i].Load())
	}
	return all
}

// lastTouch is when the last call was made, or given up.
func (s *streaming) lastTouch() (last time.Time) {
	for _, st := range s.streams {
		for _, c := range st.calls {
			if c.back.After(last) {
				last = c.back
			}
		}
	}
	return last
}

// worstRequests is WorstCase of the requests.
func worstRequests() (func(time.Duration) int, error) {
	l := Limit{Algorithm: sluice.GCRA, Requests: streamRequests, Unit: "second"}
	return l.worst()
}

// metrics returns an error unless the service's metrics of holds are what its clients have been told, and at most what they
// have not.
func (in *instance) metrics() error {
	text, err := in.Get("metrics", "/metrics")
	if err != nil {
		return err
	}
	for outcome, of := range map[string]struct{ least, unknown int64 }{
		"held":     {in.done[hold].Load(), in.unknown[hold].Load()},
		"denied":   {in.denied[hold].Load(), in.unknown[hold].Load()},
		"cut":      {in.denied[extend].Load(), in.unknown[extend].Load()},
		"settled":  {in.done[settle].Load(), in.unknown[settle].Load()},
		"released": {in.done[release].Load(), in.unknown[release].Load()},
	} {
		_, rest, found := strings.Cut(text, fmt.Sprintf("sluice_holds_total{outcome=%q} ", outcome))
		var n float64
		if _, err := fmt.Sscan(rest, &n); err != nil || !found {
			return fmt.Errorf("there is no metric of holds that were %s", outcome)
		}
		if n := int64(n); n < of.least || n > of.least+of.unknown {
			return fmt.Errorf("sluice_holds_total says that %d were %s; clients were told so %d times, and %d times nothing", n, outcome, of.least, of.unknown)
		}
	}
	return nil
}
