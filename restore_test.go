package sluice

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/snapfile"
)

func TestRestore_NeedsRoom(t *testing.T) {
	for _, o := range untracking {
		c := Config{Limit: PerMinute(60), Hash: HashStable, Shards: 1, MaxKeys: 10, Overflow: o}
		l, clock := newFrozen(t, c)
		c.Clock = clock
		for i := range 10 {
			l.KeyUint64(uint64(i)).AllowN(1 + i)
		}
		data := snapshotOf(t, l)
		require.Equal(t, 10, restoredFrom(t, c, data).Len())
		c.MaxKeys = 7
		target := mustNew(t, c)
		p := target.current.Load()
		err := target.Restore(bytes.NewReader(data))
		requireUntouched(t, target, p, err)
		require.ErrorContains(t, err, "a shard has room for 7")
		require.NotErrorIs(t, err, ErrBadSnapshot)
		// Keys with a limit of their own need none of it.
		for i := range 3 {
			require.NoError(t, target.KeyUint64(uint64(i)).SetLimit(PerMinute(30)))
		}
		require.NoError(t, target.Restore(bytes.NewReader(data)))
		require.Equal(t, 7, target.Len())
		require.Equal(t, 27, target.KeyUint64(2).Peek(0).Remaining)
		require.Zero(t, target.Stats().Untracked)
		// Nor do those that have become idle meanwhile.
		clock.Advance(3 * sec)
		require.Equal(t, 7, restoredFrom(t, c, data).Len())
	}
}

// TestRestore_CrowdsNoTable: a snapshot has its keys in the order of their homes. Restored in
// that order, each would be put at the end of a probe as long as the table.
func TestRestore_CrowdsNoTable(t *testing.T) {
	if crowded() || splits() {
		return // all probes are long, or those of a few keys
	}
	c := Config{Limit: PerMinute(60), Hash: HashStable, Shards: 1, Clock: NewManualClock(start)}
	l := mustNew(t, c)
	for i := range uint64(10_000) {
		l.KeyUint64(i).Allow()
	}
	var restored *Limiter
	longest := 0.0
	c.Clock = clockFunc(func() int64 {
		if restored != nil && restored.Len()%1000 == 999 {
			longest = max(longest, probeOf(restored.tableOf(0)))
		}
		return start.UnixNano()
	})
	restored = mustNew(t, c)
	require.NoError(t, restored.Restore(bytes.NewReader(snapshotOf(t, l))))
	require.Equal(t, 10_000, restored.Len())
	require.Positive(t, longest)
	require.Less(t, longest, 8.0, "slots a probe")
}

// TestRestore_CrowdsNoCells: where each key has another limit, and so a section of its own.
func TestRestore_CrowdsNoCells(t *testing.T) {
	const n = 400
	c := Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1, Hash: HashStable}
	orig, _ := newFrozen(t, c)
	for i := range uint64(n) {
		require.NoError(t, orig.KeyUint64(i).SetLimit(PerHour(10+int(i))))
	}
	clock := &hookedClock{ManualClock: NewManualClock(start)}
	c.Clock = clock
	l := mustNew(t, c)
	upper, all := 0, 0
	var look func()
	look = func() {
		clock.hook.Store(&look)
		if l.kept.Load() != n/2 {
			return
		}
		upper, all = 0, 0
		l.cellsOf(0, func(c *cell) {
			upper += int(c.id.Load() >> 63)
			all++
		})
	}
	clock.hook.Store(&look)
	require.NoError(t, l.Restore(bytes.NewReader(snapshotOf(t, orig))))
	require.Equal(t, n/2, all)
	require.Greater(t, upper, all/4, "they come in no order")
	require.Less(t, upper, all*3/4)
}

