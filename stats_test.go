package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStats_SweptCountsKeys(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), Shards: 1})
	fill(l, "key", 10)
	require.Zero(t, l.Sweep())
	require.Zero(t, l.Stats().Swept)
	clock.Advance(time.Second)
	require.Equal(t, 10, l.Sweep())
	require.Equal(t, Stats{Swept: 10}, l.Stats())
}
