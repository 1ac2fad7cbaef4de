package oracle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// all is every algorithm; family is those that must agree with one another.
var (
	all    = []Algorithm{GCRA, TokenBucket, LeakyBucket, SlidingWindow, SlidingLog, FixedWindow}
	family = []Algorithm{GCRA, TokenBucket, LeakyBucket}
	// kinds are the algorithms with the options that make different models of them.
	kinds = []Config{
		{Algorithm: GCRA}, {Algorithm: TokenBucket}, {Algorithm: LeakyBucket},
		{Algorithm: SlidingWindow}, {Algorithm: SlidingLog}, {Algorithm: FixedWindow},
		{Algorithm: TokenBucket, Interval: true},
		{Algorithm: FixedWindow, FirstCharge: true},
	}
	names = []string{"gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log", "fixed-window"}
)

func kindName(k Config) string {
	name := names[k.Algorithm]
	if k.FirstCharge {
		name += "+first-charge"
	}
	if k.Interval {
		name += "+interval"
	}
	return name
}

// eachConfig runs f for n random configs of every kind at full depth, and for fewer otherwise.
func eachConfig(t *testing.T, n int, f func(t *testing.T, rng *rand.Rand, c Config)) {
	n = depth.Of(n/10, n/5, n)
	for _, k := range kinds {
		t.Run(kindName(k), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range n {
				c := randomConfig(rng)
				c.Algorithm, c.Interval, c.FirstCharge = k.Algorithm, k.Interval, k.FirstCharge
				if c.Algorithm >= SlidingWindow {
					c.Burst = 0
				}
				if c.aligned() && rng.IntN(2) == 0 {
					c.Offset = rng.Int64N(c.Period)
				}
				f(t, rng, c)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// randomConfig mixes tiny numbers, where everything collides, the usual ones,
// and huge ones.
func randomConfig(rng *rand.Rand) Config {
	pick := func() int64 {
		switch rng.IntN(4) {
		case 0:
			return 1 + rng.Int64N(6)
		case 1:
			return 1 + rng.Int64N(1000)
		case 2:
			return int64(math.Pow10(rng.IntN(11)))
		default:
			return 1 + rng.Int64N(math.MaxInt64>>rng.IntN(62)-1)
		}
	}
	c := Config{Rate: pick(), Period: pick(), Burst: pick(), Grid: rng.IntN(2) == 0}
	if rng.IntN(3) == 0 {
		c.Burst = 0
	}
	return c
}

// trace produces the calls of one random trace: mostly close together on the
// scale of the limit, with pauses, jumps to the end of time, and older times.
type trace struct {
	rng   *rand.Rand
	limit int64 // most that can be admitted at once
	scale int64 // ns in which about one unit returns
	fill  int64 // ns in which everything returns
	now   int64
}

func newTrace(rng *rand.Rand, c Config) *trace {
	tr := &trace{rng: rng, limit: c.Burst, scale: max(c.Period/c.Rate, 1)}
	if tr.limit == 0 {
		tr.limit = c.Rate
	}
	if tr.fill = c.Period; tr.limit < math.MaxInt64/tr.scale {
		tr.fill = max(tr.limit*tr.scale, tr.fill)
	}
	if rng.IntN(4) > 0 {
		tr.now = rng.Int64N(math.MaxInt64 >> rng.IntN(62))
	}
	return tr
}

// next returns the time and the cost of the next call.
func (tr *trace) next() (now, cost int64) {
	rng := tr.rng
	step := int64(0)
	switch rng.IntN(16) {
	case 0, 1, 2, 3:
	case 4, 5, 6, 7:
		step = rng.Int64N(tr.scale) + 1
	case 8, 9:
		step = tr.scale
	case 10, 11, 12:
		step = rng.Int64N(tr.fill) + 1
	case 13:
		step = tr.fill
	case 14:
		step = rng.Int64N(math.MaxInt64 >> rng.IntN(62))
	case 15:
		step = 1
	}
	tr.now += min(step, math.MaxInt64-tr.now)
	if rng.IntN(200) == 0 {
		tr.now = math.MaxInt64
	}
	now = tr.now
	if rng.IntN(6) == 0 {
		now -= rng.Int64N(max(2*tr.scale, tr.fill/int64(1+rng.IntN(8))) + 1) // perhaps below 0
	}
	return now, tr.cost()
}

func (tr *trace) cost() int64 {
	switch rng := tr.rng; rng.IntN(12) {
	case 0:
		return 0
	case 1:
		return tr.limit
	case 2:
		return tr.limit/2 + 1
	case 3:
		return 1 + rng.Int64N(tr.limit)
	case 4:
		return []int64{-1, math.MinInt64, math.MaxInt64, min(tr.limit, math.MaxInt64-1) + 1}[rng.IntN(4)]
	default:
		return min(tr.limit, 1+rng.Int64N(3))
	}
}

// TestFamilyAgrees: the bucket models are written as what they are, and decide
// as GCRA does, down to every field.
func TestFamilyAgrees(t *testing.T) {
	rng := seeded.Rand(t)
	var admitted, denied int
	configs := depth.Of(100, 100, 400)
	for range configs {
		c := randomConfig(rng)
		models := make([]*Model, len(family))
		for i, a := range family {
			c.Algorithm = a
			models[i] = New(c)
		}
		tr := newTrace(rng, c)
		for range 100 {
			now, cost := tr.next()
			want := models[0].Take("k", now, cost)
			for i, m := range models[1:] {
				require.Equal(t, want, m.Take("k", now, cost), "%v %+v now %d cost %d", names[family[i+1]], c, now, cost)
				require.Equal(t, models[0].Idle("k", now), m.Idle("k", now))
			}
			if want.Allowed {
				admitted++
			} else {
				denied++
			}
		}
	}
	assert.Greater(t, admitted, 10*configs, "the traces must reach admissions")
	assert.Greater(t, denied, 10*configs, "the traces must reach denials")
}

// TestDecisionIsExact checks each field of a decision against what Take then
// does: RetryAfter to the nanosecond, Remaining to the unit, ResetAfter against
// Idle, and Peek against Take.
func TestDecisionIsExact(t *testing.T) {
	eachConfig(t, 100, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		tr := newTrace(rng, c)
		for range 60 {
			now, cost := tr.next()
			at := max(now, 0)
			before := m.Peek("k", now, 0)
			peek := m.Peek("k", now, cost)
			require.Equal(t, before, m.Peek("k", now, 0), "Peek writes nothing")
			d := m.Take("k", now, cost)
			where := fmt.Sprintf("%+v now %d cost %d: %+v", c, now, cost, d)
			require.Equal(t, peek, d, where)
			if !d.Allowed || cost == 0 {
				require.Equal(t, before, m.Peek("k", now, 0), where)
			}
			require.Equal(t, m.main.limit, d.Limit, where)
			require.Equal(t, d.Allowed, d.RetryAfter == 0, where)

			switch retry := d.RetryAfter; {
			case d.Allowed:
			case cost < 0 || cost > m.main.limit:
				require.Equal(t, Never, retry, where)
			case retry == Never:
				require.False(t, m.Peek("k", math.MaxInt64, cost).Allowed, where)
			default:
				require.True(t, m.Peek("k", at+retry, cost).Allowed, where)
				require.False(t, m.Peek("k", at+retry-1, cost).Allowed, where)
			}
			if d.Remaining > 0 {
				require.True(t, m.Peek("k", now, d.Remaining).Allowed, where)
			}
			require.False(t, d.Remaining < m.main.limit && m.Peek("k", now, d.Remaining+1).Allowed, where)

			require.Equal(t, d.ResetAfter == 0, m.Idle("k", now), where)
			if reset := d.ResetAfter; reset == Never {
				require.False(t, m.Idle("k", math.MaxInt64), where)
			} else {
				require.True(t, m.Idle("k", at+reset), where)
				require.False(t, reset > 0 && m.Idle("k", at+reset-1), where)
			}
		}
	})
}

// TestIdleMeansFresh: from a time at which a key is idle, no sequence of calls
// at that time or later tells it from a fresh key, whatever their order in
// time; and a key that is not idle denies the whole limit, which a fresh key
// admits.
func TestIdleMeansFresh(t *testing.T) {
	eachConfig(t, 100, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		tr := newTrace(rng, c)
		for range 20 {
			m.Take("k", tr.now, tr.cost())
			now, _ := tr.next()
			if !m.Idle("k", now) {
				require.False(t, m.Peek("k", now, m.main.limit).Allowed, "%+v now %d", c, now)
				d := m.Peek("k", now, 0)
				if d.ResetAfter == Never {
					continue
				}
				tr.now = max(now, 0) + d.ResetAfter // the first instant it is idle
			}
			floor := max(now, tr.now)
			tr.now = floor
			m.Reset("fresh")
			for range 10 {
				later, cost := tr.next()
				later = max(later, floor)
				require.Equal(t, m.Take("fresh", later, cost), m.Take("k", later, cost), "%+v now %d cost %d", c, later, cost)
			}
		}
	})
}

// TestOlderTimeIsNoKinder: what is admitted at an older time is also admitted
// at the newest, leaves no more, and is charged as at the newest.
func TestOlderTimeIsNoKinder(t *testing.T) {
	var admitted int
	eachConfig(t, 150, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		tr := newTrace(rng, c)
		newest := int64(0) // newest time of a charge
		for range 60 {
			now, cost := tr.next()
			before := m.Peek("k", newest, cost)
			d := m.Take("k", now, cost)
			if max(now, 0) < newest && d.Allowed && cost > 0 {
				admitted++
				require.True(t, before.Allowed, "%+v now %d newest %d cost %d", c, now, newest, cost)
				after := m.Peek("k", newest, 0)
				require.Equal(t, before.Remaining, after.Remaining)
				require.Equal(t, before.ResetAfter, after.ResetAfter)
				require.LessOrEqual(t, d.Remaining, after.Remaining)
			}
			if d.Allowed && cost > 0 {
				newest = max(newest, now)
			}
		}
	})
	assert.Greater(t, admitted, 50, "the traces must reach admissions at older times")
}

// TestReset: a reset key is fresh, and no other key is touched.
func TestReset(t *testing.T) {
	for _, k := range kinds {
		k.Rate, k.Period = 3, 10
		m := New(k)
		fresh := m.Take("k", 25, 3)
		other := m.Take("other", 25, 2)
		m.Reset("never seen")
		assert.False(t, m.Take("k", 25, 1).Allowed)
		m.Reset("k")
		assert.True(t, m.Idle("k", 0))
		assert.False(t, m.Idle("other", 25))
		assert.Equal(t, fresh, m.Take("k", 25, 3), kindName(k))
		assert.Equal(t, other.Remaining, m.Peek("other", 25, 0).Remaining)
	}
}

// TestConstantLimits: Rate 0 and Rate math.MaxInt64 under every algorithm.
func TestConstantLimits(t *testing.T) {
	for _, a := range all {
		none := New(Config{Algorithm: a, Period: 1})
		every := New(Config{Algorithm: a, Rate: math.MaxInt64})
		for _, cost := range []int64{math.MinInt64, -1, 0, 1, 2, math.MaxInt64} {
			for _, now := range []int64{-5, 0, math.MaxInt64} {
				want := Decision{RetryAfter: Never}
				assert.Equal(t, want, none.Take("k", now, cost))
				assert.Equal(t, want, none.Peek("k", now, cost))

				want = Decision{Allowed: true, Limit: math.MaxInt64, Remaining: math.MaxInt64}
				if cost < 0 {
					want.Allowed, want.RetryAfter = false, Never
				}
				assert.Equal(t, want, every.Take("k", now, cost))
				assert.Equal(t, want, every.Peek("k", now, cost))
			}
		}
		assert.True(t, none.Idle("k", 0))
		assert.True(t, every.Idle("k", 0))
	}
}

// TestNewRefuses: a config outside the contract is a mistake of the test that
// made it.
func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{
		{Rate: -1, Period: 1},
		{Rate: 1, Period: 0},
		{Rate: 1, Period: 1, Burst: -1},
		{Rate: 2, Period: 1, Burst: 3, Algorithm: FixedWindow},
		{Rate: 2, Period: 1, Burst: 3, Algorithm: SlidingWindow},
		{Rate: 2, Period: 1, Burst: 1, Algorithm: SlidingLog},
		{Rate: 2, Period: 1, Algorithm: 7},
		{Rate: 2, Period: 1, Algorithm: InFlight, CountDenied: true},
		{Rate: 2, Period: 10, Algorithm: FixedWindow, Offset: 10},
		{Rate: 2, Period: 10, Algorithm: FixedWindow, Offset: -1},
		{Rate: 2, Period: 10, Algorithm: SlidingLog, Offset: 1},
		{Rate: 2, Period: 10, Algorithm: GCRA, Offset: 1},
		{Rate: 2, Period: 10, Algorithm: TokenBucket, Offset: 1},
		{Rate: 2, Period: 10, Algorithm: LeakyBucket, Interval: true},
		{Rate: 2, Period: 10, Algorithm: SlidingWindow, FirstCharge: true},
		{Rate: 2, Period: 10, Algorithm: FixedWindow, FirstCharge: true, Offset: 1},
	} {
		assert.Panics(t, func() { New(c) }, "%+v", c)
	}
}

