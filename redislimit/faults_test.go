package redislimit

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slack is by how much a call may be later than the budget: 2 ms on a machine that has
// nothing else to do, which SLUICE_REDIS_QUIET=1 says this one is. On a shared one only the
// client's timeouts, of 5 s, are told from the budget.
func slack() time.Duration {
	if os.Getenv("SLUICE_REDIS_QUIET") != "" {
		return 2 * time.Millisecond
	}
	return 2 * time.Second
}

// quick is for how long calls wait in an outage. Before and after one the tiers are patient: a machine that is
// busy may take its time to answer.
const quick = 20 * time.Millisecond

// A fault is a server, a proxy before it, and a tier whose client knows only the proxy.
type fault struct {
	*testing.T
	s     *server
	proxy *proxy
	lim   *Limiter
	tier  *Tier
	modes chan Mode
	cause atomic.Pointer[error] // of the last outage
}

func newFault(t *testing.T, connect connector, cfg TierConfig, limit sluice.Limit) *fault {
	s := start(t, anyServer(t).binary)
	p := newProxy(t, s.addr)
	f := newFaultAt(t, connect, cfg, limit, s, p.addr())
	f.proxy = p
	return f
}

// newFaultAt is newFault with a client that knows an address.
func newFaultAt(t *testing.T, connect connector, cfg TierConfig, limit sluice.Limit, s *server, addr string) *fault {
	f := &fault{T: t, s: s, modes: make(chan Mode, 100)}
	t.Cleanup(s.kill)
	client := connect(t, &redis.Options{Addr: addr, DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second})
	f.lim = newLimiter(t, client, Config{Limit: limit})
	take(t, f.lim, "warm", 1) // a connection, and the script
	cfg.Budget = patient
	cfg.OnMode = func(m Mode, err error) {
		if err != nil {
			f.cause.Store(&err)
		}
		f.modes <- m
	}
	f.tier = newTier(t, f.lim, cfg)
	if f.tier.router.first.client != nil {
		callersLead(t, f.tier)
		t.Cleanup(func() { require.Positive(t, f.tier.Stats().Led) })
	}
	return f
}

