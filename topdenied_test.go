package sluice

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestTopDenied_EveryWayToBeDenied: the sample is of 1 in 64, so that 40,000 denials
// are 625 samples, give or take 125 (5 sigma).
func TestTopDenied_EveryWayToBeDenied(t *testing.T) {
	const calls = 40_000
	for name, deny := range map[string]func(l *Limiter){
		"Allow":       func(l *Limiter) { l.Allow("bad") },
		"AllowN":      func(l *Limiter) { l.AllowN("bad", 2) },
		"Take":        func(l *Limiter) { l.Take("bad", 1) },
		"above burst": func(l *Limiter) { l.AllowN("bad", 4) },
		"negative":    func(l *Limiter) { l.Take("bad", -1) },
		"Key.Allow":   func(l *Limiter) { l.Key("bad").Allow() },
		"Key.AllowN":  func(l *Limiter) { l.Key("bad").AllowN(2) },
		"Key.Take":    func(l *Limiter) { l.Key("bad").Take(1) },
		"Key.AllowAt": func(l *Limiter) { l.Key("bad").AllowAt(start.UnixNano(), 1) },
		"Key.TakeAt":  func(l *Limiter) { l.Key("bad").TakeAt(start.UnixNano(), 1) },
		"TakeAll":     func(l *Limiter) { TakeAll(Charge{l.Key("good"), 1}, Charge{l.Key("bad"), 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, h := range []Hash{HashSeeded, HashStable} {
				l, _ := newFrozen(t, Config{Limit: PerHour(3), TopDenied: 4, Hash: h})
				require.True(t, l.AllowN("bad", 3))
				for range calls {
					deny(l)
					l.AllowN("bad", 0)
					l.Key("bad").Peek(1)
				}
				list := l.TopDenied()
				require.Len(t, list, 1)
				require.Equal(t, hashOf(l.Key("bad")), list[0].ID)
				require.InDelta(t, calls, list[0].Denied, calls/5)
				require.Equal(t, "bad", list[0].Name)
			}
		})
	}
}

func TestTopDenied_IsOffByDefault(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: DenyAll})
	for range 100 {
		l.Allow("bad")
	}
	require.Nil(t, l.TopDenied())
}

// TestTopDenied_NamesKeys: a Key is named by whatever it is made of, in whatever way it is
// denied.
func TestTopDenied_NamesKeys(t *testing.T) {
	for want, key := range map[string]func(l *Limiter) Key{
		"a string":    func(l *Limiter) Key { return l.Key("a string") },
		"some bytes":  func(l *Limiter) Key { return l.KeyBytes([]byte("some bytes")) },
		"192.0.2.7":   func(l *Limiter) Key { return l.KeyAddr(netip.MustParseAddr("::ffff:192.0.2.7")) },
		"2001:db8::7": func(l *Limiter) Key { return l.KeyAddr(netip.MustParseAddr("2001:db8::7%eth0")) },
		"invalid IP":  func(l *Limiter) Key { return l.KeyAddr(netip.Addr{}) },
	} {
		for way, deny := range map[string]func(k Key) bool{
			"Allow":   func(k Key) bool { return k.Allow() },
			"Take":    func(k Key) bool { return k.Take(1).Allowed },
			"TakeAll": func(k Key) bool { return TakeAll(Charge{k, 1}).Allowed },
		} {
			for _, h := range []Hash{HashSeeded, HashStable} {
				l, _ := newFrozen(t, Config{Limit: DenyAll, TopDenied: 4, Hash: h})
				for range 10_000 {
					require.False(t, deny(key(l)))
				}
				list := l.TopDenied()
				require.Len(t, list, 1)
				require.Equal(t, want, list[0].Name, "%s, hash %v", way, h)
				require.Equal(t, key(l), l.KeyHash(list[0].ID), "the id is the key")
			}
		}
	}
	l, _ := newFrozen(t, Config{Limit: DenyAll, TopDenied: 4})
	names := map[Key]string{l.KeyUint64(7): "ann"}
	for range 10_000 {
		require.False(t, l.KeyUint64(7).Allow())
	}
	require.Empty(t, l.TopDenied()[0].Name)
	require.Equal(t, "ann", names[l.KeyHash(l.TopDenied()[0].ID)])
}

