package oracle

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// TestWorstCaseValues is computed by hand.
func TestWorstCaseValues(t *testing.T) {
	type want map[int64]int64
	for _, tt := range []struct {
		c    Config
		want want
	}{
		{Config{Algorithm: GCRA, Rate: 2, Period: 10, Burst: 3}, want{-1: 0, 0: 3, 4: 3, 5: 4, 10: 5, 14: 5, 15: 6}},
		{Config{Algorithm: TokenBucket, Rate: 3, Period: 10, Burst: 2}, want{0: 2, 3: 2, 4: 3, 6: 3, 7: 4, 10: 5}},
		// 1.2 ticks a ns, 4 ticks a unit: 3 ns can be 4 ticks.
		{Config{Algorithm: LeakyBucket, Rate: 3, Period: 10, Burst: 2, Grid: true}, want{0: 2, 2: 2, 3: 3, 6: 4, 7: 4, 10: 5}},
		{Config{Algorithm: TokenBucket, Interval: true, Rate: 3, Period: 10, Burst: 5}, want{-1: 0, 0: 5, 1: 8, 10: 8, 11: 11, 20: 11}},
		{Config{Algorithm: TokenBucket, Interval: true, Rate: 3, Period: 10, Burst: 2}, want{0: 2, 1: 4, 10: 4, 11: 6}},
		{Config{Algorithm: FixedWindow, Rate: 3, Period: 10}, want{-1: 0, 0: 3, 1: 6, 10: 6, 11: 9, 20: 9}},
		{Config{Algorithm: SlidingLog, Rate: 3, Period: 10}, want{-1: 0, 0: 3, 9: 3, 10: 6, 19: 6, 20: 9}},
		{Config{Algorithm: SlidingWindow, Rate: 4, Period: 10}, want{-1: 0, 0: 4, 1: 4, 3: 4, 4: 5, 6: 6, 10: 7, 11: 8}},
		{Config{Algorithm: InFlight, Rate: 3, Period: 10}, want{-1: 0, 0: math.MaxInt64, 10: math.MaxInt64}},
		{Config{Period: 1}, want{-1: 0, 0: 0, math.MaxInt64: 0}},
		{Config{Rate: math.MaxInt64}, want{-1: 0, 0: math.MaxInt64, math.MaxInt64: math.MaxInt64}},
	} {
		for d, n := range tt.want {
			assert.Equal(t, big.NewInt(n).String(), New(tt.c).WorstCase(d).String(), "%+v d %d", tt.c, d)
		}
	}
	huge := New(Config{Algorithm: FixedWindow, Rate: math.MaxInt64 - 1, Period: 1})
	assert.Equal(t, "85070591730234615838173535747377725442", huge.WorstCase(math.MaxInt64-1).String(),
		"(2^63-2) * (2^63-1), not saturated")
}

// TestWorstCaseHolds: on random traces, of which every other takes all it can
// get, no closed span between two charges holds more than its worst case.
func TestWorstCaseHolds(t *testing.T) {
	eachConfig(t, 120, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		tr := newTrace(rng, c)
		greedy := rng.IntN(2) == 0
		var calls, charges []charge
		newest := int64(0)
		for range 60 {
			now, cost := tr.next()
			now = max(now, 0)
			if greedy {
				cost = m.Peek("k", now, 0).Remaining
			}
			if d := m.Take("k", now, cost); d.Allowed && cost > 0 {
				newest = max(newest, now)
				calls = append(calls, charge{now, cost})
				charges = append(charges, charge{newest, cost})
			}
		}
		requireBounded(t, m, charges)
		if !c.aligned() && !c.FirstCharge {
			requireBounded(t, m, calls)
		}
	})
}

type charge struct{ at, n int64 }

// worstKept is WorstCase of units that nobody gives back.
func worstKept(m *Model, d int64) *big.Int {
	if c := m.main.cfg; c.Algorithm == InFlight {
		return worstInFlight(c, d)
	}
	return m.WorstCase(d)
}

// worstInFlight is R, of units that are not given back, for each charge of R that a span can hold. A charge in
// window k keeps out all others until window k+2 begins. So of two charges of R that a span holds one after the
// other, from its start on, the n-th comes (2n-1)*P + 1 - P ns after the first at the earliest, where the first comes in
// the last instant of its window.
func worstInFlight(c Config, d int64) *big.Int {
	n := big.NewInt(d)
	n.Add(n, big.NewInt(c.Period-1))
	n.Quo(n, new(big.Int).Lsh(big.NewInt(c.Period), 1))
	n.Add(n, one)
	return n.Mul(n, big.NewInt(c.Rate))
}

// requireBounded checks every closed span that begins and ends with a charge.
func requireBounded(t *testing.T, m *Model, charges []charge) {
	t.Helper()
	for _, from := range charges {
		for _, to := range charges {
			if to.at < from.at {
				continue
			}
			sum := new(big.Int)
			for _, c := range charges {
				if from.at <= c.at && c.at <= to.at {
					sum.Add(sum, big.NewInt(c.n))
				}
			}
			d := to.at - from.at
			require.LessOrEqual(t, sum.Cmp(worstKept(m, d)), 0, "%+v d %d: %s admitted, worst case %s", m.main.cfg, d, sum, worstKept(m, d))
		}
	}
}

