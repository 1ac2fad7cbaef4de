package redislimit

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A tripCounter counts pipelines, and commands.
type tripCounter struct{ pipelines, commands atomic.Int64 }

func (c *tripCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *tripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.pipelines.Add(1)
		c.commands.Add(1)
		return next(ctx, cmd)
	}
}

func (c *tripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.pipelines.Add(1)
		c.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// TestStore_OneTrip: calls that several limits judge are one pipeline, and those of one key and cost one command of it,
// charges included.
func TestStore_OneTrip(t *testing.T) {
	server := anyServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.addr, DisableIdentity: true})
	defer client.Close()
	s := newStore(t, client, StoreConfig{})
	var calls []StoreCall
	for _, name := range []string{"other", "minute", "hour"} {
		l := limitOf(t, s, LimitConfig{Name: name, Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(2)})
		for range 3 {
			calls = append(calls, StoreCall{Limit: l, Key: "a", Cost: 1, Op: OpDebit})
		}
	}
	do(t, s, calls...) // the scripts get known
	_, err := s.DoAll(ctx, calls[:1], make([]StoreResult, 1))
	require.NoError(t, err)
	calls[0].Limit.Close()
	calls = calls[3:]
	var c tripCounter
	client.AddHook(&c)
	for i, r := range do(t, s, calls...) {
		require.NoError(t, r.Err)
		require.Equal(t, int64(4+i%3), r.Count)
		require.False(t, r.Decision.Allowed)
	}
	require.Equal(t, int64(1), c.pipelines.Load())
	require.Equal(t, int64(2), c.commands.Load())
	_, err = s.DoAll(ctx, calls[:1], make([]StoreResult, 1))
	require.NoError(t, err)
	require.Equal(t, int64(2), c.pipelines.Load())
}

// TestStore_Names: no two limits, and no two keys, have the same name in Redis, and nothing in a key chooses its slot.
func TestStore_Names(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("k", maxPlain+1)
	for _, prefix := range []string{"p", "p{t}"} {
		for _, c := range []LimitConfig{{Name: "n"}, {Name: "n", Tag: "t"}, {Name: "n", Tag: "}"}, {Name: "n~k"}, {Name: "n%7Ek"}, {Name: "n#"}, {Name: "{n}"}} {
			if c.Tag != "" && prefix != "p" {
				require.Error(t, c.validate(prefix))
				continue
			}
			for _, letter := range []byte{'b', 'w'} {
				n := newKeyNames(prefix, &c, letter)
				slots := map[int]bool{}
				for _, key := range []string{"", "k", "k~", "{k}", "{", "}", "#k", long, digest(long), "{a}" + long} {
					name := n.of(key)
					require.Empty(t, seen[name], "%q", name)
					seen[name] = prefix + c.Name + c.Tag + key
					slots[slotOf(name)] = true
					if tagged := c.Tag != "" || prefix != "p"; !tagged {
						require.NotContains(t, name, "{")
					}
				}
				if c.Tag != "" || prefix != "p" {
					require.Len(t, slots, 1)
				}
			}
		}
	}
}

