package rules

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func (w *world) swap(text string) {
	w.tb.Helper()
	require.NoError(w.tb, w.Swap(mustLoad(w.tb, text)))
}

func oneRule(limit string) string {
	return "domain: d\ndescriptors:\n- {key: k, rate_limit: " + limit + "}\n"
}

// TestSwap_CountsStay: a new threshold meets the old count, and a rule that comes back, too.
func TestSwap_CountsStay(t *testing.T) {
	w := newWorld(t, Config{}, oneRule("{unit: minute, requests_per_unit: 5}"))
	w.ask(withHits("k=a", 4))
	w.swap(oneRule("{unit: minute, requests_per_unit: 10}"))
	require.EqualValues(t, 5, w.one("k=a").Remaining)
	w.swap(oneRule("{unit: minute, requests_per_unit: 3}"))
	require.Equal(t, OverLimit, w.one("k=a").Code)
	w.swap("domain: other\n")
	require.Equal(t, Status{Code: OK}, w.one("k=a"))
	w.swap(oneRule("{unit: minute, requests_per_unit: 10}"))
	require.EqualValues(t, 3, w.one("k=a").Remaining)
	_, n := w.Set()
	require.EqualValues(t, 5, n)
}

// TestSwap_DomainCounters: a domain keeps the counters that it has begun with, its own or not,
// whatever becomes of its settings.
func TestSwap_DomainCounters(t *testing.T) {
	const rule = "descriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 10}}\n"
	own, common := "domain: d\nsluice: {max_keys: 100}\n"+rule, "domain: d\n"+rule
	for _, texts := range [][]string{{own, common, own, own}, {common, own, common, own}} {
		w := newWorld(t, Config{}, texts[0])
		w.one("k=a")
		for i, text := range texts {
			w.swap(text)
			require.EqualValues(t, 8-i, w.one("k=a").Remaining, "%d of %q", i, texts)
		}
	}
}

// TestSwap_Forgets: ten loads without a domain give its statistics up, and the room of its series to others. It counts on
// if it comes back, as long as a key of its counters is not idle.
func TestSwap_Forgets(t *testing.T) {
	const rule = "descriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}\n"
	for _, options := range []string{"", "sluice: {max_keys: 100}\n"} {
		old, next := "domain: d\n"+options+rule, "domain: next\n"+rule
		w := newWorld(t, Config{MaxSeries: 1}, old)
		askNext := func() {
			require.NoError(t, w.Decide(&Request{Domain: "next", Descriptors: []Descriptor{describe("k=a")}}, &w.resp))
		}
		w.one("k=a")
		for range forgetAfter - 1 {
			w.swap(next)
			askNext()
		}
		w.swap(old)
		w.one("k=a")
		require.EqualValues(t, 2, w.series("d.k_a").Total, "nine loads")
		require.EqualValues(t, forgetAfter-1, w.series("other").Total)
		for range forgetAfter {
			w.swap(next)
		}
		require.Equal(t, map[string]Calls{"next": {OK: forgetAfter - 1}}, w.Engine.Stats().Calls)
		askNext()
		require.EqualValues(t, 1, w.series("next.k_a").Total)

		w.swap(old)
		require.EqualValues(t, 7, w.one("k=a").Remaining)
		require.EqualValues(t, 1, w.series("other").Total, "of d, whose series is next's")
		for range forgetAfter {
			w.swap(next)
		}
		w.clock.Advance(48 * time.Hour)
		w.swap(next)
		require.Len(t, w.memory.groups, 1)
		w.swap(old)
		require.EqualValues(t, 9, w.one("k=a").Remaining)
	}
}

