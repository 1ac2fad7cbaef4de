package sluice

import (
	"math"
	"math/rand/v2"
	"time"
	"weak"

	"github.com/sluice-go/sluice/internal/rank"
)

// A dropped key loses its record of spent units. Two rules keep that from changing decisions.
//
// A key is idle at a time if no later call could tell it from a fresh one, and
// only idle keys are swept. A sweep judges the word that rebuildLocked has taken
// away from decisions, never a word that it read earlier:
//
//	sweep:   reads the clock, 59.9 s; finds k idle; is delayed
//	charge:  at 60.1 s, in the next window, admits k
//	sweep:   takes k's word: it says idle from 120 s; keeps k
//
// A live key is dropped only for want of room at MaxKeys, by OverflowEvictSoonest, and
// counted in Stats.Evicted.

const (
	// minSweepEvery bounds how often the timer sweeps when the TTL is shorter.
	minSweepEvery = 100 * time.Millisecond

	// The timer rebuilds a table only if a quarter of its keys can go, so that it costs a key no
	// more than a few slots' worth of work. Not tuned.
	sweepFraction = 4

	// roomFraction is the part of a table in a full shard that OverflowEvictSoonest frees at
	// once: a rebuild looks at every slot, and this spreads it over many insertions.
	// With 4 a new key at MaxKeys takes 1.1 times as long.
	roomFraction = 3

	// lookFraction: new keys worth this part of a table must arrive before the table is
	// looked at. Not tuned.
	lookFraction = 4

	// sampleSlots is how many slots of a table OverflowEvictSoonest looks at, in a shard with several
	// tables, to find out which ranks are the lowest third. The result is a third give or take a
	// tenth of it (one sigma). If it looks at all slots and orders all ranks, a new key takes 1.3
	// times as long.
	sampleSlots = 256

	// sampleRow is how many slots in a row are looked at, since the next one is in the cache.
	sampleRow = 32

	// maxLooks is how many tables are looked at for one new key. With one-word keys these looks
	// take some 100 us.
	maxLooks = 4

	// scanPause, times the number of shards, is how long a full shard rests for each key that it has
	// looked at without payment by new keys. It takes some 0.1 us to look at a key and move it,
	// so all shards together spend at most about a tenth of one processor on such
	// looks. Not tuned.
	scanPause = time.Microsecond
)

// idleBy reports whether e has been idle at cutoff and ever since.
func (p *policy) idleBy(e state, cutoff int64) bool {
	return cutoff >= 0 && p.idleAt(e) <= uint64(cutoff)
}

// countIdleLocked counts the entries of a table, and how many of them are idle by cutoff in
// their present state.
func (st *store) countIdleLocked(s *shard, t *table, cutoff int64) (idle, all int) {
	st.eachLocked(s, t, func(p *policy, e state) {
		all++
		if p.idleBy(e, cutoff) {
			idle++
		}
	})
	return idle, all
}

// lookForIdleLocked is countIdleLocked by now; all is valid only if idle > 0. It does not look again
// before an entry can be idle. Charges and denials make a key idle later; every other change calls idleSooner.
//
//	look:    notes 1; reads that k is idle from 9
//	refund:  swaps in a word that is idle from 5; finds a note, and puts 0 in its place
//	look:    does not find 1, so it notes nothing
//
// Under OverflowEvictSoonest looks are few: updates do not call idleSooner, and looks note no time.
func (st *store) lookForIdleLocked(s *shard, t *table, now int64) (idle, all int) {
	switch {
	case st.overflow == OverflowEvictSoonest:
		return st.countIdleLocked(s, t, now)
	case now < t.idleFrom.Load():
		return 0, 0
	}
	t.idleFrom.Store(1)
	first := uint64(math.MaxInt64)
	st.eachLocked(s, t, func(p *policy, e state) {
		all++
		at := p.idleAt(e)
		if at <= uint64(now) {
			idle++
		}
		if p.wide != nil || e.word == held { // a call holds the word, or may be writing the tail
			at = 0
		}
		first = min(first, at)
	})
	t.idleFrom.CompareAndSwap(1, int64(first))
	return idle, all
}

