package sluice

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/traces"
)

func TestDirectory_Covers(t *testing.T) {
	const id = 0xabcd_ef01_2345_6789
	for _, c := range []struct {
		depth       uint
		first, last uint64
	}{
		{0, 0, math.MaxUint64}, {1, 1 << 63, math.MaxUint64}, {8, 0xab << 56, 0xac<<56 - 1}, {64, id, id},
	} {
		first, last := covers(id, c.depth)
		require.Equal(t, []uint64{c.first, c.last}, []uint64{first, last}, c.depth)
	}
}

// TestDirectory_TablesSplitAndMerge: no table has more ids than are moved in one go, and when the
// keys have gone so have the tables.
func TestDirectory_TablesSplitAndMerge(t *testing.T) {
	if crowded() || splits() {
		return // very long probes, or very many tables
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		const keys = 12_000
		c.Shards, c.MaxKeys = 2, -1
		l, clock := newFrozen(t, c)
		few, left := len(tablesOf(l)), burstOf(l)-1
		require.Equal(t, 2, few)
		for range 2 {
			for i := range uint64(keys) {
				traces.Equal(t, true, l.KeyUint64(i).Allow())
			}
			require.Equal(t, keys, l.Len())
			tables := tablesOf(l)
			require.Greater(t, len(tables), keys/l.most)
			for _, tab := range tables {
				require.LessOrEqual(t, tab.used, l.mostOf(tab.policy))
				require.LessOrEqual(t, tab.limit, l.mostOf(tab.policy))
			}
			for i := range uint64(keys) {
				traces.Equal(t, left, l.KeyUint64(i).Peek(0).Remaining)
			}
			clock.Advance(2 * c.Limit.Period)
			require.Equal(t, keys, l.Sweep())
			fill(l, "few", 200)
			require.Less(t, len(tablesOf(l)), len(tables)/2)
			require.Equal(t, 200, l.Len())
			clock.Advance(2 * c.Limit.Period)
			require.Equal(t, 200, l.Sweep())
			require.Zero(t, l.Sweep())
			require.Len(t, tablesOf(l), few, "empty tables are merged")
		}
	})
}

// TestDirectory_StrangersCannotMakeItGrow: with ids that all begin alike, a split leaves one of
// the halves empty, so it would never end.
func TestDirectory_StrangersCannotMakeItGrow(t *testing.T) {
	if crowded() {
		return // probes of 20,000 slots
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: -1})
	const keys = 20_000
	key := func(i int) Key { return l.KeyHash(uint64(i+1) * 0x9e3779b97f4a7c15 >> 24) }
	for i := range keys {
		require.True(t, key(i).Allow())
	}
	require.LessOrEqual(t, len(l.directory.Load().places), max(len(l.shards), 4*keys/l.most))
	for i := range keys {
		require.Equal(t, 4, key(i).Peek(0).Remaining)
	}
}

// TestDirectory_WhoOwesIsNotPushedOutByKeysElsewhere: strangers choose the places of their keys, so
// that a table next to theirs has a single key, which owes most. It stays.
func TestDirectory_WhoOwesIsNotPushedOutByKeysElsewhere(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or tables whose part of the shard is a single key
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: 20_000, Shards: 1})
	offender := l.KeyHash(math.MaxUint64)
	require.True(t, offender.AllowN(5))
	for i := range 100_000 {
		require.True(t, l.KeyHash(uint64(i+1)*0x9e3779b97f4a7c15>>1).Allow())
		if i%100 == 0 {
			require.False(t, offender.Allow(), "after %d keys", i)
		}
	}
	require.Positive(t, l.Stats().Evicted)
	require.Equal(t, 1, l.tableOf(math.MaxUint64).used)
}

