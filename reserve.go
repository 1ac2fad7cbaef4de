package sluice

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/ends"
)

// A Reservation is the receipt for a charge, of Reserve for a time to come or of
// TakeAllReceipts. Its methods can be called concurrently, in any order.
type Reservation struct {
	lim       *Limiter
	id        uint64
	cost      int
	begins    int64 // when the caller can go ahead: at, or under Shadow at once
	wouldDeny bool
	settled   atomic.Bool
	rec       *record // nil if nothing has been charged

	node  ends.Node // guarded by the record
	stamp uint64    // what a window algorithm tells the units by: see stamper
}

// Delay returns how long from now the turn begins, by the limiter's clock: wait that long,
// and go ahead. Once the turn has begun it is 0.
func (r *Reservation) Delay() time.Duration {
	return time.Duration(max(r.begins-max(r.lim.now(), 0), 0))
}

// At returns when the turn begins, in Unix nanoseconds of the limiter's clock: the time of
// the call that has reserved it, or later.
func (r *Reservation) At() int64 { return r.begins }

// WouldDeny reports whether there would be an error instead of the reservation, had the
// limiter been made without Config.Shadow. Nothing has been charged then.
func (r *Reservation) WouldDeny() bool { return r.wouldDeny }

// Cancel gives the whole charge back. It is Settle(0).
func (r *Reservation) Cancel() { r.Settle(0) }

// Settle replaces the cost of the reservation by what was used. Units that were not used are given
// back, unless they have come back by themselves meanwhile; units beyond the cost are
// charged as by Charge, under the limit that the key has now. Only the first Settle or Cancel does
// anything. An actual below 0 counts as the cost.
//
// Settle gives back at most the units that would be left without the reservation, whatever
// other calls have been made, except Refund of the same units. Where the key
// would have been fresh for a while without the reservation, it is less by that while.
// Turns that others have reserved stay where they are: what is missing between the turns of
// others is not handed out again beside them, where it would exceed the limit, as long as
// they are to come; it is given back if they are cancelled, too.
func (r *Reservation) Settle(actual int) { r.lim.settle(r, actual) }

// Reserve charges cost units to key for a turn to come, and returns a receipt; or an
// error, having charged nothing. The turns of a key are handed out in order of arrival.
// It takes no context, since it does not wait: to wait, call Wait, or wait for the Delay
// and cancel if the context is done first.
//
// GCRA and TokenBucket give the first turn at which the call would be admitted, so bursts
// stay bursts. LeakyBucket is a queue that holds the burst, what is draining included: it
// spaces calls evenly, each beginning when the ones before have drained, and has ErrQueueFull
// for what does not fit in. ErrWouldExceedDeadline says that the turn is more than maxWait
// away, as any turn is for a negative one; ErrTooManyReservations that the key has as many as
// Config.MaxReservations. The other algorithms have ErrNotReservable; further errors are
// ErrCostExceedsBurst, ErrNegativeCost, ErrBlocked and ErrNoRoom. A cost of 0 charges nothing,
// and asks for the turn of one unit.
//
// A key with reservations denies calls until its turns have passed. A Block does not call a
// reservation back: the caller may go ahead although the key has been blocked meanwhile.
// Under Shadow there is no delay, and no error but ErrNotReservable: see
// Reservation.WouldDeny. A Reserve that fails is counted as denied, but does not block.
func (l *Limiter) Reserve(key string, cost int, maxWait time.Duration) (*Reservation, error) {
	return l.reserve(l.made().hash.string(key), key, cost, maxWait)
}

// Reserve is Limiter.Reserve for this key.
func (k Key) Reserve(cost int, maxWait time.Duration) (*Reservation, error) {
	return k.lim.made().reserve(k.id, "", cost, maxWait)
}

func (l *Limiter) reserve(id uint64, name string, cost int, maxWait time.Duration) (*Reservation, error) {
	r := &Reservation{lim: l.core, id: id, cost: cost}
	now := max(l.now(), 0)
	err := l.tryReserve(r, now, maxWait)
	switch {
	case err == nil:
		l.admit(id, cost)
		if r.begins = now; !l.shadow {
			r.begins = max(now, r.node.At)
		}
		return r, nil
	case err == ErrNotReservable:
		return nil, err
	}
	if l.refuse(id, name, cost); l.shadow {
		r = &Reservation{lim: l.core, id: id, begins: now, wouldDeny: true}
		r.settled.Store(true)
		return r, nil
	}
	return nil, err
}

