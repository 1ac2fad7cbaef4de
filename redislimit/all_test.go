package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestStore_DoAll compares calls that are made together with exact models: of all algorithms, of one key more than once, with
// blocks, and with a Redis that forgets.
func TestStore_DoAll(t *testing.T) { eachServer(t, storeDoAll) }

func storeDoAll(t *testing.T, server *server) {
	rng := seeded.Rand(t)
	for range depth.Of(15, 40, 400) {
		a := &allTracer{T: t, rng: rng, now: time.Now().UnixMilli() * 1000}
		a.store = newStore(t, server.client, StoreConfig{TimeSource: CallerClock, MaxStale: 1})
		a.store.link.clock, a.store.link.spare = func() int64 { return a.now }, 3_600_000 // Redis goes by another time than the trace
		for i, v := range variants {
			if rng.IntN(3) == 0 { // bans
				v.BlockFor = time.Duration(1+rng.IntN(100)) * time.Second
			}
			c, p := randomConfig(t, rng, v)
			cfg := LimitConfig{Name: fmt.Sprint(i), Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, BlockFor: c.BlockFor}
			l, err := a.store.Limit(cfg)
			if err != nil { // the local limiter cannot keep it
				continue
			}
			a.limits = append(a.limits, l)
			a.models = append(a.models, oracle.New(oracleConfig(c, p)))
		}
		for range 30 {
			a.step()
			if rng.IntN(10) == 0 {
				require.NoError(t, server.client.FlushAll(ctx).Err())
				a.lost()
			}
		}
	}
}

// An allTracer makes the same calls of a Store and of models.
type allTracer struct {
	*testing.T
	rng    *rand.Rand
	now    int64 // us
	store  *Store
	limits []*StoreLimit
	models []*oracle.Model
}

// lost is for a Redis that has forgotten everything: the log is not put back.
func (a *allTracer) lost() {
	for i, l := range a.limits {
		if l.config.Algorithm == sluice.SlidingLog {
			a.models[i].Reset("a")
			a.models[i].Reset("b")
		}
	}
}

func (a *allTracer) step() {
	a.now += a.rng.Int64N(1+1<<a.rng.IntN(24)) * 1000 // which all steps divide
	calls := make([]StoreCall, 1+a.rng.IntN(6))
	of := make([]int, len(calls))
	for i := range calls {
		of[i] = a.rng.IntN(len(a.limits))
		if i > 0 && a.rng.IntN(2) == 0 {
			of[i] = of[i-1]
		}
		l := a.limits[of[i]]
		calls[i] = StoreCall{Limit: l, Key: []string{"a", "b"}[a.rng.IntN(2)], Op: []Op{OpTake, OpTake, OpTake, OpPeek, OpDebit, OpRefund}[a.rng.IntN(6)]}
		calls[i].Cost = 1 + a.rng.IntN(max(1, min(l.Limit().Capacity(), 1+l.Limit().Capacity()/2)))
		if l.config.BlockFor > 0 && calls[i].Op == OpDebit {
			calls[i].Op = OpTake // see TestStore_Trace
		}
		if calls[i].Op == OpDebit {
			calls[i].Cost = min(calls[i].Cost, 1000)
			if b, ok := l.plan.Load().shape.(bucket); ok && b.unit > (exact-b.full-b.drain)/100_000 {
				calls[i].Op = OpTake // Debit leaves out units beyond 2^53 parts
			}
		}
	}
	out := make([]StoreResult, len(calls))
	d, err := a.store.DoAll(context.Background(), calls, out)
	require.NoError(a, err)
	a.compare(calls, of, d, out)
}

// at is now, in steps of a limit.
func (a *allTracer) at(l *StoreLimit) (now, step int64) {
	step = stepOf(l.plan.Load().shape)
	return floorDiv(a.now, step), step
}

