package redislimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A chainTracer makes the same chains of a Store and of models: of limit 0, of limit 1 for what is left, and of limit 2, which
// notes what limit 1 was charged.
type chainTracer struct {
	allTracer
	charged, denied, back int
}

// TestStore_Chain compares chains with exact models, of all algorithms and with a Redis that forgets.
func TestStore_Chain(t *testing.T) { eachServer(t, storeChain) }

func storeChain(t *testing.T, server *server) {
	rng := seeded.Rand(t)
	var sum chainTracer
	for range depth.Of(40, 120, 1000) {
		a := &chainTracer{allTracer: allTracer{T: t, rng: rng, now: time.Now().UnixMilli() * 1000}}
		a.store = newStore(t, server.client, StoreConfig{TimeSource: CallerClock, MaxStale: 1})
		a.store.link.clock, a.store.link.spare = func() int64 { return a.now }, 3_600_000
		notes := []Config{{Algorithm: sluice.FixedWindow}, {Algorithm: sluice.FixedWindowFirstCharge}, {Algorithm: sluice.InFlight}}
		a.add(variants[rng.IntN(len(variants)-1)], variants[rng.IntN(len(variants)-1)], notes[rng.IntN(3)])
		for range 60 {
			a.now += rng.Int64N(1+1<<rng.IntN(24)) * 1000
			a.chain()
			if rng.IntN(15) == 0 && a.limits[0].config.Algorithm != sluice.SlidingLog && a.limits[1].config.Algorithm != sluice.SlidingLog {
				require.NoError(t, server.client.FlushAll(ctx).Err())
			}
		}
		sum.charged, sum.denied, sum.back = sum.charged+a.charged, sum.denied+a.denied, sum.back+a.back
	}
	require.Greater(t, sum.charged, 100)
	require.Greater(t, sum.denied, 100)
	require.Greater(t, sum.back, 30)
}

// add adds limits of these kinds.
func (a *chainTracer) add(kinds ...Config) {
	for i, v := range kinds {
		for {
			c, p := randomConfig(a, a.rng, v)
			if i == 2 {
				c.Limit.Rate = 1 << 30
				var err error
				if p, err = newPlan(c, nil); err != nil {
					continue
				}
			}
			l, err := a.store.Limit(LimitConfig{Name: fmt.Sprint(i), Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset})
			if err != nil || i < 2 && c.Limit.Capacity() > 1_000_000 {
				if err == nil {
					l.Close()
				}
				continue
			}
			a.limits, a.models = append(a.limits, l), append(a.models, oracle.New(oracleConfig(c, p)))
			break
		}
	}
}

// peek is how a model stands.
func (a *chainTracer) peek(i int, m *oracle.Model, cost int64) sluice.Decision {
	now, step := a.at(a.limits[i])
	return fromOracle(m.Peek("a", now, cost), step)
}

func (a *chainTracer) chain() {
	both := a.limits[0].Limit().Capacity() + a.limits[1].Limit().Capacity()
	cost := 1 + a.rng.IntN(both+both/4+1)
	if a.rng.IntN(2) == 0 {
		cost = 1 + a.rng.IntN(1+both/8)
	}
	take := []StoreCall{{Limit: a.limits[0], Key: "a", Cost: cost}, {Limit: a.limits[1], Key: "a", Part: Rest}, {Limit: a.limits[2], Key: "a", Op: OpDebit, Part: Same}}
	back := []StoreCall{{Limit: a.limits[2], Key: "a", Op: OpRefund, Cost: cost}, {Limit: a.limits[1], Key: "a", Op: OpRefund, Part: Same}, {Limit: a.limits[0], Key: "a", Op: OpRefund, Part: Rest}}
	calls := [][]StoreCall{take, back, append(back[:3:3], take...), append(take[:3:3], take...)}[a.rng.IntN(4)]
	out := make([]StoreResult, len(calls))
	d, err := a.store.DoAll(context.Background(), calls, out)
	require.NoError(a, err)
	after := []*oracle.Model{a.models[0].Clone(), a.models[1].Clone(), a.models[2].Clone()}
	fits, units := true, []int(nil)
	for i := 0; i < len(calls); i += 3 {
		ok := true
		if calls[i].Op == OpRefund {
			units = append(units, a.giveBack(after, cost)...)
		} else if ok, units = a.take(after, cost, units); !ok && fits {
			fits = false
			require.Equal(a, i+1, d.Denied, "%+v", calls)
		}
	}
	require.Equal(a, fits, d.Allowed, "%+v", calls)
	if fits {
		a.models = after
	}
	for i := range calls {
		if fits {
			require.Equal(a, units[i], out[i].Units, "call %d of %+v", i, calls)
		} else {
			require.Zero(a, out[i].Units)
		}
		of := 0
		for a.limits[of] != calls[i].Limit {
			of++
		}
		if i >= len(calls)-3 || !fits { // it tells of the key as it is then
			stands := a.peek(of, a.models[of], 0)
			require.Equal(a, stands.Remaining, out[i].Decision.Remaining, "call %d of %+v %+v", i, calls, a.limits[of].config)
			require.Equal(a, stands.ResetAfter, out[i].Decision.ResetAfter, "call %d of %+v", i, calls)
		}
		if !fits && calls[i].Op == OpTake && calls[i].Part == Whole {
			want := a.peek(of, a.models[of], int64(cost))
			require.Equal(a, want.RetryAfter, out[i].Decision.RetryAfter, "call %d of %+v", i, calls)
			require.Equal(a, want.Allowed, out[i].Decision.Allowed)
		}
	}
}

