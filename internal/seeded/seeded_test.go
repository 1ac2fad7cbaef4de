package seeded

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRand_RepeatsARun(t *testing.T) {
	t.Setenv("SLUICE_SEED", "7")
	require.Equal(t, Rand(t).Uint64(), Rand(t).Uint64())
	t.Setenv("SLUICE_SEED", "")
	require.NotEqual(t, Rand(t).Uint64(), Rand(t).Uint64())
}
