package redislimit

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestLead: a lone caller makes all calls itself, on one connection, in whatever operation.
func TestLead(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) { lead(t, s, &redis.Options{Addr: s.addr}) })
	path := filepath.Join(t.TempDir(), "socket")
	s := start(t, anyServer(t).binary, "--unixsocket", path)
	t.Cleanup(s.kill)
	t.Run("unix", func(t *testing.T) { lead(t, s, &redis.Options{Addr: path}) })
	// Of a user with no rights beyond those that the documentation asks for.
	rights := []any{"acl", "setuser", "app", "on", ">x", "~*", "+evalsha", "+eval", "+get", "+set", "+pttl", "+time"}
	require.NoError(t, s.client.Do(ctx, rights...).Err())
	t.Run("acl", func(t *testing.T) { lead(t, s, &redis.Options{Addr: s.addr, Username: "app", Password: "x"}) })
	for _, denied := range s.client.Do(ctx, "acl", "log").Val().([]any) {
		require.NotContains(t, fmt.Sprint(denied), "eval")
		require.NotContains(t, fmt.Sprint(denied), "ping")
	}
}

func lead(t *testing.T, s *server, opt *redis.Options) {
	tier, d := leadingBy(t, newLeading(t, opt), TierConfig{})
	for i := range 20 {
		got, from := takeFrom(t, tier, fmt.Sprint(i%2), 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 99-i/2, got.Remaining)
	}
	got, err := tier.Debit(ctx, "0", 5)
	require.NoError(t, err)
	require.Equal(t, 85, got.Remaining)
	require.NoError(t, tier.Refund(ctx, "0", 2))
	got, err = tier.Peek(ctx, "0", 0)
	require.NoError(t, err)
	require.Equal(t, 87, got.Remaining)
	require.NoError(t, tier.Reset(ctx, "0"))
	got, _ = takeFrom(t, tier, "0", 1)
	require.Equal(t, 99, got.Remaining)
	require.NoError(t, s.client.ScriptFlush(ctx).Err())
	got, from := takeFrom(t, tier, "0", 1)
	require.Equal(t, FromRedis, from)
	require.Equal(t, 98, got.Remaining, "the text is sent once more")
	st := tier.Stats()
	require.Equal(t, uint64(26), st.Led)
	require.Equal(t, st.Scripts, st.Led)
	require.Same(t, d, directOf(tier))
	require.True(t, d.used.After(d.dialled))
	require.Equal(t, uint32(0), tier.shared.client.PoolStats().TotalConns, "the pool is not needed")
}

// TestLead_Cancelled: who leads and leaves while nothing has been answered returns with the
// context's error, however much is left of the budget. The charge stands, nobody counts it as a
// failure, and the next call gets its own answer.
func TestLead_Cancelled(t *testing.T) {
	s := start(t, anyServer(t).binary)
	t.Cleanup(s.kill)
	for _, custom := range []bool{false, true} {
		p := newProxy(t, s.addr)
		tier, d := leading(t, p.addr(), TierConfig{})
		takeFrom(t, tier, "a", 1)
		p.delay.Store(int64(3 * time.Second)) // a caller that stays has its answer within the Budget
		leaving, cancel := context.WithCancel(ctx)
		if custom {
			leaving = struct{ context.Context }{leaving} // for which a goroutine waits
		}
		done := make(chan error)
		go func() {
			_, err := tier.Take(leaving, "a", 7)
			done <- err
		}()
		observer := replicaOf(t, s.client, tier.shared)
		left := func(key string) int {
			d, err := observer.Peek(ctx, key, 0)
			require.NoError(t, err)
			return d.Remaining
		}
		await(t, "the call comes to the server", func() bool { return left("a") < 99 })
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		p.delay.Store(0)
		got, from := takeFrom(t, tier, "b", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 99, got.Remaining, "not what is left of a")
		require.Equal(t, 92, left("a"))
		awaitClosed(t, d)
		st := tier.Stats()
		require.Equal(t, []uint64{0, 0, 2}, []uint64{st.Failed, st.Late, st.Led})
		require.Zero(t, tier.router.first.breaker.failed)
		callersLead(t, tier)
		got, _ = takeFrom(t, tier, "b", 1)
		require.Equal(t, 98, got.Remaining)
		require.Equal(t, uint64(3), tier.Stats().Led, "on another connection")
	}
}

