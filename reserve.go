package sluice

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/ends"
	"github.com/sluice-go/sluice/internal/ledger"
)

// Reserve charges cost units to the key for a turn to come, and returns a reservation. If it returns
// an error, it has charged nothing. The turns of a key are handed out in order of arrival.
// It takes no context, since it does not wait: to wait, call Wait, or wait for the Delay
// and cancel if the context is done first.
//
// GCRA and TokenBucket give the first turn at which the call would be admitted, so bursts
// stay bursts. LeakyBucket is a queue that holds the burst, with the units that are draining: it
// spaces calls evenly, each beginning when the calls before have drained, and returns ErrQueueFull
// for a cost that does not fit in. ErrWouldExceedDeadline says that the turn is more than maxWait
// away, as any turn is for a negative maxWait; ErrTooManyReservations, that the key has 65,536
// open reservations and waiting calls. The other algorithms return ErrNotReservable; further errors are
// ErrCostExceedsBurst, ErrNegativeCost, ErrBlocked and ErrNoRoom. A cost of 0 charges nothing,
// and asks for the turn of one unit.
//
// A reservation that is never settled or cancelled takes some 300 bytes until its units have come back,
// or its key has been dropped, and another reservation or a sweep finds that. A key with
// reservations denies calls until its turns have passed. A Block does not cancel a
// reservation: the caller may go ahead although the key has been blocked meanwhile.
// Under Shadow there is no delay, and the only error is ErrNotReservable: see
// Reservation.WouldDeny. A Reserve that fails is counted as denied, but does not block.
func (k Key) Reserve(cost int, maxWait time.Duration) (*Reservation, error) {
	l, id := k.lim.made(), k.id
	r := &Reservation{lim: l, id: id, cost: cost}
	now := max(l.now(), 0)
	err := k.tryReserve(r, now, maxWait)
	switch {
	case err == nil:
		l.admit(id, cost)
		if r.begins = now; !l.shadow {
			r.begins, r.begun = max(now, r.node.At), r.node.At <= now
		}
		return r, nil
	case err == ErrNotReservable:
		return nil, err
	}
	if l.refuse(id, "", cost); l.shadow {
		r = &Reservation{lim: l, id: id, begins: now, wouldDeny: true}
		r.settled.Store(true)
		return r, nil
	}
	return nil, err
}

// maxReservations bounds the memory that callers who reserve and never settle can take for one key: some 20 MB.
const maxReservations = 1 << 16

func (l *Limiter) admit(id uint64, cost int) {
	if cost > 0 {
		l.count(id, admitted)
	}
}

func (l *Limiter) refuse(id uint64, name string, cost int) {
	l.deny(id, name, cost)
	switch {
	case cost == 0 || l.tally == nil:
	case l.blocked(id):
		l.count(id, blocked)
	default:
		l.count(id, denied)
	}
}

// errNoRecord says that the charge needs the key's record.
var errNoRecord = errors.New("no record")

// tryReserve makes the charge of r, and enters r in the ledger.
func (k Key) tryReserve(r *Reservation, now int64, maxWait time.Duration) (err error) {
	for done := false; !done; {
		// No record is locked here, since policyFor may have to put the key under another policy.
		done, err = k.lim.reserveUnder(k.policyFor(true), r, now, maxWait)
	}
	return err
}

// reserveUnder is tryReserve under p. done is false if p is not the key's policy, or if the
// key has become tracked in between.
func (l *Limiter) reserveUnder(p *policy, r *Reservation, now int64, maxWait time.Duration) (done bool, err error) {
	lg := l.ledgers.Of(r.id)
	rec := lg.Find(r.id)
	if rec == nil {
		if done, err = l.reserveHere(nil, r, p, now, maxWait); err != errNoRecord {
			return done, err
		}
	}
	if rec == nil || !rec.Lock() {
		rec = lg.LockRecord(r.id, now)
	}
	defer rec.Release()
	if r.cost > 0 && !rec.HasRoom(now, maxReservations) {
		return true, ErrTooManyReservations
	}
	return l.reserveHere(rec, r, p, now, maxWait)
}

