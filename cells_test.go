package sluice

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// The clock moves on while SetLimit moves a key in a cell, which has brought a limit before.
func TestSetLimit_ReservationsOfKeysInCellsGiveBack(t *testing.T) {
	now, step := start.UnixNano(), int64(0)
	lim := Must(New(Config{Limit: PerSecond(10), Clock: clockFunc(func() int64 { now += step; return now })}))
	k := lim.Key("a")
	brought, err := k.WithLimit(PerSecond(20))
	require.NoError(t, err)
	require.True(t, brought.Allow())
	require.True(t, k.Allow())
	r, err := k.Reserve(5, 0)
	require.NoError(t, err)

	step = 1000
	require.NoError(t, lim.SetLimit(PerSecond(5)))
	step = 0
	require.Zero(t, k.Peek(0).Remaining)
	r.Cancel()
	require.Equal(t, 3, k.Peek(0).Remaining)
}

// cellTablesOf returns the tables of the cells of a shard, in order.
func cellTablesOf(l *Limiter, i int) (all []*cellTable) {
	d := l.shards[i].cells.Load()
	if d == nil {
		return nil
	}
	for j := range d.places {
		if ct := d.places[j].Load(); j == 0 || ct != all[len(all)-1] {
			all = append(all, ct)
		}
	}
	return all
}

// TestKeyLimit_TouchesNoOtherKey: the table stays, and calls for keys that are not
// tracked do not wait for the move, though they are of the same shard.
func TestKeyLimit_TouchesNoOtherKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		clock := &hookedClock{ManualClock: NewManualClock(start)}
		c.Clock, c.Shards = clock, 1
		l := mustNew(t, c)
		for i := range 200 {
			require.True(t, l.KeyUint64(uint64(i)).AllowN(300))
		}
		table := l.tableOf(0)
		looked := 0
		hook := func() { // with the ledger and the shard locked, and the key in no place
			looked++
			require.Equal(t, l.current.Load().burst, uint64(l.Key("new").Peek(0).Remaining))
			require.True(t, TakeAll(Charge{l.Key("new"), 0}, Charge{l.KeyUint64(1), 1}).Allowed)
			require.True(t, l.KeyUint64(2).Allow())
		}
		for i, change := range []func(k Key){
			func(k Key) { require.NoError(t, k.SetLimit(Per(5000, c.Limit.Period))) },
			func(k Key) { require.NoError(t, k.SetLimit(DenyAll)) },
			Key.ClearLimit,
		} {
			clock.hook.Store(&hook)
			change(l.KeyUint64(100))
			require.Equal(t, i+1, looked)
			require.Same(t, table, l.tableOf(0))
		}
		require.Equal(t, int(l.current.Load().burst)-300, l.KeyUint64(100).Peek(0).Remaining)
	})
}

// TestCells_AreAMap: the cells of a shard beside a map, through puts, replacements, removals, growth and
// splits, however crowded, and though all are in one place.
func TestCells_AreAMap(t *testing.T) {
	for _, homes := range []uint64{1, 4, math.MaxUint64} {
		for _, shards := range []int{1, 64} {
			for _, spread := range []uint{0, 40} {
				t.Run(fmt.Sprintf("homes=%d,shards=%d,same=%d", homes, shards, spread), func(t *testing.T) { cellsAreAMap(t, homes, shards, spread) })
			}
		}
	}
}

// cellsAreAMap is the test for ids that have so many bits in common after those of their shard.
func cellsAreAMap(t *testing.T, homes uint64, shards int, same uint) {
	rng := seeded.Rand(t)
	l := mustNew(t, Config{Limit: PerHour(5), Shards: shards})
	st := &l.store
	st.homes, st.mostCells = homes, 10
	i := len(st.shards) * 2 / 3 // crowded limiters have one
	first, last := st.ids(i)
	ids := []uint64{first, last}
	for range 120 {
		ids = append(ids, first|rng.Uint64()>>same>>st.depth())
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	s := &st.shards[i]
	require.Nil(t, s.cell(first), "there is no table yet")
	st.cellsOf(i, func(*cell) { t.Error("a cell of no table") })
	want := map[uint64]*cell{}
	for range 3000 {
		id := ids[rng.IntN(len(ids))]
		if c := s.cell(id); c != nil && rng.IntN(2) == 0 {
			st.removeCellLocked(s, c)
			delete(want, id)
		} else {
			next := &cell{kept: st.own.Load()}
			next.id.Store(id)
			st.putCellLocked(s, next)
			want[id] = next
		}
		require.EqualValues(t, len(want), st.kept.Load())
		from, to := ids[rng.IntN(len(ids))], ids[rng.IntN(len(ids))]
		from, to = min(from, to), max(from, to)
		if rng.IntN(2) == 0 {
			from, to = first, last
		}
		in := map[uint64]*cell{}
		s.cellsIn(from, to, func(c *cell) {
			traces.Equal(t, nil, in[c.id.Load()], "a cell twice")
			in[c.id.Load()] = c
		})
		for _, id := range ids {
			if from <= id && id <= to {
				traces.Equal(t, want[id], in[id])
				delete(in, id)
			}
		}
		require.Empty(t, in, "of other ids")
	}
	for _, id := range ids {
		require.Same(t, want[id], s.cell(id))
		require.Same(t, want[id^2], s.cell(id^2))
	}
	live := 0
	tables := cellTablesOf(l, i)
	for _, ct := range tables {
		live += ct.live
		require.Less(t, ct.used, len(ct.places), "no probe would end")
	}
	require.Equal(t, len(want), live)
	require.LessOrEqual(t, len(s.cells.Load().places), 64, "as many as the keys are for")
	if same == 0 && len(st.shards) == 1 { // or all keys are in one shard of many, as they should not be
		require.Greater(t, len(tables), 4)
		require.LessOrEqual(t, len(tables[0].places), 32)
	}
}

// TestCells_AreChargedWhileTheyAreSwept: a cell that stays, and is charged between the look at it
// and its emptying, keeps the charge.
func TestCells_AreChargedWhileTheyAreSwept(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(2), TTL: 1})
	k := l.Key("k")
	require.NoError(t, k.SetLimit(PerSecond(3)))
	require.True(t, k.Allow())
	clock.Advance(10 * sec)
	p := l.shardOf(k.id).cell(k.id).policy
	plain, calls := p.wide, 0
	p.wide = lookedAtWide{plain, func() {
		if calls++; calls == 1 {
			require.True(t, k.Allow())
		}
	}}
	require.Zero(t, l.Sweep())
	p.wide = plain
	require.NotZero(t, calls)
	require.Equal(t, 2, k.Peek(0).Remaining)
	clock.Advance(10 * sec)
	require.Equal(t, 1, l.Sweep())
	require.Equal(t, uint64(elsewhere), l.shardOf(k.id).cell(k.id).word.Load())
}
