package sluice

import (
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/tails"
	"github.com/sluice-go/sluice/internal/test/depth"
)

func skipUnderRace(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates shadow state, which would be counted")
	}
}

// requireNoAllocs runs f often enough that one allocation in two calls would show;
// the average is rounded down.
func requireNoAllocs(t *testing.T, what string, f func()) {
	t.Helper()
	assert.Zero(t, leastAllocs(200, f), "allocations of %s", what)
}

// leastAllocs is the least of a few measurements. All allocations of the process
// count, and what an earlier test has left running (a sweep on a timer, say) now
// and then makes some; f itself makes them every time.
func leastAllocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for i := 0; i < 4 && least > 0; i++ {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// allocConfigs are the layouts with limits of which 200 runs can spend none, some
// or all, and the options that take paths of their own.
func allocConfigs() map[string]Config {
	configs := map[string]Config{}
	for name, c := range everyFew {
		configs[name] = c
		c.Stats = true
		configs[name+"/stats"] = c
		c.Clock = NewCoarseClock(0)
		configs[name+"/stats/coarse-clock"] = c
		c.Clock = NewFastClock()
		configs[name+"/stats/fast-clock"] = c
		c.Hash = HashStable
		c.Clock = NewManualClock(start)
		configs[name+"/stats/stable/manual-clock"] = c
	}
	configs["unlimited"] = Config{Limit: Unlimited, Stats: true}
	configs["deny-all"] = Config{Limit: DenyAll, Stats: true}
	return configs
}

func TestAllocs_NoneOnAnyDecisionPath(t *testing.T) {
	skipUnderRace(t)
	for name, c := range allocConfigs() {
		t.Run("layout="+name, func(t *testing.T) {
			l := mustNew(t, c)
			checkStringForms(t, l)
			for form, k := range keyForms(l) {
				checkKeyForms(t, form, k)
			}
		})
	}
}

// TestAllocs_NoneForTakeAll of up to 8 charges, admitted and denied; the keys are
// tracked, and there are two limiters.
func TestAllocs_NoneForTakeAll(t *testing.T) {
	skipUnderRace(t)
	for name, c := range allocConfigs() {
		t.Run("layout="+name, func(t *testing.T) {
			l, other := mustNew(t, c), mustNew(t, c)
			keys := []Key{l.Key("a"), other.Key("a"), l.Key("b"), other.Key("b"), l.Key("c"), l.Key("d"), other.Key("c"), l.Key("a")}
			for costName, cost := range allocCosts(l) {
				all := func(n int) func() {
					return func() {
						var charges [8]Charge
						for i := range n {
							keys[i].Reset()
							charges[i] = Charge{keys[i], cost}
						}
						TakeAll(charges[:n]...)
						TakeAll(charges[:n]...)
					}
				}
				for _, n := range []int{1, 2, 8} {
					all(n)()
					requireNoAllocs(t, fmt.Sprintf("TakeAll of %d, cost %s", n, costName), all(n))
				}
			}
			requireNoAllocs(t, "TakeAll without a slice", func() { TakeAll(Charge{l.Key("a"), 1}, Charge{other.Key("b"), 1}) })
		})
	}
}

// allocCosts meet every branch: admitted until the burst is spent and denied from
// then on (1), never charged (0), refused unseen (-1, above the burst).
func allocCosts(l *Limiter) map[string]int {
	return map[string]int{"one": 1, "zero": 0, "negative": -1, "over-burst": burstOf(l) + 1, "max": math.MaxInt}
}

func checkStringForms(t *testing.T, l *Limiter) {
	t.Helper()
	l.Allow("tracked")
	requireNoAllocs(t, "Allow", func() { l.Allow("tracked") })
	for name, cost := range allocCosts(l) {
		requireNoAllocs(t, "AllowN/cost="+name, func() { l.AllowN("tracked", cost) })
		requireNoAllocs(t, "Take/cost="+name, func() { l.Take("tracked", cost) })
		requireNoAllocs(t, "Peek/cost="+name, func() { l.Key("tracked").Peek(cost) })
		requireNoAllocs(t, "Peek/untracked/cost="+name, func() { l.Key("untracked").Peek(cost) })
	}
	for name, cost := range allocCosts(l) {
		requireNoAllocs(t, "TakeUpTo/cost="+name, func() { l.Key("tracked").TakeUpTo(cost) })
		requireNoAllocs(t, "Reset and TakeUpTo/cost="+name, func() { l.Key("tracked").Reset(); l.Key("tracked").TakeUpTo(cost) })
		requireNoAllocs(t, "Reset and Debit/cost="+name, func() { l.Key("tracked").Reset(); l.Key("tracked").Debit(cost) })
	}
	requireNoAllocs(t, "Debit of a blocked key", func() { l.Key("tracked").Block(time.Hour); l.Key("tracked").Debit(1) })
	l.Key("tracked").Unblock()
	// After a reset the call is admitted again: the path of a charge, every time.
	requireNoAllocs(t, "Reset and Allow", func() { l.Key("tracked").Reset(); l.Allow("tracked") })
	requireNoAllocs(t, "Reset and Take", func() { l.Key("tracked").Reset(); l.Take("tracked", 1) })
	requireNoAllocs(t, "Refund", func() { l.Allow("tracked"); l.Key("tracked").Refund(1) })
	requireNoAllocs(t, "Refund/untracked", func() { l.Key("untracked").Refund(1) })
	requireNoAllocs(t, "Reset/untracked", func() { l.Key("untracked").Reset() })
	requireNoAllocs(t, "Len, Stats and WorstCase", func() { l.Len(); l.Stats(); l.WorstCase(time.Hour) })
	requireNoAllocs(t, "Sweep with nothing to drop", func() { l.Allow("tracked"); l.Sweep() })
}

// keyForms are the ways to make a Key. Making it is part of what is measured.
func keyForms(l *Limiter) map[string]func() Key {
	b := []byte("a key of bytes")
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1%eth0")
	return map[string]func() Key{
		"Key":          func() Key { return l.Key("a key") },
		"KeyBytes":     func() Key { return l.KeyBytes(b) },
		"KeyUint64":    func() Key { return l.KeyUint64(42) },
		"KeyAddr/v4":   func() Key { return l.KeyAddr(v4) },
		"KeyAddr/v6":   func() Key { return l.KeyAddr(v6) },
		"KeyAddr/zero": func() Key { return l.KeyAddr(netip.Addr{}) },
		"KeyHash":      func() Key { return l.KeyHash(0x0123456789abcdef) },
	}
}

func checkKeyForms(t *testing.T, form string, key func() Key) {
	t.Helper()
	k := key()
	k.Allow()
	requireNoAllocs(t, form+".Allow", func() { key().Allow() })
	for name, cost := range allocCosts(k.lim) {
		requireNoAllocs(t, form+".AllowN/cost="+name, func() { key().AllowN(cost) })
		requireNoAllocs(t, form+".Take/cost="+name, func() { key().Take(cost) })
		requireNoAllocs(t, form+".Peek/cost="+name, func() { key().Peek(cost) })
		requireNoAllocs(t, form+".AllowAt/cost="+name, func() { key().AllowAt(k.lim.clock.Now(), cost) })
		requireNoAllocs(t, form+".TakeAt/cost="+name, func() { key().TakeAt(k.lim.clock.Now(), cost) })
	}
	requireNoAllocs(t, form+".Reset and Allow", func() { key().Reset(); key().Allow() })
	requireNoAllocs(t, form+".Allow and Refund", func() { key().Allow(); key().Refund(1) })
	requireNoAllocs(t, form+".TakeAt with an older now", func() { key().TakeAt(1, 1) })
}

// A new key for which the table has room costs nothing on the heap, and one that
// there is no room for at MaxKeys neither. Only a growth allocates.
func TestAllocs_NoneForANewKeyWithoutGrowth(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	skipUnderRace(t)
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			c.Shards, c.Clock = 1, NewManualClock(start)
			l := mustNew(t, c)
			n := uint64(0)
			add := func() { n++; l.KeyUint64(n).Allow() }
			for range 300 {
				add()
			}
			slots := slotsOf(l)
			for was := slots; slots == was; slots = slotsOf(l) {
				add() // until the table has just grown
			}
			const keys = 50 // at a time; twice that fits before the next growth
			chunks := 0
			switch {
			case !isWide(l):
			case l.policyOf(0).wide.tailLen() > tails.Short: // a long tail is an object of its own
				chunks = keys
			default: // short ones come in chunks, of which these keys need a few
				chunks = keys*l.policyOf(0).wide.tailLen()/tails.ChunkWords + 1
			}
			allocs := leastAllocs(1, func() {
				for range keys {
					add()
				}
			})
			require.LessOrEqual(t, allocs, float64(chunks))
			require.Equal(t, slots, slotsOf(l), "or the test has measured something else")
		})
	}
}

