package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestBlock_DeniesUntilThenAndIsFresh(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, 10 * time.Minute} {
			c := c
			c.BlockFor = block
			l, clock := newFrozen(t, c)
			burst := burstOf(l)
			require.True(t, l.Key("new").Block(time.Hour))
			require.True(t, l.Allow("old"))
			require.True(t, l.Key("old").Block(time.Hour))
			for _, key := range []string{"new", "old"} {
				want := Decision{Limit: burst, RetryAfter: time.Hour, ResetAfter: time.Hour}
				require.Equal(t, want, l.Take(key, 1))
				require.Equal(t, want, l.Key(key).Peek(burst))
				require.Equal(t, want, l.Take(key, 0))
				require.False(t, l.AllowN(key, burst))
				require.Equal(t, AllDecision{Denied: 0, RetryAfter: time.Hour}, TakeAll(Charge{l.Key(key), 1}))
				require.True(t, l.Key(key).Block(time.Minute), "a shorter block does not end it sooner")
				require.Equal(t, want, l.Take(key, 1))
				l.Key(key).Refund(burst)
				require.Equal(t, want, l.Take(key, 1))
				want.RetryAfter = Never
				require.Equal(t, want, l.Take(key, burst+1))
				require.Equal(t, want, l.Key(key).Peek(-1))
			}
			l.Sweep()
			clock.Advance(time.Hour - 1)
			for _, key := range []string{"new", "old"} {
				require.Equal(t, time.Duration(1), l.Take(key, 1).RetryAfter)
			}
			clock.Advance(1)
			require.Equal(t, burst-1, l.Take("new", 1).Remaining)
			require.Equal(t, burst, l.Key("old").Peek(0).Remaining)
			require.True(t, TakeAll(Charge{l.Key("old"), burst}).Allowed)
		}
	})
}

// TestBlock_WhatItSays: where there is nothing to block, or no room for it.
func TestBlock_WhatItSays(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		for _, d := range []time.Duration{0, -1, math.MinInt64} {
			require.False(t, l.Key("k").Block(d))
			require.False(t, l.Key("k").Block(d))
		}
		require.Zero(t, l.Len())
		l.Key("k").Unblock()
		require.Zero(t, l.Len(), "an untracked key stays untracked")
		for _, o := range overflowsOf(c) {
			want := o == OverflowEvictSoonest
			c.MaxKeys, c.Overflow = 2, o
			l, _ := newFrozen(t, c)
			require.Equal(t, 2, fill(l, "key", 2))
			require.Equal(t, want, l.Key("k").Block(time.Hour), "%v", o)
			require.Equal(t, want, !l.Key("k").Peek(1).Allowed, "%v", o)
			require.True(t, l.Key("key0").Block(time.Hour) || want, "%v: a tracked key needs no room", o)
		}
		for _, d := range []time.Duration{-1, 0, 1, math.MaxInt64} {
			c.MaxKeys, c.Limit = 0, Unlimited
			c.Offset = 0
			l, _ := newFrozen(t, c)
			require.Equal(t, d > 0, l.Key("k").Block(d))
			require.Equal(t, d <= 0, l.Allow("k"))
			c.Limit = DenyAll
			l, _ = newFrozen(t, c)
			require.Equal(t, d > 0, l.Key("k").Block(d))
			require.Equal(t, d > 0, l.Len() == 1)
			l.Key("k").Unblock()
			require.Equal(t, Decision{RetryAfter: Never}, l.Take("k", 1))
			l.Sweep()
			require.Zero(t, l.Len())
		}
	})
}

