package sluice

import (
	"math"
	"net/netip"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		require.Equal(t, a.KeyHash(want), a.Key(s), "%q", s)
	}
	for _, s := range []string{"", "a", "user:42", "0123456789abcdef0123456789abcdef0123456789abcdef"} {
		require.Equal(t, a.KeyHash(xxhash.Sum64String(s)), a.Key(s))
		require.NotEqual(t, a.Key(s).id, b.Key(s).id, "the places are those of each limiter")
	}
	// Ids of numbers and addresses are as stable: snapshots and replays rely on it.
	require.Equal(t, a.KeyHash(0x75d648df2bcee87c), a.KeyUint64(42))
	require.Equal(t, a.KeyHash(0xe80df5229f939c15), a.KeyAddr(netip.MustParseAddr("192.0.2.1")))
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
			require.Equal(t, id, hashOf(l.KeyHash(id)))
		}
		k := l.KeyHash(0)
		require.NotZero(t, k.id, "0 marks an empty slot")
		require.True(t, k.Allow())
		require.False(t, k.Allow())
		require.Equal(t, 1, l.Len())
	}
}
