package sluice

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

// fill charges one unit to each of n keys named prefix0, prefix1, ...
func fill(l *Limiter, prefix string, n int) (admitted int) {
	for i := range n {
		if l.Allow(fmt.Sprint(prefix, i)) {
			admitted++
		}
	}
	return admitted
}

func TestSweep_DropsExactlyTheIdleKeys(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		fill(l, "key", 100)
		require.Zero(t, l.Sweep(), "live keys stay")
		require.Equal(t, 100, l.Len())
		clock.Advance(l.Key("key0").Peek(0).ResetAfter - 1)
		require.Zero(t, l.Sweep(), "1 ns before they are idle")
		require.True(t, l.Allow("key0"))
		clock.Advance(1)
		if c.Algorithm == FixedWindow || c.Algorithm == FixedWindowFirstCharge || c.Algorithm == TokenBucketInterval { // key0 was charged in the same window as the others
			require.Equal(t, 100, l.Sweep())
			return
		}
		require.Equal(t, 99, l.Sweep())
		require.Equal(t, 1, l.Len())
		require.Equal(t, uint64(99), l.Stats().Swept)
		clock.Advance(l.Key("key0").Peek(0).ResetAfter)
		require.Equal(t, 1, l.Sweep())
		require.Zero(t, l.Len())
	})
}

// TestSweep_KeyChargedAfterTheClockWasRead: the sweep's reading is in one window,
// the charge in the next.
func TestSweep_KeyChargedAfterTheClockWasRead(t *testing.T) {
	for _, c := range variants {
		t.Run("variant="+variantName(c), func(t *testing.T) {
			edge := time.Unix(1_790_000_100, 0).UnixNano()
			clock := NewManualClock(time.Unix(0, edge-1))
			c.Limit, c.Clock = PerMinute(3), clock
			l := mustNew(t, c)
			k := l.Key("k")
			require.True(t, k.AllowAt(edge+1, 3)) // the caller read the clock later
			require.Zero(t, l.Sweep())
			require.False(t, k.AllowAt(edge+2, 1))
		})
	}
}

// TestSweep_OlderCallOnAForgottenKey: the charge of a key that comes back with an
// older time than the one at which it was forgotten counts from the latter.
func TestSweep_OlderCallOnAForgottenKey(t *testing.T) {
	for _, c := range variants {
		t.Run("variant="+variantName(c), func(t *testing.T) {
			for _, own := range []bool{false, true} { // a key with a limit of its own keeps its cell
				clock := NewManualClock(start)
				c.Limit, c.Clock = PerSecond(3), clock
				l := mustNew(t, c)
				k := l.Key("k")
				if own {
					require.NoError(t, k.SetLimit(PerSecond(3)))
				}
				before := clock.Now()
				require.True(t, k.AllowN(3))
				clock.Advance(k.Peek(0).ResetAfter)
				require.Equal(t, 1, l.Sweep())
				require.Equal(t, uint64(1), l.Stats().Swept)
				require.True(t, k.AllowAt(before, 3), "denied, though fresh at the newest time")
				require.False(t, k.Allow(), "the charge at an older time was not charged in full")
			}
		})
	}
}

// TestSweep_OlderCallOnAForgottenKeyIsDescribedFromItsOwnTime, like the next one.
func TestSweep_OlderCallOnAForgottenKeyIsDescribedFromItsOwnTime(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.Allow())
		clock.Advance(k.Peek(0).ResetAfter + time.Hour)
		require.Equal(t, 1, l.Sweep())
		older := clock.Now() - int64(700*time.Millisecond)
		d := k.TakeAt(older, burstOf(l))
		require.True(t, d.Allowed)
		next := k.TakeAt(older, 0)
		require.Equal(t, next.ResetAfter, d.ResetAfter)
		require.Equal(t, next.Remaining, d.Remaining)
		require.Zero(t, d.RetryAfter)
	})
}

// TestSweep_TimerRunsWhileThereAreKeys: keys go between one and two TTLs after
// they have become idle, the timer stops with the last one and starts again.
func TestSweep_TimerRunsWhileThereAreKeys(t *testing.T) {
	for _, clock := range clocks {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Limit: PerSecond(1), TTL: 5 * time.Second, Clock: clock.new()})
			require.False(t, l.armed.Load())
			for range 3 {
				fill(l, "key", 100)
				require.True(t, l.armed.Load())
				time.Sleep(5900 * time.Millisecond) // idle after 1 s, for 4.9 s
				synctest.Wait()
				require.Equal(t, 100, l.Len(), "dropped before the TTL")
				time.Sleep(5200 * time.Millisecond)
				synctest.Wait()
				require.Zero(t, l.Len())
				require.False(t, l.armed.Load())
			}
			require.Equal(t, uint64(300), l.Stats().Swept)
		})
	}
}

// TestSweep_TimerLeavesShardsThatAreMostlyLive alone, and takes the rest later.
func TestSweep_TimerLeavesShardsThatAreMostlyLive(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: PerMinute(60).WithBurst(600), TTL: 5 * time.Second, Shards: 1})
		fill(l, "short", 10) // idle after 1 s
		for i := range 90 {
			l.AllowN(fmt.Sprint("long", i), 60) // idle after 60 s
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, 100, l.Len(), "10 of 100 are not worth a rebuild")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, l.Len())
	})
}

