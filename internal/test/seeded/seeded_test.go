package seeded

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRand_RepeatsARun(t *testing.T) {
	first := func(t *testing.T) uint64 { return Rand(t).Uint64() }
	t.Setenv("SLUICE_SEED", "7")
	require.Equal(t, first(t), first(t))
	t.Setenv("SLUICE_SEED", "random")
	require.NotEqual(t, first(t), first(t))
	t.Setenv("SLUICE_SEED", "")
	require.Equal(t, first(t), first(t))
	plain := first(t)
	t.Setenv("SLUICE_SEED", "of:a")
	require.Equal(t, first(t), first(t))
	require.NotEqual(t, plain, first(t))
	ofA := first(t)
	t.Setenv("SLUICE_SEED", "of:b")
	require.NotEqual(t, ofA, first(t))
	t.Run("another", func(other *testing.T) { require.NotEqual(other, first(other), first(t), "each test has its seed") })
}

func TestSeed_Given(t *testing.T) {
	for s, want := range map[string]bool{"7": true, "random": false, "of:a": false, "": false} {
		t.Setenv("SLUICE_SEED", s)
		_, given := Seed(t)
		require.Equal(t, want, given, s)
	}
}