// TestStore_Mistakes: each has an error that says what is wrong, and nothing is done.
func TestStore_Mistakes(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for field, c := range map[string]StoreConfig{
		"Prefix": {}, "Replicas": {Prefix: "p", Replicas: -1}, "Budget": {Prefix: "p", Budget: 1}, "MaxKeys": {Prefix: "p", MaxKeys: -1},
		"TimeSource": {Prefix: "p", TimeSource: 9}, "OnUnavailable": {Prefix: "p", OnUnavailable: 9},
	} {
		_, err := NewStore(client, c)
		refusedBy(t, err, field)
	}
	_, err := NewStore(nil, StoreConfig{Prefix: "p"})
	refusedBy(t, err, "client")
	s := newStore(t, client, StoreConfig{})
	window := LimitConfig{Name: "n", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(10)}
	l := limitOf(t, s, window)
	for field, change := range map[string]func(c *LimitConfig){
		"Name":       func(c *LimitConfig) { c.Limit = sluice.PerMinute(10) },
		"Limit.Rate": func(c *LimitConfig) { c.Name, c.Limit.Rate = "m", -1 },
		"Tag":        func(c *LimitConfig) { c.Tag = strings.Repeat("t", 65) },
		"Lease":      func(c *LimitConfig) { c.Name, c.Algorithm, c.Lease.Max = "m", sluice.SlidingLog, 1 },
		"Lease.Life": func(c *LimitConfig) { c.Lease = Lease{Max: 1, Life: time.Hour} },
	} {
		c := window
		change(&c)
		_, err := s.Limit(c)
		refusedBy(t, err, field)
	}
	for _, c := range []LimitConfig{{Name: ""}, {Name: strings.Repeat("n", 129)}, {Name: "n", Tag: "x", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(1)}} {
		_, err := s.Limit(c)
		refusedBy(t, err, "Name")
	}
	refusedBy(t, l.SetLimit(sluice.PerMinute(1)), "Limit.Period")
	other := limitOf(t, newStore(t, client, StoreConfig{}), window)
	one := make([]StoreResult, 1)
	for _, c := range []StoreCall{{}, {Limit: other}, {Limit: l, Op: 9}} {
		require.Error(t, s.Do(ctx, []StoreCall{c}, one))
		_, err := s.DoAll(ctx, []StoreCall{c}, one)
		require.Error(t, err)
	}
	require.ErrorContains(t, s.Do(ctx, nil, one), "0 calls with room for 1 results")
	_, err = s.DoAll(ctx, make([]StoreCall, 300), make([]StoreResult, 300))
	require.Error(t, err)
	refusedBy(t, do(t, s, StoreCall{Limit: l, Override: sluice.PerMinute(1)})[0].Err, "Override")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, s.Do(gone, []StoreCall{{Limit: l}}, one), context.Canceled)
	l.Close()
	l.Close()
	require.ErrorIs(t, do(t, s, StoreCall{Limit: l})[0].Err, ErrClosed)
	_, err = s.DoAll(ctx, []StoreCall{{Limit: l}}, one)
	require.ErrorIs(t, err, ErrClosed)
	window.Limit = sluice.PerMinute(10) // the Name is free again
	limitOf(t, s, window)
	require.NoError(t, s.Close(ctx))
	_, err = s.Limit(window)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, s.Do(ctx, []StoreCall{{Limit: l}}, one), ErrClosed)
}

func refusedBy(t *testing.T, err error, field string) {
	t.Helper()
	var bad *ConfigError
	require.True(t, errors.As(err, &bad), "%v", err)
	require.Equal(t, field, bad.Field, "%v", err)
}

// TestStore_Counts: a window counts denied hits, under whatever limit, and forgets them all at its end; what is
// given back is not below 0.
func TestStore_Counts(t *testing.T) { eachServer(t, storeCounts) }

func storeCounts(t *testing.T, server *server) {
	s := newStore(t, server.client, StoreConfig{TimeSource: CallerClock})
	now := time.Now().Truncate(time.Hour).Add(time.Minute).UnixMicro()
	s.link.clock = func() int64 { return now }
	config := LimitConfig{Name: "hits", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(3)}
	l, huge := limitOf(t, s, config), config
	huge.Limit = sluice.PerHour(math.MaxInt32 - 1) // math.MaxInt is Unlimited, which counts nothing
	m := limitOf(t, s, huge)
	none := config
	none.Limit.Rate = 0
	n := limitOf(t, s, none)
	count := func(l *StoreLimit, cost int, op Op, over sluice.Limit) StoreResult {
		r := do(t, s, StoreCall{Limit: l, Key: "a", Cost: cost, Op: op, Override: over})[0]
		require.NoError(t, r.Err)
		return r
	}
	for _, c := range []struct {
		limit   *StoreLimit
		cost    int
		op      Op
		over    sluice.Limit
		allowed bool
		count   int64
	}{
		{l, 3, OpDebit, sluice.Limit{}, true, 3},
		{l, 3, OpDebit, sluice.Limit{}, false, 6},
		{l, 1, OpTake, sluice.Limit{}, false, 6},
		{l, 1, OpTake, sluice.PerHour(7), true, 7},
		{l, 1, OpDebit, sluice.PerHour(8), true, 8},
		{l, 1, OpDebit, sluice.PerHour(8), false, 9},
		{m, 1, OpTake, sluice.Limit{}, true, 10},
		{n, 1, OpDebit, sluice.Limit{}, false, 11},
		{l, 0, OpDebit, sluice.Limit{}, false, 11},
		{l, 1, OpPeek, sluice.PerHour(12), true, 11},
		{l, 9, OpRefund, sluice.Limit{}, true, 2},
		{l, 9, OpRefund, sluice.Limit{}, true, 0},
		{m, 1 << 30, OpDebit, sluice.Limit{}, true, 1 << 30},
		{l, 1, OpDebit, sluice.Limit{}, false, 1<<30 + 1},
	} {
		r := count(c.limit, c.cost, c.op, c.over)
		require.Equal(t, c.allowed, r.Decision.Allowed, "%+v", c)
		require.Equal(t, c.count, r.Count, "%+v", c)
	}
	now += int64(time.Hour) / micro
	require.Equal(t, int64(0), count(l, 1, OpPeek, sluice.Limit{}).Count)
	require.Equal(t, int64(1), count(l, 1, OpDebit, sluice.Limit{}).Count)
	require.NoError(t, l.SetLimit(sluice.PerHour(1)))
	require.False(t, count(l, 1, OpTake, sluice.Limit{}).Decision.Allowed)
	require.Equal(t, sluice.PerHour(1), l.Limit())
	require.Equal(t, 2, l.WorstCase(time.Second))
	for i := range 3 * maxOverrides { // which are not kept for ever
		count(l, 0, OpPeek, sluice.PerHour(1+i))
	}
	known := 0
	l.others.Range(func(any, any) bool { known++; return true })
	require.LessOrEqual(t, known, maxOverrides)
}

