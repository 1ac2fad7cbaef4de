package limittest

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// bruteForce looks at all spans of the records: from each from to each to. It returns the shortest one that holds more
// than most allows for certain, the first of several, or nil.
func bruteForce(records []record, most func(d int64) *big.Int) *Violation {
	var shortest *Violation
	for _, end := range records {
		for _, begin := range records {
			sum := certain(records, begin.from, end.to)
			if begin.from > end.to || big.NewInt(sum).Cmp(most(end.to-begin.from)) <= 0 {
				continue
			}
			if v := (&Violation{From: begin.from, To: end.to, Admitted: int(sum)}); shortest == nil || v.Span() < shortest.Span() {
				shortest = v
			}
		}
	}
	return shortest
}

// certain is how much was admitted in a span wherever the calls were in theirs.
func certain(records []record, from, to int64) (sum int64) {
	for _, r := range records {
		if from <= r.from && r.to <= to {
			sum += int64(r.cost)
		}
	}
	return sum
}

// bucketBound is Bucket in big numbers.
func bucketBound(limit sluice.Limit) func(d int64) *big.Int {
	return func(d int64) *big.Int {
		n := new(big.Int).Mul(big.NewInt(d), big.NewInt(int64(limit.Rate)))
		return n.Add(n.Quo(n, big.NewInt(int64(limit.Period))), big.NewInt(int64(limit.Capacity())))
	}
}

// randomRecords draws calls in order that go about as fast as the limit; width is by how much the times of each are unknown.
func randomRecords(rng *rand.Rand, limit sluice.Limit, width int64) []record {
	records := make([]record, 1+rng.IntN(40))
	interval := max(1, int64(limit.Period)/int64(limit.Rate))
	at, last := rng.Int64N(1000), int64(0)
	for i := range records {
		cost := 1 + rng.IntN(3)
		switch rng.IntN(4) {
		case 0:
		case 1:
			at += rng.Int64N(2*interval + 1)
		default:
			at += int64(cost)*interval + rng.Int64N(3) - 1
		}
		at = max(at, 0)
		if i > 0 {
			at = max(at, records[i-1].from)
		}
		last = max(last, at+rng.Int64N(width+1))
		records[i] = record{at, last, "k", cost}
	}
	return records
}

func randomLimit(rng *rand.Rand) sluice.Limit {
	periods := []time.Duration{1, 3, 7, 10, 100, 1000, time.Second, time.Hour}
	return sluice.Per(1+rng.IntN(12), periods[rng.IntN(len(periods))]).WithBurst(1 + rng.IntN(6))
}

func check(p Promise, records []record) *Violation {
	c := NewChecker(p)
	for _, r := range records {
		c.RecordWithin(r.from, r.to, r.key, r.cost, true)
		h := c.keys[r.key]
		for i := 1; i < len(h.starts); i++ {
			if h.starts[i-1].from >= h.starts[i].from || p.line != nil && h.returned(h.starts[i-1], h.starts[i]) {
				panic(fmt.Sprintf("starts %d and %d of %v", i-1, i, h.starts))
			}
		}
	}
	return c.Violation()
}

// TestChecker_FindsTheShortestSpan: of records in order, what brute force finds.
func TestChecker_FindsTheShortestSpan(t *testing.T) {
	rng := seeded.Rand(t)
	broken, kept, rounds := 0, 0, depth.Of(1_000, 3_000, 50_000)
	for range rounds {
		limit := randomLimit(rng)
		width := []int64{0, 0, 2, int64(limit.Period) / 3}[rng.IntN(4)]
		records := randomRecords(rng, limit, width)
		most := bucketBound(limit)
		want := bruteForce(records, most)
		bound := Bound(func(d time.Duration) int { return int(min(most(int64(d)).Int64(), math.MaxInt)) }, 0)
		for name, p := range map[string]Promise{"Bucket": Bucket(limit), "Bound": bound} {
			got := check(p, records)
			if want == nil {
				kept++
				require.Nil(t, got, "%s %v: %v", name, limit, records)
				continue
			}
			broken++
			require.NotNil(t, got, "%s %v: %v, want %v", name, limit, records, want)
			require.Equal(t, want.Span(), got.Span(), "%s %v: %v, want %v, got %v", name, limit, records, want, got)
			require.Equal(t, certain(records, got.From, got.To), int64(got.Admitted), "%v", records)
			require.Equal(t, most(got.To-got.From).Int64(), int64(got.Most))
		}
	}
	require.Greater(t, broken, rounds/5)
	require.Greater(t, kept, rounds/20)
}

