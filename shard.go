package sluice

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/puzpuzpuz/xsync/v3"
)

// An algorithm is pure arithmetic over a key's word. Word 0 is a fresh key, the
// word moved does not occur, now is not negative, and 1 <= cost <= the burst.
type algorithm interface {
	// charge returns the word after an admitted call, or word and false.
	charge(word uint64, now int64, cost int) (next uint64, admitted bool)
	// debit returns the word after a charge of any cost > 0 that nobody asks about. What
	// the word has no room for is lost, but it is then as strict as after a full burst.
	debit(word uint64, now int64, cost int) (next uint64)
	// refund returns the word after cost units of what counts at now, 1 <= cost <= the
	// burst, have been given back, but not more than there are.
	refund(word uint64, now int64, cost int) uint64
	// describe returns the numbers of the Decision on a call that left the key with
	// word. (Not a Decision: it has too many fields for registers, and copying it
	// from frame to frame took half the time of a Take.)
	describe(word uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration)
	// idleAt returns the first nanosecond from which the key is idle, or
	// math.MaxUint64.
	idleAt(word uint64) uint64
	// rank orders keys by what counts against them at now, in the algorithm's own
	// measure. For the buckets that is also how late they become idle.
	rank(word uint64, now int64) uint64
	// worstCase returns the most that a key can be admitted in a closed span of d
	// >= 0 nanoseconds, saturating.
	worstCase(d int64) uint64
	adopter
}

// An adopter takes over what a key has spent at now under another limit of the same
// algorithm: it returns the word, and writes the tail, of a key of its own. The word of e
// is not 0, and not blocked; its tail is at rest.
type adopter interface {
	adopt(from *policy, e entry, tail []atomic.Uint64, now int64) uint64
}

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
	ledgers *ledgers               // the limiter's own, also where this is a view's
	common  plan                   // the limiter's own limit

	shards []shard
	shift  uint   // id>>shift is the shard
	homes  uint64 // masks the home slots; all ones but in tests

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

type outcome uint8

const (
	denied outcome = iota
	admitted
	waved    // admitted without state: there is no room for the key
	refused  // denied because there is no room for the key
	blocked  // denied because the key is blocked
	unfit    // not for the key's state to decide: see Limiter.edge
	retrying // start over, with the policy that the key has now
)

// allowed reports whether the call passes.
func (o outcome) allowed() bool { return o == admitted || o == waved }

// shardOf returns the shard of id. With a single shard the shift is 64, which
// gives 0.
func (st *store) shardOf(id uint64) *shard { return &st.shards[id>>st.shift] }

// allowAt decides in this one frame what nearly every call is: one for a tracked key,
// under a one-word algorithm, with nobody in the way. It leaves the rest to allowSlow,
// having changed nothing.
func (l *Limiter) allowAt(id uint64, now int64, cost int) bool {
	now = max(now, 0)
	// From the table, the policy would be known three loads later.
	if p := l.current.Load(); uint64(cost)-1 < p.plain {
		t := l.shardOf(id).table.Load()
		if e := t.lookup(id); e != nil && t.policy == p {
			if word := e.word.Load(); word < reserved {
				next, ok := p.alg.charge(word, now, cost)
				if !ok {
					return false
				}
				if e.word.CompareAndSwap(word, next) {
					return true
				}
			}
		}
	}
	return l.allowSlow(id, now, cost)
}

// charge decides one call under p, which is of one word. It returns the word that the
// key was left with.
func (st *store) charge(p *policy, id uint64, now int64, cost int) (uint64, outcome) {
	if !p.fits(cost) {
		return 0, unfit
	}
	s := st.shardOf(id)
	for {
		t := s.table.Load()
		e := t.lookup(id)
		if t.policy != p || e == nil || e.word.Load() == elsewhere {
			at := st.locate(s, id)
			if at.slot == nil {
				if word, out := st.insert(s, p, id, now, cost, nil); out != retrying || !at.admits(p) {
					return word, out
				}
				continue
			}
			if at.policy != p {
				return 0, retrying
			}
			e = at.slot
		}
		for {
			word := e.word.Load()
			from := word
			if word >= reserved {
				if word == moved || word == elsewhere {
					break
				}
				if word == held {
					runtime.Gosched()
					continue
				}
				if p.blockedUntil(word, nil) > uint64(now) {
					return word, blocked
				}
				from = 0
			}
			next, ok := p.alg.charge(from, now, cost)
			out := admitted
			if !ok {
				if !p.denies {
					return word, denied
				}
				next, out = p.deny(word, nil, now, cost), denied
			}
			if e.word.CompareAndSwap(word, next) {
				return next, out
			}
			st.lostRaces.Inc()
		}
		st.awaitMove(s)
	}
}

// awaitMove returns once the shard's table that was being replaced has been.
func (st *store) awaitMove(s *shard) {
	st.moves.Inc()
	s.awaitHolder()
}