// TestSwap_StatsStay: what limiters have counted that are gone stays in the sums.
func TestSwap_StatsStay(t *testing.T) {
	const options = "sluice: {max_keys: 10, overflow: admit-new}\ndescriptors:\n"
	w := newWorld(t, Config{}, "domain: d\n"+options+"- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}\n- {key: own, rate_limit: {unit: day, requests_per_unit: 9, algorithm: gcra}}\n")
	for i := range 20 {
		w.ask(describe(fmt.Sprint("k=", i)), describe(fmt.Sprint("own=", i)))
	}
	require.EqualValues(t, 20, w.Engine.Stats().Untracked)
	w.swap("domain: d\n" + options + "- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	require.EqualValues(t, 20, w.Engine.Stats().Untracked, "the limiter of a rule")
	w.clock.Advance(48 * time.Hour)
	for range forgetAfter {
		w.swap("domain: next\n")
	}
	require.Len(t, w.memory.groups, 1)
	require.EqualValues(t, 20, w.Engine.Stats().Untracked, "the counters of a domain")
}

// TestSwap_OwnLimiters: rules with a limiter, or windows, of their own keep what has been spent
// if only the limit changes.
func TestSwap_OwnLimiters(t *testing.T) {
	for _, kind := range []string{"unit: hour, algorithm: gcra", "unit: hour, algorithm: sliding-log", "period: 7h", "unit: hour, offset: 1m", "unit: hour, count_denied: false", "unit: hour, unit_multiplier: 5"} {
		t.Run(kind, func(t *testing.T) {
			limit := func(n int) string { return oneRule(fmt.Sprintf("{%s, requests_per_unit: %d}", kind, n)) }
			w := newWorld(t, Config{}, limit(5))
			w.ask(withHits("k=a", 4))
			w.swap(limit(10))
			require.EqualValues(t, 5, w.one("k=a").Remaining)
			require.EqualValues(t, 9, w.one("k=b").Remaining)
			w.swap(limit(3))
			require.Equal(t, OverLimit, w.one("k=a").Code)
			w.swap(limit(0))
			require.Equal(t, OverLimit, w.one("k=new").Code)
			w.swap(limit(9))
			require.Equal(t, OK, w.one("k=newer").Code)
		})
	}
}

func TestSwap_AnotherAlgorithmStartsAfresh(t *testing.T) {
	w := newWorld(t, Config{}, oneRule("{unit: hour, requests_per_unit: 5, algorithm: gcra}"))
	w.ask(withHits("k=a", 5))
	w.swap(oneRule("{unit: hour, requests_per_unit: 5, algorithm: token-bucket}"))
	require.EqualValues(t, 4, w.one("k=a").Remaining)
}

func TestSwap_Nil(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	require.Error(t, w.Swap(nil))
	require.EqualValues(t, 9, w.one("ten=a").Remaining)
	_, err := New(nil, Config{})
	require.Error(t, err)
	for _, ratio := range []float32{float32(math.NaN()), 1.5} {
		_, err = New(mustLoad(t, minuteRules), Config{NearRatio: ratio})
		require.Error(t, err)
	}
}

// TestAlgorithms: a rule with an algorithm decides as a limiter of that algorithm does.
func TestAlgorithms(t *testing.T) {
	r := seeded.Rand(t)
	for _, a := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket, sluice.SlidingWindow, sluice.SlidingLog, sluice.FixedWindow} {
		t.Run(a.String(), func(t *testing.T) {
			w := newWorld(t, Config{}, oneRule(fmt.Sprintf("{period: 90s, requests_per_unit: 6, algorithm: %s, count_denied: false}", a)))
			clock := sluice.NewManualClock(start)
			lim := sluice.Must(sluice.New(sluice.Config{Algorithm: a, Limit: sluice.Per(6, 90*time.Second), Clock: clock}))
			denied := 0
			for range 3000 {
				step := time.Duration(r.Int64N(int64(30 * time.Second)))
				w.clock.Advance(step)
				clock.Advance(step)
				key, n := fmt.Sprint(r.IntN(3)), r.IntN(8)
				st := w.ask(withHits("k="+key, uint64(n))).Statuses[0]
				d := lim.Take(key, n)
				require.Equal(t, d.Allowed, st.Code == OK)
				require.Equal(t, d.RetryAfter, st.RetryAfter)
				require.Equal(t, roundUp(d.ResetAfter), st.ResetAfter)
				require.EqualValues(t, d.Remaining, st.Remaining)
				if !d.Allowed {
					denied++
				}
			}
			require.Greater(t, denied, 100)
		})
	}
}

