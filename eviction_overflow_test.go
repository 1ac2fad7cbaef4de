package sluice

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMaxKeys_LenStaysWithin(t *testing.T) {
	for _, o := range overflows {
		for _, maxKeys := range []int{1, 2, 7, 100, 3000} {
			t.Run(fmt.Sprintf("overflow=%v/max=%d", o, maxKeys), func(t *testing.T) {
				l, _ := newFrozen(t, Config{Limit: PerSecond(1), Overflow: o, MaxKeys: maxKeys})
				for i := range 2*maxKeys + 50 {
					l.Allow(fmt.Sprint("key", i))
					require.LessOrEqual(t, l.Len(), maxKeys)
				}
				require.GreaterOrEqual(t, l.Len(), maxKeys*2/3)
			})
		}
	}
}

// TestMaxKeys_EveryKeyFitsBeforeOverflow: with one shard MaxKeys is exact.
func TestMaxKeys_EveryKeyFitsBeforeOverflow(t *testing.T) {
	for _, maxKeys := range []int{1, 5, 6, 7, 48, 49, 1000} {
		l, _ := newFrozen(t, Config{Limit: PerSecond(1), MaxKeys: maxKeys, Overflow: OverflowDenyNew})
		require.Equal(t, maxKeys, fill(l, "key", 2*maxKeys))
		require.Equal(t, maxKeys, l.Len())
		require.Equal(t, uint64(maxKeys), l.Stats().Untracked)
	}
}

// TestEvictSoonest_FloodPushesOutItself: the offender, deep in debt, stays denied
// through a flood of keys that are charged once.
func TestEvictSoonest_FloodPushesOutItself(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.MaxKeys = 64
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("offender", burstOf(l)))
		for i := range 1000 {
			require.True(t, l.Allow(fmt.Sprint("flood", i)))
			require.False(t, l.Allow("offender"), "after %d keys", i)
		}
		require.Positive(t, l.Stats().Evicted)
	})
}

// TestEvictSoonest_FloodInTheNextWindow: keys charged later than the offender, even
// in a later window, go before it while it owes more than they do.
func TestEvictSoonest_FloodInTheNextWindow(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	for _, a := range []Algorithm{GCRA, TokenBucket, LeakyBucket, SlidingWindow, SlidingLog} {
		edge := time.Unix(1_790_000_100, 0)
		clock := NewManualClock(edge.Add(-10 * time.Second))
		l := mustNew(t, Config{Algorithm: a, Limit: PerMinute(100), Clock: clock, MaxKeys: 64})
		require.True(t, l.AllowN("offender", 100))
		clock.Set(edge.Add(time.Second))
		before := l.Key("offender").Peek(0).Remaining
		fill(l, "flood", 1000)
		require.Equal(t, before, l.Key("offender").Peek(0).Remaining, "%v", a)
		require.Less(t, before, 30, "%v", a)
	}
}

// TestEvictSoonest_TiesAreTakenFromTheWholeTable: were those of the first slots
// taken, only the front of the table would ever lose keys, its back would fill up,
// and probes there would be hundreds of slots long.
func TestEvictSoonest_TiesAreTakenFromTheWholeTable(t *testing.T) {
	if crowded() || splits() {
		return // all probes are long, or the table can be empty
	}
	for _, a := range []Algorithm{SlidingWindow, FixedWindow} {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerDay(8), MaxKeys: 4096, Shards: 1})
		for i := range uint64(20 * 4096) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		require.Less(t, probeOf(l.tableOf(0)), 4.0, "slots a probe, %v", a)
	}
}

// probeOf returns how many slots the probe for an id of the table takes on average.
func probeOf(tab *table) float64 {
	steps, n := 0, 0
	for i := range tab.slots {
		if id := tab.slots[i].id.Load(); id != 0 {
			steps += (i-int(tab.home(id))+len(tab.slots))%len(tab.slots) + 1
			n++
		}
	}
	return float64(steps) / float64(n)
}

// chargingRank charges keys while they are being ranked for eviction, so that the
// ranks are out of date when the entries are frozen.
type chargingRank struct {
	algorithm
	also func()
}

func (c chargingRank) rank(word uint64, now int64) uint64 {
	defer c.also()
	return c.algorithm.rank(word, now)
}

