package sluice

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
)

// TestClearKeyLimit_NobodyIsGiftedABurst: whatever moves a key between limits, at one
// instant it is admitted no more than the largest of them. A log, of which a smaller limit
// holds fewer units, is no exception.
func TestClearKeyLimit_NobodyIsGiftedABurst(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Limit = Per(1000, c.Limit.Period)
		plan := Per(4600, c.Limit.Period)
		if c.Algorithm == SlidingWindow {
			plan.Rate = 3_000_000 // in two words
		}
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.NoError(t, l.SetPlan("pro", plan))
		brought, err := k.WithLimit(plan)
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
			require.NoError(t, k.SetLimit(plan))
			spend(k)
			k.ClearLimit()
			spend(k)
			spend(brought)
			require.NoError(t, k.SetPlan("pro"))
			spend(k)
			l.ClearPlan("pro")
			spend(k)
			require.NoError(t, l.SetPlan("pro", plan))
			require.NoError(t, k.SetLimit(Unlimited))
			require.NoError(t, k.SetLimit(plan))
			spend(k)
		}
		require.Equal(t, plan.Rate, admitted)
	})
}

// TestSetPlan_EveryKeyFollows, at once, and keeps what it has spent.
func TestSetPlan_EveryKeyFollows(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		per := func(n int) Limit { return Per(n, c.Limit.Period) }
		l, clock := newFrozen(t, c)
		require.ErrorContains(t, l.SetKeyPlan("a", "pro"), `"pro"`)
		_, err := l.Key("a").WithPlan("pro")
		require.ErrorContains(t, err, `"pro"`)
		var target *ConfigError
		require.ErrorAs(t, l.SetPlan("pro", Limit{Rate: 1}), &target)
		require.Empty(t, maps.Collect(l.Plans()))
		require.NoError(t, l.SetPlan("pro", per(700)))
		for i := range 50 {
			require.NoError(t, l.SetKeyPlan(fmt.Sprint("pro", i), "pro"))
			require.True(t, l.AllowN(fmt.Sprint("pro", i), 10*i))
		}
		require.NoError(t, l.SetKeyLimit("own", per(700)))
		require.ErrorAs(t, l.SetPlan("pro", Limit{Rate: 1}), &target)
		with, err := l.Key("with").WithPlan("pro")
		require.NoError(t, err)
		require.True(t, with.AllowN(100))
		require.NoError(t, l.SetPlan("pro", per(900)))
		require.Equal(t, map[string]Limit{"pro": per(900)}, maps.Collect(l.Plans()))
		for i := range 50 {
			require.Equal(t, per(900), l.KeyLimit(fmt.Sprint("pro", i)))
			require.Equal(t, 900-10*i, l.Peek(fmt.Sprint("pro", i), 0).Remaining)
		}
		require.Equal(t, per(700), l.KeyLimit("own"))
		require.Equal(t, 800, with.Peek(0).Remaining)
		limits := slices.Collect(maps.Values(maps.Collect(l.KeyLimits())))
		require.Len(t, limits, 51)
		require.Contains(t, limits, KeyLimit{per(900), "pro"})
		require.Contains(t, limits, KeyLimit{Limit: per(700)})
		require.Equal(t, KeyLimit{per(900), "pro"}, maps.Collect(l.KeyLimits())[l.Key("pro7")])

		l.ClearPlan("pro")
		l.ClearPlan("never")
		for i := range 50 {
			require.Equal(t, c.Limit, l.Key(fmt.Sprint("pro", i)).Limit())
			require.Equal(t, 10*i, spentOf(l, fmt.Sprint("pro", i)))
		}
		require.Error(t, l.SetKeyPlan("a", "pro"))
		require.Equal(t, 900, with.Limit().Rate, "by the last limit")
		clock.Advance(365 * day)
		l.Sweep()
		require.Zero(t, l.Len())
		checkCells(t, l, []string{"own"}, map[string]bool{"own": true})
	})
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
		checkCells(t, l, []string{"k"}, map[string]bool{"k": true})
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
		for _, c.Overflow = range overflows {
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
			checkCells(t, l, nil, map[string]bool{})
			require.LessOrEqual(t, l.plans.Load().brought.Size(), maxBrought)
			clock.Advance(3 * c.Limit.Period)
			l.Sweep()
			require.Zero(t, l.Len())
			for i := range l.shards {
				if ct := l.shards[i].cells.Load(); ct != nil {
					require.Zero(t, ct.live)
					require.LessOrEqual(t, len(ct.places), 128)
				}
			}
		}
	})
}

