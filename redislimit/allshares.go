package redislimit

import (
	"fmt"
	"math"

	"github.com/sluice-go/sluice"
)

// fallback answers the calls without Redis.
func (a *together) fallback(asked asked) error {
	s := a.store
	if s.decides() == FailClosed || asked.failed == ErrClosed {
		return s.unanswered(asked.failed, &a.work[0])
	}
	for i := range a.work {
		if w := &a.work[i]; w.op == opHold && w.what != whatHold { // only Redis knows the hold
			a.giveBack()
			return fmt.Errorf("%w: %w", ErrUnavailable, asked.failed)
		}
	}
	if err := a.repeats(asked.lane); err != nil {
		return err
	}
	if !a.within && !a.withoutRedis() {
		return a.apart(asked)
	}
	for i := range a.work {
		w := &a.work[i]
		t := &w.takeCall
		if s.decides() == LocalShare && t.k > 0 { // the share has been charged
			if t.op != opHold {
				asked.lane.admitted(asked.group, t)
			}
			s.stats.unshared.Add(uint64(t.n))
			look := *t
			look.k, look.charges, look.cost = 0, false, 0
			w.out.Decision, w.out.Source, w.out.Err = s.fallback(asked, &look, w.subject)
			w.out.Decision.Allowed = true
		} else {
			w.out.Decision, w.out.Source, w.out.Err = s.fallback(asked, t, w.subject)
			w.out.Decision.Allowed = w.out.Decision.Allowed || w.in() && w.call.Op == OpTake // it is about no units
		}
		w.out.Count = s.shareCount(w)
		switch {
		case t.op == opHold:
			if err := a.holdHere(i, asked); err != nil {
				return err
			}
		case t.op == opAdmit && s.decides() == LocalShare:
			behind := a.chargedBehind(i)
			w.out.Decision.Remaining, w.out.Count = w.out.Decision.Remaining+behind, w.out.Count-int64(behind)
		}
	}
	return nil
}

// apart says how the keys stand in the shares, after the shares have denied the calls.
func (a *together) apart(asked asked) error {
	for i := range a.work {
		w := &a.work[i]
		t := w.takeCall
		t.op, t.k, t.charges, t.judges = opAdmit, 0, false, false
		if w.in() {
			t.cost, w.out.Units = 0, 0
		}
		w.out.Decision, w.out.Source, w.out.Err = a.store.fallback(asked, &t, w.subject)
		if w.in() { // it is not known how many units it would be
			w.out.Decision.RetryAfter = 0
		}
		if w.upTo && a.store.decides() == LocalShare {
			w.out.Decision = standing(w.out.Decision, w.subject.share(w.plan).Peek(w.call.Cost))
		}
		w.out.Count = a.store.shareCount(w)
	}
	w := &a.work[a.denied]
	if w.out.Decision.Allowed && !w.in() { // by itself it fits
		w.out.Decision = w.subject.share(w.plan).Peek(0)
		w.out.Decision.RetryAfter = w.out.Decision.ResetAfter
	}
	w.out.Decision.Allowed = false
	a.denied = a.at[a.denied]
	return nil
}

// chargedBehind are the charges of the calls behind one to its share: its answer tells how the share stood before.
func (a *together) chargedBehind(i int) (sum int) {
	for j := i + 1; j < len(a.work); j++ {
		if w := &a.work[j]; w.k > 0 && w.op == opAdmit && w.key == a.work[i].key {
			sum += w.takeCall.cost
		}
	}
	return sum
}

// giveBack gives back to the shares the units that they have been charged.
func (a *together) giveBack() {
	for i := range a.work {
		if w := &a.work[i]; a.within && w.k > 0 && w.what != whatSettle && !w.none {
			w.subject.share(w.plan).Refund(w.takeCall.cost)
		}
	}
}

// withoutRedis divides the units of chains and, under LocalShare, charges the shares, for all calls or for none. If for none,
// denied is the index of the first denied call.
func (a *together) withoutRedis() bool {
	for range math.MaxInt16 { // a share may have less room by now than when it was looked at: another call has been admitted meanwhile
		a.divide()
		if a.store.decides() != LocalShare {
			return a.admits()
		}
		if a.shares() {
			a.denied = -1 // an earlier try may have set it
			return true
		}
		if !a.work[a.denied].upTo {
			break
		}
	}
	return false
}

// admits reports whether the limits ever admit the rest of the calls before. If not, denied is the index of the first denied call.
func (a *together) admits() bool {
	for i := range a.work {
		if w := &a.work[i]; w.in() && w.op == opAdmit && w.n > w.plan.burst {
			a.denied = i
			return false
		}
	}
	return true
}

// shares charges the shares for all calls of OpTake, or for none. If for none, denied is the first of work in the way.
func (a *together) shares() bool {
	charges, at := make([]sluice.Charge, 0, len(a.work)), make([]int, 0, len(a.work))
	for i := range a.work {
		if w := &a.work[i]; w.k > 0 && w.what != whatSettle && !w.letsPass() {
			a.store.leases.warmKey(w.subject)
			charges, at = append(charges, sluice.Charge{Key: w.subject.share(w.plan), Cost: w.takeCall.cost}), append(at, i)
		}
	}
	reservations := make([]*sluice.Reservation, len(charges))
	all := sluice.TakeAllReservations(reservations, nil, charges...)
	if !all.Allowed {
		a.denied = at[firstLacking(charges, all.Denied)]
		return false
	}
	a.reservations = make([]*sluice.Reservation, len(a.work))
	for i, r := range reservations {
		a.reservations[at[i]] = r
	}
	for i := range a.work {
		if w := &a.work[i]; w.k > 0 && w.letsPass() {
			a.reservations[i] = w.holdAnyhow()
		}
	}
	return all.Allowed
}

// firstLacking returns the charge with which the charges of a key no longer fit. TakeAll names the first charge of the key.
func firstLacking(charges []sluice.Charge, denied int) int {
	room := charges[denied].Key.Peek(0).Remaining
	for i := denied; i < len(charges); i++ {
		if c := &charges[i]; c.Key == charges[denied].Key {
			if c.Cost > room {
				return i
			}
			room -= c.Cost
		}
	}
	return denied
}