// TestEvictSoonest_ContentionIsNoDenial: all that was to go is charged meanwhile. Blocked keys stay.
func TestEvictSoonest_ContentionIsNoDenial(t *testing.T) {
	if splits() {
		return // more is frozen than is listed in one go
	}
	for _, n := range []struct{ maxKeys, blocked int }{{1, 0}, {20, 0}, {20, 5}} {
		maxKeys, old := n.maxKeys, n.maxKeys-n.blocked
		l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1_000_000), MaxKeys: maxKeys})
		fill(l, "old", old)
		for i := range n.blocked {
			require.True(t, l.Key(fmt.Sprint("blocked", i)).Block(Never))
		}
		plain := l.policyOf(0).alg
		listed := 0
		setAlgorithm(l, chargingRank{plain, func() {
			if listed++; listed <= old { // only while they are listed: later they are frozen
				fill(l, "old", old)
			}
		}}, nil)
		require.True(t, l.Take("new", 1).Allowed)
		setAlgorithm(l, plain, nil)
		require.Zero(t, l.Stats().Untracked)
		require.Equal(t, max(1, maxKeys-max(1, maxKeys/roomFraction)+1), l.Len())
		for i := range n.blocked {
			require.False(t, l.Allow(fmt.Sprint("blocked", i)))
		}
	}
}

// TestEvictSoonest_BlockedMeanwhile: all keys are blocked after they have been listed. That does not
// turn a new key away either.
func TestEvictSoonest_BlockedMeanwhile(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	for _, maxKeys := range []int{1, 20} {
		l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1_000_000), MaxKeys: maxKeys, Shards: 1})
		fill(l, "old", maxKeys)
		plain := l.policyOf(0).alg
		listed := 0
		setAlgorithm(l, chargingRank{plain, func() {
			if listed++; listed == maxKeys {
				for i := range maxKeys {
					require.True(t, l.Key(fmt.Sprint("old", i)).Block(Never))
				}
			}
		}}, nil)
		require.True(t, l.Take("new", 1).Allowed)
		setAlgorithm(l, plain, nil)
		require.Zero(t, l.Stats().Untracked)
		require.Equal(t, 999_999, l.Key("new").Peek(0).Remaining)
		require.LessOrEqual(t, l.Len(), maxKeys)
		blocked := 0
		for i := range maxKeys {
			if !l.Key(fmt.Sprint("old", i)).Peek(1).Allowed {
				blocked++
			}
		}
		require.Equal(t, l.Len()-1, blocked, "those that have stayed are blocked")
	}
}

func TestEvictSoonest_IdleKeysGoFirst(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(100), MaxKeys: 100})
	for i := range 50 {
		l.AllowN(fmt.Sprint("live", i), 100)
	}
	fill(l, "idle", 50)
	clock.Advance(time.Second)
	fill(l, "new", 50)
	require.Zero(t, l.Stats().Evicted)
	require.Equal(t, uint64(50), l.Stats().Swept)
	for i := range 50 {
		require.False(t, l.AllowN(fmt.Sprint("live", i), 3))
	}
}

// TestEvictSoonest_DropsInTheOrderOfIdleness, and only as many as a batch.
func TestEvictSoonest_DropsInTheOrderOfIdleness(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1000), MaxKeys: 80})
	for i := range 80 {
		l.AllowN(fmt.Sprint("key", i), 1000-(i*37)%80) // all different
	}
	l.Allow("one more")
	require.Equal(t, uint64(26), l.Stats().Evicted, "a batch of a third")
	for i := range 80 {
		fresh := l.Key(fmt.Sprint("key", i)).Peek(1000).Allowed
		require.Equal(t, (i*37)%80 >= 54, fresh, "key%d", i)
	}
}

// TestEvictSoonest_ASampleServesALargeTable: of a table that is too large to be
// looked at as a whole, the lowest still go and the others stay; only how many a
// third is may vary. Keys that begin alike make one.
func TestEvictSoonest_ASampleServesALargeTable(t *testing.T) {
	if crowded() {
		return // probes of 20,000 slots, and sampling does not care where a probe starts
	}
	const share = 20_000
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Shards = share, 1
		l, _ := newFrozen(t, c)
		most := min(burstOf(l), 100)
		cost := func(i int) int { return 1 + i%most }
		key := func(i int) Key { return l.KeyHash(uint64(i+1) * 0x9e3779b97f4a7c15 >> 32) }
		for i := range share {
			require.True(t, key(i).AllowN(cost(i)))
		}
		require.Equal(t, share, l.tableOf(0).used)
		require.True(t, key(share).Allow())
		evicted := int(l.Stats().Evicted)
		require.InDelta(t, share/roomFraction, evicted, share/5, "6 sigma")
		require.Equal(t, share+1-evicted, l.Len())
		lowestKept, highestGone := math.MaxInt, 0
		for i := range share {
			if left := key(i).Peek(0).Remaining; left < burstOf(l) {
				lowestKept = min(lowestKept, cost(i))
			} else {
				highestGone = max(highestGone, cost(i))
			}
		}
		require.LessOrEqual(t, highestGone, lowestKept, "they may meet in a tie")
	})
}