// TestGuide_BetweenTwoDirectories: a guide that has the new directory's places, and still the old
// one's count, leads to other tables. Decisions are the same.
func TestGuide_BetweenTwoDirectories(t *testing.T) {
	if crowded() {
		return // a single table
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		const keys = 500
		c.Shards, c.MaxKeys = 4, -1
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		for i := range uint64(keys) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		next := l.directory.Load().doubled()
		l.directory.Store(next)
		l.guide.places.Store(&next.places[0])
		wrong := 0
		for i := range uint64(keys) {
			k, stranger := l.KeyUint64(i), l.KeyUint64(keys+i)
			if l.guide.tableOf(k.id) != l.tableOf(k.id) {
				wrong++
			}
			traces.Equal(t, burst-1, k.Peek(0).Remaining)
			traces.Equal(t, burst-2, k.Take(1).Remaining)
			k.Refund(1)
			traces.Equal(t, false, k.AllowN(burst))
			traces.Equal(t, true, k.AllowN(burst-1))
			traces.Equal(t, burst-1, stranger.Take(1).Remaining)
			traces.Equal(t, false, stranger.AllowN(burst))
			traces.Equal(t, int(keys+i+1), l.Len())
			d := TakeAll(Charge{Key: k, Cost: 1}, Charge{Key: stranger, Cost: 1})
			traces.Equal(t, false, d.Allowed)
		}
		require.Greater(t, wrong, keys/4)
		l.guide.follow(l.directory.Load())
		for i := range uint64(keys) {
			traces.Equal(t, 0, l.KeyUint64(i).Peek(0).Remaining)
			traces.Equal(t, burst-1, l.KeyUint64(keys+i).Peek(0).Remaining)
		}
	})
}

// TestGuide_FullBetweenTwoDirectories: a guide that leads to another table makes a full limiter turn
// nobody away, and admit nobody without a charge, whom it would not have otherwise.
func TestGuide_FullBetweenTwoDirectories(t *testing.T) {
	const keys, burst = 512, 5
	run := func(c Config, torn bool) (said []Decision, st Stats) {
		clock := NewManualClock(start)
		c.Clock = clock
		l, err := newUncrowded(c)
		require.NoError(t, err)
		var in []Key
		for i := uint64(0); l.Len() < keys; i++ {
			k, was := l.KeyUint64(i), l.Len()
			k.AllowN(2)
			if l.Len() > was {
				in = append(in, k)
			}
		}
		if torn {
			next := l.directory.Load().doubled()
			l.directory.Store(next)
			l.guide.places.Store(&next.places[0])
		}
		wrong, untracked := 0, l.Stats().Untracked
		for i := range uint64(2000) {
			k, stranger := in[i%keys], l.KeyUint64(1<<40+i)
			if l.guide.tableOf(k.id) != l.tableOf(k.id) {
				wrong++
			}
			said = append(said, k.Peek(1), k.Take(1), stranger.Take(1), stranger.Peek(0))
			said = append(said, Decision{Allowed: stranger.Allow()}, Decision{Allowed: k.Allow()})
			k.Refund(1)
			d := TakeAll(Charge{k, 1}, Charge{stranger, 1})
			said = append(said, Decision{Allowed: d.Allowed, Remaining: d.Remaining})
			clock.Advance(time.Millisecond)
		}
		require.Equal(t, torn && len(l.shards) > 1, wrong > 500)
		st = l.Stats()
		st.Untracked -= untracked
		return said, st
	}
	for _, overflow := range untracking {
		for _, shards := range []int{1, 4} {
			for _, a := range []Algorithm{TokenBucket, SlidingLog} {
				c := Config{Limit: PerHour(burst), Algorithm: a, Shards: shards, MaxKeys: keys, Overflow: overflow}
				want, wantStats := run(c, false)
				got, gotStats := run(c, true)
				for i := range want {
					traces.Equal(t, want[i], got[i])
				}
				require.Equal(t, wantStats, gotStats)
			}
		}
	}
}

// TestGuide_StaysInItsPlaces: a guide followed while the directory grows leads to a place that
// there is. Behind those of each directory lie others here, with another table.
func TestGuide_StaysInItsPlaces(t *testing.T) {
	const most = 1 << 10
	tab, beyond := emptyTable(nil, 0), emptyTable(nil, 0)
	var growing []*directory[table]
	for n := 2; n <= most; n *= 2 {
		d := newDirectory[table](2*most, 0)
		for i := range d.places {
			d.places[i].Store(beyond)
		}
		d.places = d.places[:n]
		d.shift = uint(64 - bits.TrailingZeros(uint(n)))
		growing = append(growing, d.put(0, 0, tab))
	}
	begin := func() *guide {
		g := &guide{}
		g.follow(growing[0])
		return g
	}
	var now atomic.Pointer[guide]
	now.Store(begin())
	var over atomic.Bool
	var astray atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				if now.Load().tableOf(math.MaxUint64) != tab {
					astray.Add(1)
				}
			}
		})
	}
	for range depth.Of(50_000, 50_000, 1_000_000) {
		g := begin()
		now.Store(g)
		for _, d := range growing {
			g.follow(d)
		}
	}
	over.Store(true)
	wg.Wait()
	require.Zero(t, astray.Load())
}

