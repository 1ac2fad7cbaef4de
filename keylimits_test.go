package sluice

import (
	"context"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// TestKeyLimit_LeavesNothingBehind, and an error changes nothing.
func TestKeyLimit_LeavesNothingBehind(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10), Soft: 3})
	var target *ConfigError
	for _, bad := range []Limit{{Rate: 1}, {Rate: -1, Period: 1}, Unlimited.WithBurst(1), PerSecond(2).WithBurst(math.MaxInt)} {
		require.ErrorAs(t, l.Key("k").SetLimit(bad), &target)
		require.ErrorAs(t, l.Key("k").SetLimit(bad), &target)
		require.ErrorAs(t, l.SetLimit(bad), &target)
		require.Empty(t, limitsOf(l))
	}
	require.Equal(t, PerSecond(10), l.Config().Limit)
	require.NoError(t, l.Key("a").SetLimit(PerSecond(5)))
	require.NoError(t, l.Key("b").SetLimit(PerSecond(5)))
	require.Error(t, l.Key("a").SetLimit(Limit{Rate: 1}))
	require.Equal(t, PerSecond(5), l.Key("a").Limit())
	require.True(t, l.Allow("a"))
	before := l.shardOf(l.Key("a").id).cell(l.Key("a").id)
	require.NoError(t, l.Key("a").SetLimit(PerSecond(5)))
	require.Same(t, before, l.shardOf(before.id.Load()).cell(before.id.Load()), "the same limit again changes nothing")
	l.Key("a").ClearLimit()
	l.Key("a").ClearLimit()
	l.Key("never").ClearLimit()
	require.Len(t, limitsOf(l), 1)
	require.NoError(t, l.Key("b").SetLimit(PerSecond(6)))
	l.Key("b").ClearLimit()
	l.Key("a").Reset()
	l.Sweep()
	require.Empty(t, limitsOf(l))
	require.Zero(t, l.Len())
}

// TestKeyLimit_OptionsHold: Shadow, Soft and TopDenied also speak of such keys.
func TestKeyLimit_OptionsHold(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shadow, c.Soft, c.TopDenied, c.Stats = true, 2, 5, true
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.NoError(t, k.SetLimit(Per(3, c.Limit.Period)))
		require.Equal(t, 3, k.Peek(0).Limit)
		require.True(t, k.AllowN(3))
		all := TakeAll(Charge{k, 1}, Charge{l.Key("other"), 1})
		require.Equal(t, AllDecision{Allowed: true, Denied: -1, OverSoft: true}, all)
		require.True(t, k.Take(1).OverSoft)
		d := TakeAll(Charge{k, 1}, Charge{l.Key("other"), 1})
		require.True(t, d.Allowed && d.WouldDeny, "%+v", d)
		for range 20_000 {
			require.True(t, k.Take(1).WouldDeny)
			require.True(t, TakeAll(Charge{k, 1}).WouldDeny)
		}
		require.Equal(t, uint64(40_001), l.Stats().WouldDeny)
		require.Len(t, l.TopDenied(), 1)
		require.Greater(t, l.TopDenied()[0].Denied, uint64(30_000), "of 40,001, by Take and by TakeAll")
	})
}

// Slots for several keys go by the limits that the Keys bring.
func TestWaitAll_KeysThatBringLimits(t *testing.T) {
	clock := NewManualClock(time.Unix(1000, 0))
	lim := Must(New(Config{Limit: PerSecond(1), Clock: clock}))
	five, err := lim.Key("a").WithLimit(PerSecond(5))
	require.NoError(t, err)
	pro, err := lim.Key("b").WithLimit(PerSecond(4))
	require.NoError(t, err)

	all, err := reserveAll(time.Minute, Charge{five, 5}, Charge{pro, 4})
	require.NoError(t, err)
	require.Zero(t, all[1].Delay())
	all, err = reserveAll(time.Minute, Charge{five, 1}, Charge{pro, 1})
	require.NoError(t, err)
	require.Equal(t, time.Second/4, all[0].Delay())
	all[0].Cancel()
	all[1].Cancel()

	clock.Advance(time.Second)
	_, err = WaitAll(context.Background(), Charge{five, 5}, Charge{pro, 4})
	require.NoError(t, err)
	require.Zero(t, five.Peek(1).Remaining)
}

// A Wait through a Key that brings its limit looks for a block when its slot begins, and may
// find that the key is being moved then.
func TestWait_KeyThatBringsItsLimitIsBeingMoved(t *testing.T) {
	lim := Must(New(Config{Limit: PerSecond(1), Clock: NewManualClock(time.Unix(1000, 0))}))
	k, err := lim.Key("a").WithLimit(PerSecond(5))
	require.NoError(t, err)
	require.True(t, k.Allow())

	s := lim.shardOf(k.id)
	s.mu.Lock()
	c := s.cell(k.id)
	word := c.word.Swap(moved)
	blocked := make(chan bool)
	go func() { blocked <- k.lim.blocked(k.id) }()
	for lim.moves.Value() == 0 {
		runtime.Gosched()
	}
	c.word.Store(word)
	s.mu.Unlock()
	require.False(t, <-blocked)
}

