package sluice

import (
	"bytes"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// spentOf is what counts against a key now.
func spentOf(l *Limiter, key string) int {
	d := l.Key(key).Peek(0)
	return d.Limit - d.Remaining
}

func TestSetLimit_KeepsWhatHasBeenSpent(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("k", 300))
		scale := func(n int) Limit {
			if c.Limit.Burst != 0 {
				return c.Limit.WithBurst(n)
			}
			return Per(n, c.Limit.Period)
		}
		for _, burst := range []int{1000, 400, 301, 300, 500, 100_000, 350} {
			require.NoError(t, l.SetLimit(scale(burst)))
			require.Equal(t, scale(burst), l.Config().Limit)
			require.Equal(t, 300, spentOf(l, "k"), "burst %d", burst)
			require.Equal(t, burst, l.Key("new").Peek(0).Remaining)
		}
		require.NoError(t, l.SetLimit(scale(100)))
		require.Zero(t, l.Key("k").Peek(0).Remaining)
		require.False(t, l.Allow("k"))
		require.NoError(t, l.SetLimit(scale(1000)))
		require.Equal(t, 300, spentOf(l, "k"), "lowering the limit has forgotten nothing")
		for _, limit := range []Limit{Unlimited, DenyAll} {
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, limit == Unlimited, l.Allow("k"))
		}
		require.NoError(t, l.SetLimit(scale(1000)))
		require.Equal(t, 300, spentOf(l, "k"))
		require.Error(t, l.SetLimit(Limit{Rate: 1}))
		require.Equal(t, scale(1000), l.Config().Limit)
	})
}

func TestKeyLimit_KeepsWhatHasBeenSpent(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		require.True(t, l.AllowN("vip", 300))
		require.True(t, l.AllowN("other", 200))
		more := Per(5000, c.Limit.Period)
		require.NoError(t, l.Key("vip").SetLimit(more))
		require.Equal(t, more, l.Key("vip").Limit())
		require.Equal(t, Decision{Allowed: true, Limit: 5000, Remaining: 4699}.Remaining, l.Take("vip", 1).Remaining)
		require.True(t, l.AllowN("vip", 4699), "a cost above the others' burst")
		require.False(t, l.Allow("vip"))
		require.Equal(t, burstOf(l)-200, l.Key("other").Peek(0).Remaining)
		require.Equal(t, 1, l.Len())
		d := TakeAll(Charge{l.Key("other"), 1}, Charge{l.Key("vip"), 1})
		require.Equal(t, 1, d.Denied)
		l.Key("vip").Refund(4900)
		require.Equal(t, 4900, l.Key("vip").Peek(0).Remaining)
		l.Key("vip").ClearLimit()
		require.Equal(t, 100, spentOf(l, "vip"))
		require.Equal(t, 2, l.Len())

		require.NoError(t, l.Key("vip").SetLimit(DenyAll))
		require.False(t, l.Allow("vip"))
		require.NoError(t, l.Key("vip").SetLimit(Unlimited))
		require.True(t, l.AllowN("vip", 1<<30))
		l.Key("vip").ClearLimit()
		require.Equal(t, 100, spentOf(l, "vip"))
		require.True(t, l.Key("vip").Block(time.Hour))
		require.NoError(t, l.Key("vip").SetLimit(more))
		require.Equal(t, time.Hour, l.Take("vip", 1).RetryAfter)
		clock.Advance(time.Hour)
		require.Equal(t, 4999, l.Take("vip", 1).Remaining)
		l.Key("vip").Reset()
		require.Equal(t, 5000, l.Key("vip").Peek(0).Remaining)
	})
}

// TestKeyLimit_ExemptsAKeyBesideSoft: Unlimited and DenyAll have nothing beyond them.
func TestKeyLimit_ExemptsAKeyBesideSoft(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerMinute(60), Soft: 10})
	require.True(t, l.AllowN("k", 65))
	require.NoError(t, l.Key("k").SetLimit(Unlimited))
	require.Equal(t, Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, l.Take("k", 1))
	require.NoError(t, l.Key("k").SetLimit(DenyAll))
	require.Equal(t, Decision{RetryAfter: Never}, l.Take("k", 1))
	require.NoError(t, l.SetLimit(Unlimited))
	l.Key("k").ClearLimit()
	require.NoError(t, l.SetLimit(PerMinute(60)))
	d := l.Take("k", 1)
	require.True(t, d.OverSoft)
	require.Equal(t, 60, d.Limit)
}

