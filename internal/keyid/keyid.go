// Package keyid turns keys into ids, the 64 bits by which a key is tracked; the key itself is not kept.
// Two of n live keys share an id, and so a budget, with a chance of about n*n/2^65: 3e-8 at a million
// keys.
//
// A seeded id is a hash with a random seed of its Hasher, by the runtime's own hash, so that nobody
// outside can find keys that collide. A stable hash is xxHash64, which is the same everywhere and always.
// Strangers can choose it. So the id is that hash in places that they cannot choose: a bijection with secrets of its
// Hasher, by which ids are spread over shards and tables, and which snapshots undo.
// Numbers take a bijection of their own: hashed as text, two of them could share an id.
package keyid

import (
	"hash/maphash"
	"net/netip"

	"github.com/cespare/xxhash/v2"
)

// Of returns the id for a hash: 0 marks an empty slot, so it is never an id.
func Of(hash uint64) uint64 {
	if hash == 0 {
		return 1
	}
	return hash
}

// A Hasher turns keys into ids. It is safe for concurrent use.
type Hasher struct {
	stable bool
	seed   maphash.Seed
	number mixer // of Uint64
	place  mixer // of the ids of stable hashes
}

// A mixer is a bijection of 64 bits.
type mixer struct{ add, mul uint64 } // mul is odd

// The golden ratio and the multipliers of the SplitMix64 finalizer (Steele, Lea,
// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
const (
	stableAdd = 0x9e3779b97f4a7c15
	stableMul = 0xbf58476d1ce4e5b9
	finishMul = 0x94d049bb133111eb
)

// New returns a Hasher with a seed of its own, or one whose hashes are the same in every process and run.
func New(stable bool) Hasher {
	seed := maphash.MakeSeed()
	secret := mixer{maphash.String(seed, "sluice: add"), maphash.String(seed, "sluice: multiply") | 1}
	if stable {
		return Hasher{stable: true, number: mixer{stableAdd, stableMul}, place: secret}
	}
	return Hasher{seed: seed, number: secret}
}

// mix is a bijection: every step (add, multiply by an odd number, xor with a right shift) can be undone. Two
// rounds after the secret one make up for secret multipliers that mix weakly: with one, the mean probe of a
// table 3/4 full of consecutive numbers was up to 5.4 slots, with two 2.6; random
// ids take 2.5.
func (m *mixer) mix(n uint64) uint64 {
	n = (n + m.add) * m.mul
	n = (n ^ n>>32) * stableMul
	n = (n ^ n>>29) * finishMul
	return n ^ n>>32
}

// unmix undoes mix.
func (m *mixer) unmix(n uint64) uint64 {
	n = (n ^ n>>32) * inverse(finishMul)
	n = (n ^ n>>29 ^ n>>58) * inverse(stableMul)
	return (n^n>>32)*inverse(m.mul) - m.add
}

// inverse returns the number by which a product with an odd a is multiplied to undo it, by Newton's method: each step
// doubles the bits that are right, of which a itself has three.
func inverse(a uint64) uint64 {
	x := a
	for range 5 {
		x *= 2 - a*x
	}
	return x
}

// ID returns the id for a hash of the caller's, as Hash gives it back. 0 counts as another hash.
func (h *Hasher) ID(hash uint64) uint64 { // small enough to be inlined
	hash = Of(hash)
	if h.stable {
		hash = h.placed(hash)
	}
	return hash
}

func (h *Hasher) placed(hash uint64) uint64 {
	if id := h.place.mix(hash); id != 0 {
		return id
	}
	return h.place.mix(0) // no hash has this id, since none is 0
}

// Hash returns the hash that ID has turned into an id: under a stable hash, the hash that is the same in every process and run.
func (h *Hasher) Hash(id uint64) uint64 {
	if !h.stable {
		return id
	}
	if hash := h.place.unmix(id); hash != 0 {
		return hash
	}
	return h.place.unmix(0)
}

// String returns the id of a text.
func (h *Hasher) String(s string) uint64 {
	if h.stable {
		return h.ID(xxhash.Sum64String(s))
	}
	return h.Seeded(s)
}

// Seeded is String for a Hasher that is not stable. It is small enough to be inlined.
func (h *Hasher) Seeded(s string) uint64 { return Of(maphash.String(h.seed, s)) }

// Bytes is String of string(b). It does not retain b.
func (h *Hasher) Bytes(b []byte) uint64 { return h.ID(h.bytes(b)) }

func (h *Hasher) bytes(b []byte) uint64 {
	if h.stable {
		return Of(xxhash.Sum64(b))
	}
	return Of(maphash.Bytes(h.seed, b))
}

// Uint64 returns the id of a number. It is a bijection, so no two numbers share an id. (One number lands on
// 0, and shares the id of another one.)
func (h *Hasher) Uint64(n uint64) uint64 { return h.ID(h.Number(n)) }

// Number returns the hash of a number, for ID. Both are inlined, as Uint64 is not.
func (h *Hasher) Number(n uint64) uint64 { return h.number.mix(n) }

// Addr returns the id of an address, whose IPv4-mapped form has the same one; a zone makes no
// difference. The zero Addr has an id of its own.
func (h *Hasher) Addr(a netip.Addr) uint64 {
	if !a.IsValid() {
		return h.Uint64(h.bytes(nil))
	}
	// As16 gives an IPv4 address its IPv4-mapped form and leaves the zone out. The
	// second hash keeps addresses apart from strings of the same 16 bytes, which
	// somebody outside may be able to choose.
	b := a.As16()
	return h.Uint64(h.bytes(b[:]))
}
