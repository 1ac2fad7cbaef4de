package sluice

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGCRA_WordIsTAT: the state is the theoretical arrival time itself.
func TestGCRA_WordIsTAT(t *testing.T) {
	a, err := newGCRA(PerSecond(10).WithBurst(3))
	require.Nil(t, err)
	now := start.UnixNano()
	word, ok := a.charge(0, now, 2)
	require.True(t, ok)
	require.Equal(t, uint64(now)+2e8, word)
	word, ok = a.charge(word, now+1e8, 2)
	require.True(t, ok)
	require.Equal(t, uint64(now)+4e8, word)
}

// TestGCRA_OldTimeCannotOverflow: an older now, far behind a TAT near the top of
// the range, must deny and not wrap.
func TestGCRA_OldTimeCannotOverflow(t *testing.T) {
	for _, newAlg := range []func(Limit) (algorithm, *ConfigError){newGCRA, newTokenBucket, newLeakyBucket} {
		a, err := newAlg(Limit{Rate: 1, Period: maxBurst, Burst: 1})
		require.Nil(t, err)
		word, ok := a.charge(0, math.MaxInt64, 1)
		require.True(t, ok)
		for _, now := range []int64{0, 1, 1 << 62, math.MaxInt64} {
			_, ok = a.charge(word, now, 1)
			require.False(t, ok, "at %d", now)
		}
	}
}