// dropIdleLocked rebuilds the table of id for want ids without the entries that are
// idle by cutoff, and returns how many that were.
func (st *store) dropIdleLocked(s *shard, id uint64, cutoff int64, want int) int {
	n := st.rebuildLocked(s, id, want, func(p *policy, e state) bool { return p.idleBy(e, cutoff) })
	st.forgotLocked(s, n, cutoff)
	return n
}

// forgotLocked notes that n keys that were idle by the cutoff have been dropped.
func (st *store) forgotLocked(s *shard, n int, cutoff int64) {
	if n > 0 {
		s.floor = max(s.floor, cutoff)
		st.swept.Add(uint64(n))
	}
}

// emptyCellsLocked removes the state of cells that stay and that have been idle by cutoff, for the ids
// from first to last.
func (st *store) emptyCellsLocked(s *shard, first, last uint64, cutoff int64) (dropped int) {
	s.cellsIn(first, last, func(c *cell) {
		if c.kept == nil || c.word.Load() == elsewhere || !c.policy.idleBy(c.state(c.word.Load()), cutoff) {
			return
		}
		e, _ := c.freeze()
		if !c.policy.idleBy(e, cutoff) {
			c.word.Store(e.word)
			return
		}
		next := &cell{policy: c.policy, kept: c.kept}
		next.id.Store(c.id.Load())
		next.word.Store(elsewhere)
		st.ledgers.Dropped(c.id.Load())
		st.putCellLocked(s, next)
		dropped++
	})
	st.forgotLocked(s, dropped, cutoff)
	st.keptLive.Add(-int64(dropped))
	return dropped
}

// sweepTableLocked drops the entries of the table of id that are idle by cutoff if at least
// one in fraction is.
func (st *store) sweepTableLocked(s *shard, id uint64, cutoff int64, fraction int) int {
	t := st.tableOf(id)
	if t.used == 0 {
		st.mergeEmptyLocked(id)
		return 0
	}
	idle, all := st.countIdleLocked(s, t, cutoff)
	if idle == 0 || idle < all/fraction {
		return 0
	}
	return st.dropIdleLocked(s, id, cutoff, all-idle)
}

// sweepShards drops the entries that are idle by cutoff from each table where at least one in fraction is.
func (st *store) sweepShards(cutoff int64, fraction int) (dropped int) {
	for i := range st.shards {
		s := &st.shards[i]
		st.eachPart(i, st.partDepth, func(first, last uint64) {
			dropped += st.emptyCellsLocked(s, first, last, cutoff) + st.sweepTableLocked(s, first, cutoff, fraction)
		})
	}
	return dropped
}

func (st *store) sweep() (dropped int) { return st.sweepShards(max(0, st.clock.Now()), math.MaxInt) }

// arm starts the sweep timer if it is not running. The timer runs while the store
// has keys. It knows the store by a weak pointer, so that it does not keep an
// unreachable limiter in memory; at worst it fires once more and finds nothing.
func (st *store) arm() {
	if !st.timed || st.armed.Load() || !st.armed.CompareAndSwap(false, true) {
		return
	}
	self := weak.Make(st)
	time.AfterFunc(max(time.Duration(st.ttl), minSweepEvery), func() {
		if st := self.Value(); st != nil {
			st.sweepOnTimer()
		}
	})
}

// sweepOnTimer drops the keys that have been idle for the TTL and arms the next sweep.
// When no key is left it disarms, and then looks again:
//
//	sweep:   finds no keys
//	insert:  adds a key, sees the timer armed
//	sweep:   disarms; without a second look no sweep would ever come
func (st *store) sweepOnTimer() {
	st.ledgers.DropPassed(max(st.clock.Now(), 0))
	st.sweepShards(st.clock.Now()-st.ttl, sweepFraction)
	st.armed.Store(false)
	if st.len() > 0 || st.keptLive.Load() > 0 {
		st.arm()
	}
}

