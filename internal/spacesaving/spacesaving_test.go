package spacesaving

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestTop_CountsAreBounds compares the counters with exact counts: whatever the stream, a
// count is too high by at most its Excess and never too low, all counts add up to the
// length of the stream, and any id above a share of 1/n is there.
func TestTop_CountsAreBounds(t *testing.T) {
	rng := seeded.Rand(t)
	for range 300 {
		n := 1 + rng.IntN(20)
		top := New(n)
		exact := map[uint64]uint64{}
		length := rng.IntN(3000)
		ids := 1 + rng.IntN(200)
		var before, copied []Counter
		for i := range length {
			if i == length/2 {
				before = top.List() // which is nobody else's from then on
				copied = slices.Clone(before)
			}
			// A few ids make up most of it, as with real denials.
			id := 1 + uint64(float64(ids)*math.Pow(rng.Float64(), 3))
			exact[id]++
			top.Count(id, fmt.Sprint("key", id))
		}
		require.Equal(t, copied, before)
		list := top.List()
		require.Equal(t, min(n, len(exact)), len(list))
		sum, listed := uint64(0), map[uint64]bool{}
		for i, c := range list {
			require.Equal(t, fmt.Sprint("key", c.ID), c.Name)
			require.LessOrEqual(t, c.Count-c.Excess, exact[c.ID])
			require.GreaterOrEqual(t, c.Count, exact[c.ID])
			require.True(t, i == 0 || list[(i-1)/2].Count <= c.Count, "a heap")
			require.False(t, listed[c.ID], "listed twice")
			listed[c.ID] = true
			sum += c.Count
		}
		require.Equal(t, uint64(length), sum)
		for id, count := range exact {
			require.True(t, count*uint64(n) <= uint64(length) || listed[id], "%d of %d, %d counters", count, length, n)
		}
	}
}

// TestTop_NamesComeThoughOthersPushIn: two ids whose place among the names that are asked
// for is the same are both named in the end, and one that has no counter any more asks no
// more.
func TestTop_NamesComeThoughOthersPushIn(t *testing.T) {
	top := New(2)
	places := uint64(len(top.asked))
	a, b, c := uint64(1), 1+places, 1+2*places
	top.Count(a, "")
	top.Count(b, "")
	require.False(t, top.Nameless(a), "b asks in its place")
	top.Name(b, "b")
	top.Count(a, "")
	top.Name(a, "a")
	require.ElementsMatch(t, []Counter{{a, "a", 2, 0}, {b, "b", 1, 0}}, top.List())
	top.Count(c, "") // in the place of b
	top.Name(b, "b")
	require.True(t, top.Nameless(c))
	top.Name(c, "c")
	require.False(t, top.Nameless(c))
	require.ElementsMatch(t, []Counter{{a, "a", 2, 0}, {c, "c", 2, 1}}, top.List())
}

func TestTop_NamesAreBounded(t *testing.T) {
	top := New(1)
	top.Count(1, strings.Repeat("x", 1<<20))
	require.Equal(t, strings.Repeat("x", MaxName), top.List()[0].Name)
}

// TestTop_NobodyWaits: whoever is counting keeps nobody else.
func TestTop_NobodyWaits(t *testing.T) {
	top := New(1)
	require.True(t, top.mu.TryLock())
	top.Count(1, "a")
	top.Name(1, "a")
	top.mu.Unlock()
	require.Empty(t, top.List())
}
