package rulestore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

const planAndCredits = `
domain: d
sluice: {atomic: %t}
descriptors:
- key: client
  descriptors:
  - {key: budget, value: plan, rate_limit: {unit: month, requests_per_unit: %d, name: plan, then: credits%s}}
  - {key: budget, value: credits, rate_limit: {unit: year, requests_per_unit: %d, name: credits%s}}
- {key: other, rate_limit: {unit: year, requests_per_unit: 200}}
`

func budgetOf(client, budget string, hits uint64, back bool) rules.Descriptor {
	return rules.Descriptor{Entries: []rules.Entry{{Key: "client", Value: client}, {Key: "budget", Value: budget}}, Hits: &hits, Refund: back}
}

func engineOf(t *testing.T, text string, c rules.Config) *rules.Engine {
	t.Helper()
	e, err := rules.New(load(t, text), c)
	require.NoError(t, err)
	return e
}

// ask makes a call of one descriptor.
func ask(t *testing.T, e *rules.Engine, d ...rules.Descriptor) rules.Response {
	t.Helper()
	var resp rules.Response
	require.NoError(t, e.Decide(&rules.Request{Domain: "d", Descriptors: d}, &resp))
	return resp
}

// left is what the plan and the credits have left together, and the credits by themselves.
func left(t *testing.T, e *rules.Engine, client string) [2]uint32 {
	t.Helper()
	return [2]uint32{
		ask(t, e, budgetOf(client, "plan", 0, false)).Statuses[0].Remaining,
		ask(t, e, budgetOf(client, "credits", 0, false)).Statuses[0].Remaining,
	}
}

var budgetKinds = []string{"", "", ", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: leaky-bucket", ", algorithm: sliding-window", ", algorithm: sliding-log"}

// TestThen_AtOnce: three engines, with callers at once, take from both budgets what they are admitted for, and all that there is,
// and give back what they took, whether they were admitted or denied.
func TestThen_AtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, server *servers.Redis) {
		r := seeded.Rand(t)
		for round := range 6 {
			limits := [2]int{1 + r.IntN(200), 1 + r.IntN(200)}
			text := fmt.Sprintf(planAndCredits, round%2 == 0, limits[0], pick(r, budgetKinds...), limits[1], pick(r, budgetKinds...))
			var engines []*rules.Engine
			for range 3 {
				engines = append(engines, engineOf(t, text, rules.Config{Store: newStore(t, server.Addr, Config{StoreConfig: redislimit.StoreConfig{Prefix: fmt.Sprint("once", round)}})}))
			}
			var admitted, returned, direct atomic.Int64
			var all sync.WaitGroup
			for g := range 9 {
				r := rand.New(rand.NewPCG(r.Uint64(), 1))
				all.Go(func() {
					var resp rules.Response
					decide := func(budget string, n uint64, back bool) bool {
						err := engines[g%3].Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{budgetOf("ann", budget, n, back)}}, &resp)
						return assert.NoError(t, err) && resp.Code == rules.OK
					}
					for range 40 {
						n := uint64(1 + r.IntN(9))
						switch part := uint64(r.IntN(int(n) + 1)); {
						case r.IntN(8) == 0:
							if decide("credits", n, false) {
								direct.Add(int64(n))
							}
						case decide("plan", n, false):
							admitted.Add(int64(n))
							returned.Add(int64(part))
							decide("plan", part, true)
						default:
							decide("plan", n, true) // as a proxy does, also for calls that were denied
						}
					}
					for decide("plan", 1, false) {
						admitted.Add(1)
					}
					decide("plan", 1, true)
				})
			}
			all.Wait()
			require.EqualValues(t, limits[0]+limits[1], admitted.Load()-returned.Load()+direct.Load(), text)
			require.Equal(t, [2]uint32{}, left(t, engines[0], "ann"), "each went on until both were used up, and gave no more back: %s", text)
			within, refunded := int64(0), int64(0)
			for _, e := range engines {
				for _, s := range e.Series() {
					within, refunded = within+int64(s.Within), refunded+int64(s.Refunded-s.Absorbed)
				}
			}
			require.Equal(t, admitted.Load()+direct.Load(), within, text)
			require.Equal(t, returned.Load(), refunded, text)
		}
	})
}

// TestThen_SameEntries: two budgets of the same entries count apart, and of different clients, too.
func TestThen_SameEntries(t *testing.T) {
	server := servers.StartRedis(t)
	text := "domain: d\ndescriptors:\n- {key: k, value: a, rate_limit: {unit: year, requests_per_unit: 3, name: first, then: rest%[1]s}}\n- {key: k, rate_limit: {unit: year, requests_per_unit: 5, name: rest%[1]s}}\n"
	for i, kind := range budgetKinds {
		e := engineOf(t, fmt.Sprintf(text, kind), rules.Config{Store: newStore(t, server.Addr, Config{StoreConfig: redislimit.StoreConfig{Prefix: fmt.Sprint(i)}})})
		of := func(value string, hits uint64) rules.Status {
			return ask(t, e, rules.Descriptor{Entries: []rules.Entry{{Key: "k", Value: value}}, Hits: &hits}).Statuses[0]
		}
		require.EqualValues(t, 4, of("a", 4).Remaining, kind)
		require.EqualValues(t, 1, of("a", 3).Remaining, kind)
		require.Equal(t, rules.OverLimit, of("a", 2).Code, kind)
		require.EqualValues(t, 2, of("b", 3).Remaining, kind)
		require.EqualValues(t, 0, of("a", 1).Remaining, kind)
	}
}