// admit counts a call that is admitted.
func (l *Limiter) admit(id uint64, cost int) {
	if cost > 0 {
		l.count(id, admitted)
	}
}

// refuse counts a call that is not admitted.
func (l *Limiter) refuse(id uint64, name string, cost int) {
	l.deny(id, name, cost)
	if cost != 0 {
		l.count(id, denied)
	}
}

// errNoRecord says that a charge is to be made with the key's record.
var errNoRecord = errors.New("no record")

// tryReserve makes the charge of r, and enters r in the ledger.
func (l *Limiter) tryReserve(r *Reservation, now int64, maxWait time.Duration) (err error) {
	for done := false; !done; {
		// With no record locked: it may have to put the key under another policy.
		done, err = l.core.reserveUnder(l.policyFor(r.id), r, now, maxWait)
	}
	return err
}

// reserveUnder is tryReserve under p. It is not done if that is not the key's policy, or the
// key has been tracked in between.
func (l *Limiter) reserveUnder(p *policy, r *Reservation, now int64, maxWait time.Duration) (done bool, err error) {
	lg := l.ledgers.of(r.id)
	rec := lg.find(r.id)
	if rec == nil {
		if done, err = l.reserveHere(nil, r, p, now, maxWait); err != errNoRecord {
			return done, err
		}
	}
	if rec == nil || !rec.lock() {
		rec = lg.lockRecord(r.id, now)
	}
	defer rec.release()
	if r.cost > 0 && !rec.hasRoom(now, l.config.Load().MaxReservations) {
		return true, ErrTooManyReservations
	}
	return l.reserveHere(rec, r, p, now, maxWait)
}

// turnless returns the error of calls of that cost that p has no turn for, whatever the key
// has spent.
func (p *policy) turnless(cost int) error {
	if err := p.never(cost); err != nil || p.unlimited() || p.bucket() != nil {
		return err
	}
	return ErrNotReservable
}

// reserveHere is reserveUnder with the key's record. Without one it makes no charge.
func (l *Limiter) reserveHere(rec *record, r *Reservation, p *policy, now int64, maxWait time.Duration) (done bool, err error) {
	r.node.At = 0 // whatever an attempt before has found
	if err = p.turnless(r.cost); err != nil {
		return true, err
	}
	if p.unlimited() {
		return l.reserveUnlimited(p, r.id, now, maxWait)
	}
	var from, drops uint64
	tracked, same := l.updateUnder(p, r.id, func(_ *policy, key state) (next uint64) {
		if rec != nil {
			drops = rec.drops.Load()
		}
		if from, next, err = r.charge(p, key.word, now, maxWait); rec == nil && err == nil && r.cost > 0 {
			err, next = errNoRecord, key.word
		}
		return next
	})
	if tracked {
		if same && err == nil && r.cost > 0 {
			r.enter(rec, p, drops, from)
		}
		return same, err
	}
	if (r.cost == 0 || maxWait < 0) && l.fresh(r.id, p) {
		return true, tooLate(0, maxWait)
	}
	switch _, out := l.insert(p, r.id, now, 0, nil, gap{}); out {
	case waved:
		return true, tooLate(0, maxWait)
	case refused:
		return true, ErrNoRoom
	}
	return false, nil
}

func (l *Limiter) reserveUnlimited(p *policy, id uint64, now int64, maxWait time.Duration) (done bool, err error) {
	switch until, ok := l.blockOf(p, id); {
	case !ok:
		return false, nil
	case until > uint64(now):
		return true, ErrBlocked
	}
	return true, tooLate(0, maxWait)
}

// enter adds r to the record of its key.
func (r *Reservation) enter(rec *record, p *policy, drops, from uint64) {
	r.rec = rec
	rec.enter(&r.node, p, drops, from)
}

