package speed

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

var small = workload.Sizes{Million: 2000, New: 1 << 12}

// named is the workload with a name, in small.
func named(name string) workload.Workload {
	all := workload.All(small)
	return all[slices.IndexFunc(all, func(w workload.Workload) bool { return w.Name == name })]
}

// fake does what a test tells it to, and admits without looking at the key.
type fake struct {
	calls     atomic.Int64
	denyEvery int64 // 0: never
	keys      int
	counts    atomic.Int64 // of the keys
	closed    *atomic.Int64
	called    func() // by each call, where a test wants to know
}

func (f *fake) Allow(string) bool {
	n := f.calls.Add(1)
	if f.called != nil {
		f.called()
	}
	return f.denyEvery == 0 || n%f.denyEvery != 0
}

func (f *fake) Keys() int { f.counts.Add(1); return f.keys }

func (f *fake) Sweep() {}

func (f *fake) Close() { f.closed.Add(1) }

// fakes counts what it has made and closed.
type fakes struct{ made, closed atomic.Int64 }

func (c *fakes) subject(name string, f func() *fake) peers.Subject {
	return peers.Subject{Name: name, New: func(peers.Options) (peers.Limiter, error) {
		c.made.Add(1)
		l := f()
		l.closed = &c.closed
		return l, nil
	}}
}

func serial() []Mode { return Modes()[:1] }

func quick(w ...workload.Workload) Config {
	return Config{Rounds: 3, Round: 200 * time.Microsecond, Modes: serial(), Workloads: w}
}

