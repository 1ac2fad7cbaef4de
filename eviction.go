package sluice

import (
	"math"
	"math/rand/v2"
	"time"
	"weak"
)

// Dropping a key forgets what it has spent. Two rules keep that from mattering.
//
// A key is idle at a time if no later call could tell it from a fresh one, and
// only idle keys are swept. The verdict is on the word that rebuildLocked has
// taken out of the reach of decisions, never on one seen earlier:
//
//	sweep:   reads the clock, 59.9 s; finds k idle; is delayed
//	charge:  at 60.1 s, in the next window, admits k
//	sweep:   takes k's word: it says idle from 120 s; keeps k
//
// A live key is dropped only for want of room at MaxKeys, by EvictSoonest, and
// counted in Stats.Evicted.

const (
	// minSweepEvery bounds how often the timer sweeps when the TTL is shorter.
	minSweepEvery = 100 * time.Millisecond

	// The timer rebuilds a shard only if a quarter of its keys can go, and an
	// insertion looks for idle keys only after an eighth as many insertions as
	// there are keys, so that either costs a key no more than a few slots' worth of
	// work. Not tuned.
	sweepFraction = 4
	scanFraction  = 8

	// roomFraction is the part of a full shard's share that is made free at once:
	// a rebuild looks at every slot, and this spreads it over many insertions.
	// Not tuned.
	roomFraction = 8
)

// idleBy reports whether e has been idle at cutoff and ever since.
func (st *store) idleBy(e entry, cutoff int64) bool {
	return cutoff >= 0 && st.idleAt(e) <= uint64(cutoff)
}

// countIdleLocked counts the entries that are idle by cutoff as they stand now.
func (st *store) countIdleLocked(s *shard, cutoff int64) (n int) {
	st.each(s.table.Load(), func(e entry) {
		if st.idleBy(e, cutoff) {
			n++
		}
	})
	return n
}

// dropIdleLocked rebuilds the shard for want ids without the entries that are
// idle by cutoff, and returns how many that were.
func (st *store) dropIdleLocked(s *shard, cutoff int64, want int) int {
	n := st.rebuildLocked(s, want, func(e entry) bool { return st.idleBy(e, cutoff) })
	s.floor = max(s.floor, cutoff)
	st.swept.Add(uint64(n))
	return n
}

// sweepLocked drops the entries that are idle by cutoff if there are at least
// least of them.
func (st *store) sweepLocked(s *shard, cutoff int64, least int) int {
	s.added = 0
	n := st.countIdleLocked(s, cutoff)
	if n == 0 || n < least {
		return 0
	}
	return st.dropIdleLocked(s, cutoff, s.len()-n)
}

// sweep drops every entry that is idle now.
func (st *store) sweep() (dropped int) {
	now := max(0, st.clock.Now())
	for i := range st.shards {
		s := &st.shards[i]
		s.mu.Lock()
		dropped += st.sweepLocked(s, now, 1)
		s.mu.Unlock()
	}
	return dropped
}

// sweepOnInsertLocked stands in for the timer where the clock is not the system's:
// an insertion sweeps its shard if that has not been done for a TTL.
func (st *store) sweepOnInsertLocked(s *shard, now int64) {
	if st.timed || now < s.sweepAt || s.added*scanFraction < s.len() {
		return
	}
	s.sweepAt = now + min(st.ttl, math.MaxInt64-now)
	st.sweepLocked(s, now-st.ttl, s.len()/sweepFraction)
}

// arm starts the sweep timer if it is not running. The timer runs while the store
// has keys. It knows the store by a weak pointer, so that it does not keep an
// unreachable limiter in memory; at worst it fires once more and finds nothing.
func (st *store) arm() {
	if st.timed && !st.armed.Load() && st.armed.CompareAndSwap(false, true) {
		sweepLater(weak.Make(st), max(time.Duration(st.ttl), minSweepEvery))
	}
}

func sweepLater(self weak.Pointer[store], wait time.Duration) {
	time.AfterFunc(wait, func() {
		if st := self.Value(); st != nil {
			st.sweepOnTimer()
		}
	})
}

