package peers

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	_ "unsafe" // for go:linkname
)

// hashedBuckets is no limiter of keys: two keys whose hashes end alike are one to it, so that either spends the other's units. What an
// exact limiter takes longer is the price of its ids.
func hashedBuckets() Subject {
	return Subject{
		Name: "hashed buckets (approximate)", Kind: Approximate, Clock: Runtime,
		Note: "An array of token buckets in 64 bits, at least two a key, by the hash of a key; the runtime's clock by linkname: as webriots/rate is made, which could not be fetched. No ids: keys that collide share a bucket. Nothing grows or is evicted; at most 255 units at once.",
		New: func(o Options) (Limiter, error) {
			if o.Burst > HashedBurst {
				return nil, fmt.Errorf("burst %d: want at most %d", o.Burst, HashedBurst)
			}
			return newHashed(o), nil
		},
	}
}

// HashedBurst is the most units that a bucket of the hashed buckets holds.
const HashedBurst = 255

// hashed has in each word the units of a bucket, 8 bits, and the time at which it had so many, 56 bits of nanoseconds: two years of them since
// the machine has begun.
type hashed struct {
	seed     maphash.Seed
	words    []atomic.Uint64 // a power of two of them
	interval int64           // ns a unit
	burst    int64
}

const stampBits = 56

func newHashed(o Options) *hashed {
	keys := o.Expect
	if keys == 0 {
		keys = 1 << 20
	}
	h := &hashed{
		seed:     maphash.MakeSeed(),
		words:    make([]atomic.Uint64, 1<<bits.Len(uint(2*keys-1))),
		interval: int64(o.interval()), burst: int64(o.Burst),
	}
	full := pack(h.burst, nanotime())
	for i := range h.words {
		h.words[i].Store(full)
	}
	return h
}

func pack(units, stamp int64) uint64 { return uint64(units)<<stampBits | uint64(stamp) }

func (h *hashed) Allow(key string) bool {
	word := &h.words[maphash.String(h.seed, key)&uint64(len(h.words)-1)]
	now := nanotime()
	for {
		old := word.Load()
		units, stamp := h.refilled(int64(old>>stampBits), int64(old&(1<<stampBits-1)), now)
		if units == 0 {
			return false
		}
		if word.CompareAndSwap(old, pack(units-1, stamp)) {
			return true
		}
	}
}

// refilled are the units now, and since when there are so many.
func (h *hashed) refilled(units, stamp, now int64) (int64, int64) {
	elapsed := now - stamp
	back := elapsed / h.interval
	if back <= 0 {
		return units, stamp
	}
	return min(units+min(back, h.burst), h.burst), now - elapsed%h.interval
}

func (h *hashed) Keys() int { return -1 }

func (h *hashed) Sweep() {}

func (h *hashed) Close() {}

// nanotime is what time.Since reads, without the function around it.
//
//go:noescape
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// RuntimeNow reads the clock of the hashed buckets.
func RuntimeNow() int64 { return nanotime() }
