package histories

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A yieldingClock lets others run between a reading of the time and what is made of it.
type yieldingClock struct{ *sluice.ManualClock }

func (c yieldingClock) Now() int64 {
	defer runtime.Gosched()
	return c.ManualClock.Now()
}

// record runs the script and returns its history.
func record(s script) []porcupine.Operation {
	clock := sluice.NewManualClock(start)
	s.config.Clock = clock
	if s.yields {
		s.config.Clock = yieldingClock{clock}
	}
	l := sluice.Must(sluice.New(s.config))
	told := []int64{clock.Now()} // every time that the clock has told, or will
	for _, d := range slices.Concat(s.steps[0], s.steps[1]) {
		told = append(told, told[len(told)-1]+int64(d))
	}
	var order atomic.Int64
	held := make(permits, len(s.keyOf))
	do := func(client int, c call) []porcupine.Operation {
		if (c.kind == release || c.kind == renew) && held[c.permit].Load() == nil {
			return nil // it has not been acquired, or not yet
		}
		op := porcupine.Operation{ClientId: client, Call: order.Add(1)}
		from := clock.Now()
		op.Output = c.do(l, held)
		to := clock.Now()
		op.Return = order.Add(1)
		in := input{call: c, began: op.Call, returned: op.Return, times: slices.DeleteFunc(slices.Clone(told), func(t int64) bool { return t < from || t > to })}
		return in.perKey(op)
	}

	var history []porcupine.Operation
	for i, c := range s.before {
		if i < len(s.steps[0]) {
			clock.Advance(s.steps[0][i])
		}
		history = append(history, do(0, c)...)
	}
	by := make([][]porcupine.Operation, len(s.clients))
	var wg sync.WaitGroup
	var ready atomic.Int64
	atOnce := func(f func()) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for ready.Add(1); ready.Load() <= int64(len(s.clients)); {
				runtime.Gosched()
			}
			f()
		}()
	}
	atOnce(func() {
		for _, d := range s.steps[1] {
			clock.Advance(d)
			runtime.Gosched()
		}
	})
	for i, calls := range s.clients {
		atOnce(func() {
			for _, c := range calls {
				by[i] = append(by[i], do(i, c)...)
			}
		})
	}
	wg.Wait()
	history = append(history, slices.Concat(by...)...)
	contest(history)
	if s.brings {
		history = append(history, moves(history)...)
	}
	for _, key := range keys {
		history = append(history, do(0, call{kind: peek, key: key})...)
	}
	return history
}

// model says what calls return that come one after the other.
func model(c sluice.Config) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{newWorld(c)} },
		Step: func(state, in, out any) (next []any) {
			for _, w := range state.(world).after(in.(input), out.(result)) {
				next = append(next, w)
			}
			return next
		},
		Equal: func(a, b any) bool { return maps.EqualFunc(a.(world), b.(world), (*key).equal) },
	}
	return m.ToModel()
}

func (s script) String() string {
	c := s.config
	return fmt.Sprintf("%v, %d per %v, block for %v, count denied %v; the clock yields: %v",
		c.Algorithm, c.Limit.Rate, c.Limit.Period, c.BlockFor, c.CountDenied, s.yields)
}

// describe returns the history as text, in the order in which the calls began.
func describe(history []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	for _, op := range history {
		in := op.Input.(input)
		times := make([]int64, len(in.times))
		for i, t := range in.times {
			times[i] = t - start.UnixNano()
		}
		fmt.Fprintf(&b, "client %d, %3d to %3d, at %d ns: %v %s\n", op.ClientId, op.Call, op.Return, times, in.call, in.outcome(op.Output.(result)))
	}
	return b.String()
}

// count is how many histories are recorded.
func count() int { return depth.Of(2000, 4000, 50_000) }

// TestHistories_HaveAnOrder: for every history there is an order of its calls, in which one
// that had returned before another one began comes before it, such that they return what
// they have returned. The script of a failure is repeated by SLUICE_SEED, again and again,
// since how the goroutines run differs each time.
func TestHistories_HaveAnOrder(t *testing.T) {
	overlapping := 0
	findOrders(t, draw, func(history []porcupine.Operation) {
		if together(history) {
			overlapping++
		}
	})
	t.Logf("%d histories, %d of them with calls at the same time", count(), overlapping)
	require.Positive(t, overlapping, "no calls were made at the same time")
}

// findOrders records the histories of scripts, calls see with each, and fails without an order.
func findOrders(t *testing.T, draw func(seed uint64) script, see func(history []porcupine.Operation)) {
	seed, repeats := seeded.Seed(t)
	for i := range count() {
		if i > 0 && !repeats {
			seed++
		}
		s := draw(seed)
		history := record(s)
		switch porcupine.CheckOperationsTimeout(model(s.config), history, time.Minute) {
		case porcupine.Illegal:
			t.Fatalf("no order explains this history; SLUICE_SEED=%d repeats its calls\n%v\n%s", seed, s, describe(history))
		case porcupine.Unknown:
			t.Logf("undecided after a minute: SLUICE_SEED=%d", seed)
		}
		see(history)
	}
}

