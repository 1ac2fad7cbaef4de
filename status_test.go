package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatus_Edges: blocks, limits that never end, and limits that keys and calls have.
func TestStatus_Edges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		limit := l.Config().Limit
		k := l.Key("k")
		window := l.Key("k").Status().WindowAfter
		assert.Equal(t, Status{Limit: limit, Remaining: limit.Capacity(), WindowAfter: window}, l.Key("k").Status(), "fresh")

		require.True(t, k.Block(sec))
		assert.Equal(t, Status{Limit: limit, NextAfter: sec, WindowAfter: window, ResetAfter: sec}, k.Status())
		k.Block(Never)
		assert.Equal(t, Status{Limit: limit, NextAfter: Never, WindowAfter: window, ResetAfter: Never}, k.Status())
		require.NoError(t, k.SetLimit(Unlimited))
		assert.Equal(t, Status{Limit: Unlimited, NextAfter: Never, ResetAfter: Never}, k.Status(), "blocked, if unlimited")
		k.Unblock()
		assert.Equal(t, Status{Limit: Unlimited, Remaining: math.MaxInt}, k.Status())
		require.NoError(t, k.SetLimit(DenyAll))
		assert.Equal(t, Status{Limit: DenyAll, NextAfter: Never}, k.Status())
		k.ClearLimit()

		smaller := limit
		smaller.Rate, smaller.Burst = 1, 0
		view, err := k.WithLimit(smaller)
		require.NoError(t, err)
		require.True(t, k.Allow())
		was := k.Status()
		assert.Equal(t, smaller, view.Status().Limit)
		assert.Zero(t, view.Status().Remaining)
		assert.Equal(t, view.Peek(1).RetryAfter, view.Status().NextAfter)
		assert.Equal(t, was, k.Status(), "nothing has changed")
		require.False(t, view.Allow(), "which puts the key under its limit")
		assert.Equal(t, was.Limit, k.Status().Limit)
		clock.Advance(time.Duration(1))
		assert.Equal(t, k.Peek(0).Remaining, k.Status().Remaining)
	})
}

// TestStatus_BlockOfATail: a block that is over is looked through, whatever it has left.
func TestStatus_BlockOfATail(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		require.True(t, l.Key("k").Block(sec))
		clock.Advance(time.Hour)
		assert.Equal(t, l.Key("other").Status(), l.Key("k").Status())
	})
}

// TestStatus_WhileAKeyMoves is that of the key before, or after.
func TestStatus_WhileAKeyMoves(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		c.Clock = clock
		l := mustNew(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(300))
		for _, move := range []func(){func() { assert.NoError(t, k.SetLimit(Per(1000, c.Limit.Period))) }, k.ClearLimit, func() { assert.NoError(t, l.SetLimit(Per(2000, c.Limit.Period))) }} {
			before := k.statusAt(start.UnixNano())
			var s Status
			whileMoved(clock, move, func() { s = k.statusAt(start.UnixNano()) })
			require.Contains(t, []Status{before, k.statusAt(start.UnixNano())}, s)
			require.Equal(t, 300, k.Limit().Capacity()-k.Peek(0).Remaining)
		}
	})
}
