package sluice

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/sluice-go/sluice/internal/ends"
)

// The ledgers know the open reservations of a limiter's keys, those with limits of their own
// included. Each key that has some has a record of its own, with a lock of its own, so that
// keys with many of them are in nobody else's way.
//
// A call that changes the state of a key in another way than by charging it, or changes its
// policy, guards the key, or all keys of a shard, for as long as that takes, and tells the
// record: see forget, refunded and adopt. A call that drops a key from a table only says so
// (dropped), since the shard is locked then.
//
// Lock order: a ledger, then records by limiter and id, then a shard.
type ledgers struct {
	shift uint
	all   []ledger // one for each shard of the limiter
}

type ledger struct {
	// mu is held to make a record, and by a caller that relies on a key's having none.
	mu      sync.Mutex
	records atomic.Pointer[records] // nil until there has been one
	stale   atomic.Int64            // keys with records that have been dropped since it was tidied
}

type records struct {
	*xsync.MapOf[uint64, *record]
	tidyAt atomic.Int64 // how many there are when they are tidied next
}

// A record is what is known of a key with open reservations.
type record struct {
	in *ledger
	id uint64

	// drops is how often the key has been dropped. It is raised under the lock of the key's
	// shard, before the key can be tracked again. So a call that has loaded the key's word, then
	// drops, and then swaps the word, knows which key that was:
	//
	//	settle:    loads the word; drops are as they were
	//	eviction:  takes the word out; raises drops
	//	charge:    adds the key again
	//	settle:    its swap fails; it loads the new word; drops have been raised
	drops atomic.Uint64

	mu   sync.Mutex
	dead bool // taken out of the ledger; look for another one

	// The rest is of the reservations, if there are any.

	ends.Ends
	policy *policy // whose ticks the ends are in
	seen   uint64  // drops when they were made

	// back is how many ticks have been refunded since the first of them was made: all ends
	// are later than what they stand for by that.
	back uint64
}

const (
	// maxBack bounds back, so that no sum of ticks overflows: full ticks are below 3<<62.
	// More than 36 years' worth of units refunded beside open reservations end them.
	maxBack = 1 << 60
	// tidying stands for the number of records at which they are tidied next, while somebody does.
	tidying = math.MaxInt64
	// minRecordTidy is how many records a ledger has at least when it is tidied. Not tuned.
	minRecordTidy = 64
	// passedAtOnce is how many passed reservations are dropped before one is made, so that
	// they go faster than new ones come.
	passedAtOnce = 2
)

func newLedgers(shards int, shift uint) *ledgers {
	return &ledgers{shift: shift, all: make([]ledger, shards)}
}

// of returns the ledger of id. With a single shard the shift is 64, which gives 0.
func (ls *ledgers) of(id uint64) *ledger { return &ls.all[id>>ls.shift] }

// dropped notes that a key has been dropped. The key's shard is locked, so it does no more: to end the
// record takes a time in proportion to its reservations.
func (ls *ledgers) dropped(id uint64) {
	lg := ls.of(id)
	if rec := lg.find(id); rec != nil {
		rec.drops.Add(1)
		lg.stale.Add(1)
	}
}

// find returns the record of id, which may be dead, or nil.
func (lg *ledger) find(id uint64) *record {
	if m := lg.records.Load(); m != nil {
		rec, _ := m.Load(id)
		return rec
	}
	return nil
}

// record returns the record of id, which may be dead. If there is none it makes one, at the time
// now.
func (lg *ledger) record(id uint64, now int64) *record {
	if rec := lg.find(id); rec != nil {
		return rec
	}
	lg.mu.Lock()
	m := lg.records.Load()
	if m == nil {
		m = &records{MapOf: xsync.NewMapOf[uint64, *record]()}
		lg.records.Store(m)
	}
	rec, found := m.LoadOrStore(id, &record{in: lg, id: id})
	lg.mu.Unlock()
	if !found {
		lg.tidy(now)
	}
	return rec
}

// lockRecord locks the record of id, and makes one at the time now if there is none.
func (lg *ledger) lockRecord(id uint64, now int64) *record {
	for {
		if rec := lg.record(id, now); rec.lock() {
			return rec
		}
	}
}

