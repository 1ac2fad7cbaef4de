package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMulDiv_Saturates(t *testing.T) {
	for _, c := range []struct{ a, b, d, quo, rem uint64 }{
		{7, 5, 4, 8, 3},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, 0},
		{math.MaxUint64, 2, 1, math.MaxUint64, 0},
		{1 << 63, 4, 2, math.MaxUint64, 0},
		{1 << 63, 2, 2, 1 << 63, 0},
	} {
		quo, rem := mulDiv(c.a, c.b, c.d)
		require.Equal(t, c.quo, quo)
		require.Equal(t, c.rem, rem)
	}
	require.Equal(t, uint64(math.MaxUint64), saturatingAdd(math.MaxUint64, 1))
	require.Equal(t, uint64(3), saturatingAdd(1, 2))
}

// TestUntil_AndAfterSaturate where the clock ends.
func TestUntil_AndAfterSaturate(t *testing.T) {
	require.Equal(t, Never, until(math.MaxUint64, 5))
	require.Equal(t, Never, until(1<<63, math.MaxInt64))
	require.Equal(t, time.Duration(0), until(math.MaxInt64, math.MaxInt64))
	require.Equal(t, time.Duration(2), until(7, 5))
	require.Equal(t, uint64(math.MaxInt64), after(math.MaxInt64-1, 1))
	require.Equal(t, uint64(math.MaxUint64), after(math.MaxInt64, 1))
	require.Equal(t, uint64(math.MaxUint64), after(math.MaxInt64, Never))
}