// TestChecker_LateRecordsAreNoFalseAlarm: whatever the order, what is found is a violation; and of calls whose times are
// known, a Recorder finds all.
func TestChecker_LateRecordsAreNoFalseAlarm(t *testing.T) {
	rng := seeded.Rand(t)
	found, missed, rounds := 0, 0, depth.Of(1_000, 3_000, 50_000)
	for range rounds {
		limit := randomLimit(rng)
		width := []int64{0, 2, int64(limit.Period)}[rng.IntN(3)]
		records := randomRecords(rng, limit, width)
		if width > 0 { // calls overlap, and one can be within another
			for i := range records {
				records[i].to = records[i].from + rng.Int64N(width+1)
			}
		}
		rng.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		most := bucketBound(limit)
		want := bruteForce(records, most)
		bound := Bound(func(d time.Duration) int { return int(min(most(int64(d)).Int64(), math.MaxInt)) }, 0)
		r := NewRecorder(nil)
		r.records = records
		for _, got := range []*Violation{check(Bucket(limit), records), check(bound, records), violation(r.Check(Bucket(limit)))} {
			if got != nil {
				found++
				require.GreaterOrEqual(t, certain(records, got.From, got.To), int64(got.Admitted), "%v", records)
				require.Greater(t, big.NewInt(int64(got.Admitted)).Cmp(most(got.To-got.From)), 0, "%v %v: %v", limit, got, records)
			} else if want != nil {
				missed++
			}
		}
		if width == 0 {
			for _, p := range []Promise{Bucket(limit), bound} {
				got := violation(r.Check(p))
				require.Equal(t, want == nil, got == nil, "%v: %v", limit, records)
				if want != nil {
					require.Equal(t, want.Span(), got.Span())
				}
			}
		}
	}
	t.Logf("found %d, missed %d", found, missed)
	require.Greater(t, found, rounds)
}

func violation(err error) *Violation {
	v, _ := err.(*Violation)
	return v
}

// TestBound_Windows: promises with steps, beside brute force over spans up to longest.
func TestBound_Windows(t *testing.T) {
	rng := seeded.Rand(t)
	broken := 0
	for range depth.Of(1_000, 3_000, 50_000) {
		limit := sluice.Per(1+rng.IntN(5), time.Duration(1+rng.IntN(200)))
		records := randomRecords(rng, limit, 0)
		most := func(d time.Duration) int {
			return limit.Rate * (1 + int((d+limit.Period-1)/limit.Period))
		}
		longest := time.Duration(rng.Int64N(4 * int64(limit.Period)))
		want := bruteForce(records, func(d int64) *big.Int {
			if longest > 0 && d > int64(longest) {
				return big.NewInt(math.MaxInt64)
			}
			return big.NewInt(int64(most(time.Duration(d))))
		})
		got := check(Bound(most, longest), records)
		require.Equal(t, want == nil, got == nil, "%v up to %v: %v", limit, longest, records)
		if want != nil {
			broken++
			require.Equal(t, want.Span(), got.Span(), "%v up to %v: %v", limit, longest, records)
		}
	}
	require.Greater(t, broken, 50)
}

// TestChecker_ManyStarts: a debt that goes up in more steps than are kept is found all the same.
func TestChecker_ManyStarts(t *testing.T) {
	limit := sluice.Per(999, 1000*time.Nanosecond).WithBurst(10)
	c := NewChecker(Bucket(limit))
	// A unit each ns, while 0.999 come back: 1 more than the burst is reached after some 10,000.
	at := int64(1)
	for ; c.Err() == nil; at++ {
		require.Less(t, at, int64(11_000))
		c.Record(at, "k", 1, true)
		require.LessOrEqual(t, len(c.keys["k"].starts), maxStarts)
	}
	v := c.Violation()
	most := bucketBound(limit)(int64(v.Span()))
	require.Equal(t, most.Int64()+1, int64(v.Admitted))
	require.Equal(t, int64(v.Most), most.Int64())
	require.Equal(t, int64(9002), at-1, "the first ns at which n > 10 + 0.999 (n-1)")
}