// TestBlock_EndOfTime: one word tells times of 62 bits, until 2116, and what it cannot tell
// never ends, in any layout.
func TestBlock_EndOfTime(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		const last = 1<<62 - 5 // three more words mean something else, and one stands for never
		for _, now := range []int64{0, 1 << 61, last - 5} {
			clock := NewManualClock(time.Unix(0, now))
			c.Clock = clock
			l := mustNew(t, c)
			require.True(t, l.Key("last").Block(time.Duration(last-now)))
			require.True(t, l.Key("never").Block(time.Duration(last-now+1)))
			require.True(t, l.Key("ever").Block(math.MaxInt64))
			require.Equal(t, time.Duration(last-now), l.Key("last").Peek(1).RetryAfter)
			require.Equal(t, Never, l.Key("never").Peek(1).RetryAfter)
			require.Equal(t, Never, l.Take("ever", 1).RetryAfter)
			require.Zero(t, l.Sweep())
			clock.Set(time.Unix(0, last))
			require.True(t, l.Key("last").Peek(1).Allowed)
			require.Equal(t, 1, l.Sweep(), "only what is over is swept")
			require.False(t, l.Allow("never"))
			clock.Set(time.Unix(0, math.MaxInt64-int64(time.Minute)))
			require.False(t, l.Key("never").Peek(1).Allowed)
			require.False(t, l.Allow("ever"))
			clock.Set(time.Unix(0, math.MaxInt64))
			require.False(t, l.Key("ever").Peek(1).Allowed, "the last nanosecond stands for never")
			l.Key("ever").Unblock()
			require.True(t, l.Allow("ever"))
		}
	})
}

// TestBlock_OtherKeysChangeNothing: growth, sweeps, resets of others and a flood of keys
// at MaxKeys leave a key blocked.
func TestBlock_OtherKeysChangeNothing(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryEvicting(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, 1} {
			for _, maxKeys := range []int{64, -1} {
				c := c
				c.MaxKeys, c.BlockFor = maxKeys, block
				l, clock := newFrozen(t, c)
				burst := burstOf(l)
				l.Allow("old")
				for i := range 20 {
					require.True(t, l.Key(fmt.Sprint("blocked", i)).Block(time.Duration(i+1)*1000*time.Hour))
				}
				require.True(t, l.Key("old").Block(time.Hour))
				for i := range 500 {
					key := fmt.Sprint("flood", i)
					require.True(t, l.AllowN(key, burst))
					if i%10 == 0 {
						l.Key(key).Reset()
						l.Key(key).Unblock()
					}
					if i%50 == 0 {
						clock.Advance(time.Second)
						l.Sweep()
					}
				}
				require.False(t, l.Allow("old"))
				for i := range 20 {
					require.False(t, l.Allow(fmt.Sprint("blocked", i)), "%d with room for %d keys", i, maxKeys)
				}
				require.Equal(t, maxKeys > 0, l.Stats().Evicted > 0)
			}
		}
	})
}

// TestBlock_FullOfBlockedKeys: there the ones whose blocks end soonest go first.
func TestBlock_FullOfBlockedKeys(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.MaxKeys = 8
		l, _ := newFrozen(t, c)
		for i := range 8 {
			require.True(t, l.Key(fmt.Sprint("k", i)).Block(time.Duration(i+1)*1000*time.Hour))
		}
		require.True(t, l.Key("new").Block(1))
		for i := range 8 {
			require.Equal(t, i < 2, l.Key(fmt.Sprint("k", i)).Peek(1).Allowed, i)
		}
		require.Equal(t, time.Duration(1), l.Key("new").Peek(1).RetryAfter)
		require.Equal(t, 7, l.Len())
	})
}

// TestEvictSoonest_ContentionSparesBlockedKeys: where all that was to go has been charged
// meanwhile, other live keys go, and not blocked ones.
func TestEvictSoonest_ContentionSparesBlockedKeys(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	const maxKeys, blocked = 20, 8
	l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1_000_000), MaxKeys: maxKeys, Shards: 1})
	for i := range blocked {
		require.True(t, l.Key(fmt.Sprint("blocked", i)).Block(10_000*time.Hour))
	}
	fill(l, "live", maxKeys-blocked)
	listed := 0
	setAlgorithm(l, chargingRank{l.policyOf(0).alg, func() {
		if listed++; listed <= maxKeys-blocked { // only while they are listed: later they are frozen
			fill(l, "live", maxKeys-blocked)
		}
	}}, nil)
	require.True(t, l.Allow("new"))
	for i := range blocked {
		require.False(t, l.Key(fmt.Sprint("blocked", i)).Peek(1).Allowed, "a blocked key went, and live ones stayed: %d", i)
	}
}

