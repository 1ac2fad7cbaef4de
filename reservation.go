package sluice

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/ends"
	"github.com/sluice-go/sluice/internal/ledger"
)

// A Reservation is the reservation for a charge, of Reserve for a time to come or of
// TakeAllReservations. Its methods can be called concurrently, in any order. A nil Reservation stands for
// a charge that has not been made: there is nothing to wait for and nothing to settle.
type Reservation struct {
	lim       *Limiter
	id        uint64
	cost      int
	begins    int64 // when the caller can go ahead: at node.At, or under Shadow at once
	wouldDeny bool
	begun     bool // its turn had begun when it was made
	settled   atomic.Bool
	rec       *ledger.Record // nil if nothing has been charged

	extending sync.Mutex     // guards more
	more      []*Reservation // what Extend has charged, nil where nothing was

	node  ends.Node // guarded by the record
	stamp uint64    // by which a window algorithm knows the units: see stamper
}

// Delay returns how long from now the turn begins, by the limiter's clock: wait that long,
// and go ahead. It is 0 once the turn has begun.
func (r *Reservation) Delay() time.Duration {
	if r == nil {
		return 0
	}
	return time.Duration(max(r.begins-max(r.lim.now(), 0), 0))
}

// WouldDeny reports whether there would be an error instead of the reservation, had the
// limiter been made without Config.Shadow. Nothing has been charged then, as with a nil Reservation.
func (r *Reservation) WouldDeny() bool { return r == nil || r.wouldDeny }

// Cancel gives the whole charge back, also when its turn has begun. Use it for a call that
// has not been made, and not in a defer. It is Settle(0).
func (r *Reservation) Cancel() { r.Settle(0) }

// Settle replaces the cost of the reservation by the actual cost. Unused units are given back,
// unless they have come back meanwhile; units beyond the cost are charged as by Debit, under the
// limit that the key has now. Only the first Settle or Cancel has an effect. An actual below 0
// counts as the cost.
//
// Settle gives back at most the units that would be left without the reservation, whatever
// other calls have been made, except Refund of the same units. If the key would have been
// fresh for a while without the reservation, it gives back less, by that while.
// Turns that other calls have reserved stay where they are; those of calls in Wait move up. Units that become free between such
// turns are not given back while the turns are to come, where that would exceed the limit; they
// are given back if those reservations are cancelled, too.
//
// Under InFlight a call that has ended uses no unit any more: Cancel gives all back.
func (r *Reservation) Settle(actual int) {
	if r == nil || r.settled.Swap(true) {
		return
	}
	l := r.lim
	actual = r.settleMore(actual)
	if actual > r.cost {
		var d Decision
		l.key(r.id).addDebt(&d, max(l.now(), 0), actual-r.cost, false)
	}
	rec := r.rec
	if rec == nil || !rec.Lock() {
		return
	}
	defer rec.Release()
	defer rec.Tell()
	if !r.node.Listed() {
		return
	}
	if actual >= 0 && actual < r.cost && !l.giveBack(rec, r, actual) {
		rec.Clear()
		return
	}
	l.awaiting.wake(r.id)
	if r.node.Units == 0 || r.begun || r.node.At <= l.now() || r.node.Wake != nil {
		rec.Remove(&r.node)
	}
}

// settleMore settles what Extend has charged, the newest units first, and returns the rest of the actual cost, for
// the reservation's own units.
func (r *Reservation) settleMore(actual int) int {
	r.extending.Lock()
	more := r.more
	r.more = nil
	r.extending.Unlock()
	if actual < 0 {
		return actual // all have been used, and come back by themselves
	}
	total := r.cost
	for _, e := range more {
		if e != nil {
			total += e.cost
		}
	}
	unused := max(total-actual, 0)
	for _, e := range slices.Backward(more) {
		if e != nil {
			back := min(unused, e.cost)
			e.Settle(e.cost - back)
			unused -= back
			actual -= e.cost - back
		}
	}
	return actual
}

// Renew holds the units of an InFlight key for another Period from now on, as Permit.Renew does. It returns ErrNotHeld for
// a reservation that is settled, and if units have lapsed: those are not taken again. A nil reservation, one of another
// algorithm, and one whose units are not counted have nothing to renew.
func (r *Reservation) Renew() (err error) {
	if r == nil || r.lim.config.Load().Algorithm != InFlight {
		return nil
	}
	r.extending.Lock()
	defer r.extending.Unlock()
	for _, e := range r.more {
		if e.Renew() != nil {
			err = ErrNotHeld
		}
	}
	if !r.renew() {
		err = ErrNotHeld
	}
	return err
}

