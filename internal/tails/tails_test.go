package tails

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestStore_EachSlotHasATailOfItsOwn, whether it is new or comes from another Store.
func TestStore_EachSlotHasATailOfItsOwn(t *testing.T) {
	rng := seeded.Rand(t)
	for range 200 {
		slots, length := 1+rng.IntN(100), 1+rng.IntN(3*Short)
		limit := 1 + rng.IntN(slots)
		s, old := New(slots, limit, length), New(slots, limit, length)
		require.Equal(t, length, s.Length)
		taken := rng.Perm(slots)[:limit]
		for i, slot := range taken {
			if rng.IntN(2) == 0 {
				tail := s.Add(uint64(slot))
				for i := range tail {
					require.Zero(t, tail[i].Load())
				}
				s.Of(uint64(slot))[length-1].Store(uint64(i))
				continue
			}
			tail := old.Add(uint64(slot))
			tail[length-1].Store(uint64(i))
			s.Attach(uint64(slot), tail)
			alone := length > Short || limit == 1
			require.Equal(t, alone, &s.Of(uint64(slot))[0] == &tail[0], "a tail that has a chunk to itself is not copied")
		}
		for i, slot := range taken {
			tail := s.Of(uint64(slot))
			require.Len(t, tail, length)
			require.Equal(t, uint64(i), tail[length-1].Load())
		}
	}
	var none Store
	require.Zero(t, none.Length)
}
