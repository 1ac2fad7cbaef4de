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
	count atomic.Int64 // ids in the table; written under mu
	mu    sync.Mutex

	// The rest is guarded by mu.
	share   int   // most ids
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
	plans   atomic.Pointer[plans]  // nil until a key has had a limit of its own
	ledgers *ledgers               // the limiter's own, also where this is a plan's

	shards []shard
	shift  uint   // id>>shift is the shard
	homes  uint64 // masks the home slots; all ones but in tests

	clock    Clock
	cached   *atomic.Int64 // the clock's time, if that is not negative
	ttl      int64
	overflow Overflow
	timed    bool // sweeps run on a timer, else on insertions
	armed    atomic.Bool
	far      atomic.Bool // slots are fetched ahead

	// Decisions read what is before and after the counters, and should not miss when
	// those are written.
	_ [64]byte
	counters
	_ [64]byte
}

// counters are the store's statistics. The retry counters are striped because
// they are written where processors already contend; the others are rare.
type counters struct {
	evicted, untracked, swept, sweeps, growths atomic.Uint64
	lostRaces                                  *xsync.Counter // failed CAS
	moves                                      *xsync.Counter // decisions that met a moved word
}

type outcome uint8

const (
	denied outcome = iota
	admitted
	waved     // admitted without state: there is no room for the key
	refused   // denied because there is no room for the key
	blocked   // denied because the key is blocked
	unfit     // not for the key's state to decide: see Limiter.edge
	elsewhere // another limiter's key: see plans
	retrying  // start over
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
// key was left with; or, with retrying, the policy that the key has instead.
func (st *store) charge(p *policy, id uint64, now int64, cost int) (uint64, *policy, outcome) {
	if !p.fits(cost) {
		return 0, p, unfit
	}
	s := st.shardOf(id)
	for {
		t := s.table.Load()
		if t.policy != p {
			return 0, t.policy, retrying
		}
		e := t.lookup(id)
		if e == nil {
			if !st.owns(id) {
				return 0, p, elsewhere // without waiting for the lock to say so
			}
			word, out := st.insert(s, p, id, now, cost, nil)
			if out != retrying {
				return word, p, out
			}
			continue
		}
		for {
			word := e.word.Load()
			from := word
			if word >= reserved {
				if word == moved {
					break
				}
				if word == held {
					runtime.Gosched()
					continue
				}
				if p.blockedUntil(word, nil) > uint64(now) {
					return word, p, blocked
				}
				from = 0
			}
			next, ok := p.alg.charge(from, now, cost)
			out := admitted
			if !ok {
				if !p.denies {
					return word, p, denied
				}
				next, out = p.deny(word, nil, now, cost), denied
			}
			if e.word.CompareAndSwap(word, next) {
				return next, p, out
			}
			st.lostRaces.Inc()
		}
		st.awaitMove(s)
	}
}

// awaitMove returns once the shard's table that was being replaced has been.
func (st *store) awaitMove(s *shard) {
	st.moves.Inc()
	s.mu.Lock()
	//lint:ignore SA2001 to wait for the holder is the point
	s.mu.Unlock()
}

// policyOf returns the policy that a call for id would be decided by.
func (st *store) policyOf(id uint64) *policy { return st.shardOf(id).table.Load().policy }

// load returns the word of id, 0 if it is not tracked, under a one-word algorithm. It
// fails if p is not the policy of the word, or the key is elsewhere.
func (st *store) load(p *policy, id uint64) (word uint64, ok bool) {
	s := st.shardOf(id)
	for {
		v, t := st.version(), s.table.Load()
		if t.policy != p {
			return 0, false
		}
		e := t.lookup(id)
		if e == nil {
			return 0, st.vacant(id, v)
		}
		if word := e.released(); word != moved {
			return word, true
		}
		st.awaitMove(s)
	}
}

// released returns the word once nobody holds it.
func (e *slot) released() uint64 {
	for {
		if word := e.word.Load(); word != held {
			return word
		}
		runtime.Gosched()
	}
}

// insert charges a key that was not in the table, and adds it. With cost 0 it adds it
// as fresh. It does not do so under another policy than p.
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
	t := s.table.Load()
	switch _, found := t.find(id); {
	case found || t.policy != p:
		return 0, retrying
	case !st.owns(id):
		return 0, elsewhere
	}
	s.tries++
	st.sweepOnInsertLocked(s, now)
	if s.len() >= s.share && !st.makeRoomLocked(s, now) {
		st.untracked.Add(1)
		if st.overflow == AdmitNew {
			return 0, waved
		}
		return 0, refused
	}
	// More keys may stay than expected, so that the new table is full, too.
	for s.len() >= s.table.Load().limit {
		st.growLocked(s, now, cost == 0)
	}
	t = s.table.Load()
	i, _ := t.find(id)
	word := first(t, i, now, max(now, s.floor), cost, d)
	t.slots[i].word.Store(word)
	t.slots[i].id.Store(id)
	s.count.Add(1)
	s.added++
	st.arm()
	return word, admitted
}