func TestExtensions(t *testing.T) {
	t.Run("period", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{period: 30s, requests_per_unit: 2}"))
		st := w.one("k=a")
		require.Equal(t, UnknownUnit, st.Unit)
		require.Equal(t, 30*time.Second, st.Period)
		require.Equal(t, 7*time.Second, st.ResetAfter)
		w.one("k=a")
		require.Equal(t, OverLimit, w.one("k=a").Code)
		w.clock.Advance(7 * time.Second)
		require.EqualValues(t, 1, w.one("k=a").Remaining)
	})
	t.Run("a period that is a unit", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{period: 1h, requests_per_unit: 5}"))
		w.ask(override("k=a", 5, Hour))
		st := w.one("k=a")
		require.Equal(t, Hour, st.Unit)
		require.EqualValues(t, 3, st.Remaining)
	})
	t.Run("offset", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{unit: minute, requests_per_unit: 2, offset: 25s}"))
		require.Equal(t, 2*time.Second, w.one("k=a").ResetAfter)
		w.clock.Advance(2 * time.Second)
		st := w.one("k=a")
		require.EqualValues(t, 1, st.Remaining)
		require.Equal(t, time.Minute, st.ResetAfter)
	})
	t.Run("burst", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{unit: second, requests_per_unit: 1, algorithm: gcra, burst: 3}"))
		for range 3 {
			require.Equal(t, OK, w.one("k=a").Code)
		}
		st := w.one("k=a")
		require.Equal(t, OverLimit, st.Code)
		require.Equal(t, time.Second, st.RetryAfter)
		require.Equal(t, 3*time.Second, st.ResetAfter)
	})
	t.Run("soft", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{unit: minute, requests_per_unit: 2, soft: 1}"))
		for range 3 {
			require.Equal(t, OK, w.one("k=a").Code)
		}
		require.Equal(t, OverLimit, w.one("k=a").Code)
	})
	t.Run("block_for", func(t *testing.T) {
		w := newWorld(t, Config{}, oneRule("{unit: second, requests_per_unit: 1, block_for: 15m}"))
		w.one("k=a")
		w.one("k=a")
		w.clock.Advance(15*time.Minute - 1)
		require.Equal(t, OverLimit, w.one("k=a").Code)
		w.clock.Advance(1)
		require.Equal(t, OK, w.one("k=a").Code)
	})
	t.Run("count_denied", func(t *testing.T) {
		w := newWorld(t, Config{}, "domain: d\nsluice: {count_denied: false}\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}\n- {key: c, rate_limit: {unit: minute, requests_per_unit: 10, count_denied: true}}\n")
		for key, want := range map[string]Code{"k=a": OK, "c=a": OverLimit} {
			w.ask(withHits(key, 8))
			require.Equal(t, OverLimit, w.ask(withHits(key, 3)).Code)
			require.Equal(t, want, w.ask(withHits(key, 2)).Code, key)
		}
	})
	t.Run("max_keys", func(t *testing.T) {
		w := newWorld(t, Config{}, "domain: d\nsluice: {max_keys: 10, overflow: deny-new}\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}\n")
		for i := range 20 {
			want := OK
			if i >= 10 {
				want = OverLimit
			}
			require.Equal(t, want, w.one(fmt.Sprint("k=", i)).Code)
		}
		require.Equal(t, OK, w.one("k=3").Code)
		require.Equal(t, 10, w.Engine.Stats().Keys[Minute])
	})
}

// TestAtomic: a call that is denied counts nothing, of any kind of rule.
func TestAtomic(t *testing.T) {
	const text = `
domain: d
sluice: {atomic: true}
descriptors:
- {key: five, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: two, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: log, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding-log}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: shady, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: gcra}}
`
	w := newWorld(t, Config{}, text)
	all := []Descriptor{describe("five=a"), describe("two=a"), describe("log=a"), describe("shadow=a"), describe("shady=a")}
	for i := range 2 {
		resp := w.ask(all...)
		require.Equal(t, OK, resp.Code)
		require.Equal(t, i == 1, resp.Statuses[3].Over, "a rule in shadow mode denies nothing")
	}
	for range 3 {
		resp := w.ask(all...)
		require.Equal(t, OverLimit, resp.Code)
		require.Equal(t, OK, resp.Statuses[0].Code)
		require.EqualValues(t, 3, resp.Statuses[0].Remaining)
		require.Equal(t, OverLimit, resp.Statuses[1].Code)
		require.Equal(t, OverLimit, resp.Statuses[2].Code)
		require.NotZero(t, resp.Statuses[2].RetryAfter)
	}
	require.Equal(t, 3, w.left("five=a"))

	// A limiter in the way keeps counters from counting, and the other way round.
	require.Equal(t, OverLimit, w.ask(describe("five=a"), describe("log=a")).Code)
	require.Equal(t, 3, w.left("five=a"))
	require.Equal(t, OverLimit, w.ask(describe("log=fresh"), describe("two=a")).Code)
	require.EqualValues(t, 1, w.one("log=fresh").Remaining)

	// Charges of one counter add up.
	require.Equal(t, OverLimit, w.ask(withHits("five=a", 2), withHits("five=a", 2)).Code)
	require.Equal(t, 3, w.left("five=a"))
	require.Equal(t, OK, w.ask(withHits("five=a", 2), withHits("five=a", 1)).Code)
	require.Equal(t, 0, w.left("five=a"))
	require.EqualValues(t, 13, w.series("d.five").Total)
}

