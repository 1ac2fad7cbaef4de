package sluice

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
