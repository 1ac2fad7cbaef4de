package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGCRA_Trace(t *testing.T) {
	runTrace(t, Config{Algorithm: GCRA, Limit: PerSecond(2).WithBurst(4)}, bucketTrace)
}

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

// TestGCRA_UnevenIntervalStaysWithinTheGrid: a third of a second is no whole
// number of ns; three of them are a second.
func TestGCRA_UnevenIntervalStaysWithinTheGrid(t *testing.T) {
	third := 333_333_334 * time.Nanosecond
	runTrace(t, Config{Limit: PerSecond(3).WithBurst(1)}, []traceRow{
		{at: 0, cost: 1, ok: true, reset: third},
		{at: third - 1, cost: 1, ok: false, retry: 1, reset: 1},
		{at: third, cost: 1, ok: true, reset: third - 1}, // 2/3 s, rounded up
		{at: 2*third - 1, cost: 1, ok: true, reset: third - 1},
		{at: sec, cost: 1, ok: true, reset: third},
	})
}
