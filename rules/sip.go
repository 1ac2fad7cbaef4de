package rules

import (
	"encoding/binary"
	"math/bits"
)

// sip is SipHash-2-4 (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012), fed piece by
// piece. Without the key it is impossible to find inputs with the same hash, or to tell the hash of an
// input.
//
// A sip is a value: a copy continues from the state of the original.
type sip struct {
	v0, v1, v2, v3 uint64
	tail           uint64 // the bytes that do not fill a word yet, lowest first
	length         uint64
}

// sipKey is the secret.
type sipKey [16]byte

func newSip(key *sipKey) sip {
	k0, k1 := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	return sip{
		v0: k0 ^ 0x736f6d6570736575, v1: k1 ^ 0x646f72616e646f6d,
		v2: k0 ^ 0x6c7967656e657261, v3: k1 ^ 0x7465646279746573,
	}
}

func (s *sip) round() {
	s.v0 += s.v1
	s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
	s.v0 = bits.RotateLeft64(s.v0, 32)
	s.v2 += s.v3
	s.v3 = bits.RotateLeft64(s.v3, 16) ^ s.v2
	s.v0 += s.v3
	s.v3 = bits.RotateLeft64(s.v3, 21) ^ s.v0
	s.v2 += s.v1
	s.v1 = bits.RotateLeft64(s.v1, 17) ^ s.v2
	s.v2 = bits.RotateLeft64(s.v2, 32)
}

func (s *sip) compress(m uint64) {
	s.v3 ^= m
	s.round()
	s.round()
	s.v0 ^= m
}

// word feeds the 8 bytes of m, lowest first.
func (s *sip) word(m uint64) {
	shift := s.length % 8 * 8
	s.compress(s.tail | m<<shift)
	s.tail = m >> 1 >> (63 - shift) // m >> (64-shift), which is 0 without a tail
	s.length += 8
}

// text feeds the bytes of t.
func (s *sip) text(t string) {
	for len(t) >= 8 {
		s.word(uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
			uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56)
		t = t[8:]
	}
	for i := range len(t) {
		s.tail |= uint64(t[i]) << (s.length % 8 * 8)
		s.length++
		if s.length%8 == 0 {
			s.compress(s.tail)
			s.tail = 0
		}
	}
}

// sum is the hash of the input so far.
func (s sip) sum() uint64 {
	s.compress(s.tail | s.length<<56)
	s.v2 ^= 0xff
	s.round()
	s.round()
	s.round()
	s.round()
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

// shared marks the value of an entry as a pattern whose values share a counter.
const shared = 1 << 31

// entry feeds one entry, its lengths first, so that no two lists of entries feed the same bytes.
func (s *sip) entry(key, value string, mark uint64) {
	s.word(uint64(len(key))<<32 | mark | uint64(len(value)))
	s.text(key)
	s.text(value)
}
