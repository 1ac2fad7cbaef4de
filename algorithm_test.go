package sluice

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStateless_HasNoWords: where there has never been a limit to keep, nothing is charged, counted
// or taken over, whatever a word may be.
func TestStateless_HasNoWords(t *testing.T) {
	var a algorithm = stateless{}
	for _, word := range []uint64{0, 1, reserved - 1} {
		next, ok := a.charge(word, 9, 1)
		require.False(t, ok)
		require.Zero(t, next)
		require.Zero(t, a.debit(word, 9, 1))
		require.Zero(t, a.refund(state{word: word}, 9, 1))
		require.Zero(t, a.idleAt(word))
		require.Zero(t, a.rank(word, 9))
		remaining, retry, reset := a.describe(word, 9, 1, true)
		require.Equal(t, Decision{}, Decision{Remaining: remaining, RetryAfter: retry, ResetAfter: reset})
	}
	require.Zero(t, a.worstCase(9))
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("k", 3))
		old, e := l.policyOf(0), state{}
		l.update(l.Key("k").id, func(_ *policy, key state) uint64 { e = key; return key.word })
		require.Zero(t, a.adopt(old.arith, e, []atomic.Uint64{}, start.UnixNano()))
	})
}