// TestRestore_EvictsTheLowest: as ever, who owes most stays.
func TestRestore_EvictsTheLowest(t *testing.T) {
	if crowded() || splits() {
		return // it is about shards of one table each
	}
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.Hash, c.Shards = HashStable, 1
		l, clock := newFrozen(t, c)
		for i := range 400 {
			l.KeyUint64(uint64(i)).AllowN(1 + i)
		}
		c.Clock, c.MaxKeys = clock, 100
		other := restoredFrom(t, c, snapshotOf(t, l))
		require.LessOrEqual(t, other.Len(), 100)
		require.Equal(t, uint64(400-other.Len()), other.Stats().Evicted)
		for i := 350; i < 400; i++ {
			require.Equal(t, l.KeyUint64(uint64(i)).Peek(1), other.KeyUint64(uint64(i)).Peek(1), "key %d", i)
		}
	})
}

// TestRestore_KeepsTheStricterState of a key that has been charged already. Keys with a
// limit of their own are not among those that Restore fails for.
func TestRestore_KeepsTheStricterState(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, before := range []int{5, 50} {
			for _, now := range []int{4, 40} {
				c := c
				c.Hash = HashStable
				l, clock := newFrozen(t, c)
				c.Clock = clock
				l.AllowN("k", before)
				data := snapshotOf(t, l)
				clock.Advance(ms)
				other := mustNew(t, c)
				require.NoError(t, other.Key("k").SetLimit(c.Limit))
				other.AllowN("k", now)
				other.decided.Store(false) // as if it had been decided while Restore reads
				require.NoError(t, other.Restore(bytes.NewReader(data)))
				require.Equal(t, max(before, now), spentOf(other, "k"))
				require.True(t, other.Key("k").Block(time.Hour))
				require.NoError(t, other.Restore(bytes.NewReader(data)))
				require.Equal(t, time.Hour, other.Key("k").Peek(1).RetryAfter)
			}
		}
	})
}

// TestRestore_ForgetsReservations: what the key has been charged since the process began is
// not part of the state that takes its place, and must not be given back from that.
func TestRestore_ForgetsReservations(t *testing.T) {
	for _, before := range []int{30, 3} {
		c := Config{Limit: PerMinute(60), Hash: HashStable}
		l, clock := newFrozen(t, c)
		c.Clock = clock
		l.AllowN("k", before)
		data := snapshotOf(t, l)
		other := mustNew(t, c)
		require.NoError(t, other.Key("k").SetLimit(PerMinute(60)))
		r, err := other.Key("k").Reserve(10, 0)
		require.NoError(t, err)
		other.decided.Store(false) // as if it had been reserved while Restore reads
		require.NoError(t, other.Restore(bytes.NewReader(data)))
		r.Cancel()
		want := before
		if before < 10 {
			want = 0 // the reservation's own state has stayed
		}
		require.Equal(t, want, spentOf(other, "k"))
	}
}

// TestRestore_OlderCallOnAForgottenKey: Restore leaves out what is idle, so it forgets as
// a sweep does, and an older call must not find the key fresh at its own time.
func TestRestore_OlderCallOnAForgottenKey(t *testing.T) {
	c := Config{Limit: PerMinute(60), Hash: HashStable, Shards: 1}
	l, clock := newFrozen(t, c)
	c.Clock = clock
	before := clock.Now()
	l.AllowN("k", 60)
	require.NoError(t, l.Key("vip").SetLimit(PerMinute(60)))
	l.AllowN("vip", 60)
	early := snapshotOf(t, l)
	clock.Advance(time.Minute)
	for _, data := range [][]byte{early, snapshotOf(t, l)} {
		other := mustNew(t, c)
		require.NoError(t, other.Key("vip").SetLimit(PerMinute(60)))
		require.NoError(t, other.Restore(bytes.NewReader(data)))
		for _, key := range []string{"k", "vip"} {
			require.True(t, other.Key(key).AllowAt(before, 60))
			require.False(t, other.Key(key).AllowAt(clock.Now(), 1), "%s has been given a burst", key)
		}
	}
}

// TestRestore_BlockedForEver: the last word that a block can be.
func TestRestore_BlockedForEver(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		l, clock := newFrozen(t, c)
		c.Clock = clock
		require.True(t, l.Key("k").Block(math.MaxInt64))
		require.Equal(t, l.Key("k").Peek(1), restoredFrom(t, c, snapshotOf(t, l)).Key("k").Peek(1))
	})
}