// TestBlock_TakesNoLock: calls for a blocked key are decided while its shard is locked.
func TestBlock_TakesNoLock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, time.Hour} {
			c := c
			c.Shards, c.BlockFor = 1, block
			c.CountDenied = c.Algorithm.countsDenied()
			l, clock := newFrozen(t, c)
			k := l.Key("k")
			require.True(t, k.Block(time.Hour))
			before := snapshot(l)
			l.shards[0].mu.Lock()
			calls := func() {
				if k.Allow() || k.AllowN(2) || k.Take(1).Allowed || k.Peek(1).Allowed || l.Allow("k") ||
					k.AllowAt(5, 1) || k.Take(0).Allowed || TakeAll(Charge{k, 1}).Allowed {
					t.Error("admitted")
				}
			}
			calls()
			if !raceEnabled {
				requireNoAllocs(t, "calls for a blocked key", calls)
			}
			require.Equal(t, before, snapshot(l), "a blocked call has written")
			clock.Advance(time.Hour)
			require.True(t, k.Allow(), "the first call after a block takes no lock either")
			l.shards[0].mu.Unlock()
		}
	})
}

// TestCountDenied_UpToTheLimit: denials count up to the limit in force, although the log
// has room for a larger one that was in force before, and comes back.
func TestCountDenied_UpToTheLimit(t *testing.T) {
	for name, c := range everyMany {
		if !c.Algorithm.countsDenied() {
			continue
		}
		c.CountDenied = true
		limit := c.Limit.Rate
		for _, spent := range []int{0, limit/2 - 3, limit / 2, limit} {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			require.True(t, spent == 0 || k.AllowN(spent))
			low := c.Limit
			low.Rate = limit / 2
			require.NoError(t, l.SetLimit(low))
			require.True(t, spent > 0 || k.Allow())
			for range 5 {
				require.False(t, k.AllowN(limit/2))
				require.Zero(t, k.Peek(0).Remaining)
			}
			require.NoError(t, l.SetLimit(c.Limit))
			require.Equal(t, limit-max(spent, limit/2), k.Peek(0).Remaining, "%s, %d spent", name, spent)
		}
	}
}

// TestBlockFor_AllocatesNothing where denials write.
func TestBlockFor_AllocatesNothing(t *testing.T) {
	skipUnderRace(t)
	forEveryPenalty(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k, burst := l.Key("k"), burstOf(l)
		requireNoAllocs(t, "denials and blocks", func() {
			k.AllowN(burst)
			k.Allow()
			k.Take(burst)
			TakeAll(Charge{k, 1})
			k.Block(time.Hour)
			k.Unblock()
			k.AllowN(burst)
			k.Allow()
			k.Reset()
		})
	})
}

// TestBlockFor_WhatDoesNotBlock: looks, and costs that are denied whatever the state.
func TestBlockFor_WhatDoesNotBlock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.BlockFor, c.CountDenied = 1000*time.Hour, c.Algorithm.countsDenied()
		l, _ := newFrozen(t, c)
		k, burst := l.Key("k"), burstOf(l)
		require.True(t, k.AllowN(burst))
		before := snapshot(l)
		for _, cost := range []int{0, -1, burst + 1, math.MinInt, math.MaxInt} {
			require.False(t, k.AllowN(cost))
			require.False(t, k.Take(cost).Allowed)
			require.False(t, TakeAll(Charge{k, cost}).Allowed)
		}
		require.False(t, TakeAll(Charge{k, burst}, Charge{k, 1}).Allowed, "together above the burst")
		require.False(t, k.Peek(1).Allowed)
		require.Equal(t, before, snapshot(l))
		require.False(t, k.Allow())
		require.GreaterOrEqual(t, k.Peek(1).RetryAfter, 1000*time.Hour)
	})
}