// TestEvictSoonest_FewKeysAreAllLookedAt: a third goes, whatever the number of slots,
// which is four for a key in a small table.
func TestEvictSoonest_FewKeysAreAllLookedAt(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	for _, maxKeys := range []int{400, 1000, fullIDs} {
		l, _ := newFrozen(t, Config{Limit: PerDay(1000), MaxKeys: maxKeys, Shards: 1})
		for i := range uint64(maxKeys) {
			require.True(t, l.KeyUint64(i).AllowN(1+int(i%7)))
		}
		next := uint64(maxKeys)
		for range 10 {
			require.Equal(t, maxKeys, l.Len())
			require.True(t, l.KeyUint64(next).Allow())
			require.Equal(t, maxKeys-maxKeys/roomFraction+1, l.Len(), "max=%d", maxKeys)
			for next++; l.Len() < maxKeys; next++ {
				require.True(t, l.KeyUint64(next).Allow())
			}
		}
	}
}

// TestEvictSoonest_TiesGoByCount: in windows all keys become idle together.
func TestEvictSoonest_TiesGoByCount(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	for _, a := range []Algorithm{FixedWindow, SlidingWindow} {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerMinute(100), MaxKeys: 16})
		for i := range 8 {
			l.AllowN(fmt.Sprint("busy", i), 50)
		}
		fill(l, "flood", 1000)
		for i := range 8 {
			require.Equal(t, 50, l.Key(fmt.Sprint("busy", i)).Peek(0).Remaining, "%v", a)
		}
	}
}

func TestDenyNew_KeepsEveryTrackedKey(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerMinute(60), MaxKeys: 10, Overflow: OverflowDenyNew, Stats: true})
	for i := range 10 {
		require.True(t, l.AllowN(fmt.Sprint("old", i), 60))
	}
	require.True(t, l.Key("new").Peek(60).Allowed, "Peek does not consider MaxKeys")
	require.False(t, l.Allow("new"))
	require.Equal(t, Decision{Limit: 60, RetryAfter: time.Second}, l.Take("new", 60), "the hint is one interval")
	require.Equal(t, Stats{Keys: 10, Admitted: 10, Denied: 2, Untracked: 2}, l.Stats())
	clock.Advance(time.Minute)
	require.True(t, l.Allow("new"), "the old keys are idle")
	require.Zero(t, l.Stats().Evicted)
}

// TestDenyNew_ResetMakesRoom, although the shard has just been found full of live
// keys.
func TestDenyNew_ResetMakesRoom(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Overflow = 10, OverflowDenyNew
		l, _ := newFrozen(t, c)
		require.Equal(t, 10, fill(l, "old", 20))
		l.Key("old3").Reset()
		require.True(t, l.Allow("new"))
		require.False(t, l.Allow("newer"))
		require.Equal(t, 10, l.Len())
	})
}

// TestMaxKeys_PausesAreSharedByAllShards: one new key to each of many shards after
// a short pause must not have each of them looked at.
func TestMaxKeys_PausesAreSharedByAllShards(t *testing.T) {
	if crowded() {
		return // one shard then
	}
	const shards, share = 32, 500
	l, clock := newFrozen(t, Config{Limit: PerHour(1000), MaxKeys: shards * share, Shards: shards, Overflow: OverflowDenyNew})
	for i := range uint64(2 * shards * share) {
		l.KeyUint64(i).Allow()
	}
	looks := 0
	setAlgorithm(l, lookedAt{l.policyOf(0).alg, func() { looks++ }}, nil)
	const calls, spacing = 10_000, 10 // us
	for i := range calls {
		clock.Advance(spacing * time.Microsecond)
		l.KeyHash(uint64(i%shards)<<59 + uint64(i) + 1).Allow()
	}
	// Each shard is looked at once a MaxKeys microseconds, or once a batch.
	pauses := calls*spacing/(shards*share) + 1
	batches := calls/(shards*(share/lookFraction)) + 1
	require.LessOrEqual(t, looks, (pauses+batches)*shards*share)
}

