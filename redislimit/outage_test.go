package redislimit

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFault_Loading: a server that loads its data is not asked over and over. The proxy says
// what such a server does.
func TestFault_Loading(t *testing.T) { eachClientBeside(t, faultLoading) }

func faultLoading(t *testing.T, connect connector) {
	f := newFault(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(10))
	takeFrom(t, f.tier, "a", 1)
	f.proxy.loading.Store(true)
	f.loads(4, func() { f.proxy.loading.Store(false) })
}

// TestFault_LoadingServer restarts a server with 2,000 keys, of which each takes it 10 ms.
func TestFault_LoadingServer(t *testing.T) { eachClientBeside(t, faultLoadingServer) }

func faultLoadingServer(t *testing.T, connect connector) {
	dir := t.TempDir()
	s := start(t, anyServer(t).binary, "--dir", dir, "--rdbcompression", "no")
	if known, err := s.client.ConfigGet(ctx, "loading-process-events-interval-bytes").Result(); err != nil || len(known) == 0 {
		s.kill()
		t.Skip("this server answers nothing for as long as it loads so little") // before 7.0
	}
	fill := s.client.Pipeline()
	for i := range 2000 {
		fill.Set(ctx, fmt.Sprint("other", i), strings.Repeat("x", 1000), 0)
	}
	_, err := fill.Exec(ctx)
	require.NoError(t, err)
	f := newFaultAt(t, connect, TierConfig{Replicas: 2}, sluice.PerHour(10), s, s.addr)
	takeFrom(t, f.tier, "a", 1)
	require.NoError(t, s.client.Save(ctx).Err())
	s.kill()
	f.s = &server{binary: s.binary, addr: s.addr}
	await(t, "it loads", func() bool {
		done := f.s.begin(t, "--dir", dir, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
		for {
			select {
			case <-done: // the address is not free yet
				return false
			case <-time.After(10 * time.Millisecond):
			}
			if err := f.s.client.Ping(ctx).Err(); err != nil && strings.HasPrefix(err.Error(), "LOADING") {
				return true
			}
		}
	})
	defer f.s.kill()
	f.loads(4, func() { require.NoError(t, f.s.client.ConfigSet(ctx, "key-load-delay", "0").Err()) })
}

// loads demands of a server that loads its data that the share answers, of which so much is
// left, and that it is told once it has done.
func (f *fault) loads(left int, end func()) {
	require.Equal(f, left, admittedBySelf(f.T, f.tier, "a", 100), "a share of 5, of which 1 has been charged before")
	require.Equal(f, ModeDegraded, <-f.modes)
	require.ErrorContains(f, *f.cause.Load(), "LOADING")
	end()
	f.recovers()
	await(f.T, "Redis is told", func() bool {
		d, err := replicaOf(f.T, f.s.client, f.lim).Peek(ctx, "a", 0)
		require.NoError(f, err)
		return d.Remaining == 5
	})
}

// TestFault_Time: a server that refuses TIME to scripts is told of once, and is one for the
// caller's clock.
func TestFault_Time(t *testing.T) { eachClientBeside(t, faultTime) }

func faultTime(t *testing.T, connect connector) {
	s := start(t, anyServer(t).binary)
	defer s.kill()
	require.NoError(t, s.client.Do(ctx, "acl", "setuser", "app", "on", ">x", "~*", "+@all", "-time").Err())
	client := connect(t, &redis.Options{Addr: s.addr, Username: "app", Password: "x"})
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(100)})
	_, err := l.Take(ctx, "a", 1)
	if err == nil {
		t.Skip("this server does not ask for whom a script runs") // before 7.0
	}
	var told atomic.Int64
	tier := newTier(t, l, TierConfig{Replicas: 2, Budget: patient, OnMode: func(_ Mode, err error) {
		assert.Error(t, err)
		told.Add(1)
	}})
	requireShare(t, tier, 500, &told)

	tier = newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100), TimeSource: CallerClock}), TierConfig{Budget: patient})
	d, src := takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, src)
	require.Equal(t, 99, d.Remaining)
}

// TestFault_Clock: a clock of Redis that steps ahead gives back what would have come back by
// then, once. One that steps back gives nothing, and until it is there again nothing comes back,
// which RetryAfter does not know of.
func TestFault_Clock(t *testing.T) {
	eachServerClient(t, func(t *testing.T, client redis.UniversalClient) {
		for _, c := range variants {
			c.Limit, c.Offset = sluice.PerMinute(60), 0
			var now atomic.Int64
			const minute = 60_000_000
			now.Store(startMicros - startMicros%minute)
			l := frozen(newLimiter(t, client, c), &now)
			tier := newTier(t, l, TierConfig{Budget: patient, MaxStale: 1})
			callersLead(t, tier)
			spend := func() (n int) {
				for {
					if d, from := takeFrom(t, tier, "a", 1); !d.Allowed {
						return n
					} else if n++; from != FromRedis {
						require.Equal(t, FromRedis, from)
					}
				}
			}
			require.Equal(t, 60, spend(), variantName(c))
			now.Add(-10 * minute)
			d, _ := takeFrom(t, tier, "a", 1)
			require.False(t, d.Allowed, "%s: back", variantName(c))
			require.Less(t, d.RetryAfter, 3*time.Minute, variantName(c))
			now.Add(d.RetryAfter.Microseconds())
			require.Zero(t, spend(), "%s: after RetryAfter, still back", variantName(c))
			now.Add(10*minute - d.RetryAfter.Microseconds())
			require.Zero(t, spend(), "%s: and ahead again", variantName(c))
			now.Add(minute / 2)
			back := spend()
			require.LessOrEqual(t, back, 30, "%s: half of the burst at most", variantName(c))
			now.Add(100 * minute)
			require.Equal(t, 60, spend(), "%s: the burst, once", variantName(c))
			now.Add(-100 * minute)
			require.Zero(t, spend(), "%s: back again", variantName(c))
			now.Add(102 * minute)
			require.Equal(t, 60, spend(), "%s: who has waited is admitted", variantName(c))
		}
	})
}