// Of Keys for one key that bring different limits, the first says what all go by, whether the
// key is tracked or not.
func TestWaitAll_GoesByTheFirstLimitOfAKey(t *testing.T) {
	for _, tracked := range []bool{false, true} {
		lim := Must(New(Config{Limit: PerSecond(100), Clock: NewManualClock(start)}))
		k := lim.Key("a")
		require.Equal(t, tracked, tracked && k.Allow())
		ten, err := k.WithLimit(PerSecond(10))
		require.NoError(t, err)
		two, err := k.WithLimit(PerSecond(2))
		require.NoError(t, err)
		_, err = reserveAll(0, Charge{ten, 3}, Charge{two, 3})
		require.NoError(t, err, tracked)
		_, err = reserveAll(time.Minute, Charge{two, 1}, Charge{ten, 2})
		require.ErrorIs(t, err, ErrCostExceedsBurst, tracked)
	}
}

// TestClearLimit_NobodyIsGiftedABurst: whatever moves a key between limits, at one
// instant it is admitted no more than the largest of them. A log, of which a smaller limit
// holds fewer units, is no exception.
func TestClearLimit_NobodyIsGiftedABurst(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Limit = Per(1000, c.Limit.Period)
		own := Per(4600, c.Limit.Period)
		if c.Algorithm == SlidingWindow {
			own.Rate = 3_000_000 // in two words
		}
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, l.AllowN("other", 200))
		brought, err := k.WithLimit(own)
		require.NoError(t, err)
		admitted := 0
		spend := func(k Key) {
			for _, cost := range []int{500_000, 2000, 500, 300, 100, 1} {
				for k.AllowN(cost) {
					admitted += cost
				}
			}
		}
		for range 4 {
			require.NoError(t, k.SetLimit(own))
			spend(k)
			k.ClearLimit()
			spend(k)
			spend(brought)
			require.NoError(t, k.SetLimit(Unlimited))
			require.NoError(t, k.SetLimit(own))
			spend(k)
		}
		require.Equal(t, own.Rate, admitted)
		if k.ClearLimit(); c.Algorithm == SlidingLog {
			require.Equal(t, c.Limit.Rate, l.current.Load().tailLen(), "a key's limit lengthens no other log")
			return
		}
		require.NoError(t, l.SetLimit(own))
		require.Zero(t, k.Peek(0).Remaining)
		require.Equal(t, 200, spentOf(l, "other"))
	})
}

// TestWithLimit_IsAKeyOfTheLimiter: what the limiter does for the speed of calls, it does for
// those that bring a limit.
func TestWithLimit_IsAKeyOfTheLimiter(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10)})
	k, err := l.Key("k").WithLimit(PerSecond(7))
	require.NoError(t, err)
	require.True(t, k.Allow())
	k.lim.far.Store(true) // as for a large table
	require.True(t, k.Allow())
	require.Equal(t, 4, k.Take(1).Remaining)
	require.Equal(t, 4, k.Peek(0).Remaining)
	require.Equal(t, 4, k.Status().Remaining)
	require.Equal(t, 3, k.Debit(1).Remaining)
	taken, _ := k.TakeUpTo(5)
	require.Equal(t, 3, taken)
	require.Same(t, l, k.lim)
}

