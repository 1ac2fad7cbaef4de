package redislimit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestHolds_DoAll: requests, and holds of tokens, are made together or not at all, as models say.
func TestHolds_DoAll(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		rng := seeded.Rand(t)
		for range depth.Of(5, 15, 100) {
			var all []*holdTracer // a limit each, of one store
			limits := []sluice.Algorithm{sluice.GCRA, sluice.FixedWindow, sluice.SlidingWindow, sluice.TokenBucketInterval, sluice.InFlight}
			store := newStore(t, s.client, StoreConfig{TimeSource: CallerClock})
			now := int64(startMicros)
			store.link.clock, store.link.spare = func() int64 { return now }, 3_600_000
			for i, a := range limits {
				l := limitOf(t, store, LimitConfig{Name: fmt.Sprint(i), Algorithm: a, Limit: sluice.Per(3+rng.IntN(20), time.Second), MaxHolds: 100, Exact: true})
				all = append(all, &holdTracer{T: t, now: now, stores: []*Store{store}, limits: []*StoreLimit{l}, models: map[string]*holdModel{}})
			}
			for id := range 60 {
				now += rng.Int64N(1 + 1<<rng.IntN(20))
				calls := make([]StoreCall, 1+rng.IntN(4))
				denied := -1
				var made []func()
				takes := map[int]int64{}
				for i := range calls {
					of := rng.IntN(len(all))
					m := all[of].model("a")
					m.goOn(now)
					c := StoreCall{Limit: all[of].limits[0], Key: "a", Cost: 1 + rng.IntN(3), Op: OpHold, HoldID: fmt.Sprint(id, i), TTL: time.Duration(1+rng.Int64N(1_000_000)) * time.Microsecond, GiveBack: rng.IntN(2) == 0}
					if rng.IntN(3) == 0 {
						c = StoreCall{Limit: c.Limit, Key: "a", Cost: c.Cost}
					}
					if takes[of]+int64(c.Cost) <= m.free() {
						takes[of] += int64(c.Cost)
					} else if denied < 0 {
						denied = i
					}
					made = append(made, func() {
						if c.Op == OpHold {
							m.hold(c.HoldID, int64(c.Cost), int64(c.TTL/time.Microsecond), c.GiveBack)
						} else {
							m.take(int64(c.Cost))
						}
					})
					calls[i] = c
				}
				out := make([]StoreResult, len(calls))
				d, err := store.DoAll(ctx, calls, out)
				require.NoError(t, err)
				require.Equal(t, denied, d.Denied, "%+v", calls)
				if d.Allowed {
					for i := range made {
						made[i]()
						require.Equal(t, calls[i].HoldID, out[i].HoldID)
						require.Equal(t, FromRedis, out[i].Source)
					}
					again := make([]StoreCall, 0, len(calls)) // those that can be tried again
					for _, c := range calls {
						if c.Op == OpHold {
							again = append(again, c)
						}
					}
					d, err := store.DoAll(ctx, again, out[:len(again)])
					require.NoError(t, err)
					require.True(t, d.Allowed, "%+v %+v %+v", d, again, out[:len(again)])
				}
				for of, tr := range all {
					tr.now = now
					tr.call(0, StoreCall{Key: "a", Op: OpPeek})
					if i := rng.IntN(len(calls)); calls[i].Limit == all[of].limits[0] {
						tr.call(0, StoreCall{Key: "a", Op: OpSettle, HoldID: fmt.Sprint(rng.IntN(id+1), i), Cost: rng.IntN(3)})
					}
				}
			}
		}
	})
}

// holdAt makes an OpHold, and returns its result.
func holdAt(t testing.TB, s *Store, l *StoreLimit, id string, cost int) StoreResult {
	return do(t, s, StoreCall{Limit: l, Key: "a", Op: OpHold, HoldID: id, Cost: cost, TTL: time.Minute})[0]
}