func (a *allTracer) compare(calls []StoreCall, of []int, got sluice.AllDecision, out []StoreResult) {
	var after []*oracle.Model
	for _, m := range a.models {
		after = append(after, m.Clone())
	}
	made, fits, denied := make([]sluice.Decision, len(calls)), make([]bool, len(calls)), -1
	sums := map[string]int64{}
	sum, whole, asked := make([]int64, len(calls)), make([]int64, len(calls)), map[string]int64{}
	for i, c := range calls {
		now, step := a.at(c.Limit)
		made[i], fits[i] = modelled(after[of[i]], c, now, step)
		key := fmt.Sprint(of[i], c.Key)
		if c.Op == OpTake {
			sum[i] = sums[key] + int64(c.Cost)
			asked[key] += int64(c.Cost)
			whole[i] = asked[key]
			if fits[i] {
				sums[key] = sum[i]
			} else if denied < 0 {
				denied = i
			}
		}
	}
	require.Equal(a, denied, got.Denied, "%v", calls)
	require.Equal(a, denied < 0, got.Allowed)
	if got.Allowed {
		a.models = after
		for i := range calls {
			if calls[i].Op == OpDebit { // see storeTrace
				made[i].RetryAfter, out[i].Decision.RetryAfter = 0, 0
			}
			require.Equal(a, made[i], out[i].Decision, "call %d, %v %d of %v", i, calls[i].Op, calls[i].Cost, calls[i].Limit.config)
		}
		return
	}
	for i, c := range calls { // who stands in the way may be blocked
		if now, _ := a.at(c.Limit); !fits[i] && c.Op == OpTake && c.Limit.config.BlockFor > 0 && whole[i] <= int64(c.Limit.Limit().Capacity()) {
			a.models[of[i]].Take(c.Key, now, sum[i])
		}
	}
	for i, c := range calls {
		now, step := a.at(c.Limit)
		look := int64(c.Cost)
		if c.Op >= OpDebit {
			look = 0
		}
		want := fromOracle(a.models[of[i]].Peek(c.Key, now, look), step)
		if c.Op == OpTake && !fits[i] {
			require.False(a, out[i].Decision.Allowed)
			continue
		}
		require.Equal(a, want, out[i].Decision, "call %d, %v %d of %v, denied %d", i, c.Op, c.Cost, c.Limit.config, denied)
	}
}

// modelled makes a call of a model, and reports whether it stands in no way.
func modelled(m *oracle.Model, c StoreCall, now, step int64) (d sluice.Decision, fits bool) {
	switch cost := int64(c.Cost); c.Op {
	case OpTake:
		d = fromOracle(m.Take(c.Key, now, cost), step)
		return d, d.Allowed
	case OpDebit:
		before := m.Peek(c.Key, now, cost)
		d = fromOracle(m.Debit(c.Key, now, cost), step)
		d.Allowed, d.RetryAfter = before.Allowed, 0
	case OpRefund:
		m.Refund(c.Key, now, cost)
		d = fromOracle(m.Peek(c.Key, now, 0), step)
	default:
		d = fromOracle(m.Peek(c.Key, now, cost), step)
	}
	return d, true
}

// clusterStore: Do reaches all primaries, and DoAll those keys that are in one slot; of others it does nothing.
func clusterStore(t *testing.T, c *cluster) {
	s := newStore(t, c.client(), StoreConfig{})
	apart := limitOf(t, s, LimitConfig{Name: "apart", Limit: sluice.PerHour(3)})
	var calls []StoreCall
	for i := range 30 {
		calls = append(calls, StoreCall{Limit: apart, Key: fmt.Sprint(i), Cost: 2})
	}
	for _, left := range []int{1, 1} {
		for _, r := range do(t, s, calls...) {
			require.NoError(t, r.Err)
			require.Equal(t, left, r.Decision.Remaining)
		}
	}
	_, err := s.DoAll(ctx, calls, make([]StoreResult, len(calls)))
	require.ErrorContains(t, err, "different slots")
	together := limitOf(t, s, LimitConfig{Name: "together", Tag: "domain", Limit: sluice.PerHour(3)})
	for i := range calls {
		calls[i].Limit, calls[i].Key = together, fmt.Sprint("{", i, "}")
	}
	out := make([]StoreResult, len(calls))
	for _, denied := range []int{-1, 0} {
		d, err := s.DoAll(ctx, calls, out)
		require.NoError(t, err)
		require.Equal(t, denied, d.Denied)
		for _, r := range out {
			require.Equal(t, FromRedis, r.Source)
			require.Equal(t, int64(2), r.Count)
		}
	}
	out = out[:3]
	limits := chainLimits(t, s, 5, 7)
	for _, left := range [][2]int{{2, 7}, {0, 6}, {0, 3}} {
		d, err := s.DoAll(ctx, chainOf(limits, 3), out)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, left, [2]int{out[0].Decision.Remaining, out[1].Decision.Remaining})
	}
	limits[1] = apart
	_, err = s.DoAll(ctx, chainOf(limits, 3), out)
	require.ErrorContains(t, err, "different slots")
}

// TestStore_DoAll_Sources: each call counts under the source that has answered it.
func TestStore_DoAll_Sources(t *testing.T) {
	s := newStore(t, anyServer(t).client, StoreConfig{})
	free := limitOf(t, s, LimitConfig{Name: "free", Limit: sluice.Unlimited})
	ten := limitOf(t, s, LimitConfig{Name: "ten", Limit: sluice.PerHour(10)})
	out := make([]StoreResult, 2)
	for i, cost := range []int{1, 11} {
		d, err := s.DoAll(ctx, []StoreCall{{Limit: free, Key: "k", Cost: 1}, {Limit: ten, Key: "k", Cost: cost}}, out)
		require.NoError(t, err)
		require.Equal(t, cost == 1, d.Allowed)
		require.EqualValues(t, i+1, s.Stats().Cache)
		require.EqualValues(t, i+1, s.Stats().Redis)
	}
}
