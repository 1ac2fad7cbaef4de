package sluice

import (
	"math"
	"math/rand/v2"
	"time"
	"weak"

	"github.com/sluice-go/sluice/internal/rank"
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
// A live key is dropped only for want of room at MaxKeys, by OverflowEvictSoonest, and
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

	// roomFraction is the part of a full shard's share that OverflowEvictSoonest frees at
	// once: a rebuild looks at every slot, and this spreads it over many insertions.
	// With 8 a new key at MaxKeys takes 1.4 times as long.
	roomFraction = 4

	// sampleSlots is how many slots of a shard with more keys OverflowEvictSoonest looks at to
	// find out which ranks are the lowest quarter. It is then a quarter give or take
	// a twentieth of it (one sigma). Looking at all of them, and ordering all ranks, a
	// new key takes 1.2 times as long.
	sampleSlots = 2048

	// scanPause is how long a full shard is left alone, for each key of MaxKeys.
	// Looking at a key and moving it takes some 0.1 us, so all shards together spend
	// at most about a tenth of one processor on looks that no new keys have paid
	// for. Not tuned.
	scanPause = time.Microsecond
)

// idleBy reports whether e has been idle at cutoff and ever since.
func (p *policy) idleBy(e state, cutoff int64) bool {
	return cutoff >= 0 && p.idleAt(e) <= uint64(cutoff)
}

// countIdleLocked counts the entries that are idle by cutoff as they stand now.
func (st *store) countIdleLocked(s *shard, cutoff int64) (n int) {
	st.eachLocked(s, func(p *policy, e state) {
		if p.idleBy(e, cutoff) {
			n++
		}
	})
	return n
}

// dropIdleLocked rebuilds the shard for want ids without the entries that are
// idle by cutoff, and returns how many that were.
func (st *store) dropIdleLocked(s *shard, cutoff int64, want int) int {
	n := st.rebuildLocked(s, want, func(p *policy, e state) bool { return p.idleBy(e, cutoff) })
	if n > 0 {
		s.floor = max(s.floor, cutoff)
		st.swept.Add(uint64(n))
	}
	return n
}

// emptyCellsLocked takes the state out of cells that stay and have been idle by cutoff.
func (st *store) emptyCellsLocked(s *shard, cutoff int64) (dropped int) {
	s.cells.Load().each(func(c *cell) {
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
		st.ledgers.dropped(c.id.Load())
		st.putCellLocked(s, next)
		dropped++
	})
	if dropped > 0 {
		s.floor = max(s.floor, cutoff)
		st.swept.Add(uint64(dropped))
		st.keptLive.Add(-int64(dropped))
	}
	return dropped
}

// sweepLocked drops the entries that are idle by cutoff if there are at least
// least of them.
func (st *store) sweepLocked(s *shard, cutoff int64, least int) int {
	s.added = 0
	emptied := st.emptyCellsLocked(s, cutoff)
	n := st.countIdleLocked(s, cutoff)
	if n == 0 || n < least {
		return emptied
	}
	return emptied + st.dropIdleLocked(s, cutoff, s.len()-n)
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
	st.ledgers.dropPassed(max(st.clock.Now(), 0))
	cutoff := st.clock.Now() - st.ttl
	for i := range st.shards {
		s := &st.shards[i]
		s.mu.Lock()
		st.sweepLocked(s, cutoff, s.len()/sweepFraction)
		s.mu.Unlock()
	}
	st.armed.Store(false)
	if st.len() > 0 || st.keptLive.Load() > 0 {
		st.arm()
	}
}