// TestDirectory_IdleKeysAreFoundInAllTables: a full shard has one idle key somewhere. New keys
// that are turned away pay for a look at each table, and no more.
func TestDirectory_IdleKeysAreFoundInAllTables(t *testing.T) {
	if crowded() || splits() {
		return // one long probe, or more tables than are looked at in one go
	}
	const share = 10_000
	for _, o := range untracking {
		l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: share, Shards: 1, Overflow: o})
		for i := range uint64(share) {
			require.True(t, l.KeyUint64(i).Allow())
		}
		require.Greater(t, len(tablesOf(l)), 4)
		for round := range uint64(5) {
			l.KeyUint64(share).Allow() // pays for nothing, or the first time for a look at all
			l.KeyUint64(round * 1234).Reset()
			tries := 0
			for next := (round + 1) << 32; l.Stats().Swept == round; next++ { // keys that no round before has let in
				l.KeyUint64(next).Allow()
				tries++
				require.LessOrEqual(t, tries, share/lookFraction+1, "%v", o)
			}
			require.Equal(t, share, l.Len())
		}
	}
}

// TestDirectory_MovesOneTableAtATime: whoever moves all keys lets others have the lock in between.
func TestDirectory_MovesOneTableAtATime(t *testing.T) {
	if crowded() {
		return // probes of 10,000 slots
	}
	var l *Limiter
	moves := 0
	c := Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1}
	c.Clock = clockFunc(func() int64 {
		if l != nil {
			moves++
		}
		return start.UnixNano()
	})
	made := mustNew(t, c)
	for i := range uint64(10_000) {
		require.True(t, made.KeyUint64(i).Allow())
	}
	tables := len(tablesOf(made))
	require.Greater(t, tables, 4)
	l = made
	require.NoError(t, l.SetLimit(PerHour(7)))
	require.Equal(t, tables, moves, "each table is moved at a time of its own")
	for i := range uint64(10_000) {
		require.Equal(t, 6, l.KeyUint64(i).Peek(0).Remaining)
	}
}

// TestDirectory_EachTableIsMet while others split and merge what is being walked over, by tables or by
// parts of them.
func TestDirectory_EachTableIsMet(t *testing.T) {
	if crowded() {
		return // probes of 5,000 slots
	}
	for _, depth := range []uint{0, 5} {
		t.Run(fmt.Sprintf("depth=%d", depth), func(t *testing.T) { eachTableIsMet(t, depth) })
	}
}

func eachTableIsMet(t *testing.T, depth uint) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(5), MaxKeys: -1, Shards: 1, TTL: time.Hour})
	for i := range uint64(5000) {
		l.KeyUint64(i).Allow()
	}
	met := map[uint64]bool{}
	round := uint64(0)
	next := uint64(0)
	l.eachPart(0, func(id uint64) uint { return max(depth, l.tableDepth(id)) }, func(first, last uint64) {
		traces.Equal(t, next, first, "parts overlap, or leave out ids")
		next = last + 1
		for _, id := range l.tableOf(first).occupied {
			if first <= id && id <= last {
				met[id] = true
			}
		}
		s := &l.shards[0]
		s.mu.Unlock()
		defer s.mu.Lock()
		switch round++; {
		case round%3 == 0:
			for i := range uint64(3000) {
				l.KeyUint64(round<<32 + i).Allow()
			}
		case round%7 == 0:
			clock.Advance(time.Minute)
			for i := range uint64(5000) { // so that they stay
				l.KeyUint64(i).Allow()
			}
			l.Sweep()
		}
	})
	require.Zero(t, next, "it has come to the end")
	require.Greater(t, round, uint64(7))
	for i := range uint64(5000) {
		require.True(t, met[l.KeyUint64(i).id], i)
	}
}
