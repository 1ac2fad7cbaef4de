package peers

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// century makes limits that give nothing back while a test runs. Windows that are
// aligned to the epoch by the hour would end in the middle of one now and then.
const century = 100 * 365 * 24 * time.Hour

func newLimiter(t *testing.T, s Subject, o Options) Limiter {
	t.Helper()
	l, err := s.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestAll_NamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		if s.Name == "" || seen[s.Name] {
			t.Errorf("name %q is empty or not unique", s.Name)
		}
		seen[s.Name] = true
		if (s.Module == "") != (s.Kind == Baseline || s.Kind == Approximate) {
			t.Errorf("%s: module %q of kind %s", s.Name, s.Module, s.Kind)
		}
	}
}

// Each of 1000 keys has a budget of its own, and is admitted exactly that.
func TestSubjects_TrackKeysApart(t *testing.T) {
	const keys, limit, calls = 1000, 3, 5
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			want, rounds := limit, calls
			switch {
			case !s.HasKeys():
				t.Skip("cannot tell keys apart, by nature")
			case s.Blocks:
				// A second call would wait for 33 years. That the first one of each key
				// does not wait shows that the keys are apart.
				want, rounds = 1, 1
			}
			l := newLimiter(t, s, Options{Rate: limit, Period: century, Burst: limit, Expect: keys})
			admitted := make([]int, keys)
			for range rounds {
				for k := range keys {
					if l.Allow(fmt.Sprintf("user:%07d", k)) {
						admitted[k]++
					}
				}
			}
			for k, n := range admitted {
				if n != want {
					t.Fatalf("key %d: %d of %d calls admitted, want %d", k, n, rounds, want)
				}
			}
			if n := l.Keys(); n != -1 && n != keys {
				t.Errorf("Keys() = %d, want %d", n, keys)
			}
		})
	}
}

// Of an approximate subject no key has more than its budget, most have all of it, and some share one.
func TestSubjects_ApproximateOnesShareSomeBudgets(t *testing.T) {
	const keys, limit = 1000, 3
	l := newLimiter(t, hashedBuckets(), Options{Rate: limit, Period: century, Burst: limit, Expect: keys})
	counts := make([]int, limit+1)
	for k := range keys {
		admitted := 0
		for range limit + 2 {
			if l.Allow(fmt.Sprintf("user:%07d", k)) {
				admitted++
			}
		}
		if admitted > limit {
			t.Fatalf("key %d: %d admitted, want at most %d", k, admitted, limit)
		}
		counts[admitted]++
	}
	if counts[limit] < keys/2 || counts[0] == 0 {
		t.Errorf("keys by admitted calls: %v, want most at %d, and some without any", counts, limit)
	}
}

// A full bucket is no fuller for having been full for long.
func TestHashed_Refill(t *testing.T) {
	h := newHashed(Options{Rate: 1, Period: 10, Burst: 3, Expect: 1})
	for _, c := range []struct{ units, stamp, now, want, since int64 }{
		{2, 100, 109, 2, 100},
		{2, 100, 110, 3, 110},
		{0, 100, 129, 2, 120},
		{0, 100, 1_000_007, 3, 1_000_000},
		{3, 100, 1_000_007, 3, 1_000_000},
		{1, 100, 90, 1, 100},
	} {
		if units, since := h.refilled(c.units, c.stamp, c.now); units != c.want || since != c.since {
			t.Errorf("%+v: %d since %d", c, units, since)
		}
	}
}

// A blocking subject keeps its rate: 20 calls at 1 per ms take at least 19 ms.
func TestSubjects_BlockingOnesKeepTheRate(t *testing.T) {
	for _, s := range All() {
		if !s.Blocks {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			l := newLimiter(t, s, Options{Rate: 1, Period: time.Millisecond, Burst: 1})
			start := time.Now()
			for range 20 {
				l.Allow("k")
			}
			// The burst may let one call through early.
			if d := time.Since(start); d < 18*time.Millisecond {
				t.Errorf("20 calls took %v, want at least 18ms", d)
			}
		})
	}
}

// Goroutines that charge one key at once are admitted the burst and no more. The
// burst is large enough for them to meet: with 100, a lost update went unnoticed.
func TestSubjects_AreExactOnOneKey(t *testing.T) {
	const goroutines = 8
	large := 100_000
	if testing.Short() {
		large = 10_000
	}
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			if s.Blocks {
				t.Skip("denies nobody, so there is nothing to count")
			}
			for _, burst := range []int{100, large} {
				if s.Kind == Approximate {
					burst = min(burst, HashedBurst)
				}
				l := newLimiter(t, s, Options{Rate: burst, Period: century, Burst: burst, Expect: 1})
				got := together(goroutines, func() (admitted int64) {
					for range burst {
						if l.Allow("user:0000000") {
							admitted++
						}
					}
					return admitted
				})
				if got != int64(burst) {
					t.Errorf("burst %d: %d admitted", burst, got)
				}
			}
		})
	}
}

