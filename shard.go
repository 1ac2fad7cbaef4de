package sluice

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/puzpuzpuz/xsync/v3"
)

// A shard is a table and the lock that serialises its changes of shape. Deciding
// takes the lock only for a key that is not in the table or that is being moved.
// The padding keeps two shards out of one pair of cache lines, since adjacent
// lines are fetched together.
type shard struct {
	shardState
	_ [128 - unsafe.Sizeof(shardState{})%128]byte
}

type shardState struct {
	table atomic.Pointer[table]
	cells atomic.Pointer[cellTable] // nil until there is one
	count atomic.Int64              // keys, but those in cells that stay; written under mu
	mu    sync.Mutex

	// The rest is guarded by mu.
	share   int   // most keys
	used    int   // ids in the table, those of cells that stay included
	floor   int64 // newest time at which an idle key has been dropped
	sweepAt int64 // when an insertion may sweep
	added   int   // ids added since the last scan for idle keys
	tries   int   // new keys since the shard was last looked at for room
	triedAt int64 // when that was
}

// A store is the engine: all keys of a limiter and their state.
//
// A decision takes no lock: it loads the table, probes for the id, loads the word
// and asks the algorithm. A denial ends there, having written nothing. An
// admission swaps the word in; if that fails it decides again on the new word.
// A word moved means that the table is being replaced:
//
//	decision:  loads the old table, finds its slot
//	growth:    locks the shard, swaps moved into the slot, copies the word
//	decision:  its swap fails or it loads moved; waits for the lock
//	growth:    publishes the new table, unlocks
//	decision:  starts over in the new table, which holds every earlier charge
//
// No charge is lost, since it either precedes the swap, and is copied, or fails.
// No key is in two tables with a live word. A decision that denies on a word
// which is moved right afterwards takes effect at the load.
type store struct {
	current atomic.Pointer[policy] // of all tables, unless they are being moved to it
	ledgers *ledgers
	common  plan // the limiter's own limit

	shards []shard
	shift  uint   // id>>shift is the shard
	homes  uint64 // most homes of a table; no bound but in tests

	clock    Clock
	cached   *atomic.Int64 // the clock's time, if that is not negative
	ttl      int64
	overflow Overflow
	timed    bool // sweeps run on a timer, else on insertions
	armed    atomic.Bool
	far      atomic.Bool  // slots are fetched ahead
	kept     atomic.Int64 // cells that stay
	keptLive atomic.Int64 // of these, those with state

	// Decisions read what is before and after the counters, and should not miss when
	// those are written.
	_ [64]byte
	counters
	_ [64]byte
}

// counters are the store's statistics, and what tests ask whether a race has happened. The
// counters of retries are striped because they are written where processors already
// contend; the others are rare.
type counters struct {
	evicted, untracked, swept atomic.Uint64
	lostRaces, moves          *xsync.Counter // failed CAS, and decisions that met a moved word
}

// shardOf returns the shard of id. With a single shard the shift is 64, which
// gives 0.
func (st *store) shardOf(id uint64) *shard { return &st.shards[id>>st.shift] }

// awaitMove returns once the shard's table that was being replaced has been.
func (st *store) awaitMove(s *shard) {
	st.moves.Inc()
	s.awaitHolder()
}

// awaitHolder returns once the holder of the shard's lock has let it go.
func (s *shard) awaitHolder() {
	s.mu.Lock()
	//lint:ignore SA2001 to wait is the point
	s.mu.Unlock()
}

// awaitHolders is awaitHolder for all shards. A placement of before, which may have gone by
// what is over, is then to be seen; one of after goes by what is now.
func (st *store) awaitHolders() {
	for i := range st.shards {
		st.shards[i].awaitHolder()
	}
}

// notCached is what the time of a clock that has to be called is read from first.
var notCached atomic.Int64

func init() { notCached.Store(-1) }

// now reads the clock, and does so without a call where the time is in memory.
func (st *store) now() int64 {
	if t := st.cached.Load(); t >= 0 {
		return t
	}
	return st.clock.Now()
}

