package sluice

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/ledger"
)

// WaitAll makes all of the charges for one turn, or none, and returns a reservation for each, in their
// order, when the turn begins: LLM APIs, say, limit requests and tokens together. The turn is the
// latest of the turns that Reserve would give for each key by itself. All charges are made at one
// instant: no other call sees only a part of them. If the charges were exact, drop the
// reservations, but give back units of InFlight keys by them.
//
// Charges for the same key add up, and have one turn; if their Keys bring different limits, all go by
// the limit of the first. A charge that only Shadow lets pass has a reservation with WouldDeny and does not
// keep the other charges waiting. A key whose own turn is sooner is not charged for the time between,
// and no other call can use that time. The turn moves up as that of Wait does, when all of its keys can be charged sooner,
// for the first call that waits for a key. The turns of calls behind it stay later than they need be until then, for
// new calls with a deadline, unless all wait for one key only; and all stay, if a charge with cost 0 has to wait for its turn.
//
// If one of the keys has no turn before the context's deadline, WaitAll at once returns the error that
// Reserve would return for the first such charge. If the context is done first, it returns the context's
// error. In both cases it leaves nothing charged.
//
// If one of the keys is blocked, or its algorithm has no turns to reserve, WaitAll waits until
// all keys could be charged at once, if nothing else happens to them, and asks again, as Wait
// does, and when units of an InFlight key come back: the order of waiting calls is then not determined. It
// does the same if a key is blocked when the turn begins. A denial while it waits blocks no key, and is not counted.
//
// Concurrent calls are safe, in any order of the keys. Without charges, the turn begins now.
func WaitAll(ctx context.Context, charges ...Charge) ([]*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for {
		woken, stop := listenAll(ctx, charges)
		j := newJoint(charges, patience(ctx))
		all, err := j.reserve()
		switch err {
		case nil:
			if err = j.awaitAll(ctx, all); err != nil {
				for _, r := range all {
					r.Cancel()
				}
				all = nil
			}
			if err == ErrBlocked {
				err = errNotYet
			}
		case errNotYet:
			if ended := j.slowest.lim.nap(ctx, woken, after(j.slowest.now, j.delay)); ended != nil {
				err = ended
			}
		}
		stop()
		if err == errNotYet {
			continue
		}
		if err == nil || err != ctx.Err() {
			j.count(err)
		}
		return all, err
	}
}