func (a *chainTracer) take(after []*oracle.Model, cost int, units []int) (bool, []int) {
	var now [3]int64
	for i := range now {
		now[i], _ = a.at(a.limits[i])
	}
	own := min(cost, a.peek(0, after[0], 0).Remaining)
	if own > 0 {
		require.True(a, after[0].Take("a", now[0], int64(own)).Allowed)
	}
	rest := cost - own
	if rest > 0 {
		if !after[1].Take("a", now[1], int64(rest)).Allowed {
			a.denied++
			return false, append(units, own, rest, rest)
		}
		after[2].Debit("a", now[2], int64(rest))
		a.charged++
	}
	return true, append(units, own, rest, rest)
}

func (a *chainTracer) giveBack(after []*oracle.Model, cost int) []int {
	stands := a.peek(2, after[2], 0)
	noted := min(cost, stands.Limit-stands.Remaining)
	for i, n := range []int{cost - noted, noted, noted} {
		now, _ := a.at(a.limits[i])
		for limit := a.limits[i].Limit().Capacity(); n > 0; n -= limit { // a model gives back a limit at most
			after[i].Refund("a", now, int64(min(n, limit)))
		}
	}
	if noted > 0 {
		a.back++
	}
	return []int{noted, noted, cost - noted}
}

func chainOf(limits []*StoreLimit, cost int) []StoreCall {
	return []StoreCall{{Limit: limits[0], Key: "a", Cost: cost}, {Limit: limits[1], Key: "a", Part: Rest}, {Limit: limits[2], Key: "a", Op: OpDebit, Part: Same}}
}

// chainLimits are two budgets and a note.
func chainLimits(t *testing.T, s *Store, first, second int) []*StoreLimit {
	return []*StoreLimit{
		limitOf(t, s, LimitConfig{Name: "first", Tag: "t", Exact: true, Algorithm: sluice.FixedWindow, Limit: sluice.Per(first, 1000*time.Hour)}),
		limitOf(t, s, LimitConfig{Name: "second", Tag: "t", Exact: true, Algorithm: sluice.FixedWindow, Limit: sluice.Per(second, 1000*time.Hour)}),
		limitOf(t, s, LimitConfig{Name: "note", Tag: "t", Exact: true, Algorithm: sluice.FixedWindow, Limit: sluice.Per(1<<30, 1000*time.Hour)}),
	}
}