// TestMaxKeys_LookingForRoomIsPaidFor: whoever makes one key idle at a time and
// then shows a new one must not have the whole shard looked at each time.
func TestMaxKeys_LookingForRoomIsPaidFor(t *testing.T) {
	const share, calls = 4000, 4000
	for _, o := range overflows {
		l, _ := newFrozen(t, Config{Limit: PerHour(1000), MaxKeys: share, Shards: 1, Overflow: o})
		fill(l, "old", share)
		looks := 0
		setAlgorithm(l, lookedAt{l.policyOf(0).alg, func() { looks++ }}, nil)
		for i := range calls {
			l.Key(fmt.Sprint("old", i)).Reset()
			l.Allow(fmt.Sprint("new", i))
		}
		// A look and a rebuild for every batch of share/8, and for OverflowEvictSoonest one
		// more for the idle keys alone: at most 2*2*8 looks a call.
		require.LessOrEqual(t, looks, 40*calls, "%v", o)
		require.LessOrEqual(t, l.Len(), share)
	}
}

// TestDenyNew_IdleKeysAreFoundAgain: a shard that had no room is looked at again
// after a batch of new keys, or after a pause, whichever comes first.
func TestDenyNew_IdleKeysAreFoundAgain(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	newFull := func() (*Limiter, *ManualClock) {
		l, clock := newFrozen(t, Config{Limit: PerHour(3600).WithBurst(3600), MaxKeys: 64, Overflow: OverflowDenyNew})
		for i := range 57 {
			l.AllowN(fmt.Sprint("long", i), 3600)
		}
		fill(l, "short", 7)
		require.False(t, l.Allow("new"))
		return l, clock
	}
	l, clock := newFull()
	clock.Advance(time.Second) // the short ones are idle, and the pause is over
	require.Equal(t, 7, fill(l, "new", 20))
	l, _ = newFull()
	for i := range 7 {
		l.Key(fmt.Sprint("short", i)).Reset() // idle at once, before the pause is over
	}
	require.Equal(t, 7, fill(l, "new", 15+7), "turned away until a batch of 16 has come")
}

// TestAllowAt_AFutureTimeHurtsNobodyElse: a now from the future spends its own
// key's units there. It must not make the shard believe that it is that late.
func TestAllowAt_AFutureTimeHurtsNobodyElse(t *testing.T) {
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.Shards, c.TTL, c.MaxKeys = 1, 1, 100
		l, _ := newFrozen(t, c)
		fill(l, "old", 90)
		l.Key("future").AllowAt(math.MaxInt64-2, 1)
		fill(l, "new", 500)
		l.Sweep()
		require.True(t, l.AllowN("later", burstOf(l)))
		require.LessOrEqual(t, l.Key("later").Peek(0).ResetAfter, 2*max(c.Limit.Period, 72*time.Minute))
	})
}

func TestAdmitNew_AdmitsWithoutState(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Overflow = 10, OverflowAdmitNew
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		for i := range 10 {
			require.True(t, l.AllowN(fmt.Sprint("old", i), burst))
		}
		for range 3 {
			require.True(t, l.AllowN("new", burst))
			require.Equal(t, Decision{Allowed: true, Limit: burst, Remaining: burst}, l.Take("new", burst))
			require.False(t, l.AllowN("new", burst+1))
		}
		require.False(t, l.Allow("old3"))
		require.Equal(t, uint64(6), l.Stats().Untracked)
		require.Equal(t, 10, l.Len())
	})
}

// TestOverflow_TurnsAwayWithoutALock: until new keys have paid for a look, each is turned away
// without one, and at once.
func TestOverflow_TurnsAwayWithoutALock(t *testing.T) {
	if splits() {
		return // tables of a few keys are looked at for each new key
	}
	for _, o := range untracking {
		const share = 1000
		l, clock := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: share, Shards: 1, Overflow: o})
		for i := range uint64(share) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		next := uint64(share)
		call := func() bool { next++; return l.KeyUint64(next).Allow() }
		require.Equal(t, o == OverflowAdmitNew, call(), "after a look, for which nobody has to pay the first time")
		for range share/lookFraction + 1 { // until the next look has been paid for, and found nothing
			require.Equal(t, o == OverflowAdmitNew, call())
		}
		before := l.Stats().Untracked
		l.shards[0].mu.Lock()
		for range share/lookFraction - 3 {
			require.Equal(t, o == OverflowAdmitNew, call())
		}
		require.True(t, l.KeyUint64(1).Allow())
		l.shards[0].mu.Unlock()
		require.Equal(t, before+share/lookFraction-3, l.Stats().Untracked)

		l.KeyUint64(2).Reset() // is found by who pays for the look
		require.Equal(t, o == OverflowAdmitNew, call())
		for l.Stats().Swept == 0 {
			require.LessOrEqual(t, next, uint64(share)*2)
			call()
		}
		require.Equal(t, share, l.Len())
		clock.Advance(share * scanPause)
		l.KeyUint64(3).Reset()
		require.True(t, call(), "after a pause nobody has to pay")
		require.Equal(t, uint64(2), l.Stats().Swept)
	}
}
