package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

var hashes = []Hash{HashSeeded, HashStable}

func TestHash_KeyFormsAgree(t *testing.T) {
	for _, h := range hashes {
		l := mustNew(t, Config{Limit: PerHour(1), Hash: h})
		for n := range 100 {
			b := make([]byte, n) // lengths cross the blocks of both hashes
			for i := range b {
				b[i] = byte(i * n)
			}
			s := string(b)
			require.Equal(t, l.Key(s), l.KeyBytes(b), "%v: %d bytes", h, n)
			require.True(t, l.Allow(s))
			require.False(t, l.KeyBytes(b).Allow(), "the handle of the bytes is the string's key")
		}
		require.Equal(t, l.Key(""), l.KeyBytes(nil))
	}
}

func TestKeyBytes_DoesNotRetain(t *testing.T) {
	for _, h := range hashes {
		l := mustNew(t, Config{Limit: PerHour(1), Hash: h})
		b := []byte("user:42")
		k := l.KeyBytes(b)
		copy(b, "mallory")
		require.True(t, k.Allow())
		require.False(t, l.Allow("user:42"))
		require.True(t, l.Allow("mallory"))
	}
}

func TestHash_StableIsXXH64(t *testing.T) {
	a, b := mustNew(t, Config{Limit: PerHour(1), Hash: HashStable}), mustNew(t, Config{Limit: PerHour(1), Hash: HashStable})
	// From the reference implementation, with seed 0.
	for s, want := range map[string]uint64{
		"": 0xef46db3751d8e999, "a": 0xd24ec4f1a98c6e5b, "abc": 0x44bc2cf5ad770999,
	} {
		require.Equal(t, want, a.Key(s).id, "%q", s)
	}
	for _, s := range []string{"", "a", "user:42", "0123456789abcdef0123456789abcdef0123456789abcdef"} {
		require.Equal(t, a.KeyHash(xxhash.Sum64String(s)), a.Key(s))
		require.Equal(t, a.Key(s).id, b.Key(s).id, "the same in every limiter")
	}
	// Ids of numbers and addresses are as stable: snapshots and replays rely on it.
	require.Equal(t, uint64(0x75d648df2bcee87c), a.KeyUint64(42).id)
	require.Equal(t, uint64(0xe80df5229f939c15), a.KeyAddr(netip.MustParseAddr("192.0.2.1")).id)
}

func TestHash_SeededDiffersBetweenLimiters(t *testing.T) {
	a, b := mustNew(t, Config{Limit: PerHour(1)}), mustNew(t, Config{Limit: PerHour(1)})
	addr := netip.MustParseAddr("2001:db8::1")
	require.NotEqual(t, a.Key("user:42").id, b.Key("user:42").id)
	require.NotEqual(t, a.KeyUint64(42).id, b.KeyUint64(42).id)
	require.NotEqual(t, a.KeyAddr(addr).id, b.KeyAddr(addr).id)
	require.NotEqual(t, a.Key("user:42").id, xxhash.Sum64String("user:42"))
	// A difference of two numbers must not show in their ids, either.
	require.NotEqual(t, a.KeyUint64(1).id-a.KeyUint64(2).id, b.KeyUint64(1).id-b.KeyUint64(2).id)
	require.Equal(t, a.Key("user:42"), a.Key("user:42"))
}

func TestKeyAddr_SameHostIsSameKey(t *testing.T) {
	for _, h := range hashes {
		l := mustNew(t, Config{Limit: PerHour(1), Hash: h})
		id := func(s string) uint64 { return l.KeyAddr(netip.MustParseAddr(s)).id }
		assert.Equal(t, id("192.0.2.1"), id("::ffff:192.0.2.1"), "IPv4-mapped")
		assert.Equal(t, id("192.0.2.1"), id("::ffff:c000:201"))
		assert.Equal(t, id("192.0.2.1"), id("::ffff:192.0.2.1%eth0"))
		assert.Equal(t, id("fe80::1"), id("fe80::1%eth0"), "zone")
		assert.Equal(t, id("fe80::1%eth1"), id("fe80::1%eth0"))

		ids := map[uint64]string{}
		for _, s := range []string{
			"192.0.2.1", "192.0.2.2", "::192.0.2.1", "fe80::1", "fe80::2", "::", "0.0.0.0", "2001:db8::1", "2001:db8:0:1::1",
		} {
			require.NotContains(t, ids, id(s), "%s and %s", s, ids[id(s)])
			ids[id(s)] = s
		}
	}
}

func TestKeyAddr_ZeroAddrIsAKey(t *testing.T) {
	for _, h := range hashes {
		l := mustNew(t, Config{Limit: PerHour(1), Hash: h})
		k := l.KeyAddr(netip.Addr{})
		require.True(t, k.Allow())
		require.False(t, k.Allow())
		for _, s := range []string{"::", "0.0.0.0"} {
			require.NotEqual(t, k, l.KeyAddr(netip.MustParseAddr(s)), "an invalid address is not %s", s)
		}
	}
}