// TestStopWhenOver: only what is over its limit is counted, if anything is.
func TestStopWhenOver(t *testing.T) {
	w := newWorld(t, Config{StopWhenOver: true}, minuteRules)
	w.ask(withHits("two=a", 2))
	resp := w.ask(describe("ten=a"), describe("two=a"))
	require.Equal(t, OverLimit, resp.Code)
	require.Equal(t, OK, resp.Statuses[0].Code)
	require.EqualValues(t, 10, resp.Statuses[0].Remaining)
	require.Equal(t, OK, w.ask(describe("ten=a"), describe("two=b")).Code)
	require.Equal(t, 9, w.left("ten=a"))
	require.EqualValues(t, 4, w.series("d.two").Total)
	require.EqualValues(t, 1, w.series("d.two").Over)

	// Hits that are not counted are near the limit if the last ones that are counted are.
	w.ask(withHits("ten=c", 9))
	w.ask(withHits("two=c", 3), withHits("ten=c", 1))
	require.EqualValues(t, 2, w.series("d.ten").Near)
}

// TestTogether_Exact: of calls that come at the same time exactly as many pass as fit, and those
// that do not pass take nothing from the other limit.
func TestTogether_Exact(t *testing.T) {
	for name, w := range map[string]*world{
		"stop":   newWorld(t, Config{StopWhenOver: true}, "domain: d\ndescriptors:\n- {key: big, rate_limit: {unit: day, requests_per_unit: 1000}}\n- {key: small, rate_limit: {unit: day, requests_per_unit: 100}}\n"),
		"atomic": newWorld(t, Config{}, "domain: d\nsluice: {atomic: true}\ndescriptors:\n- {key: big, rate_limit: {unit: day, requests_per_unit: 1000}}\n- {key: small, rate_limit: {unit: day, requests_per_unit: 100, algorithm: gcra}}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			var mutex sync.Mutex
			passed := 0
			for range 8 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					var resp Response
					for range 200 {
						ds := []Descriptor{describe("big=a"), describe("small=a")}
						if err := w.Decide(&Request{Domain: "d", Descriptors: ds}, &resp); err != nil {
							t.Error(err)
						}
						if resp.Code == OK {
							mutex.Lock()
							passed++
							mutex.Unlock()
						}
					}
				}()
			}
			wg.Wait()
			require.Equal(t, 100, passed)
			require.Equal(t, 900, w.left("big=a"))
		})
	}
}

// TestSwap_Concurrent: calls while rules change a thousand times are decided by one set or the other,
// and nothing is lost of what they count, in windows and in a rule's own limiter.
func TestSwap_Concurrent(t *testing.T) {
	both := func(n int) string {
		return fmt.Sprintf("domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: %d}}\n"+
			"- {key: log, rate_limit: {unit: day, requests_per_unit: %d, algorithm: gcra}}\n", n, max(n, 1))
	}
	const swaps, much = 1000, 100_000_000
	loose, tight := both(much), both(0)
	w := newWorld(t, Config{}, loose)
	sets := []*Set{mustLoad(t, tight), mustLoad(t, loose)}
	var wg sync.WaitGroup
	var calls, admitted atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			var resp Response
			req := &Request{Domain: "d", Descriptors: []Descriptor{describe("k=a"), describe("log=a")}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := w.Decide(req, &resp); err != nil {
					t.Error(err)
				}
				first, second := &resp.Statuses[0], &resp.Statuses[1]
				if (first.Code == OK) != (first.Requests == much) || (second.Requests == much) != (first.Requests == much) {
					t.Errorf("%v under %d, beside %d", first.Code, first.Requests, second.Requests)
				}
				if second.Code == OK {
					admitted.Add(1)
				}
				calls.Add(1)
				runtime.Gosched()
			}
		})
	}
	for i := range swaps {
		for before := calls.Load(); calls.Load() < before+2; {
			runtime.Gosched() // calls come between
		}
		require.NoError(t, w.Swap(sets[i%2]))
	}
	close(stop)
	wg.Wait()
	require.Equal(t, int(much-calls.Load()), w.left("k=a"))
	require.EqualValues(t, calls.Load(), w.series("d.k").Total)
	log := w.series("d.log")
	require.EqualValues(t, calls.Load(), log.Total)
	require.EqualValues(t, admitted.Load(), log.Within)
	_, n := w.Set()
	require.EqualValues(t, 1+swaps, n)
}