// makeRoomLocked makes room for a key in a full shard and reports whether it
// could. Idle keys go first, even before the TTL.
//
// Looking for idle keys takes time in proportion to the table, and may free a single slot. So
// each look is paid for, by a batch of new keys or a pause in proportion to the look before: else
// a client that makes one key idle at a time (by a login, which resets it) and then shows a new one
// makes each new key cost a look. In between, OverflowEvictSoonest frees a whole batch, live keys
// included, and the other policies turn new keys away.
func (st *store) makeRoomLocked(s *shard, now int64) bool {
	now = st.settled(now)
	rested := now >= s.restedAt.Load()
	s.settleTriesLocked()
	round := max(1, int64(s.share/lookFraction)) // pays for a look at each table
	s.tries = min(s.tries, uint32(min(round, math.MaxUint32)))
	evicts := st.overflow == OverflowEvictSoonest
	if (rested || !evicts) && st.dropSomeIdleLocked(s, now, rested) {
		return true
	}
	if !evicts {
		return false
	}
	s.tries = 0
	for s.full() {
		st.evictSoonestLocked(s, now)
	}
	return true
}

// dropSomeIdleLocked drops the idle keys of the next table that has some, as far as new keys
// have paid for the looks. In a rested shard one look at each key is free, and tries begins anew.
func (st *store) dropSomeIdleLocked(s *shard, now int64, rested bool) bool {
	free := 0
	if rested {
		free, s.tries = s.len(), 0
	}
	for range maxLooks {
		id, t := st.atHandLocked(s)
		if free > 0 {
			free -= t.used
			st.restLocked(s, now, t.used)
		} else if !s.payLocked(uint32(max(1, min(t.used, s.share)/lookFraction))) {
			return false
		}
		st.moveHandLocked(s)
		if idle, all := st.lookForIdleLocked(s, t, now); idle > 0 {
			st.dropIdleLocked(s, id, now, all-idle)
		}
		if !s.full() {
			return true
		}
	}
	return false
}

// restLocked notes a look at n keys that no new keys have paid for.
func (st *store) restLocked(s *shard, now int64, n int) {
	from := max(s.restedAt.Load(), now)
	pause := int64(n) * int64(len(st.shards)) * int64(scanPause)
	s.restedAt.Store(from + min(pause, math.MaxInt64-from))
}

// payLocked subtracts a batch of new keys from tries, if there are as many. If not, it counts the
// next rejected calls in advance, until the batch is complete.
func (s *shard) payLocked(batch uint32) bool {
	if s.tries >= batch {
		s.tries -= batch
		return true
	}
	s.unpaid.Store(int64(batch - 1 - s.tries))
	s.tries = batch - 1
	return false
}

// settleTriesLocked subtracts the expected calls that did not arrive.
func (s *shard) settleTriesLocked() {
	if s.unpaid.Load() > 0 {
		s.tries -= min(s.tries, uint32(max(0, s.unpaid.Swap(0))))
	}
}

// countTryLocked counts a new key, which may find room or not.
func (s *shard) countTryLocked() {
	s.settleTriesLocked()
	if s.tries < math.MaxUint32 {
		s.tries++
	}
}

// turnsAway reports whether a key that is not tracked is to be turned away without a look for
// room, since no new keys have paid for a look.
func (st *store) turnsAway(s *shard, p *policy, id uint64, now int64, seen gap) bool {
	if st.overflow == OverflowEvictSoonest || !s.full() || now >= s.restedAt.Load() || s.unpaid.Load() <= 0 {
		return false
	}
	if !st.strange(p, id, seen) || !s.full() || s.unpaid.Add(-1) < 0 {
		return false
	}
	st.untracked.Add(1)
	return true
}

// evictSoonestLocked frees a batch of the table at the hand, and at least one slot.
func (st *store) evictSoonestLocked(s *shard, now int64) {
	id, t := st.fullAtHandLocked(s)
	st.moveHandLocked(s)
	batch := max(1, t.used/roomFraction)
	idle, ranks := st.surveyLocked(s, t, now)
	if idle >= batch || len(ranks) == 0 {
		if st.dropIdleLocked(s, id, now, t.used-idle) > 0 {
			return
		}
	} else {
		n, live := batch-idle, t.used-idle
		part := float64(min(n, live)) / float64(live)
		if st.evictLocked(s, id, now, n, rank.Lowest(ranks, max(1, int(part*float64(len(ranks))+0.5)))) > 0 {
			return
		}
	}
	// The keys chosen for eviction have been charged meanwhile. The new key must get room all the
	// same. Blocked keys still go last.
	free := 0
	st.eachLocked(s, st.tableOf(id), func(p *policy, e state) {
		if p.rank(e, 0) < reserved {
			free++
		}
	})
	if free > 0 && st.evictLocked(s, id, now, batch, rank.Some(free, min(batch, free), reserved)) > 0 {
		return
	}
	st.evictLocked(s, id, now, batch, rank.Some(st.tableOf(id).used, batch, math.MaxUint64))
}