// TestStore_ChainsAtOnce: chains of three processes charge both budgets for what is admitted, and admit all that there is.
func TestStore_ChainsAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, server *server) {
		prefix, seed := newPrefix(), seeded.Rand(t)
		first, second := 100+seed.IntN(100), 300+seed.IntN(100)
		var stores []*Store
		var limits [][]*StoreLimit
		for range 3 {
			s := newStore(t, server.client, StoreConfig{Prefix: prefix})
			stores, limits = append(stores, s), append(limits, chainLimits(t, s, first, second))
		}
		var admitted, spilled atomic.Int64
		var all sync.WaitGroup
		for g := range 12 {
			all.Go(func() {
				for i := 0; ; i++ {
					cost, out := 1+(i+g)%7, make([]StoreResult, 3)
					d, err := stores[g%3].DoAll(ctx, chainOf(limits[g%3], cost), out)
					if !assert.NoError(t, err) || !d.Allowed && cost == 1 {
						return
					}
					if d.Allowed {
						admitted.Add(int64(cost))
						spilled.Add(int64(out[1].Units))
						assert.Equal(t, cost, out[0].Units+out[1].Units)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(first+second), admitted.Load())
		require.Equal(t, int64(second), spilled.Load())
		for i, want := range []int{first, second, second} {
			require.EqualValues(t, want, do(t, stores[0], StoreCall{Limit: limits[0][i], Key: "a", Op: OpPeek})[0].Count)
		}
	})
}

// TestStore_ChainWithout: without Redis the shares divide the units.
func TestStore_ChainWithout(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	for _, policy := range []OnUnavailable{LocalShare, FailOpen, FailClosed} {
		s := newStore(t, client, StoreConfig{Replicas: 2, OnUnavailable: policy})
		limits := chainLimits(t, s, 20, 40) // shares of 10 and 20
		out := make([]StoreResult, 3)
		ask := func(calls ...StoreCall) (bool, []int) {
			d, err := s.DoAll(ctx, calls, out)
			if policy == FailClosed {
				require.ErrorIs(t, err, ErrUnavailable)
				return false, nil
			}
			require.NoError(t, err)
			if !d.Allowed {
				require.Equal(t, 1, d.Denied)
			}
			return d.Allowed, []int{out[0].Units, out[1].Units, out[2].Units}
		}
		for _, step := range []struct {
			cost             int
			local, open      bool
			wantLocal, wants []int
			remaining        []int
		}{
			{7, true, true, []int{7, 0, 0}, []int{7, 0, 0}, []int{3, 20}},
			{11, true, true, []int{3, 8, 8}, []int{11, 0, 0}, []int{0, 12}},
			{13, false, true, []int{0, 0, 0}, []int{13, 0, 0}, []int{0, 12}},
			{61, false, false, []int{0, 0, 0}, []int{0, 0, 0}, []int{0, 12}},
			{12, true, true, []int{0, 12, 12}, []int{12, 0, 0}, []int{0, 0}},
		} {
			ok, units := ask(chainOf(limits, step.cost)...)
			switch policy {
			case LocalShare:
				require.Equal(t, step.local, ok, step.cost)
				require.Equal(t, step.wantLocal, units)
				require.Equal(t, step.remaining, []int{out[0].Decision.Remaining, out[1].Decision.Remaining})
				require.Equal(t, step.local, out[0].Decision.Allowed, step.cost)
			case FailOpen:
				require.Equal(t, step.open, ok)
				require.Equal(t, step.wants, units)
			}
		}
		_, units := ask(StoreCall{Limit: limits[2], Key: "a", Op: OpRefund, Cost: 25}, StoreCall{Limit: limits[1], Key: "a", Op: OpRefund, Part: Same}, StoreCall{Limit: limits[0], Key: "a", Op: OpRefund, Part: Rest})
		if policy == LocalShare {
			require.Equal(t, []int{20, 20, 5}, units)
			require.Equal(t, []int{20, 5}, []int{out[1].Decision.Remaining, out[2].Decision.Remaining})
			both := append(chainOf(limits, 6), chainOf(limits, 6)...)
			for i := range both {
				both[i].Key = "b"
			}
			out = make([]StoreResult, 6)
			d, err := s.DoAll(ctx, both, out)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.Equal(t, []int{6, 0, 4, 2}, []int{out[0].Units, out[1].Units, out[3].Units, out[4].Units})
		}
	}
}

// TestStore_ChainsRefused: what cannot be a chain says so, and charges nothing.
func TestStore_ChainsRefused(t *testing.T) {
	s := newStore(t, anyServer(t).client, StoreConfig{})
	of := func(name string, a sluice.Algorithm, limit sluice.Limit, block time.Duration, holds int) *StoreLimit {
		return limitOf(t, s, LimitConfig{Name: name, Algorithm: a, Limit: limit, BlockFor: block, MaxHolds: holds})
	}
	window, none := of("w", sluice.FixedWindow, sluice.PerHour(5), 0, 0), of("none", sluice.FixedWindow, sluice.Per(0, time.Hour), 0, 0)
	blocks, bucket := of("blocks", sluice.FixedWindow, sluice.PerHour(5), time.Hour, 0), of("b", sluice.GCRA, sluice.PerHour(5), 0, 0)
	holds := of("holds", sluice.FixedWindow, sluice.PerHour(5), 0, 5)
	for want, calls := range map[string][]StoreCall{
		"there is none":          {{Limit: window, Part: Rest}},
		"3 is not a Part":        {{Limit: window, Cost: 1}, {Limit: window, Part: 3}},
		"peek divides no units":  {{Limit: window, Op: OpPeek, Cost: 1}, {Limit: window, Part: Rest}},
		"debit divides no":       {{Limit: window, Op: OpDebit, Cost: 1}, {Limit: window, Part: Rest}},
		"1: hold divides no":     {{Limit: window, Cost: 1}, {Limit: holds, Op: OpHold, TTL: time.Hour, Part: Rest}},
		"a Cost of 0":            {{Limit: window}, {Limit: window, Part: Rest}},
		"1: its limit, 0/h":      {{Limit: window, Cost: 1}, {Limit: none, Part: Rest}},
		"0: its limit, 0/h":      {{Limit: none, Cost: 1}, {Limit: window, Part: Rest}},
		"has BlockFor":           {{Limit: blocks, Cost: 1}, {Limit: window, Part: Rest}},
		"tells of no whole":      {{Limit: bucket, Op: OpRefund, Cost: 1}, {Limit: window, Op: OpRefund, Part: Rest}},
		"0: its limit tells of ": {{Limit: holds, Op: OpRefund, Cost: 1}, {Limit: window, Op: OpRefund, Part: Rest}},
	} {
		_, err := s.DoAll(ctx, calls, make([]StoreResult, len(calls)))
		require.ErrorContains(t, err, want, want)
	}
	require.ErrorContains(t, s.Do(ctx, chainOf([]*StoreLimit{window, window, window}, 1), make([]StoreResult, 3)), "want DoAll")
	require.Zero(t, do(t, s, StoreCall{Limit: window, Op: OpPeek})[0].Count)
}

// TestChain_Planted: faults that are planted in the script are found.
func TestChain_Planted(t *testing.T) {
	s := anyServer(t)
	for _, f := range []struct{ name, old, new string }{
		{"the rest is not passed on", "n = flags % 16 >= 8 and made or left", "n = flags % 16 >= 8 and made or 0"},
		{"the first keeps its part", "else\nfor i = 1, #ARGV do", "else\nfor _, entry in ipairs(journal) do if entry[2] == KEYS[1] then redis_call(unpack(entry)) end end\nfor i = 1, #ARGV do"},
		{"given back to the other budget", "and made or left", "and left or made"},
		{"more given back than was noted", "units[i] = math.min(n, now", "units[i] = math.max(n, now"},
	} {
		t.Run(f.name, func(t *testing.T) {
			good := *allScript
			require.NoError(t, chainsCount(t, s), "without the fault")
			text := strings.ReplaceAll(good.text, f.old, f.new)
			require.NotEqual(t, good.text, text)
			*allScript = *newScript(text)
			defer func() { *allScript = good }()
			err := chainsCount(t, s)
			require.Error(t, err, "with the fault")
			t.Log(err)
		})
	}
}

// chainsCount demands of chains what they have to leave.
func chainsCount(t *testing.T, server *server) error {
	s := newStore(t, server.client, StoreConfig{})
	limits := chainLimits(t, s, 100, 50)
	back := func(n int) []StoreCall {
		return []StoreCall{{Limit: limits[2], Key: "a", Op: OpRefund, Cost: n}, {Limit: limits[1], Key: "a", Op: OpRefund, Part: Same}, {Limit: limits[0], Key: "a", Op: OpRefund, Part: Rest}}
	}
	for i, step := range []struct {
		calls []StoreCall
		ok    bool
		want  [3]int64
	}{
		{chainOf(limits, 70), true, [3]int64{70, 0, 0}},
		{chainOf(limits, 81), false, [3]int64{70, 0, 0}},
		{chainOf(limits, 60), true, [3]int64{100, 30, 30}},
		{back(10), true, [3]int64{100, 20, 20}},
		{back(50), true, [3]int64{70, 0, 0}},
		{back(90), true, [3]int64{0, 0, 0}},
	} {
		d, err := s.DoAll(ctx, step.calls, make([]StoreResult, 3))
		if err != nil || d.Allowed != step.ok {
			return fmt.Errorf("step %d: %+v, %w", i, d, err)
		}
		for j, want := range step.want {
			if got := do(t, s, StoreCall{Limit: limits[j], Key: "a", Op: OpPeek})[0].Count; got != want {
				return fmt.Errorf("step %d: limit %d counts %d, not %d", i, j, got, want)
			}
		}
	}
	return nil
}