// lock fails if the record is dead.
func (rec *record) lock() bool {
	rec.mu.Lock()
	if rec.dead {
		rec.mu.Unlock()
		return false
	}
	return true
}

// release unlocks the record, which dies if the key has no reservations.
func (rec *record) release() {
	if rec.Len() == 0 {
		rec.dead = true
		rec.in.records.Load().Delete(rec.id)
	}
	rec.mu.Unlock()
}

// guard keeps reservations of id from being made or changed until unguard. It returns the
// key's record, or nil if it has none.
func (lg *ledger) guard(id uint64) *record {
	for {
		rec := lg.find(id)
		if rec == nil {
			lg.mu.Lock()
			if rec = lg.find(id); rec == nil {
				return nil
			}
			lg.mu.Unlock()
		}
		if rec.lock() {
			return rec
		}
	}
}

func (lg *ledger) unguard(rec *record) {
	if rec == nil {
		lg.mu.Unlock()
	} else {
		rec.release()
	}
}

// guardAll is guard for all keys of the shard. It returns the records there are, by id.
func (lg *ledger) guardAll() (records []*record) {
	lg.mu.Lock()
	m := lg.records.Load()
	if m == nil {
		return nil
	}
	m.Range(func(_ uint64, rec *record) bool {
		records = append(records, rec)
		return true
	})
	slices.SortFunc(records, func(a, b *record) int { return cmp.Compare(a.id, b.id) })
	return slices.DeleteFunc(records, func(rec *record) bool { return !rec.lock() })
}

// recordOf returns the one of id, or nil.
func recordOf(records []*record, id uint64) *record {
	i, found := slices.BinarySearchFunc(records, id, func(rec *record, id uint64) int { return cmp.Compare(rec.id, id) })
	if !found {
		return nil
	}
	return records[i]
}

// unguardAll lets f tell each record what has been done, with nobody else in its way.
func (lg *ledger) unguardAll(records []*record, f func(rec *record)) {
	lg.mu.Unlock()
	for _, rec := range records {
		f(rec)
		rec.release()
	}
}

// tick is the time by which the ends go: ticks, or under a window algorithm nanoseconds.
func (rec *record) tick(now int64) uint64 {
	if a := rec.policy.line(); a != nil {
		return a.tick(now)
	}
	return uint64(max(now, 0))
}

// enter adds r, which has been charged under p, when drops were as given, after the full
// tick from.
func (rec *record) enter(r *ends.Node, p *policy, drops, from uint64) {
	last := rec.Final()
	if rec.Len() > 0 && last > from+rec.back {
		rec.Clear() // the key has been dropped since
	}
	if rec.begin(p, drops); rec.Len() == 0 {
		last = 0
	}
	r.Span = p.line().ticks(r.Units)
	r.Least = rec.tick(r.At) + r.Span + rec.back
	r.Ahead = from + rec.back - last
	rec.Append(r)
}

// enterStamped is enter under a window algorithm. The end of r is when its units no longer
// count.
func (rec *record) enterStamped(r *ends.Node, p *policy, drops, end uint64) {
	rec.begin(p, drops)
	r.Least = min(end, math.MaxInt64)
	rec.Append(r)
}

// begin lets go of reservations that are not of the key as it is.
func (rec *record) begin(p *policy, drops uint64) {
	if rec.Len() > 0 && (p != rec.policy || drops != rec.seen) {
		rec.Clear()
	}
	if rec.Len() == 0 {
		rec.policy, rec.seen, rec.back = p, drops, 0
	}
}

// hasRoom reports whether the key has fewer than most reservations.
func (rec *record) hasRoom(now int64, most int) bool {
	rec.dropPassed(now, passedAtOnce)
	return rec.Len() < most
}