func TestSeries_Paths(t *testing.T) {
	w := newWorld(t, Config{}, `
domain: d
descriptors:
- {key: plain, value: "a*", rate_limit: {unit: day, requests_per_unit: 9}}
- {key: detailed, value: "a*", detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: shared, value: "a*", share_threshold: true, descriptors: [{key: x, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {key: metric, value_to_metric: true, descriptors: [{key: y, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {key: wild, value: "a*", value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: both, value: "a*", value_to_metric: true, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 9}}
`)
	for list, want := range map[string]string{
		"plain=abc":       "d.plain_a*",
		"detailed=abc":    "d.detailed_abc",
		"shared=abc,x=1":  "d.shared_a*.x_1",
		"shared=abc,x=":   "d.shared_a*.x",
		"shared=a*,x=":    "d.shared_a*.x_", // as upstream has it for the value that is the pattern
		"metric=abc,y=1":  "d.metric_abc.y",
		"metric=,y=1":     "d.metric.y",
		"wild=abc":        "d.wild_abc",
		"both=abc":        "d.both_a*",
		"detailed=a b.c:": "d.detailed_a b.c:",
	} {
		before := 0
		for _, s := range w.Series() {
			if s.Path == want {
				before = int(s.Total)
			}
		}
		w.one(list)
		require.EqualValues(t, before+1, w.series(want).Total, list)
	}
	require.Equal(t, []string{"shared_a*", "x_1"}, w.series("d.shared_a*.x_1").Levels)
}

// TestSeries_Bounded: values that requests choose take a bounded number of series, and the hits of
// a domain still add up.
func TestSeries_Bounded(t *testing.T) {
	w := newWorld(t, Config{MaxSeries: 50}, "domain: d\ndescriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	for i := range 10_000 {
		w.one(fmt.Sprint("k=", i))
	}
	list := w.Series()
	require.Len(t, list, 50+2)
	sum := uint64(0)
	for _, s := range list {
		sum += s.Total
	}
	require.EqualValues(t, 10_000, sum)
	require.EqualValues(t, 9950, w.series("other").Total)
}

func TestSeries_OutliveSwap(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	w.one("ten=a")
	w.swap(minuteRules)
	w.one("ten=a")
	require.EqualValues(t, 2, w.series("d.ten").Total)
}

// TestSwap_DenyAllAndBack: while a rule's limit is 0, as a switch that turns a client off, hits are given back as under the limit
// before: what had been counted, and was refunded meanwhile, is there when the limit is.
func TestSwap_DenyAllAndBack(t *testing.T) {
	for _, algorithm := range []string{"", ", algorithm: fixed-window", ", algorithm: gcra", ", algorithm: sliding-window", ", algorithm: sliding-log", ", algorithm: leaky-bucket"} {
		rule := func(requests int) string {
			return oneRule(fmt.Sprintf("{unit: day, requests_per_unit: %d%s}", requests, algorithm))
		}
		w := newWorld(t, Config{}, rule(10))
		w.ask(withHits("k=a", 9))
		w.swap(rule(0))
		require.Equal(t, OverLimit, w.ask(withHits("k=a", 1)).Code, algorithm)
		refund := withHits("k=a", 4)
		refund.Refund = true
		st := w.ask(refund).Statuses[0]
		require.Equal(t, OK, st.Code)
		require.Zero(t, st.Remaining, algorithm)
		w.swap(rule(10))
		require.Equal(t, 10-9+4-1, w.left("k=a"), "one of the four is of the hit that was denied: %s", algorithm)
	}
}
