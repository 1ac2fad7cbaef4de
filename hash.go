package sluice

import (
	"hash/maphash"
	"math/bits"
	"net/netip"

	"github.com/cespare/xxhash/v2"
)

// An id is the 64 bits by which a key is tracked; the key itself is not kept.
// Two of n live keys share an id, and so a budget, with a chance of about
// n*n/2^65: 3e-8 at a million keys.
//
// 0 marks an empty slot, so it is never an id.
func nonZero(id uint64) uint64 {
	if id == 0 {
		return 1
	}
	return id
}

// hasher turns keys into ids.
type hasher struct {
	stable bool
	seed   maphash.Seed
	mix    [2]uint64 // KeyUint64's secrets; the multiplier is odd
}

// The constants of KeyUint64 under Stable, and of the second round under both:
// the golden ratio and the multipliers of the SplitMix64 finalizer (Steele, Lea,
// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
const (
	stableAdd  = 0x9e3779b97f4a7c15
	stableMul  = 0xbf58476d1ce4e5b9
	finishMul  = 0x94d049bb133111eb
	fourBytes  = 32
	finishTail = 31
)

func newHasher(h Hash) hasher {
	if h == Stable {
		return hasher{stable: true, mix: [2]uint64{stableAdd, stableMul}}
	}
	seed := maphash.MakeSeed()
	return hasher{seed: seed, mix: [2]uint64{
		maphash.String(seed, "sluice: add"),
		maphash.String(seed, "sluice: multiply") | 1,
	}}
}

func (h *hasher) string(s string) uint64 {
	if h.stable {
		return nonZero(xxhash.Sum64String(s))
	}
	return nonZero(maphash.String(h.seed, s))
}

func (h *hasher) bytes(b []byte) uint64 {
	if h.stable {
		return nonZero(xxhash.Sum64(b))
	}
	return nonZero(maphash.Bytes(h.seed, b))
}

// uint64 is a bijection: every step (add, multiply by an odd number, xor with a
// right shift, swap halves) can be undone, so no two numbers share an id. (But
// for the one number that lands on 0, which shares the id 1.) The first multiply
// carries low bits upwards, the swap brings the high half down, and the second
// carries it up again, so all bits of n reach both ends of the id.
func (h *hasher) uint64(n uint64) uint64 {
	n = (n + h.mix[0]) * h.mix[1]
	n = bits.RotateLeft64(n^n>>fourBytes, fourBytes) * finishMul
	return nonZero(n ^ n>>finishTail)
}

func (h *hasher) addr(a netip.Addr) uint64 {
	if !a.IsValid() {
		return h.string("")
	}
	// As16 gives an IPv4 address its IPv4-mapped form and leaves the zone out.
	b := a.As16()
	return h.bytes(b[:])
}