// ahead lets the processor fetch the slot of id while the clock is being read. By
// itself it does not: the system clock waits for all loads before it, and holds up
// those after it, even the next call's. It is not worth its instructions where the
// slots are likely to be in the cache, nor where time is a load like any other.
func (st *store) ahead(id uint64) {
	if st.far.Load() {
		st.prefetch(id)
	}
}

func (st *store) prefetch(id uint64) {
	st.shardOf(id).table.Load().prefetch(id)
}

// lookAhead is ahead for any clock, where the slot is not likely to be in the cache.
func (st *store) lookAhead(id uint64) {
	if t := st.shardOf(id).table.Load(); st.isFar(t) {
		t.prefetch(id)
	}
}

// isFar reports whether a slot of t is not likely to be in the cache.
func (st *store) isFar(t *table) bool { return uint64(len(t.slots))*uint64(len(st.shards)) >= farSlots }

// settled is the time that idleness is judged by when a call at now needs room: the
// older of now and the limiter's own clock. Ahead of the clock a caller of AllowAt
// may have made now up. Behind it, judging by the clock would raise the floor over
// the caller's head, and charge all that it brings to a time it has not reached.
func (st *store) settled(now int64) int64 { return max(0, min(now, st.clock.Now())) }

func (s *shard) len() int { return int(s.count.Load()) }

// rebuildLocked replaces the shard's table by one made for about want ids that
// holds all entries but those that drop names, if it is not nil. drop sees each entry after its
// word has been taken out of reach of decisions, so its verdict stays true.
//
// Slots of keys in cells go if the cell stays anyway, or is no longer there. A key whose cell
// is under the policy of the table comes back into the table.
func (st *store) rebuildLocked(s *shard, want int, drop func(*policy, state) bool) (dropped int) {
	old := s.table.Load()
	r := rebuild{homes: st.homes, next: st.tableFor(old.policy, want, s.share)}
	var back []*cell
	for i, id := range old.occupied {
		if old.slots[i].word.Load() != elsewhere {
			if e := old.freeze(i); drop != nil && drop(old.policy, e) {
				dropped++
				st.ledgers.dropped(id)
			} else {
				r.room().put(id, e)
			}
			continue
		}
		c := s.counted(id)
		if c == nil {
			continue
		}
		switch e, _ := c.freeze(); {
		case drop != nil && drop(c.policy, e):
			dropped++
			st.ledgers.dropped(id)
			st.removeCellLocked(s, c)
		case c.policy == old.policy:
			r.room().put(id, e)
			back = append(back, c)
		default:
			r.room().mark(id)
			c.word.Store(e.word)
		}
	}
	if r.kept == 0 && want == 0 {
		r.next = emptyTable(old.policy) // a new one: a call that finds it twice has missed no other table
	}
	st.publishLocked(s, r.next, r.kept)
	for _, c := range back {
		st.removeCellLocked(s, c) // which finds only now that the key is in the table
	}
	return dropped
}

// tableFor returns a table for n ids and half as many again, but not for more than a shard's
// share, if n is not more.
func (st *store) tableFor(p *policy, n, share int) *table {
	limit := max(minLimit, n, min(n/growDen*growNum+1, share))
	slots := (limit*maxLoadDen + maxLoadNum - 1) / maxLoadNum
	if limit == share {
		slots = (limit*shareLoadDen + shareLoadNum - 1) / shareLoadNum
	}
	if sparse := sparseSlots / len(st.shards); slots < sparse {
		slots = min(limit*sparseDen, sparse)
	}
	return newTable(p, max(minSlots, slots), limit, st.homes)
}

// A rebuild is a table that is being filled, before anybody else sees it.
type rebuild struct {
	homes uint64
	next  *table
	kept  int
}

// room returns the table with room for another id. More keys than wanted may stay: idle
// ones can be charged up to the freeze.
func (r *rebuild) room() *table {
	if r.kept == r.next.limit {
		r.enlarge()
	}
	r.kept++
	return r.next
}