// TestConcurrent: one mutex is enough. Run it with -race.
func TestConcurrent(t *testing.T) {
	for _, a := range all {
		m := New(Config{Algorithm: a, Rate: 10, Period: 1000})
		var wg sync.WaitGroup
		var mu sync.Mutex
		admitted := 0
		for range 4 {
			wg.Go(func() {
				for range 50 {
					m.Peek("k", 7, 1)
					m.Take("other", 7, 1)
					m.Reset("other")
					m.Idle("k", 7)
					if m.Take("k", 7, 1).Allowed {
						mu.Lock()
						admitted++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 10, admitted, names[a])
	}
}

// BenchmarkTake measures a Take of a key that is about half denied.
func BenchmarkTake(b *testing.B) {
	for _, a := range all {
		for _, grid := range []bool{false, true} {
			if grid && a >= SlidingWindow {
				continue
			}
			b.Run(fmt.Sprintf("%s/grid=%v", names[a], grid), func(b *testing.B) {
				m := New(Config{Algorithm: a, Rate: 60, Period: int64(time.Second), Grid: grid})
				now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
				b.ReportAllocs()
				for b.Loop() {
					now += int64(time.Second) / 120
					m.Take("k", now, 1)
				}
			})
		}
	}
}

// TestLeastWait_FindsTheFirstMoment, wherever it is, up to the last one and beyond, and whatever
// is guessed.
func TestLeastWait_FindsTheFirstMoment(t *testing.T) {
	from := []int64{0, 1, 2, 3, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxInt64 - 2, math.MaxInt64 - 1, math.MaxInt64}
	rng := seeded.Rand(t)
	for range 200 {
		from = append(from, rng.Int64()>>rng.IntN(63))
	}
	for _, now := range from {
		since := func(first int64) func(int64) bool { return func(u int64) bool { return u >= first } }
		never := func(int64) bool { return false }
		for _, guess := range []int64{0, 1, -1, rng.Int64() >> rng.IntN(63), math.MaxInt64 - now, Never} {
			require.Equal(t, Never, leastWait(now, never, guess))
			require.Zero(t, leastWait(now, since(max(0, now-1)), guess))
			require.Equal(t, math.MaxInt64-now, leastWait(now, since(math.MaxInt64), guess))
		}
		for bits := range 63 {
			for _, wait := range []int64{1<<bits - 1, 1 << bits, 1<<bits + 1, rng.Int64() >> bits} {
				if wait <= math.MaxInt64-now {
					for _, guess := range []int64{0, wait - 1 + rng.Int64N(3), rng.Int64() >> bits, Never} {
						require.Equal(t, wait, leastWait(now, since(now+wait), guess), "from %d, guess %d", now, guess)
					}
				}
			}
		}
	}
}

// TestMost_FindsTheLast number that holds, whatever is guessed.
func TestMost_FindsTheLast(t *testing.T) {
	rng := seeded.Rand(t)
	for range 300 {
		limit := 1 + rng.Int64()>>rng.IntN(63)&(math.MaxInt64-1)
		for _, want := range []int64{0, 1, limit / 2, limit - 1, limit, rng.Int64N(limit + 1)} {
			for _, guess := range []int64{0, want - 1, want, want + 1, limit - 1, limit, rng.Int64(), -1, math.MaxInt64} {
				out := false
				got := most(limit, func(n int64) bool {
					out = out || n < 1 || n > limit
					return n <= want
				}, guess)
				require.Equal(t, want, got, "limit %d, guess %d", limit, guess)
				require.False(t, out, "asked for no cost of this limit, %d, guess %d", limit, guess)
			}
		}
	}
}

// TestGuess_ChangesNothing: a model that is told what to expect, rightly or wrongly, decides like
// one that searches for everything.
func TestGuess_ChangesNothing(t *testing.T) {
	eachConfig(t, 200, func(t *testing.T, rng *rand.Rand, c Config) {
		if c.Algorithm >= SlidingWindow && rng.IntN(2) == 0 {
			c.CountDenied = true
		} else if rng.IntN(2) == 0 {
			c.BlockFor = 1 + rng.Int64N(c.Period)
		}
		plain, guessing := New(c), New(c)
		tr := newTrace(rng, c)
		for range 100 {
			now, cost := tr.next()
			guess := plain.Peek("k", now, cost)
			for _, n := range []*int64{&guess.Remaining, &guess.RetryAfter, &guess.ResetAfter} {
				switch rng.IntN(4) {
				case 0:
					*n += rng.Int64N(3) - 1
				case 1:
					*n = rng.Int64() >> rng.IntN(63)
				case 2:
					*n = Never
				}
			}
			guessing.Guess(guess)
			if rng.IntN(8) == 0 {
				require.Equal(t, plain.Debit("k", now, cost), guessing.Debit("k", now, cost), "%+v at %d charge %d", c, now, cost)
				continue
			}
			require.Equal(t, plain.Peek("k", now, cost), guessing.Peek("k", now, cost), "%+v at %d cost %d", c, now, cost)
			require.Equal(t, plain.Take("k", now, cost), guessing.Take("k", now, cost), "%+v at %d cost %d", c, now, cost)
		}
	})
}

// TestInFlight_ByHand: units count to the end of the window after theirs, unless they are given back, the oldest first.
func TestInFlight_ByHand(t *testing.T) {
	m := New(Config{Algorithm: InFlight, Rate: 3, Period: 10})
	take := func(at, cost int64, allowed bool, remaining, retry int64) {
		t.Helper()
		d := m.Take("k", at, cost)
		assert.Equal(t, allowed, d.Allowed)
		assert.Equal(t, remaining, d.Remaining)
		assert.Equal(t, retry, d.RetryAfter)
	}
	take(9, 2, true, 1, 0)
	take(10, 1, true, 0, 0)
	take(19, 1, false, 0, 1) // the two of 9 lapse at 20
	m.Refund("k", 19, 1)     // one of them
	take(19, 2, false, 1, 1)
	take(20, 2, true, 0, 0) // beside the unit of 10
	take(29, 2, false, 0, 11)
	take(30, 2, false, 1, 10)
	take(40, 3, true, 0, 0)
	for d, worst := range map[int64]int64{0: 3, 10: 3, 11: 6, 30: 6, 31: 9} {
		assert.Equal(t, worst, worstKept(m, d).Int64(), "in %d", d)
	}
}