// TestRestore_ForgivesNothingBeyondALowerLimit: what a key has spent beyond the limit it
// is restored under it owes, and words of that limit alone could not tell it.
func TestRestore_ForgivesNothingBeyondALowerLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		high, low := c.Limit, Per(30, c.Limit.Period)
		for _, lowered := range []bool{true, false} { // before the snapshot, or by the restart
			l, clock := newFrozen(t, c)
			c.Clock = clock
			require.True(t, l.AllowN("k", 300))
			if lowered {
				require.NoError(t, l.SetLimit(low))
			}
			data := snapshotOf(t, l)
			require.NoError(t, l.SetLimit(low))
			next := c
			next.Limit = low
			other := restoredFrom(t, next, data)
			for _, step := range []func(l *Limiter){
				func(l *Limiter) { l.Key("k").Refund(30) },
				func(*Limiter) { clock.Advance(high.Period) },
				func(l *Limiter) { require.NoError(t, l.SetLimit(high)) },
			} {
				step(l)
				step(other)
				require.Equal(t, l.Key("k").Peek(1), other.Key("k").Peek(1))
			}
		}
	})
}

// TestRestore_UnderNoLimit: a limiter that has never had a limit to keep has no words of
// its own, and keeps those of the snapshot.
func TestRestore_UnderNoLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		for _, limit := range []Limit{DenyAll, Unlimited} {
			l, clock := newFrozen(t, c)
			require.True(t, l.AllowN("k", 300))
			require.True(t, l.AllowN("vip", 200))
			data := snapshotOf(t, l)
			next := c
			next.Limit, next.Clock, next.Offset = limit, clock, 0
			if c.Offset > 0 {
				next.Offset = c.Offset % time.Second // the period of both
			}
			other := mustNew(t, next)
			require.NoError(t, other.Key("vip").SetLimit(limit))
			require.NoError(t, other.Restore(bytes.NewReader(data)))
			require.Equal(t, limit == Unlimited, other.Allow("k"))

			small := c // one that has had a limit, under which words count less far
			small.Limit, small.Clock = Per(10, c.Limit.Period), clock
			after := mustNew(t, small)
			require.NoError(t, after.SetLimit(limit))
			require.NoError(t, after.Restore(bytes.NewReader(data)))
			require.NoError(t, after.SetLimit(c.Limit))
			require.Equal(t, 300, spentOf(after, "k"))

			if next.Offset == c.Offset {
				require.NoError(t, other.SetLimit(c.Limit))
				require.Equal(t, 300, spentOf(other, "k"))
				other.Key("vip").ClearLimit()
				require.Equal(t, 200, spentOf(other, "vip"))
			}
		}
	})
}

// TestKeyLimit_OfALimiterWithoutWords: main, or an old limit of a key, may never have had a
// limit to keep, or words that count as far as those of the key.
func TestKeyLimit_OfALimiterWithoutWords(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Offset >= time.Second {
			c.Offset = 0
		}
		limit := c.Limit
		for _, none := range []Limit{DenyAll, Unlimited} {
			c.Limit = none
			l, _ := newFrozen(t, c)
			require.NoError(t, l.Key("vip").SetLimit(limit))
			require.True(t, l.AllowN("vip", 300))
			l.Key("vip").ClearLimit()
			require.Equal(t, none == Unlimited, l.Allow("vip"))
			require.NoError(t, l.Key("vip").SetLimit(limit))
			require.Equal(t, 300, spentOf(l, "vip"))

			l, _ = newFrozen(t, c)
			require.NoError(t, l.Key("old").SetLimit(none))
			require.NoError(t, l.Key("older").SetLimit(Per(1, limit.Period)))
			require.NoError(t, l.SetLimit(limit))
			require.True(t, l.AllowN("k", 300))
			for _, own := range []Limit{none, Per(1, limit.Period)} {
				require.NoError(t, l.Key("k").SetLimit(own))
				l.Key("k").ClearLimit()
				require.Equal(t, 300, spentOf(l, "k"))
			}
		}
	})
}