// TestStore_Without: without Redis each call is answered by this process's share, and calls of DoAll together.
func TestStore_Without(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	for _, policy := range []OnUnavailable{LocalShare, FailOpen, FailClosed} {
		s := newStore(t, client, StoreConfig{Replicas: 3, OnUnavailable: policy})
		window := LimitConfig{Name: "w", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(9)}
		l := limitOf(t, s, window)
		b := limitOf(t, s, LimitConfig{Name: "b", Limit: sluice.PerHour(9)})
		out := do(t, s,
			StoreCall{Limit: l, Key: "a", Cost: 2, Op: OpDebit}, StoreCall{Limit: l, Key: "a", Cost: 2, Op: OpDebit}, StoreCall{Limit: l, Key: "a", Cost: 1},
			StoreCall{Limit: b, Key: "a", Cost: 3}, StoreCall{Limit: b, Key: "a", Cost: 1}, StoreCall{Limit: b, Key: "a", Cost: 1, Op: OpPeek},
			StoreCall{Limit: b, Key: "a", Cost: 2, Op: OpRefund}, StoreCall{Limit: b, Key: "a", Cost: 6, Override: sluice.PerHour(18)})
		var allowed []bool
		for _, r := range out {
			if policy == FailClosed {
				require.ErrorIs(t, r.Err, ErrUnavailable)
				continue
			}
			require.NoError(t, r.Err)
			require.Equal(t, FromFallback, r.Source)
			allowed = append(allowed, r.Decision.Allowed)
		}
		all := []StoreCall{{Limit: l, Key: "b", Cost: 2}, {Limit: b, Key: "b", Cost: 2}, {Limit: l, Key: "b", Cost: 1, Op: OpDebit}}
		results := make([]StoreResult, 3)
		d, err := s.DoAll(ctx, all, results)
		switch policy {
		case LocalShare:
			require.Equal(t, []bool{true, false, false, true, false, false, true, false}, allowed)
			require.Equal(t, []int64{2, 3, 3, 3}, []int64{out[0].Count, out[1].Count, out[2].Count, out[3].Count})
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.Equal(t, []int64{2, 2, 3}, []int64{results[0].Count, results[1].Count, results[2].Count})
			d, err = s.DoAll(ctx, all, results)
			require.NoError(t, err)
			require.Equal(t, sluice.AllDecision{Denied: 0, RetryAfter: d.RetryAfter}, d)
			require.Equal(t, int64(2), results[1].Count, "none is made")
			stats := s.Stats()
			require.Equal(t, uint64(2+2+3+2+2+1), stats.Unshared)
			require.Equal(t, int64(stats.Unshared), stats.Owed)
			require.Equal(t, stats.Unshared, s.Status().Unshared)
		case FailOpen:
			require.Equal(t, []bool{true, true, true, true, true, true, true, true}, allowed)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		default:
			require.ErrorIs(t, err, ErrUnavailable)
		}
	}
}

// TestStore_Replicas: processes find out how many of them there are; what Redis does not say stays as it was.
func TestStore_Replicas(t *testing.T) {
	t.Parallel() // it mostly waits
	if len(binaries()) == 0 {
		t.Skip("there is no redis-server: apt-get install redis-server")
	}
	for _, binary := range binaries() {
		server := start(t, binary)
		t.Run(server.version(t), func(t *testing.T) { storeReplicas(t, server) })
		server.kill()
	}
}