// hammer makes calls from so many callers, until Redis is no longer asked, and n more, and
// demands that all return in time. It returns how many of each key were admitted.
func (f *fault) hammer(callers, n int, keys int) map[string]int {
	f.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var slow []time.Duration
	admitted := map[string]int{}
	for i := range callers {
		wg.Go(func() {
			for j := 0; j < n/callers || f.tier.Mode() == ModeShared && j < 1000; j++ {
				key := fmt.Sprint("k", (i+j)%keys)
				begin := time.Now()
				d, _, err := f.tier.TakeSource(ctx, key, 1)
				took := time.Since(begin)
				mu.Lock()
				slow = append(slow, took)
				if err == nil && d.Allowed {
					admitted[key]++
				}
				mu.Unlock()
				if err != nil && !errors.Is(err, ErrUnavailable) {
					f.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p50, p99 := percentile(slow, 50), percentile(slow, 99)
	f.Logf("%d calls of %d callers: p50 %v, p99 %v, budget %v", len(slow), callers, p50, p99, quick)
	require.LessOrEqual(f, p99, quick+slack())
	return admitted
}

func (f *fault) waits(d time.Duration) { waits(f.tier, d) }

// waits makes calls from now on wait for Redis for d.
func waits(t *Tier, d time.Duration) { t.core.waits(d) }

func (c *core) waits(d time.Duration) {
	l := c.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	c.wait, c.budget = d, d // and no longer than twice as long if the machine is busy
	if l.armed {            // for a deadline of before
		l.timer.Reset(d)
		l.due = time.Now().Add(d)
	}
}

// recovers waits until Redis is asked again.
func (f *fault) recovers() {
	f.Helper()
	await(f.T, "Redis is asked again", func() bool {
		_, s, _ := f.tier.TakeSource(ctx, "probe", 1)
		return s == FromRedis && f.tier.Mode() == ModeShared
	})
}

// outage demands of a fault that it is survived: calls return in time, the process admits
// its share, and once the fault is over Redis is told what was admitted.
func outage(t *testing.T, begin, end func(f *fault)) {
	eachClientBeside(t, func(t *testing.T, connect connector) { outageOf(t, connect, begin, end) })
}

func outageOf(t *testing.T, connect connector, begin, end func(f *fault)) {
	for _, callers := range []int{16, 256} {
		t.Run(fmt.Sprint("callers=", callers), func(t *testing.T) {
			t.Parallel()
			f := newFault(t, connect, TierConfig{Replicas: 4}, sluice.PerHour(100))
			for range 5 {
				takeFrom(t, f.tier, "k0", 1)
			}
			f.waits(quick)
			begin(f)
			admitted := f.hammer(callers, 2000, 2)
			require.Equal(t, 20, admitted["k0"], "a share of 25, of which 5 have been charged before")
			require.Equal(t, 25, admitted["k1"])
			require.Equal(t, ModeDegraded, <-f.modes)
			d, s := takeFrom(t, f.tier, "k0", 30)
			if s == FromFallback {
				require.False(t, d.Allowed)
				require.Equal(t, 100, d.Limit)
				require.LessOrEqual(t, d.RetryAfter, longestPause, "more than the share: when Redis is asked again")
			}
			f.waits(patient)
			end(f)
			f.recovers()
			require.Equal(t, ModeShared, <-f.modes)
			observer := replicaOf(t, f.s.client, f.lim)
			await(t, "Redis is told", func() bool {
				a, err := observer.Peek(ctx, "k0", 0)
				require.NoError(t, err)
				b, err := observer.Peek(ctx, "k1", 0)
				require.NoError(t, err)
				// A call that was on its way when the fault began may count twice, or if it got lost not
				// at all: two calls of each caller, before there are 20 failures.
				return a.Remaining+b.Remaining < 195 || 2*callers >= 45
			})
			require.Len(t, f.modes, 0, "one outage")
		})
	}
}

func TestFault_Hole(t *testing.T) {
	outage(t, func(f *fault) { f.proxy.hole.Store(true) }, func(f *fault) { f.proxy.mend() })
}

func TestFault_Stopped(t *testing.T) {
	outage(t, func(f *fault) { require.NoError(f, stop(f.s)) }, func(f *fault) { require.NoError(f, resume(f.s)) })
}

func TestFault_Slow(t *testing.T) {
	outage(t, func(f *fault) { f.proxy.delay.Store(int64(300 * time.Millisecond)) }, func(f *fault) { f.proxy.delay.Store(0) })
}

// TestFault_Killed kills the server. The one that takes its place is empty, and healed.
func TestFault_Killed(t *testing.T) {
	eachClientBeside(t, func(t *testing.T, connect connector) {
		for _, callers := range []int{16, 256} {
			t.Run(fmt.Sprint("callers=", callers), func(t *testing.T) { faultKilled(t, connect, callers) })
		}
	})
}

func faultKilled(t *testing.T, connect connector, callers int) {
	t.Parallel()
	s := start(t, anyServer(t).binary)
	f := newFaultAt(t, connect, TierConfig{Replicas: 4}, sluice.PerHour(100), s, s.addr)
	for range 60 {
		takeFrom(t, f.tier, "k0", 1)
	}
	f.waits(quick)
	f.s.kill()
	admitted := f.hammer(callers, 2000, 2)
	require.Zero(t, admitted["k0"], "the share of 25 had been spent")
	require.Equal(t, 25, admitted["k1"])
	empty := &server{binary: s.binary, addr: s.addr}
	await(t, "the address is free", func() bool { return empty.launch(t) })
	defer empty.kill()
	f.waits(patient)
	f.recovers()
	d, from := takeFrom(t, f.tier, "k0", 1)
	require.Equal(t, FromRedis, from)
	// Calls that were on their way may have been charged by the new server.
	require.LessOrEqual(t, d.Remaining, 39, "the empty server has got the state back")
	// Calls that were on their way are not told of: one of each caller, or every other one that was late, since keys
	// take turns. Where the machine pauses, those are more: it ends the second that the breaker counts in.
	lost := min(25, max(callers, (int(f.tier.Stats().Late)+callers)/2))
	await(t, "Redis is told of k1", func() bool {
		d, err := replicaOf(t, empty.client, f.lim).Peek(ctx, "k1", 0)
		require.NoError(t, err)
		return d.Remaining <= 75+lost
	})
}

// TestFault_NobodyBehind: something before Redis, which is gone, accepts connections and ends them, as balancers
// do. Nothing has been sent then, however few the calls are, and Redis is told of them.
func TestFault_NobodyBehind(t *testing.T) { eachClientBeside(t, faultNobodyBehind) }

func faultNobodyBehind(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{}, sluice.PerHour(100))
	takeFrom(t, f.tier, "warm", 1)
	f.s.kill()
	f.proxy.cut(false)
	// A call on a connection whose end has not come through yet could have been carried out. These two find it
	// out: one on the connection of the pool, and one on that by which callers lead.
	_, err := f.lim.Peek(ctx, "warm", 0)
	require.Error(t, err)
	_, from := takeFrom(t, f.tier, "warm", 1)
	require.Equal(t, FromFallback, from)
	const calls = breakerRun - 2
	for range calls {
		_, from := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, FromFallback, from)
	}
	require.Equal(t, ModeShared, f.tier.Mode())
	again := &server{binary: f.s.binary, addr: f.s.addr}
	await(t, "the address is free", func() bool { return again.launch(t) })
	defer again.kill()
	await(t, "Redis is told", func() bool {
		d, err := replicaOf(t, again.client, f.lim).Peek(ctx, "a", 0)
		require.NoError(t, err)
		return d.Remaining == 100-calls
	})
}

// TestFault_SlowLink: a link that is slower than usual, but not than the budget, is Redis.
func TestFault_SlowLink(t *testing.T) { eachClientBeside(t, faultSlowLink) }

func faultSlowLink(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{}, sluice.PerHour(100))
	f.proxy.delay.Store(int64(5 * time.Millisecond))
	for i := range 20 {
		d, s := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, FromRedis, s)
		require.Equal(t, 99-i, d.Remaining)
	}
}

// TestFault_Late: a call that is sent and not answered counts in Redis and here, once.
func TestFault_Late(t *testing.T) { eachClientBeside(t, faultLate) }

func faultLate(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{}, sluice.PerHour(100))
	f.waits(300 * time.Millisecond)
	f.proxy.delay.Store(int64(700 * time.Millisecond))
	d, s := takeFrom(t, f.tier, "a", 7)
	require.True(t, d.Allowed)
	require.Equal(t, FromFallback, s)
	require.Equal(t, uint64(1), f.tier.Stats().Late)
	f.proxy.delay.Store(0)
	charged := func() int {
		d, err := replicaOf(t, f.s.client, f.lim).Peek(ctx, "a", 0)
		require.NoError(t, err)
		return 100 - d.Remaining
	}
	await(t, "the call comes to the server", func() bool { return charged() > 0 })
	require.Equal(t, 7, charged())
	lane := f.tier.router.first
	await(t, "nobody waits for the answer", func() bool {
		lane.mu.Lock()
		defer lane.mu.Unlock()
		return lane.senders+lane.late == 0
	})
	require.Equal(t, 7, charged())
	require.Zero(t, len(f.tier.router.first.owed))
	seen := f.lim.memory.last(f.lim.newCall("a", 7, true).key)
	require.Equal(t, lane.client == nil, seen != "", "a leader's reply is dropped")
}

