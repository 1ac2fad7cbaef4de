package redislimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// fallbackHold answers a call of a hold that Redis has not answered.
func (s *Store) fallbackHold(w *storeCall) (out StoreResult) {
	t, lane := &w.takeCall, w.asked.lane
	if w.asked.failed == ErrClosed {
		return StoreResult{Err: ErrClosed}
	}
	if t.what == whatSettle {
		return s.settleLater(w)
	}
	t.giveBack(w.subject)
	if s.decides() == FailClosed || t.what == whatExtend {
		return StoreResult{Err: s.unanswered(w.asked.failed, w)}
	}
	again, err := lane.repeats(&t.request)
	var reservation *sluice.Reservation
	if err == nil && !again && s.decides() == LocalShare {
		s.leases.warmKey(w.subject)
		reservations := make([]*sluice.Reservation, 1)
		if w.letsPass() {
			reservations[0] = w.holdAnyhow()
		} else if !sluice.TakeAllReservations(reservations, nil, sluice.Charge{Key: w.subject.share(t.plan), Cost: int(t.n)}).Allowed {
			t.charges = false
			out.Decision, out.Source, out.Err = s.fallback(w.asked, t, w.subject)
			out.Count = s.shareCount(w)
			return out
		}
		reservation = reservations[0]
	}
	if err == nil && !again {
		if again, err = lane.hold(w.asked.group, &t.request, w.none, reservation); again || err != nil {
			reservation.Cancel()
		} else if !w.none {
			s.stats.unshared.Add(uint64(t.n))
		}
	}
	if err != nil {
		return StoreResult{Err: err}
	}
	look := *t
	look.k, look.charges, look.cost = 0, false, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	if out.Held, out.Again, out.Count = int(t.n), again, s.shareCount(w); w.none {
		out.Held = 0
	}
	out.Decision.Allowed, out.Decision.RetryAfter = !w.none, 0
	return out
}

// unanswered counts a call that nobody decides, and returns its error.
func (s *Store) unanswered(failed error, w *storeCall) error {
	_, _, err := s.fallback(asked{failed: failed}, &takeCall{request: request{plan: w.plan, n: 1}}, w.subject)
	if err == nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, failed)
	}
	return err
}

// settleFor is how long Redis is told of a settlement again and again, if the call has no TTL.
const settleFor = time.Minute

var errManySettlements = errors.New("redislimit: as many settlements wait for Redis as StoreConfig.MaxKeys allows")

// settleLater has Redis told of a settlement that it has not answered.
func (s *Store) settleLater(w *storeCall) (out StoreResult) {
	life := w.call.TTL
	if life == 0 {
		life = settleFor
	}
	if err := w.asked.lane.settlesLater(&w.takeCall.request, life); err != nil {
		return StoreResult{Err: err}
	}
	look := w.takeCall
	look.op, look.cost = opAdmit, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	out.Count = s.shareCount(w)
	return out
}

// letsPass reports whether the call of a hold is made whether there is room or not.
func (w *storeCall) letsPass() bool {
	return w.op == opHold && w.what != whatSettle && (w.n == 0 || w.flags&(flagOver|flagOrNone) != 0)
}

// holdAnyhow charges the share for a call of letsPass. The reservation is nil for a charge above the share, and for none.
func (w *storeCall) holdAnyhow() *sluice.Reservation {
	if w.n == 0 {
		return nil
	}
	share, reservations := w.subject.share(w.plan), make([]*sluice.Reservation, 1)
	if !sluice.TakeAllReservations(reservations, nil, sluice.Charge{Key: share, Cost: int(w.n)}).Allowed {
		if w.none = w.flags&flagOrNone != 0; !w.none {
			share.Debit(int(w.n))
		}
		return nil
	}
	return reservations[0]
}

// A settledHold is the outcome of a settlement of a hold of the share.
type settledHold struct {
	share      *sluice.Reservation
	held, used int64
	again      bool // it was settled before
}

// settled returns the outcome that a settlement has. The error is ErrNotHeld if the hold was settled before, unless with as many units and a
// Remember. The caller holds mu.
func (of *localHold) settled(r *request, remember bool) (settledHold, error) {
	s := settledHold{share: of.share, held: of.n, used: r.n, again: of.ended}
	if !of.told {
		s.used = min(s.used, of.n+r.beyond)
	}
	if s.again && (!remember || of.used != s.used) {
		return s, ErrNotHeld
	}
	return s, nil
}

// settleHolds settles the holds of calls, all or none. It returns none without an error if one is not of the share.
func (l *lane) settleHolds(calls []storeCall) (out []settledHold, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range calls {
		w := &calls[i]
		if i > 0 && calls[0].allAgain && out[0].again {
			out = append(out, settledHold{again: true})
			continue
		}
		of := l.holdOf(&w.request)
		if of == nil {
			return nil, nil
		}
		s, err := of.settled(&w.request, w.call.Remember > 0)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	for i := range calls {
		if r := &calls[i].request; !out[i].again {
			of := l.holdOf(r)
			of.ttl = r.ttl
			if of.told {
				of.beyond = r.beyond
			}
			l.endHold(of, out[i].used, time.Now())
		}
	}
	return out, nil
}

// settleHere settles holds of the share, all or none, if the calls are of such holds.
func (s *Store) settleHere(calls []storeCall) (done bool, err error) {
	if len(calls) == 0 {
		return false, nil
	}
	lane := s.laneOf(&calls[0].request)
	if lane == nil {
		return false, nil
	}
	settled, err := lane.settleHolds(calls)
	for i, of := range settled {
		w := &calls[i]
		s.settleShare(w, &of)
		*w.out = StoreResult{Decision: w.subject.share(w.plan).Peek(0), Source: FromFallback, HoldID: w.id, Held: int(of.held), Again: of.again}
		w.out.Capped = !of.again && of.used < w.n
		w.out.Count = s.shareCount(w)
	}
	return settled != nil, err
}

// settleShare settles a hold of the share. A hold without a reservation has no units, or units above the limit of the share.
func (s *Store) settleShare(w *storeCall, of *settledHold) {
	switch {
	case of.share != nil:
		of.share.Settle(int(of.used)) // the first time
	case of.again || s.decides() != LocalShare:
	case of.used > of.held:
		w.subject.share(w.plan).Debit(int(of.used - of.held))
	default:
		w.subject.share(w.plan).Refund(int(of.held - of.used))
	}
}

// notYet returns the error of a call of a hold: Redis knew none of the share that it had not been told of yet.
func (w *storeCall) notYet(err error) error {
	if err == ErrNotHeld && w.owed {
		return fmt.Errorf("%w: Redis is being told of the hold", ErrUnavailable)
	}
	return err
}
