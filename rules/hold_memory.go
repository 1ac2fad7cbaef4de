package rules

import (
	"container/heap"
	"strings"

	"github.com/sluice-go/sluice"
)

func (m *memory) hold(t *holdTerms, b *batch) error {
	s := &m.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(b.now)
	names, request := m.textHash(t.names), m.textHash(t.told)
	if known := s.find(t, b.now); known != nil {
		switch {
		case known.request != request:
			return ErrOtherHold
		case known.ended:
			return ErrEndedHold
		}
		b.standAgain()
		return nil
	}
	of := s.domain(t.domain)
	if !s.room(of, b.limits()) {
		return ErrManyHolds
	}
	made := m.chargeHold(b)
	if b.denied {
		return nil
	}
	new := &hold{of: of, id: strings.Clone(t.id), request: request, names: names, giveBack: t.giveBack}
	new.limits = make([]heldLimit, 0, b.limits())
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			new.limits = append(new.limits, heldLimit{at: i, id: c.id, limiter: c.here().limiter, inFlight: c.inFlight})
		}
	}
	new.add(b, made)
	of.byID[new.id] = new
	new.end = addTime(b.now, int64(t.ttl))
	s.take(new, len(new.limits))
	heap.Push(&s.ends, new)
	s.open++
	s.wake()
	return nil
}

// standAgain answers calls that were made before, with the numbers of now.
func (b *batch) standAgain() {
	b.again = true
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			c.idle = true
			c.stand(b.now)
		}
	}
}

// add keeps the charges for the hold.
func (h *hold) add(b *batch, made [][]*sluice.Reservation) {
	for i := range h.limits {
		l := &h.limits[i]
		c := &b.calls[l.at]
		if c.counter == nil { // the rules have lost it
			continue
		}
		for k, r := range made[l.at] {
			units := c.hits
			if c.second != nil && c.hits != 0 {
				units = uint64(b.charges[c.from+k].Cost)
			}
			if r != nil {
				l.reservations = append(l.reservations, heldUnits{r, units})
			}
		}
	}
}

// named returns the hold of a call about it, which may have ended, or nil.
func (m *memory) named(t *holdTerms, b *batch) *hold {
	known := m.holds.find(t, b.now)
	if known == nil || known.names != m.textHash(t.names) {
		return nil
	}
	if known.ended {
		return known
	}
	k := 0
	for i := range b.calls {
		var l *heldLimit
		if k < len(known.limits) && known.limits[k].at == i {
			l = &known.limits[k]
			k++
		}
		if c := &b.calls[i]; c.counter != nil && (l == nil || l.limiter != c.here().limiter || l.id != c.id) {
			return nil // the limit is another one since
		}
	}
	return known
}

func (m *memory) extend(t *holdTerms, b *batch) error {
	s := &m.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(b.now)
	known, parts := m.named(t, b), b.asks()
	step := m.textHash([]byte(t.step))
	switch {
	case known == nil || known.ended:
		return ErrNotHeld
	case t.step != "" && known.steps[step]:
		b.standAgain()
		return nil
	case t.step != "":
		parts = max(parts, 1)
	}
	if t.step != "" && len(known.steps) >= maxSteps || !s.room(known.of, parts) {
		return ErrManyHolds
	}
	made := m.chargeHold(b)
	if b.denied {
		return nil
	}
	known.add(b, made)
	s.take(known, parts)
	if t.step != "" {
		if known.steps == nil {
			known.steps = map[uint64]bool{}
		}
		known.steps[step] = true
	}
	known.renew()
	known.end = addTime(b.now, int64(t.ttl))
	heap.Fix(&s.ends, known.index)
	s.wake()
	return nil
}

// chargeHold charges all limits, or none: then it sets b.denied. made are the reservations, a list for each call.
//
// The keys of windows are locked while they are looked at and charged, as in together. Calls that do not
// lock them may come between, and so may the begin of another window. So the counts are looked at again, with the
// charge in them: if one is above its limit, everything is given back, and the hold is denied.
func (m *memory) chargeHold(b *batch) (made [][]*sluice.Reservation) {
	held := m.lock(b.calls)
	defer m.unlock(held)
	all := sluice.AllDecision{Denied: -1}
	var reservations []*sluice.Reservation
	var each []sluice.Decision
	stop := b.lookCounters()
	full := b.listCharges(func(c *call) bool { return c.counter != nil && !c.shadow && !c.idle })
	if stop = stop || full; !stop {
		reservations = make([]*sluice.Reservation, len(b.charges))
		each = make([]sluice.Decision, len(b.charges))
		if all = sluice.TakeAllReservations(reservations, each, b.charges...); !all.Allowed || b.exceeded(each) {
			stop = true
			for _, r := range reservations {
				r.Cancel()
			}
		}
	}
	if b.denied = stop; stop {
		b.markLacking(all.Denied)
	}
	if made = make([][]*sluice.Reservation, len(b.calls)); !stop {
		for i := range b.calls {
			made[i] = reservations[b.calls[i].from:b.calls[i].to:b.calls[i].to]
		}
	}
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			made[i] = append(made[i], c.answerHold(b.now, stop, all, each)...)
		}
	}
	return made
}