// TestHolds_Bounded: a key has at most MaxHolds holds, open or known to have ended; memory is free when they have lapsed.
func TestHolds_Bounded(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		tr := newHoldTracer(t, s, LimitConfig{Limit: sluice.PerHour(1_000_000), MaxHolds: 1000}, 1)
		store, l := tr.stores[0], tr.limits[0]
		for i := range 1000 {
			require.NoError(t, holdAt(t, store, l, fmt.Sprint(i), 10).Err)
		}
		require.ErrorIs(t, holdAt(t, store, l, "one more", 10).Err, ErrManyHolds)
		out := make([]StoreResult, 1)
		_, err := store.DoAll(ctx, []StoreCall{{Limit: l, Key: "a", Op: OpHold, Cost: 1, TTL: time.Minute}}, out)
		require.ErrorIs(t, err, ErrManyHolds)
		require.Equal(t, ModeShared, store.Mode())
		require.True(t, holdAt(t, store, l, "7", 10).Decision.Allowed, "tried again")
		holds, times := holdNames(l.keys.of("a"))
		memory := s.client.MemoryUsage(ctx, holds, 0).Val() + s.client.MemoryUsage(ctx, times, 0).Val()
		t.Log("bytes of a hold:", memory/1000)
		require.Less(t, memory, int64(400*1000))
		for i := range 1000 { // an end makes room, and what is known of it is bounded
			require.NoError(t, do(t, store, StoreCall{Limit: l, Key: "a", Op: OpSettle, HoldID: fmt.Sprint(i)})[0].Err)
			require.NoError(t, holdAt(t, store, l, fmt.Sprint("new", i), 10).Err)
		}
		for i := range 500 {
			require.NoError(t, do(t, store, StoreCall{Limit: l, Key: "a", Op: OpSettle, HoldID: fmt.Sprint("new", i)})[0].Err)
			require.NoError(t, holdAt(t, store, l, fmt.Sprint("newer", i), 10).Err)
		}
		require.LessOrEqual(t, s.client.ZCard(ctx, times).Val(), int64(4000))
		require.Equal(t, int64(1000), s.client.HLen(ctx, holds).Val())
		tr.now += 61_000_000
		d := do(t, store, StoreCall{Limit: l, Key: "a", Op: OpPeek})[0].Decision
		require.Equal(t, 1_000_000-10_000+277, d.Remaining, "all have been spent, a second ago")
		require.Zero(t, s.client.Exists(ctx, holds, times).Val())
	})
}

// TestHolds_Expire: the keys of holds expire with the last one that matters.
func TestHolds_Expire(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			store := newStore(t, s.client, StoreConfig{})
			l := limitOf(t, store, LimitConfig{Name: "a", Algorithm: a, Limit: sluice.PerMinute(60), MaxHolds: 10})
			require.NoError(t, holdAt(t, store, l, "1", 30).Err)
			holds, times := holdNames(l.keys.of("a"))
			for _, key := range []string{holds, times} {
				ttl := s.client.PTTL(ctx, key).Val()
				require.True(t, ttl > 59*time.Second && ttl < 4*time.Minute, "%v: %s in %v", a, key, ttl)
			}
			require.NoError(t, do(t, store, StoreCall{Limit: l, Key: "a", Op: OpSettle, HoldID: "1"})[0].Err)
			ttl := s.client.PTTL(ctx, l.keys.of("a")).Val()
			require.True(t, ttl > 0 && ttl < 4*time.Minute, "%v in %v", a, ttl)
		}
	})
}

// TestHolds_Lost: what Redis has lost is not given back: not by settlements, and not to those who ask next.
func TestHolds_Lost(t *testing.T) {
	eachServer(t, func(t *testing.T, shared *server) {
		s := start(t, shared.binary)
		defer s.kill()
		for _, a := range holdVariants {
			tr := newHoldTracer(t, s, LimitConfig{Algorithm: a, Limit: sluice.PerHour(100), MaxHolds: 10}, 2)
			require.True(t, holdAt(t, tr.stores[0], tr.limits[0], "1", 60).Decision.Allowed)
			require.NoError(t, s.client.FlushAll(ctx).Err())
			settled := do(t, tr.stores[0], StoreCall{Limit: tr.limits[0], Key: "a", Op: OpSettle, HoldID: "1", Cost: 0})[0]
			require.ErrorIs(t, settled.Err, ErrNotHeld, "%v", a)
			require.False(t, holdAt(t, tr.stores[0], tr.limits[0], "2", 41).Decision.Allowed, "%v", a)
			require.True(t, holdAt(t, tr.stores[0], tr.limits[0], "3", 40).Decision.Allowed, "%v", a)
			require.False(t, holdAt(t, tr.stores[1], tr.limits[1], "4", 1).Decision.Allowed, "%v", a)
		}
	})
}

