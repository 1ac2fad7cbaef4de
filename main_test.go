package sluice

import (
	"iter"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/invariants"
	"github.com/sluice-go/sluice/internal/test/suite"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// crowded and splits report whether the suite runs with crowded tables, by -homes or -most.
var crowded, splits = suite.Crowded, suite.Splits

// raceEnabled says that the race detector is on, which allocates, as the checks of invariants do; race_test.go sets it.
var raceEnabled = invariants.Built

// mustNew is New for tests.
func mustNew(tb testing.TB, c Config) *Limiter {
	tb.Helper()
	l, err := New(c)
	require.NoError(tb, err)
	return l
}

// newUncrowded is New as programs have it, for tests of how many shards there are.
func newUncrowded(c Config) (*Limiter, error) { return newLimiter(c, math.MaxUint64, math.MaxInt) }

// start is an arbitrary time in 2026, not aligned to anything.
var start = traces.Start

// TestSuite_CrowdedHomes runs the whole suite again with home slots cut to 16 and
// to one, so that every table is one long probe.
func TestSuite_CrowdedHomes(t *testing.T) { suite.CrowdedHomes(t) }

// TestSuite_TablesOfAFewIDs runs again what decides and moves, with tables that are split when
// they have three ids.
func TestSuite_TablesOfAFewIDs(t *testing.T) {
	suite.TablesOfAFewIDs(t, 3, "^Test(Model|Concurrent|Table|Directory|Rebuild|Restore|Snapshot|SetLimit|KeyLimit|Cells|"+
		"Sweep|Ledger|Wait|Reserve|TakeAll|TakeUpTo|Debit|Insert|Growth|Cancel|Reservation|Fuzz|WithLimit)")
}

// setAlgorithm puts another algorithm, of the same words, in the place of the limiter's.
func setAlgorithm(l *Limiter, alg algorithm, wide wideAlgorithm) {
	p := l.policyOf(0)
	p.alg, p.wide, p.arith = alg, wide, alg
	if wide != nil {
		p.arith = wide
	}
	p.line, _ = alg.(line)
}

// cellsOf calls f for the cells of a shard, as cellsIn.
func (st *store) cellsOf(i int, f func(*cell)) {
	first, last := st.ids(i)
	st.shards[i].cellsIn(first, last, f)
}

// tablesLocked yields the tables of a shard, each with its first id.
func (st *store) tablesLocked(s *shard) iter.Seq2[uint64, *table] {
	return func(yield func(uint64, *table) bool) {
		id, end := covers(s.handID(), st.depth())
		for ; ; id++ {
			t := st.tableOf(id)
			if !yield(id, t) {
				return
			}
			if _, id = covers(id, t.depth); id == end {
				return
			}
		}
	}
}

// tablesOf returns all tables of l, which is at rest.
func tablesOf(l *Limiter) (all []*table) {
	for i := range l.shards {
		for _, t := range l.tablesLocked(&l.shards[i]) {
			all = append(all, t)
		}
	}
	return all
}

// slotsOf returns how many slots all tables of l have.
func slotsOf(l *Limiter) (n int) {
	for _, t := range tablesOf(l) {
		n += len(t.slots)
	}
	return n
}

// hashOf returns the hash by which other limiters of HashStable know k.
func hashOf(k Key) uint64 { return k.lim.hash.Hash(k.id) }

// slotOf returns the slot of k in its table, or nil.
func slotOf(k Key) *slot {
	e, _ := k.lim.tableOf(k.id).lookup(k.id)
	return e
}

// wordOf returns the word of id under a one-word algorithm.
func wordOf(l *Limiter, id uint64) uint64 {
	if at := l.locate(id); at.slot != nil {
		return at.slot.released()
	}
	return 0
}

// burstOf returns the most that a fresh key of l is admitted at once.
func burstOf(l *Limiter) int {
	c := l.Config()
	return c.Limit.Capacity() + c.Soft
}

// isWide reports whether a key of l has a word and a tail.
func isWide(l *Limiter) bool { return l.policyOf(0).wide != nil }

// policyOf returns the policy that id is under, or if it is not tracked, would be.
func (st *store) policyOf(id uint64) *policy {
	if c := st.shardOf(id).cell(id); c != nil {
		return c.policy
	}
	return st.tableOf(id).policy
}
