// Package ledger knows the open reservations of a limiter's keys. Each key that has some has a record of its
// own, with a lock of its own, so that keys with many of them are in nobody else's way.
//
// A call that changes the state of a key in another way than by charging it, or changes its
// policy, guards the key, or all keys of a shard, for as long as that takes, and tells the
// record: see Forget, Refunded and Adopt. A call that drops a key from a table only says so
// (Dropped), since the shard is locked then, and ending a record takes a time in proportion to its reservations.
//
// Lock order: a ledger, then records by limiter and id, then whatever the caller has.
package ledger

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/sluice-go/sluice/internal/ends"
)

// A Policy gives the ends of reservations their meaning: in ticks, or under a window algorithm in nanoseconds.
// Policies are compared by identity.
type Policy interface {
	// Tick is the time by which the ends go.
	Tick(now int64) uint64
	// Ticks are the ticks of so many units, and 0 without ticks.
	Ticks(units int) uint64
	// Carry reports whether reservations under from mean something under this policy, and if so,
	// whether their ends stay the same numbers.
	Carry(from Policy) (kept, same bool)
	// Turn is the first ns at which a call of so many units can begin if it ends at the tick end.
	Turn(end uint64, units int) uint64
	// End is an end under from in ticks of this policy, as of now, where Carry says that it is another number.
	End(from Policy, end uint64, now int64) uint64
}

// Ledgers are a limiter's, one for each of its shards.
type Ledgers struct {
	shift uint
	all   []Ledger
}

// A Ledger has the records of the keys of a shard.
type Ledger struct {
	// mu is held to make a record, and by a caller that relies on a key's having none.
	mu      sync.Mutex
	records atomic.Pointer[records] // nil until there has been one
	stale   atomic.Int64            // keys with records that have been dropped since it was tidied
}

type records struct {
	*xsync.MapOf[uint64, *Record]
	tidyAt atomic.Int64 // how many there are when they are tidied next

	// spares are records that stay although their keys have no reservations. A record takes as long to make as the rest
	// of a reservation, and so one stays if its key has had reservations before, and has been the last of its place then.
	spares [spares]atomic.Pointer[Record]
	lately [spares]atomic.Uint64 // the key of each place that had reservations last
}

// A Record is the open reservations of a key.
type Record struct {
	in *Ledger
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

	mu    sync.Mutex
	dead  bool // taken out of the ledger; look for another one
	spare bool // among the ledger's spares

	// The rest is of the reservations, if there are any.

	ends.Ends
	policy Policy // whose ticks the ends are in
	seen   uint64 // drops when they were made

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
	// spares bounds the memory of records without reservations: some 2 KB a ledger. Not tuned.
	spares = 8
)

// New returns the ledgers of so many shards; id>>shift is the ledger of an id.
func New(shards int, shift uint) *Ledgers {
	return &Ledgers{shift: shift, all: make([]Ledger, shards)}
}

// Of returns the ledger of id. With a single shard the shift is 64, which gives 0.
func (ls *Ledgers) Of(id uint64) *Ledger { return &ls.all[id>>ls.shift] }

// Dropped notes that a key has been dropped. The key's shard is locked, so it does no more: to end the
// record takes a time in proportion to its reservations.
func (ls *Ledgers) Dropped(id uint64) {
	lg := ls.Of(id)
	if rec := lg.Find(id); rec != nil {
		rec.drops.Add(1)
		lg.stale.Add(1)
	}
}

// Find returns the record of id, which may be dead, or nil.
func (lg *Ledger) Find(id uint64) *Record {
	if m := lg.records.Load(); m != nil {
		rec, _ := m.Load(id)
		return rec
	}
	return nil
}

// Record returns the record of id, which may be dead. If there is none it makes one, at the time
// now.
func (lg *Ledger) Record(id uint64, now int64) *Record {
	if rec := lg.Find(id); rec != nil {
		return rec
	}
	lg.mu.Lock()
	m := lg.records.Load()
	if m == nil {
		m = &records{MapOf: xsync.NewMapOf[uint64, *Record]()}
		lg.records.Store(m)
	}
	rec, found := m.LoadOrStore(id, &Record{in: lg, id: id})
	lg.mu.Unlock()
	if !found {
		lg.tidy(now)
	}
	return rec
}

// LockRecord locks the record of id, and makes one at the time now if there is none.
func (lg *Ledger) LockRecord(id uint64, now int64) *Record {
	for {
		if rec := lg.Record(id, now); rec.Lock() {
			return rec
		}
	}
}

// Lock locks the record. It fails if the record is dead.
func (rec *Record) Lock() bool {
	rec.mu.Lock()
	return rec.alive()
}

// alive unlocks a dead record.
func (rec *Record) alive() bool {
	if rec.dead {
		rec.mu.Unlock()
		return false
	}
	return true
}

// TryLock is Lock if nobody has the record locked.
func (rec *Record) TryLock() bool { return rec.mu.TryLock() && rec.alive() }

