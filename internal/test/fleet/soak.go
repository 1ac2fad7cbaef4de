package fleet

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// A Soak loads three services with keys whose popularity is Zipf's, while a fault comes each minute.
type Soak struct {
	Program, Server string
	Seed            uint64
	Every           time.Duration // a round, of which the fault is the middle third
	Rounds          int
	Rate            int
	Out             io.Writer
}

// soakLimits are the limits of its keys: short windows, a bucket, and a window that is never over.
var soakLimits = []Limit{
	{Name: "second", Algorithm: sluice.FixedWindow, Requests: 9, Unit: "second"},
	{Name: "bucket", Algorithm: sluice.TokenBucket, Requests: 9, Unit: "second"},
	{Name: "day", Algorithm: sluice.FixedWindow, Requests: 150, Unit: "day"},
}

const soakServices, soakKeys = 3, 200

// Run soaks, prints a line a round, and returns the first promise that is broken.
func (s *Soak) Run() error {
	r := rand.New(rand.NewPCG(s.Seed, s.Seed))
	store, err := Open(s.Server, Single, soakServices)
	if err != nil {
		return err
	}
	defer store.Close()
	b := &bench{store: store, target: store.Servers[0], rules: Rules(soakLimits...)}
	b.fleet, err = New(s.Program, b.rules, soakServices, store.URLs, "--replicas", fmt.Sprint(soakServices))
	if err != nil {
		return err
	}
	defer b.fleet.Close()
	b.fleet.Warm()
	t := &totals{days: map[string]int{}}
	fmt.Fprintf(s.Out, "%s, seed %d\n", store.Version, s.Seed)
	for round := range s.Rounds {
		f := Faults[r.IntN(len(Faults))]
		for f.Kind != Single || f.Clock || strings.HasPrefix(f.Name, "reload") {
			f = Faults[r.IntN(len(Faults))]
		}
		if err := s.round(b, t, r, round, f); err != nil {
			return fmt.Errorf("round %d, %s: %w", round, f.Name, err)
		}
	}
	if err := t.flat(); err != nil {
		return err
	}
	for _, service := range b.fleet.Services {
		if err := service.Stop(); err != nil {
			return err
		}
	}
	return nil
}

// totals are the sums of all rounds.
type totals struct {
	days    map[string]int // admitted by key
	forgets int            // units of a key that stores may have forgotten
	sizes   []size
	lost    int // how often services have lost their store
}

// size is of all services together.
type size struct{ kB, goroutines int }

// round loads the fleet for a round with a fault in it, and judges it.
func (s *Soak) round(b *bench, t *totals, r *rand.Rand, round int, f Fault) error {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(s.Seed, uint64(round))), 1.5, 1, soakKeys-1)
	keys := make([][2]string, 1<<14)
	for i := range keys {
		keys[i] = [2]string{soakLimits[r.IntN(len(soakLimits))].Name, strconv.FormatUint(zipf.Uint64(), 10)}
	}
	before := t.lost
	began := time.Now()
	end := began.Add(s.Every)
	load := Load{Rate: s.Rate, Next: func(i int) (string, string) { k := keys[i%len(keys)]; return k[0], k[1] }}
	loaded := make(chan []Call, 1)
	go func() { loaded <- load.Until(b.fleet.Services, end) }()
	time.Sleep(s.Every / 3)
	err := f.Begin(b)
	time.Sleep(s.Every / 3)
	if ended := f.End(b); err == nil {
		err = ended
	}
	calls := <-loaded
	if err != nil {
		return err
	}
	ended := time.Now()
	err = b.fleet.Healed()
	heal := time.Since(ended)
	if err != nil {
		return err
	}
	t.forgets += f.Forgets
	t.lost = 0
	for _, service := range b.fleet.Services {
		lost, _ := service.Modes() // since it began
		t.lost += lost
	}
	// On a busy machine services lose their store by themselves, and then each at another time.
	f.Apart = f.Apart || t.lost > before+soakServices
	if err := t.judge(calls, f); err != nil {
		return err
	}
	now, err := b.size()
	if err != nil {
		return err
	}
	t.sizes = append(t.sizes, now)
	longest, p99 := Longest(calls)
	fmt.Fprintf(s.Out, "%3d %-28s %6d calls, %6d admitted, longest %v, p99 %v, lost %d times, healed in %v, %d forgiven of days so far, %d MB, %d goroutines\n", round, f.Name, len(calls), Admitted(calls),
		longest.Round(time.Millisecond), p99.Round(time.Millisecond), t.lost-before, heal.Round(time.Millisecond), t.forgiven(), now.kB/1024, now.goroutines)
	return nil
}