// TestChecker_KeepsFewStarts: a limiter that is asked for more than it admits costs few words a key.
func TestChecker_KeepsFewStarts(t *testing.T) {
	for _, limit := range []sluice.Limit{sluice.PerSecond(100), sluice.PerSecond(7).WithBurst(3), sluice.Per(7, 33*time.Millisecond)} {
		for name, arrivals := range patterns(Traffic{Seed: 1, N: 20_000, Every: 3 * time.Millisecond}, limit) {
			clock := sluice.NewManualClock(time.Time{})
			lim := sluice.Must(sluice.New(sluice.Config{Limit: limit, Clock: clock}))
			c := NewChecker(Of(lim, 0))
			most := 0
			for a := range arrivals {
				clock.Set(time.Unix(0, a.At))
				c.Record(a.At, a.Key, a.Cost, lim.AllowN(a.Key, a.Cost))
				if h := c.keys[a.Key]; h != nil {
					most = max(most, len(h.starts))
				}
			}
			require.NoError(t, c.Err(), name)
			require.Positive(t, c.Admitted())
			t.Logf("%v, %s: %d starts", limit, name, most)
			require.LessOrEqual(t, most, maxStarts, name)
		}
	}
}

// TestChecker_ExactlyAtItsRate: what has come back to the nanosecond leaves one start.
func TestChecker_ExactlyAtItsRate(t *testing.T) {
	c := NewChecker(Bucket(sluice.PerSecond(1)))
	for i := range int64(1000) {
		c.Record(i*int64(time.Second), "k", 1, true)
		require.Len(t, c.keys["k"].starts, 1)
	}
	require.NoError(t, c.Err())
}

// TestChecker_ALateRecordCounts: with all that came after it.
func TestChecker_ALateRecordCounts(t *testing.T) {
	for _, p := range []Promise{Bucket(sluice.PerHour(2)), Bound(func(time.Duration) int { return 2 }, 0)} {
		got := check(p, []record{{10, 10, "k", 1}, {20, 20, "k", 1}, {5, 5, "k", 1}})
		require.Equal(t, &Violation{Key: "k", From: 5, To: 20, Admitted: 3, Most: 2}, got)
	}
}

func TestChecker_KeysAreApart(t *testing.T) {
	c := NewChecker(Bucket(sluice.PerSecond(2)))
	for _, key := range []string{"a", "b", "a", "b"} {
		c.Record(1, key, 1, true)
	}
	require.NoError(t, c.Err())
	c.Record(5, "b", 1, true)
	c.Record(5, "a", 3, true)
	c.Record(5, "c", 2, true)
	require.Equal(t, &Violation{Key: "a", From: 5, To: 5, Admitted: 3, Most: 2}, c.Violation(), "the shorter one")
	require.EqualError(t, c.Err(), `limittest: key "a" was admitted 3 units within 0s, from 5 to 5 ns; the promise is at most 2`)
	require.Equal(t, uint64(10), c.Admitted())
	v := c.Violation()
	v.Key = "z"
	require.Equal(t, "a", c.Violation().Key, "a copy")
}

func TestChecker_NothingAdmittedIsNothing(t *testing.T) {
	c := NewChecker(Bucket(sluice.DenyAll))
	c.Record(1, "a", 1, false)
	c.Record(1, "a", 0, true)
	c.Record(1, "a", math.MinInt, true)
	require.NoError(t, c.Err())
	require.Zero(t, c.Admitted())
	c.Record(-7, "a", 1, true)
	require.Equal(t, &Violation{Key: "a", Admitted: 1}, c.Violation(), "before 1970 is 1970")
	require.PanicsWithValue(t, "limittest: RecordWithin: from 7 to 6 goes back in time; want two times in order",
		func() { c.RecordWithin(7, 6, "a", 1, true) })
}

// TestChecker_LargeNumbers: units beyond what a word holds, and the ends of time.
func TestChecker_LargeNumbers(t *testing.T) {
	const end = math.MaxInt64
	for _, c := range []struct {
		limit   sluice.Limit
		records []record
		breaks  bool
	}{
		{sluice.Per(math.MaxInt-1, math.MaxInt64), []record{{0, 0, "k", math.MaxInt - 1}}, false},
		{sluice.Per(math.MaxInt-1, math.MaxInt64), []record{{0, 0, "k", math.MaxInt - 1}, {0, 0, "k", 1}}, true},
		{sluice.Per(math.MaxInt-1, math.MaxInt64), []record{{0, 0, "k", math.MaxInt - 1}, {end, end, "k", math.MaxInt - 1}}, false},
		{sluice.Per(math.MaxInt-1, 1), []record{{5, 6, "k", math.MaxInt}}, false},
		{sluice.Per(math.MaxInt-1, 1), slices.Repeat([]record{{5, 6, "k", math.MaxInt}}, 9), true},
		{sluice.Per(1, math.MaxInt64), []record{{0, 0, "k", 1}, {end, end, "k", 1}}, false},
		{sluice.Per(1, math.MaxInt64), []record{{1, 1, "k", 1}, {end, end, "k", 1}}, true},
		{sluice.Unlimited, slices.Repeat([]record{{5, 5, "k", math.MaxInt}}, 9), false},
	} {
		if c.limit == sluice.Per(math.MaxInt-1, 1) && math.MaxInt == math.MaxInt32 {
			continue // an int cannot say more than such a limit admits in 1 ns
		}
		assert.Equal(t, c.breaks, check(Bucket(c.limit), c.records) != nil, "%v: %v", c.limit, c.records)
	}
}