// TestLead_LateCancel: a context that ends right after the answer takes nothing from it. Since the
// deadline may still be moved, the connection is not used again.
func TestLead_LateCancel(t *testing.T) {
	tier, d := leading(t, anyServer(t).addr, TierConfig{})
	takeFrom(t, tier, "warm", 1) // the script
	leaving, cancel := context.WithCancel(ctx)
	d.conn.AddHook(processHook(func(next redis.ProcessHook) redis.ProcessHook {
		return func(ctx context.Context, cmd redis.Cmder) error {
			defer cancel()
			return next(ctx, cmd)
		}
	}))
	got, from, err := tier.TakeSource(leaving, "a", 1)
	require.NoError(t, err)
	require.Equal(t, FromRedis, from)
	require.Equal(t, 99, got.Remaining)
	require.Nil(t, directOf(tier))
	got, from = takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, from)
	require.Equal(t, 98, got.Remaining)
}

// TestLead_Gone: a context that has ended before is not charged for.
func TestLead_Gone(t *testing.T) {
	s := anyServer(t)
	tier, d := leading(t, s.addr, TierConfig{})
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err := tier.Take(gone, "a", 1)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, tier.Stats().Scripts)
	require.Same(t, d, directOf(tier))
}

// TestLead_Unanswered: what is not answered in time is answered from the share, and what does not
// end with a deadline either, from a server that is gone. Both are failures, and neither is sent again.
func TestLead_Unanswered(t *testing.T) {
	s := anyServer(t)
	for _, c := range []struct {
		name         string
		budget       time.Duration
		fault        func(p *proxy)
		late, failed uint64
	}{
		{"late", 300 * time.Millisecond, func(p *proxy) { p.delay.Store(int64(time.Hour)) }, 1, 0},
		{"lost", patient, func(p *proxy) { p.loses.Store(true) }, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t, s.addr)
			tier, d := leading(t, p.addr(), TierConfig{})
			takeFrom(t, tier, "warm", 1) // the script
			tier.wait = c.budget
			c.fault(p)
			got, from := takeFrom(t, tier, "a", 7)
			require.True(t, got.Allowed)
			require.Equal(t, FromFallback, from)
			st := tier.Stats()
			require.Equal(t, []uint64{2, c.late, c.failed}, []uint64{st.Led, st.Late, st.Failed})
			require.Equal(t, 1, tier.router.first.breaker.failed)
			require.Nil(t, directOf(tier))
			require.NoError(t, tier.Close(ctx))
			require.Error(t, d.conn.Ping(ctx).Err())
			at, err := replicaOf(t, s.client, tier.shared).Peek(ctx, "a", 0)
			require.NoError(t, err)
			require.Equal(t, 93, at.Remaining)
		})
	}
}

// TestLead_Queue: who comes while somebody leads queues, and does not wait for the leader.
func TestLead_Queue(t *testing.T) {
	s := anyServer(t)
	p := newProxy(t, s.addr)
	client := newLeading(t, &redis.Options{Addr: p.addr()})
	tier, _ := leadingBy(t, client, TierConfig{})
	require.NoError(t, client.Ping(ctx).Err()) // the pool has a connection
	p.hole.Store(true)
	leaving, cancel := context.WithCancel(ctx)
	defer cancel()
	led := make(chan error)
	go func() {
		_, err := tier.Take(leaving, "a", 1)
		led <- err
	}()
	await(t, "what the first one has sent is lost", func() bool { return p.lost.Load() > 0 })
	p.hole.Store(false)
	var wg sync.WaitGroup
	var remaining sync.Map
	for range 5 {
		wg.Go(func() {
			d, from, err := tier.TakeSource(ctx, "a", 1)
			assert.NoError(t, err)
			assert.Equal(t, FromRedis, from)
			remaining.Store(d.Remaining, true)
		})
	}
	wg.Wait()
	for i := range 5 {
		_, ok := remaining.Load(99 - i)
		require.True(t, ok, "a decision with %d remaining", 99-i)
	}
	require.Equal(t, uint64(1), tier.Stats().Led)
	cancel()
	require.ErrorIs(t, <-led, context.Canceled)
}

