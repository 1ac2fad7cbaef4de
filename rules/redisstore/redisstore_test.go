package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/seeded"
	"github.com/sluice-go/sluice/redistier"
	"github.com/sluice-go/sluice/rules"
)

// newStore returns a store on a server, for which calls have all the time that a busy machine may take.
func newStore(t *testing.T, addr string, c Config) *Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	if c.Budget == 0 {
		c.Budget = 5 * time.Second
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	s, err := New(client, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

func load(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Load([]rules.File{{Name: "f.yaml", Data: []byte(text)}}, rules.Options{})
	require.NoError(t, err)
	return set
}

// eachServer runs f with each kind of server that there is.
func eachServer(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	if len(redistest.All()) == 0 {
		t.Skip(redistest.ErrNone)
	}
	for i, binary := range redistest.All() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s, err := redistest.New(binary)
			require.NoError(t, err)
			t.Cleanup(s.Kill)
			f(t, s)
		})
	}
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// units are so long that no boundary comes while a test runs; and nothing comes back that a status would show.
var units = []string{"month", "year"}

var algorithms = []string{"", "", "gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log", "in-flight"}

func randomRules(r *rand.Rand, atomic bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: d\nsluice: {atomic: %t}\ndescriptors:\n", atomic)
	for _, key := range []string{"a", "b", "c"} {
		for _, value := range []string{"", "x", "y*"} {
			fmt.Fprintf(&b, "- key: %s\n  value: %q\n  shadow_mode: %t\n  quota_mode: %t\n", key, value, r.IntN(5) == 0, r.IntN(6) == 0)
			fmt.Fprintf(&b, "  share_threshold: %t\n", value == "y*" && r.IntN(2) == 0)
			fmt.Fprintf(&b, "  rate_limit: {unit: %s, requests_per_unit: %d", pick(r, units...), r.IntN(40))
			if a := pick(r, algorithms...); a != "" {
				fmt.Fprintf(&b, ", algorithm: %s", a)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// randomRequest is a call of different keys; see TestStore_DecidesAsMemory of package rules.
func randomRequest(r *rand.Rand) *rules.Request {
	req := &rules.Request{Domain: "d", Hits: uint32(r.IntN(3))}
	keys := []string{"a", "b", "c"}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+r.IntN(3)] {
		d := rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: pick(r, "x", "y1", "y2", "z")}}}
		if r.IntN(4) == 0 {
			n := uint64(r.IntN(6))
			d.Hits = &n
		}
		d.Refund = r.IntN(6) == 0
		if r.IntN(6) == 0 {
			d.Override = &rules.Override{Requests: uint32(1 + r.IntN(20)), Unit: []rules.Unit{rules.Month, rules.Year}[r.IntN(2)]}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// comparable is what a status says that does not depend on the moment: the engine in memory decides a little later.
func comparable(s rules.Status) string {
	return fmt.Sprint(s.Code, s.Over, s.Limited, s.Requests, s.Unit, s.Remaining)
}

// TestStore_DecidesAsMemory: every status is that of an engine in memory, whatever the algorithm, in the mode of each domain.
func TestStore_DecidesAsMemory(t *testing.T) {
	calls := 7000
	if testing.Short() {
		calls = 1500
	}
	eachServer(t, func(t *testing.T, server *redistest.Server) {
		for _, mode := range []string{"each", "atomic", "stop"} {
			t.Run(mode, func(t *testing.T) {
				r := seeded.Rand(t)
				codes := map[rules.Code]int{}
				var memory, shared *rules.Engine
				var a, b rules.Response
				for i := range calls {
					if i%500 == 0 {
						c := rules.Config{StopWhenOver: mode == "stop"}
						set, err := rules.Load([]rules.File{{Name: "f", Data: []byte(randomRules(r, mode == "atomic"))}}, rules.Options{})
						require.NoError(t, err)
						memory, err = rules.New(set, c)
						require.NoError(t, err)
						store := newStore(t, server.Addr, Config{StoreConfig: redistier.StoreConfig{Prefix: fmt.Sprintf("%s%d", mode, i)}})
						store.sentRefunds(t)
						c.Store = store
						shared, err = rules.New(set, c)
						require.NoError(t, err)
					}
					req := randomRequest(r)
					require.NoError(t, memory.Decide(req, &a))
					require.NoError(t, shared.Decide(req, &b))
					require.Equal(t, a.Code, b.Code, "call %d: %+v", i, req)
					for j := range a.Statuses {
						require.Equal(t, comparable(a.Statuses[j]), comparable(b.Statuses[j]), "call %d, descriptor %d: %+v of %v; absorbed %v", i, j, req, a.Statuses[j].Rule, memory.Series())
					}
					codes[a.Code]++
				}
				require.Greater(t, codes[rules.OK], calls/20)
				require.Greater(t, codes[rules.OverLimit], calls/20)
			})
		}
	})
}

// TestDecide_FullShadowWindow: in a call that a look denies, a window that is just full is not over its limit.
func TestDecide_FullShadowWindow(t *testing.T) {
	store := newStore(t, redistest.Start(t).Addr, Config{})
	engine, err := rules.New(load(t, `domain: d
sluice: {atomic: true}
descriptors:
- {key: full, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: bucket, rate_limit: {unit: year, requests_per_unit: 2, algorithm: gcra}}
`), rules.Config{Store: store})
	require.NoError(t, err)
	var out rules.Response
	for i, hits := range []uint64{2, 0} {
		req := &rules.Request{Domain: "d"}
		for _, key := range []string{"full", "bucket"} {
			req.Descriptors = append(req.Descriptors, rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: "v"}}, Hits: &hits})
		}
		require.NoError(t, engine.Decide(req, &out))
		require.Equal(t, i == 1, out.Statuses[1].Over)
		require.False(t, out.Statuses[0].Over)
	}
}