// TestHistories_WithoutAnOrder: what the search is for is found, in histories of calls that
// have been known to return this, and of one that returns too much. Each is explained as soon
// as the wrong number is put right.
func TestHistories_WithoutAnOrder(t *testing.T) {
	ns := start.UnixNano()
	at := func(client int, from, to int64, now int64, c call, r result) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: input{call: c, began: from, returned: to, times: []int64{ns + now}}, Call: from, Output: r, Return: to}
	}
	left := func(n int, back time.Duration) sluice.Decision {
		return sluice.Decision{Allowed: true, Limit: burst, Remaining: n, ResetAfter: back}
	}
	unit := period / burst
	gcra, slog := sluice.Config{Algorithm: sluice.GCRA}, sluice.Config{Algorithm: sluice.SlidingLog}
	units := func(swept bool) func(n int) []porcupine.Operation {
		return func(n int) []porcupine.Operation {
			long := sluice.Per(burst, 10*period)
			ops := []porcupine.Operation{
				at(0, 1, 2, 0, call{kind: take, key: "a", cost: 5}, result{decision: left(3, period)}),
				at(0, 5, 6, 2*int64(period), call{kind: take, key: "a", cost: 1}, result{decision: left(7, period)}),
				at(0, 7, 8, 2*int64(period), call{kind: setLimit, key: "a", limit: long}, result{}),
				at(0, 9, 10, 2*int64(period), call{kind: peek, key: "a"}, result{decision: left(n, 10*period)}),
			}
			if swept {
				ops = append(ops, at(0, 3, 4, 2*int64(period), call{kind: sweep, key: "a"}, result{}))
			}
			return ops
		}
	}
	for name, h := range map[string]struct {
		config sluice.Config
		ops    func(n int) []porcupine.Operation
		right  []int
		wrong  []int
	}{
		// Two calls take the last 5 units at the same time.
		"admitted twice": {gcra, func(n int) []porcupine.Operation {
			return []porcupine.Operation{
				at(0, 1, 4, 0, call{kind: take, key: "a", cost: 4}, result{decision: left(4, 4*unit)}),
				at(1, 2, 3, 0, call{kind: take, key: "a", cost: 4}, result{decision: left(n, time.Duration(burst-n)*unit)}),
			}
		}, []int{0}, []int{4, 8}},
		// 5 units go from a to b, and both are seen with all of theirs: a from before, b from after.
		"two instants in one TakeAll": {gcra, func(n int) []porcupine.Operation {
			all := result{all: sluice.AllDecision{Denied: 1, Remaining: n, RetryAfter: sluice.Never}, each: []sluice.Decision{
				left(n, time.Duration(burst-n)*unit),
				{Limit: burst, Remaining: 8, RetryAfter: sluice.Never},
			}}
			return []porcupine.Operation{
				at(0, 1, 2, 0, call{kind: take, key: "a", cost: 5}, result{decision: left(3, 5*unit)}),
				at(0, 3, 5, 0, call{kind: take, key: "b", cost: 5}, result{decision: left(3, 5*unit)}),
				at(1, 4, 8, 0, call{kind: takeAll, charges: []charge{{key: "a"}, {key: "b", cost: 9}}}, all),
				at(0, 6, 7, 0, call{kind: refund, key: "a", cost: 5}, result{}),
			}
		}, []int{3}, []int{8, 0}},
		// Units of a log that count no longer are counted again under a longer period, unless a
		// Sweep has come before it.
		"a Sweep that changes a decision": {slog, units(true), []int{7}, []int{2, 6, 8}},
		"without the Sweep":               {slog, units(false), []int{7}, []int{2, 6, 8}},
	} {
		c := h.config
		c.Limit = sluice.Per(burst, period)
		for _, n := range h.right {
			require.True(t, porcupine.CheckOperations(model(c), h.ops(n)), "%s: %d", name, n)
		}
		for _, n := range h.wrong {
			require.False(t, porcupine.CheckOperations(model(c), h.ops(n)), "%s: %d", name, n)
		}
	}
}

// overlaps reports whether op was made at the same time as one of the others.
func overlaps(op porcupine.Operation, others []porcupine.Operation) bool {
	return slices.ContainsFunc(others, func(o porcupine.Operation) bool { return op.Call < o.Return && o.Call < op.Return })
}

// together reports whether calls of two clients were made at the same time.
func together(history []porcupine.Operation) bool {
	for i, op := range history {
		if slices.ContainsFunc(history[:i], func(o porcupine.Operation) bool {
			return o.ClientId != op.ClientId && overlaps(op, []porcupine.Operation{o})
		}) {
			return true
		}
	}
	return false
}