func TestRun_RowsAndSamplesAreComplete(t *testing.T) {
	var c fakes
	honest := func(name string) peers.Subject {
		return c.subject(name, func() *fake { return &fake{keys: -1} })
	}
	bare := honest("bare")
	bare.Kind = peers.Bare
	subjects := []peers.Subject{honest("a"), bare, honest("b")}
	config := quick(named("hot"), named("thousand"), named("zipf"), named("uniform"), named("new"))
	config.Modes = Modes()
	got, err := Run(context.Background(), config, subjects, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	var want []results.Speed
	for _, w := range config.Workloads {
		for _, m := range config.Modes {
			for _, s := range subjects {
				if Excludes(s, w, m) == "" {
					want = append(want, results.Speed{Subject: s.Name, Workload: w.Name, Mode: m.Name, Keys: w.Keys})
				}
			}
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i, g := range got {
		if w := want[i]; g.Subject != w.Subject || g.Workload != w.Workload || g.Mode != w.Mode || g.Keys != w.Keys {
			t.Errorf("row %d is %s, %s, %s, %d, want %s, %s, %s, %d", i,
				g.Subject, g.Workload, g.Mode, g.Keys, w.Subject, w.Workload, w.Mode, w.Keys)
		}
		n := config.Rounds
		if w := named(g.Workload); !w.Unique && g.Mode != "parallel-1" {
			n *= perRound
		}
		if len(g.Samples) != n {
			t.Errorf("%s, %s, %s: %d samples, want %d", g.Subject, g.Workload, g.Mode, len(g.Samples), n)
		}
		for _, ns := range g.Samples {
			if ns <= 0 {
				t.Errorf("%s, %s, %s: a sample of %v ns", g.Subject, g.Workload, g.Mode, ns)
			}
		}
	}
	if made, closed := c.made.Load(), c.closed.Load(); made == 0 || made != closed {
		t.Errorf("%d limiters made, %d closed", made, closed)
	}
}

func TestRun_ReportsWhatIsNotAsDeclared(t *testing.T) {
	hot, thousand, denied, fresh := named("hot"), named("thousand"), named("denied"), named("new")
	for _, c := range []struct {
		name            string
		w               workload.Workload
		keys, denyEvery int
		want            []string // all in the error; nil: no error
	}{
		{"honest", thousand, 1000, 0, nil},
		{"cannot tell", thousand, -1, 0, nil},
		{"one call in 1000 denied", hot, 1, 1000, []string{"subject", "hot", "serial", "1023 of 1024", "want 1024"}},
		{"denied in the population", thousand, 1000, 1000, []string{"subject", "thousand", "population", "call 999"}},
		{"a key too many", thousand, 1001, 0, []string{"subject", "thousand", "serial", "1001 keys", "want 1000"}},
		{"a key missing", thousand, 999, 0, []string{"subject", "thousand", "999 keys", "want 1000"}},
		{"a new key missing", fresh, small.New - 1, 0, []string{"subject", "new", "4095 keys", "want 4096"}},
		{"admitted when spent", denied, 1, 0, []string{"subject", "denied", "1024 of 1024", "want 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var made fakes
			s := made.subject("subject", func() *fake { return &fake{keys: c.keys, denyEvery: int64(c.denyEvery)} })
			_, err := Run(context.Background(), quick(c.w), []peers.Subject{s}, nil)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("Run() = %v, want an error with %q", err, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if made.made.Load() != made.closed.Load() {
				t.Errorf("%d limiters made, %d closed", made.made.Load(), made.closed.Load())
			}
		})
	}
}

// Not every limiter keeps its limit: one that never denies must not get away with
// more calls than the limit has units.
func TestRun_UnitsDoNotRunOut(t *testing.T) {
	var c fakes
	w := named("hot")
	w.Options.Burst = 10 // however slow the machine is
	_, err := Run(context.Background(), quick(w), []peers.Subject{c.subject("subject", func() *fake { return &fake{keys: 1} })}, nil)
	if err == nil || !strings.Contains(err.Error(), "more than the 10 units of the limit") {
		t.Errorf("Run() = %v, want an error about the units", err)
	}
	// The time that a published sample can take: three modes, a warm-up, and 5 ns a call.
	round := Config{}.withDefaults().Round
	if calls := 3 * (round + round/2) / (5 * time.Nanosecond); int(calls) > named("hot").Options.Burst/2 {
		t.Errorf("%d calls take most of the units", calls)
	}
}

// Keys are counted when a limiter has been used, and not between samples, nor just before one.
func TestRun_KeysAreNotCountedBetweenWarmUpAndSample(t *testing.T) {
	for name, limiters := range map[string]int{"hot": perRound, "zipf": 1} {
		var c fakes
		w := named(name)
		l := &fake{keys: w.Keys}
		config := quick(w)
		if _, err := Run(context.Background(), config, []peers.Subject{c.subject("subject", func() *fake { return l })}, nil); err != nil {
			t.Fatal(err)
		}
		if got, want := int(l.counts.Load()), config.Rounds*limiters; got != want {
			t.Errorf("%s: keys counted %d times, want once a limiter, %d", name, got, want)
		}
	}
}

// A history is what two subjects, a and b, have been asked for.
type history struct {
	made  string // whose limiters, in their order
	turns string // who was called, once for all calls in a row
}

func historyOf(t *testing.T, config Config) *history {
	t.Helper()
	var c fakes
	h := &history{}
	subject := func(name string) peers.Subject {
		return c.subject(name, func() *fake {
			h.made += name
			return &fake{keys: -1, called: func() {
				if !strings.HasSuffix(h.turns, name) {
					h.turns += name
				}
			}}
		})
	}
	if _, err := Run(context.Background(), config, []peers.Subject{subject("a"), subject("b")}, nil); err != nil {
		t.Fatal(err)
	}
	return h
}

// A machine that is slow for a second must be slow for all subjects.
func TestRun_TurnsAreAsShortAsTheyCanBe(t *testing.T) {
	for name, want := range map[string]struct{ limiters, turns int }{
		"hot": {perRound, perRound}, "thousand": {perRound, perRound}, "new": {1, 1},
		// In the first it is shown its population.
		"zipf": {1, 1 + perRound/perVisit}, "zipf uniform": {1, 1 + 2*perRound/perVisit},
	} {
		var config Config
		for _, w := range strings.Fields(name) {
			config = quick(append(config.Workloads, named(w))...)
		}
		config.Rounds = 1
		h := historyOf(t, config)
		if len(h.made) != 2*want.limiters {
			t.Errorf("%s: limiters of %s, want %d of each subject", name, h.made, want.limiters)
		}
		for i := 0; i+1 < len(h.made); i += 2 {
			if h.made[i] == h.made[i+1] {
				t.Errorf("%s: limiters of %s, want each subject's once in two", name, h.made)
			}
		}
		// A subject that is last in one pass and first in the next has its turns in a row.
		if n := len(h.turns); n < want.turns+1 || n > 2*want.turns {
			t.Errorf("%s: the turns are %s, want %d of each subject", name, h.turns, want.turns)
		}
	}
}

// A limiter that is kept finds the caches taken by the others, each time.
func TestRun_AKeptLimiterIsWarmedInEachTurn(t *testing.T) {
	w := named("zipf")
	config := quick(w)
	c := config.withDefaults()
	const calls = 1000
	r := runner{
		config: c, rows: map[row]*results.Speed{}, kept: map[string]*instance{}, first: 5, end: 5 + perVisit,
		calls: map[row]int{{"subject", w.Name, "serial"}: calls},
	}
	l := &fake{keys: -1}
	if err := r.samples(&instance{Limiter: l}, peers.Subject{Name: "subject"}, w, c.Modes[0]); err != nil {
		t.Fatal(err)
	}
	if got, want := int(l.calls.Load()), perKept*calls+perVisit*calls+(perVisit-1)*calls/8; got != want {
		t.Errorf("%d calls, want %d: the first warm-up %d times as long as a sample, the others an eighth", got, want, perKept)
	}
}

func TestRun_ReturnsTheErrorOfNew(t *testing.T) {
	broken := errors.New("broken")
	s := peers.Subject{Name: "s", New: func(peers.Options) (peers.Limiter, error) { return nil, broken }}
	_, err := Run(context.Background(), quick(named("hot")), []peers.Subject{s}, nil)
	if !errors.Is(err, broken) {
		t.Errorf("Run() = %v, want %v", err, broken)
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, quick(named("hot")), peers.All()[:1], nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want %v", err, context.Canceled)
	}
}

// Zipf and uniform share a population, so a round makes one limiter for both. The
// order of the subjects changes.
func TestRun_SharesLimitersAndChangesTheOrder(t *testing.T) {
	config := quick(named("zipf"), named("uniform"))
	config.Rounds = 5
	// Two limiters a round, and not the same one first in all of them.
	if h := historyOf(t, config); len(h.made) != 10 || h.made == strings.Repeat("ab", 5) || h.made == strings.Repeat("ba", 5) {
		t.Errorf("limiters made in the order %s", h.made)
	}
}

// Under a limit of one, all calls are admitted only if no key was called for twice.
func TestDrive_ParallelMakesEachCallOnce(t *testing.T) {
	var once peers.Subject
	for _, s := range peers.All() {
		if s.Name == "30 lines on xsync" {
			once = s
		}
	}
	w := named("new")
	l, err := once.New(peers.Options{Rate: 1, Period: 1000 * time.Hour, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.GOMAXPROCS(0)
	calls := 5*chunk + 17
	if _, n := drive(l, w, Mode{"test", 2, 3}, 0, calls); n != calls || l.Keys() != calls {
		t.Errorf("%d calls admitted on %d keys, want %d on as many", n, l.Keys(), calls)
	}
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("GOMAXPROCS is %d afterwards, want %d", now, before)
	}
}

// batcher records what it is asked for.
type batcher struct {
	fake
	batches [][]string
	singly  int // of them
}

func (b *batcher) Batch(int) peers.Batch { return &recorded{limiter: b} }

type recorded struct {
	limiter *batcher
	keys    []string
}

func (r *recorded) Add(key string) { r.keys = append(r.keys, key) }

func (r *recorded) Allow() int {
	n := len(r.keys)
	r.limiter.batches, r.keys = append(r.limiter.batches, r.keys), nil
	return n
}

func (r *recorded) AllowSingly() int {
	r.limiter.singly++
	return r.Allow()
}

func TestDrive_BatchesAreOfTheDeclaredSizeAndInOrder(t *testing.T) {
	w := named("each-16")
	l := &batcher{}
	const from, calls = 5, 3*16 + 7
	if _, n := drive(l, w, serial()[0], from, calls); n != calls {
		t.Errorf("%d calls admitted, want %d", n, calls)
	}
	at := from
	for i, keys := range l.batches {
		if want := min(16, calls-16*i); len(keys) != want {
			t.Errorf("batch %d has %d keys, want %d", i, len(keys), want)
		}
		for _, key := range keys {
			if key != w.Calls.Key(at) {
				t.Fatalf("call %d is for %s, want %s", at, key, w.Calls.Key(at))
			}
			at++
		}
	}
	if at != from+calls {
		t.Errorf("%d calls made, want %d", at-from, calls)
	}
	if l.singly != 0 {
		t.Errorf("%d batches decided one by one, want none", l.singly)
	}
	if drive(l, named("singly"), serial()[0], 0, 7); l.singly != 7 {
		t.Errorf("%d keys decided one by one, want 7", l.singly)
	}
}

// The workload full must deny keys that the limiter has, and refused must deny keys that
// it has no room for: with a second unit for each, the former are admitted.
func TestPrepare_FullAndRefusedAreDeniedForDifferentReasons(t *testing.T) {
	for _, s := range peers.All() {
		for name, want := range map[string]bool{"full": true, "refused": false} {
			w := named(name)
			if w.Excludes(s) != "" {
				continue
			}
			w.Options.Rate, w.Options.Burst = 2, 2
			l, err := Prepare(s, w)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for i := range w.Calls.Len() {
				key := w.Calls.Key(i)
				if got := l.Allow(key); got != (want && !seen[key]) {
					t.Fatalf("%s, %s: call %d, of %s: admitted %v", s.Name, name, i, key, got)
				}
				seen[key] = true
			}
			l.Close()
		}
	}
}

// Every subject has the declared outcome under every workload, in small.
func TestRun_AllSubjects(t *testing.T) {
	config := quick(workload.All(small)...)
	config.Modes, config.Rounds = nil, 1
	if _, err := Run(context.Background(), config, peers.All(), t.Logf); err != nil {
		t.Error(err)
	}
}

func TestScaling(t *testing.T) {
	c := Scaling(10_000)
	if len(c.Workloads) != 2 || c.Workloads[1].Keys != 10_000 {
		t.Fatalf("Scaling(10,000) has the workloads %v", names(c.Workloads))
	}
	subjects := ScalingSubjects(peers.All())
	if len(subjects) != len(scalingSubjects) {
		t.Errorf("%d subjects, want %v", len(subjects), scalingSubjects)
	}
	c.Rounds, c.Round = 1, time.Millisecond
	if _, err := Run(context.Background(), c, subjects, nil); err != nil {
		t.Error(err)
	}
}

func TestMissing_NamesEveryRowThatIsLeftOut(t *testing.T) {
	c := Config{Workloads: workload.All(small)}
	subjects := peers.All()
	config := c
	config.Rounds, config.Round = 1, 10*time.Microsecond
	rows, err := Run(context.Background(), config, subjects, nil)
	if err != nil {
		t.Fatal(err)
	}
	missing := c.Missing(subjects)
	if got, want := len(rows)+len(missing), len(subjects)*len(c.Workloads)*len(Modes()); got != want {
		t.Errorf("%d rows and %d missing ones, want %d together", len(rows), len(missing), want)
	}
}
