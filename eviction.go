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

	// roomFraction is the part of a full shard's share that EvictSoonest frees at
	// once: a rebuild looks at every slot, and this spreads it over many insertions.
	// Not tuned.
	roomFraction = 8

	// scanPause is how long a full shard is left alone, for each key of MaxKeys.
	// Looking at a key and moving it takes some 0.1 us, so all shards together spend
	// at most about a tenth of one processor on looks that no new keys have paid
	// for. Not tuned.
	scanPause = time.Microsecond
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
	if n > 0 {
		s.floor = max(s.floor, cutoff)
		st.swept.Add(uint64(n))
	}
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
	now = st.settled(now)
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

// makeRoomLocked makes room for a key in a full shard and reports whether it
// could. Idle keys go first, whatever the TTL. If there are none, EvictSoonest
// drops a batch of live ones.
//
// Looking for idle keys and dropping them takes time in proportion to the shard,
// and may free a single slot. It must be paid for, or an outsider who makes one
// key idle at a time (say by logging in, which resets it) and then shows a new one
// has a lever. So it is done for a batch of new keys together, or after a pause.
// In between, EvictSoonest frees a whole batch, live keys included, and the other
// policies turn new keys away.
func (st *store) makeRoomLocked(s *shard, now int64) bool {
	now = st.settled(now)
	batch := max(1, s.share/roomFraction)
	pause := int64(s.share) * int64(len(st.shards)) * int64(scanPause)
	paid := s.tries >= batch || now-s.triedAt >= pause
	if !paid && st.overflow != EvictSoonest {
		return false
	}
	s.tries, s.triedAt = 0, max(s.triedAt, now)
	if st.overflow != EvictSoonest {
		if idle := st.countIdleLocked(s, now); idle > 0 {
			st.dropIdleLocked(s, now, s.len()-idle)
		}
		return s.len() < s.share
	}
	live := st.liveLocked(s, now)
	if idle := s.len() - len(live); idle >= batch || idle > 0 && paid {
		st.dropIdleLocked(s, now, len(live))
	} else {
		st.evictLocked(s, now, batch-idle, live)
	}
	if s.len() >= s.share {
		// What was to go has been charged meanwhile. That must not turn a key away.
		st.evictLocked(s, now, batch, nil)
	}
	return true
}

// liveLocked lists the ranks of the entries that are not idle at now.
func (st *store) liveLocked(s *shard, now int64) []uint64 {
	live := make([]uint64, 0, s.len())
	st.each(s.table.Load(), func(e entry) {
		if !st.idleBy(e, now) {
			live = append(live, st.rank(e, now))
		}
	})
	return live
}

// evictLocked drops the idle entries and the n live ones of the lowest ranks in
// live. An entry that has been charged since it was listed ranks higher, and
// stays. Without a list any n live entries go.
func (st *store) evictLocked(s *shard, now int64, n int, live []uint64) {
	c := cut{ties: s.len(), want: n}
	if len(live) > 0 {
		c = newCut(live, min(n, len(live)))
	}
	swept, evicted := 0, 0
	st.rebuildLocked(s, max(1, s.len()-n), func(e entry) bool { // not 0: a key is to be added
		if st.idleBy(e, now) {
			swept++
			return true
		}
		rank := c.last
		if len(live) > 0 {
			rank = st.rank(e, now)
		}
		if !c.takes(rank) {
			return false
		}
		evicted++
		return true
	})
	if swept > 0 {
		s.floor = max(s.floor, now)
	}
	st.swept.Add(uint64(swept))
	st.evicted.Add(uint64(evicted))
}

// A cut takes all ranks below last, and want of the ties at last. It takes them
// evenly from all that it is shown. Taken in the order of slots they would always
// come from the front of a table, whose back would then fill up until probes
// become hundreds of slots long.
type cut struct {
	last       uint64
	ties, want int
	due        int
}

// newCut returns the cut that takes the n lowest of the ranks, and reorders them.
func newCut(ranks []uint64, n int) cut {
	c := cut{last: selectNth(ranks, n-1), want: n}
	for _, rank := range ranks {
		switch {
		case rank < c.last:
			c.want--
		case rank == c.last:
			c.ties++
		}
	}
	return c
}

func (c *cut) takes(rank uint64) bool {
	if rank != c.last {
		return rank < c.last
	}
	c.due += c.want
	if c.due < c.ties {
		return false
	}
	c.due -= c.ties
	return true
}

// selectNth returns the n-th lowest of the ranks, from 0, and reorders them
// (Hoare's quickselect). The pivot is random, so no order of keys makes it slow.
func selectNth(ranks []uint64, n int) uint64 {
	for len(ranks) > 1 {
		pivot := ranks[rand.IntN(len(ranks))]
		below, equal := 0, 0
		for i, rank := range ranks {
			switch {
			case rank < pivot:
				ranks[i] = ranks[below+equal]
				ranks[below+equal] = ranks[below]
				ranks[below] = rank
				below++
			case rank == pivot:
				ranks[i] = ranks[below+equal]
				ranks[below+equal] = rank
				equal++
			}
		}
		switch {
		case n < below:
			ranks = ranks[:below]
		case n < below+equal:
			return pivot
		default:
			ranks, n = ranks[below+equal:], n-below-equal
		}
	}
	return ranks[0]
}
