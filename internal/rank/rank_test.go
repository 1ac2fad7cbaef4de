package rank

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("SLUICE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "SLUICE_SEED")
	}
	t.Logf("SLUICE_SEED=%d repeats this run", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

func TestCut_TakesTheLowest(t *testing.T) {
	rng := newRand(t)
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
	rng := newRand(t)
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