func storeReplicas(t *testing.T, server *server) {
	var stores []*Store
	for range 3 {
		client := redis.NewClient(&redis.Options{Addr: server.addr})
		defer client.Close()
		s, err := NewStore(client, StoreConfig{Prefix: "fleet"})
		require.NoError(t, err)
		stores = append(stores, s)
	}
	count := func(want int, stores ...*Store) {
		for _, s := range stores {
			await(t, "the number of replicas", func() bool { return s.Replicas() == want })
		}
	}
	count(3, stores...)
	require.NoError(t, stores[0].Close(ctx)) // leaves
	count(2, stores[1:]...)
	stores[1].beats.stop() // dies: it does not say so, as far as the others can see
	stores[1].beats.done.Wait()
	require.NoError(t, server.client.ZAdd(ctx, "fleet~replicas", redis.Z{Score: float64(time.Now().UnixMilli()), Member: "dead"}).Err())
	count(2, stores[2])
	count(1, stores[2])
	require.Positive(t, server.client.PTTL(ctx, "fleet~replicas").Val())
	require.NoError(t, server.client.ZAdd(ctx, "fleet~replicas", hostile(maxReplicas+5)...).Err())
	count(maxReplicas, stores[2])
	require.NoError(t, server.client.Set(ctx, "fleet~replicas", "a text", 0).Err())
	_, err := stores[2].beats.tell(ctx, false)
	require.Error(t, err)
	require.Equal(t, maxReplicas, stores[2].Replicas())
	require.NoError(t, stores[1].Close(ctx))
	require.NoError(t, stores[2].Close(ctx))
}

func hostile(n int) (all []redis.Z) {
	for i := range n {
		all = append(all, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: i})
	}
	return all
}

// TestStore_CloseLeavesNothing: neither goroutines, nor units on lease, nor a place among the replicas.
func TestStore_CloseLeavesNothing(t *testing.T) {
	server := anyServer(t)
	before := runtime.NumGoroutine()
	client := redis.NewClient(&redis.Options{Addr: server.addr})
	s, err := NewStore(client, StoreConfig{Prefix: "gone", Budget: patient})
	require.NoError(t, err)
	l := limitOf(t, s, LimitConfig{Name: "a", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(1_000_000), Lease: Lease{Max: 1000, Life: 10 * time.Minute}})
	for range 200 {
		do(t, s, StoreCall{Limit: l, Key: "a", Cost: 1})
	}
	require.Positive(t, s.Stats().Leased)
	require.NoError(t, s.Close(ctx))
	require.Zero(t, s.Stats().Leased)
	require.Zero(t, server.client.ZCard(ctx, "gone~replicas").Val())
	again := newStore(t, server.client, StoreConfig{Prefix: "gone"})
	require.Equal(t, int64(200), do(t, again, StoreCall{Limit: limitOf(t, again, LimitConfig{Name: "a", Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(1_000_000)}), Key: "a", Op: OpPeek})[0].Count)
	require.NoError(t, again.Close(ctx))
	client.Close()
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// TestStore_Leases: limits with and without leases count the same units; a new limit, and a limit that is closed, give
// back what was lent under the old one.
func TestStore_Leases(t *testing.T) { eachServer(t, storeLeases) }

func storeLeases(t *testing.T, server *server) {
	for _, v := range variantsThatLend() {
		s := newStore(t, server.client, StoreConfig{})
		exact := newStore(t, server.client, StoreConfig{Prefix: s.prefix})
		config := LimitConfig{Name: "a", Algorithm: v.Algorithm, Limit: sluice.Per(100_000, 24*time.Hour), Lease: Lease{Max: 500, Life: 10 * time.Minute}}
		l := limitOf(t, s, config)
		config.Lease = Lease{}
		e := limitOf(t, exact, config)
		count := func() int64 {
			return do(t, exact, StoreCall{Limit: e, Key: "a", Op: OpPeek})[0].Count
		}
		admitted := int64(0)
		take := func(n int) {
			for range n {
				r := do(t, s, StoreCall{Limit: l, Key: "a", Cost: 1})[0]
				require.NoError(t, r.Err)
				require.True(t, r.Decision.Allowed)
				admitted++
				require.GreaterOrEqual(t, count(), admitted-1, "what is on lease counts") // a unit may have drained
			}
		}
		take(60)
		require.Positive(t, s.Stats().Lease, variantName(v))
		require.Positive(t, s.Stats().Leased)
		looks := do(t, s, StoreCall{Limit: l, Key: "a", Op: OpPeek})[0]
		require.GreaterOrEqual(t, looks.Count, admitted-1)
		require.True(t, do(t, s, StoreCall{Limit: l, Key: "a", Cost: 10, Op: OpRefund})[0].Decision.Allowed)
		admitted -= 10
		require.NoError(t, l.SetLimit(sluice.Per(90_000, 24*time.Hour)))
		take(60)
		d, err := s.DoAll(ctx, []StoreCall{{Limit: l, Key: "a", Cost: 5}}, make([]StoreResult, 1))
		require.NoError(t, err)
		require.True(t, d.Allowed)
		admitted += 5
		l.Close()
		require.Zero(t, s.Stats().Leased)
		await(t, "leases go back", func() bool {
			n := count()
			return n <= admitted && n >= admitted-1
		})
	}
}

// TestStore_Memory: limits are small.
func TestStore_Memory(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: net.JoinHostPort("127.0.0.1", "1")})
	defer client.Close()
	s := newStore(t, client, StoreConfig{})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	limitOf(t, s, LimitConfig{Name: "first", Limit: sluice.PerHour(1)})
	before := heap()
	limits := make([]*StoreLimit, 10_000)
	for i := range limits {
		name := strings.Repeat("n", 1+i%100) + string(rune('a'+i%26))
		limits[i] = limitOf(t, s, LimitConfig{Name: name, Limit: sluice.PerHour(1 + i)})
	}
	each := (heap() - before) / uint64(len(limits))
	t.Logf("%d bytes a limit", each)
	require.Less(t, each, uint64(4096))
	for _, l := range limits {
		l.Close()
	}
	require.Len(t, s.names, 1)
	runtime.KeepAlive(limits)
}