// TestThen_Huge: units are counted one by one up to the most that a Store keeps, in both budgets; a call may ask for all.
func TestThen_Huge(t *testing.T) {
	server := servers.StartRedis(t)
	of := func(atomic bool, scale uint64) string {
		more := fmt.Sprint(", scale: ", scale)
		return fmt.Sprintf(planAndCredits, atomic, 4, more, 4, more)
	}
	u := uint64(1_000_000_000)
	if math.MaxInt == math.MaxInt32 {
		u /= 4
		other := func(n uint64) rules.Descriptor {
			return rules.Descriptor{Entries: []rules.Entry{{Key: "other", Value: "x"}}, Hits: &n}
		}
		for _, atomic := range []bool{false, true} {
			e := engineOf(t, of(atomic, 2*u), rules.Config{Store: newStore(t, server.Addr, Config{StoreConfig: redislimit.StoreConfig{Prefix: fmt.Sprint(atomic)}})})
			require.Equal(t, rules.OverLimit, ask(t, e, other(3), budgetOf("ann", "plan", 12*u, false)).Code, "an int ends below")
			require.Equal(t, [2]uint32{8, 4}, left(t, e, "ann"))
			require.Equal(t, atomic, ask(t, e, other(0)).Statuses[0].Remaining == 200)
		}
	}
	e := engineOf(t, of(false, u), rules.Config{Store: newStore(t, server.Addr, Config{})})
	memory := engineOf(t, of(false, u), rules.Config{})
	for i, d := range []rules.Descriptor{
		budgetOf("ann", "plan", 8*u+1, false), budgetOf("ann", "plan", 8*u-1, false), budgetOf("ann", "plan", 1, false), budgetOf("ann", "plan", 1, false),
		budgetOf("ann", "plan", 8*u+1, true), budgetOf("ann", "plan", 1, true), budgetOf("ann", "plan", 4*u+u/2, true), budgetOf("ann", "plan", 2*u, false),
		budgetOf("ann", "plan", 6*u, true), budgetOf("ann", "plan", 1<<63, false), budgetOf("ann", "plan", 8*u, false),
	} {
		want, got := ask(t, memory, d), ask(t, e, d)
		require.Equal(t, want.Code, got.Code, "step %d", i)
		require.Equal(t, want.Statuses[0].Remaining, got.Statuses[0].Remaining, "step %d", i)
	}
}

// TestThen_Without: without Redis the shares have both budgets, or all calls pass, or none is answered.
func TestThen_Without(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	for _, policy := range []redislimit.OnUnavailable{redislimit.LocalShare, redislimit.FailOpen, redislimit.FailClosed} {
		for _, atomic := range []bool{false, true} {
			store, err := New(client, Config{StoreConfig: redislimit.StoreConfig{Replicas: 2, OnUnavailable: policy, Budget: time.Minute}})
			require.NoError(t, err)
			e := engineOf(t, fmt.Sprintf(planAndCredits, atomic, 20, "", 40, ""), rules.Config{Store: store})
			var resp rules.Response
			decide := func(d rules.Descriptor) error {
				return e.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{d}}, &resp)
			}
			if policy == redislimit.FailClosed {
				require.ErrorIs(t, decide(budgetOf("ann", "plan", 5, false)), rules.ErrStore)
				require.NoError(t, store.Close(context.Background()))
				continue
			}
			for _, step := range []struct {
				hits  uint64
				back  bool
				ok    bool
				share uint32
			}{{7, false, true, 23}, {11, false, true, 12}, {13, false, false, 12}, {12, false, true, 0}, {0, false, false, 0}, {13 + 25, true, true, 25}, {5, false, true, 20}} {
				require.NoError(t, decide(budgetOf("ann", "plan", step.hits, step.back)))
				if policy == redislimit.FailOpen {
					require.Equal(t, rules.OK, resp.Code)
					continue
				}
				require.Equal(t, step.ok, resp.Code == rules.OK, "%+v", step)
				require.Equal(t, step.share, resp.Statuses[0].Remaining, "%+v", step)
			}
			require.NoError(t, store.Close(context.Background()))
		}
	}
}