// TestSnapshot_KeysGoToTheLimitThatTheyHave in the new limiter, whatever they had, and bring
// their own where they have none.
func TestSnapshot_KeysGoToTheLimitThatTheyHave(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		of := func(n int) Limit { return Per(n, c.Limit.Period) }
		l, clock := newFrozen(t, c)
		require.NoError(t, l.Key("kept").SetLimit(of(900)))
		require.NoError(t, l.Key("changed").SetLimit(of(900)))
		require.NoError(t, l.Key("brought").SetLimit(of(400)))
		for _, key := range []string{"kept", "changed", "brought", "new", "none"} {
			require.True(t, l.AllowN(key, 300))
		}
		c.Clock = clock
		other := mustNew(t, c)
		require.NoError(t, other.Key("kept").SetLimit(of(900)))
		require.NoError(t, other.Key("changed").SetLimit(of(1000)))
		require.NoError(t, other.Key("new").SetLimit(of(700)))
		require.NoError(t, other.Restore(bytes.NewReader(snapshotOf(t, l))))
		burst := burstOf(l)
		for key, left := range map[string]int{"kept": 600, "changed": 700, "brought": 100, "new": 400, "none": burst - 300} {
			require.Equal(t, left, other.Key(key).Peek(0).Remaining, key)
		}
		require.Equal(t, 1, other.Len())
	})
}

// TestRestore_KeepsTheLaterOfTwoStatesAlike: as much against the key, for longer.
func TestRestore_KeepsTheLaterOfTwoStatesAlike(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		for _, first := range []bool{true, false} {
			l, clock := newFrozen(t, c)
			c.Clock = clock
			other := mustNew(t, c)
			require.NoError(t, other.Key("k").SetLimit(c.Limit))
			early, late := l, other
			if first {
				early, late = other, l
			}
			require.True(t, early.AllowN("k", 5))
			clock.Advance(ms)
			require.True(t, late.AllowN("k", 5))
			want := late.Key("k").Peek(1)
			other.decided.Store(false) // as if it had been decided while Restore reads
			require.NoError(t, other.Restore(bytes.NewReader(snapshotOf(t, l))))
			require.Equal(t, want, other.Key("k").Peek(1))
		}
	})
}

// TestRestore_CountsAsFarAsTheKeysOfEachLimit: the limit of a key as far as its keys have spent, but no
// log of main's gets the room of the largest customer that has left.
func TestRestore_CountsAsFarAsTheKeysOfEachLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		of := func(n int) Limit { return Per(n, c.Limit.Period) }
		c.Limit = of(10)
		l, clock := newFrozen(t, c)
		c.Clock = clock
		require.NoError(t, l.Key("vip").SetLimit(of(1000)))
		require.True(t, l.AllowN("vip", 700))
		require.True(t, l.Allow("k"))
		data := snapshotOf(t, l)

		other := mustNew(t, c)
		require.NoError(t, other.Key("vip").SetLimit(of(5)))
		require.NoError(t, other.Restore(bytes.NewReader(data)))
		require.NoError(t, other.Key("vip").SetLimit(of(1000)))
		require.Equal(t, 700, spentOf(other, "vip"))
		require.Equal(t, 10, other.current.Load().reach)

		other = restoredFrom(t, c, data)
		if c.Algorithm == SlidingLog {
			require.Equal(t, 10, other.current.Load().reach)
		}
		require.Equal(t, 300, other.Key("vip").Peek(0).Remaining)
		other.Key("vip").ClearLimit()
		require.False(t, other.Allow("vip"))

		// Room that main has had is there for them, though no other key needs it.
		l.Key("k").Reset()
		require.NoError(t, l.SetLimit(of(1000)))
		require.NoError(t, l.SetLimit(of(10)))
		other = restoredFrom(t, c, snapshotOf(t, l))
		other.Key("vip").ClearLimit()
		require.NoError(t, other.SetLimit(of(1000)))
		require.Equal(t, 700, spentOf(other, "vip"))
	})
}