// shrink lets only so many units of r count from now on, and returns by how many ticks the
// bucket is full sooner. r no longer counts before now, when what had come back by itself has.
func (rec *record) shrink(r *ends.Node, units int, now int64) (given uint64) {
	a := rec.policy.line()
	t := a.tick(now) + rec.back
	r.Units = units
	end := r.End(rec.Before(r))
	if end <= t {
		return 0
	}
	last := rec.Final()
	r.Span, r.Least = min(r.Span, a.ticks(units)), t
	if units > 0 {
		r.Least = max(t, min(end, a.tick(r.At)+a.ticks(units)+rec.back))
	}
	rec.Changed(r)
	return last - rec.Final()
}

// forget lets the reservations end: what they have charged has gone.
func (rec *record) forget() {
	if rec != nil {
		rec.Clear()
	}
}

// refunded lets the reservations end sooner by what has been refunded of their key, as if it
// had been charged before all of them. (It may have been one of theirs.)
func (rec *record) refunded(ticks uint64) {
	if rec == nil || rec.Len() == 0 {
		return
	}
	if rec.back += ticks; ticks > maxBack || rec.back > maxBack {
		rec.Clear()
	}
}

// adopt takes the reservations over into another policy, as of now.
func (rec *record) adopt(to *policy, now int64) {
	if rec == nil || rec.Len() == 0 {
		return
	}
	if to.bucket() == nil || rec.policy.bucket() == nil {
		if !to.keepsReceipts(rec.policy) {
			rec.Clear()
		}
		rec.policy = to
		return
	}
	before, _ := rec.policy.bucket().turns()
	rec.dropPassed(now, rec.Len())
	back := rec.back
	rec.policy = to
	after, _ := to.bucket().turns()
	if before.sameTicks(after) {
		return // and what is missing before turns need not stay charged
	}
	was, is := uint64(0), uint64(0)
	rec.Each(func(r *ends.Node) {
		was = r.End(was)
		end := after.adopt(before, was-back, now)
		// The units that are missing before the turn stay charged.
		r.Span = min(after.ticks(r.Units), end-is)
		r.Ahead = end - is - r.Span
		r.Least = 0
		if r.Units > 0 {
			r.Least = min(end, after.tick(r.At)+after.ticks(r.Units))
		}
		is = end
	})
	rec.back = 0
}

// dropPassed drops up to n reservations, the first ones, that have come back by themselves; or all of
// them if they have gone with the key.
func (rec *record) dropPassed(now int64, n int) {
	switch {
	case rec.Len() == 0:
		return
	case rec.drops.Load() != rec.seen:
		rec.Clear()
		return
	}
	t := rec.tick(now) + rec.back
	for r := rec.First(); r != nil && n > 0 && r.End(0) <= t; r = rec.First() {
		rec.Remove(r)
		n--
	}
}

// over reports whether all reservations have come back by themselves, or have gone with the key.
func (rec *record) over(now int64) bool {
	return rec.Len() > 0 && (rec.drops.Load() != rec.seen || rec.Final() <= rec.tick(now)+rec.back)
}

// dropPassed drops all reservations that have come back by themselves, or have gone with their keys.
func (ls *ledgers) dropPassed(now int64) {
	for i := range ls.all {
		if m := ls.all[i].records.Load(); m != nil {
			m.Range(func(_ uint64, rec *record) bool {
				if rec.lock() {
					rec.dropPassed(now, rec.Len())
					rec.release()
				}
				return true
			})
		}
	}
}

// tidy drops the records that are over, once there are many, or half of many may be of keys that have
// been dropped, and waits for nobody. Those that are abandoned would otherwise stay as long as nobody sweeps.
func (lg *ledger) tidy(now int64) {
	m := lg.records.Load()
	at := m.tidyAt.Load()
	size := int64(m.Size())
	if size < minRecordTidy || size < at && 2*lg.stale.Load() < size || at == tidying || !m.tidyAt.CompareAndSwap(at, tidying) {
		return
	}
	lg.stale.Store(0)
	m.Range(func(_ uint64, rec *record) bool {
		switch {
		case !rec.mu.TryLock():
		case !rec.dead && rec.over(now):
			rec.Clear()
			rec.release()
		default:
			rec.mu.Unlock()
		}
		return true
	})
	m.tidyAt.Store(2 * int64(m.Size()))
}