// TestFault_Pool: a pool that the application has exhausted is not an answer from Redis,
// and is counted as such. Callers that lead do without it.
func TestFault_Pool(t *testing.T) { eachClient(t, faultPool) }

func faultPool(t *testing.T, connect connector) {
	s := anyServer(t)
	client := connect(t, &redis.Options{Addr: s.addr, PoolSize: 1, PoolTimeout: 50 * time.Millisecond})
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{})
	takeFrom(t, tier, "a", 1)
	conn := client.(interface{ Conn() *redis.Conn }).Conn()
	require.NoError(t, conn.Ping(ctx).Err())
	if lane := tier.router.first; lane.client != nil {
		callersLead(t, tier)
		_, err := tier.Take(ctx, "a", 1)
		require.NoError(t, err)
		require.Equal(t, uint64(1), tier.Stats().Led)
		lane.client.alone.Store(true)
	}
	await(t, "the pool's timeout is counted", func() bool {
		_, s := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, s)
		return tier.Stats().PoolTimeouts > 0
	})
	require.NoError(t, conn.Close())
	await(t, "Redis is asked again", func() bool { _, s := takeFrom(t, tier, "a", 1); return s == FromRedis })
}

// TestFault_Refused: a user who may run no scripts gets the share, OnMode tells why once,
// and Redis is left alone.
func TestFault_Refused(t *testing.T) { eachClientBeside(t, faultRefused) }

