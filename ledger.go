package sluice

import (
	"slices"
	"sync"
)

// A ledger has the reservations of some shards' keys of which something can be given back,
// those of a key in the order of their ends. What is given back of one moves the ends of
// the later ones, so that of each it is known what part of it has not passed yet.
//
// Without a reservation its key is at least as full as with it, less its units; and that
// much less until it is fresh, which it is not before r.end less the units. So what of the
// units lies between now and r.end can be given back, and no history without the
// reservation has less.
//
// Lock order: a ledger, then a shard.
type ledger struct {
	mu    sync.Mutex
	lists map[uint64][]*Reservation
	total int
	sweep int // when total is that, what has passed is dropped
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
	lg.lists[r.id] = append(lg.lists[r.id], r)
	lg.total++
	r.listed = true
}

// remove takes a reservation out. The later ones of its key end so many ticks sooner.
func (lg *ledger) remove(r *Reservation, given uint64) {
	if !r.listed {
		return
	}
	list := lg.lists[r.id]
	i := slices.Index(list, r)
	for _, later := range list[i+1:] {
		later.end -= min(given, later.end)
	}
	lg.keep(r.id, func(other *Reservation) bool { return other != r })
}

// forget drops the reservations of id: what has been charged has gone.
func (lg *ledger) forget(id uint64) {
	lg.keep(id, func(*Reservation) bool { return false })
}

// shift lets the reservations of id end so many ticks sooner.
func (lg *ledger) shift(id uint64, given uint64) {
	for _, r := range lg.lists[id] {
		r.end -= min(given, r.end)
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
	for _, r := range lg.lists[id] {
		r.end = after.adopt(before, r.end, now)
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
		lg.keep(id, func(r *Reservation) bool { return r.end > t })
	}
}

// keep drops the reservations of id that f does not keep.
func (lg *ledger) keep(id uint64, f func(*Reservation) bool) {
	list := lg.lists[id]
	kept := list[:0]
	for _, r := range list {
		if r.listed = f(r); r.listed {
			kept = append(kept, r)
		}
	}
	clear(list[len(kept):])
	lg.total -= len(list) - len(kept)
	if len(kept) == 0 {
		delete(lg.lists, id)
	} else {
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
