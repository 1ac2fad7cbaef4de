package sluice

import (
	"math"
	"testing"

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
