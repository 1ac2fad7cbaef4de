package sluice

import (
	"hash/maphash"
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

// The golden ratio and the multipliers of the SplitMix64 finalizer (Steele, Lea,
// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
const (
	stableAdd = 0x9e3779b97f4a7c15
	stableMul = 0xbf58476d1ce4e5b9
	finishMul = 0x94d049bb133111eb
)

func newHasher(h Hash) hasher {
	if h == HashStable {
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
	return h.seeded(s)
}

// seeded is string for the default hash. It is small enough to be inlined.
func (h *hasher) seeded(s string) uint64 { return nonZero(maphash.String(h.seed, s)) }

func (h *hasher) bytes(b []byte) uint64 {
	if h.stable {
		return nonZero(xxhash.Sum64(b))
	}
	return nonZero(maphash.Bytes(h.seed, b))
}

// uint64 is a bijection: every step (add, multiply by an odd number, xor with a
// right shift) can be undone, so no two numbers share an id. (One number lands on
// 0, and shares the id 1 with another one.) Two rounds after the secret one
// make up for secret multipliers that mix weakly: with one, the mean probe of a
// table 3/4 full of consecutive numbers was up to 5.4 slots, with two 2.6; random
// ids take 2.5.
func (h *hasher) uint64(n uint64) uint64 {
	n = (n + h.mix[0]) * h.mix[1]
	n = (n ^ n>>32) * stableMul
	n = (n ^ n>>29) * finishMul
	return nonZero(n ^ n>>32)
}

func (h *hasher) addr(a netip.Addr) uint64 {
	if !a.IsValid() {
		return h.uint64(h.string(""))
	}
	// As16 gives an IPv4 address its IPv4-mapped form and leaves the zone out. The
	// second hash keeps addresses apart from strings of the same 16 bytes, which
	// somebody outside may be able to choose.
	b := a.As16()
	return h.uint64(h.bytes(b[:]))
}
