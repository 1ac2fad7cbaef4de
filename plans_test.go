package sluice

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSetKeyLimit_WhereTheLimiterHasNoAlgorithm: a limiter that has been Unlimited or
// DenyAll from the start can take back a key that has spent something.
func TestSetKeyLimit_WhereTheLimiterHasNoAlgorithm(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		limit := c.Limit
		for _, c.Limit = range []Limit{Unlimited, DenyAll} {
			l, _ := newFrozen(t, c)
			require.NoError(t, l.SetKeyLimit("other", DenyAll))
			require.NoError(t, l.SetKeyLimit("k", limit))
			require.True(t, l.AllowN("k", 300))
			l.ClearKeyLimit("k")
			require.Equal(t, c.Limit == Unlimited, l.AllowN("k", 1))
			require.NoError(t, l.SetKeyLimit("k", DenyAll))
			require.False(t, l.Allow("k"))
			require.NoError(t, l.SetKeyLimit("k", limit))
			require.Equal(t, 300, spentOf(l, "k"))
			l.ClearKeyLimit("k")
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, 300, spentOf(l, "k"))
		}
	})
}

// TestSetKeyLimit_CountsWhatOthersCould: a limit of a key that was first used when the
// limiter's was small keeps what a key has spent under a larger one.
func TestSetKeyLimit_CountsWhatOthersCould(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		small, large := Per(10, c.Limit.Period), Per(4000, c.Limit.Period)
		require.NoError(t, l.SetLimit(small))
		require.NoError(t, l.SetKeyLimit("early", Per(5, c.Limit.Period)))
		require.True(t, l.AllowN("early", 5))
		require.NoError(t, l.SetLimit(large))
		require.True(t, l.AllowN("k", 3000))
		require.NoError(t, l.SetKeyLimit("k", Per(5, c.Limit.Period)))
		l.ClearKeyLimit("k")
		require.Equal(t, 3000, spentOf(l, "k"))
		require.False(t, l.Allow("early"))
	})
}

// TestClearKeyLimit_TogglingAPlanGivesNoBurst: what a key has spent under a limit of its
// own that is above the limiter's is still spent when it gets that limit again.
func TestClearKeyLimit_TogglingAPlanGivesNoBurst(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Algorithm == SlidingLog {
			// The limiter's logs have room for its own largest limit: else one key would
			// lengthen those of all.
			l, _ := newFrozen(t, c)
			require.NoError(t, l.SetKeyLimit("k", Per(5000, c.Limit.Period)))
			require.True(t, l.AllowN("k", 5000))
			l.ClearKeyLimit("k")
			require.Equal(t, c.Limit.Rate, l.current.Load().tailLen())
			require.False(t, l.Allow("k"))
			return
		}
		l, _ := newFrozen(t, c)
		plan := Per(70_000, c.Limit.Period)
		if c.Limit.Rate > 1000 {
			plan.Rate = 3_000_000
		}
		require.True(t, l.AllowN("other", 200))
		for range 3 {
			require.NoError(t, l.SetKeyLimit("k", plan))
			l.AllowN("k", plan.Rate)
			require.False(t, l.Allow("k"))
			l.ClearKeyLimit("k")
			require.False(t, l.Allow("k"))
		}
		require.NoError(t, l.SetLimit(plan))
		require.Zero(t, l.Peek("k", 0).Remaining)
		require.Equal(t, 200, spentOf(l, "other"))
	})
}

// TestSetKeyLimit_UnlimitedKeepsTheRateOfTheKey: units go on coming back as they did
// before, whatever the limiter's rate was when such a limit was first used.
func TestSetKeyLimit_UnlimitedKeepsTheRateOfTheKey(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, constant := range []Limit{Unlimited, DenyAll} {
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1000)})
			require.NoError(t, l.SetKeyLimit("other", constant))
			require.NoError(t, l.SetKeyLimit("k", PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k", 1000))
			require.NoError(t, l.SetKeyLimit("k", constant))
			clock.Advance(5 * time.Second)
			require.NoError(t, l.SetKeyLimit("k", PerSecond(1).WithBurst(1000)))
			require.Equal(t, 500, spentOf(l, "k"), "under a limit of its own before")

			require.NoError(t, l.SetLimit(PerSecond(100).WithBurst(1000)))
			require.True(t, l.AllowN("k2", 1000))
			require.NoError(t, l.SetKeyLimit("k2", constant))
			clock.Advance(5 * time.Second)
			l.ClearKeyLimit("k2")
			require.Equal(t, 500, spentOf(l, "k2"), "under the limiter's limit before")
		}
	}
}

// hookedClock calls hook, once, at its next reading.
type hookedClock struct {
	*ManualClock
	hook atomic.Pointer[func()]
}

func (c *hookedClock) Now() int64 {
	if f := c.hook.Swap(nil); f != nil {
		(*f)()
	}
	return c.ManualClock.Now()
}

// whileMoved runs move, which moves a key between limiters, and f at a moment at which
// no table holds the key. f may wait for the end of the move.
func whileMoved(c *hookedClock, move, f func()) {
	var done atomic.Bool
	hook := func() {
		go func() { f(); done.Store(true) }()
		for i := 0; i < 5000 && !done.Load(); i++ {
			runtime.Gosched()
		}
	}
	c.hook.Store(&hook)
	move()
	for !done.Load() {
		runtime.Gosched()
	}
}