// TestHolds_Settle: a settlement that Redis does not answer reaches it, through an outage, once.
func TestHolds_Settle(t *testing.T) {
	f := newHoldOutage(t)
	require.NoError(t, holdAt(t, f.near, f.nearLimit, "1", 50).Err)
	f.proxy.hole.Store(true)
	calls := []StoreCall{{Limit: f.nearLimit, Key: "a", Op: OpSettle, HoldID: "1", Cost: 20, TTL: time.Hour}}
	require.NoError(t, do(t, f.near, calls...)[0].Err)
	await(t, "the settlement waits for Redis", func() bool {
		return f.near.Stats().Owed == 20
	})
	require.Equal(t, 50, do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Op: OpPeek})[0].Decision.Remaining)
	f.proxy.mend()
	await(t, "Redis is told", func() bool {
		return do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Op: OpPeek})[0].Decision.Remaining == 80
	})
	require.ErrorIs(t, do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Op: OpSettle, HoldID: "1"})[0].Err, ErrNotHeld)
	require.Zero(t, f.near.Stats().Owed)
}

// TestHolds_Outage: holds that are made without Redis are settled where they were made, and are unknown elsewhere. What
// they have used counts in Redis.
func TestHolds_Outage(t *testing.T) {
	f := newHoldOutage(t)
	f.proxy.hole.Store(true)
	await(t, "Redis is not asked", func() bool {
		return do(t, f.near, StoreCall{Limit: f.nearLimit, Key: "b"})[0].Err != nil || f.near.Mode() == ModeDegraded
	})
	held := holdAt(t, f.near, f.nearLimit, "", 50)
	require.NoError(t, held.Err)
	require.Equal(t, FromFallback, held.Source)
	require.True(t, held.Decision.Allowed)
	require.Len(t, held.HoldID, 32)
	require.False(t, holdAt(t, f.near, f.nearLimit, "2", 51).Decision.Allowed)
	require.ErrorIs(t, do(t, f.near, StoreCall{Limit: f.nearLimit, Key: "a", Op: OpExtend, HoldID: "0", Cost: 1})[0].Err, ErrUnavailable)
	require.ErrorIs(t, do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Op: OpSettle, HoldID: held.HoldID})[0].Err, ErrNotHeld)
	settled := do(t, f.near, StoreCall{Limit: f.nearLimit, Key: "a", Op: OpSettle, HoldID: held.HoldID, Cost: 20})[0]
	require.NoError(t, settled.Err)
	require.Equal(t, 80, settled.Decision.Remaining)
	out := make([]StoreResult, 1)
	d, err := f.near.DoAll(ctx, []StoreCall{{Limit: f.nearLimit, Key: "a", Op: OpHold, HoldID: "3", Cost: 30, TTL: time.Minute}}, out)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	f.proxy.mend()
	await(t, "Redis is told", func() bool {
		return do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Op: OpPeek})[0].Decision.Remaining == 50
	})
	require.NoError(t, do(t, f.near, StoreCall{Limit: f.nearLimit, Key: "a", Op: OpSettle, HoldID: "3"})[0].Err)
	require.ErrorIs(t, do(t, f.near, StoreCall{Limit: f.nearLimit, Key: "a", Op: OpSettle, HoldID: "3"})[0].Err, ErrNotHeld)
}

// A holdOutage is two processes that share a key. The near one's way to Redis can be cut.
type holdOutage struct {
	proxy               *proxy
	near, far           *Store
	nearLimit, farLimit *StoreLimit
}