// reserveHere is reserveUnder with the key's record. Without one it makes no charge.
func (l *Limiter) reserveHere(rec *ledger.Record, r *Reservation, p *policy, now int64, maxWait time.Duration) (done bool, err error) {
	r.node.At = 0 // an earlier attempt may have set it
	switch err = p.never(r.cost); {
	case err != nil:
		return true, err
	case p.unlimited():
		return l.reserveUnlimited(p, r.id, now, maxWait)
	case p.bucket() == nil:
		return true, ErrNotReservable
	}
	var from, drops uint64
	tracked, same := l.updateUnder(p, r.id, func(_ *policy, key state) (next uint64) {
		if rec != nil {
			drops = rec.Drops()
		}
		if from, next, err = r.charge(p, key.word, now, maxWait); rec == nil && err == nil && r.cost > 0 {
			err, next = errNoRecord, key.word
		}
		return next
	})
	if tracked {
		if same && err == nil && r.cost > 0 {
			r.enter(rec, p, drops, from)
			if r.node.Wake != nil {
				rec.Free(&r.node)
			}
		}
		return same, err
	}
	if at := l.locate(r.id); (r.cost == 0 || maxWait < 0) && at.fresh(p) {
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
	until := uint64(0)
	tracked, done := l.updateUnder(p, id, func(_ *policy, key state) uint64 {
		until = p.blockedUntil(key)
		return key.word
	})
	if !tracked {
		at := l.locate(id)
		done = at.fresh(p)
	}
	if until > uint64(now) {
		return done, ErrBlocked
	}
	return done, tooLate(0, maxWait)
}

// charge returns the word after the reservation, and the full tick before it.
func (r *Reservation) charge(p *policy, word uint64, now int64, maxWait time.Duration) (from, next uint64, err error) {
	from, delay, err := p.turn(word, now, r.cost, maxWait)
	if err != nil {
		return from, word, err
	}
	r.node.At = now + int64(delay)
	return from, r.chargeTurn(p, word, from, now), nil
}

func tooLate(delay, maxWait time.Duration) error {
	if delay > maxWait {
		return ErrWouldExceedDeadline
	}
	return nil
}

// turn returns how long after now the first turn of a key with the word begins, and the full
// tick before it. The error says whether the turn is too late.
func (p *policy) turn(word uint64, now int64, cost int, maxWait time.Duration) (from uint64, delay time.Duration, err error) {
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
	delay = max(time.Duration(int64(at)-now), 0)
	return from, delay, tooLate(delay, maxWait)
}

// chargeTurn returns the word after the reservation, whose turn has been found.
func (r *Reservation) chargeTurn(p *policy, word, from uint64, now int64) (next uint64) {
	if r.node.Units = r.cost; r.cost == 0 {
		return word
	}
	b := p.bucket()
	s, _ := b.turns()
	// A call that begins at a nanosecond begins at the tick of that, which may be after the turn. It ends
	// within a burst of either, and so by the last tick that a word can hold.
	return b.pack(s.debit(from, r.node.At, r.cost), s.tick(now))
}

// Wait charges cost units to key, and returns when they are admitted. If it returns an
// error, it leaves nothing charged. It fails at once, with an error of Reserve, if the cost
// can never be admitted or not before the context's deadline. If the context is done first, it
// returns the context's error: a charge made for a turn to come is then given back, as by
// Reservation.Cancel, and the call counts as neither admitted nor denied. Wait starts no
// goroutine.
//
// Under InFlight, where other calls give units back at any time, it waits for them until the context is done.
//
// If the algorithm has turns to reserve, Wait takes one, in order of arrival. When a call that waits is cancelled, or a
// reservation is settled for less or the key is refunded, the calls that wait behind it move up, so a turn that nobody
// will use goes to the next who waits: callers who give up cost the others nothing. A call cannot
// move up past a turn that Reserve has given. Whether a deadline can be met is judged by the turn at the time of the
// call, as if nobody gave up. Under the other
// algorithms, and for a blocked key, it waits for the RetryAfter and asks again; the order of
// waiting calls is then not determined. A call whose key is blocked when its turn begins also asks
// again: the block has taken the turn. A cost of 0 waits until one unit would be admitted.
//
// SetLimit, Reset and Unblock do not move calls that wait already, nor does Refund if they have no turn. A turn
// then stays where it is, also under DenyAll; a call without a turn asks again at the time it had planned,
// and goes by the new state then. (Under InFlight, Reset and Refund wake calls that wait.) Later calls go by the new state at once, and may be admitted first.
//
// Time is the limiter's: with a ManualClock the wait ends when the clock has been moved far
// enough. With any other clock, Wait reads the clock again after as much real time as was left
// by that clock. The context's deadline is always in real time.
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	return l.made().key(l.hash.String(key)).wait(ctx, key, cost)
}

