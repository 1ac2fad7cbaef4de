package sluice

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// TestPlans_AListingCanStop at any time, of plans and of the limits of keys.
func TestPlans_AListingCanStop(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(1)})
	want := map[Key]bool{}
	for i := range 20 {
		require.NoError(t, l.SetPlan(fmt.Sprintf("plan%02d", i), PerSecond(2+i)))
		k := l.KeyUint64(uint64(i))
		require.NoError(t, k.SetPlan(fmt.Sprintf("plan%02d", i)))
		want[k] = true
	}
	for most := 1; most <= 21; most++ {
		var names []string
		for name, limit := range l.Plans() {
			require.Equal(t, PerSecond(2+len(names)), limit)
			require.Equal(t, fmt.Sprintf("plan%02d", len(names)), name)
			if names = append(names, name); len(names) == most {
				break
			}
		}
		require.Len(t, names, min(most, 20))
		seen := map[Key]bool{}
		for k, is := range l.KeyLimits() {
			require.True(t, want[k] && !seen[k])
			require.Contains(t, is.Plan, "plan")
			if seen[k] = true; len(seen) == most {
				break
			}
		}
		require.Len(t, seen, min(most, 20))
	}
}

// Slots for several keys go by the limits that the Keys bring.
func TestReserveAll_KeysThatBringLimits(t *testing.T) {
	clock := NewManualClock(time.Unix(1000, 0))
	lim := Must(New(Config{Limit: PerSecond(1), Clock: clock, MaxReservations: 2}))
	require.NoError(t, lim.SetPlan("pro", PerSecond(4)))
	five, err := lim.Key("a").WithLimit(PerSecond(5))
	require.NoError(t, err)
	pro, err := lim.Key("b").WithPlan("pro")
	require.NoError(t, err)

	all, err := ReserveAll(time.Minute, Charge{five, 5}, Charge{pro, 4})
	require.NoError(t, err)
	require.Zero(t, all[1].Delay())
	all, err = ReserveAll(time.Minute, Charge{five, 1}, Charge{pro, 1})
	require.NoError(t, err)
	require.Equal(t, time.Second/4, all[0].Delay())
	_, err = ReserveAll(time.Minute, Charge{five, 1})
	require.ErrorIs(t, err, ErrTooManyReservations)
	all[0].Cancel()
	all[1].Cancel()

	clock.Advance(time.Second)
	require.NoError(t, WaitAll(context.Background(), Charge{five, 5}, Charge{pro, 4}))
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
func TestReserveAll_GoesByTheFirstLimitOfAKey(t *testing.T) {
	for _, tracked := range []bool{false, true} {
		lim := Must(New(Config{Limit: PerSecond(100), Clock: NewManualClock(start)}))
		k := lim.Key("a")
		require.Equal(t, tracked, tracked && k.Allow())
		ten, err := k.WithLimit(PerSecond(10))
		require.NoError(t, err)
		two, err := k.WithLimit(PerSecond(2))
		require.NoError(t, err)
		_, err = ReserveAll(0, Charge{ten, 3}, Charge{two, 3})
		require.NoError(t, err, tracked)
		_, err = ReserveAll(time.Minute, Charge{two, 1}, Charge{ten, 2})
		require.ErrorIs(t, err, ErrCostExceedsBurst, tracked)
	}
}

// No plan has the name of limits without one, nor a name that a snapshot cannot hold.
func TestSetPlan_Names(t *testing.T) {
	lim := Must(New(Config{Limit: PerSecond(100), Hash: HashStable}))
	longest := strings.Repeat("n", maxPlanName)
	for _, name := range []string{"", longest + "n"} {
		var target *ConfigError
		require.ErrorAs(t, lim.SetPlan(name, PerSecond(1)), &target)
		require.Error(t, lim.SetKeyPlan("a", name))
	}
	require.NoError(t, lim.SetPlan(longest, PerSecond(1)))
	require.NoError(t, lim.SetKeyPlan("a", longest))

	var snapshot bytes.Buffer
	require.NoError(t, lim.Snapshot(&snapshot))
	next := Must(New(lim.Config()))
	require.NoError(t, next.Restore(&snapshot))
	require.Equal(t, PerSecond(1), next.KeyLimit("a"))
}