// TestConcurrent_TokensOfTwoLimits: one client's calls bring two limits by turns, from many
// goroutines. At one instant it is admitted exactly the larger one.
func TestConcurrent_TokensOfTwoLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Limit = Per(1000, c.Limit.Period)
		l, _ := newFrozen(t, c)
		require.NoError(t, l.SetPlan("pro", Per(900, c.Limit.Period)))
		k := l.Key("k")
		keys := []Key{k}
		for _, n := range []int{40, 1200} {
			with, err := k.WithLimit(Per(n, c.Limit.Period))
			require.NoError(t, err)
			keys = append(keys, with)
		}
		pro, err := k.WithPlan("pro")
		require.NoError(t, err)
		keys = append(keys, pro)
		var admitted atomic.Int64
		stop := churnAll([]*Limiter{l})
		var done atomic.Bool
		mover := goDo(1, func(int) {
			for i := 0; !done.Load(); i++ {
				assertNoError(t, l.SetPlan("pro", Per(900+i%2, c.Limit.Period)))
				assertNoError(t, k.SetPlan("pro"))
				k.ClearLimit()
				runtime.Gosched()
			}
		})
		goDo(3, func(g int) {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			for range 1500 {
				k := keys[rng.IntN(len(keys))]
				switch rng.IntN(4) {
				case 0:
					if TakeAll(Charge{k, 2}, Charge{l.Key("other"), 0}).Allowed {
						admitted.Add(2)
					}
				case 1:
					if d := k.Take(3); d.Allowed {
						admitted.Add(3)
					}
				case 2:
					k.Peek(1)
				default:
					if k.Allow() {
						admitted.Add(1)
					}
				}
			}
		})()
		done.Store(true)
		mover()
		stop()
		for keys[2].Allow() {
			admitted.Add(1)
		}
		require.Equal(t, int64(1200), admitted.Load())
		k.Reset()
		l.Sweep()
		checkCells(t, l, []string{"k"}, map[string]bool{})
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
	require.Equal(t, 58, l.Peek("k", 0).Remaining)
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
		require.Equal(t, 6, l.Peek("k", 0).Remaining)
	}
}

// TestConcurrent_PlanThatEnds: a key gets a plan before the plan ends, and loses it then, or
// it does not get it and keeps the limit it has.
func TestConcurrent_PlanThatEnds(t *testing.T) {
	l := Must(New(Config{Limit: PerSecond(1)}))
	own := PerSecond(5)
	accepted, refused := 0, 0
	for range 5000 {
		require.NoError(t, l.SetPlan("pro", PerSecond(3)))
		require.NoError(t, l.SetKeyLimit("k", own))
		put := make(chan error)
		go func() { put <- l.SetKeyPlan("k", "pro") }()
		runtime.Gosched()
		l.ClearPlan("pro")
		require.NotEqual(t, PerSecond(3), l.Key("k").Limit())
		if <-put == nil {
			accepted++
			require.Equal(t, PerSecond(1), l.Key("k").Limit())
			continue
		}
		refused++
		require.Equal(t, own, l.Key("k").Limit())
	}
	t.Logf("%d times the plan came first, %d times its end", accepted, refused)
}

// TestSetPlan_KeysThatAreBeingPutOnThePlan have its new limit when SetPlan returns. Had they
// it from their next call on, units would come back at the old rate until then.
func TestSetPlan_KeysThatAreBeingPutOnThePlan(t *testing.T) {
	c := &hookedClock{ManualClock: NewManualClock(start)}
	l := Must(New(Config{Limit: Per(8, 800*time.Millisecond), Clock: c}))
	require.NoError(t, l.SetPlan("pro", Per(8, 400*time.Millisecond)))
	require.True(t, l.Allow("k"))
	var put, set error
	whileMoved(c, func() { put = l.SetKeyPlan("k", "pro") }, func() { set = l.SetPlan("pro", Per(8, 8*time.Second)) })
	require.NoError(t, put)
	require.NoError(t, set)
	c.Advance(100 * time.Millisecond)
	require.Equal(t, Decision{Allowed: true, Limit: 8, Remaining: 7, ResetAfter: 900 * time.Millisecond}, l.Peek("k", 0))
}
