package redislimit

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestInFlight_Never: two processes that take and give back at once never have more units in use than the limit, and all of
// them are free in the end. They use a Limiter, a Tier, a Store, and holds of a Store.
func TestInFlight_Never(t *testing.T) {
	const most = 7
	eachServer(t, func(t *testing.T, s *server) {
		for _, kind := range []string{"limiter", "tier", "store", "holds"} {
			t.Run(kind, func(t *testing.T) {
				prefix := newPrefix()
				var inUse, made, denied atomic.Int64
				var wg sync.WaitGroup
				var free func() int
				for range 2 {
					take, back, left := inFlightProcess(t, s.addr, prefix, kind, most)
					free = left
					for g := range 8 {
						wg.Go(func() {
							for i := range 60 {
								n := 1 + (g+i)%3
								id, ok := take(n)
								if !ok {
									denied.Add(1)
									continue
								}
								made.Add(1)
								assert.LessOrEqual(t, inUse.Add(int64(n)), int64(most))
								inUse.Add(-int64(n))
								back(id, n)
							}
						})
					}
				}
				wg.Wait()
				require.Equal(t, most, free())
				require.Greater(t, made.Load(), int64(100), "%d were denied", denied.Load())
			})
		}
	})
}

// inFlightProcess returns how a process with a client of its own takes units and gives them back, and how many are free.
func inFlightProcess(t *testing.T, addr, prefix, kind string, most int) (take func(n int) (id string, ok bool), back func(id string, n int), free func() int) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	limit := sluice.PerHour(most)
	if kind == "limiter" || kind == "tier" {
		l, err := New(client, Config{Prefix: prefix, Algorithm: sluice.InFlight, Limit: limit})
		require.NoError(t, err)
		takes, refund := l.Take, l.Refund
		if kind == "tier" {
			tier := newTier(t, l, TierConfig{Budget: patient})
			takes, refund = tier.Take, tier.Refund
		}
		return func(n int) (string, bool) {
				d, err := takes(ctx, "a", n)
				assert.NoError(t, err)
				return "", d.Allowed
			}, func(_ string, n int) { assert.NoError(t, refund(ctx, "a", n)) },
			func() int { return remaining(t, l) }
	}
	store := newStore(t, client, StoreConfig{Prefix: prefix})
	l := limitOf(t, store, LimitConfig{Name: "a", Algorithm: sluice.InFlight, Limit: limit, MaxHolds: map[string]int{"holds": 100}[kind]})
	call := func(c StoreCall) StoreResult {
		c.Limit, c.Key = l, "a"
		out := make([]StoreResult, 1)
		assert.NoError(t, store.Do(ctx, []StoreCall{c}, out))
		assert.NoError(t, out[0].Err)
		assert.Equal(t, FromRedis, out[0].Source)
		return out[0]
	}
	op, end := OpTake, OpRefund
	if kind == "holds" {
		op, end = OpHold, OpSettle
	}
	return func(n int) (string, bool) {
			r := call(StoreCall{Op: op, Cost: n, TTL: time.Hour})
			return r.HoldID, r.Decision.Allowed
		}, func(id string, n int) {
			if end == OpSettle {
				n = 0
			}
			call(StoreCall{Op: end, HoldID: id, Cost: n})
		}, func() int { return call(StoreCall{Op: OpPeek}).Decision.Remaining }
}

func remaining(t *testing.T, l *Limiter) int {
	d, err := l.Peek(ctx, "a", 0)
	require.NoError(t, err)
	return d.Remaining
}

// TestInFlight_Planted: faults that are planted in the scripts are found.
func TestInFlight_Planted(t *testing.T) {
	s := anyServer(t)
	require.NoError(t, inFlightCounts(t, s))
	for _, f := range []struct{ name, old, new string }{
		{"the window before counts in part", "room = max(0, B - prev - cur)", "room = max(0, B - floor(prev * (P - (t - offset) % P) / P) - cur)"},
		{"the window before is forgotten", "room = max(0, B - prev - cur)", "room = max(0, B - cur)"},
		{"this window is forgotten", "room = max(0, B - prev - cur)", "room = max(0, B - prev)"},
		{"the newest units come back first", "cur, prev = max(0, cur - max(0, units - prev)), max(0, prev - units)", "cur, prev = max(0, cur - units), max(0, prev - max(0, units - cur))"},
		{"units come back twice", "cur - max(0, units - prev)", "cur - units"},
		{"lapsed units of a hold come for nothing", "- cur) - lapsed", "- cur)"},
		{"lapsed units of a hold are not charged again", "+ renewed + lapsed", "+ renewed"},
		{"an extension does not renew", "local renewed = min(b, prev)", "local renewed = 0"},
		{"renewed units count twice", "prev - renewed", "prev"},
		{"what is renewed is put back", "if renewed > 0 then", "if false then"},
		{"the hold does not know its window", "a, b = total, 0", ""},
		{"of a hold that has lapsed", "if ends > t then lapsed", "if true then lapsed"},
	} {
		t.Run(f.name, func(t *testing.T) {
			found := 0
			for _, script := range []*script{inFlightScript, holdScripts[inFlightLetter]} {
				good := *script
				if !strings.Contains(good.text, f.old) {
					continue
				}
				found++
				*script = *newScript(strings.ReplaceAll(good.text, f.old, f.new))
				defer func() { *script = good }()
			}
			require.Positive(t, found)
			err := inFlightCounts(t, s)
			require.Error(t, err, "with the fault")
			t.Log(err)
		})
	}
}