// renew is Renew without the units of Extend.
func (r *Reservation) renew() (ok bool) {
	rec := r.rec
	if rec == nil {
		return true
	}
	if !rec.Lock() {
		return false
	}
	defer rec.Release()
	if !r.node.Listed() {
		return false
	}
	now, start := max(r.lim.now(), 0), uint64(0)
	var a *slidingWindow
	tracked := r.lim.update(r.id, func(p *policy, key state) (word uint64) {
		if a, ok = p.sliding(), rec.IsOf(p); !ok {
			return key.word
		}
		word, start, ok = p.moveOut(key, now, r.stamp*a.period, uint64(r.node.Units), true)
		return word
	})
	if ok = ok && tracked; ok {
		r.stamp = start / a.period
		rec.Restamp(&r.node, a.start(r.stamp+2))
	}
	return ok
}

// giveBack lets r count for no more than the used units. It fails if the charged units no longer
// count against the key: the key is blocked, or has been dropped.
//
// It reads the clock after the word, and so after each call whose charge is in the word.
// With an older time it would give back units that have already come back:
//
//	settle:  reads the clock, 0 s; is delayed
//	charge:  at 1 s takes the unit that was reserved at 0 s, and has come back
//	settle:  gives that unit back
func (l *Limiter) giveBack(rec *ledger.Record, r *Reservation, used int) (ok bool) {
	last := rec.Full()
	span, least, units := r.node.Span, r.node.Least, r.node.Units
	l.update(r.id, func(p *policy, key state) uint64 {
		if ok = rec.IsOf(p) && p.blockedUntil(key) == 0; !ok {
			return key.word
		}
		a := p.line
		if a == nil {
			r.node.Units = used
			return p.stamper().takeOut(key, r.stamp, uint64(units-used))
		}
		if ok = a.full(key.word) >= last; !ok {
			return key.word
		}
		r.node.Span, r.node.Least = span, least // an earlier attempt may have changed them
		rec.Changed(&r.node)
		now := max(l.now(), 0)
		if given := rec.Shrink(&r.node, used, now); given > 0 {
			return p.forward(key.word, now, given)
		}
		return key.word
	})
	return ok
}

func (r *Reservation) enter(rec *ledger.Record, p *policy, drops, from uint64) {
	r.rec = rec
	rec.Enter(&r.node, p, drops, from)
}

// reservations are the reservations that a TakeAllReservations returns.
type reservations struct {
	all     []*Reservation
	charges []Charge
	same    chain
}

// write makes the reservations for the charges of a claim that has been charged. before is the word that
// its key had until then. rec is the key's record.
func (rs *reservations) write(c *claim, rec *ledger.Record, before uint64) {
	p := c.policy
	a, s := p.line, p.stamper()
	kept := c.slot != nil && c.cost > 0 && p.keeps() && (a != nil || s != nil)
	var drops, from, stamp, end uint64
	if kept {
		rec.DropSome(c.now)
		drops = rec.Drops() // with the word held
		if a != nil {
			if c.until > 0 {
				before = 0 // the block is over
			}
			from = max(a.full(before), a.tick(c.now))
		} else {
			stamp, end = s.stamp(state{c.word, c.tail})
		}
	}
	for k := range rs.same.of(c) {
		if k >= len(rs.all) {
			break
		}
		r := &Reservation{lim: c.lim, id: c.id, cost: rs.charges[k].Cost, begins: c.now, begun: true}
		r.node.At = c.now
		rs.all[k] = r
		if !kept || r.cost == 0 {
			continue
		}
		if r.node.Units = r.cost; a != nil {
			r.enter(rec, p, drops, from)
			from += r.node.Span
		} else {
			r.enterStamped(rec, p, drops, stamp, end)
		}
	}
}

// enterStamped is enter under a window algorithm.
func (r *Reservation) enterStamped(rec *ledger.Record, p *policy, drops, stamp, end uint64) {
	r.rec, r.stamp = rec, stamp
	rec.EnterStamped(&r.node, p, drops, end)
}
