package keyid

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestUint64_IsABijection(t *testing.T) {
	rng := seeded.Rand(t)
	for _, stable := range []bool{false, true} {
		for range 20 {
			h := New(stable)
			require.Equal(t, uint64(1), h.number.mul&1, "only odd multipliers can be undone")
			check := func(n uint64) {
				id := h.Uint64(n)
				require.NotZero(t, id)
				if back := h.number.unmix(h.Hash(id)); back != n && h.Hash(id) != 1 {
					t.Fatalf("stable %v: %#x and %#x share the id %#x", stable, n, back, id)
				}
			}
			for i := range uint64(1000) {
				check(i)
				check(-i)
				check(rng.Uint64())
				check(1 << (i % 64))
			}
			// The one number that would land on 0 shares the id of another one.
			require.Equal(t, h.ID(1), h.Uint64(h.number.unmix(0)))
		}
	}
}

// TestHash_UndoesID, also at the one hash that would land on 0. Ids of a seeded Hasher are hashes themselves.
func TestHash_UndoesID(t *testing.T) {
	rng := seeded.Rand(t)
	for range 20 {
		plain, h := New(false), New(true)
		require.Equal(t, uint64(1), h.place.mul&1, "only odd multipliers can be undone")
		hashes := []uint64{1, math.MaxUint64, 1 << 63, h.place.unmix(0)}
		for range 1000 {
			hashes = append(hashes, rng.Uint64(), 1<<rng.IntN(64))
		}
		for _, hash := range hashes {
			require.NotZero(t, h.ID(hash))
			require.Equal(t, hash, h.Hash(h.ID(hash)))
			require.Equal(t, hash, plain.ID(hash))
			require.Equal(t, hash, plain.Hash(hash))
		}
		require.Equal(t, h.place.mix(0), h.ID(h.place.unmix(0)), "0 is no hash, so no other has its id")
		require.Equal(t, h.ID(1), h.ID(0))
		other := New(true)
		require.NotEqual(t, other.String("k"), h.String("k"), "the places are its own")
		require.Equal(t, other.Hash(other.String("k")), h.Hash(h.String("k")))
	}
}

// TestID_SpreadsHashesThatStrangersChoose: many share the first bits, or the low ones, and differ by any power of two.
func TestID_SpreadsHashesThatStrangersChoose(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4)) // fixed, as the bounds of chance ask for
	for range 20 {
		h := Hasher{stable: true, place: mixer{rng.Uint64(), rng.Uint64() | 1}}
		first := rng.Uint64()
		for shift := range 52 {
			shards, homes := make([]int, 64), make([]int, 64)
			for i := range uint64(1 << 12) {
				id := h.ID(first + i<<shift)
				shards[id>>58]++
				homes[uint32(id)>>26]++
			}
			assert.Less(t, chiSquare(shards), 3*chiSquareBound, "1<<%d", shift)
			assert.Less(t, chiSquare(homes), 3*chiSquareBound, "1<<%d", shift)
		}
	}
}

// chiSquare returns the statistic of counts against equal shares. With 64 counts
// it is 63 on average, with a standard deviation of 11.2.
func chiSquare(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	expected := float64(total) / float64(len(counts))
	sum := 0.0
	for _, n := range counts {
		sum += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	return sum
}

// Six standard deviations: one in a hundred million by chance. All inputs here are
// fixed, so a failure is never chance.
const chiSquareBound = 63 + 6*11.3

// numberings are the ways in which numeric keys come.
var numberings = map[string]func(i uint64) uint64{
	"sequential":        func(i uint64) uint64 { return i },
	"from-the-top":      func(i uint64) uint64 { return -i },
	"multiples-of-1000": func(i uint64) uint64 { return 1000 * i },
	"multiples-of-4096": func(i uint64) uint64 { return i << 12 },
	"high-half":         func(i uint64) uint64 { return i << 32 },
	"top-bits":          func(i uint64) uint64 { return i << 47 },
	"both-halves":       func(i uint64) uint64 { return i<<32 | i },
	"snowflakes":        func(i uint64) uint64 { return (i/7+1<<41)<<22 | 5<<12 | i%7 },
	"addresses":         func(i uint64) uint64 { return 0x0a000000 + i*256 },
}

func TestUint64_NumbersSpreadOverShardsAndSlots(t *testing.T) {
	h := New(true)
	for name, number := range numberings {
		shards, slots := make([]int, 64), make([]int, 64)
		for i := range uint64(1 << 17) {
			id := h.Uint64(number(i))
			shards[id>>58]++
			slots[id&63]++
		}
		assert.Less(t, chiSquare(shards), chiSquareBound, "%s: top bits of the id", name)
		assert.Less(t, chiSquare(slots), chiSquareBound, "%s: low bits of the id", name)
	}
}

// Under a seed some multipliers spread some numberings less evenly than chance.
// It matters only that neither probes nor shards get much longer for it: with
// random ids a table that is 3/4 full takes 2.5 slots a probe on average.
func TestUint64_NoSeedMakesLongProbes(t *testing.T) {
	const size = 1 << 14
	seeds := rand.New(rand.NewPCG(1, 2)) // as New draws them, but fixed
	for range 20 {
		h := Hasher{number: mixer{seeds.Uint64(), seeds.Uint64() | 1}}
		for name, number := range numberings {
			var used [size]bool
			shards, steps := make([]int, 32), 0
			for i := range uint64(size / 4 * 3) {
				id := h.Uint64(number(i))
				shards[id>>59]++
				at := id % size
				for steps++; used[at]; steps++ {
					at = (at + 1) % size
				}
				used[at] = true
			}
			assert.Less(t, float64(steps)/(size/4*3), 5.0, "%s: slots a probe, multiplier %#x", name, h.number.mul)
			assert.Less(t, slices.Max(shards), size/4*3/32*5/4, "%s: keys in a shard, multiplier %#x", name, h.number.mul)
		}
	}
}

func TestString_StringsSpreadOverShardsAndSlots(t *testing.T) {
	h := New(true)
	shards, slots := make([]int, 64), make([]int, 64)
	for i := range 1 << 15 {
		id := h.String(fmt.Sprintf("user:%d", i))
		shards[id>>58]++
		slots[id&63]++
	}
	require.Less(t, chiSquare(shards), chiSquareBound)
	require.Less(t, chiSquare(slots), chiSquareBound)
}

// Numbers that differ in one bit, whichever it is, must mostly fall into different
// shards and slots. By chance 1 in 64 would share one of 64. Two rounds do not mix
// perfectly, and 1 in 4 is harmless; a bit that did not reach an end would make it
// 4 in 4.
func TestUint64_EveryBitReachesBothEnds(t *testing.T) {
	h := New(true)
	const samples = 4096
	for bit := range 64 {
		sameShard, sameSlot := 0, 0
		for i := range uint64(samples) {
			differs := h.Uint64(i) ^ h.Uint64(i^1<<bit)
			if differs>>58 == 0 {
				sameShard++
			}
			if differs&63 == 0 {
				sameSlot++
			}
		}
		assert.Less(t, sameShard, samples/4, "bit %d of the number and the top bits of the id", bit)
		assert.Less(t, sameSlot, samples/4, "bit %d of the number and the low bits of the id", bit)
	}
}