func TestAllocs_NoneForANewKeyWithoutRoom(t *testing.T) {
	skipUnderRace(t)
	for name, c := range everyFew {
		for _, overflow := range untracking {
			c.Overflow, c.MaxKeys, c.Clock = overflow, 8, NewManualClock(start)
			l := mustNew(t, c)
			n := uint64(0)
			add := func() { n++; l.KeyUint64(n).Allow(); l.KeyUint64(n).Take(1) }
			for range 100 {
				add()
			}
			before := l.Stats().Untracked
			requireNoAllocs(t, fmt.Sprint(name, " ", overflow), add)
			require.Greater(t, l.Stats().Untracked, before+200)
		}
	}
}

// heap returns the bytes and the objects in use after a full collection.
func heap() (bytes, objects uint64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first may leave what sync.Pool and finalizers still hold
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

// TestMemory_BytesAKey: 34 for one-word algorithms, and 51 with a second word.
func TestMemory_BytesAKey(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	skipUnderRace(t)
	if crowded() {
		t.Skip("with home slots cut, a probe looks at every key, and this needs a million of them")
	}
	const keys = 1_000_000
	const twoWords = "fixed-first-charge"
	names := []string{"gcra", "token-bucket", "sliding-window", "fixed-window", twoWords}
	if !depth.Full() { // all of them share the table; one of each kind of word
		names = []string{"gcra", "fixed-window", twoWords}
	}
	configs := map[string]Config{"gcra/unbounded": {MaxKeys: -1}}
	for _, name := range names {
		configs[name] = layoutNamed(name).options
	}
	for name, c := range configs {
		t.Run("layout="+name, func(t *testing.T) {
			c.Limit, c.Clock = PerDay(10), NewManualClock(start) // so that no key becomes idle while the test runs
			bytesBefore, objectsBefore := heap()
			l := mustNew(t, c)
			for i := range uint64(keys) {
				l.KeyUint64(i).Allow()
			}
			bytes, objects := heap()
			require.Equal(t, keys, l.Len())
			bytesPerKey := (float64(bytes) - float64(bytesBefore)) / keys
			objectsPerKey := (float64(objects) - float64(objectsBefore)) / keys
			t.Logf("%.2f bytes and %.6f heap objects a key", bytesPerKey, objectsPerKey)
			most := 34.0
			if name == twoWords {
				most = 51
			}
			require.LessOrEqual(t, bytesPerKey, most)
			require.Greater(t, bytesPerKey, 16.0, "or the test has measured something else")
			require.Less(t, objectsPerKey, 0.006, "up to five objects for a table, which has about a thousand keys")
			runtime.KeepAlive(l)
		})
	}
}

func TestMemory_EmptyLimiterTakesAFewKiB(t *testing.T) {
	// Shards and counters are chosen from GOMAXPROCS; the budget is for two.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for name, c := range everyFew {
		const limiters = 50
		made := make([]*Limiter, limiters)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range made {
			made[i] = mustNew(t, c)
		}
		runtime.ReadMemStats(&after)
		bytes := (after.TotalAlloc - before.TotalAlloc) / limiters
		require.LessOrEqual(t, bytes, uint64(10<<10), name)
		require.Greater(t, bytes, uint64(128), "or the test has measured something else")
	}
}