// TestWithLimit_IsOfTheCall: calls through the key itself go by its own limit, and what has
// been spent by one counts by the other.
func TestWithLimit_IsOfTheCall(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		per := func(n int) Limit { return Per(n, c.Limit.Period) }
		c.Stats = true
		l, clock := newFrozen(t, c)
		burst := int(l.current.Load().burst)
		_, err := l.Key("k").WithLimit(Limit{Rate: 1})
		require.Error(t, err)
		k := l.Key("k")
		small, err := k.WithLimit(per(10))
		require.NoError(t, err)
		require.Equal(t, Decision{Limit: 10, Remaining: 10, RetryAfter: Never}, small.Take(11))
		require.Zero(t, l.Len(), "a denied call tracks nothing")
		require.Equal(t, 3, small.Peek(7).Remaining)
		require.Zero(t, l.Len())
		require.Equal(t, 6, small.Take(4).Remaining)
		require.Equal(t, 1, l.Len())
		require.Equal(t, burst-4, k.Peek(0).Remaining)
		require.Equal(t, 6, small.Peek(0).Remaining)
		require.Equal(t, burst-304, k.Take(300).Remaining)
		require.Equal(t, 0, small.Peek(0).Remaining)
		require.False(t, small.Allow())
		require.Equal(t, [2]Limit{c.Limit, per(10)}, [2]Limit{k.Limit(), small.Limit()}, "each goes by its own")
		large, err := k.WithLimit(per(burst + 500))
		require.NoError(t, err)
		require.Equal(t, burst+196, large.Peek(0).Remaining)
		require.True(t, TakeAll(Charge{large, burst + 100}, Charge{l.Key("other"), 1}).Allowed)
		require.False(t, k.Allow())
		require.Equal(t, 96, large.Peek(0).Remaining)
		large.Refund(50)
		require.Equal(t, 146, large.Peek(0).Remaining)
		require.Equal(t, [3]Limit{per(burst + 500), per(10), c.Limit}, [3]Limit{large.Limit(), small.Limit(), k.Limit()})
		free, err := k.WithLimit(Unlimited)
		require.NoError(t, err)
		require.True(t, free.AllowN(1<<30))
		require.Equal(t, 146, large.Peek(0).Remaining)

		require.NoError(t, k.SetLimit(per(7)))
		require.False(t, k.Allow())
		require.Equal(t, 145, large.Take(1).Remaining)
		require.Equal(t, per(7), k.Limit())
		clock.Advance(3 * c.Limit.Period)
		l.Sweep()
		require.Zero(t, l.Len())
		require.Len(t, limitsOf(l), 1)
		require.Equal(t, 6, k.Take(1).Remaining)
		require.NoError(t, small.SetLimit(per(8)), "of the key")
		require.Equal(t, 7, k.Peek(0).Remaining)
		small.ClearLimit()
		require.Equal(t, 1, spentOf(l, "k"))
		small.Reset()
		require.Zero(t, spentOf(l, "k"))
		require.True(t, small.Block(time.Minute))
		require.False(t, k.Allow())
		small.Unblock()
		require.True(t, k.Allow())
	})
}

// TestWithLimit_TakesNoMoreThanTheTrackedKeys: keys whose calls bring limits count towards
// MaxKeys, are evicted and swept like others, and leave nothing behind; nor do the limits.
func TestWithLimit_TakesNoMoreThanTheTrackedKeys(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, c.Overflow = range overflowsOf(c) {
			c.MaxKeys, c.TTL = 20, 1
			l, clock := newFrozen(t, c)
			for i := range depth.Of(maxBrought+100, maxBrought+100, 3*maxBrought) {
				k, err := l.KeyUint64(uint64(i)).WithLimit(Per(10+i, c.Limit.Period))
				require.NoError(t, err)
				d := k.Take(1 + i%10)
				require.Equal(t, c.Overflow != OverflowDenyNew || i < 20, d.Allowed)
				if i%100 == 0 {
					l.KeyUint64(uint64(i)).Take(1)
				}
				require.LessOrEqual(t, l.Len(), 20)
			}
			require.LessOrEqual(t, l.brought.Load().Size(), maxBrought)
			clock.Advance(3 * c.Limit.Period)
			l.Sweep()
			require.Zero(t, l.Len())
			for i := range l.shards {
				for _, ct := range cellTablesOf(l, i) {
					require.Zero(t, ct.live)
					require.LessOrEqual(t, len(ct.places), 128)
				}
			}
		}
	})
}

// TestWithLimit_WaitAndReserve go by the limit of the call, too.
func TestWithLimit_WaitAndReserve(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerMinute(60)})
	k, err := l.Key("k").WithLimit(PerMinute(2))
	require.NoError(t, err)
	r, err := k.Reserve(2, 0)
	require.NoError(t, err)
	require.Zero(t, k.Peek(0).Remaining)
	_, err = k.Reserve(3, time.Hour)
	require.ErrorIs(t, err, ErrCostExceedsBurst)
	next, err := k.Reserve(1, time.Hour)
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, next.Delay())
	next.Cancel()
	r.Settle(1)
	require.Equal(t, 1, k.Peek(0).Remaining)
	require.NoError(t, k.Wait(t.Context(), 1))
	require.ErrorIs(t, k.Wait(t.Context(), 3), ErrCostExceedsBurst)
	require.Equal(t, 58, l.Key("k").Peek(0).Remaining)
}

// TestSweep_ChangesNothingUnderALongerPeriod: units of a log that no longer count do not
// count again when the period becomes longer.
func TestSweep_ChangesNothingUnderALongerPeriod(t *testing.T) {
	for _, swept := range []bool{false, true} {
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(7), TTL: math.MaxInt64})
		require.True(t, l.AllowN("k", 5))
		clock.Advance(2 * time.Second)
		if swept {
			l.Sweep()
		}
		require.True(t, l.Allow("k"))
		require.NoError(t, l.SetLimit(Per(7, 10*time.Second)))
		require.Equal(t, 6, l.Key("k").Peek(0).Remaining)
	}
}