// TestSetLimit_IdleIsFresh: what no longer counts does not begin to count again when the
// limit changes, whether or not the key has been swept.
func TestSetLimit_IdleIsFresh(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		long := c.Limit
		long.Period *= 1000
		for _, own := range []bool{false, true} {
			l, clock := newFrozen(t, c)
			set := func() { require.NoError(t, l.SetLimit(long)) }
			if own {
				set = func() { require.NoError(t, l.Key("k").SetLimit(long)) }
			}
			require.True(t, l.AllowN("k", 300))
			clock.Advance(l.Key("k").Peek(0).ResetAfter)
			before := l.Stats().Swept
			set()
			require.Equal(t, before+1, l.Stats().Swept)
			require.Zero(t, spentOf(l, "k"))
			require.Zero(t, l.Key("k").Peek(0).ResetAfter)
		}
	})
}

// TestSetLimit_WholeTablesAreIdle: tables that SetLimit leaves without a key lie where they were,
// and others of their shard keep theirs.
func TestSetLimit_WholeTablesAreIdle(t *testing.T) {
	if crowded() || splits() {
		return // it is about tables that have been split by their number of keys
	}
	const burst, keys = 5, 3 * fullIDs
	for _, a := range algorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(burst), Shards: 1, MaxKeys: -1})
		for i := range uint64(keys) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		clock.Advance(time.Minute)
		live := 0
		for i := range uint64(keys) {
			if k := l.KeyUint64(i); k.id>>63 == 1 {
				require.True(t, k.AllowN(burst))
				live++
			}
		}
		require.NoError(t, l.SetLimit(PerMinute(burst)))
		require.Equal(t, live, l.Len(), "%v", a)
		for i := range uint64(keys) {
			k := l.KeyUint64(i)
			require.Equal(t, k.id>>63 == 0, k.AllowN(burst), "%v", a)
		}
		require.Equal(t, keys, l.Len(), "%v", a)
	}
}

// TestSetLimit_OlderCallOnAnIdleKey: a call with an older time than the change is charged
// as at that of the change; else the units of then would have been there twice.
func TestSetLimit_OlderCallOnAnIdleKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.TTL = math.MaxInt64
		for _, name := range []string{"tracked", "swept"} {
			for _, own := range []bool{false, true} {
				l, clock := newFrozen(t, c)
				k, burst := l.Key("k"), burstOf(l)
				require.True(t, k.AllowN(burst))
				clock.Advance(k.Peek(0).ResetAfter)
				if name == "swept" {
					require.Equal(t, 1, l.Sweep())
				}
				if own {
					require.NoError(t, k.SetLimit(c.Limit))
				} else {
					require.NoError(t, l.SetLimit(c.Limit))
				}
				require.True(t, k.AllowAt(start.UnixNano(), burst))
				require.False(t, k.AllowN(burst), "%s, own %v: the older call was charged at its time", name, own)
			}
		}
	})
}

// TestSetLimit_BeyondTheEndOfTime: where the new windows' numbers have run out, the key's
// is the last one.
func TestSetLimit_BeyondTheEndOfTime(t *testing.T) {
	for _, c := range []Config{
		{Algorithm: FixedWindow}, {Algorithm: TokenBucketInterval}, {Algorithm: SlidingWindow},
	} {
		c.Limit, c.Clock = PerSecond(10), NewManualClock(time.Date(2250, 1, 1, 0, 0, 0, 0, time.UTC))
		l := mustNew(t, c)
		require.True(t, l.AllowN("k", 7))
		most := PerSecond(1<<31 - 2)
		if c.Algorithm == SlidingWindow {
			most = PerSecond(1<<30 - 1)
		}
		require.NoError(t, l.SetLimit(most))
		require.Equal(t, most.Rate-7, l.Key("k").Peek(0).Remaining, c.Algorithm)
		require.Equal(t, most.Rate-8, l.Take("k", 1).Remaining, c.Algorithm)
	}
}

// TestSetLimit_MoreIsOwedThanAWordCanTell: the key stays denied, and the word is no other's.
func TestSetLimit_MoreIsOwedThanAWordCanTell(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1 << 30)})
		require.True(t, l.AllowN("k", 1<<30))
		for _, limit := range []Limit{PerDay(1), PerHour(1), PerDay(1).WithBurst(1 << 10), Per(1, 1<<62)} {
			require.NoError(t, l.SetLimit(limit))
			require.Less(t, wordOf(l, l.Key("k").id), uint64(reserved))
			require.False(t, l.Allow("k"), "%v %v", a, limit)
			require.Zero(t, l.Key("k").Peek(0).Remaining)
			clock.Advance(time.Hour)
			require.False(t, l.Allow("k"), "%v %v", a, limit)
		}
	}
}

