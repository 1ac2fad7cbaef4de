package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRebuild_KeysInCellsKeepTheirPlaces: those of a table that is split, and of one that is merged.
func TestRebuild_KeysInCellsKeepTheirPlaces(t *testing.T) {
	if crowded() {
		return // probes of 10,000 slots
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards, c.MaxKeys = 1, -1
		l, clock := newFrozen(t, c)
		burst := burstOf(l)
		own := map[string]bool{}
		names := make([]string, 0, 20)
		for i := range 20 {
			name := string(rune('a' + i))
			names = append(names, name)
			require.True(t, l.AllowN(name, 2))
			if i%2 == 0 {
				require.NoError(t, l.Key(name).SetLimit(Per(2*burst, c.Limit.Period)))
				own[name] = true
			}
		}
		check := func() {
			t.Helper()
			for i, name := range names {
				require.Equal(t, burst*(2-i%2)-2, l.Key(name).Peek(0).Remaining, name)
			}
			require.Len(t, limitsOf(l), len(own))
		}
		check()
		for i := range uint64(4000) {
			l.KeyUint64(i).Allow()
		}
		require.Greater(t, len(tablesOf(l)), 2)
		check()
		clock.Advance(2 * c.Limit.Period)
		for _, name := range names {
			require.True(t, l.AllowN(name, 2))
		}
		l.Sweep()
		check()
		fill(l, "more", 10)
		check()
	})
}

// TestRebuild_ASplitThatLeavesOneHalfEmpty still has room for the new key.
func TestRebuild_ASplitThatLeavesOneHalfEmpty(t *testing.T) {
	if crowded() {
		return // probes of 2,000 slots
	}
	for _, mask := range []uint64{0, 1 << 63} {
		l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1})
		for i := range uint64(2 * l.most) {
			require.True(t, l.KeyHash(mask|(i+1)*0x9e3779b97f4a7c15>>1).Allow())
		}
		require.Equal(t, 2*l.most, l.Len())
		require.Zero(t, l.tableOf(^mask).used)
	}
}

// TestRebuild_TablesOfTwoPoliciesAreNotMerged, as there are while SetLimit moves one after the other.
func TestRebuild_TablesOfTwoPoliciesAreNotMerged(t *testing.T) {
	if crowded() || splits() {
		return // probes of 4,000 slots, or tables without a key that could stay
	}
	l, clock := newFrozen(t, Config{Limit: PerMinute(60), MaxKeys: -1, Shards: 1})
	for i := range uint64(4000) {
		l.KeyUint64(i).Allow()
	}
	old := l.policyOf(0)
	other := mustNew(t, Config{Limit: PerMinute(6), Clock: clock}).policyOf(0)
	moved := 0
	l.eachPart(0, l.tableDepth, func(id, _ uint64) {
		if moved++; moved%2 == 1 {
			l.adoptAllLocked(&l.shards[0], id, emptyTable(other, 0))
		}
	})
	clock.Advance(15 * time.Second)
	for _, tab := range tablesOf(l) { // one key of each is left
		for _, id := range tab.occupied {
			l.update(id, func(p *policy, key state) uint64 { return p.alg.debit(0, clock.Now(), 1) })
			break
		}
	}
	l.Sweep()
	require.Equal(t, moved, l.Len())
	for i, tab := range tablesOf(l) {
		want := old
		if i%2 == 0 {
			want = other
		}
		require.Same(t, want, tab.policy, i)
	}
}

// TestRebuild_MergedTablesAreAsOldAsTheOlder of the two.
func TestRebuild_MergedTablesAreAsOldAsTheOlder(t *testing.T) {
	if crowded() || splits() {
		return // it is about two tables
	}
	l, _ := newFrozen(t, Config{Limit: PerHour(5), MaxKeys: -1, Shards: 1})
	for i := range uint64(l.most + 1) {
		l.KeyUint64(i).Allow()
	}
	s := &l.shards[0]
	a, b := l.tableOf(0), l.tableOf(math.MaxUint64)
	require.Len(t, tablesOf(l), 2)
	a.young, b.young = 70, 40
	s.mu.Lock()
	for _, c := range []struct {
		id   uint64
		want int // too many for a merge, and few enough
	}{{0, l.most}, {math.MaxUint64, 10}} {
		kept := 0
		l.rebuildLocked(s, c.id, c.want, func(*policy, state) bool { kept++; return kept > 10 })
	}
	s.mu.Unlock()
	require.Len(t, tablesOf(l), 1)
	merged := l.tableOf(0)
	require.Equal(t, 20, merged.used)
	require.Equal(t, int64(40), merged.young)
}

// TestRebuild_KeysComeBackFromTheirCells once they are under the limit of all keys again.
func TestRebuild_KeysComeBackFromTheirCells(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards = 1
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(3))
		left := k.Peek(0).Remaining
		require.NoError(t, k.SetLimit(Per(5000, c.Limit.Period)))
		k.ClearLimit()
		require.NotNil(t, l.shardOf(k.id).cell(k.id))
		fill(l, "key", 300)
		require.Nil(t, l.shardOf(k.id).cell(k.id))
		require.NotNil(t, slotOf(k))
		require.Equal(t, left, k.Peek(0).Remaining)
	})
}

// TestRebuild_EmptyTablesAreMerged: SetLimit leaves as many tables as there were, and a sweep one.
func TestRebuild_EmptyTablesAreMerged(t *testing.T) {
	if crowded() {
		return // probes of 4,000 slots
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Shards = -1, 1
		l, clock := newFrozen(t, c)
		for i := range uint64(4000) {
			l.KeyUint64(i).Allow()
		}
		before := len(tablesOf(l))
		require.Greater(t, before, 2)
		clock.Advance(3 * c.Limit.Period)
		require.NoError(t, l.SetLimit(c.Limit), "which drops idle keys")
		require.Zero(t, l.Len())
		require.Len(t, tablesOf(l), before)
		l.Sweep()
		require.Len(t, tablesOf(l), 1)
		require.True(t, l.Allow("k"))
	})
}

// TestRebuild_MoreKeysStayThanWanted: those in cells, too, have a place in a table that has to grow.
func TestRebuild_MoreKeysStayThanWanted(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.MaxKeys, c.Shards = -1, 1
		l, _ := newFrozen(t, c)
		var keys []Key
		for i := range uint64(100) {
			k := l.KeyUint64(i)
			if i%2 == 0 {
				with, err := k.WithLimit(Per(1000, c.Limit.Period))
				require.NoError(t, err)
				k = with
			}
			require.True(t, k.AllowN(int(i)+1))
			keys = append(keys, k)
		}
		s := &l.shards[0]
		s.mu.Lock()
		for id := range l.tablesLocked(s) {
			l.rebuildLocked(s, id, 1, nil)
		}
		s.mu.Unlock()
		require.Equal(t, len(keys), l.Len())
		for i, k := range keys {
			d := k.Peek(0)
			require.Equal(t, i+1, d.Limit-d.Remaining)
		}
		for i := range uint64(100) { // each finds its slot, and needs none besides
			l.KeyUint64(i).Reset()
		}
		require.Equal(t, len(keys), l.Len())
	})
}
