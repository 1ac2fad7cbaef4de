package depth

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	usual := 2
	if testing.Short() {
		usual = 1
	}
	t.Setenv("SLUICE_DEPTH", "")
	require.Equal(t, usual, Of(1, 2, 3))
	require.False(t, Full())

	t.Setenv("SLUICE_DEPTH", "full")
	require.Equal(t, map[bool]int{true: 1, false: 3}[testing.Short()], Of(1, 2, 3))
	require.Equal(t, !testing.Short(), Full())

	t.Setenv("SLUICE_DEPTH", "1000")
	require.PanicsWithValue(t, `SLUICE_DEPTH is "1000"; want it unset, or full`, func() { Of(1, 2, 3) })
}
