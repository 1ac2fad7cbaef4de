package workload

import (
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
)

var small = Sizes{Million: 10_000, New: 1 << 12}

func named(name string) Workload {
	all := All(small)
	return all[slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })]
}

// distinct counts the keys of a sequence.
func distinct(s Sequence) int {
	seen := map[string]bool{}
	for i := range s.Len() {
		seen[s.Key(i)] = true
	}
	return len(seen)
}

func TestSequence_KeysAreRealisticAndRepeat(t *testing.T) {
	s := newSequence(3, func(i int) int { return []int{0, 12345, 9_999_999, 7}[i] })
	want := []string{"user:0000000", "user:0012345", "user:9999999", "user:0000007", "user:0000000"}
	for i, key := range want {
		if got := s.Key(i); got != key {
			t.Errorf("Key(%d) = %q, want %q", i, got, key)
		}
	}
	if s.Len() != 4 {
		t.Errorf("Len() = %d, want 4", s.Len())
	}
}

// The declared number of keys is that of the population and the calls together.
func TestAll_KeysAreAsDeclared(t *testing.T) {
	for _, w := range All(small) {
		all := map[string]bool{}
		for i := range w.PopulationLen {
			all[w.Population.Key(i)] = true
		}
		if len(all) != w.PopulationLen {
			t.Errorf("%s: %d of %d keys of the population are distinct", w.Name, len(all), w.PopulationLen)
		}
		for i := range w.Calls.Len() {
			all[w.Calls.Key(i)] = true
		}
		want := w.Keys
		switch w.Name {
		case "flood", "refused":
			want = w.PopulationLen + w.Calls.Len()
		case "full":
			want = w.PopulationLen
		}
		if len(all) != want {
			t.Errorf("%s: %d distinct keys, want %d", w.Name, len(all), want)
		}
		if w.Unique && distinct(w.Calls) != w.Calls.Len() {
			t.Errorf("%s: calls repeat a key", w.Name)
		}
	}
}

func TestAll_SmallPopulationsAreMetInFull(t *testing.T) {
	for _, w := range All(small)[:2] {
		if got := distinct(w.Calls); got != w.Keys {
			t.Errorf("%s: calls meet %d keys, want %d", w.Name, got, w.Keys)
		}
	}
}

func TestAll_IsTheSameEveryTime(t *testing.T) {
	a, b := All(small), All(small)
	for i := range a {
		if a[i].Calls != b[i].Calls || a[i].Population != b[i].Population {
			t.Errorf("%s differs from one call to the next", a[i].Name)
		}
	}
}

// With Zipf 1.1 over n keys the busiest has 1 / sum(k^-1.1) of the calls.
func TestAll_ZipfIsSkewedAsDeclared(t *testing.T) {
	w := named("zipf")
	counts := map[string]int{}
	most := 0
	for i := range w.Calls.Len() {
		counts[w.Calls.Key(i)]++
		most = max(most, counts[w.Calls.Key(i)])
	}
	sum := 0.0
	for k := 1; k <= w.Keys; k++ {
		sum += math.Pow(float64(k), -1.1)
	}
	want := float64(w.Calls.Len()) / sum
	if got := float64(most); got < want*0.95 || got > want*1.05 {
		t.Errorf("the busiest key has %.0f calls, want %.0f within 5%%", got, want)
	}
}

// Every subject can represent the limit that it is given, and is not slowed down by
// it: nobody denies, and nobody waits.
func TestOptionsFor_NoSubjectIsShortOfUnits(t *testing.T) {
	hot := named("hot")
	for _, s := range peers.All() {
		t.Run(s.Name, func(t *testing.T) {
			o := hot.OptionsFor(s)
			if special := o != hot.Options; special != (s.Blocks || s.PerUnit || s.Kind == peers.Approximate) {
				t.Errorf("it has a limit of its own: %v", special)
			}
			l, err := s.New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			start := time.Now()
			for i := range 200_000 {
				if !l.Allow("k") {
					t.Fatalf("call %d denied", i)
				}
			}
			if d := time.Since(start); d > time.Minute { // at one unit of the limit in 2.4 s it would be days
				t.Errorf("200,000 calls took %v", d)
			}
		})
	}
}

// The limits of the other workloads are the same for all.
func TestOptionsFor_OnlyUnitsThatAreNeverSpent(t *testing.T) {
	for _, w := range All(small) {
		for _, s := range peers.All() {
			if o := w.OptionsFor(s); w.Options.Burst < generous.Burst && o != w.Options {
				t.Errorf("%s, %s: %+v, want %+v", w.Name, s.Name, o, w.Options)
			}
		}
	}
}