// inFlightCounts demands of units in flight that they count for one to two windows of 10 s, and come back once.
func inFlightCounts(t *testing.T, s *server) error {
	var now atomic.Int64
	now.Store(startMicros - startMicros%10_000_000)
	prefix := newPrefix()
	var stores []*Store
	var plain, holds []*StoreLimit
	for range 2 {
		store := newStore(t, s.client, StoreConfig{Prefix: prefix, TimeSource: CallerClock})
		store.link.clock, store.link.spare = now.Load, 3_600_000
		cfg := LimitConfig{Name: "p", Algorithm: sluice.InFlight, Limit: sluice.AtOnce(10, 10*time.Second), Exact: true}
		stores, plain = append(stores, store), append(plain, limitOf(t, store, cfg))
		cfg.Name, cfg.MaxHolds = "h", 10
		holds = append(holds, limitOf(t, store, cfg))
	}
	for i, step := range []struct {
		at    time.Duration
		on    []*StoreLimit
		store int
		call  StoreCall
		want  int // remaining units, or
		err   error
		not   bool // denied
	}{
		{0, plain, 0, StoreCall{Cost: 6}, 4, nil, false},
		{9, plain, 1, StoreCall{Cost: 5}, 4, nil, true},
		{15, plain, 0, StoreCall{Cost: 5}, 4, nil, true},
		{15, plain, 0, StoreCall{Cost: 3}, 1, nil, false},
		{15, plain, 1, StoreCall{Op: OpRefund, Cost: 4}, 5, nil, false}, // 2 and 3 are left
		{19, plain, 1, StoreCall{Op: OpPeek}, 5, nil, false},
		{20, plain, 0, StoreCall{Op: OpPeek}, 7, nil, false},
		{29, plain, 0, StoreCall{Op: OpPeek}, 7, nil, false},
		{30, plain, 0, StoreCall{Op: OpPeek}, 10, nil, false},

		{40, holds, 0, StoreCall{Op: OpHold, HoldID: "1", Cost: 6, TTL: 100 * time.Second}, 4, nil, false},
		{51, holds, 1, StoreCall{Op: OpExtend, HoldID: "1", Cost: 2}, 2, nil, false}, // renews all 8
		{51, holds, 0, StoreCall{Op: OpPeek}, 2, nil, false},
		{65, holds, 0, StoreCall{Op: OpPeek}, 2, nil, false},
		{65, holds, 0, StoreCall{Op: OpExtend, HoldID: "1", Cost: 3}, 2, nil, true},
		{71, holds, 0, StoreCall{Op: OpPeek}, 10, nil, false}, // not renewed
		{71, holds, 0, StoreCall{Cost: 3}, 7, nil, false},
		{71, holds, 0, StoreCall{Op: OpExtend, HoldID: "1"}, 7, nil, true}, // its 8 have no room
		{91, holds, 1, StoreCall{Op: OpExtend, HoldID: "1", Cost: 1}, 1, nil, false},
		{95, holds, 1, StoreCall{Op: OpHold, HoldID: "2", Cost: 1, TTL: time.Second}, 0, nil, false},
		{97, holds, 1, StoreCall{Op: OpPeek}, 1, nil, false}, // 2 has lapsed
		{101, holds, 1, StoreCall{Op: OpSettle, HoldID: "1"}, 10, nil, false},
		{101, holds, 1, StoreCall{Op: OpSettle, HoldID: "1"}, 0, ErrNotHeld, false},
		{102, holds, 0, StoreCall{Op: OpHold, HoldID: "3", Cost: 4, TTL: 19 * time.Second}, 6, nil, false},
		{121, holds, 0, StoreCall{Cost: 10}, 0, nil, false}, // 3 has lapsed
	} {
		now.Store(startMicros - startMicros%10_000_000 + int64(step.at)*1_000_000)
		step.call.Limit, step.call.Key = step.on[step.store], "a"
		r := do(t, stores[step.store], step.call)[0]
		if r.Err != step.err || r.Err == nil && (r.Decision.Remaining != step.want || step.call.Op != OpPeek && step.call.Op != OpRefund && step.call.Op != OpSettle && r.Decision.Allowed == step.not || r.Source != FromRedis) {
			return fmt.Errorf("step %d, %v: %+v; want %d, denied %v, %v", i, step.call.Op, r, step.want, step.not, step.err)
		}
	}
	return nil
}