func (r *rebuild) enlarge() {
	larger := newTable(r.next.policy, 2*len(r.next.slots), 2*r.next.limit, r.homes)
	for i, id := range r.next.occupied {
		larger.put(id, r.next.state(i, r.next.slots[i].word.Load()))
	}
	r.next = larger
}

// publishLocked puts a table of n ids in the place of the shard's.
func (st *store) publishLocked(s *shard, next *table, n int) {
	if far := st.cached == &notCached && st.isFar(next); far != st.far.Load() {
		st.far.Store(far)
	}
	s.table.Store(next)
	s.count.Store(int64(n))
	s.used = n
}

// cell returns the cell of id, or nil.
func (s *shard) cell(id uint64) *cell { return s.cells.Load().cell(id) }

// counted returns the cell of id if its key is counted, and so has state: only a cell that
// stays can be without.
func (s *shard) counted(id uint64) *cell {
	if c := s.cell(id); c != nil && c.kept == nil {
		return c
	}
	return nil
}

// putCellLocked puts c in the place of the cell of its id, if there is one.
func (st *store) putCellLocked(s *shard, c *cell) {
	ct := s.cells.Load()
	if ct.cell(c.id.Load()) == nil {
		if next := ct.room(st.homes); next != ct {
			s.cells.Store(next)
			ct = next
		}
	}
	if old := ct.put(c); old != nil && old.kept != nil {
		st.kept.Add(-1)
	}
	if c.kept != nil {
		st.kept.Add(1)
	}
}

func (st *store) removeCellLocked(s *shard, c *cell) {
	s.cells.Load().remove(c)
	if c.kept != nil {
		st.kept.Add(-1)
	}
}

// eachLocked calls f for every tracked key of a shard but those in cells that stay, with
// its policy.
func (st *store) eachLocked(s *shard, f func(*policy, state)) {
	t := s.table.Load()
	for i, id := range t.occupied {
		if word := t.slots[i].word.Load(); word != elsewhere {
			f(t.policy, t.state(i, word))
		} else if c := s.counted(id); c != nil {
			f(c.policy, c.state(c.word.Load()))
		}
	}
}

// stateLocked returns the state of slot i of the shard's table, if it has one, as it stands
// now.
func (st *store) stateLocked(s *shard, t *table, i uint64) (p *policy, e state, ok bool) {
	id := t.slots[i].id.Load()
	if id == 0 {
		return nil, e, false
	}
	word := t.slots[i].word.Load()
	if word != elsewhere {
		return t.policy, t.state(i, word), true
	}
	if c := s.counted(id); c != nil {
		return c.policy, c.state(c.word.Load()), true
	}
	return nil, e, false
}

// len returns the number of tracked keys.
func (st *store) len() int {
	n := 0
	for i := range st.shards {
		n += st.shards[i].len()
	}
	return n
}

// init makes an empty store of the given number of shards, a power of two, whose
// shares add up to maxKeys.
func (st *store) init(tm *terms, shards, maxKeys int) {
	st.current.Store(tm.common)
	st.common.terms.Store(tm)
	st.shards = make([]shard, shards)
	empty := emptyTable(tm.common)
	st.shift = uint(64 - bits.TrailingZeros(uint(shards)))
	st.lostRaces, st.moves = xsync.NewCounter(), xsync.NewCounter()
	st.ledgers = newLedgers(shards, st.shift)
	for i := range st.shards {
		s := &st.shards[i]
		s.table.Store(empty)
		s.share = maxKeys / shards
		if i < maxKeys%shards {
			s.share++
		}
		s.tries = s.share // nobody has looked for room yet
	}
}

// defaultShards is the number of shards for maxKeys keys: 32 per processor, and at
// least 64, so that 1M keys on a small machine are moved in pieces of 16,000, in some
// 0.5 ms; but
// fewer if the shares would be so small that chance fills one long before the others.
func defaultShards(maxKeys int) int {
	n := max(64, pow2(32*runtime.GOMAXPROCS(0)))
	n = min(n, 1024)
	for n > 1 && maxKeys/n < 1024 {
		n /= 2
	}
	return n
}