func TestExcludes(t *testing.T) {
	hot, thousand, denied, flood := named("hot"), named("thousand"), named("denied"), named("flood")
	each, refused := named("each-16"), named("refused")
	all := peers.Subject{Name: "sluice GCRA", Kind: peers.Ours, Bounded: true, DeniesNew: true, Batches: true}
	window := all
	window.Name = "sluice sliding window"
	for _, c := range []struct {
		name     string
		w        Workload
		s        peers.Subject
		excluded bool
	}{
		{"anything hot", hot, peers.Subject{}, false},
		{"bare hot", hot, peers.Subject{Kind: peers.Bare}, false},
		{"bare thousand", thousand, peers.Subject{Kind: peers.Bare}, true},
		{"log hot", hot, peers.Subject{PerUnit: true}, false},
		{"log thousand", thousand, peers.Subject{PerUnit: true}, true},
		{"log flood", flood, peers.Subject{PerUnit: true, Bounded: true}, false},
		{"blocking denied", denied, peers.Subject{Blocks: true}, true},
		{"denied", denied, peers.Subject{}, false},
		{"unbounded flood", flood, peers.Subject{}, true},
		{"bounded flood", flood, peers.Subject{Bounded: true}, false},
		{"bounded refused", refused, peers.Subject{Bounded: true}, true},
		{"GCRA refused", refused, all, false},
		{"window refused", refused, window, true},
		{"no batches", each, peers.Subject{}, true},
		{"GCRA in batches", each, all, false},
		{"window in batches", each, window, true},
	} {
		if got := c.w.Excludes(c.s); (got != "") != c.excluded {
			t.Errorf("%s: excluded for %q, want excluded: %v", c.name, got, c.excluded)
		}
	}
}

func TestCheckKeys(t *testing.T) {
	thousand, fresh, flood := named("thousand"), named("new"), named("flood")
	for _, c := range []struct {
		w           Workload
		keys, calls int
		ok          bool
	}{
		{thousand, 1000, 5000, true},
		{thousand, 999, 5000, false},
		{thousand, 1001, 5000, false},
		{thousand, -1, 5000, true},
		{fresh, 17, 17, true},
		{fresh, 16, 17, false},
		{flood, small.New, 1, true},
		{flood, small.New + 1, 1, false},
		{flood, small.New/4*3 - 1, 1, false},
		{flood, -1, 1, true},
	} {
		if want := c.w.CheckKeys(c.keys, c.calls); (want == "") != c.ok {
			t.Errorf("%s, %d keys after %d calls: want %q, ok %v", c.w.Name, c.keys, c.calls, want, c.ok)
		}
	}
}

// seen is a limiter that notes the strings of its calls.
type seen struct{ keys []string }

func (s *seen) Allow(key string) bool { s.keys = append(s.keys, key); return true }
func (s *seen) Keys() int             { return -1 }
func (s *seen) Sweep()                {}
func (s *seen) Close()                {}

// Strings of any kind are of the same keys, and lie where the kind says.
func TestDrive_StringsAreOfTheCallsKeys(t *testing.T) {
	const from, to = -5, 9000
	for _, name := range []string{"zipf", "uniform"} {
		calls := named(name).Calls
		for _, suffix := range []string{"", "-made", "-stored"} {
			w := named(name + suffix)
			s := new(seen)
			if n := w.Drive(s, from, to); n != to-from || len(s.keys) != n {
				t.Fatalf("%s: %d admitted of %d calls", w.Name, n, len(s.keys))
			}
			places := map[string]*byte{}
			moved := 0
			for i, key := range s.keys {
				if key != calls.Key(from+i) {
					t.Fatalf("%s: call %d is for %s, want %s", w.Name, i, key, calls.Key(from+i))
				}
				if at := unsafe.StringData(key); places[key] == nil {
					places[key] = at
				} else if places[key] != at {
					moved++
				}
			}
			if stays := moved == 0; stays != (w.Strings == Stored) {
				t.Errorf("%s: the keys of %d calls have moved", w.Name, moved)
			}
			if alias := unsafe.StringData(s.keys[5]) == unsafe.StringData(w.Calls.Key(0)); alias != (w.Strings == Streamed) {
				t.Errorf("%s: its strings are those of the sequence: %v", w.Name, alias)
			}
		}
	}
}