// awaitHolder returns once whoever holds the shard's lock has let it go.
func (s *shard) awaitHolder() {
	s.mu.Lock()
	//lint:ignore SA2001 to wait is the point
	s.mu.Unlock()
}

// policyOf returns the policy that id is under, or if it is not tracked, would be.
func (st *store) policyOf(id uint64) *policy {
	s := st.shardOf(id)
	if c := s.cell(id); c != nil {
		return c.policy
	}
	return s.table.Load().policy
}

// released returns the word once nobody holds it. It may have gone.
func (e *slot) released() uint64 {
	for {
		if word := e.word.Load(); word != held {
			return word
		}
		runtime.Gosched()
	}
}

// insert charges a key that is not tracked, and adds it. With cost 0 it adds it as fresh.
// It does not do so under another policy than p.
//
// The key is looked for again under the lock, since another call may have added
// it, or the table may have been replaced. An older now is raised to the newest
// time at which this shard forgot an idle key, which this key may be:
//
//	call A:  charges at 90, idle from 100
//	sweep:   at 200, drops the key
//	call B:  arrives with now 50; charged at 50 it would be idle at 60
func (st *store) insert(s *shard, p *policy, id uint64, now int64, cost int, d *Decision) (uint64, outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := st.locate(s, id)
	if at.slot != nil || !at.admits(p) {
		return 0, retrying
	}
	if at.cell != nil {
		word := st.fillLocked(s, at.cell, p, now, cost, d)
		st.keptLive.Add(1)
		st.arm()
		return word, admitted
	}
	s.tries++
	st.sweepOnInsertLocked(s, now)
	if !st.roomLocked(s, id, now, cost == 0) {
		if st.overflow == OverflowAdmitNew {
			return 0, waved
		}
		return 0, refused
	}
	t := s.table.Load()
	if i, found := t.find(id); !found && t.policy == p {
		var tail []atomic.Uint64
		if p.wide != nil {
			tail = t.tails.add(i)
		}
		word := first(p, tail, now, max(now, s.floor), cost, d)
		t.slots[i].word.Store(word)
		t.slots[i].id.Store(id)
		s.used++
		s.count.Add(1)
		s.added++
		st.arm()
		return word, admitted
	}
	c := &cell{policy: p}
	c.id.Store(id)
	word := st.fillLocked(s, c, p, now, cost, d)
	st.markLocked(s, id)
	return word, admitted
}

// fillLocked puts a cell with the first charge in the place of c, which has no state.
func (st *store) fillLocked(s *shard, c *cell, p *policy, now int64, cost int, d *Decision) uint64 {
	next := &cell{policy: p, kept: c.kept}
	if p.wide != nil {
		next.tail = make([]atomic.Uint64, p.tailLen())
	}
	word := first(p, next.tail, now, max(now, s.floor), cost, d)
	next.word.Store(word)
	next.id.Store(c.id.Load())
	st.putCellLocked(s, next)
	c.word.Store(moved)
	return word
}

// first returns the word after the first charge, at the time at, of a key under p, which a
// cost within the burst is always admitted for; a larger one is a debt. Under a wide
// algorithm it also writes the tail, and unless d is nil describes in it a call for one more
// unit as seen from now, which is not later than at.
func first(p *policy, tail []atomic.Uint64, now, at int64, cost int, d *Decision) uint64 {
	switch {
	case cost == 0:
		// Fresh as from at on: to an older call, as if something had been charged.
		return p.unspent(tail, at)
	case p.wide == nil:
		return p.alg.debit(0, at, cost)
	}
	word := p.debitTail(0, tail, at, cost)
	if d != nil {
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(word, tail, now, 1, false)
	}
	return word
}

func (p *policy) unspent(tail []atomic.Uint64, at int64) uint64 {
	if p.wide == nil {
		word, _ := p.alg.charge(0, at, 1)
		return p.alg.refund(word, at, 1)
	}
	return p.wide.refund(p.wide.commit(0, tail, at, 1), tail, at, 1)
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
	t := st.shardOf(id).table.Load()
	prefetch(&t.slots[id&t.home])
}

// settled is the time that idleness is judged by when a call at now needs room: the
// older of now and the limiter's own clock. Ahead of the clock a caller of AllowAt
// may have made now up. Behind it, judging by the clock would raise the floor over
// the caller's head, and charge all that it brings to a time it has not reached.
func (st *store) settled(now int64) int64 { return max(0, min(now, st.clock.Now())) }

func (s *shard) len() int { return int(s.count.Load()) }

// growLocked makes a table that has room for another key. Keys that have been
// idle for the TTL are left behind; had it not waited for the TTL, keys of a
// high rate that are in constant use but idle between any two calls would be
// dropped and added over and over (twice as slow on 1,000 busy keys). With keep, no
// key is left behind: a TakeAll that adds several would lose the first ones, which
// are idle until it charges them, to the growth for the last, each time it tries.
func (st *store) growLocked(s *shard, now int64, keep bool) {
	cutoff := st.settled(now) - st.ttl
	if keep {
		cutoff = -1
	}
	idle := st.countIdleLocked(s, cutoff)
	st.dropIdleLocked(s, cutoff, s.len()-idle+1)
}