// TestLead_HandsOn: who queues behind a leader and a sender that hang is sent when the leader has left.
func TestLead_HandsOn(t *testing.T) {
	p := newProxy(t, anyServer(t).addr)
	client := newLeading(t, &redis.Options{Addr: p.addr(), ReadTimeout: time.Minute})
	tier, _ := leadingBy(t, client, TierConfig{})
	require.NoError(t, client.Ping(ctx).Err()) // the pool has a connection
	t.Cleanup(func() { p.cut(true) })
	l := tier.router.first
	lost := func(ctx context.Context, key string) chan error {
		before, done := p.lost.Load(), make(chan error, 1)
		go func() {
			_, err := tier.Take(ctx, key, 1)
			done <- err
		}()
		await(t, "what it has sent is lost", func() bool { return p.lost.Load() > before })
		return done
	}
	p.hole.Store(true)
	leaving, cancel := context.WithCancel(ctx)
	defer cancel()
	led := lost(leaving, "a")
	other, cancelOther := context.WithCancel(ctx)
	defer cancelOther()
	lost(other, "b")
	p.hole.Store(false)
	third := make(chan Source, 1)
	go func() {
		_, from, _ := tier.TakeSource(ctx, "c", 1)
		third <- from
	}()
	await(t, "it queues", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.waiting) == 1
	})
	armed := func() time.Time {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.due
	}
	first := armed()
	cancel()
	require.ErrorIs(t, <-led, context.Canceled)
	require.Equal(t, FromRedis, <-third)
	require.Equal(t, first, armed(), "it waited for the deadline of another")
}

// TestLead_Storm: callers whose contexts end at any moment, among others, neither lose nor mix up a
// decision, whoever leads.
func TestLead_Storm(t *testing.T) {
	const rounds, callers = 300, 4
	rng, s := seeded.Rand(t), anyServer(t)
	p := newProxy(t, s.addr)
	l := newLimiter(t, newLeading(t, &redis.Options{Addr: p.addr()}), Config{Limit: sluice.Per(1_000_000, 10_000*time.Hour)}) // nothing drains
	tier := newTier(t, l, TierConfig{Budget: patient})
	var pieces, cancels atomic.Int64 // so many are passed on, in so many moments, until one caller leaves
	var leave atomic.Pointer[context.CancelFunc]
	var led atomic.Uint64
	storm := func() {
		// The last piece of a round can be passed on after its reply has been read: it is not of the next.
		if tier.Stats().Led > led.Load() && pieces.Add(-1) == 0 {
			cancels.Add(1)
			(*leave.Load())()
		}
	}
	p.passes.Store(&storm)
	var admitted, unknown [callers]int // each caller has a key and a cost of its own
	requireCharged := func(i, remaining int) {
		t.Helper()
		charged, cost := 1_000_000-remaining, 1+1000*i
		require.Zero(t, charged%cost, "a decision of another key")
		require.GreaterOrEqual(t, charged/cost, admitted[i])
		require.LessOrEqual(t, charged/cost, admitted[i]+unknown[i])
	}
	for range rounds {
		callersLead(t, tier)
		leaving, cancel := context.WithCancel(ctx)
		leave.Store(&cancel)
		pieces.Store(1 + rng.Int64N(8)) // to the server and back they are four; more: nobody leaves
		var wg sync.WaitGroup
		var decisions [callers]sluice.Decision
		var errs [callers]error
		first := rng.IntN(callers)
		for n := range 1 + rng.IntN(callers) {
			wg.Go(func() {
				i, ctx, from := (first+n)%callers, ctx, FromRedis
				if n == 0 {
					ctx = leaving
				}
				decisions[i], from, errs[i] = tier.TakeSource(ctx, fmt.Sprint(i), 1+1000*i)
				assert.True(t, errs[i] != nil || from == FromRedis)
			})
		}
		wg.Wait()
		cancel()
		for i := range callers {
			switch {
			case errs[i] != nil:
				require.Equal(t, first, i)
				require.ErrorIs(t, errs[i], context.Canceled)
				unknown[i]++
			case decisions[i] != sluice.Decision{}:
				require.True(t, decisions[i].Allowed)
				admitted[i]++
				requireCharged(i, decisions[i].Remaining)
			}
		}
		st := tier.Stats()
		require.Greater(t, st.Led, led.Load(), "whoever came first has led")
		require.Zero(t, st.Failed+st.Late)
		led.Store(st.Led)
	}
	require.NoError(t, tier.Close(ctx))
	left := 0
	observer := replicaOf(t, s.client, l)
	for i := range callers {
		d, err := observer.Peek(ctx, fmt.Sprint(i), 0)
		require.NoError(t, err)
		requireCharged(i, d.Remaining)
		left += unknown[i]
	}
	require.Positive(t, left, "of %d that left, those that took no answer along", cancels.Load())
	t.Logf("%d calls led, %d left, %d of them without an answer", led.Load(), cancels.Load(), left)
}