// TestBlockFor_ClaimsOfATakeAll: those denied by themselves are punished, the others not.
func TestBlockFor_ClaimsOfATakeAll(t *testing.T) {
	forEveryPenalty(t, func(t *testing.T, c Config) {
		c.Stats = true
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		spent, fresh := l.Key("spent"), l.Key("fresh")
		require.True(t, spent.AllowN(burst))
		require.True(t, fresh.Allow())
		d := TakeAll(Charge{fresh, 1}, Charge{spent, 1}, Charge{l.Key("new"), 1})
		require.Equal(t, AllDecision{Denied: 1, RetryAfter: d.RetryAfter}, d)
		require.Equal(t, spent.Peek(1).RetryAfter, d.RetryAfter)
		require.Equal(t, c.BlockFor > 0, d.RetryAfter == c.BlockFor)
		require.Equal(t, burst-1, fresh.Peek(0).Remaining)
		require.Equal(t, 2, l.Len())
		TakeAll(Charge{spent, 1})
		s := l.Stats()
		require.Equal(t, uint64(2), s.Denied)
		require.Equal(t, c.BlockFor > 0, s.Blocked == 1)
	})
}

// TestBlockFor_Shadow: what is admitted all the same is blocked as if it had not been.
func TestBlockFor_Shadow(t *testing.T) {
	forEveryPenalty(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		enforced, clock := newFrozen(t, c)
		c.Clock, c.Shadow = clock, true
		shadow := mustNew(t, c)
		for range 300 {
			cost, key := 1+rng.IntN(burstOf(enforced)), fmt.Sprint("k", rng.IntN(2))
			want := enforced.Take(key, cost)
			switch rng.IntN(3) {
			case 0:
				require.True(t, shadow.AllowN(key, cost))
			case 1:
				d := TakeAll(Charge{shadow.Key(key), cost})
				require.Equal(t, AllDecision{Allowed: true, Denied: -1, WouldDeny: !want.Allowed, Remaining: want.Remaining}, d)
			default:
				want.WouldDeny, want.Allowed = !want.Allowed, true
				require.Equal(t, want, shadow.Take(key, cost))
			}
			if rng.IntN(3) == 0 {
				clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period))))
			}
			if rng.IntN(20) == 0 {
				clock.Advance(c.BlockFor)
			}
		}
	})
}

// TestBlockFor_Soft: the soft units are units of the limit to a block.
func TestBlockFor_Soft(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Soft, c.BlockFor = 10, 1000*time.Hour
		l, _ := newFrozen(t, c)
		burst := c.Limit.burst()
		require.Equal(t, true, l.Take("k", burst+10).OverSoft)
		want := Decision{Limit: burst, RetryAfter: 1000 * time.Hour, ResetAfter: 1000 * time.Hour}
		require.Equal(t, want, l.Take("k", 1))
		require.Equal(t, want, l.Take("k", burst+10))
		require.Equal(t, want, l.Key("k").Peek(0))
	})
}

// TestBlockFor_OlderTimes: a call with a time before the end of the block is denied, and
// one that is denied blocks from its own time, if the key is not fresh later.
func TestBlockFor_OlderTimes(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.BlockFor = 1000 * time.Hour
		l, clock := newFrozen(t, c)
		k, now, burst := l.Key("k"), clock.Now(), burstOf(l)
		require.True(t, k.AllowN(burst))
		older := now - int64(time.Hour)
		require.Equal(t, c.BlockFor, k.TakeAt(older, 1).RetryAfter)
		require.Equal(t, c.BlockFor-time.Hour, k.Take(1).RetryAfter)
		require.Equal(t, time.Duration(now)+c.BlockFor-time.Hour, k.TakeAt(-5, 1).RetryAfter)
		end := older + int64(c.BlockFor)
		require.False(t, k.AllowAt(end-1, burst))
		require.True(t, k.AllowAt(end, burst))
	})
}