// rebuildLocked replaces the shard's table by one made for about want ids that
// holds all entries but those that drop names. drop sees each entry after its
// word has been taken out of reach of decisions, so its verdict stays true.
//
// Slots of keys in cells go if the cell stays anyway, or is no longer there. A key whose cell
// is under the policy of the table comes back into the table.
func (st *store) rebuildLocked(s *shard, want int, drop func(*policy, entry) bool) (dropped int) {
	old := s.table.Load()
	r := rebuild{st: st, next: st.newTable(old.policy, st.slotsFor(want, s.share))}
	var back []*cell
	for i := range old.slots {
		id := old.slots[i].id.Load()
		if id == 0 {
			continue
		}
		p := old.policy
		var c *cell
		var e entry
		if old.slots[i].word.Load() == elsewhere {
			if c = s.cell(id); c == nil || c.kept != nil {
				continue
			}
			p = c.policy
			e, _ = c.freeze() // it has state: only a cell that stays can be without
		} else {
			e = old.entry(uint64(i), old.freeze(uint64(i)))
		}
		switch {
		case drop(p, e):
			dropped++
			st.ledgers.dropped(id)
			if c != nil {
				st.removeCellLocked(s, c)
			}
		case c == nil:
			r.room().put(id, e)
		case p == old.policy:
			r.room().put(id, e)
			back = append(back, c)
		default:
			r.room().mark(id)
			c.word.Store(e.word)
		}
	}
	if r.kept == 0 && want == 0 {
		// A table of its own, not the policy's: who has seen that one has seen the past.
		r.next = &table{slots: make([]slot, 1), policy: old.policy}
	}
	st.publishLocked(s, r.next, r.kept)
	for _, c := range back {
		st.removeCellLocked(s, c) // which finds only now that the key is in the table
	}
	return dropped
}

// A rebuild is a table that is being filled, before anybody else sees it.
type rebuild struct {
	st   *store
	next *table
	kept int
}

// room returns the table with room for another id. More keys than wanted may stay: idle
// ones can be charged up to the freeze.
func (r *rebuild) room() *table {
	if r.kept == r.next.limit {
		larger := r.st.newTable(r.next.policy, 2*len(r.next.slots))
		for i := range r.next.slots {
			if id := r.next.slots[i].id.Load(); id != 0 {
				larger.put(id, r.next.entry(uint64(i), r.next.slots[i].word.Load()))
			}
		}
		r.next = larger
	}
	r.kept++
	return r.next
}

// publishLocked puts a table of n ids in the place of the shard's.
func (st *store) publishLocked(s *shard, next *table, n int) {
	if far := st.cached == &notCached && len(next.slots) >= farSlots/len(st.shards); far != st.far.Load() {
		st.far.Store(far)
	}
	s.table.Store(next)
	s.count.Store(int64(n))
	s.used = n
}

// freeze takes the word out of slot i for good.
func (t *table) freeze(i uint64) uint64 { return freezeWord(&t.slots[i], t.policy) }

// freezeWord takes the word out for good. The caller holds the shard's lock, and so is the
// only one who stores moved or elsewhere.
func freezeWord(e *slot, p *policy) uint64 {
	if p.wide == nil {
		for {
			if word := e.released(); e.word.CompareAndSwap(word, moved) {
				return word
			}
		}
	}
	word, _ := lockWord(e)
	e.word.Store(moved)
	return word
}

// eachLocked calls f for every tracked key of a shard but those in cells that stay, with
// its policy.
func (st *store) eachLocked(s *shard, f func(*policy, entry)) {
	t := s.table.Load()
	for i := range t.slots {
		if p, e, ok := st.entryLocked(s, t, uint64(i)); ok {
			f(p, e)
		}
	}
}

// entryLocked returns the entry of slot i of the shard's table, if it has one, as it stands
// now.
func (st *store) entryLocked(s *shard, t *table, i uint64) (p *policy, e entry, ok bool) {
	id := t.slots[i].id.Load()
	if id == 0 {
		return nil, e, false
	}
	word := t.slots[i].word.Load()
	if word != elsewhere {
		return t.policy, t.entry(i, word), true
	}
	if c := s.cell(id); c != nil && c.kept == nil {
		return c.policy, c.entry(c.word.Load()), true
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
func (st *store) init(p *policy, shards, maxKeys int) {
	st.current.Store(p)
	p.of = &terms{plan: &st.common, limit: p.limit}
	p.of.common.Store(p)
	st.common.terms.Store(p.of)
	st.shards = make([]shard, shards)
	st.shift = uint(64 - bits.TrailingZeros(uint(shards)))
	st.lostRaces, st.moves = xsync.NewCounter(), xsync.NewCounter()
	for i := range st.shards {
		s := &st.shards[i]
		s.table.Store(p.empty)
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