// TestTopDenied_NamesKeysOfPlans, whose denials are listed with all others.
func TestTopDenied_NamesKeysOfPlans(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerHour(3), TopDenied: 4})
	require.NoError(t, l.Key("vip").SetLimit(DenyAll))
	for range 10_000 {
		require.False(t, TakeAll(Charge{l.Key("vip"), 1}).Allowed)
	}
	require.Equal(t, "vip", l.TopDenied()[0].Name)
}

// TestTopDenied_ExcessIsABound: of keys that have been denied a known number of times, no
// more than one in 1,000 is listed with a Denied-Excess above that.
func TestTopDenied_ExcessIsABound(t *testing.T) {
	rng := seeded.Rand(t)
	const keys = 4000
	for _, counters := range []int{keys, keys / 8} {
		l, _ := newFrozen(t, Config{Limit: DenyAll, TopDenied: counters})
		truth := map[uint64]uint64{}
		for id := uint64(1); id <= keys; id++ {
			n := uint64(1 + rng.IntN(1+rng.IntN(20_000)))
			truth[id] = n
			for range n {
				if rng.IntN(denialsASample) == 0 {
					l.top.Count(id, "")
				}
			}
		}
		wrong, tight := 0, 0
		for _, e := range l.TopDenied() {
			if e.Denied-e.Excess > truth[e.ID] {
				wrong++
			}
			if counters == keys && 2*(e.Denied-e.Excess) > truth[e.ID] {
				tight++
			}
		}
		require.LessOrEqual(t, wrong, 16, "of %d keys", keys) // 4 in the mean; more than 16 once in 10^6 runs
		require.True(t, counters < keys || tight > keys/4, "a bound that says little: %d of %d", tight, keys)
	}
}

// TestTopDenied_OnlySamplesAllocate: a denial of a Key, one in 64 of which may.
func TestTopDenied_OnlySamplesAllocate(t *testing.T) {
	skipUnderRace(t)
	l, _ := newFrozen(t, Config{Limit: PerHour(1), TopDenied: 100})
	var bytes [4]byte
	deny := func(n uint32) {
		binary.BigEndian.PutUint32(bytes[:], n)
		l.KeyAddr(netip.AddrFrom4(bytes)).AllowN(2)
		TakeAll(Charge{l.KeyBytes(bytes[:]), 2})
		l.KeyUint64(uint64(n)).AllowN(2)
	}
	strangers := func() {
		for n := range uint32(64 * 20) {
			deny(n)
		}
	}
	strangers()
	// 60 samples, each of which may need a name, and what the name is made of.
	require.Less(t, leastAllocs(5, strangers), 64.0*20*3/16)
	for range 10_000 {
		deny(1 << 31)
	}
	requireNoAllocs(t, "denials of keys that have a name", func() { deny(1 << 31) })
}

func TestTopDenied_Concurrent(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: DenyAll, TopDenied: 8})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20_000 {
				if name := fmt.Sprint("key", g, i%50); i%2 == 0 {
					l.Allow(name)
				} else {
					l.Key(name).Allow()
				}
				if i%1000 == 0 {
					require.LessOrEqual(t, len(l.TopDenied()), 8)
				}
			}
		})
	}
	wg.Wait()
	list := l.TopDenied()
	require.Len(t, list, 8)
	sum := uint64(0)
	for _, e := range list {
		sum += e.Denied
	}
	require.LessOrEqual(t, sum, uint64(2*80_000), "twice what there was would be 50 sigma")
	require.Positive(t, sum)
}