// TestWorstCaseTight finds, by trying everything, the most that can be admitted
// in any span of d ns: from every state that any history can lead to, at every
// phase of the windows and of the grid, and with every way to spend. It is
// never more than WorstCase, and exactly that where WorstCase says so.
func TestWorstCaseTight(t *testing.T) {
	longest := int64(depth.Of(6, 6, 9))
	for _, k := range kinds {
		t.Run(kindName(k), func(t *testing.T) {
			checked, tight := 0, 0
			for rate := int64(1); rate <= 4; rate++ {
				for period := int64(1); period <= 5; period++ {
					for _, c := range smallConfigs(k, rate, period) {
						most := mostAdmitted(New(c), longest)
						for d := int64(0); d <= longest; d++ {
							bound := worstKept(New(c), d).Int64()
							where := fmt.Sprintf("%+v d %d", c, d)
							require.LessOrEqual(t, most[d], bound, where)
							checked++
							if promisedTight(c, d) {
								tight++
								require.Equal(t, bound, most[d], where)
							}
							if c.FirstCharge && d%period != 0 {
								require.Equal(t, bound-1, most[d], where)
							}
						}
					}
				}
			}
			t.Logf("%d spans, %d of them promised tight", checked, tight)
		})
	}
}

// smallConfigs are the configs to try: one for a window, bursts and grids for
// the GCRA family.
func smallConfigs(c Config, rate, period int64) []Config {
	c.Rate, c.Period = rate, period
	var cs []Config
	if c.Algorithm >= SlidingWindow {
		cs = append(cs, c)
		for c.Offset = 1; c.Offset < period && c.aligned(); c.Offset += 2 {
			cs = append(cs, c)
		}
		return cs
	}
	for burst := int64(1); burst <= 5; burst++ {
		for _, grid := range []bool{false, true} {
			c.Burst, c.Grid = burst, grid
			cs = append(cs, c)
		}
	}
	return cs
}

// promisedTight repeats what the comment of WorstCase says.
func promisedTight(c Config, d int64) bool {
	switch c.Algorithm {
	case FixedWindow, SlidingLog:
		return !c.FirstCharge || d%c.Period == 0
	case TokenBucket:
		if c.Interval {
			return true
		}
	case SlidingWindow:
		return d <= c.Period
	}
	return c.Period%c.Rate == 0 || c.Burst*c.Period >= c.Rate+c.Period
}

// mostAdmitted returns, for each d, the most that any sequence of calls, in
// order of time, can be admitted in a closed span of d ns.
func mostAdmitted(m *Model, longest int64) []int64 {
	most := make([]int64, longest+1)
	s := &search{memo: map[string]int64{}}
	// Phases repeat with the period. Two periods of history lead to every state
	// that a longer one leads to.
	reach := map[string]state{"": m.main.fresh()}
	for from := int64(0); from < 3*m.main.cfg.Period; from++ {
		next := map[string]state{}
		for _, st := range reach {
			for d := range most {
				most[d] = max(most[d], s.best(st, from, from+int64(d)))
			}
			eachSpend(st, from, func(after state, _ int64) { next[fingerprint(after, from)] = after })
		}
		reach = next
	}
	return most
}

// search remembers what is left to gain from a state.
type search struct{ memo map[string]int64 }

// best returns the most that can be admitted from t to end, both included.
func (s *search) best(st state, t, end int64) int64 {
	if t > end {
		return 0
	}
	id := fmt.Sprint(fingerprint(st, t), "|", t, end)
	if known, ok := s.memo[id]; ok {
		return known
	}
	most := int64(0)
	eachSpend(st, t, func(after state, n int64) { most = max(most, n+s.best(after, t+1, end)) })
	s.memo[id] = most
	return most
}

// eachSpend calls f with the state after every cost that can be taken at t, 0
// included.
func eachSpend(st state, t int64, f func(after state, n int64)) {
	f(st, 0)
	for n := int64(1); n <= 5 && st.admits(t, n); n++ {
		after := st.clone()
		after.charge(t, n)
		f(after, n)
	}
}

// fingerprint returns a string that two states share only if they behave alike at t
// and later.
func fingerprint(st state, t int64) string {
	switch s := st.(type) {
	case *gcra:
		if s.idle(t) {
			return ""
		}
		return s.tat.String()
	case *tokenBucket:
		return s.tokensAt(s.at(t)).String()
	case *tokenInterval:
		return s.tokensAt(t).String()
	case *leakyBucket:
		return s.levelAt(s.at(t)).String()
	case *firstChargeWindow:
		if s.idle(t) {
			return ""
		}
		return s.start.String() + " " + s.count.String()
	case *fixedWindow:
		return s.used(t).String()
	case *slidingWindow:
		s.view(t)
		return s.atPrev.String() + " " + s.atCur.String()
	case *slidingLog:
		id := ""
		for _, step := range s.steps {
			if step.at.Int64() > t-s.period.Int64() {
				id += fmt.Sprint(step.at, ":", new(big.Int).Sub(s.ever(), step.upTo), " ")
			}
		}
		return id + s.counting(t).String()
	default:
		panic("unknown state")
	}
}