// Both hold on 32-bit machines, too, where CI runs the tests as well.
func TestLayout_SlotsAndShards(t *testing.T) {
	require.Equal(t, uintptr(16), unsafe.Sizeof(slot{}), "four slots a cache line")
	require.LessOrEqual(t, unsafe.Sizeof(shard{}), uintptr(cacheLine), "no two shards in one cache line")
	require.LessOrEqual(t, unsafe.Sizeof(Key{}), uintptr(24), "a Key travels in two registers")

	var s [2]slot
	require.Zero(t, uintptr(unsafe.Pointer(&s[0].id))%8, "atomic words are aligned")
	require.Zero(t, uintptr(unsafe.Pointer(&s[1].word))%8)
}

// TestStatus_TakesNoAllocation, under whatever layout.
func TestStatus_TakesNoAllocation(t *testing.T) {
	skipUnderRace(t)
	forEveryLayout(t, func(t *testing.T, c Config) {
		l := mustNew(t, c)
		k := l.Key("k")
		k.Allow()
		assert.Zero(t, testing.AllocsPerRun(100, func() { k.Status() }))
		assert.Zero(t, testing.AllocsPerRun(100, func() { l.Key("new").Status() }))
	})
}

// TestTakeAllReservations_Allocations: a denial takes none.
func TestTakeAllReservations_Allocations(t *testing.T) {
	skipUnderRace(t)
	forEveryLayout(t, func(t *testing.T, c Config) {
		l := mustNew(t, c)
		k := l.Key("k")
		charges := []Charge{{k, 1}, {l.Key("other"), -1}}
		all := make([]*Reservation, 2)
		assert.Zero(t, testing.AllocsPerRun(100, func() { TakeAllReservations(all, nil, charges...) }))
	})
}