// TestSetKeyLimit_NothingIsMissedWhileAKeyMoves: who comes when neither table holds the
// key waits for it.
func TestSetKeyLimit_NothingIsMissedWhileAKeyMoves(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		c.Clock = clock
		l := mustNew(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(300))
		plan := Per(1000, c.Limit.Period)
		for i, move := range []func(){func() { require.NoError(t, k.SetLimit(plan)) }, k.ClearLimit} {
			left := k.lim.policyOf(0).burst - 300
			if i == 0 {
				left = 1000 - 300
			}
			var d Decision
			whileMoved(clock, move, func() { d = k.Peek(0) })
			require.Contains(t, []int{1000 - 300, int(l.policyOf(0).burst) - 300}, d.Remaining, "Peek")
			var all AllDecision
			back := []func(){k.ClearLimit, func() { require.NoError(t, k.SetLimit(plan)) }}[i]
			whileMoved(clock, back, func() { all = TakeAll(Charge{k, 0}) })
			require.Contains(t, []int{1000 - 300, int(l.policyOf(0).burst) - 300}, all.Remaining, "TakeAll")

			whileMoved(clock, move, func() { k.Refund(100) })
			require.Equal(t, int(left)+100, k.Peek(0).Remaining, "Refund")
			require.True(t, k.AllowN(100))
			whileMoved(clock, back, func() { k.Reset() })
			require.Zero(t, spentOf(l, "k"), "Reset")
			require.True(t, k.AllowN(300))
			move()
		}
	})
}

// TestStats_OutliveALimitOfAKey: counters do not fall when the last key leaves a limit.
func TestStats_OutliveALimitOfAKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Stats, c.BlockFor = true, time.Minute
		for _, c.Shards = range []int{1, 0} {
			l, _ := newFrozen(t, c)
			require.NoError(t, l.SetKeyLimit("k", Per(3, c.Limit.Period)))
			for range 5 {
				l.Allow("k")
			}
			l.Allow("other")
			l.Reset("k")
			require.Equal(t, 1, l.Sweep())
			before := l.Stats()
			require.Equal(t, [3]uint64{4, 2, 1}, [3]uint64{before.Admitted, before.Denied, before.Blocked})
			l.ClearKeyLimit("k")
			require.Equal(t, before, l.Stats())
		}
	})
}

// TestBlock_UnderDenyAllAndUnlimited: what Block says it has blocked stays blocked.
func TestBlock_UnderDenyAllAndUnlimited(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, name := range []string{"new", "tracked"} {
			for _, constant := range []Limit{Unlimited, DenyAll} {
				l, _ := newFrozen(t, c)
				require.True(t, l.Allow("tracked"))
				require.NoError(t, l.SetLimit(constant))
				require.True(t, l.Block(name, time.Hour), name)
				require.False(t, l.Allow(name), name)
				require.NoError(t, l.SetLimit(c.Limit))
				require.False(t, l.Allow(name), name)
			}
		}
	})
}

// TestSetKeyLimit_LeavesNothingBehind, and an error changes nothing.
func TestSetKeyLimit_LeavesNothingBehind(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10), Soft: 3})
	var target *ConfigError
	for _, bad := range []Limit{{Rate: 1}, {Rate: -1, Period: 1}, Unlimited.WithBurst(1), PerSecond(2).WithBurst(math.MaxInt)} {
		require.ErrorAs(t, l.SetKeyLimit("k", bad), &target)
		require.ErrorAs(t, l.Key("k").SetLimit(bad), &target)
		require.ErrorAs(t, l.SetLimit(bad), &target)
		checkCells(t, l, []string{"k"}, map[string]bool{})
	}
	require.Equal(t, PerSecond(10), l.Config().Limit)
	require.NoError(t, l.SetKeyLimit("a", PerSecond(5)))
	require.NoError(t, l.SetKeyLimit("b", PerSecond(5)))
	require.Error(t, l.SetKeyLimit("a", Limit{Rate: 1}))
	require.Equal(t, PerSecond(5), l.Key("a").Limit())
	require.True(t, l.Allow("a"))
	before := l.shardOf(l.Key("a").id).cell(l.Key("a").id)
	require.NoError(t, l.SetKeyLimit("a", PerSecond(5)))
	require.Same(t, before, l.shardOf(before.id.Load()).cell(before.id.Load()), "the same limit again changes nothing")
	l.ClearKeyLimit("a")
	l.ClearKeyLimit("a")
	l.ClearKeyLimit("never")
	checkCells(t, l, []string{"a", "b", "never"}, map[string]bool{"b": true})
	require.NoError(t, l.SetKeyLimit("b", PerSecond(6)))
	l.ClearKeyLimit("b")
	l.Reset("a")
	l.Sweep()
	checkCells(t, l, []string{"a", "b"}, map[string]bool{})
	require.Zero(t, l.Len())
}

// TestSetKeyLimit_OptionsHold: Shadow, Soft and TopDenied also speak of such keys.
func TestSetKeyLimit_OptionsHold(t *testing.T) {
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
