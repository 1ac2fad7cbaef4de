package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStats_Sweeps counts the tables that were rebuilt, not the looks at them.
func TestStats_Sweeps(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), Shards: 1})
	fill(l, "key", 10)
	require.Zero(t, l.Sweep())
	require.Zero(t, l.Stats().Sweeps)
	clock.Advance(time.Second)
	require.Equal(t, 10, l.Sweep())
	require.Equal(t, Stats{Swept: 10, Sweeps: 1, Growths: l.Stats().Growths}, l.Stats())
}