// TestSetLimit_MoreIsSpentThanAWordCanCount: what was spent in a day is too much for
// windows of a millisecond, whose numbers leave less room. It is no error, and as much as
// there is room for is kept.
func TestSetLimit_MoreIsSpentThanAWordCanCount(t *testing.T) {
	for _, c := range []Config{
		{Algorithm: FixedWindow}, {Algorithm: TokenBucketInterval}, {Algorithm: SlidingWindow},
	} {
		c.Limit = PerDay(1 << 30)
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("k", 1<<30))
		require.NoError(t, l.SetLimit(Per(6, 100*time.Microsecond)))
		require.False(t, l.Allow("k"))
		require.Equal(t, 6, l.Key("new").Peek(0).Remaining)
		require.NoError(t, l.SetLimit(Per(7, 100*time.Microsecond)))
		require.False(t, l.Allow("k"))
	}
}

// TestSetLimit_KeyAheadOfTheClock: what was charged with AllowAt in a window to come counts
// in the new window of that time.
func TestSetLimit_KeyAheadOfTheClock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Algorithm <= LeakyBucket && c.Algorithm != TokenBucketInterval {
			t.Skip("buckets owe at the clock's time")
		}
		for _, own := range []bool{false, true} {
			l, clock := newFrozen(t, c)
			ahead := clock.Now() + 10*int64(c.Limit.Period)
			ahead -= (ahead - int64(c.Offset)) % int64(c.Limit.Period) // the start of a window
			k, limit := l.Key("k"), Per(400, c.Limit.Period*3/2)
			require.True(t, k.AllowAt(ahead, 300))
			if own {
				require.NoError(t, k.SetLimit(limit))
			} else {
				require.NoError(t, l.SetLimit(limit))
			}
			require.Equal(t, 100, k.PeekAt(ahead, 0).Remaining)
		}
	})
}

// TestSetLimit_AsTakeAllTracksItsKeys: the charge is judged by the old limit or by the new
// one, not by the one as if its cost were within the other.
func TestSetLimit_AsTakeAllTracksItsKeys(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		changed := 0
		for reading := range 6 {
			clock := &hookedClock{ManualClock: NewManualClock(start)}
			c.Clock = clock
			l := mustNew(t, c)
			small := Per(10, c.Limit.Period)
			old := AllDecision{Allowed: true, Denied: -1, Remaining: burstOf(l) - 300}
			var d AllDecision
			n := 0
			var hook func() // at the given reading
			hook = func() {
				if n++; n <= reading {
					clock.hook.Store(&hook)
					return
				}
				var done atomic.Bool
				go func() { assertNoError(t, l.SetLimit(small)); done.Store(true) }()
				// At the first reading the call holds nothing. Later SetLimit may have to wait for it.
				for i := 0; (i < 5000 || reading == 0) && !done.Load(); i++ {
					runtime.Gosched()
				}
			}
			clock.hook.Store(&hook)
			d = TakeAll(Charge{l.Key("k"), 300})
			clock.hook.Store(nil)
			require.NoError(t, l.SetLimit(small))
			if d.Allowed {
				require.Equal(t, old, d)
				require.Zero(t, l.Key("k").Peek(0).Remaining)
			} else {
				require.Equal(t, AllDecision{Denied: 0, Remaining: 10, RetryAfter: Never}, d)
				require.Equal(t, 10, l.Key("k").Peek(0).Remaining)
				changed++
			}
		}
		require.Positive(t, changed)
	})
}

// TestRestore_KeyWhoseMarkHasStayed: its state is in a cell, and the table has its id once.
func TestRestore_KeyWhoseMarkHasStayed(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		l, _ := newFrozen(t, c)
		require.True(t, l.Allow("k"))
		require.True(t, l.Allow("other"))
		data := snapshotOf(t, l)
		require.NoError(t, l.Key("k").SetLimit(Per(7, c.Limit.Period)))
		l.Key("k").Reset()
		l.Key("k").ClearLimit() // without state, so that only its mark is left
		require.Equal(t, 1, l.Len())
		l.decided.Store(false) // as if it had been decided while Restore reads
		require.NoError(t, l.Restore(bytes.NewReader(data)))
		require.Equal(t, 1, spentOf(l, "k"))
	})
}