// TestInFlight_Debt: units that holds take whether there is room or not are bounded, so that their sums stay exact.
func TestInFlight_Debt(t *testing.T) {
	store := newStore(t, anyServer(t).client, StoreConfig{})
	l := limitOf(t, store, LimitConfig{Name: "a", Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour), MaxHolds: 10})
	sum := int64(0)
	for i := range 3 {
		cost := int(min(int64(math.MaxInt), exact/2-1))
		sum = min(sum+int64(cost), exact/2-1)
		r := do(t, store, StoreCall{Limit: l, Key: "a", Op: OpHold, HoldID: fmt.Sprint(i), Cost: cost, TTL: time.Hour, Over: true})[0]
		require.NoError(t, r.Err)
		require.Equal(t, sum, r.Count)
	}
}

// TestInFlight_Denial: a denial is not remembered, since units come back when they end.
func TestInFlight_Denial(t *testing.T) {
	s := anyServer(t)
	prefix := newPrefix()
	takeA, _, _ := inFlightProcess(t, s.addr, prefix, "store", 2)
	takeB, backB, _ := inFlightProcess(t, s.addr, prefix, "store", 2)
	_, ok := takeB(2)
	require.True(t, ok)
	for range 3 {
		_, ok = takeA(1)
		require.False(t, ok)
	}
	backB("", 1)
	_, ok = takeA(1)
	require.True(t, ok)
}

// TestInFlight_Without: without Redis units are of this process's share, and those that have ended are not owed.
func TestInFlight_Without(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	store := newStore(t, client, StoreConfig{Replicas: 3})
	l := limitOf(t, store, LimitConfig{Name: "a", Algorithm: sluice.InFlight, Limit: sluice.AtOnce(9, time.Hour), MaxHolds: 10})
	tier := newTier(t, newLimiter(t, client, Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(9, time.Hour)}), TierConfig{Replicas: 3, Budget: patient})
	await(t, "Redis is not asked", func() bool { // and not told of what is owed
		do(t, store, StoreCall{Limit: l, Key: "other", Op: OpPeek})
		takeFrom(t, tier, "other", 0)
		return store.Mode() == ModeDegraded && tier.Mode() == ModeDegraded
	})
	for range 4 {
		out := do(t, store, StoreCall{Limit: l, Key: "a", Cost: 2}, StoreCall{Limit: l, Key: "a", Cost: 2}, StoreCall{Limit: l, Key: "a", Op: OpRefund, Cost: 2})
		require.Equal(t, []bool{true, false}, []bool{out[0].Decision.Allowed, out[1].Decision.Allowed})
		require.Equal(t, 3, out[2].Decision.Remaining)

		d, from := takeFrom(t, tier, "a", 3)
		require.True(t, d.Allowed)
		require.Equal(t, FromFallback, from)
		require.Equal(t, int64(3), tier.Stats().Owed)
		require.ErrorIs(t, tier.Refund(ctx, "a", 3), ErrUnavailable)
	}
	require.Zero(t, store.Stats().Owed)
	require.Zero(t, tier.Stats().Owed)
	require.Equal(t, 3, do(t, store, StoreCall{Limit: l, Key: "b", Op: OpHold, HoldID: "1", Cost: 3, TTL: time.Hour})[0].Held)
	require.Equal(t, 3, do(t, store, StoreCall{Limit: l, Key: "b", Op: OpSettle, HoldID: "1"})[0].Decision.Remaining)
	require.Zero(t, store.Stats().Owed)
}

// TestInFlight_Owed: what is owed counts whole until the window after its own ends, and what ends is taken off the oldest.
func TestInFlight_Owed(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(100, 10*time.Second)}), TierConfig{})
	l, p := tier.router.first, tier.shared.plan.Load()
	at := int64(startMicros - startMicros%10_000_000)
	o := newOwed(p, 60, at+5_000_000)
	require.Equal(t, int64(60), o.left(at+18_900_000))
	require.Equal(t, int64(60), o.left(at+20_900_000), "the clocks may be a second apart")
	o = o.plus(newOwed(p, 10, at+15_000_000), at+15_000_000)
	l.owed["a"] = o
	l.disown("a", 20)
	o = l.owed["a"]
	require.Equal(t, int64(50), o.left(at+15_000_000))
	require.Equal(t, int64(10), o.left(at+21_100_000))
	require.Zero(t, o.left(at+31_100_000))
	clear(l.owed)
}

// TestInFlight_Config: limits that cannot be in flight have an error that names the field.
func TestInFlight_Config(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	store := newStore(t, client, StoreConfig{})
	for field, c := range map[string]LimitConfig{
		"Lease": {Lease: Lease{Max: 1}}, "Offset": {Offset: time.Second},
		"Limit.Burst": {Limit: sluice.PerMinute(10).WithBurst(5)}, "Limit.Period": {Limit: sluice.Per(10, time.Millisecond+1)},
	} {
		c.Name, c.Algorithm = "a", sluice.InFlight
		if c.Limit == (sluice.Limit{}) {
			c.Limit = sluice.PerMinute(10)
		}
		_, err := store.Limit(c)
		var config *ConfigError
		require.ErrorAs(t, err, &config, field)
		require.Equal(t, field, config.Field, "%v", err)
	}
	_, err := NewTier(newLimiter(t, client, Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(10, time.Minute)}), TierConfig{Replicas: 1, Lease: Lease{Max: 1}})
	var config *ConfigError
	require.ErrorAs(t, err, &config)
	require.Equal(t, "Lease", config.Field)
}
