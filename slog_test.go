package sluice

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlidingLog_RingGoesRound many times, with costs that straddle its end.
func TestSlidingLog_RingGoesRound(t *testing.T) {
	for _, rate := range []int{1, 2, 3, 5, 8} {
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(rate)})
		k := l.Key("k")
		for range 100 {
			require.True(t, k.AllowN(rate))
			require.False(t, k.Allow())
			clock.Advance(sec)
			for i := range rate {
				require.Equal(t, rate-i, k.Peek(0).Remaining)
				require.True(t, k.Allow())
			}
			require.False(t, k.Allow())
			clock.Advance(sec)
		}
	}
}

// TestSlidingLog_VersionGoesRound: past its last value it starts over, without
// touching the lock bit. The word is set near the edge instead of charging 2^42
// times.
func TestSlidingLog_VersionGoesRound(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerMinute(1000), Shards: 1})
	k := l.Key("k")
	require.True(t, k.AllowN(10))
	e, _ := l.tableOf(0).lookup(k.id)
	require.NotNil(t, e)
	a := l.policyOf(0).wide.(*slidingLog)
	word := e.word.Load()
	e.word.Store((1<<(62-a.bits)-4)<<a.bits | a.written(word))
	for want := 989; want >= 980; want-- {
		require.Equal(t, want, k.Take(1).Remaining)
		require.Zero(t, e.word.Load()&locked)
		require.NotEqual(t, uint64(1<<(62-a.bits)-1), e.word.Load()>>a.bits, "with the lock bit this could be moved")
	}
}

// TestSlidingLog_TailIsReturnedWhenSwept: rings of dropped keys are not kept.
func TestSlidingLog_TailIsReturnedWhenSwept(t *testing.T) {
	for _, rate := range []int{3, 5000} { // many rings to a chunk, and one
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(rate), Shards: 1})
		fill(l, "key", 40)
		clock.Advance(sec / 2)
		fill(l, "late", 2)
		clock.Advance(sec / 2)
		require.Equal(t, 40, l.Sweep())
		chunks, words := map[*atomic.Uint64]int{}, 0 // by the last word
		for i := range l.tableOf(0).occupied {
			ring := l.tableOf(0).tails.Of(i)
			last := &ring[:cap(ring)][cap(ring)-1]
			chunks[last] = max(chunks[last], cap(ring))
		}
		for _, n := range chunks {
			words += n
		}
		require.LessOrEqual(t, words, 6*rate, "rings for 6 keys at most")
		require.Equal(t, rate-1, l.Key("late1").Peek(0).Remaining)
		clock.Advance(sec)
		require.Equal(t, 2, l.Sweep())
		require.Len(t, l.tableOf(0).slots, 1)
	}
}