// makeRoomLocked makes room for a key in a full shard and reports whether it
// could. Idle keys go first, whatever the TTL.
//
// Looking for idle keys and dropping them takes time in proportion to the shard,
// and may free a single slot. It must be paid for, or an outsider who makes one
// key idle at a time (say by logging in, which resets it) and then shows a new one
// has a lever. So it is done for a batch of new keys together, or after a pause.
// In between, OverflowEvictSoonest frees a whole batch, live keys included, and the other
// policies turn new keys away.
func (st *store) makeRoomLocked(s *shard, now int64) bool {
	now = st.settled(now)
	batch := max(1, s.share/roomFraction)
	pause := int64(s.share) * int64(len(st.shards)) * int64(scanPause)
	rested := now-s.triedAt >= pause
	if st.overflow != OverflowEvictSoonest && s.tries < batch && !rested {
		return false
	}
	s.tries, s.triedAt = 0, max(s.triedAt, now)
	if st.overflow == OverflowEvictSoonest {
		st.evictSoonestLocked(s, now, batch, rested)
		return true
	}
	if idle := st.countIdleLocked(s, now); idle > 0 {
		st.dropIdleLocked(s, now, s.len()-idle)
	}
	return s.len() < s.share
}

// evictSoonestLocked frees about a batch of a full shard, and at least one slot. A
// rested shard gives up no live key while it has idle ones.
func (st *store) evictSoonestLocked(s *shard, now int64, batch int, rested bool) {
	idle, ranks := st.surveyLocked(s, now, rested)
	if idle >= batch || idle > 0 && rested || len(ranks) == 0 {
		st.dropIdleLocked(s, now, s.len()-idle)
	} else {
		n, live := batch-idle, s.len()-idle
		part := float64(min(n, live)) / float64(live)
		st.evictLocked(s, now, n, rank.Lowest(ranks, max(1, int(part*float64(len(ranks))+0.5))))
	}
	if s.len() >= s.share {
		// What was to go has been charged meanwhile. That must not turn a key away. Blocked
		// keys still go last.
		if free := st.countUnblockedLocked(s); free > 0 {
			st.evictLocked(s, now, batch, rank.Some(free, min(batch, free), reserved))
		}
		if s.len() >= s.share {
			st.evictLocked(s, now, batch, rank.Some(s.len(), batch, math.MaxUint64))
		}
	}
}

// rankOf ranks e, which is under the policy of, among the keys under p. Units of windows
// are the same everywhere; how late a bucket becomes idle is told in ticks of its own.
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

// countUnblockedLocked counts the entries that are not blocked as they stand now.
func (st *store) countUnblockedLocked(s *shard) (n int) {
	st.eachLocked(s, func(p *policy, e state) {
		if p.rank(e, 0) < reserved {
			n++
		}
	})
	return n
}

// surveyLocked returns how many entries are idle at now and the ranks of live ones.
// Asked to be exact, or if there are few, it looks at all of them, else at a
// sample. (A random one, since under the stable hash strangers can choose the
// places of their keys.)
func (st *store) surveyLocked(s *shard, now int64, exact bool) (idle int, ranks []uint64) {
	t := s.table.Load()
	looks := len(t.slots)
	if !exact && s.len() > sampleSlots {
		looks = min(looks, sampleSlots)
	}
	ranks = make([]uint64, 0, min(looks, s.len()))
	for i := range uint64(looks) {
		if looks < len(t.slots) {
			i = rand.Uint64N(uint64(len(t.slots)))
		}
		switch p, e, ok := st.stateLocked(s, t, i); {
		case !ok:
		case p.idleBy(e, now):
			idle++
		default:
			ranks = append(ranks, t.policy.rankOf(p, e, now))
		}
	}
	if looks < len(t.slots) {
		idle = int(float64(idle) / float64(max(1, idle+len(ranks))) * float64(s.len()))
	}
	return idle, ranks
}

// evictLocked drops the idle entries and the live ones that c takes, about n. An
// entry that has been charged since it was ranked ranks higher, and stays.
func (st *store) evictLocked(s *shard, now int64, n int, c rank.Cut) {
	swept, evicted := 0, 0
	common := s.table.Load().policy
	st.rebuildLocked(s, max(1, s.len()-n), func(p *policy, e state) bool { // not 0: a key is to be added
		switch {
		case p.idleBy(e, now):
			swept++
		case c.Takes(common.rankOf(p, e, now)):
			evicted++
		default:
			return false
		}
		return true
	})
	if swept > 0 {
		s.floor = max(s.floor, now)
	}
	st.swept.Add(uint64(swept))
	st.evicted.Add(uint64(evicted))
}