// sweepOnTimer drops what has been idle for the TTL and arms the next sweep. When
// no key is left it disarms, and then looks again:
//
//	sweep:   finds no keys
//	insert:  adds a key, sees the timer armed
//	sweep:   disarms; without a second look no sweep would ever come
func (st *store) sweepOnTimer() {
	cutoff := st.clock.Now() - st.ttl
	for i := range st.shards {
		s := &st.shards[i]
		s.mu.Lock()
		st.sweepLocked(s, cutoff, s.len()/sweepFraction)
		s.mu.Unlock()
	}
	st.armed.Store(false)
	if st.len() > 0 {
		st.arm()
	}
}

// A candidate is a live entry that may have to make room.
type candidate struct{ rank, idleAt uint64 }

// makeRoomLocked makes room for a key in a full shard and reports whether it
// could. Idle keys go first, whatever the TTL. Under EvictSoonest live ones follow
// if no key is idle, or if the idle ones were too few already the last time:
// every rebuild then frees a batch, or is followed by one that does, and a flood
// of new keys pays for a few slots a key.
//
// Under the other policies a shard that had less than a batch to free is not
// looked at again before a batch has become idle, at roomAt.
func (st *store) makeRoomLocked(s *shard, now int64) bool {
	evicts := st.overflow == EvictSoonest
	early := uint64(now) < s.roomAt.Load()
	if early && !evicts {
		return false
	}
	live := st.liveLocked(s, now)
	idle := s.len() - len(live)
	batch := max(1, s.share/roomFraction)
	s.roomAt.Store(0)
	last := candidate{}
	if missing := batch - idle; missing > 0 {
		last = selectNth(live, missing-1)
		s.roomAt.Store(last.idleAt)
	}
	switch {
	case idle == 0 && !evicts:
		return false
	case idle == 0 || early && idle < batch:
		st.evictLocked(s, now, batch-idle, live, last.rank)
	default:
		st.dropIdleLocked(s, now, s.len()-idle)
	}
	return s.len() < s.share
}

// liveLocked lists the entries that are not idle at now.
func (st *store) liveLocked(s *shard, now int64) []candidate {
	live := make([]candidate, 0, s.len())
	st.each(s.table.Load(), func(e entry) {
		if at := st.idleAt(e); at > uint64(now) {
			live = append(live, candidate{rank: st.rank(e), idleAt: at})
		}
	})
	return live
}

// evictLocked drops the idle entries and the n live ones that rank lowest: those
// below last, and as many at last as are still wanted. An entry that has been
// charged since it was listed ranks higher now, and stays.
func (st *store) evictLocked(s *shard, now int64, n int, live []candidate, last uint64) {
	ties := n
	for _, c := range live {
		if c.rank < last {
			ties--
		}
	}
	swept, evicted := 0, 0
	st.rebuildLocked(s, len(live)-n, func(e entry) bool {
		rank := st.rank(e)
		switch {
		case st.idleBy(e, now):
			swept++
			return true
		case rank > last || rank == last && ties == 0:
			return false
		case rank == last:
			ties--
		}
		evicted++
		return true
	})
	s.floor = max(s.floor, now)
	st.swept.Add(uint64(swept))
	st.evicted.Add(uint64(evicted))
}

// selectNth returns the candidate of the n-th lowest rank, from 0, and reorders
// the slice (Hoare's quickselect). The pivot is random, so no order of keys makes
// it slow.
func selectNth(c []candidate, n int) candidate {
	for len(c) > 1 {
		pivot := c[rand.IntN(len(c))].rank
		below, equal := 0, 0
		for i := range c {
			switch {
			case c[i].rank < pivot:
				c[i], c[below+equal] = c[below+equal], c[i]
				c[below], c[below+equal] = c[below+equal], c[below]
				below++
			case c[i].rank == pivot:
				c[i], c[below+equal] = c[below+equal], c[i]
				equal++
			}
		}
		switch {
		case n < below:
			c = c[:below]
		case n < below+equal:
			return c[below]
		default:
			c, n = c[below+equal:], n-below-equal
		}
	}
	return c[0]
}
