package rules

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestSip_Paper: the example of the paper's appendix A: the key 00 01 ... 0f, the input 00 01 ... 0e.
func TestSip_Paper(t *testing.T) {
	var key sipKey
	input := ""
	for i := range key {
		key[i] = byte(i)
	}
	for i := range 15 {
		input += string(rune(i))
	}
	h := newSip(&key)
	h.text(input)
	require.Equal(t, uint64(0xa129ca6149be45e5), h.sum())
}

// TestSip_Pieces: how the input is cut into pieces makes no difference.
func TestSip_Pieces(t *testing.T) {
	r := seeded.Rand(t)
	key := sipKey{1, 2, 3}
	for range 2000 {
		b := make([]byte, r.IntN(80))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		whole, pieces := newSip(&key), newSip(&key)
		whole.text(string(b))
		for rest := b; len(rest) > 0; {
			if len(rest) >= 8 && r.IntN(3) == 0 {
				pieces.word(binary.LittleEndian.Uint64(rest))
				rest = rest[8:]
				continue
			}
			n := 1 + r.IntN(len(rest))
			pieces.text(string(rest[:n]))
			rest = rest[n:]
		}
		require.Equal(t, whole.sum(), pieces.sum(), "%x", b)
	}
}

// TestSip_Entries: lists of entries that look alike when they are joined have different hashes.
func TestSip_Entries(t *testing.T) {
	var key sipKey
	seen := map[uint64]string{}
	for _, list := range []string{
		"user=id_42", "user_id=42", "user=,id=42", "user=id,=42", "user=id_42,=", "=user=id_42", "u=ser,id=42", "=", "=,=", "=,=,=",
		"a=b,c=d", "a=bc,=d", "a=b,cd=", "ab=c,=d", "a=b,c=d,=",
	} {
		h := newSip(&key)
		for _, e := range entries(list) {
			h.entry(e.Key, e.Value, 0)
		}
		require.NotContains(t, seen, h.sum(), "%s and %s", list, seen[h.sum()])
		seen[h.sum()] = list
	}
	h, marked := newSip(&key), newSip(&key)
	h.entry("k", "v*", 0)
	marked.entry("k", "v*", shared)
	require.NotEqual(t, h.sum(), marked.sum())
}