// Goroutines that show the same new keys in the same order catch up with the one
// that makes them, and so race to make the next: each key has one budget all the
// same.
func TestSubjects_AreExactOnNewKeys(t *testing.T) {
	const goroutines, keys = 8, 20_000
	names := make([]string, keys)
	for k := range names {
		names[k] = fmt.Sprintf("user:%07d", k)
	}
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			if s.Blocks || !s.HasKeys() {
				t.Skip("denies nobody, or cannot tell keys apart")
			}
			l := newLimiter(t, s, Options{Rate: 1, Period: century, Burst: 1, Expect: keys})
			got := together(goroutines, func() (admitted int64) {
				for _, key := range names {
					if l.Allow(key) {
						admitted++
					}
				}
				return admitted
			})
			if got != keys {
				t.Errorf("%d admitted, want %d, one a key", got, keys)
			}
		})
	}
}

// together runs f in all goroutines at once and adds up what it returns.
func together(goroutines int, f func() int64) int64 {
	var wg sync.WaitGroup
	var sum atomic.Int64
	start := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-start
			sum.Add(f())
		})
	}
	close(start)
	wg.Wait()
	return sum.Load()
}

// A batch decides as Allow does, one key after the other.
func TestSubjects_BatchesDecideAsAllow(t *testing.T) {
	const keys, limit = 10, 3
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			if s.Blocks {
				t.Skip("denies nobody, so there is nothing to count")
			}
			l := newLimiter(t, s, Options{Rate: limit, Period: century, Burst: limit, Expect: keys})
			b, ok := l.(Batcher)
			if ok != s.Batches {
				t.Fatalf("it is a Batcher: %v, want %v", ok, s.Batches)
			}
			if !ok {
				return
			}
			batch := b.Batch(keys)
			decide := batch.Allow
			allow := func() int {
				for k := range keys {
					batch.Add(fmt.Sprintf("user:%07d", k))
				}
				return decide()
			}
			for call := range limit + 2 {
				want := keys
				if call >= limit {
					want = 0
				}
				if call == 1 {
					decide = batch.AllowSingly
				}
				if got := allow(); got != want {
					t.Errorf("call %d: %d admitted, want %d", call, got, want)
				}
				decide = batch.Allow
			}
			decide = batch.AllowSingly
			if got := allow(); got != 0 {
				t.Errorf("one by one: %d admitted of spent keys", got)
			}
			if got := batch.Allow(); got != 0 {
				t.Errorf("an empty batch: %d admitted", got)
			}
			if l.Allow("user:0000000") {
				t.Error("a spent key is admitted")
			}
			again := func() { batch.Add("user:0000000"); batch.Add("user:0000001"); batch.Allow() }
			if n := testing.AllocsPerRun(100, again); n != 0 {
				t.Errorf("%v allocations a call", n)
			}
		})
	}
}

func TestSubjects_ThoseThatDenyNewKeepTheKeysTheyHave(t *testing.T) {
	const maxKeys = 5000
	for _, s := range All() {
		if !s.DeniesNew {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			l := newLimiter(t, s, Options{Rate: 2, Period: century, Burst: 2, MaxKeys: maxKeys, DenyNew: true})
			var admitted []string
			for k := range 3 * maxKeys {
				if key := fmt.Sprintf("user:%07d", k); l.Allow(key) {
					admitted = append(admitted, key)
				}
			}
			if len(admitted) > maxKeys || len(admitted) != l.Keys() {
				t.Errorf("%d keys admitted and %d tracked, want as many, at most %d", len(admitted), l.Keys(), maxKeys)
			}
			for _, key := range admitted {
				if !l.Allow(key) || l.Allow(key) {
					t.Fatalf("%s does not have one unit left", key)
				}
			}
		})
	}
}

func TestFastSources_AreOfClosedLimitersOnAFastClock(t *testing.T) {
	total := func() (n int) {
		for source, limiters := range FastSources() {
			if source == "" {
				t.Error("a source without a name")
			}
			n += limiters
		}
		return n
	}
	for _, s := range All() {
		l, err := s.New(Options{Rate: 1, Period: century, Burst: 1, Expect: 1})
		if err != nil {
			t.Fatal(err)
		}
		before := total()
		l.Close()
		if got := total() > before; got != (s.Clock == Fast) {
			t.Errorf("%s: counted: %v", s.Name, got)
		}
	}
}

func TestSubjects_BoundedOnesKeepTheBound(t *testing.T) {
	const maxKeys = 5000
	for _, s := range All() {
		if !s.Bounded {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			l := newLimiter(t, s, Options{Rate: 2, Period: century, Burst: 2, MaxKeys: maxKeys})
			for k := range 3 * maxKeys {
				if !l.Allow(fmt.Sprintf("user:%07d", k)) {
					t.Fatalf("new key %d denied", k)
				}
			}
			if n := l.Keys(); n > maxKeys {
				t.Errorf("Keys() = %d, want at most %d", n, maxKeys)
			}
			// Where Keys cannot tell, a spent key that is fresh again shows that the
			// early ones were dropped.
			if l.Keys() == -1 {
				for i := range 2 {
					if !l.Allow("user:0000000") {
						t.Errorf("call %d on the oldest key denied, want the key dropped", i)
					}
				}
			}
		})
	}
}