// Release unlocks the record. If the key has no reservations, the record stays as a spare, or dies.
func (rec *Record) Release() {
	if rec.Len() == 0 && !rec.spare && !rec.stay() {
		rec.die()
	}
	rec.mu.Unlock()
}

// stay makes the record a spare, if its key comes again, and no call has the spare in its place. It waits for nobody,
// since its caller may have other records locked.
func (rec *Record) stay() bool {
	i, in := rec.id%spares, rec.in.records.Load()
	if last := &in.lately[i]; last.Load() != rec.id {
		last.Store(rec.id)
		return false
	}
	place := &in.spares[i]
	old := place.Load()
	if old != nil {
		if !old.mu.TryLock() {
			return false
		}
		defer old.mu.Unlock()
	}
	if rec.spare = place.CompareAndSwap(old, rec); rec.spare && old != nil {
		old.spare = false
		if old.Len() == 0 {
			old.die()
		}
	}
	return rec.spare
}

// drop is Release for a record that need not stay.
func (rec *Record) drop() {
	if rec.Len() == 0 {
		rec.die()
	}
	rec.mu.Unlock()
}

func (rec *Record) die() {
	if !rec.dead {
		rec.dead = true
		rec.in.records.Load().Delete(rec.id)
	}
}

// Guard keeps reservations of id from being made or changed until Unguard. It returns the
// key's record, or nil if it has none.
func (lg *Ledger) Guard(id uint64) *Record {
	for {
		rec := lg.Find(id)
		if rec == nil {
			lg.mu.Lock()
			if rec = lg.Find(id); rec == nil {
				return nil
			}
			lg.mu.Unlock()
		}
		if rec.Lock() {
			return rec
		}
	}
}

// Unguard ends a Guard, which has returned rec.
func (lg *Ledger) Unguard(rec *Record) {
	if rec == nil {
		lg.mu.Unlock()
	} else {
		rec.Release()
	}
}

// GuardAll is Guard for all keys of the shard. It returns the records there are, by id.
func (lg *Ledger) GuardAll() (records []*Record) {
	lg.mu.Lock()
	m := lg.records.Load()
	if m == nil {
		return nil
	}
	m.Range(func(_ uint64, rec *Record) bool {
		records = append(records, rec)
		return true
	})
	slices.SortFunc(records, func(a, b *Record) int { return cmp.Compare(a.id, b.id) })
	return slices.DeleteFunc(records, func(rec *Record) bool { return !rec.Lock() })
}

// RecordOf returns the one of id, or nil.
func RecordOf(records []*Record, id uint64) *Record {
	i, found := slices.BinarySearchFunc(records, id, func(rec *Record, id uint64) int { return cmp.Compare(rec.id, id) })
	if !found {
		return nil
	}
	return records[i]
}

// UnguardAll ends a GuardAll: it lets f tell each record the change, before any other call has it.
func (lg *Ledger) UnguardAll(records []*Record, f func(rec *Record)) {
	lg.mu.Unlock()
	for _, rec := range records {
		f(rec)
		rec.Release()
	}
}

// Enter adds r, which has been charged under p, when drops were as given, after the full
// tick from.
func (rec *Record) Enter(r *ends.Node, p Policy, drops, from uint64) {
	last := rec.Final()
	if rec.Len() > 0 && last > from+rec.back {
		rec.Clear() // the key has been dropped since
	}
	if rec.begin(p, drops); rec.Len() == 0 {
		last = 0
	}
	r.Span = p.Ticks(r.Units)
	r.Least = rec.policy.Tick(r.At) + r.Span + rec.back
	r.Ahead = from + rec.back - last
	rec.Append(r)
}

// EnterStamped is Enter under a window algorithm. The end of r is when its units no longer
// count.
func (rec *Record) EnterStamped(r *ends.Node, p Policy, drops, end uint64) {
	rec.begin(p, drops)
	r.Least = min(end, math.MaxInt64)
	rec.Append(r)
}

// Restamp moves r to the last place: its units count until end now.
func (rec *Record) Restamp(r *ends.Node, end uint64) {
	rec.Remove(r)
	r.Least = min(end, math.MaxInt64)
	rec.Append(r)
}

// begin lets go of reservations that are not of the key as it is.
func (rec *Record) begin(p Policy, drops uint64) {
	if rec.Len() > 0 && (p != rec.policy || drops != rec.seen) {
		rec.Clear()
	}
	if rec.Len() == 0 {
		rec.policy, rec.seen, rec.back = p, drops, 0
	}
}

// ID is the id of the record's key.
func (rec *Record) ID() uint64 { return rec.id }

// Drops is how often the key has been dropped: see drops, and load it with the key's word at hand.
func (rec *Record) Drops() uint64 { return rec.drops.Load() }

// IsOf reports whether the reservations are of the key as it is, under p.
func (rec *Record) IsOf(p Policy) bool { return rec.drops.Load() == rec.seen && p == rec.policy }