// first returns the word after the first charge, at the time at, of the key in
// slot i, which a cost within the burst is always admitted for; a larger one is a
// debt. Under a wide algorithm it also gives the slot its tail, and unless d is nil
// describes in it a call for one more unit as seen from now, which is not later than at.
func first(t *table, i uint64, now, at int64, cost int, d *Decision) uint64 {
	if cost == 0 {
		// Fresh as from at on: to an older call, as if something had been charged.
		return unspent(t, i, at)
	}
	wide := t.policy.wide
	if wide == nil {
		return t.policy.alg.debit(0, at, cost)
	}
	tail := t.tails.add(i)
	word := wide.commit(0, tail, at, cost)
	if d != nil {
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = wide.describe(word, tail, now, 1, false)
	}
	return word
}

func unspent(t *table, i uint64, at int64) uint64 {
	wide := t.policy.wide
	if wide == nil {
		word, _ := t.policy.alg.charge(0, at, 1)
		return t.policy.alg.refund(word, at, 1)
	}
	tail := t.tails.add(i)
	return wide.refund(wide.commit(0, tail, at, 1), tail, at, 1)
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
	before := len(s.table.Load().slots)
	st.dropIdleLocked(s, cutoff, s.len()-idle+1)
	if len(s.table.Load().slots) > before {
		st.growths.Add(1)
	}
}

// rebuildLocked replaces the shard's table by one made for about want ids that
// holds all entries but those that drop names. drop sees each entry after its
// word has been taken out of reach of decisions, so its verdict stays true.
func (st *store) rebuildLocked(s *shard, want int, drop func(uint64, entry) bool) (dropped int) {
	old := s.table.Load()
	next := st.newTable(old.policy, st.slotsFor(want, s.share))
	kept := 0
	for i := range old.slots {
		id := old.slots[i].id.Load()
		if id == 0 {
			continue
		}
		e := old.entry(uint64(i), old.freeze(uint64(i)))
		if drop(id, e) {
			dropped++
			continue
		}
		// More keys than wanted may stay: idle ones can be charged up to the freeze.
		if kept == next.limit {
			larger := st.newTable(old.policy, 2*len(next.slots))
			for j := range next.slots {
				if id := next.slots[j].id.Load(); id != 0 {
					larger.put(id, next.entry(uint64(j), next.slots[j].word.Load()))
				}
			}
			next = larger
		}
		next.put(id, e)
		kept++
	}
	if kept == 0 && want == 0 {
		next = old.policy.empty
	}
	st.publishLocked(s, next, kept)
	return dropped
}

// publishLocked puts a table of n ids in the place of the shard's.
func (st *store) publishLocked(s *shard, next *table, n int) {
	if far := st.cached == &notCached && len(next.slots) >= farSlots/len(st.shards); far != st.far.Load() {
		st.far.Store(far)
	}
	s.table.Store(next)
	s.count.Store(int64(n))
}

// freeze takes the word out of slot i for good.
func (t *table) freeze(i uint64) uint64 {
	e := &t.slots[i]
	if t.policy.wide == nil {
		for {
			if word := e.released(); e.word.CompareAndSwap(word, moved) {
				return word
			}
		}
	}
	word, _ := lockWord(e) // only the holder of the shard's lock stores moved
	e.word.Store(moved)
	return word
}

// each calls f for every entry of a shard's present table. The caller holds the
// shard's lock, so none has been moved.
func (t *table) each(f func(entry)) {
	for i := range t.slots {
		if t.slots[i].id.Load() != 0 {
			f(t.entry(uint64(i), t.slots[i].word.Load()))
		}
	}
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
