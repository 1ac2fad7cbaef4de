package sluice

import (
	"maps"
	"slices"
	"sync"
)

// A ledger has the reservations of some shards' keys that matter to what can be given
// back, those of a key in order of arrival. Of each it knows the tick at which the bucket
// would be full again if the key had been charged nothing after it:
//
//	end = max(end of the one before + ahead, tick of the slot) + units
//
// where ahead is what else has been charged in between, or simply has passed; that of the
// first one counts from tick 0. A reservation without units has no slot to keep. If fewer
// units count, this end and those of the later ones come forward, and the key's full tick
// by as much as the last one. No end comes forward to before now.
//
// So no history without the units has less, since what is charged while a key is fresh is
// charged at its own time, at now at the latest. And at all times the full tick is at least
// what it would be if every call had been charged as it began, which is what makes GCRA's
// bound hold for slots: had an end been let go below its slot's, others would be given the
// same slot.
//
// Lock order: a ledger, then a shard. A key's policy changes under the lock of its ledger.
type ledger struct {
	mu    sync.Mutex
	lists map[uint64][]*Reservation
	total int
	sweep int // when total is that, what has passed is dropped
	most  int // lists there have been in the map
}

const (
	// maxLedgers bounds how many ledgers there are, so that an unused limiter stays small.
	maxLedgers = 16
	// minLedgerSweep is how many reservations are kept at least before it is looked which
	// have passed.
	minLedgerSweep = 64
	// Neither was tuned.
)

// ledger returns the ledger of id, which is that of the limiter itself whatever the owner
// of id.
func (st *store) ledger(id uint64) *ledger {
	return &st.ledgers[id>>st.shift&uint64(len(st.ledgers)-1)]
}

// add enters a reservation.
func (lg *ledger) add(r *Reservation, now int64) {
	if lg.total >= max(lg.sweep, minLedgerSweep) {
		lg.dropPassed(&r.lim.store, now)
		lg.sweep = 2 * lg.total
	}
	if lg.lists == nil {
		lg.lists = map[uint64][]*Reservation{}
	}
	if last := lg.lastEnd(r.id); last <= r.ahead {
		r.ahead -= last
	} else {
		lg.forget(r.id) // the key has been dropped since, for want of room
	}
	lg.lists[r.id] = append(lg.lists[r.id], r)
	lg.most = max(lg.most, len(lg.lists))
	lg.total++
	r.listed = true
}

// lastEnd returns the end of the last reservation of id, or 0.
func (lg *ledger) lastEnd(id uint64) uint64 {
	list := lg.lists[id]
	if len(list) == 0 {
		return 0
	}
	return list[len(list)-1].end
}

// shrink lets only so many units of r count from tick t on, and returns by how much the
// end of the last reservation comes forward.
func (lg *ledger) shrink(r *Reservation, units int, s *schedule, t uint64) (given uint64) {
	list := lg.lists[r.id]
	before, last := lg.lastEnd(r.id), uint64(0)
	r.units = units
	later := false
	for _, other := range list {
		if later = later || other == r; later {
			other.reckon(last, s, t)
		}
		last = other.end
	}
	return before - last
}

// reckon brings the end forward to where it is after that of the one before.
func (r *Reservation) reckon(before uint64, s *schedule, t uint64) {
	end := before + r.ahead
	if r.units > 0 {
		end = saturatingAdd(max(end, s.tick(r.at)), s.ticks(r.units))
	}
	r.end = min(r.end, max(end, t))
}

// forget drops the reservations of id: what has been charged has gone.
func (lg *ledger) forget(id uint64) {
	lg.drop(id, func(*Reservation) bool { return true })
}

// shift lets the reservations of id end so many ticks sooner.
func (lg *ledger) shift(id uint64, given uint64) {
	for i, r := range lg.lists[id] {
		r.end -= min(given, r.end)
		if i == 0 {
			r.ahead -= min(given, r.ahead)
		}
	}
}

// adopt takes over the reservations of id into another policy.
func (lg *ledger) adopt(id uint64, from, to *policy, now int64) {
	old, next := from.bucket(), to.bucket()
	if old == nil || next == nil {
		lg.forget(id)
		return
	}
	before, _ := old.slots()
	after, _ := next.slots()
	if *before == *after {
		return // ticks are the same, and what is missing before slots need not stay charged
	}
	last := uint64(0)
	for _, r := range lg.lists[id] {
		r.end = after.adopt(before, r.end, now)
		from := r.end - min(r.end, after.ticks(r.units))
		r.ahead = from - min(from, last) // what was missing before the slot stays charged
		last = r.end
	}
}

// dropPassed drops what has come back by itself.
func (lg *ledger) dropPassed(st *store, now int64) {
	for id := range lg.lists {
		b := st.ownersPolicy(id).bucket()
		if b == nil {
			lg.forget(id)
			continue
		}
		s, _ := b.slots()
		t := s.tick(now)
		lg.drop(id, func(r *Reservation) bool { return r.end <= t || r.settled && r.at <= now })
	}
	if lg.most >= minLedgerSweep && len(lg.lists) <= lg.most/4 {
		few := make(map[uint64][]*Reservation, len(lg.lists)) // a map gives no memory back
		maps.Copy(few, lg.lists)
		lg.lists, lg.most = few, len(few)
	}
}

// drop drops the reservations of id that are gone. What they have charged stays charged
// ahead of the next one.
func (lg *ledger) drop(id uint64, gone func(*Reservation) bool) {
	list := lg.lists[id]
	kept := list[:0]
	ahead, last := uint64(0), uint64(0)
	for _, r := range list {
		if r.listed = !gone(r); r.listed {
			r.ahead += ahead
			ahead = 0
			kept = append(kept, r)
		} else {
			ahead += r.end - last
		}
		last = r.end
	}
	clear(list[len(kept):])
	lg.total -= len(list) - len(kept)
	switch {
	case len(kept) == 0:
		delete(lg.lists, id)
	case len(kept) < cap(kept)/8:
		lg.lists[id] = slices.Clone(kept)
	default:
		lg.lists[id] = kept
	}
}

// dropPassed drops from all ledgers what has come back by itself.
func (st *store) dropPassed() {
	now := max(st.clock.Now(), 0)
	for i := range st.ledgers {
		lg := &st.ledgers[i]
		lg.mu.Lock()
		lg.dropPassed(st, now)
		lg.mu.Unlock()
	}
}