// TestDecide_RefundOfNothing: a refund under a limit of no requests leaves none, in memory and in Redis.
func TestDecide_RefundOfNothing(t *testing.T) {
	addr := redistest.Start(t).Addr
	for _, a := range []string{"fixed-window", "gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log"} {
		set := load(t, `domain: d
sluice: {atomic: true}
descriptors:
- {key: none, rate_limit: {unit: year, requests_per_unit: 0, algorithm: `+a+`}}
- {key: full, rate_limit: {unit: year, requests_per_unit: 2}}
`)
		store := newStore(t, addr, Config{StoreConfig: redistier.StoreConfig{Prefix: a}})
		store.sentRefunds(t)
		for _, c := range []rules.Config{{}, {Store: store}} {
			engine, err := rules.New(set, c)
			require.NoError(t, err)
			req := &rules.Request{Domain: "d", Hits: 2, Descriptors: []rules.Descriptor{
				{Entries: []rules.Entry{{Key: "none", Value: "v"}}, Refund: true}, {Entries: []rules.Entry{{Key: "full", Value: "v"}}},
			}}
			var out rules.Response
			for _, want := range []rules.Code{rules.OK, rules.OverLimit} {
				require.NoError(t, engine.Decide(req, &out))
				require.Equal(t, want, out.Code, "%s, %+v", a, out)
				require.Zero(t, out.Statuses[0].Remaining, "%s, %+v", a, out)
			}
		}
	}
}

// sentRefunds makes domain d one that has long been sent refunds.
func (s *Store) sentRefunds(t *testing.T) {
	t.Helper()
	// The Store looks too, of itself. It looks for domains that it has entered, so if it finds "d", it finds it listed.
	require.NoError(t, s.refunds.client.ZAdd(context.Background(), s.refunds.key, redis.Z{Score: 1, Member: "d"}).Err())
	s.refunds.enter("d")
	require.NoError(t, s.refunds.poll())
	require.True(t, s.refunds.enter("d").settled.Load())
}

// TestOpen_ShortPeriods: rules whose periods no lease fits into do without, whatever the budget.
func TestOpen_ShortPeriods(t *testing.T) {
	server := redistest.Start(t)
	for _, c := range []struct {
		budget time.Duration
		limit  string
	}{{time.Second, "unit: second"}, {time.Minute, "unit: minute, algorithm: gcra"}, {2 * time.Second, "unit: minute"}, {0, "period: 9ms"}, {0, "period: 10ms"}} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer client.Close()
		store, err := New(client, Config{StoreConfig: redistier.StoreConfig{Budget: c.budget}})
		require.NoError(t, err)
		engine, err := rules.New(load(t, "domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 10, "+c.limit+"}}]\n"), rules.Config{Store: store, Leases: true})
		require.NoError(t, err, "%v, %s", c.budget, c.limit)
		for _, s := range store.Stores() {
			require.NoError(t, s.Reach(t.Context()), "from now on a late answer is judged by the share")
		}
		var out rules.Response
		require.NoError(t, engine.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "k", Value: "v"}}}}}, &out))
		require.Equal(t, rules.OK, out.Code)
		require.NoError(t, store.Close(context.Background()))
	}
}

// TestLeaseLife: leases of long windows live longer than those of anything else.
func TestLeaseLife(t *testing.T) {
	for _, c := range []struct {
		algorithm sluice.Algorithm
		period    time.Duration
		block     time.Duration
		want      time.Duration
	}{
		{sluice.FixedWindow, time.Second, 0, 0},
		{sluice.FixedWindow, time.Minute - 1, 0, 0},
		{sluice.FixedWindow, time.Minute, 0, time.Second},
		{sluice.FixedWindow, 24 * time.Hour, 0, time.Second},
		{sluice.FixedWindow, time.Minute, time.Hour, 0},
		{sluice.SlidingWindow, time.Minute, 0, 0},
		{sluice.GCRA, time.Minute, 0, 0},
	} {
		l := &rules.StoreLimit{Algorithm: c.algorithm, Limit: sluice.Per(100, c.period), BlockFor: c.block}
		require.Equal(t, c.want, leaseLife(l), "%v", c)
	}
}

// TestRefunds_Known: until Redis has been asked about a domain, its denials are noted; and a flag that Redis has lost settles
// nothing, until all can know it again.
func TestRefunds_Known(t *testing.T) {
	ctx := context.Background()
	s := newStore(t, redistest.Start(t).Addr, Config{})
	d := s.refunds.enter("late") // after the first look
	require.True(t, d.refunds())
	require.NoError(t, s.refunds.poll())
	require.False(t, d.refunds())
	s.sentRefunds(t)
	d = s.refunds.enter("d")
	require.NoError(t, s.refunds.client.FlushAll(ctx).Err())
	require.NoError(t, s.refunds.poll())
	require.True(t, d.refunds(), "this process knows it still")
	require.False(t, d.settled.Load(), "and one that begins now does not")
	s.refunds.sent(d)
	require.Eventually(t, func() bool { return s.refunds.client.ZScore(ctx, s.refunds.key, "d").Err() == nil }, 10*time.Second, time.Millisecond)
}