func TestKeyHash_IsTheIDAndNeverZero(t *testing.T) {
	for _, h := range hashes {
		l := mustNew(t, Config{Limit: PerHour(1), Hash: h})
		for _, id := range []uint64{1, 2, 1 << 63, math.MaxUint64, 0x0123456789abcdef} {
			require.Equal(t, id, l.KeyHash(id).id)
		}
		k := l.KeyHash(0)
		require.NotZero(t, k.id, "0 marks an empty slot")
		require.True(t, k.Allow())
		require.False(t, k.Allow())
		require.Equal(t, 1, l.Len())
	}
}

// multiplyInverse is the x with m*x = 1 mod 2^64, by Newton's iteration, which
// doubles the number of right bits each time.
func multiplyInverse(m uint64) uint64 {
	x := m // right to 3 bits
	for range 5 {
		x *= 2 - m*x
	}
	return x
}

// unhash undoes hasher.uint64 step by step, which shows that it is a bijection.
func unhash(h *hasher, id uint64) uint64 {
	n := id ^ id>>32
	n *= multiplyInverse(finishMul)
	n ^= n>>29 ^ n>>58
	n *= multiplyInverse(stableMul)
	n ^= n >> 32
	return n*multiplyInverse(h.mix[1]) - h.mix[0]
}

func TestKeyUint64_IsABijection(t *testing.T) {
	rng := seeded.Rand(t)
	for _, kind := range hashes {
		for range 20 {
			h := newHasher(kind)
			require.Equal(t, uint64(1), h.mix[1]&1, "only odd multipliers can be undone")
			check := func(n uint64) {
				id := h.uint64(n)
				require.NotZero(t, id)
				if back := unhash(&h, id); back != n && id != 1 {
					t.Fatalf("%v: %#x and %#x share the id %#x", kind, n, back, id)
				}
			}
			for i := range uint64(1000) {
				check(i)
				check(-i)
				check(rng.Uint64())
				check(1 << (i % 64))
			}
			// The one number that would land on 0 shares the id 1.
			zero := unhash(&h, 0)
			require.Equal(t, uint64(1), h.uint64(zero))
			require.NotZero(t, h.uint64(zero))
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

func TestKeyUint64_NumbersSpreadOverShardsAndSlots(t *testing.T) {
	h := newHasher(HashStable)
	for name, number := range numberings {
		shards, slots := make([]int, 64), make([]int, 64)
		for i := range uint64(1 << 17) {
			id := h.uint64(number(i))
			shards[id>>58]++
			slots[id&63]++
		}
		assert.Less(t, chiSquare(shards), chiSquareBound, "%s: top bits of the id", name)
		assert.Less(t, chiSquare(slots), chiSquareBound, "%s: low bits of the id", name)
	}
}

// Under Seeded some multipliers spread some numberings less evenly than chance.
// It matters only that neither probes nor shards get much longer for it: with
// random ids a table that is 3/4 full takes 2.5 slots a probe on average.
func TestKeyUint64_NoSeedMakesLongProbes(t *testing.T) {
	const size = 1 << 14
	seeds := rand.New(rand.NewPCG(1, 2)) // as newHasher draws them, but fixed
	for range 20 {
		h := hasher{mix: [2]uint64{seeds.Uint64(), seeds.Uint64() | 1}}
		for name, number := range numberings {
			var used [size]bool
			shards, steps := make([]int, 32), 0
			for i := range uint64(size / 4 * 3) {
				id := h.uint64(number(i))
				shards[id>>59]++
				at := id % size
				for steps++; used[at]; steps++ {
					at = (at + 1) % size
				}
				used[at] = true
			}
			assert.Less(t, float64(steps)/(size/4*3), 5.0, "%s: slots a probe, multiplier %#x", name, h.mix[1])
			assert.Less(t, slices.Max(shards), size/4*3/32*5/4, "%s: keys in a shard, multiplier %#x", name, h.mix[1])
		}
	}
}

func TestHash_StringsSpreadOverShardsAndSlots(t *testing.T) {
	h := newHasher(HashStable)
	shards, slots := make([]int, 64), make([]int, 64)
	for i := range 1 << 15 {
		id := h.string(fmt.Sprintf("user:%d", i))
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
func TestKeyUint64_EveryBitReachesBothEnds(t *testing.T) {
	h := newHasher(HashStable)
	const samples = 4096
	for bit := range 64 {
		sameShard, sameSlot := 0, 0
		for i := range uint64(samples) {
			differs := h.uint64(i) ^ h.uint64(i^1<<bit)
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
