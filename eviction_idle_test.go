package sluice

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests in this file are about idle keys that rank above live ones, in a full shard that is not
// rested. They go first all the same: their number is what the batch of live ones is short of.

func unrested(l *Limiter) { l.shards[0].restedAt.Store(l.clock.Now() + int64(time.Hour)) }

// TestEvictSoonest_BlocksThatAreOverGoFirst: blocked keys rank last, whatever the time.
func TestEvictSoonest_BlocksThatAreOverGoFirst(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Shards = 100, 1
		l, clock := newFrozen(t, c)
		fill(l, "live", 80)
		for i := range 20 {
			require.True(t, l.Block(fmt.Sprint("blocked", i), 1))
		}
		clock.Advance(2)
		unrested(l)
		fill(l, "new", 20)
		require.Equal(t, Stats{Keys: 95, Evicted: 5, Swept: 20}, l.Stats())
	})
}

// TestEvictSoonest_BlocksThatAreOverPayForNothing: were they spared, each new key would get one
// live key's room, and a rebuild.
func TestEvictSoonest_BlocksThatAreOverPayForNothing(t *testing.T) {
	if crowded() || splits() {
		return // probes of 1,600 slots, or other batches
	}
	const share, blocked = 1600, 1600/roomFraction - 1
	l, clock := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: share, Shards: 1})
	for i := range uint64(blocked) {
		require.True(t, l.KeyUint64(i).Block(1))
	}
	for i := range uint64(share - blocked) {
		require.True(t, l.KeyUint64(blocked+i).Allow())
	}
	clock.Advance(2)
	unrested(l)
	was, rebuilds := l.tableOf(0), 0
	for i := range uint64(300) {
		require.True(t, l.KeyUint64(share+i).Allow())
		if next := l.tableOf(0); next != was {
			was, rebuilds = next, rebuilds+1
		}
	}
	require.Equal(t, 1, rebuilds)
	require.Equal(t, Stats{Keys: share - blocked - 1 + 300, Evicted: 1, Swept: blocked}, l.Stats())
}

// TestEvictSoonest_IdleKeysOfFinerTicksGoFirst: under Unlimited the ranks of keys with limits of their
// own are ticks of several lengths.
func TestEvictSoonest_IdleKeysOfFinerTicksGoFirst(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	l, clock := newFrozen(t, Config{Limit: Unlimited, MaxKeys: 100, Shards: 1})
	allow := func(name string, limit Limit) {
		k, err := l.Key(name).WithLimit(limit)
		require.NoError(t, err)
		require.True(t, k.Allow())
	}
	for i := range 85 {
		allow(fmt.Sprint("plain", i), PerSecond(1))
	}
	for i := range 15 {
		allow(fmt.Sprint("fine", i), PerSecond(3))
	}
	clock.Advance(500 * time.Millisecond) // fine is idle, plain is not
	unrested(l)
	allow("new", PerSecond(1))
	require.Equal(t, Stats{Keys: 76, Evicted: 10, Swept: 15}, l.Stats())
}

// TestEvictSoonest_IdleKeysGoBeforeLiveOnesOfNothing: a key that has been refunded in a window that is
// to come, for a call of before, is live, and has no units against it.
func TestEvictSoonest_IdleKeysGoBeforeLiveOnesOfNothing(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	edge := time.Unix(1_790_000_100, 0).Truncate(time.Minute)
	clock := NewManualClock(edge.Add(-90 * time.Second))
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerMinute(100), Clock: clock, MaxKeys: 100, Shards: 1, TTL: time.Hour})
	fill(l, "idle", 20)
	clock.Set(edge.Add(time.Second))
	for i := range 80 {
		k := l.Key(fmt.Sprint("later", i))
		require.True(t, k.Allow())
		k.Refund(1)
	}
	unrested(l)
	require.True(t, l.Key("new").AllowAt(edge.Add(-time.Second).UnixNano(), 1))
	require.Equal(t, Stats{Keys: 76, Evicted: 5, Swept: 20}, l.Stats())
}

// TestEvictSoonest_IdleKeysAreEnough where all live ones are charged while they are being ranked.
func TestEvictSoonest_IdleKeysAreEnough(t *testing.T) {
	if splits() {
		return // more is frozen than is listed in one go
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1_000_000), MaxKeys: 100, Shards: 1})
	fill(l, "old", 80)
	for i := range 20 {
		require.True(t, l.Block(fmt.Sprint("blocked", i), 1))
	}
	clock.Advance(2)
	unrested(l)
	plain, listed := l.policyOf(0).alg, 0
	setAlgorithm(l, chargingRank{plain, func() {
		if listed++; listed <= 80 {
			fill(l, "old", 80)
		}
	}}, nil)
	require.True(t, l.Take("new", 1).Allowed)
	setAlgorithm(l, plain, nil)
	require.Equal(t, Stats{Keys: 81, Swept: 20}, l.Stats())
}

// TestTurnsAway_NoKeyThatHasCome since it was looked for: under OverflowAdmitNew it would pass
// without a charge.
func TestTurnsAway_NoKeyThatHasCome(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	for _, o := range untracking {
		l, clock := newFrozen(t, Config{Limit: PerHour(1), MaxKeys: 100, Shards: 1, Overflow: o})
		for i := range uint64(99) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		k, p := l.Key("k"), l.current.Load()
		tab := l.tableOf(k.id) // there is room
		_, end := tab.lookup(k.id)
		require.True(t, k.Allow()) // takes it
		fill(l, "other", 3)
		require.Positive(t, l.shards[0].unpaid.Load())
		require.Same(t, tab, l.tableOf(k.id))
		_, out := l.insert(p, k.id, clock.Now(), 1, nil, gap{tab, end})
		require.Equal(t, retrying, out)
	}
}

// TestOverflow_AFreeLookSettlesTheAccount: the table is not looked at again at the same instant.
func TestOverflow_AFreeLookSettlesTheAccount(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	const share = 100
	for _, o := range untracking {
		l, clock := newFrozen(t, Config{Limit: PerHour(1), MaxKeys: share, Shards: 1, Overflow: o})
		for i := range uint64(share + 20) {
			l.KeyUint64(i).Allow()
		}
		clock.Advance(share * scanPause)
		l.Allow("new")
		require.EqualValues(t, share/roomFraction-1, l.shards[0].unpaid.Load(), "have to come before the next look")
	}
}