// exceeded marks the windows that are above their limit after the charge, and reports whether there is one.
func (b *batch) exceeded(each []sluice.Decision) (any bool) {
	for i := range b.calls {
		c := &b.calls[i]
		if c.counter != nil && c.counts && !c.shadow && !c.idle && c.here().count(each[c.from].Remaining) > c.limit {
			c.over, any = true, true
		}
	}
	return any
}

// answerHold fills in the answer after the charge, or after none. It makes a call in shadow mode, which stands in
// nobody's way, by itself.
func (c *call) answerHold(now int64, stop bool, all sluice.AllDecision, each []sluice.Decision) (made []*sluice.Reservation) {
	if c.idle {
		c.stand(now)
		return nil
	}
	c.stopped, c.none = stop, stop
	shadow := [1]sluice.Decision{}
	if c.shadow && !stop {
		made = make([]*sluice.Reservation, 1)
		sluice.TakeAllReservations(made, shadow[:], sluice.Charge{Key: c.at(), Cost: clampInt(c.hits)})
	}
	switch {
	case c.counts && stop:
		c.counted(c.here().count(c.at().TakeAt(now, 0).Remaining), c.left(now))
	case c.counts && c.shadow:
		c.counted(c.here().count(shadow[0].Remaining), c.left(now))
	case c.counts: // as it was with the charge: hits that came since must not deny the hold
		c.counted(c.here().count(each[c.from].Remaining), c.left(now))
	case c.shadow && !stop:
		c.decision, c.over = shadow[0], !shadow[0].Allowed
	case c.second != nil:
		c.answerBoth(stop && (c.lacking || !c.fitsBoth()), all.RetryAfter)
	default:
		if c.answerLimiter(stop, all.RetryAfter); stop {
			c.unmade = uint64(c.at().Peek(0).Remaining - c.decision.Remaining)
		}
	}
	return made
}

func (m *memory) settle(t *holdTerms, b *batch) error {
	s := &m.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(b.now)
	known, actual := m.named(t, b), m.textHash(t.told)
	switch {
	case known == nil || known.ended && known.actual != actual:
		return ErrNotHeld
	case known.ended:
		b.again = true
		return nil
	}
	var lost []heldLimit
	for i := range known.limits {
		l := &known.limits[i]
		c := &b.calls[l.at]
		if c.counter == nil {
			lost = append(lost, *l)
			continue
		}
		b.capped = l.settle(c.hits, c.debt) || b.capped
	}
	if len(lost) > 0 {
		rest := &hold{of: known.of, end: known.end, giveBack: known.giveBack, limits: lost}
		s.take(rest, len(lost))
		heap.Push(&s.ends, rest)
		s.open++
	}
	known.actual = actual
	s.remember(known, b.now)
	s.wake()
	return nil
}

// settle replaces the units held by the units used, but charges at most debt beyond them. Used units count against the
// oldest charges, so the units of the latest are given back, which are most likely to be there still.
func (l *heldLimit) settle(used, debt uint64) (capped bool) {
	if l.inFlight { // what has ended uses nothing
		used = 0
	}
	held := uint64(0)
	for _, r := range l.reservations {
		held += r.units
	}
	if capped = used > held && used-held > debt; capped {
		used = held + debt
	}
	if len(l.reservations) == 0 && used > 0 {
		l.limiter.KeyHash(l.id).Debit(clampInt(used))
	}
	for i, r := range l.reservations {
		own := used
		if i < len(l.reservations)-1 {
			own = min(own, r.units)
		}
		used -= own
		r.reservation.Settle(clampInt(own))
	}
	return capped
}

// renew keeps the units in flight, which lapse a Period of their limit after their charge at the earliest, for another
// one. Lapsed units are not taken again: other holds may have them.
func (h *hold) renew() {
	for i := range h.limits {
		if l := &h.limits[i]; l.inFlight {
			for _, r := range l.reservations {
				_ = r.reservation.Renew()
			}
		}
	}
}
