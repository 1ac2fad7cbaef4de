package sluice

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/sluice-go/sluice/internal/invariants"
	"github.com/sluice-go/sluice/internal/ledger"
)

// A shard is some tables and the lock that serialises their changes of shape. A decision
// takes the lock only for a key that is not in its table or that is being moved.
// A shard is as large as a cache line, so that no two share one.
type shard struct {
	share    int                                  // most keys
	cells    atomic.Pointer[directory[cellTable]] // nil until there is one
	count    atomic.Int64                         // keys without an override; written under mu
	unpaid   atomic.Int64                         // new keys to turn away before the next look for room
	restedAt atomic.Int64                         // when all tables are looked at again; written under mu
	mu       sync.Mutex

	// The rest is guarded by mu.
	floor int64  // newest time at which an idle key has been dropped
	hand  uint32 // first half of an id of the table that gives up keys next
	tries uint32 // new keys that have not paid for a look yet
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
// No charge is lost: either it precedes the swap, and is copied, or it fails.
// No key is in two tables with a live word. If a decision denies on a word that is
// moved right afterwards, it takes effect at the load.
type store struct {
	current atomic.Pointer[policy] // of all tables, unless they are being moved to it
	ledgers *ledger.Ledgers
	own     atomic.Pointer[terms] // the limiter's own limit

	guide     guide
	directory atomic.Pointer[directory[table]]
	shards    []shard
	shift     uint   // id>>shift is the shard
	homes     uint64 // most homes of a table; no bound but in tests
	most      int    // see mostOf
	mostCells int    // of a table of cells that is not split

	clock    Clock
	cached   *atomic.Int64 // the clock's time, if that is not negative
	ttl      int64
	overflow Overflow
	timed    bool // sweeps run on a timer, else only by Limiter.Sweep
	armed    atomic.Bool
	decided  atomic.Bool  // a call has had a key tracked: see Limiter.Restore
	far      atomic.Bool  // slots are fetched ahead
	kept     atomic.Int64 // cells that stay
	keptLive atomic.Int64 // cells that stay and have state

	// Decisions read the fields before and after the counters; a write of a counter
	// must not cost them a cache miss.
	_ [64]byte
	counters
	directoryMu sync.Mutex // taken last, to write the directory
	_           [64]byte
}

// counters are the store's statistics; tests also read them to see whether a race has happened.
// The counters of retries are striped because they are written where processors already
// contend; the others are written rarely.
type counters struct {
	evicted, untracked, swept atomic.Uint64
	lostRaces, moves          *xsync.Counter // failed CAS, and decisions that met a moved word
}

// tableOf returns the table that id is in, if it is in one.
func (st *store) tableOf(id uint64) *table { return st.directory.Load().tableOf(id) }

func (st *store) setDirectory(d *directory[table]) {
	st.directory.Store(d)
	st.guide.follow(d)
}

// shardOf returns the shard of id. With a single shard the shift is 64, which
// gives 0.
func (st *store) shardOf(id uint64) *shard { return &st.shards[id>>st.shift] }

// awaitMove returns once the replacement of the table of id is done.
func (st *store) awaitMove(id uint64) {
	st.moves.Inc()
	s := st.shardOf(id)
	s.mu.Lock()
	//lint:ignore SA2001 to wait is the point
	s.mu.Unlock()
}

// notCached is the cached time of a clock that has to be called: negative.
var notCached atomic.Int64

func init() { notCached.Store(-1) }

// now reads the clock, without a call if the time is in memory.
func (st *store) now() int64 {
	if t := st.cached.Load(); t >= 0 {
		return t
	}
	return st.clock.Now()
}

// ahead lets the processor fetch the slot of id while the clock is being read. Without
// it the two do not overlap: the system clock waits for all loads before it, and delays
// the loads after it, even the loads of the next call. It is not worth its instructions if
// the slots are likely to be in the cache, or if the time is a plain load.
func (st *store) ahead(id uint64) {
	if st.far.Load() {
		st.prefetch(id)
	}
}

func (st *store) prefetch(id uint64) {
	st.guide.tableOf(id).prefetch(id)
}

// lookAhead is ahead for any clock, if the slot is not likely to be in the cache. Other keys come
// first, so there is time to fetch two cache lines.
func (st *store) lookAhead(id uint64) {
	if t := st.guide.tableOf(id); t.isFar() {
		t.prefetchTwo(id)
	}
}

// settled is the time that idleness is judged by when a call at now needs room: the
// older of now and the limiter's own clock. If now is ahead of the clock, a caller of AllowAt
// may have made it up. If now is behind, the clock would raise the floor above the caller's
// time, and its new keys would be charged at a time that it has not reached.
func (st *store) settled(now int64) int64 { return max(0, min(now, st.clock.Now())) }

func (s *shard) len() int { return int(s.count.Load()) }

// full reports whether a new key needs the room of another one.
func (s *shard) full() bool { return s.len() >= s.share }

func (s *shard) handID() uint64 { return uint64(s.hand) << 32 }

func (s *shard) cell(id uint64) *cell {
	d := s.cells.Load()
	if d == nil {
		return nil
	}
	c, _ := d.tableOf(id).find(id)
	return c
}

// cellsIn calls f for the cells of the ids from first to last. Without the lock some may be old ones.
func (s *shard) cellsIn(first, last uint64, f func(*cell)) {
	d := s.cells.Load()
	for more := d != nil; more; {
		ct := d.tableOf(first)
		_, end := covers(first, ct.depth)
		ct.eachIn(first, min(end, last), f)
		first, more = end+1, end < last
	}
}

// counted returns the cell of id if its key is counted, and so has state: only a cell that
// stays can be without state.
func (s *shard) counted(id uint64) *cell {
	if c := s.cell(id); c != nil && c.kept == nil {
		return c
	}
	return nil
}

// putCellLocked puts c in the place of the cell of its id, if there is one.
func (st *store) putCellLocked(s *shard, c *cell) {
	id := c.id.Load()
	if s.cell(id) == nil {
		st.cellRoomLocked(s, id)
	}
	if old := s.cells.Load().tableOf(id).put(c); old.keptOn() != nil {
		st.kept.Add(-1)
	}
	if c.kept != nil {
		st.kept.Add(1)
	}
}

// cellRoomLocked makes room for a cell. Tables of cells split as tables of slots do: see splitsLocked.
func (st *store) cellRoomLocked(s *shard, id uint64) {
	d := s.cells.Load()
	if d == nil {
		d = newDirectory[cellTable](1, st.depth())
		d.put(id, st.depth(), newCellTable(minSlots, st.homes, st.depth()))
		s.cells.Store(d)
	}
	for ct := d.tableOf(id); ct.full(); ct = d.tableOf(id) {
		depth := ct.depth
		if ct.live >= st.mostCells && (depth < d.depth() || depth < maxDepth && st.spread(len(d.places)*len(st.shards), st.mostCells)) {
			depth++
		}
		first, _ := covers(id, ct.depth)
		for i, next := range ct.next(st.homes, depth) {
			if next != nil {
				d = d.put(first|uint64(i)<<(64-depth), depth, next)
			}
		}
		s.cells.Store(d)
	}
}

func (st *store) removeCellLocked(s *shard, c *cell) {
	s.cells.Load().tableOf(c.id.Load()).remove(c)
	if c.kept != nil {
		st.kept.Add(-1)
	}
}

// eachLocked calls f for every tracked key of a table without an override, with its
// policy.
func (st *store) eachLocked(s *shard, t *table, f func(*policy, state)) {
	st.eachOfLocked(s, t, 0, len(t.slots), f)
}

// eachOfLocked is eachLocked for some slots.
func (st *store) eachOfLocked(s *shard, t *table, from, end int, f func(*policy, state)) {
	for ; from < end; from += blockSlots {
		some, mask := t.block(from, end)
		for ; mask != 0; mask &= mask - 1 {
			i := bits.TrailingZeros64(mask)
			if word := some[i].word.Load(); word != elsewhere {
				f(t.policy, t.state(uint64(from+i), word))
			} else if c := s.counted(some[i].id.Load()); c != nil {
				f(c.policy, c.state(c.word.Load()))
			}
		}
	}
}

// depth is the depth of a table that has a whole shard.
func (st *store) depth() uint { return 64 - st.shift }

func (st *store) ids(i int) (first, last uint64) { return covers(uint64(i)<<st.shift, st.depth()) }

// tableDepth returns the depth of the table that id is in, cellDepth the depth of its table of
// cells, and partDepth the depth of the smaller of the two.
func (st *store) tableDepth(id uint64) uint { return st.tableOf(id).depth }

func (st *store) cellDepth(id uint64) uint {
	if d := st.shardOf(id).cells.Load(); d != nil {
		return d.tableOf(id).depth
	}
	return st.depth()
}

func (st *store) partDepth(id uint64) uint { return max(st.tableDepth(id), st.cellDepth(id)) }

// eachPart divides the ids of a shard into parts: the ids whose first bits, as many as depth says, are
// equal. It calls f with the first and the last id of each part, with the shard locked. The parts do not
// overlap. The table of a part may have other ids, too: it can have been merged since.
func (st *store) eachPart(i int, depth func(id uint64) uint, f func(first, last uint64)) {
	id, end := st.ids(i)
	for ; ; id++ {
		if id = st.underLock(id, depth, f); id == end {
			return
		}
	}
}

// underLock is eachPart for one part, which begins with first. It returns the last id. It yields
// afterwards, so that a waiter gets the lock: a mutex would hand it over only after 1 ms.
func (st *store) underLock(first uint64, depth func(id uint64) uint, f func(first, last uint64)) (last uint64) {
	defer runtime.Gosched()
	s := st.shardOf(first)
	s.mu.Lock()
	defer st.unlock(s)
	_, last = covers(first, depth(first))
	f(first, last)
	return last
}

func (st *store) len() int {
	n := 0
	for i := range st.shards {
		n += st.shards[i].len()
	}
	return n
}

// spread reports whether there are enough keys for so many places: at least half as many as fit into
// their tables, each of which is split at most keys.
func (st *store) spread(places, most int) bool { return st.len()+int(st.kept.Load()) >= places*most/2 }

// init makes an empty store of the given number of shards, a power of two, whose
// shares add up to maxKeys.
func (st *store) init(tm *terms, shards, maxKeys, most int) {
	st.current.Store(tm.common)
	st.own.Store(tm)
	st.shards = make([]shard, shards)
	st.shift = uint(64 - bits.TrailingZeros(uint(shards)))
	st.most = min(mostIDs(maxKeys/shards+min(1, maxKeys%shards)), most)
	st.mostCells = min(fullCells, most)
	all := newDirectory[table](shards, 0)
	empty := emptyTable(tm.common, st.depth())
	st.lostRaces, st.moves = xsync.NewCounter(), xsync.NewCounter()
	st.ledgers = ledger.New(shards, st.shift)
	for i := range st.shards {
		s := &st.shards[i]
		all.put(uint64(i)<<st.shift, st.depth(), empty)
		s.hand = uint32(uint64(i) << st.shift >> 32)
		s.share = maxKeys / shards
		if i < maxKeys%shards {
			s.share++
		}
		s.tries = math.MaxUint32 // as if new keys had paid for the first looks for room
	}
	st.setDirectory(all)
}

// defaultShards is the number of shards for maxKeys keys: 32 per processor, and at least 64, but
// fewer if the shares would be so small that chance fills one long before the others.
func defaultShards(maxKeys int) int {
	n := max(64, pow2(32*runtime.GOMAXPROCS(0)))
	n = min(n, 1024)
	for n > 1 && maxKeys/n < 1024 {
		n /= 2
	}
	return n
}

// unlock lets go of the shard's lock. Built with -tags invariants, it first checks the shard: each time if it has
// a few keys, and else the more rarely the more there are.
func (st *store) unlock(s *shard) {
	if invariants.Built {
		if n := s.len() + int(st.kept.Load()); n < 64 || rand.IntN(n) < 16 {
			st.checkLocked(s)
		}
	}
	s.mu.Unlock()
}

// checkLocked panics unless each key of the shard has its state in one place, each table in the directory is
// where its ids are, and all is counted. Words may change meanwhile, but not which of them are marks.
func (st *store) checkLocked(s *shard) {
	count := 0
	for id, end := covers(s.handID(), st.depth()); ; id++ {
		t := st.tableOf(id)
		first, last := covers(id, t.depth)
		invariants.Require(first == id, "the table of %x begins at %x", id, first)
		count += st.checkTableLocked(s, t, first, last)
		if id = last; id == end {
			break
		}
	}
	cells, kept := map[*cellTable]int{}, 0
	first, end := covers(s.handID(), st.depth())
	s.cellsIn(first, end, func(c *cell) {
		id, word := c.id.Load(), c.word.Load()
		cells[s.cells.Load().tableOf(id)]++
		invariants.Require(word != moved, "the cell of %x has been moved", id)
		if e, _ := st.tableOf(id).lookup(id); c.kept == nil {
			count++
			invariants.Require(e != nil, "%x is in a cell without a mark", id)
			invariants.Require(word != elsewhere, "%x has a cell without state", id)
		} else {
			kept++
		}
	})
	for ct, n := range cells {
		invariants.Require(ct.live == n && ct.used >= n, "%d cells in a table of %d", n, ct.live)
	}
	invariants.Require(kept <= int(st.kept.Load()) && st.keptLive.Load() >= 0, "%d keys with limits of their own, of %d", kept, st.kept.Load())
	invariants.Require(count == s.len() && count <= s.share, "%d keys of %d, counted as %d", count, s.share, s.len())
}

// checkTableLocked returns how many keys have their state in the table.
func (st *store) checkTableLocked(s *shard, t *table, first, last uint64) (count int) {
	used := 0
	for i, id := range t.occupied {
		used++
		e, _ := t.lookup(id)
		invariants.Require(e == &t.slots[i], "%x is there twice, or out of its probe's reach", id)
		word := e.word.Load()
		invariants.Require(first <= id && id <= last, "%x is in the table of %x", id, first)
		invariants.Require(word != moved, "%x has been moved", id)
		if word != elsewhere {
			count++
			invariants.Require(s.cell(id) == nil, "%x is in the table and in a cell", id)
		}
	}
	invariants.Require(used == t.used && used <= t.limit, "%d ids in a table of %d, for %d", used, t.used, t.limit)
	invariants.Require(t.limit*8 <= max(1, len(t.slots))*7, "%d slots for %d ids are more than 7/8 full", len(t.slots), t.limit)
	return count
}
