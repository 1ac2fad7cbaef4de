package sluice

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"
)

// The errors of Wait and Reserve.
var (
	// ErrCostExceedsBurst: no wait helps, since the cost is above the burst, or the limit is
	// DenyAll.
	ErrCostExceedsBurst = errors.New("sluice: the cost exceeds the burst")
	// ErrNegativeCost: a cost must be at least 0.
	ErrNegativeCost = errors.New("sluice: the cost is negative")
	// ErrWouldExceedDeadline: the wait would take longer than the caller can wait. It matches
	// context.DeadlineExceeded, too.
	ErrWouldExceedDeadline error = deadlineError{}
	// ErrQueueFull: a LeakyBucket has no room for the cost in its queue.
	ErrQueueFull = errors.New("sluice: the queue is full")
	// ErrBlocked: the key is blocked, and what comes after its block cannot be reserved.
	ErrBlocked = errors.New("sluice: the key is blocked")
	// ErrNoRoom: the key is new, and there is no room for it at MaxKeys under DenyNew.
	ErrNoRoom = errors.New("sluice: there is no room for a new key")
	// ErrNotReservable: the algorithm has no slots to hand out. GCRA, TokenBucket with a
	// continuous refill and LeakyBucket have.
	ErrNotReservable = errors.New("sluice: the algorithm has no slots to reserve")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "sluice: the wait would exceed the deadline" }
func (deadlineError) Is(target error) bool {
	return target == context.DeadlineExceeded
}

// A Reservation is a charge that has been made for a time to come. Its methods can be
// called concurrently, in any order.
type Reservation struct {
	lim   *Limiter
	id    uint64
	cost  int
	delay time.Duration

	// The rest is guarded by the ledger, which says what ahead and end are.

	at         int64 // when the slot begins
	units      int   // what counts of the cost
	ahead, end uint64
	listed     bool // the ledger has it
	settled    bool
}

// Delay is how long after Reserve the slot begins, by the limiter's clock: wait that long,
// and go ahead.
func (r *Reservation) Delay() time.Duration { return r.delay }

// Cancel gives the whole charge back. It is Settle(0).
func (r *Reservation) Cancel() { r.Settle(0) }

// Settle replaces the cost of the reservation by what was used. What was not used is given
// back, unless it has come back by itself meanwhile; what was used beyond the cost is
// charged, as a debt if the bucket does not hold it. Only the first Settle or Cancel does
// anything. An actual below 0 counts as the cost.
//
// What is given back is at most what would be left without the reservation, whatever other
// calls have been made, but for Refund of what the reservation has charged. Where the key
// would have been fresh for a while without the reservation, it is less by that while.
// Slots that others have reserved stay where they are: what is missing between the slots of
// others is not handed out again beside them, where it would exceed the limit, as long as
// they are to come; it is given back if they are cancelled, too.
func (r *Reservation) Settle(actual int) { r.lim.settle(r, actual) }

// Reserve charges cost units to key for a slot to come, and returns a receipt; or an
// error, having charged nothing. The slots of a key are handed out in order of arrival.
//
// GCRA and TokenBucket give the first slot at which the call would be admitted, so bursts
// stay bursts. LeakyBucket is a queue that holds the burst: it spaces calls evenly, each
// beginning when the ones before have drained, and has ErrQueueFull for what does not fit
// in. ErrWouldExceedDeadline says that the slot is more than maxWait away. The other
// algorithms have ErrNotReservable; further errors are ErrCostExceedsBurst,
// ErrNegativeCost, ErrBlocked and ErrNoRoom. A cost of 0 charges nothing, and asks for the
// slot of one unit.
//
// A key with reservations denies calls until its slots have passed. Under Shadow there is
// no delay, and no error but ErrNotReservable: what has no slot is not charged. A Reserve
// that fails is counted as denied, but does not block.
func (l *Limiter) Reserve(key string, cost int, maxWait time.Duration) (*Reservation, error) {
	return l.reserve(l.hash.string(key), key, cost, maxWait)
}

// Reserve is Limiter.Reserve for this key.
func (k Key) Reserve(cost int, maxWait time.Duration) (*Reservation, error) {
	return k.lim.reserve(k.id, "", cost, maxWait)
}

func (l *Limiter) reserve(id uint64, name string, cost int, maxWait time.Duration) (*Reservation, error) {
	r := &Reservation{lim: l, id: id, cost: cost}
	err := l.tryReserve(r, max(l.now(), 0), max(maxWait, 0))
	switch {
	case err == nil:
		if l.admit(id, cost); l.shadow {
			r.delay = 0
		}
		return r, nil
	case err == ErrNotReservable:
		return nil, err
	}
	if l.refuse(id, name, cost); l.shadow {
		return &Reservation{lim: l, id: id, settled: true}, nil
	}
	return nil, err
}

// admit counts a call that is admitted.
func (l *Limiter) admit(id uint64, cost int) {
	if l.tally != nil && cost > 0 {
		l.tally.count(id>>l.shift, admitted)
	}
}

// refuse counts a call that is not admitted.
func (l *Limiter) refuse(id uint64, name string, cost int) {
	l.deny(id, name, cost)
	if l.tally != nil && cost != 0 {
		l.tally.count(id>>l.shift, denied)
	}
}

// A bucket is an algorithm whose word is a full tick, in some form.
type bucket interface {
	algorithm
	full(word uint64) uint64
	pack(full, now uint64) uint64
	slots() (s *schedule, queue bool)
}

// bucket returns the policy's bucket, or nil.
func (p *policy) bucket() bucket {
	b, _ := p.alg.(bucket)
	return b
}