// rankOf ranks e, which is under the policy of, among the keys under p. All windows count in the
// same units; a bucket says when it becomes idle in ticks of its own, which rankOf converts.
func (p *policy) rankOf(of *policy, e state, now int64) uint64 {
	rank := of.rank(e, now)
	if of == p || rank >= reserved {
		return rank
	}
	b := p.bucket()
	if b == nil {
		return rank
	}
	s, _ := b.turns()
	return s.tick(int64(min(of.idleAt(e), math.MaxInt64)))
}

// surveyLocked returns how many entries of a table are idle at now and the ranks of live entries. If
// the table is all of a shard, or a sample meets few, it looks at all entries, else at the sample. (The
// sample is random, since strangers may choose the places of their keys, by what a caller gives to KeyHash.)
func (st *store) surveyLocked(s *shard, t *table, now int64) (idle int, ranks []uint64) {
	look := func(p *policy, e state) {
		if p.idleBy(e, now) {
			idle++
		} else {
			ranks = append(ranks, t.policy.rankOf(p, e, now))
		}
	}
	whole := t.depth == st.depth() && t.used <= fullIDs
	if !whole && len(t.slots) > sampleSlots {
		ranks = make([]uint64, 0, sampleSlots)
		for range sampleSlots / sampleRow {
			from := rand.IntN(len(t.slots) - sampleRow + 1)
			st.eachOfLocked(s, t, from, from+sampleRow, look)
		}
		if n := idle + len(ranks); n >= sampleSlots/8 {
			return int(float64(idle) / float64(n) * float64(t.used)), ranks
		}
	}
	idle, ranks = 0, make([]uint64, 0, t.used)
	st.eachLocked(s, t, look)
	return idle, ranks
}

// evictLocked drops the idle entries of the table of id and the live entries that c takes, about n, and
// returns how many it has dropped. An entry that has been charged since it was ranked ranks higher,
// and stays.
func (st *store) evictLocked(s *shard, id uint64, now int64, n int, c rank.Cut) int {
	swept, evicted := 0, 0
	t := st.tableOf(id)
	// The next table has room for at least one key, which is about to be added, and for some more than stay:
	// by chance a table gets more new keys than another, and would grow before the hand comes back.
	st.rebuildLocked(s, id, max(1, t.used-n+t.used/12), func(p *policy, e state) bool {
		switch {
		case p.idleBy(e, now): // first: an idle key need not rank lowest
			swept++
		case c.Takes(t.policy.rankOf(p, e, now)):
			evicted++
		default:
			return false
		}
		return true
	})
	st.forgotLocked(s, swept, now)
	st.evicted.Add(uint64(evicted))
	return swept + evicted
}

// atHandLocked returns the next table that has keys, and its first id.
func (st *store) atHandLocked(s *shard) (first uint64, t *table) {
	for {
		if t = st.tableOf(s.handID()); t.used > 0 {
			first, _ = covers(s.handID(), t.depth)
			return first, t
		}
		st.moveHandLocked(s)
	}
}

// fullAtHandLocked returns the next table that has half of its part of a full shard, or more. A table
// with few keys would have to give up the keys that owe the most, to make room for keys that
// strangers have placed in another table. A full shard always has a table with that many.
func (st *store) fullAtHandLocked(s *shard) (first uint64, t *table) {
	for {
		if first, t = st.atHandLocked(s); uint64(2*t.used)<<(t.depth-st.depth()) > uint64(s.share) {
			return first, t
		}
		st.moveHandLocked(s)
	}
}

func (st *store) moveHandLocked(s *shard) {
	id := s.handID()
	_, last := covers(id, st.tableOf(id).depth)
	next, end := covers(id, st.depth())
	if last != end {
		next = last + 1
	}
	s.hand = uint32(next >> 32)
}