// TestAllocs_NoneWithLimitsOfKeys: neither for the keys that have one nor for others.
func TestAllocs_NoneWithLimitsOfKeys(t *testing.T) {
	skipUnderRace(t)
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			l := mustNew(t, c)
			own, other, denied, free := l.Key("own"), l.Key("other"), l.Key("denied"), l.Key("free")
			for k, limit := range map[Key]Limit{own: Per(3, c.Limit.Period), denied: DenyAll, free: Unlimited} {
				require.NoError(t, k.SetLimit(limit))
			}
			own.Allow()
			other.Allow()
			requireNoAllocs(t, "string forms", func() { l.Allow("own"); l.AllowN("free", 5); l.Take("own", 2); l.Key("other").Peek(2) })
			for _, k := range []Key{own, other, denied, free} {
				for _, cost := range []int{1, 4, 0, -1, 1 << 30} {
					requireNoAllocs(t, "a call", func() { k.AllowN(cost); k.Take(cost); k.Peek(cost); k.AllowAt(c.Limit.Period.Nanoseconds(), cost) })
				}
				requireNoAllocs(t, "Refund and Reset", func() { k.Refund(1); k.Reset(); k.Allow() })
				requireNoAllocs(t, "Limit", func() { k.Limit() })
			}
			requireNoAllocs(t, "TakeAll", func() {
				TakeAll(Charge{own, 1}, Charge{other, 1})
				TakeAll(Charge{free, 1}, Charge{other, 1}, Charge{own, 1}, Charge{denied, 1})
				own.Reset()
				other.Reset()
			})
		})
	}
}

// TestKeyLimit_OthersDoNotLookForAnOwner: a call for a tracked key that has no limit of its
// own asks nobody whose key it is.
func TestKeyLimit_OthersDoNotLookForAnOwner(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		require.True(t, l.Allow("k"))
		require.Nil(t, l.brought.Load(), "without limits of keys there is no map to look into")
		require.NoError(t, l.Key("own").SetLimit(Per(3, c.Limit.Period)))
		l.shardOf(l.Key("k").id).cells.Store(&directory[cellTable]{}) // which a look would panic on
		l.shardOf(l.Key("own").id).cells.Store(&directory[cellTable]{})
		require.True(t, l.AllowN("k", burst-2))
		require.True(t, l.Take("k", 1).Allowed)
		require.False(t, l.Allow("k"))
		require.False(t, l.Take("k", 1).Allowed)
		l.Key("k").AllowAt(start.UnixNano(), burst)
		require.Panics(t, func() { l.Allow("own") })
	})
}