// charge returns the word after the reservation, and the full tick that it comes after.
func (r *Reservation) charge(p *policy, word uint64, now int64, maxWait time.Duration) (from, next uint64, err error) {
	from, delay, err := p.turn(word, now, r.cost)
	if err == nil {
		err = tooLate(delay, maxWait)
	}
	if err != nil {
		return from, word, err
	}
	next, err = r.chargeAt(p, word, from, now, delay)
	return from, next, err
}

func tooLate(delay, maxWait time.Duration) error {
	if delay > maxWait {
		return ErrWouldExceedDeadline
	}
	return nil
}

// turn returns how long after now the first turn of a key with the word begins, and the full
// tick that it comes after.
func (p *policy) turn(word uint64, now int64, cost int) (from uint64, delay time.Duration, err error) {
	key, blockedUntil := p.admissible(state{word: word}, now)
	if blockedUntil > 0 {
		return 0, 0, ErrBlocked
	}
	b := p.bucket()
	s, queue := b.turns()
	t := s.tick(now)
	from = max(b.full(key.word), t)
	need := uint64(max(cost, 1)) * s.unit // <= burst
	if queue && from-t > s.burst-need {
		return from, 0, ErrQueueFull
	}
	turn := from
	if !queue {
		turn = max(from+need, t+s.burst) - s.burst
	}
	at := s.earliest(turn)
	if at > math.MaxInt64 {
		return from, 0, ErrWouldExceedDeadline
	}
	return from, max(time.Duration(int64(at)-now), 0), nil
}

// chargeAt returns the word after the reservation of a turn that begins after delay.
func (r *Reservation) chargeAt(p *policy, word, from uint64, now int64, delay time.Duration) (next uint64, err error) {
	at := after(now, delay)
	if at > math.MaxInt64 {
		return word, ErrWouldExceedDeadline
	}
	r.node.At, r.node.Units = int64(at), r.cost
	if r.cost == 0 {
		return word, nil
	}
	b := p.bucket()
	s, _ := b.turns()
	// A call that begins at the nanosecond begins at its tick, which may be after the turn.
	end := saturatingAdd(max(from, s.tick(r.node.At)), s.ticks(r.cost))
	if end > s.most {
		return word, ErrWouldExceedDeadline
	}
	return b.pack(end, s.tick(now)), nil
}

// settle ends the reservation with what was used.
func (l *Limiter) settle(r *Reservation, actual int) {
	if r.settled.Swap(true) {
		return
	}
	if actual > r.cost {
		var d Decision
		l.debit(&d, r.id, max(l.now(), 0), actual-r.cost, (*Limiter).policyNow)
	}
	rec := r.rec
	if rec == nil {
		return
	}
	rec.mu.Lock()
	if !r.node.Listed() {
		rec.mu.Unlock()
		return
	}
	defer rec.release()
	if actual >= 0 && actual < r.cost && !l.giveBack(rec, r, actual) {
		rec.Clear()
		return
	}
	if r.node.Units == 0 || r.node.At <= l.now() {
		rec.Remove(&r.node)
	}
}

// giveBack lets r count for no more than what was used. It fails if the key has no longer
// what had been charged: it is blocked, or has been dropped.
//
// It reads the clock with the word at hand, and so not before anybody whose charge is in it.
// An older time would give back what has come back by itself:
//
//	settle:  reads the clock, 0 s; is delayed
//	charge:  at 1 s takes the unit that was reserved at 0 s, and has come back
//	settle:  gives that unit back
func (l *Limiter) giveBack(rec *record, r *Reservation, used int) (ok bool) {
	last := rec.Final() - rec.back
	span, least, units := r.node.Span, r.node.Least, r.node.Units
	l.update(r.id, func(p *policy, key state) uint64 {
		// In this order: see drops.
		if ok = rec.drops.Load() == rec.seen && p == rec.policy && p.blockedUntil(key) == 0; !ok {
			return key.word
		}
		a := p.line()
		if a == nil {
			r.node.Units = used
			return p.stamper().takeOut(key, r.stamp, uint64(units-used))
		}
		if ok = a.full(key.word) >= last; !ok {
			return key.word
		}
		r.node.Span, r.node.Least = span, least // whatever an attempt before has made of them
		rec.Changed(&r.node)
		now := max(l.now(), 0)
		if given := rec.shrink(&r.node, used, now); given > 0 {
			return p.forward(key.word, now, given)
		}
		return key.word
	})
	return ok
}