// TestLead_Differential: whoever sends a call, the decisions are the same.
func TestLead_Differential(t *testing.T) {
	t.Parallel() // it mostly waits
	eachServer(t, func(t *testing.T, s *server) {
		for _, v := range variants {
			t.Run(variantName(v), func(t *testing.T) { leadDifferential(t, s, v) })
		}
	})
}

func leadDifferential(t *testing.T, s *server, c Config) {
	rng := seeded.Rand(t)
	c.Limit, c.Offset = sluice.PerHour(30), 0
	var now atomic.Int64
	now.Store(startMicros)
	tierBy := func(client redis.UniversalClient) *Tier {
		c.Prefix = newPrefix()
		tier := newTier(t, frozen(newLimiter(t, client, c), &now), TierConfig{Budget: patient, MaxStale: 1})
		callersLead(t, tier)
		return tier
	}
	led, sent := tierBy(newLeading(t, &redis.Options{Addr: s.addr})), tierBy(s.client)
	for i := range 400 {
		now.Add(rng.Int64N(200_000_000))
		op, key, cost := rng.IntN(12), fmt.Sprint(rng.IntN(3)), rng.IntN(12)
		of := func(tier *Tier) (d sluice.Decision, err error) {
			switch op {
			case 0:
				err = tier.Refund(ctx, key, cost)
			case 1:
				err = tier.Reset(ctx, key)
			case 2:
				d, err = tier.Debit(ctx, key, cost)
			case 3:
				d, err = tier.Peek(ctx, key, cost)
			default:
				d, err = tier.Take(ctx, key, cost)
			}
			return d, err
		}
		got, err := of(led)
		require.NoError(t, err)
		want, err := of(sent)
		require.NoError(t, err)
		require.Equal(t, want, got, "call %d, operation %d, cost %d", i, op, cost)
	}
	require.Zero(t, sent.Stats().Led)
	require.Equal(t, sent.Stats().Scripts, led.Stats().Led)
}

// TestLead_Idle: nobody leads while something else is under way or to be sent.
func TestLead_Idle(t *testing.T) {
	tier, d := leading(t, anyServer(t).addr, TierConfig{})
	l := tier.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, busy := range map[string]func() (end func()){
		"sender":     func() func() { l.senders++; return func() { l.senders-- } },
		"late":       func() func() { l.late++; return func() { l.late-- } },
		"waiting":    func() func() { l.waiting = make([]*group, 1); return func() { l.waiting = nil } },
		"owed":       func() func() { l.owed["a"] = owedCharge{}; return func() { delete(l.owed, "a") } },
		"settlement": func() func() { l.settling = make([]settlement, 1); return func() { l.settling = nil } },
	} {
		end := busy()
		require.Nil(t, l.leads(time.Now()), name)
		end()
	}
	require.Same(t, d, l.leads(time.Now()))
	require.Nil(t, l.direct, "it is with its caller")
	l.direct = d
}

// TestLead_Leased: a caller for whom a lease has come since it looked is admitted from that, and the
// connection stays for the next one.
func TestLead_Leased(t *testing.T) {
	s := anyServer(t)
	client := newLeading(t, &redis.Options{Addr: s.addr})
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(1000)}), TierConfig{Budget: patient, Lease: Lease{Max: 10, Life: 4 * patient}})
	callersLead(t, tier)
	for tier.held().left == 0 {
		takeFrom(t, tier, "a", 1)
	}
	d, l, c := directOf(tier), tier.router.first, tier.shared.newCall("a", 1, true)
	require.NotNil(t, d)
	led := tier.Stats().Led
	c.terms = tier.terms
	g, w, err := l.join(c.request, tier.leases.loan(&c.request, tier.subject("a"), time.Now()), time.Now())
	require.NoError(t, err)
	require.NoError(t, (&asked{lane: l, group: g, waiter: w}).await(ctx))
	require.True(t, w.leased)
	require.True(t, w.decision.Allowed)
	require.Equal(t, led, tier.Stats().Led)
	require.Same(t, d, directOf(tier))
	require.Zero(t, l.senders)
}