// TestChecker_BeyondAWord: units of long spans, for which there is no bound, that come to 2^64 hide no violation within a short one.
func TestChecker_BeyondAWord(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("an int is too small to come to 2^64 in few records")
	}
	const quarter = math.MaxInt/2 + 1
	c := NewChecker(Bound(func(d time.Duration) int {
		switch {
		case d == 0:
			return quarter
		case d < 10:
			return quarter + 1
		}
		return math.MaxInt
	}, 0))
	for at := range int64(4) {
		c.Record(10*at, "k", quarter, true)
	}
	require.NoError(t, c.Err())
	c.Record(31, "k", 2, true)
	require.Equal(t, &Violation{Key: "k", From: 30, To: 31, Admitted: quarter + 2, Most: quarter + 1}, c.Violation())
}

// TestPlanted: one unit too many, in a million calls, and nothing before.
func TestPlanted(t *testing.T) {
	rng := seeded.Rand(t)
	n := depth.Of(20_000, 100_000, 1_000_000)
	for a := sluice.GCRA; a <= sluice.FixedWindow; a++ {
		p := newPlant(t, a, n, rng.Uint64())
		at := n/2 + rng.IntN(n/4)
		kept, broken := p.run(-1), p.run(at)
		require.NoError(t, kept, a)
		v := violation(broken)
		require.NotNil(t, v, "%v: not found after %d", a, at)
		assert.Equal(t, v.Most+1, v.Admitted, a)
		t.Logf("%v: %v", a, v)
	}
}

// A plant is a limiter's decisions on calls that ask for more than there is.
type plant struct {
	promise  Promise
	arrivals []Arrival
	admitted []bool
}

func newPlant(tb testing.TB, a sluice.Algorithm, n int, seed uint64) *plant {
	clock, limit := sluice.NewManualClock(time.Time{}), sluice.PerSecond(100)
	lim, err := sluice.New(sluice.Config{Algorithm: a, Limit: limit, Clock: clock})
	require.NoError(tb, err)
	p := &plant{promise: Of(lim, 3*time.Second)}
	traffic := Traffic{Seed: seed, N: n, Every: time.Millisecond, Keys: 3}
	arrivals := traffic.Poisson()
	if a == sluice.SlidingWindow || a == sluice.FixedWindow || a == sluice.TokenBucketInterval { // which admit as much as they may around a boundary only
		arrivals = traffic.Boundary(sluice.PerSecond(101))
	}
	for a := range arrivals {
		clock.Set(time.Unix(0, a.At))
		p.arrivals = append(p.arrivals, a)
		p.admitted = append(p.admitted, lim.Allow(a.Key))
	}
	return p
}

// run checks the decisions, with one more call admitted: the first of those from at on that were denied.
func (p *plant) run(at int) error {
	c := NewChecker(p.promise)
	for i, a := range p.arrivals {
		admitted := p.admitted[i]
		if at >= 0 && i >= at && !admitted {
			at, admitted = -1, true
		}
		c.Record(a.At, a.Key, a.Cost, admitted)
	}
	return c.Err()
}

func BenchmarkChecker(b *testing.B) {
	for _, a := range []sluice.Algorithm{sluice.GCRA, sluice.SlidingLog, sluice.FixedWindow} {
		p := newPlant(b, a, 1_000_000, 1)
		b.Run(fmt.Sprintf("a million records, one unit too many, %v", a), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p.run(900_000) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}

// TestChecker_AllocatesNothing: a record of a key that is known.
func TestChecker_AllocatesNothing(t *testing.T) {
	c := NewChecker(Bucket(sluice.PerSecond(10)))
	at := int64(0)
	record := func() {
		for range 10 {
			at += int64(time.Second) / 9
			c.Record(at, "k", 1, true)
		}
	}
	record()
	require.Zero(t, testing.AllocsPerRun(100, record))
}