var errStartOver = errors.New("start over")

// tryReserve makes the charge of r, and enters r in the ledger.
func (l *Limiter) tryReserve(r *Reservation, now int64, maxWait time.Duration) error {
	lg := l.ledger(r.id)
	lg.mu.Lock()
	defer lg.mu.Unlock()
	err := errStartOver
	for err == errStartOver {
		o := l.owner(r.id)
		err = o.reserveHere(r, lg, o.policyOf(r.id), now, maxWait)
	}
	return err
}

// reserveHere makes the charge of r under p, if the key is this limiter's.
func (l *Limiter) reserveHere(r *Reservation, lg *ledger, p *policy, now int64, maxWait time.Duration) error {
	switch {
	case r.cost < 0:
		return ErrNegativeCost
	case p.unlimited():
		return l.reserveUnlimited(p, r.id, now)
	case !p.fits(max(r.cost, 1)):
		return ErrCostExceedsBurst
	case p.bucket() == nil:
		return ErrNotReservable
	}
	err := errStartOver
	tracked := l.updateHere(r.id, func(q *policy, word uint64, tail []atomic.Uint64) uint64 {
		if q == p {
			word, err = r.charge(p, word, tail, now, maxWait)
		}
		return word
	})
	if tracked {
		if err == nil && r.cost > 0 {
			lg.add(r, now)
		}
		return err
	}
	if r.cost == 0 && l.owns(r.id) {
		return nil
	}
	switch _, out := l.insert(l.shardOf(r.id), p, r.id, now, 0, nil); out {
	case waved:
		return nil
	case refused:
		return ErrNoRoom
	}
	return errStartOver
}

func (l *Limiter) reserveUnlimited(p *policy, id uint64, now int64) error {
	switch until, ok := l.blockOf(p, id); {
	case !ok:
		return errStartOver
	case until > uint64(now):
		return ErrBlocked
	}
	return nil
}

// charge returns the word after the reservation, and sets where that is.
func (r *Reservation) charge(p *policy, word uint64, tail []atomic.Uint64, now int64, maxWait time.Duration) (uint64, error) {
	word, blockedUntil := p.admissible(word, tail, now)
	if blockedUntil > 0 {
		return word, ErrBlocked
	}
	b := p.bucket()
	s, queue := b.slots()
	t := s.tick(now)
	from := max(b.full(word), t)
	need := uint64(max(r.cost, 1)) * s.unit // <= burst
	if queue && from-t > s.burst-need {
		return word, ErrQueueFull
	}
	slot := from
	if !queue {
		slot = max(from+need, t+s.burst) - s.burst
	}
	at := s.earliest(slot)
	if at > math.MaxInt64 || time.Duration(int64(at)-now) > maxWait {
		return word, ErrWouldExceedDeadline
	}
	r.at, r.delay = int64(at), max(time.Duration(int64(at)-now), 0)
	// A call that begins at the nanosecond begins at its tick, which may be after the slot.
	r.units, r.ahead, r.end = r.cost, from, max(from, s.tick(r.at))+need
	if r.end > s.most {
		return word, ErrWouldExceedDeadline
	}
	if r.cost == 0 {
		return word, nil
	}
	return b.pack(r.end, t), nil
}

// settle ends the reservation with what was used.
func (l *Limiter) settle(r *Reservation, actual int) {
	lg := l.ledger(r.id)
	lg.mu.Lock()
	defer lg.mu.Unlock()
	if r.settled {
		return
	}
	r.settled = true
	now := max(l.now(), 0)
	if actual > r.cost {
		l.owe(r.id, now, actual-r.cost)
	}
	if !r.listed {
		return
	}
	if actual >= 0 && actual < r.cost && !l.giveBack(lg, r, actual, now) {
		lg.forget(r.id)
		return
	}
	if r.units == 0 || r.at <= now {
		lg.drop(r.id, func(other *Reservation) bool { return other == r })
	}
}

// giveBack lets r count for no more than what was used. It fails if the key has no longer
// what had been charged: it is blocked, or has been dropped.
func (l *Limiter) giveBack(lg *ledger, r *Reservation, used int, now int64) (ok bool) {
	b := l.ownersPolicy(r.id).bucket() // stays the policy while the ledger is locked
	if b == nil {
		return false
	}
	s, _ := b.slots()
	t := s.tick(now)
	last := lg.lastEnd(r.id)
	given := lg.shrink(r, used, s, t)
	l.update(r.id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
		if ok = p.blockedUntil(word, tail) == 0; !ok {
			return word
		}
		full := b.full(word)
		if ok = full >= last; !ok || given == 0 {
			return word
		}
		return b.pack(full-given, t)
	})
	return ok
}

// owe charges units of id whatever there is, up to what a word can tell.
func (l *Limiter) owe(id uint64, now int64, units int) {
	for {
		tracked := l.update(id, func(p *policy, word uint64, tail []atomic.Uint64) uint64 {
			word, until := p.admissible(word, tail, now)
			b := p.bucket()
			if until > 0 || b == nil || p.unlimited() {
				return word
			}
			s, _ := b.slots()
			t := s.tick(now)
			from := max(b.full(word), t)
			ticks, _ := mulDiv(uint64(units), s.unit, 1)
			return b.pack(from+min(ticks, s.most-from), t)
		})
		o := l.owner(id)
		p := o.policyOf(id)
		if tracked || p.burst == 0 {
			return
		}
		if _, out := o.insert(o.shardOf(id), p, id, now, 0, nil); out == waved || out == refused {
			return
		}
	}
}
