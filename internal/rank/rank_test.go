package rank

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestCut_TakesTheLowest(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		ranks := make([]uint64, 1+rng.IntN(50))
		for i := range ranks {
			ranks[i] = rng.Uint64N(20)
		}
		sorted := slices.Sorted(slices.Values(ranks))
		n := 1 + rng.IntN(len(ranks))
		require.Equal(t, sorted[n-1], selectNth(slices.Clone(ranks), n-1))
		require.Equal(t, sorted[:n], taken(Lowest(slices.Clone(ranks), n), ranks))
	}
}

// TestCut_SomeSparesTheHighest, and takes the others evenly.
func TestCut_SomeSparesTheHighest(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		ranks := make([]uint64, 1+rng.IntN(50))
		free := 0
		for i := range ranks {
			if ranks[i] = rng.Uint64N(20); ranks[i] < 15 {
				free++
			}
		}
		if free == 0 {
			continue
		}
		want := 1 + rng.IntN(free)
		got := taken(Some(free, want, 15), ranks)
		require.Len(t, got, want)
		require.Less(t, got[len(got)-1], uint64(15))
	}
	c := Some(6, 2, 100)
	var at []int
	for i := range 6 {
		if c.Takes(uint64(i)) {
			at = append(at, i)
		}
	}
	require.Equal(t, []int{2, 5}, at)
}

func taken(c Cut, ranks []uint64) (taken []uint64) {
	for _, rank := range ranks {
		if c.Takes(rank) {
			taken = append(taken, rank)
		}
	}
	slices.Sort(taken)
	return taken
}