// Wait is Limiter.Wait for this key.
func (k Key) Wait(ctx context.Context, cost int) error {
	k.lim.made()
	return k.wait(ctx, "", cost)
}

func (k Key) wait(ctx context.Context, name string, cost int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := k.await(ctx, cost)
	if err == nil || err == ctx.Err() {
		return err
	}
	if k.lim.refuse(k.id, name, cost); k.lim.shadow {
		return nil
	}
	return err
}

// errHasTurns says that a call is not admitted now, but can take a turn.
var errHasTurns = errors.New("has turns")

// await waits; the caller counts failures.
func (k Key) await(ctx context.Context, cost int) error {
	woken, stop := ctx, func() {}
	defer func() { stop() }()
	for {
		now := max(k.lim.now(), 0)
		wait, err := k.attempt(now, cost)
		if err == errHasTurns {
			if err = k.awaitTurn(ctx, cost); err == ErrBlocked {
				continue
			}
		}
		if err != nil || wait == 0 {
			return err
		}
		units := k.lim.holds() && !k.lim.blocked(k.id) // which may come back sooner
		switch {
		case k.lim.shadow || !units && wait > patience(ctx):
			return ErrWouldExceedDeadline
		case units && woken == ctx:
			woken, stop = k.lim.awaiting.listen(ctx, k.id) // and then it has to ask again: see awaiting
			continue
		}
		if err = k.lim.nap(ctx, woken, after(now, wait)); err != nil {
			return err
		}
		stop()
		woken, stop = ctx, func() {}
	}
}

// patience is how long the caller can wait, less than Never.
func patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), 0)
	}
	return Never - 1
}

func (k Key) awaitTurn(ctx context.Context, cost int) error {
	l, id := k.lim, k.id
	r := &Reservation{lim: l, id: id, cost: cost}
	w := newWaiter()
	if !l.shadow {
		r.node.Wake = w.wake
	}
	now := max(l.now(), 0)
	if err := k.tryReserve(r, now, patience(ctx)); err != nil {
		return err
	}
	if r.node.At > now && !l.shadow {
		if w.all = []*Reservation{r}; r.rec != nil {
			w.sit(seat{l, id, r.rec, []*ends.Node{&r.node}})
		}
		if err := w.await(ctx); err != nil {
			r.Cancel()
			return err
		}
		if l.blocked(id) {
			r.Cancel()
			return ErrBlocked
		}
	}
	l.admit(id, cost)
	r.Settle(cost)
	return nil
}

func (l *Limiter) blocked(id uint64) bool { return l.blockNow(id) > uint64(max(l.now(), 0)) }

// attempt charges a call if it is admitted now, and need not queue. Otherwise it returns
// how long to wait before the next attempt, or that there are turns to wait for.
func (k Key) attempt(now int64, cost int) (wait time.Duration, err error) {
	l, id := k.lim, k.id
	k.act(true, func(p *policy, key state) uint64 {
		key.word, wait, err = p.attempt(key, now, cost)
		return key.word
	}, func(p *policy) (done bool) {
		wait = 0
		if err = p.never(cost); err != nil || p.unlimited() {
			return true
		}
		if cost == 0 {
			at := l.locate(id)
			return at.fresh(p)
		}
		_, out := l.insert(p, id, now, cost, nil, gap{})
		if out == refused {
			err = ErrNoRoom
		}
		return out != retrying
	})
	if err == nil && wait == 0 {
		l.admit(id, cost)
	}
	return wait, err
}

func (p *policy) attempt(key state, now int64, cost int) (next uint64, wait time.Duration, err error) {
	if err = p.never(cost); err != nil {
		return key.word, 0, err
	}
	if p.unlimited() {
		return key.word, until(max(p.blockedUntil(key), uint64(now)), now), nil
	}
	b, at := p.bucket(), p.blockedUntil(key)
	if b != nil && at == 0 {
		if s, queue := b.turns(); queue && b.full(key.word) > s.tick(now) {
			return key.word, 0, errHasTurns
		}
	}
	next, ok, _, wait, _ := p.judge(key, now, max(cost, 1), false)
	switch {
	case ok && cost == 0:
		key, _ = p.admissible(key, now) // a block that has ended is gone
		return key.word, 0, nil
	case ok:
		return p.commit(key, next, now, cost), 0, nil
	case b != nil && at <= uint64(now):
		return key.word, 0, errHasTurns
	}
	return key.word, wait, nil
}
