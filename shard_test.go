package sluice

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestShard_ManyKeysThroughGrowthAndSweeps compares thousands of keys with their
// model while tables grow and are swept under them.
func TestShard_ManyKeysThroughGrowthAndSweeps(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		keys := depth.Of(1000, 1000, 3000)
		if crowded() {
			keys = 300
		}
		rng := seeded.Rand(t)
		model := newOracle(c)
		c.TTL, c.MaxKeys, c.Shards = time.Second, -1, 1
		l, clock := newFrozen(t, c)
		largest := 0
		for i := range 10 * keys {
			// Keys come up in a slowly moving range, so that old ones become idle.
			key := fmt.Sprint("key", i/20+rng.IntN(keys/2))
			cost := 1 + rng.IntN(burstOf(l))
			want := fromOracle(model.Take(key, clock.Now(), int64(cost)))
			require.Equal(t, want, l.Take(key, cost), "call %d", i)
			largest = max(largest, slotsOf(l))
			clock.Advance(time.Duration(rng.Int64N(int64(10*time.Minute) / int64(keys))))
			if rng.IntN(keys) == 0 {
				l.Sweep()
			}
		}
		require.Positive(t, l.Stats().Swept)
		require.Greater(t, largest, minSlots, "no table has grown")
	})
}

// TestShard_SharesAddUpToMaxKeys, whatever the number of shards.
func TestShard_SharesAddUpToMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 3, 5, 63, 64, 65, 1000, 100_003, 1 << 20} {
		for _, shards := range []int{0, 1, 2, 3, 7, 64, 1000} {
			l, err := newUncrowded(Config{Limit: PerSecond(1), MaxKeys: maxKeys, Shards: shards})
			require.NoError(t, err)
			sum := 0
			for i := range l.shards {
				require.Positive(t, l.shards[i].share)
				sum += l.shards[i].share
			}
			require.Equal(t, maxKeys, sum)
			require.Equal(t, pow2(len(l.shards)), len(l.shards))
			if shards > 0 && shards <= maxKeys/2 {
				require.Equal(t, pow2(shards), len(l.shards))
			}
		}
	}
}

// TestShard_KeysSpreadOverShards: with the seeded and the stable hash alike, by
// the high bits of the id.
func TestShard_KeysSpreadOverShards(t *testing.T) {
	if crowded() {
		return // one shard then
	}
	for _, h := range []Hash{HashSeeded, HashStable} {
		l, _ := newFrozen(t, Config{Limit: PerSecond(1), Hash: h, Shards: 64})
		fill(l, "key", 64_000)
		for i := range l.shards {
			require.InDelta(t, 1000, l.shards[i].len(), 250, "%v, shard %d", h, i) // 8 sigma
		}
	}
}

// TestShard_NobodyChoosesPlaces: strangers who know the stable hash find keys whose hashes lie in one shard, and at one
// place of a table. They fill no shard, and make no probe longer.
func TestShard_NobodyChoosesPlaces(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or small tables
	}
	const keys = 30_000
	l, _ := newFrozen(t, Config{Limit: PerHour(1), Hash: HashStable, MaxKeys: 1 << 18, Shards: 64})
	for i := range uint64(keys) {
		require.True(t, l.KeyHash(0xabcd<<48|i<<32|0x12345678).Allow())
	}
	require.Equal(t, keys, l.Len())
	require.Zero(t, l.Stats().Evicted)
	probes := 0
	for _, tab := range tablesOf(l) {
		for i, id := range tab.occupied {
			probes += int((i + uint64(len(tab.slots)) - tab.home(id)) % uint64(len(tab.slots)))
		}
	}
	require.Less(t, probes, 4*keys, "slots that all lookups pass")
}

// TestShard_FarTables: slots that are not in the cache are fetched ahead, on a clock that has to be
// called, and no decision depends on it.
func TestShard_FarTables(t *testing.T) {
	if splits() {
		return // it counts slots of large tables
	}
	if crowded() {
		t.Skip("so many keys in one probe take long")
	}
	clock := NewManualClock(start)
	l := mustNew(t, Config{Limit: Per(2, time.Hour), Clock: clockFunc(clock.Now)})
	require.False(t, l.far.Load())
	var charges []Charge
	const keys = 70_000
	for i := range uint64(keys) {
		require.True(t, l.KeyUint64(i).Allow())
		if i%1000 == 0 {
			charges = append(charges, Charge{l.KeyUint64(i), 1})
		}
	}
	require.Equal(t, keys, l.Len())
	require.GreaterOrEqual(t, slotsOf(l), farSlots)
	require.True(t, l.far.Load())
	require.True(t, l.KeyUint64(5).Allow())
	require.False(t, l.KeyUint64(5).Allow())
	require.True(t, l.KeyUint64(keys).Allow())
	for i, ok := range AllowEach(nil, charges...) {
		require.True(t, ok, "charge %d", i)
	}
	for i, ok := range AllowEach(nil, charges...) {
		require.False(t, ok, "charge %d", i)
	}
	clock.Advance(2 * time.Hour)
	l.Sweep()
	require.Zero(t, l.Len())
	require.False(t, l.far.Load())
}

// TestShard_WaitersGetTheLockBetweenTables, after one table and not after 1 ms of them.
func TestShard_WaitersGetTheLockBetweenTables(t *testing.T) {
	if crowded() {
		return // probes of 10,000 slots
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that nobody else can run while a table is moved
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1})
	for i := range uint64(10_000) {
		l.KeyUint64(i).Allow()
	}
	var wait sync.WaitGroup
	var had atomic.Int64
	tables, inTime := int64(0), 0
	l.eachPart(0, l.tableDepth, func(uint64, uint64) {
		if tables > 0 && had.Load() == tables {
			inTime++
		}
		tables++
		wait.Go(func() {
			l.shards[0].mu.Lock()
			had.Add(1)
			l.shards[0].mu.Unlock()
		})
		for range 100 { // until it waits
			runtime.Gosched()
		}
	})
	wait.Wait()
	require.Greater(t, tables, int64(4))
	require.Greater(t, inTime, int(tables)/2, "of %d: now and then the scheduler lets who has yielded go first", tables)
}

// TestShard_StatesOfSomeSlots: in a few slots at a time there are the states that there are in a walk, those
// in cells included, and none of keys that are no longer counted.
func TestShard_StatesOfSomeSlots(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards = 1
		l, _ := newFrozen(t, c)
		for i := range uint64(60) {
			k := l.KeyUint64(i)
			if i%3 == 0 {
				with, err := k.WithLimit(Per(1000, c.Limit.Period))
				require.NoError(t, err)
				k = with
			}
			require.True(t, k.AllowN(int(i)+1))
			if i%3 == 1 {
				require.NoError(t, k.SetLimit(Per(2000, c.Limit.Period)), "which takes it out of its table")
			}
		}
		type word struct {
			*policy
			word uint64
		}
		var walked, some []word
		s := &l.shards[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		marks := 0
		for _, tab := range l.tablesLocked(s) {
			l.eachLocked(s, tab, func(p *policy, e state) { walked = append(walked, word{p, e.word}) })
			marks += tab.used
			for from := 0; from < len(tab.slots); {
				end := min(from+1+len(some)%(2*blockSlots), len(tab.slots))
				l.eachOfLocked(s, tab, from, end, func(p *policy, e state) {
					require.Equal(t, p.wide != nil, e.tail != nil)
					some = append(some, word{p, e.word})
				})
				from = end
			}
		}
		marks -= len(some)
		require.Equal(t, walked, some)
		require.Len(t, some, 40)
		require.Positive(t, marks)
	})
}