// TestThen_Fresh: how long a Store knows what was taken from a second budget.
func TestThen_Fresh(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		algorithm sluice.Algorithm
		limit     sluice.Limit
		want      time.Duration
	}{
		{sluice.FixedWindow, sluice.Per(10, day), day},
		{sluice.SlidingLog, sluice.Per(10, day), day},
		{sluice.SlidingWindow, sluice.Per(10, day), 2 * day},
		{sluice.GCRA, sluice.Per(10, day), day},
		{sluice.GCRA, sluice.Per(10, day).WithBurst(21), 3 * day},
		{sluice.LeakyBucket, sluice.Per(10, day).WithBurst(1), day},
		{sluice.TokenBucket, sluice.Per(1, day).WithBurst(1 << 30), longestFresh},
		{sluice.TokenBucket, sluice.Per(0, day), day},
	} {
		require.Equal(t, c.want, fresh(&rules.StoreLimit{Algorithm: c.algorithm, Limit: c.limit}), "%+v", c)
		n := plentyOf(sluice.InFlight, sluice.Limit{}, c.want).Rate
		require.GreaterOrEqual(t, n, 1<<30, "%v", c.want)
	}
}

// TestThen_Cluster: in a cluster both budgets of a rule can be reached together, also where the domain is not atomic.
func TestThen_Cluster(t *testing.T) {
	server := servers.StartRedis(t, "--cluster-enabled", "yes")
	node := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer node.Close()
	ctx := t.Context()
	require.NoError(t, node.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	require.Eventually(t, func() bool { return strings.Contains(node.ClusterInfo(ctx).Val(), "cluster_state:ok") }, 30*time.Second, time.Millisecond)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	defer client.Close()
	store, err := New(client, Config{StoreConfig: redislimit.StoreConfig{Budget: 5 * time.Second, Replicas: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close(context.Background())) }()
	for i, kind := range budgetKinds {
		e := engineOf(t, fmt.Sprintf(planAndCredits, i%2 == 0, 10, kind, 20, kind), rules.Config{Store: store})
		client := fmt.Sprint("client", i)
		require.EqualValues(t, 30-13, ask(t, e, budgetOf(client, "plan", 13, false)).Statuses[0].Remaining)
		require.Equal(t, rules.OverLimit, ask(t, e, budgetOf(client, "plan", 18, false)).Code)
		ask(t, e, budgetOf(client, "plan", 18+2, true))
		require.Equal(t, [2]uint32{19, 19}, left(t, e, client))
	}
	require.Zero(t, store.Stores()[0].Stats().Fallback)
}

// TestThen_ByHand: what is rare in random calls is as in memory, too: limits of 0, looks at full budgets, and calls that ask for the same
// budgets twice.
func TestThen_ByHand(t *testing.T) {
	server := servers.StartRedis(t)
	twice := func(hits ...uint64) (all []rules.Descriptor) {
		for i, n := range hits {
			all = append(all, budgetOf("ann", []string{"plan", "plan", "credits"}[i], n, false))
		}
		return all
	}
	calls := [][]rules.Descriptor{
		twice(20, 15), twice(0), twice(7), {budgetOf("ann", "plan", 2, true)}, twice(4, 9), twice(4, 30), twice(2, 1, 40), twice(1, 1, 1), {budgetOf("ann", "plan", 80, true)},
		twice(10, 10), {budgetOf("ann", "plan", 33, true)}, twice(1), twice(31), twice(30), twice(0), {budgetOf("ann", "credits", 0, false)},
		{budgetOf("ann", "plan", 31, true)}, {budgetOf("ann", "plan", 12, true)}, {budgetOf("ann", "credits", 0, false)}, {budgetOf("ann", "credits", 3, true)},
	}
	for round, limits := range [][2]int{{10, 20}, {0, 20}, {10, 0}, {0, 0}} {
		for mode, c := range map[string]rules.Config{"each": {}, "stop": {StopWhenOver: true}, "atomic": {}} {
			for k, kind := range []string{"", ", algorithm: gcra"} {
				text := fmt.Sprintf(planAndCredits, mode == "atomic", limits[0], kind, limits[1], kind)
				memory := engineOf(t, text, c)
				store := newStore(t, server.Addr, Config{StoreConfig: redislimit.StoreConfig{Prefix: fmt.Sprint(round, mode, k)}})
				store.sentRefunds(t)
				c.Store = store
				shared := engineOf(t, text, c)
				for i, d := range calls {
					if len(d) > 1 && mode != "atomic" {
						continue
					}
					want, got := ask(t, memory, d...), ask(t, shared, d...)
					require.Equal(t, want.Code, got.Code, "%s, call %d: %+v of %s", mode, i, d, text)
					for j := range want.Statuses {
						if len(d) > 1 { // in memory both are over, and tell how they stand after both; here the one that does not fit, and between them
							break
						}
						require.Equal(t, comparable(want.Statuses[j]), comparable(got.Statuses[j]), "%s, call %d, %d: %+v of %s", mode, i, j, d, text)
					}
				}
				if mode != "atomic" {
					require.Equal(t, memory.Series(), shared.Series(), "%s: %s", mode, text)
				}
			}
		}
	}
}