// Full is the tick before which the bucket of the key cannot be full, if it has lost nothing.
func (rec *Record) Full() uint64 { return rec.Final() - rec.back }

// DropSome drops a few reservations that have come back by themselves, so that they go faster than new ones
// come.
func (rec *Record) DropSome(now int64) { rec.dropPassed(now, passedAtOnce) }

// HasRoom reports whether the key has fewer than most reservations.
func (rec *Record) HasRoom(now int64, most int) bool {
	rec.DropSome(now)
	return rec.Len() < most
}

// Shrink lets only so many units of r count from now on, and returns by how many ticks the
// bucket is full sooner. r no longer counts before now, as units that had come back by themselves.
func (rec *Record) Shrink(r *ends.Node, units int, now int64) (given uint64) {
	p := rec.policy
	t := p.Tick(now) + rec.back
	r.Units = units
	end := r.End(rec.Before(r))
	if end <= t {
		return 0
	}
	last := rec.Final()
	r.Span, r.Least = min(r.Span, p.Ticks(units)), t
	if units > 0 {
		r.Least = max(t, min(end, p.Tick(r.At)+p.Ticks(units)+rec.back))
	}
	rec.Changed(r)
	return last - rec.Final()
}

// Forget lets the reservations end: their charges have gone.
func (rec *Record) Forget() {
	if rec != nil {
		rec.Clear()
	}
}

// Refunded lets the reservations end sooner by the refund of their key, as if it
// had been charged before all of them. (It may have been one of theirs.)
func (rec *Record) Refunded(ticks uint64) {
	if rec == nil || rec.Len() == 0 {
		return
	}
	if rec.back += ticks; ticks > maxBack || rec.back > maxBack {
		rec.Clear()
	}
}

// Adopt takes the reservations over into another policy, as of now.
func (rec *Record) Adopt(to Policy, now int64) {
	if rec == nil || rec.Len() == 0 {
		return
	}
	from := rec.policy
	kept, same := to.Carry(from)
	if kept {
		rec.dropPassed(now, rec.Len())
	} else {
		rec.Clear()
	}
	rec.policy = to
	if same {
		return // and units that are missing before turns need not stay charged
	}
	was, is := uint64(0), uint64(0)
	rec.Each(func(r *ends.Node) {
		was = r.End(was)
		end := to.End(from, was-rec.back, now)
		// The units that are missing before the turn stay charged.
		r.Span = min(to.Ticks(r.Units), end-is)
		r.Ahead = end - is - r.Span
		free := r.Least == 0
		r.Least = 0
		if r.Units > 0 && !free {
			r.Least = min(end, to.Tick(r.At)+to.Ticks(r.Units))
		}
		is = end
	})
	rec.back = 0
}

// dropPassed drops up to n reservations, the first ones, that have come back by themselves; or all of
// them if they have gone with the key.
func (rec *Record) dropPassed(now int64, n int) {
	switch {
	case rec.Len() == 0:
		return
	case rec.drops.Load() != rec.seen:
		rec.Clear()
		return
	}
	t := rec.policy.Tick(now) + rec.back
	for r := rec.First(); r != nil && n > 0 && r.End(0) <= t; r = rec.First() {
		rec.Remove(r)
		n--
	}
}

// over reports whether all reservations have come back by themselves, or have gone with the key.
func (rec *Record) over(now int64) bool {
	return rec.Len() > 0 && (rec.drops.Load() != rec.seen || rec.Final() <= rec.policy.Tick(now)+rec.back)
}

// At returns the ledger of the i-th shard.
func (ls *Ledgers) At(i int) *Ledger { return &ls.all[i] }

// Each calls f for the records of a ledger.
func (lg *Ledger) Each(f func(rec *Record)) {
	if m := lg.records.Load(); m != nil {
		m.Range(func(_ uint64, rec *Record) bool { f(rec); return true })
	}
}

// DropPassed drops all reservations that have come back by themselves, or have gone with their keys.
func (ls *Ledgers) DropPassed(now int64) {
	for i := range ls.all {
		ls.all[i].Each(func(rec *Record) {
			if rec.Lock() {
				rec.dropPassed(now, rec.Len())
				rec.drop()
			}
		})
	}
}

// tidy drops the records that are over, once there are many, or half of many may be of keys that have
// been dropped, and waits for nobody. Those that are abandoned would otherwise stay as long as nobody sweeps.
func (lg *Ledger) tidy(now int64) {
	m := lg.records.Load()
	at := m.tidyAt.Load()
	size := int64(m.Size())
	if size < minRecordTidy || size < at && 2*lg.stale.Load() < size || at == tidying || !m.tidyAt.CompareAndSwap(at, tidying) {
		return
	}
	lg.stale.Store(0)
	m.Range(func(_ uint64, rec *Record) bool {
		switch {
		case !rec.mu.TryLock():
		case !rec.dead && rec.over(now):
			rec.Clear()
			rec.drop()
		default:
			rec.mu.Unlock()
		}
		return true
	})
	m.tidyAt.Store(2 * int64(m.Size()))
}
