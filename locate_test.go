package sluice

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

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

// TestKeyLimit_NothingIsMissedWhileAKeyMoves: who comes when neither table holds the
// key waits for it.
func TestKeyLimit_NothingIsMissedWhileAKeyMoves(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		c.Clock = clock
		l := mustNew(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(300))
		own := Per(1000, c.Limit.Period)
		for i, move := range []func(){func() { require.NoError(t, k.SetLimit(own)) }, k.ClearLimit} {
			left := uint64(burstOf(k.lim)) - 300
			if i == 0 {
				left = 1000 - 300
			}
			var d Decision
			whileMoved(clock, move, func() { d = k.Peek(0) })
			require.Contains(t, []int{1000 - 300, burstOf(l) - 300}, d.Remaining, "Peek")
			var all AllDecision
			back := []func(){k.ClearLimit, func() { require.NoError(t, k.SetLimit(own)) }}[i]
			whileMoved(clock, back, func() { all = TakeAll(Charge{k, 0}) })
			require.Contains(t, []int{1000 - 300, burstOf(l) - 300}, all.Remaining, "TakeAll")

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

// TestLocate_AKeyThatHasGoneFromItsSpot: its state is read where it is now, and nothing is made of
// what is left behind.
func TestLocate_AKeyThatHasGoneFromItsSpot(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(3))
		at := l.locate(k.id)
		e, ok := at.read()
		require.True(t, ok)
		require.Equal(t, at.slot.word.Load(), e.word)
		require.NoError(t, k.SetLimit(Per(1000, c.Limit.Period)))
		require.Equal(t, uint64(elsewhere), at.slot.word.Load())
		_, ok = at.read()
		require.False(t, ok)
		require.False(t, at.slot.update(at.policy, at.tail, func(*policy, state) uint64 { return 0 }))
		require.Equal(t, uint64(elsewhere), at.slot.word.Load())
		now := l.locate(k.id)
		require.NotSame(t, at.slot, now.slot)
		_, ok = now.read()
		require.True(t, ok)
	})
}
