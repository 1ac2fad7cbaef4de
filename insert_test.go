package sluice

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGrowth_BusyKeysThatAreIdleInBetweenStay: at a high rate a key is idle again
// within nanoseconds. Only the TTL keeps it in the table.
func TestGrowth_BusyKeysThatAreIdleInBetweenStay(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1_000_000_000)})
	for range 50 {
		for i := range 200 {
			require.True(t, l.Allow(fmt.Sprint("key", i)))
			clock.Advance(time.Microsecond) // all keys are idle whenever a table grows
		}
	}
	require.Equal(t, 200, l.Len())
	require.Zero(t, l.Stats().Swept)
}

// TestGrowth_ClockAheadOfTheCallers: calls with recorded times, on a limiter whose
// clock is years ahead, keep their state through growth.
func TestGrowth_ClockAheadOfTheCallers(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		recorded := clock.Now() - int64(10*365*day)
		for i := range uint64(300) {
			require.True(t, l.KeyUint64(i).AllowAt(recorded, burstOf(l)))
		}
		for i := range uint64(300) {
			require.False(t, l.KeyUint64(i).AllowAt(recorded, 1))
		}
		// Growth has forgotten nothing, so a still older time counts as it is.
		fresh := l.Key("fresh").TakeAt(recorded-int64(time.Hour), 1).ResetAfter
		require.LessOrEqual(t, fresh, 2*c.Limit.Period)
	})
}

// TestGrowth_MoreKeysStayThanExpected: idle keys that are charged between the
// count and the rebuild must still fit.
func TestGrowth_MoreKeysStayThanExpected(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards = 1
		l, _ := newFrozen(t, c)
		fill(l, "key", 300)
		s := &l.shards[0]
		s.mu.Lock()
		dropped := l.rebuildLocked(s, 0, 1, func(*policy, state) bool { return false })
		s.mu.Unlock()
		require.Zero(t, dropped)
		require.Equal(t, 300, l.Len())
		for i := range 300 {
			require.Equal(t, burstOf(l)-1, l.Key(fmt.Sprint("key", i)).Peek(0).Remaining)
		}
		require.Equal(t, 300, fill(l, "more", 300))
	})
}

// TestGrowth_IdleKeysComeBackWhileTheyAreCounted: all four keys of a full table look
// idle, and are charged before they are frozen. The new table must still have room
// for the fifth.
func TestGrowth_IdleKeysComeBackWhileTheyAreCounted(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(2), TTL: 1, Shards: 1})
	fill(l, "old", 4)
	clock.Advance(10 * time.Second)
	plain, calls := l.policyOf(0).wide, 0
	setAlgorithm(l, nil, lookedAtWide{plain, func() {
		if calls++; calls == 4 {
			fill(l, "old", 4)
		}
	}})
	require.True(t, l.Allow("fifth"))
	setAlgorithm(l, nil, plain)
	require.Equal(t, 5, l.Len())
	for i := range 4 {
		require.Equal(t, 1, l.Key(fmt.Sprint("old", i)).Peek(0).Remaining)
	}
}

// TestGrowth_LeavesIdleKeysBehindAfterASweepThatDidNot: a table that has been looked at is not a
// young one.
func TestGrowth_LeavesIdleKeysBehindAfterASweepThatDidNot(t *testing.T) {
	if crowded() || splits() {
		return // it is about one table
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), TTL: 10 * time.Second, Shards: 1, MaxKeys: -1})
	fill(l, "old", 1000)
	clock.Advance(10 * time.Second)
	fill(l, "one", 1)
	clock.Advance(2 * time.Second)
	fill(l, "new", 4000)
	require.Equal(t, 4001, l.Len())
	require.Equal(t, uint64(1000), l.Stats().Swept)
}

// TestInsert_GapOfBefore: where a probe ended says nothing once the slot has been taken, by the
// key or by another one, or the table has been replaced.
func TestInsert_GapOfBefore(t *testing.T) {
	const id = 0x123456789
	for _, c := range []struct {
		meanwhile string
		happens   func(l *Limiter)
		out       outcome
	}{
		{"nothing", func(*Limiter) {}, admitted},
		{"the key comes", func(l *Limiter) { l.KeyHash(id).Allow() }, retrying},
		{"another key of the same home comes", func(l *Limiter) { l.KeyHash(id ^ 1<<40).Allow() }, admitted},
		{"the key comes, and the table grows", func(l *Limiter) { l.KeyHash(id).Allow(); fill(l, "key", 300) }, retrying},
		{"the table grows", func(l *Limiter) { fill(l, "key", 300) }, admitted},
		{"the key comes and goes", func(l *Limiter) { l.KeyHash(id).Allow(); l.KeyHash(id).Reset(); l.Sweep() }, admitted},
	} {
		t.Run(c.meanwhile, func(t *testing.T) {
			forEveryLayout(t, func(t *testing.T, config Config) {
				config.Shards = 1
				l, clock := newFrozen(t, config)
				fill(l, "other", 1)
				tab := l.tableOf(id)
				e, end := tab.lookup(id)
				require.Nil(t, e)
				c.happens(l)
				left := l.KeyHash(id).Peek(0).Remaining
				_, out := l.insert(l.current.Load(), id, clock.Now(), 1, nil, gap{tab, end})
				require.Equal(t, c.out, out)
				if out == admitted {
					left--
				}
				require.Equal(t, left, l.KeyHash(id).Peek(0).Remaining)
			})
		})
	}
}

