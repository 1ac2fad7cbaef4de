package redistier

import (
	"fmt"

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
	if s.decides() == Closed || t.what == whatExtend {
		_, _, err := s.fallback(asked{failed: w.asked.failed}, &takeCall{request: request{plan: t.plan, n: 1}}, w.subject)
		if err == nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, w.asked.failed)
		}
		return StoreResult{Err: err}
	}
	again, err := lane.repeats(&t.request)
	var receipt *sluice.Reservation
	if err == nil && !again && s.decides() == LocalShare {
		s.leases.warmKey(w.subject)
		receipts := make([]*sluice.Reservation, 1)
		if !sluice.TakeAllReceipts(receipts, nil, sluice.Charge{Key: w.subject.share(t.plan), Cost: int(t.n)}).Allowed {
			t.charges = false
			out.Decision, out.Source, out.Err = s.fallback(w.asked, t, w.subject)
			out.Count = s.shareCount(w, &out.Decision)
			return out
		}
		receipt = receipts[0]
	}
	if err == nil && !again {
		if again, err = lane.hold(w.asked.group, &t.request, receipt); again || err != nil {
			receipt.Cancel()
		} else {
			s.stats.unshared.Add(uint64(t.n))
		}
	}
	if err != nil {
		return StoreResult{Err: err}
	}
	look := *t
	look.k, look.charges, look.cost = 0, false, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	out.Decision.Allowed, out.Decision.RetryAfter = true, 0
	out.Held, out.Again, out.Count = int(t.n), again, s.shareCount(w, &out.Decision)
	return out
}

// settleHere settles a hold of the share, if the call is of one.
func (s *Store) settleHere(w *storeCall, call *StoreCall) bool {
	lane := s.laneOf(&w.takeCall.request)
	if lane == nil {
		return false
	}
	of, used, again, err := lane.settleHold(&w.takeCall.request, call.Remember > 0)
	if of == nil || err != nil {
		*w.out = StoreResult{Err: err, HoldID: call.HoldID}
		return of != nil
	}
	of.share.Settle(int(used)) // the first time
	*w.out = StoreResult{Decision: w.subject.share(w.plan).Peek(0), Source: FromFallback, HoldID: call.HoldID, Held: int(of.n), Again: again}
	w.out.Capped = !again && used < w.takeCall.n
	w.out.Count = s.shareCount(w, &w.out.Decision)
	return true
}

// notYet returns the error of a call of a hold: Redis knew none of the share that it had not been told of yet.
func (w *storeCall) notYet(err error) error {
	if err == ErrNotHeld && w.owed {
		return fmt.Errorf("%w: Redis is being told of the hold", ErrUnavailable)
	}
	return err
}