// TestSweep_TimerDoesNotKeepTheLimiter: the armed timer knows it weakly.
func TestSweep_TimerDoesNotKeepTheLimiter(t *testing.T) {
	l := mustNew(t, Config{Limit: PerSecond(1), TTL: time.Hour})
	l.Allow("key")
	require.True(t, l.armed.Load())
	w := weak.Make(l)
	runtime.KeepAlive(l)
	l = nil
	for range 10 {
		runtime.GC()
	}
	require.Nil(t, w.Value(), "the limiter is still reachable")
	_ = l
}

// TestSweep_ManualClockDropsAsTablesGrow: with a clock of its own a limiter drops idle keys in the
// place of growing, and does not grow with all it has ever seen.
func TestSweep_ManualClockDropsAsTablesGrow(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), MaxKeys: -1})
	most := 0
	for round := range 100 {
		fill(l, fmt.Sprint("round", round, "-"), 500)
		most = max(most, l.Len())
		clock.Advance(15 * time.Second)
	}
	require.LessOrEqual(t, most, 2500, "of 50,000")
	require.Positive(t, l.Stats().Swept)
	require.False(t, l.armed.Load(), "it has no timer")
}

// TestArm_InsertionBetweenLastLookAndDisarming cannot be scheduled from outside,
// so this replays its end state: keys, and a timer that has just disarmed.
func TestArm_InsertionBetweenLastLookAndDisarming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: PerSecond(1), TTL: time.Second})
		l.armed.Store(true) // as the insertion saw it
		l.Allow("key")
		l.sweepOnTimer()
		require.True(t, l.armed.Load(), "no sweep would ever come")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, l.Len())
	})
}

// clockFunc is a clock made of a function.
type clockFunc func() int64

func (f clockFunc) Now() int64 { return f() }

// TestSweep_TimeBeforeTheFirstTTL: there the cutoff lies before 1970, and nothing has
// been idle by then.
func TestSweep_TimeBeforeTheFirstTTL(t *testing.T) {
	for _, now := range []time.Duration{0, 1, 10*time.Second - 1} {
		l := mustNew(t, Config{Limit: PerSecond(1), Clock: NewManualClock(time.Unix(0, int64(now)))})
		fill(l, "key", 200)
		require.Equal(t, 200, l.Len())
		require.Zero(t, fill(l, "key", 200))
	}
}

// TestSweep_EndOfTime: nothing overflows where cutoffs and TTLs meet the ends of
// the clock's range.
func TestSweep_EndOfTime(t *testing.T) {
	for _, now := range []int64{0, 1, math.MaxInt64 - 1, math.MaxInt64} {
		for _, ttl := range []time.Duration{1, math.MaxInt64} {
			var at atomic.Int64
			at.Store(now)
			l := mustNew(t, Config{Limit: PerSecond(1), TTL: ttl, Clock: clockFunc(at.Load), MaxKeys: 50})
			fill(l, "key", 200)
			require.Zero(t, l.Sweep(), "all are live at %d", now)
			require.False(t, l.Allow("key199"))
		}
	}
}

// The tests in this file are about idle keys that rank above live ones, in a full shard that is not
// rested. They go first all the same: their number is what the batch of live ones is short of.

func unrested(l *Limiter) { l.shards[0].restedAt.Store(l.clock.Now() + int64(time.Hour)) }

// TestEvictSoonest_BlocksThatAreOverGoFirst: blocked keys rank last, whatever the time.
func TestEvictSoonest_BlocksThatAreOverGoFirst(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryEvicting(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Shards = 100, 1
		l, clock := newFrozen(t, c)
		fill(l, "live", 80)
		for i := range 20 {
			require.True(t, l.Key(fmt.Sprint("blocked", i)).Block(1))
		}
		clock.Advance(2)
		unrested(l)
		fill(l, "new", 20)
		require.Equal(t, Stats{Keys: 87, Evicted: 13, Swept: 20}, l.Stats(), "a third")
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
	require.Equal(t, Stats{Keys: 68, Evicted: 18, Swept: 15}, l.Stats(), "a third")
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
	require.Equal(t, Stats{Keys: 68, Evicted: 13, Swept: 20}, l.Stats(), "a third")
}

// TestEvictSoonest_IdleKeysAreEnough where all live ones are charged while they are being ranked.
func TestEvictSoonest_IdleKeysAreEnough(t *testing.T) {
	if splits() {
		return // more is frozen than is listed in one go
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1_000_000), MaxKeys: 100, Shards: 1})
	fill(l, "old", 80)
	for i := range 20 {
		require.True(t, l.Key(fmt.Sprint("blocked", i)).Block(1))
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
		require.EqualValues(t, share/lookFraction-1, l.shards[0].unpaid.Load(), "have to come before the next look")
	}
}

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
		idle, ranks = l.surveyLocked(&l.shards[0], tab, start.Add(time.Hour).UnixNano())
		require.Equal(t, tab.used, idle, "those that the sample has met count once")
		require.Empty(t, ranks)
	}
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