// TestStrange_GapOfBefore: a probe that found nothing in a table that has been replaced since, or
// that is under another policy, does not tell that a key is not tracked.
func TestStrange_GapOfBefore(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards = 1
		l, _ := newFrozen(t, c)
		fill(l, "other", 1)
		k, p := l.Key("k"), l.current.Load()
		tab := l.tableOf(k.id)
		_, end := tab.lookup(k.id)
		seen := gap{tab, end}
		require.True(t, l.strange(p, k.id, seen))
		require.True(t, l.strange(p, k.id, gap{}))
		require.False(t, l.strange(mustNew(t, c).current.Load(), k.id, seen), "another policy")
		require.True(t, k.Allow())
		require.False(t, l.strange(p, k.id, gap{}))
		fill(l, "key", 300)
		require.False(t, l.strange(p, k.id, seen), "it has come, and been moved")
	})
}

// TestDenyNew_EverybodyPays for looks, also who puts a key that was kept on a limit of its own among the others.
func TestDenyNew_EverybodyPays(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	const share = 1000
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: share, Shards: 1, Overflow: OverflowDenyNew})
	for i := range 100 {
		name := fmt.Sprint("kept", i)
		require.NoError(t, l.Key(name).SetLimit(PerHour(7)))
		require.True(t, l.Allow(name))
	}
	for i := range uint64(share) {
		require.True(t, l.KeyUint64(i).Allow())
	}
	s := &l.shards[0]
	require.False(t, l.Allow("new"))
	for i := range 100 {
		was := s.unpaid.Load()
		require.Positive(t, was)
		l.Key(fmt.Sprint("kept", i)).ClearLimit()
		require.False(t, l.Allow(fmt.Sprint("new", i)))
		require.GreaterOrEqual(t, s.unpaid.Load(), was-2, "two have paid for a look, or less")
		require.Less(t, s.unpaid.Load(), was)
	}
}

// TestDenyNew_KeysThatStayAreNotTurnedAway: a key with a limit of its own takes none of the room.
func TestDenyNew_KeysThatStayAreNotTurnedAway(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: 1000, Shards: 1, Overflow: OverflowDenyNew})
	require.NoError(t, l.Key("kept").SetLimit(PerHour(7)))
	for i := range uint64(1000) {
		require.True(t, l.KeyUint64(i).Allow())
	}
	require.False(t, l.Allow("new"))
	require.Positive(t, l.shards[0].unpaid.Load(), "new keys are turned away at once")
	require.True(t, l.Allow("kept"))
	require.False(t, l.Allow("another"))
}

// TestOverflow_ARestIsAsLongAsTheLookIsWorth: the looks that nobody has paid for take a tenth of a
// processor at most, however many tables there are.
func TestOverflow_ARestIsAsLongAsTheLookIsWorth(t *testing.T) {
	if crowded() || splits() {
		return // probes of 20,000 slots, or thousands of tables
	}
	const share, shards = 20_000, 2
	for _, o := range []Overflow{OverflowEvictSoonest, OverflowDenyNew, OverflowAdmitNew} {
		l, clock := newFrozen(t, Config{Limit: PerHour(10), MaxKeys: share * shards, Shards: shards, Overflow: o})
		s, next := &l.shards[0], uint64(0)
		call := func() {
			for next++; l.shardOf(l.KeyUint64(next).id) != s; next++ {
			}
			l.KeyUint64(next).Allow()
		}
		for s.len() < share {
			call()
		}
		clock.Advance(time.Second)
		for range 20 {
			require.LessOrEqual(t, s.restedAt.Load(), clock.Now())
			call()
			rest := time.Duration(s.restedAt.Load() - clock.Now())
			require.Greater(t, rest, fullIDs*shards*scanPause, "it is of one look")
			require.LessOrEqual(t, rest, maxLooks*fullIDs*shards*scanPause, "%v", o)
			for clock.Advance(rest); s.len() < share; { // what has been evicted
				call()
			}
		}
	}
}