func newHoldOutage(t *testing.T) *holdOutage {
	s := anyServer(t)
	f := &holdOutage{proxy: newProxy(t, s.addr)}
	prefix := newPrefix()
	client := redis.NewClient(&redis.Options{Addr: f.proxy.addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	cfg := LimitConfig{Name: "a", Limit: sluice.Per(100, 1000*time.Hour), MaxHolds: 10, Exact: true}
	f.near = newStore(t, client, StoreConfig{Prefix: prefix, Budget: 50 * time.Millisecond})
	f.far = newStore(t, s.client, StoreConfig{Prefix: prefix})
	f.nearLimit, f.farLimit = limitOf(t, f.near, cfg), limitOf(t, f.far, cfg)
	return f
}

// TestHolds_Invalid: what cannot be is one clear error, and does nothing.
func TestHolds_Invalid(t *testing.T) {
	s := anyServer(t)
	store := newStore(t, s.client, StoreConfig{})
	var config *ConfigError
	for _, cfg := range []LimitConfig{
		{Algorithm: sluice.SlidingLog, MaxHolds: 1}, {BlockFor: time.Second, MaxHolds: 1}, {MaxHolds: -1}, {MaxHolds: maxHolds + 1},
	} {
		cfg.Name, cfg.Limit = "bad", sluice.PerHour(10)
		_, err := store.Limit(cfg)
		require.ErrorAs(t, err, &config)
		require.Equal(t, "MaxHolds", config.Field)
	}
	braces := newStore(t, s.client, StoreConfig{Prefix: newPrefix() + "{}"})
	_, err := braces.Limit(LimitConfig{Name: "a", Limit: sluice.PerHour(10), MaxHolds: 1})
	require.ErrorAs(t, err, &config)
	l := limitOf(t, store, LimitConfig{Name: "a", Limit: sluice.PerHour(10), MaxHolds: 10})
	without := limitOf(t, store, LimitConfig{Name: "b", Limit: sluice.PerHour(10)})
	for _, c := range []StoreCall{
		{Limit: without, Op: OpHold, Cost: 1, TTL: time.Minute}, {Limit: l, Op: OpHold, Cost: 1}, {Limit: l, Op: OpHold, Cost: -1, TTL: time.Minute},
		{Limit: l, Op: OpSettle, Cost: 1}, {Limit: l, Op: OpExtend, Cost: 1}, {Limit: l, Op: OpHold, Cost: 1, TTL: maxTTL + 1},
		{Limit: l, Op: OpHold, Cost: 1, TTL: time.Minute, HoldID: strings.Repeat("x", maxHoldID+1)},
	} {
		require.Error(t, store.Do(ctx, []StoreCall{c}, make([]StoreResult, 1)), "%+v", c)
	}
	for _, c := range []StoreCall{
		{Limit: l, Op: OpHold, Cost: 1, TTL: time.Minute, Step: "s"}, {Limit: l, Op: OpSettle, HoldID: "x", Cost: 1, Step: "s"},
	} {
		require.ErrorContains(t, store.Do(ctx, []StoreCall{c}, make([]StoreResult, 1)), "Step of "+c.Op.String()+` is "s"; want none, or OpExtend`)
	}
	same := StoreCall{Limit: l, Key: "a", Op: OpHold, HoldID: "x", Cost: 1, TTL: time.Minute}
	_, err = store.DoAll(ctx, []StoreCall{same, same}, make([]StoreResult, 2))
	require.ErrorContains(t, err, "two holds")
	_, err = store.DoAll(ctx, []StoreCall{{Limit: l, Key: "a", Op: OpSettle, HoldID: "x"}}, make([]StoreResult, 1))
	require.ErrorContains(t, err, "settle")
	require.True(t, errors.Is(do(t, store, StoreCall{Limit: l, Key: "a", Op: OpSettle, HoldID: "x"})[0].Err, ErrNotHeld))
	require.Equal(t, sluice.Never, do(t, store, StoreCall{Limit: l, Key: "a", Op: OpHold, Cost: 11, TTL: time.Minute})[0].Decision.RetryAfter)
}

// TestHolds_Names: the keys of holds are in the slot of their key, and no other key has their names.
func TestHolds_Names(t *testing.T) {
	rng := seeded.Rand(t)
	seen := map[string]string{}
	for range 20_000 {
		b := make([]byte, rng.IntN(10))
		for i := range b {
			b[i] = "{}ab#:~h"[rng.IntN(8)]
		}
		for _, prefix := range []string{"rl", "rl:{x}"} {
			cfg := LimitConfig{Name: []string{"n", "n~", "h"}[rng.IntN(3)], MaxHolds: 1}
			if prefix == "rl" && rng.IntN(2) == 0 {
				cfg.Tag = "tag"
			}
			names := newKeyNames(prefix, &cfg, 'B')
			key := names.of(string(b))
			holds, times := holdNames(key)
			require.Equal(t, slotOf(key), slotOf(holds), "%q %q", key, holds)
			require.Equal(t, slotOf(key), slotOf(times), "%q %q", key, times)
			for _, n := range []string{key, holds, times} {
				if other, ok := seen[n]; ok {
					require.Equal(t, other, key, "%q", n)
				}
				seen[n] = key
			}
		}
	}
}

// clusterHolds: the keys of holds are on the primary of their key, with a Tag and without.
func clusterHolds(t *testing.T, c *cluster) {
	s := newStore(t, c.client(), StoreConfig{})
	for _, tag := range []string{"", "domain"} {
		l := limitOf(t, s, LimitConfig{Name: "held" + tag, Tag: tag, Limit: sluice.PerHour(10), MaxHolds: 10})
		var holds, settlements []StoreCall
		for i := range 30 {
			key := fmt.Sprint("}a{", i)
			holds = append(holds, StoreCall{Limit: l, Key: key, Op: OpHold, HoldID: "1", Cost: 10, TTL: time.Minute})
			settlements = append(settlements, StoreCall{Limit: l, Key: key, Op: OpSettle, HoldID: "1", Cost: 3})
		}
		for _, r := range do(t, s, holds...) {
			require.NoError(t, r.Err)
			require.Equal(t, FromRedis, r.Source)
			require.True(t, r.Decision.Allowed)
		}
		for _, r := range do(t, s, settlements...) {
			require.NoError(t, r.Err)
			require.Equal(t, 7, r.Decision.Remaining)
		}
	}
}

// TestHolds_Rights: the rights that the documentation names are enough.
func TestHolds_Rights(t *testing.T) {
	eachServer(t, func(t *testing.T, shared *server) {
		s := start(t, shared.binary)
		defer s.kill()
		rights := []any{"acl", "setuser", "app", "on", ">x", "~*", "+evalsha", "+eval", "+get", "+set", "+pttl", "+time"}
		for _, command := range strings.Fields("hget hmget hset hdel hlen zadd zrem zrangebyscore zremrangebyscore zscore zcard pexpire") {
			rights = append(rights, "+"+command)
		}
		require.NoError(t, s.client.Do(ctx, rights...).Err())
		client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, Username: "app", Password: "x"})
		defer client.Close()
		tr := newHoldTracer(t, &server{client: client}, LimitConfig{Limit: sluice.PerHour(100), MaxHolds: 10}, 1)
		for _, id := range []string{"1", "2"} {
			tr.call(0, StoreCall{Key: "a", Op: OpHold, HoldID: id, Cost: 10, TTL: time.Second})
		}
		tr.call(0, StoreCall{Key: "a", Op: OpSettle, HoldID: "1", Cost: 3})
		tr.call(0, StoreCall{Key: "a", Op: OpHold, HoldID: "1", Cost: 10, TTL: time.Second})
		tr.now += 2_000_000
		tr.call(0, StoreCall{Key: "a", Op: OpPeek})
		d, err := tr.stores[0].DoAll(ctx, []StoreCall{{Limit: tr.limits[0], Key: "a", Op: OpHold, Cost: 1, TTL: time.Second}}, make([]StoreResult, 1))
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, ModeShared, tr.stores[0].Mode())
	})
}