func faultRefused(t *testing.T, connect connector) {
	s := start(t, anyServer(t).binary)
	defer s.kill()
	require.NoError(t, s.client.Do(ctx, "acl", "setuser", "app", "on", ">x", "~*", "+@all", "-evalsha", "-eval").Err())
	client := connect(t, &redis.Options{Addr: s.addr, Username: "app", Password: "x"})
	var told atomic.Int64
	var cause atomic.Value
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{Replicas: 2, Budget: patient, OnMode: func(_ Mode, err error) {
		told.Add(1)
		cause.Store(err)
	}})
	requireShare(t, tier, 1000, &told)
	require.ErrorContains(t, cause.Load().(error), "NOPERM")
}

// requireShare demands that a tier answers calls by itself, with its half of the limit, that it
// says so once, and that Redis is left alone.
func requireShare(t *testing.T, tier *Tier, calls int, told *atomic.Int64) {
	t.Helper()
	require.Equal(t, 50, admittedBySelf(t, tier, "a", calls))
	await(t, "it is told", func() bool { return told.Load() == 1 })
}

// admittedBySelf makes calls, to which Redis answers nothing, until it is no longer asked, and so many more,
// and demands that it is left alone then. It returns how many are admitted.
func admittedBySelf(t *testing.T, tier *Tier, key string, calls int) int {
	t.Helper()
	var admitted atomic.Int64
	call := func() {
		d, from, err := tier.TakeSource(ctx, key, 1)
		assert.NoError(t, err)
		assert.Equal(t, FromFallback, from)
		if d.Allowed {
			admitted.Add(1)
		}
	}
	await(t, "Redis is no longer asked", func() bool {
		var wg sync.WaitGroup
		for range 2 * breakerCalls { // at once, as on a slow machine the breaker sees fewer within its second
			wg.Go(call)
		}
		wg.Wait()
		return tier.Mode() == ModeDegraded
	})
	scripts := tier.Stats().Scripts
	for range calls {
		call()
	}
	require.Less(t, tier.Stats().Scripts-scripts, uint64(50))
	return int(admitted.Load())
}

// TestFault_OOM: without memory Redis still denies; what would be written is answered here.
func TestFault_OOM(t *testing.T) { eachClientBeside(t, faultOOM) }

func faultOOM(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{MaxStale: 1}, sluice.PerHour(10))
	for range 10 {
		takeFrom(t, f.tier, "full", 1)
	}
	require.NoError(t, f.s.client.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	require.NoError(t, f.s.client.ConfigSet(ctx, "maxmemory", "1").Err())
	for i := range 30 {
		d, s := takeFrom(t, f.tier, "full", 1)
		require.False(t, d.Allowed)
		require.Equal(t, FromRedis, s)
		d, s = takeFrom(t, f.tier, "fresh", 1)
		require.Equal(t, i < 10, d.Allowed)
		require.Equal(t, i < 10, s == FromFallback, "then Redis is told of so many that it denies")
	}
	require.Equal(t, ModeShared, f.tier.Mode())
	require.Less(t, f.tier.Stats().Scripts, uint64(200), "what is owed is not sent over and over")
	require.NoError(t, f.s.client.ConfigSet(ctx, "maxmemory", "0").Err())
	d, s := takeFrom(t, f.tier, "fresh", 1)
	require.Equal(t, FromRedis, s)
	require.False(t, d.Allowed, "and what it could not store then, it does now")
	got, err := replicaOf(t, f.s.client, f.lim).Peek(ctx, "fresh", 1)
	require.NoError(t, err)
	require.False(t, got.Allowed)
}