// A fleet is replicas, each with a client of its own, before one server and one proxy each.
type fleet struct {
	*testing.T
	s       *server
	proxies []*proxy
	tiers   []*Tier
}

func newFleet(t *testing.T, connect connector, n int, cfg TierConfig, c Config) *fleet {
	f := &fleet{T: t, s: start(t, anyServer(t).binary)}
	t.Cleanup(f.s.kill)
	c.Prefix = newPrefix()
	cfg.Replicas, cfg.Budget = n, patient
	for range n {
		p := newProxy(t, f.s.addr)
		client := connect(t, &redis.Options{Addr: p.addr(), DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second})
		tier := newTier(t, newLimiter(t, client, c), cfg)
		callersLead(t, tier)
		f.proxies, f.tiers = append(f.proxies, p), append(f.tiers, tier)
	}
	return f
}

// cut makes the replicas from one on lose Redis, and find out; or find it again.
func (f *fleet) cut(from int, off bool) {
	for i, p := range f.proxies[from:] {
		waits(f.tiers[from+i], map[bool]time.Duration{true: quick, false: patient}[off])
		p.hole.Store(off)
		if !off {
			p.cut(false)
		}
	}
	want := map[bool]Mode{true: ModeDegraded, false: ModeShared}[off]
	for _, t := range f.tiers[from:] {
		await(f.T, fmt.Sprint("the mode is ", want), func() bool {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() { _, _, _ = t.TakeSource(ctx, fmt.Sprint("other", i), 1) })
			}
			wg.Wait()
			return t.Mode() == want
		})
	}
}

// spend makes calls by all replicas until each is denied, and returns how many are admitted.
func (f *fleet) spend(key string) (admitted int) {
	for _, t := range f.tiers {
		for {
			d, err := t.Take(ctx, key, 1)
			require.NoError(f, err)
			if !d.Allowed {
				break
			}
			admitted++
		}
	}
	return admitted
}

func (f *fleet) nothingOwed() {
	await(f.T, "Redis has been told", func() bool {
		for _, t := range f.tiers {
			for _, l := range t.router.all() {
				l.mu.Lock()
				owed := len(l.owed) + l.senders + l.late
				l.mu.Unlock()
				if owed > 0 {
					return false
				}
			}
		}
		return true
	})
}

// lost is how many units, at most, a replica is admitted without Redis finding out: those of calls that were on
// their way when the outage began.
const lost = breakerRun

// TestOutage: in an outage all replicas together are admitted one burst at most, beyond the
// limit, and when it is over Redis is told of it: nobody gets a burst again.
func TestOutage(t *testing.T) { eachClientBeside(t, outageOfAll) }

func outageOfAll(t *testing.T, connect connector) {
	for _, v := range variants {
		t.Run(variantName(v), func(t *testing.T) {
			t.Parallel()
			c := v
			c.Limit, c.Offset = sluice.Per(100, 100*24*time.Hour), 0
			f := newFleet(t, connect, 4, TierConfig{MaxStale: time.Millisecond}, c)
			before := 0
			for i := range 40 { // 10 by each
				if d, err := f.tiers[i%4].Take(ctx, "a", 1); err == nil && d.Allowed {
					before++
				}
			}
			require.Equal(t, 40, before)
			f.cut(0, true)
			during := f.spend("a")
			require.Equal(t, 4*(25-10), during, "the shares, of which 10 each have been charged before")
			during += f.spend("fresh")
			f.cut(0, false)
			f.nothingOwed()
			after := f.spend("a")
			require.LessOrEqual(t, before+during-100+after, 200, "WorstCase, and a burst")
			require.LessOrEqual(t, after, 100-before-(during-100)+4*lost, "Redis has been told")
			require.LessOrEqual(t, f.spend("fresh"), 4*lost, "the fresh key as well")
		})
	}
}

// TestOutage_Rejoin: one replica loses Redis while the others do not. It has its share, and
// when it is back, Redis counts that too.
func TestOutage_Rejoin(t *testing.T) { eachClientBeside(t, outageRejoin) }

func outageRejoin(t *testing.T, connect connector) {
	f := newFleet(t, connect, 4, TierConfig{MaxStale: time.Millisecond}, Config{Limit: sluice.Per(100, 100*24*time.Hour)})
	f.cut(3, true)
	alone := &fleet{T: t, tiers: f.tiers[3:]}
	require.Equal(t, 25, alone.spend("a"))
	for range 60 {
		_, err := f.tiers[0].Take(ctx, "a", 1)
		require.NoError(t, err)
	}
	f.cut(3, false)
	f.nothingOwed()
	d, err := replicaOf(t, f.s.client, f.tiers[0].shared).Peek(ctx, "a", 0)
	require.NoError(t, err)
	require.InDelta(t, 100-25-60, d.Remaining, lost)
	require.LessOrEqual(t, f.spend("a"), 15+lost)
	require.Zero(t, f.spend("a"))
}