// TestStore_Exact: a denial tells what remains now, also when it follows one of less.
func TestStore_Exact(t *testing.T) {
	s := newStore(t, anyServer(t).client, StoreConfig{})
	l := limitOf(t, s, LimitConfig{Name: "exact", Algorithm: sluice.FixedWindow, Limit: sluice.Per(3, 365*24*time.Hour), Exact: true})
	for _, c := range []struct {
		cost, remaining int
		allowed         bool
	}{{2, 1, true}, {2, 1, false}, {1, 0, true}, {3, 0, false}} {
		r := do(t, s, StoreCall{Limit: l, Key: "a", Cost: c.cost})[0]
		require.Equal(t, []any{c.allowed, c.remaining, FromRedis}, []any{r.Decision.Allowed, r.Decision.Remaining, r.Source}, "%+v", c)
	}
	_, err := s.Limit(LimitConfig{Name: "x", Limit: sluice.PerHour(9), Exact: true, Lease: Lease{Max: 1}})
	require.ErrorContains(t, err, "Exact")
}

// TestStore_CountOfDenied: a denied call is not in its Count, whoever denies it; a limit of 0 asks nobody.
func TestStore_CountOfDenied(t *testing.T) {
	server := anyServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.addr, DisableIdentity: true})
	defer client.Close()
	s := newStore(t, client, StoreConfig{})
	for _, a := range []sluice.Algorithm{sluice.FixedWindow, sluice.GCRA, sluice.SlidingLog} {
		day := StoreCall{Limit: limitOf(t, s, LimitConfig{Name: a.String(), Algorithm: a, Limit: sluice.Per(5, 365*24*time.Hour)}), Key: "a", Cost: 2}
		more := day
		more.Cost = 4
		out := do(t, s, day, more, day, day) // of which the second is denied
		for i, want := range []int64{2, 2, 4, 4} {
			require.Equal(t, want, out[i].Count, "%v: call %d: %+v", a, i, out[i])
			require.Equal(t, i%2 == 0, out[i].Decision.Allowed, "%v: call %d", a, i)
		}
		out = do(t, s, day)
		require.Equal(t, FromCache, out[0].Source, "%v", a)
		require.Equal(t, int64(4), out[0].Count, "%v", a)
	}
	none := StoreCall{Limit: limitOf(t, s, LimitConfig{Name: "none", Algorithm: sluice.FixedWindow, Limit: sluice.Per(0, 365*24*time.Hour)}), Key: "a", Cost: 3, Op: OpDebit}
	out := do(t, s, none)
	require.Equal(t, int64(3), out[0].Count)
	none.Op = OpTake
	require.Zero(t, do(t, s, none)[0].Count)
}
