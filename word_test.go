package sluice

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWord_BlocksAreNoMarks: whenever a block ends, its word is no mark, and tells the end as far
// as a word can.
func TestWord_BlocksAreNoMarks(t *testing.T) {
	for _, until := range []uint64{0, 1, math.MaxInt64, endless - 1, endless, endless + 1, elsewhere, held, moved} {
		word := blockedWord(until)
		require.GreaterOrEqual(t, word, uint64(reserved))
		require.Less(t, word, uint64(elsewhere))
		require.Equal(t, min(until, endless), word-reserved)
	}
}

// TestWord_BlockEndOfATail is told from whatever an algorithm keeps there.
func TestWord_BlockEndOfATail(t *testing.T) {
	for _, c := range []struct {
		word, until uint64
		ok          bool
	}{
		{0, 0, false}, {math.MaxInt64, math.MaxInt64, false},
		{blockMark, 0, true}, {blockMark | 5, 5, true}, {math.MaxUint64, math.MaxUint64, true},
	} {
		tail := make([]atomic.Uint64, 1)
		tail[0].Store(c.word)
		until, ok := blockEnd(tail)
		require.Equal(t, c.ok, ok, "%x", c.word)
		require.Equal(t, c.until, until, "%x", c.word)
	}
}

func glanceAt(e *slot) (word uint64, ok bool) {
	word, _, ok = e.glance(nil)
	return word, ok
}

// TestWord_WaitsForItsHolder: nobody takes a word that is held or locked, or reads a locked one.
// The word comes as its holder has left it.
func TestWord_WaitsForItsHolder(t *testing.T) {
	const before, after = 5, 7
	for name, c := range map[string]struct {
		busy, left uint64
		f          func(e *slot) (uint64, bool)
	}{
		"released":    {held, after, func(e *slot) (uint64, bool) { return e.released(), true }},
		"glance":      {before | locked, after, glanceAt},
		"lock":        {before | locked, after | locked, (*slot).lock},
		"freeze":      {held, moved, func(e *slot) (uint64, bool) { return e.freeze(false), true }},
		"freeze wide": {before | locked, moved, func(e *slot) (uint64, bool) { return e.freeze(true), true }},
	} {
		t.Run(name, func(t *testing.T) {
			var e slot
			e.word.Store(c.busy)
			var word uint64
			var ok bool
			wait := goDo(1, func(int) { word, ok = c.f(&e) })
			for range 100 {
				runtime.Gosched()
				require.Equal(t, c.busy, e.word.Load(), "somebody else has written")
			}
			e.word.Store(after)
			wait()
			require.True(t, ok)
			require.Equal(t, uint64(after), word)
			require.Equal(t, max(c.left, after), e.word.Load())
		})
	}
}

// TestWord_ThatHasGone is nobody's to read or lock.
func TestWord_ThatHasGone(t *testing.T) {
	for _, mark := range []uint64{moved, elsewhere} {
		var e slot
		e.word.Store(mark)
		_, ok := glanceAt(&e)
		require.False(t, ok)
		_, ok = e.lock()
		require.False(t, ok)
		require.Equal(t, mark, e.word.Load())
		require.Equal(t, mark, e.released())
	}
}

// TestWord_GlanceWhileABlockEnds waits until the word says so, too.
func TestWord_GlanceWhileABlockEnds(t *testing.T) {
	var e slot
	tail := make([]atomic.Uint64, 1)
	e.word.Store(blockedTail | 5)
	var word, blocked uint64
	var ok bool
	wait := goDo(1, func(int) { word, blocked, ok = e.glance(tail) })
	for range 100 {
		runtime.Gosched()
	}
	e.word.Store(7)
	wait()
	require.True(t, ok)
	require.Equal(t, []uint64{7, 0}, []uint64{word, blocked})
}