// TestRestore_OfAKeysLimitUnderNoLimit: neither the snapshot nor the limiter has words but
// those of the limit of a key.
func TestRestore_OfAKeysLimitUnderNoLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		limit := c.Limit
		c.Hash, c.Limit = HashStable, DenyAll
		if c.Offset >= time.Second {
			c.Offset = 0
		}
		l, clock := newFrozen(t, c)
		c.Clock = clock
		require.NoError(t, l.Key("vip").SetLimit(limit))
		require.True(t, l.AllowN("vip", 300))
		other := restoredFrom(t, c, snapshotOf(t, l))
		require.Equal(t, 300, spentOf(other, "vip"))
		other.Key("vip").ClearLimit()
		require.False(t, other.Allow("vip"))
		require.NoError(t, other.Key("vip").SetLimit(limit))
		require.Equal(t, 300, spentOf(other, "vip"))
	})
}

// TestRestore_RefusesLimitsThatCannotBe, in a snapshot whose checksum is right.
func TestRestore_RefusesLimitsThatCannotBe(t *testing.T) {
	restore := func(p snapfile.Source) error {
		b, err := binary.Append(append([]byte(snapfile.Magic), snapfile.Version, 1), binary.LittleEndian, snapfile.Header{Source: p})
		require.NoError(t, err)
		sealed := sealed(append(b, make([]byte, 4+1+8)...)) // no entries, no more sections, checksum
		return mustNew(t, Config{Limit: PerSecond(1), Hash: HashStable}).Restore(bytes.NewReader(sealed))
	}
	require.NoError(t, restore(snapfile.Source{Kind: ofKey, LimitRate: 5, LimitPeriod: int64(sec), LimitBurst: 5}))
	for want, limit := range map[string]snapfile.Source{
		"its kind of limit is 3":               {Kind: 3, LimitRate: 5, LimitPeriod: int64(sec), LimitBurst: 5},
		"-1 is out of range":                   {Kind: ofKey, LimitRate: -1, LimitPeriod: int64(sec), LimitBurst: 5},
		"-9223372036854775808 is out of range": {Kind: ofKey, LimitRate: 5, LimitPeriod: int64(sec), LimitBurst: math.MinInt64},
		"a key's limit cannot be kept":         {Kind: ofCall, LimitRate: 5, LimitPeriod: 0, LimitBurst: 5},
	} {
		err := restore(limit)
		require.ErrorIs(t, err, ErrBadSnapshot, want)
		require.ErrorContains(t, err, want)
	}
}

// TestRestore_KeyLimitOfATrackedKey: a key that has been charged here gets the limit that the
// snapshot has for it, and owes the more of both.
func TestRestore_KeyLimitOfATrackedKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		orig, _ := newFrozen(t, c)
		own := c.Limit
		own.Rate, own.Burst = 2*own.Rate, 2*own.Burst
		require.NoError(t, orig.Key("k").SetLimit(own))
		burst := orig.Key("k").Peek(0).Limit
		require.True(t, orig.AllowN("k", burst-1))
		l, _ := newFrozen(t, c)
		require.True(t, l.Allow("k"))
		require.ErrorContains(t, l.Restore(bytes.NewReader(snapshotOf(t, orig))), "has decided before")
		require.Equal(t, c.Limit, l.Key("k").Limit())
		l.decided.Store(false) // as if it had been decided while Restore reads
		require.NoError(t, l.Restore(bytes.NewReader(snapshotOf(t, orig))))
		require.Equal(t, own, l.Key("k").Limit())
		require.Equal(t, 1, l.Key("k").Peek(0).Remaining)
	})
}

// TestRestore_TheLastRoomIsTakenMeanwhile: a key that then has none is left out, and counted.
func TestRestore_TheLastRoomIsTakenMeanwhile(t *testing.T) {
	for _, o := range untracking {
		c := Config{Limit: PerMinute(60), Hash: HashStable, Shards: 1, MaxKeys: 1, Overflow: o}
		from, clock := newFrozen(t, c)
		c.Clock = clock
		k := from.Key("k")
		require.True(t, k.AllowN(9))
		l := mustNew(t, c)
		require.True(t, l.Allow("first"))
		l.restore(k.id, false, l.own.Load(), from.policyOf(k.id), state{word: wordOf(from, k.id)})
		require.Equal(t, 1, l.Len())
		require.Equal(t, 1, spentOf(l, "first"))
		require.Zero(t, spentOf(l, "k"))
		require.Equal(t, uint64(1), l.Stats().Untracked)
	}
}