func listenAll(ctx context.Context, charges []Charge) (woken context.Context, stop func()) {
	var stops []func()
	for _, c := range charges {
		if l := c.Key.lim.made(); l.holds() {
			var stop func()
			ctx, stop = l.awaiting.listen(ctx, c.Key.id)
			stops = append(stops, stop)
		}
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// awaitAll returns when the turn of all begins, or an error if a key is blocked then. It does
// not wait for a charge under Shadow, which has a turn of its own.
func (j *joint) awaitAll(ctx context.Context, all []*Reservation) error {
	if j.delay == 0 {
		return nil
	}
	for _, r := range all {
		if !r.lim.shadow {
			j.waiter.all = append(j.waiter.all, r)
		}
	}
	if err := j.waiter.await(ctx); err != nil {
		return err
	}
	for _, r := range all {
		if !r.lim.shadow && r.lim.blocked(r.id) {
			return ErrBlocked
		}
	}
	j.waiter.leave()
	for _, r := range all {
		r.begins = min(r.begins, max(r.lim.now(), 0))
	}
	return nil
}

// count counts the charges as Reserve would count each of them. If there is no error, all are
// admitted; else the charges with an error of their own are denied.
func (j *joint) count(err error) {
	for i, c := range j.charges {
		switch l := c.Key.lim; {
		case j.errs[i] != nil:
			l.refuse(c.Key.id, "", c.Cost)
		case err == nil:
			l.admit(c.Key.id, c.Cost)
		}
	}
}

// errNotYet says that the caller should make the charges again, later.
var errNotYet = errors.New("not yet")

// A joint is an attempt of a WaitAll, while it is being made.
type joint struct {
	transaction
	maxWait time.Duration
	froms   []uint64        // the full tick after which each claim is charged
	delays  []time.Duration // of each claim by itself
	errs    []error         // of each charge
	delay   time.Duration   // of all
	slowest *claim          // the claim with that delay
	asks    bool            // there is a claim that is blocked or without turns, whose delay says when to ask again
	first   int             // the first charge that keeps the others from being made, or -1
	waiter  *waiter         // if there is a delay
}

func newJoint(charges []Charge, maxWait time.Duration) *joint {
	n := len(charges)
	t := transaction{charges: charges, space: make([]claim, n), same: make(chain, n), records: make([]*ledger.Record, n)}
	return &joint{transaction: t, maxWait: maxWait, errs: make([]error, n)}
}

// reserve makes the charges, and neither counts nor waits. It returns errNotYet if the caller has to
// call it again after the delay.
func (j *joint) reserve() (all []*Reservation, err error) {
	if len(j.charges) == 0 {
		return nil, tooLate(0, j.maxWait)
	}
	defer j.releaseRecords()
	j.run(func() step {
		if !j.locked {
			return lockThem
		}
		j.judge()
		switch {
		case j.first >= 0:
			err = j.errs[j.first]
		case j.asks && j.delay > 0:
			err = errNotYet
		case !j.ready():
			return trackNew
		default:
			all = j.charge()
		}
		return done
	})
	return all, err
}

// judge finds the turn of all claims, whose keys are held.
func (j *joint) judge() {
	j.first, j.delay, j.slowest, j.asks = -1, 0, nil, false
	j.froms, j.delays = make([]uint64, j.n), make([]time.Duration, j.n)
	for i := range j.claims() {
		c := &j.space[i]
		from, delay, err := j.turn(i)
		if !c.lim.shadow && (err == ErrBlocked || c.turnless()) {
			j.asks = true
			if err == ErrBlocked {
				delay = until(c.policy.blockedUntil(c.state), c.now)
				err = tooLate(delay, j.maxWait)
			}
		}
		j.froms[i], j.delays[i] = from, delay
		for k := range j.same.of(c) {
			j.errs[k] = err
		}
		switch {
		case c.lim.shadow:
		case err == nil && delay > j.delay:
			j.delay, j.slowest = delay, c
		case err != nil && (j.first < 0 || c.index < j.first):
			j.first = c.index
		}
	}
	for i := range j.claims() {
		if c := &j.space[i]; j.first < 0 && !c.lim.shadow && c.slot != nil && c.policy.bucket() != nil && !c.policy.unlimited() {
			if after(c.now, j.delay) > math.MaxInt64 {
				j.first, j.errs[c.index] = c.index, ErrWouldExceedDeadline
			}
		}
	}
}

// turn returns the turn of the i-th claim by itself.
func (j *joint) turn(i int) (from uint64, delay time.Duration, err error) {
	c, n := &j.space[i], 0
	for k := range j.same.of(c) {
		if j.charges[k].Cost > 0 {
			n++
		}
	}
	p := c.policy
	switch {
	case c.cost < 0:
		return 0, 0, ErrNegativeCost
	case p.unlimited():
		if p.blockedUntil(c.state) > uint64(c.now) {
			return 0, 0, ErrBlocked
		}
		return 0, 0, tooLate(0, j.maxWait)
	case p.burst == 0 || c.unfit():
		return 0, 0, ErrCostExceedsBurst
	case c.noRoom == refused:
		return 0, 0, ErrNoRoom
	case c.noRoom == waved:
		return 0, 0, tooLate(0, j.maxWait)
	case c.turnless():
		delay, err = j.retry(c)
		return 0, delay, err
	case n > 0 && !j.records[i].HasRoom(c.now, maxReservations-n+1):
		return 0, 0, ErrTooManyReservations
	}
	return p.turn(c.word, c.now, int(c.cost), j.maxWait)
}

// retry returns when a claim whose algorithm has no turns is to ask again, or 0 if it would
// be admitted now. Under Shadow no call waits, so a claim that is denied now has an error.
func (j *joint) retry(c *claim) (time.Duration, error) {
	switch c.until = c.policy.blockedUntil(c.state); {
	case c.until > uint64(c.now):
		return 0, ErrBlocked
	case c.slot == nil:
		return 0, nil // the key is fresh
	}
	next, ok, _, wait, _ := c.policy.judge(c.state, c.now, c.units(), false)
	switch {
	case ok:
		c.next = next
		return 0, nil
	case c.lim.shadow:
		return 0, ErrWouldExceedDeadline
	case c.lim.holds():
		return wait, nil // units may come back before
	}
	return wait, tooLate(wait, j.maxWait)
}

// turnless reports whether the limit of the claim keeps states, but its algorithm has no turns.
func (c *claim) turnless() bool { return !c.policy.unlimited() && c.policy.bucket() == nil }

// ready reports whether all keys that are to be charged have a word. A charge that passes
// unmade under Shadow needs none.
func (j *joint) ready() bool {
	for i := range j.claims() {
		if c := &j.space[i]; j.errs[c.index] == nil && !c.ready() {
			return false
		}
	}
	return true
}

func (j *joint) charge() []*Reservation {
	rs := reservations{all: make([]*Reservation, len(j.charges)), charges: j.charges, same: j.same}
	if j.delay > 0 {
		j.waiter = newWaiter()
	}
	for i := range j.claims() {
		c := &j.space[i]
		begins := int64(min(after(c.now, j.delay), math.MaxInt64))
		switch {
		case j.errs[c.index] != nil: // all charges of the key have the same
			for k := range j.same.of(c) {
				rs.all[k] = &Reservation{lim: c.lim, id: c.id, cost: j.charges[k].Cost, wouldDeny: true}
				rs.all[k].settled.Store(true)
			}
		case c.slot != nil && c.policy.bucket() != nil && !c.policy.unlimited():
			j.takeTurns(rs.all, i)
		default:
			before := c.word
			if c.cost > 0 && c.slot != nil && !c.policy.unlimited() {
				c.word = c.policy.commit(c.state, c.next, c.now, c.units())
			}
			rs.write(c, j.records[i], before)
		}
		for k := range j.same.of(c) {
			r := rs.all[k]
			if r.begins = begins; r.rec == nil { // it has no time of its own
				r.node.At = begins
			}
		}
	}
	return rs.all
}

// takeTurns makes the reservations for the charges of the i-th claim, and charges its key for the turns.
func (j *joint) takeTurns(all []*Reservation, i int) {
	c, from := &j.space[i], j.froms[i]
	waits := j.waiter != nil && !c.lim.shadow
	seat := seat{lim: c.lim, id: c.id, rec: j.records[i]}
	at := after(c.now, max(j.delay, j.delays[i])) // a claim of Shadow takes its own turn
	for k := range j.same.of(c) {
		r := &Reservation{lim: c.lim, id: c.id, cost: j.charges[k].Cost}
		all[k] = r
		r.node.At = int64(min(at, math.MaxInt64))
		switch {
		case r.cost == 0:
		case at > math.MaxInt64:
			r.wouldDeny = true
			r.settled.Store(true)
		default:
			if waits && seat.nodes == nil {
				r.node.Wake = j.waiter.wake // of the first one of the key
			}
			next := r.chargeTurn(c.policy, c.word, from, c.now)
			rec := seat.rec
			r.enter(rec, c.policy, rec.Drops(), from)
			if seat.nodes = append(seat.nodes, &r.node); waits && j.n == 1 {
				rec.Free(&r.node)
			}
			c.word = next
			from = c.policy.bucket().full(next)
		}
	}
	if waits {
		j.waiter.sit(seat)
	}
}
