package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFullAtHand_ALoneKeyIsNotPushedOut, however deep strangers have made its table: of a part of the
// shard that is two keys, one is not half and more.
func TestFullAtHand_ALoneKeyIsNotPushedOut(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or tables of a few keys
	}
	for _, maxKeys := range []int{1024, 1100} {
		l, _ := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerHour(4096), Shards: 1, MaxKeys: maxKeys})
		offender := l.KeyHash(math.MaxUint64)
		require.True(t, offender.AllowN(4096))
		near := uint64(0)
		stranger := func() uint64 { near++; return 0xff<<56 | near*0x9e3779b97f4a7c15>>9 }
		for range 12 {
			require.True(t, l.KeyHash(stranger()).Allow())
		}
		for i := range uint64(10_000) {
			require.True(t, l.KeyHash((i+1)*0x9e3779b97f4a7c15).Allow())
			if i%50 == 0 {
				require.True(t, l.KeyHash(stranger()).Allow())
			}
			require.Zero(t, offender.Peek(0).Remaining, "after %d keys", i)
		}
	}
}

// TestEvictSoonest_ASampleThatMeetsNobody does not decide: strangers can leave most slots empty.
func TestEvictSoonest_ASampleThatMeetsNobody(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or tables of a few keys
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: 4000, Shards: 1})
	for i := range uint64(2000) { // all that follow one another in the middle of their tables
		require.True(t, l.KeyHash((i+1)*0x9e3779b97f4a7c15&^0xffff_ffff|0x8000_0000|i&0xfff).Allow())
	}
	tab := l.tableOf(0)
	require.Greater(t, tab.depth, l.depth())
	require.Greater(t, len(tab.slots), sampleSlots)
	for range 100 {
		idle, ranks := l.surveyLocked(&l.shards[0], tab, start.UnixNano())
		require.GreaterOrEqual(t, idle+len(ranks), sampleSlots/8)
	}
}

// TestSweepOnInsert_LooksAtCellsOnceATTL, not once for each of the shard's tables.
func TestSweepOnInsert_LooksAtCellsOnceATTL(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or tables of a few keys
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), Shards: 1, MaxKeys: -1, TTL: 10 * time.Second})
	key := func(half, i uint64) Key { return l.KeyHash(half<<63 | i*0x9e3779b97f4a7c15>>1) }
	for i := range uint64(1500) {
		require.True(t, key(0, i+1).Allow())
		require.True(t, key(1, i+1).Allow())
	}
	clock.Advance(time.Second)
	require.NoError(t, l.SetKeyLimit("kept", PerSecond(1)))
	require.True(t, l.Allow("kept")) // idle a second later
	clock.Advance(10500 * time.Millisecond)
	require.True(t, key(0, 5000).Allow())
	require.EqualValues(t, 1, l.keptLive.Load(), "it has not been idle for the TTL")
	require.Less(t, l.tableOf(key(0, 5000).id).used, 10, "the table was not swept")
	clock.Advance(time.Second)
	require.True(t, key(1, 5000).Allow())
	require.Less(t, l.tableOf(key(1, 5000).id).used, 10, "the other table was not swept")
	require.EqualValues(t, 1, l.keptLive.Load(), "cells have been looked at less than a TTL ago")
	clock.Advance(9 * time.Second)
	for i := range uint64(10) {
		require.True(t, key(0, 6000+i).Allow())
	}
	require.Zero(t, l.keptLive.Load())
}

// TestDenyNew_EverybodyPays for looks, also who puts a key that was kept on a plan among the others.
func TestDenyNew_EverybodyPays(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	const share = 1000
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: share, Shards: 1, Overflow: OverflowDenyNew})
	for i := range 100 {
		name := fmt.Sprint("kept", i)
		require.NoError(t, l.SetKeyLimit(name, PerHour(7)))
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
		l.ClearKeyLimit(fmt.Sprint("kept", i))
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
	require.NoError(t, l.SetKeyLimit("kept", PerHour(7)))
	for i := range uint64(1000) {
		require.True(t, l.KeyUint64(i).Allow())
	}
	require.False(t, l.Allow("new"))
	require.Positive(t, l.shards[0].unpaid.Load(), "new keys are turned away at once")
	require.True(t, l.Allow("kept"))
	require.False(t, l.Allow("another"))
}

// TestEvictSoonest_ARestedShardKeepsItsLiveKeys: after a pause maxLooks tables are
// looked at, so that a single idle key in them is found, and is enough.
func TestEvictSoonest_ARestedShardKeepsItsLiveKeys(t *testing.T) {
	if crowded() || splits() {
		return // probes of 4,000 slots, or thousands of tables
	}
	const share = 4000
	l, clock := newFrozen(t, Config{Limit: PerHour(10), MaxKeys: share, Shards: 1})
	for i := range uint64(share) {
		l.KeyUint64(i).Allow()
	}
	require.Len(t, tablesOf(l), maxLooks)
	for i := range uint64(3) {
		clock.Advance(share * scanPause)
		l.KeyUint64(i).Reset()
		l.KeyUint64(share + i).Allow()
		require.Equal(t, Stats{Keys: share, Swept: i + 1}, l.Stats())
	}
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
