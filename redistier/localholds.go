package redistier

import (
	"fmt"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// localHolds are the holds that this process has admitted from its share, since Redis did not answer. Only this process
// knows them.
type localHolds struct {
	most int

	mu   sync.Mutex // guards the rest
	open map[holdKey]*localHold
}

type holdKey struct{ key, id string }

// A localHold is a hold of the share.
type localHold struct {
	receipt *sluice.Reservation // nil under Open
	lane    *lane
	units   int64
	late    bool // Redis may have made the hold as well
	lapse   *time.Timer
}

// add notes a hold, which lapses after ttl.
func (h *localHolds) add(k holdKey, of *localHold, ttl time.Duration, back bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) >= h.most {
		return ErrManyHolds
	}
	h.open[k] = of
	of.lapse = time.AfterFunc(ttl, func() {
		if of := h.take(k); of != nil && back {
			of.settle(k.key, 0)
		}
	})
	return nil
}

// of returns an open hold, or nil.
func (h *localHolds) of(k holdKey) *localHold {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open[k]
}

// take takes a hold out, or returns nil.
func (h *localHolds) take(k holdKey) *localHold {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.open[k]
	if of != nil {
		of.lapse.Stop()
		delete(h.open, k)
	}
	return of
}

// end forgets all holds.
func (h *localHolds) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, of := range h.open {
		of.lapse.Stop()
		delete(h.open, k)
	}
}

// settle gives back to the share what was not used, and takes it off what Redis has to be told of.
func (of *localHold) settle(key string, used int64) {
	of.receipt.Settle(int(used))
	if unused := of.units - used; unused > 0 {
		of.lane.disown(key, unused)
	}
}

// disown takes units off what Redis has yet to be told of for a key.
func (l *lane) disown(name string, units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.owed[name]
	if !ok {
		return
	}
	if o.plan.inFlight() {
		last := min(units, o.last)
		o.last -= last
		units -= last
	}
	late := min(units, o.next)
	o.next -= late
	o.units -= min(units-late, o.units)
	l.owed[name] = o
}

// fallbackHold answers a call of a hold that Redis has not answered.
func (s *Store) fallbackHold(w *storeCall) (out StoreResult) {
	t := &w.takeCall
	key := holdKey{t.key, t.id}
	if w.asked.failed == ErrClosed {
		return StoreResult{Err: ErrClosed}
	}
	if t.what == whatSettle {
		return s.settleLater(w)
	}
	if s.policy == Closed || t.what == whatExtend {
		t.giveBack(w.subject)
		_, _, err := s.fallback(asked{failed: w.asked.failed}, &takeCall{request: request{plan: t.plan, n: 1}}, w.subject)
		if err == nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, w.asked.failed)
		}
		return StoreResult{Err: err}
	}
	if s.held.of(key) != nil { // a call that is tried again
		t.what = 0
	}
	late := w.asked.failed == errLate
	of := &localHold{lane: w.asked.lane, units: t.n, late: late}
	if t.what == whatHold && s.policy == LocalShare {
		s.leases.warmKey(w.subject)
		t.giveBack(w.subject)
		receipts := make([]*sluice.Reservation, 1)
		if !sluice.TakeAllReceipts(receipts, nil, sluice.Charge{Key: w.subject.share(t.plan), Cost: int(t.n)}).Allowed {
			t.charges = false
			out.Decision, out.Source, out.Err = s.fallback(w.asked, t, w.subject)
			out.Count = s.shareCount(w, &out.Decision)
			return out
		}
		of.receipt = receipts[0]
	}
	if t.what == whatHold {
		if err := s.held.add(key, of, time.Duration(t.ttl*micro), t.flags&flagGiveBack != 0); err != nil {
			of.receipt.Cancel()
			return StoreResult{Err: err}
		}
		w.asked.lane.admitted(w.asked.group, t)
		s.stats.unshared.Add(uint64(t.n))
	}
	look := *t
	look.k, look.charges, look.cost = 0, false, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	out.Decision.Allowed, out.Decision.RetryAfter = true, 0
	out.Held, out.Count = int(t.n), s.shareCount(w, &out.Decision)
	return out
}

// settleLater has Redis told of a settlement that it has not answered.
func (s *Store) settleLater(w *storeCall) (out StoreResult) {
	if err := s.settler.add([]StoreCall{*w.call}, false); err != nil {
		return StoreResult{Err: err}
	}
	look := w.takeCall
	look.op, look.cost = opAdmit, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	out.Count = s.shareCount(w, &out.Decision)
	return out
}

// settleHere settles a hold of the share, if the call is of one.
func (s *Store) settleHere(w *storeCall, call *StoreCall) bool {
	of := s.held.take(holdKey{w.takeCall.key, call.HoldID})
	if of == nil {
		return false
	}
	of.settle(w.takeCall.key, int64(call.Cost))
	if of.late { // if Redis has not made the hold, there is none to settle
		_ = s.settler.add([]StoreCall{*call}, true)
	}
	share := w.subject.share(w.plan)
	*w.out = StoreResult{Decision: share.Peek(0), Source: FromFallback, HoldID: call.HoldID, Held: int(of.units)}
	w.out.Count = s.shareCount(w, &w.out.Decision)
	return true
}