// TestFault_ReadOnly: a server that has become a replica answers nothing that writes.
func TestFault_ReadOnly(t *testing.T) { eachClientBeside(t, faultReadOnly) }

func faultReadOnly(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(10))
	other := start(t, f.s.binary)
	defer other.kill()
	require.NoError(t, f.s.client.ReplicaOf(ctx, "127.0.0.1", other.addr[len("127.0.0.1:"):]).Err())
	require.Equal(t, 5, admittedBySelf(t, f.tier, "a", 100))
	require.NoError(t, f.s.client.ReplicaOf(ctx, "no", "one").Err())
	f.recovers()
}

// TestFault_Foreign: a value of others is answered from the share, and left alone.
func TestFault_Foreign(t *testing.T) { eachClientBeside(t, faultForeign) }

func faultForeign(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(10))
	key := f.lim.request(f.lim.plan.Load(), "a").key
	require.NoError(t, f.s.client.Set(ctx, key, "other", 0).Err())
	for i := range 40 {
		d, s := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, FromFallback, s)
		require.Equal(t, i < 5, d.Allowed)
	}
	require.Equal(t, ModeShared, f.tier.Mode())
	require.Equal(t, "other", f.s.client.Get(ctx, key).Val())
	require.ErrorIs(t, f.tier.Refund(ctx, "a", 1), ErrForeignValue)
}

// TestFault_Foreign_Warm: the share has been charged with what Redis has admitted.
func TestFault_Foreign_Warm(t *testing.T) { eachClientBeside(t, faultForeignWarm) }

func faultForeignWarm(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(10))
	for range 4 {
		takeFrom(t, f.tier, "a", 1)
	}
	require.NoError(t, f.s.client.Set(ctx, f.lim.request(f.lim.plan.Load(), "a").key, "other", 0).Err())
	for i := range 4 {
		d, _ := takeFrom(t, f.tier, "a", 1)
		require.Equal(t, i < 1, d.Allowed)
	}
}

// TestFault_OpenAndClosed: the other answers.
func TestFault_OpenAndClosed(t *testing.T) { eachClientBeside(t, faultOpenAndClosed) }

func faultOpenAndClosed(t *testing.T, connect connector) {
	for _, policy := range []OnUnavailable{FailOpen, FailClosed} {
		f := newFault(t, connect, TierConfig{OnUnavailable: policy}, sluice.PerHour(3))
		f.waits(quick)
		f.proxy.hole.Store(true)
		for range 50 {
			d, _, err := f.tier.TakeSource(ctx, "a", 1)
			if policy == FailClosed {
				require.ErrorIs(t, err, ErrUnavailable)
				continue
			}
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
		require.ErrorIs(t, f.tier.Refund(ctx, "a", 1), ErrUnavailable)
		require.ErrorIs(t, f.tier.Reset(ctx, "a"), ErrUnavailable)
		if policy == FailOpen {
			d, _ := takeFrom(t, f.tier, "a", 4)
			require.False(t, d.Allowed)
			require.Equal(t, sluice.Never, d.RetryAfter)
		}
		f.waits(patient)
		f.proxy.mend()
		f.recovers()
		await(t, "Redis is told, of a burst at most", func() bool {
			d, s, err := f.tier.TakeSource(ctx, "a", 1)
			return err == nil && s != FromFallback && d.Allowed == (policy == FailClosed)
		})
	}
}

// TestOnce: a client that tries again does not send a charge again.
func TestOnce(t *testing.T) {
	s := anyServer(t)
	p := newProxy(t, s.addr)
	client := redis.NewClient(&redis.Options{Addr: p.addr(), MaxRetries: 3, MinRetryBackoff: -1})
	defer client.Close()
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(100)})
	take(t, l, "warm", 1)
	p.loses.Store(true)
	_, err := l.Take(ctx, "a", 1)
	require.Error(t, err)
	require.Error(t, pipelined(l, 1, "b")[0].err)
	for _, key := range []string{"a", "b"} {
		d, err := replicaOf(t, s.client, l).Peek(ctx, key, 0)
		require.NoError(t, err)
		require.Equal(t, 99, d.Remaining)
	}
}