// forgiven is how many units of a day were admitted beyond its limit, of all keys.
func (t *totals) forgiven() (n int) {
	for _, admitted := range t.days {
		n += max(0, admitted-soakLimits[2].Requests)
	}
	return n
}

// judge returns the broken promise of each key: all that its limit admits, and where a fault leaves services without their
// store, a burst more; those that are alone without it admit their shares besides.
func (t *totals) judge(calls []Call, f Fault) error {
	if n, err := Errors(calls); n > 0 {
		return fmt.Errorf("%d calls failed: %w", n, err)
	}
	of := map[[2]string][]Call{}
	for _, c := range calls {
		of[[2]string{c.Key, c.Value}] = append(of[[2]string{c.Key, c.Value}], c)
	}
	for key, calls := range of {
		for _, l := range soakLimits {
			if l.Name != key[0] {
				continue
			}
			if err := t.judgeKey(&l, key, calls, f); err != nil {
				return fmt.Errorf("%v: %w", key, err)
			}
		}
	}
	return nil
}

func (t *totals) judgeKey(l *Limit, key [2]string, calls []Call, f Fault) error {
	switch {
	case l.Unit == "day":
		// The window of a share is not over either, so all outages together admit the shares at most, each of which is rounded up.
		t.days[key[1]] += Admitted(calls)
		if most := 2*l.Requests + soakServices + t.forgets; t.days[key[1]] > most {
			return fmt.Errorf("the day admitted %d, and at most %d may be", t.days[key[1]], most)
		}
		return nil
	case l.Algorithm == sluice.FixedWindow:
		tally := Count(calls, l.Period(), 0)
		return tally.Within(2*l.Requests + f.Forgets) // the hits that the store has admitted in a window, and the shares
	}
	worst, err := l.worst()
	if err != nil {
		return err
	}
	more := worst
	if f.Apart {
		half := Limit{Algorithm: l.Algorithm, Requests: l.Requests / 2, Unit: l.Unit}
		share, err := half.worst()
		if err != nil {
			return err
		}
		more = func(d time.Duration) int { return worst(d) + share(d) }
	}
	// Until all have found out, some admit what the limit does, and others their shares: the wait is a budget and a probe's.
	found := l.Requests/2 + 1
	return Spans(calls, l.Requests+found+f.Forgets, more)
}

// size returns the memory and goroutines of the services.
func (b *bench) size() (size, error) {
	var sum size
	for _, s := range b.fleet.Services {
		if _, err := s.Get("debug", "/debug/pprof/heap?gc=1"); err != nil { // garbage is nobody's growth
			return sum, err
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
		if err != nil {
			return sum, err
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		kB, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			return sum, err
		}
		n, err := s.Metric("go_goroutines")
		if err != nil {
			return sum, err
		}
		sum.kB += kB
		sum.goroutines += int(n)
	}
	return sum, nil
}

// flat returns an error if the last third of the rounds is larger than the middle third, and more.
func (t *totals) flat() error {
	n := len(t.sizes)
	if n < 3 {
		return nil
	}
	most := func(s []size) size {
		return size{
			slices.MaxFunc(s, func(a, b size) int { return a.kB - b.kB }).kB,
			slices.MaxFunc(s, func(a, b size) int { return a.goroutines - b.goroutines }).goroutines,
		}
	}
	before, after := most(t.sizes[n/3:n*2/3]), most(t.sizes[n*2/3:])
	if after.kB > before.kB*5/4+20<<10 || after.goroutines > before.goroutines*3/2+60 {
		return fmt.Errorf("it grows: from %d MB and %d goroutines to %d MB and %d", before.kB/1024, before.goroutines, after.kB/1024, after.goroutines)
	}
	return nil
}
