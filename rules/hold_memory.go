package rules

import (
	"container/heap"
	"strings"

	"github.com/sluice-go/sluice"
)

// holdHere is Hold in memory.
func (e *Engine) holdHere(h *Hold, resp *Response, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	named := h.names(resp)
	names, request := e.textHash(named), e.textHash(h.request(named))
	if known := s.find(h, now); known != nil {
		switch {
		case known.request != request:
			return ErrOtherHold
		case known.ended:
			return ErrEndedHold
		}
		e.answerAgain(h, resp, now)
		return nil
	}
	of := s.domain(h.Request.Domain)
	if !s.room(of, resp.limits()) {
		return ErrManyHolds
	}
	made, stop := e.chargeHold(resp, now)
	if stop {
		if resp.Code == OverLimit {
			s.denied.Add(1)
		}
		return nil
	}
	new := &hold{of: of, id: strings.Clone(h.ID), request: request, names: names, giveBack: h.GiveBack}
	new.limits = make([]heldLimit, 0, resp.limits())
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			new.limits = append(new.limits, heldLimit{at: i, id: w.id, limiter: w.limiter, series: w.series, inFlight: resp.Statuses[i].Rule.inFlight()})
		}
	}
	new.add(resp, made)
	of.byID[new.id] = new
	new.end = addTime(now, int64(h.TTL))
	s.take(new, len(new.limits))
	s.held.Add(1)
	heap.Push(&s.ends, new)
	s.open++
	s.wake()
	return nil
}

// add keeps what has been charged for the hold.
func (h *hold) add(resp *Response, made [][]*sluice.Reservation) {
	for i := range h.limits {
		l := &h.limits[i]
		w := &resp.work[l.at]
		if !w.limited { // the rules have lost it
			continue
		}
		w.series.estimate(w.hits)
		for k, r := range made[l.at] {
			units := w.hits
			if w.second != nil && w.hits != 0 {
				units = uint64(resp.charges[w.from+k].Cost)
			}
			if r != nil {
				l.receipts = append(l.receipts, heldUnits{r, units})
			}
		}
	}
}

// named returns the hold of a call about it, which may have ended, or nil.
func (s *holds) named(e *Engine, h *Hold, resp *Response, now int64) *hold {
	known := s.find(h, now)
	if known == nil || known.names != e.textHash(h.names(resp)) {
		return nil
	}
	if known.ended {
		return known
	}
	k := 0
	for i := range resp.work {
		var l *heldLimit
		if k < len(known.limits) && known.limits[k].at == i {
			l = &known.limits[k]
			k++
		}
		if w := &resp.work[i]; w.limited && (l == nil || l.limiter != w.limiter || l.id != w.id) {
			return nil // the limit is another one since
		}
	}
	return known
}

// extendHere is Extend in memory.
func (e *Engine) extendHere(h *Hold, resp *Response, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	known, parts := s.named(e, h, resp, now), resp.asks()
	step := e.textHash([]byte(h.Step))
	switch {
	case known == nil || known.ended:
		return ErrNotHeld
	case h.Step != "" && known.steps[step]:
		e.answerAgain(h, resp, now)
		return nil
	case h.Step != "":
		parts = max(parts, 1)
	}
	if h.Step != "" && len(known.steps) >= maxSteps || !s.room(known.of, parts) {
		return ErrManyHolds
	}
	made, stop := e.chargeHold(resp, now)
	if stop {
		if resp.Code == OverLimit {
			s.cut.Add(1)
		}
		return nil
	}
	known.add(resp, made)
	s.take(known, parts)
	if h.Step != "" {
		if known.steps == nil {
			known.steps = map[uint64]bool{}
		}
		known.steps[step] = true
	}
	known.renew()
	known.end = addTime(now, int64(h.TTL))
	heap.Fix(&s.ends, known.index)
	s.wake()
	return nil
}

// asks counts the limits that a call asks for hits.
func (resp *Response) asks() (n int) {
	for i := range resp.work {
		if w := &resp.work[i]; w.limited && w.hits != 0 {
			n++
		}
	}
	return n
}

// settleHere is Settle in memory.
func (e *Engine) settleHere(h *Hold, resp *Response, released bool, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	known, actual := s.named(e, h, resp, now), e.textHash(resp.usage())
	switch {
	case known == nil || known.ended && known.actual != actual:
		return ErrNotHeld
	case known.ended:
		h.Again = true
		return nil
	}
	var lost []heldLimit
	for i := range known.limits {
		l := &known.limits[i]
		w := &resp.work[l.at]
		if !w.limited {
			lost = append(lost, *l)
			continue
		}
		w.series.settle(w.hits)
		h.Capped = l.settle(w.hits, w.debt) || h.Capped
	}
	if released {
		s.released.Add(1)
	} else {
		s.settled.Add(1)
	}
	if len(lost) > 0 {
		rest := &hold{of: known.of, end: known.end, giveBack: known.giveBack, limits: lost}
		s.take(rest, len(lost))
		heap.Push(&s.ends, rest)
		s.open++
	}
	known.actual = actual
	s.remember(known, now)
	s.wake()
	return nil
}

// settle replaces what is held by what was used, but charges at most debt beyond it. What was used counts against the
// oldest charges, so the units of the latest are given back, which are most likely to be there still.
func (l *heldLimit) settle(used, debt uint64) (capped bool) {
	if l.inFlight { // what has ended uses nothing
		used = 0
	}
	held := uint64(0)
	for _, r := range l.receipts {
		held += r.units
	}
	if capped = used > held && used-held > debt; capped {
		used = held + debt
	}
	if len(l.receipts) == 0 && used > 0 {
		l.limiter.KeyHash(l.id).Charge(clampInt(used))
	}
	for i, r := range l.receipts {
		own := used
		if i < len(l.receipts)-1 {
			own = min(own, r.units)
		}
		used -= own
		r.receipt.Settle(clampInt(own))
	}
	return capped
}

// renew keeps the units in flight, which lapse a Period of their limit after their charge at the earliest, for another
// one. Those that have lapsed are not taken again: others may have them.
func (h *hold) renew() {
	for i := range h.limits {
		if l := &h.limits[i]; l.inFlight {
			for _, r := range l.receipts {
				_ = r.receipt.Renew()
			}
		}
	}
}
