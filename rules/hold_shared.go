package rules

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// chargeShared is Hold and Extend with a Store.
func (e *Engine) chargeShared(g *generation, d *domainState, h *Hold, resp *Response, now int64, use hitsUse) error {
	store := e.config.Store.(HoldStore)
	resp.holdCalls(g, d, h)
	defer clear(resp.calls)
	names := h.names(resp)
	terms := h.terms(names, h.request(names))
	do, denied, made := store.Hold, &e.holds.denied, &e.holds.held
	if use == extending {
		do, denied, made = store.Extend, &e.holds.cut, nil
	}
	r, err := do(terms, resp.calls)
	if err != nil {
		return storeError(err)
	}
	h.Again = r.Again
	e.answerHeld(resp, now, r)
	switch {
	case r.Denied >= 0:
		if resp.Code == OverLimit {
			denied.Add(1)
		}
		return nil
	case r.Again:
		return nil
	case made != nil:
		made.Add(1)
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.series.estimate(w.hits)
		}
	}
	return nil
}

// settleShared is Settle with a Store.
func (e *Engine) settleShared(g *generation, d *domainState, h *Hold, resp *Response, released bool) error {
	store := e.config.Store.(HoldStore)
	resp.holdCalls(g, d, h)
	defer clear(resp.calls)
	r, err := store.Settle(h.terms(h.names(resp), resp.usage()), resp.calls)
	if err != nil {
		return storeError(err)
	}
	if h.Again, h.Capped = r.Again, r.Capped; r.Again {
		return nil
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.series.settle(w.hits)
		}
	}
	if released {
		e.holds.released.Add(1)
	} else {
		e.holds.settled.Add(1)
	}
	return nil
}

// KeepsHolds reports whether the engine keeps holds: it does, unless its Store is no HoldStore.
func (e *Engine) KeepsHolds() bool {
	_, ok := e.config.Store.(HoldStore)
	return e.config.Store == nil || ok
}

// holdable returns an error if the Store keeps no holds of these limits.
func (e *Engine) holdable(resp *Response) error {
	switch {
	case e.config.Store == nil:
		return nil
	case !e.KeepsHolds():
		return ErrNoHolds
	}
	for i := range resp.work {
		if resp.work[i].limited && resp.work[i].second != nil {
			return fmt.Errorf("%w of two budgets, and %s has then; want Decide and a refund, or a rule without then for what is held", ErrNoHolds, resp.Statuses[i].Rule.path)
		}
	}
	return nil
}

func (h *Hold) terms(names, digest []byte) HoldTerms {
	named, told := sha256.Sum256(names), sha256.Sum256(digest)
	return HoldTerms{
		Domain: h.Request.Domain, ID: h.ID, Names: hex.EncodeToString(named[:16]), Digest: binary.BigEndian.Uint64(told[:]),
		TTL: h.TTL, GiveBack: h.GiveBack, Remember: rememberHolds, Step: h.Step,
	}
}

// storeError is the error of a method of a HoldStore.
func storeError(err error) error {
	for _, own := range []error{ErrNotHeld, ErrEndedHold, ErrOtherHold, ErrManyHolds} {
		if errors.Is(err, own) {
			return own
		}
	}
	if errors.Is(err, ErrNoHolds) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// answerHeld answers a Hold or an Extend from the results of its calls.
func (e *Engine) answerHeld(resp *Response, now int64, r HoldResult) {
	denied := r.Denied
	for i := range resp.work {
		w := &resp.work[i]
		if !w.limited {
			continue
		}
		call := resp.calls[w.from]
		c, looked := &call, call.Decision.Allowed
		if r.Again {
			w.hits, w.idle = 0, true
		}
		w.stopped, w.none, w.over = denied >= 0, denied >= 0, denied >= 0 && w.from == denied
		switch {
		case w.idle: // also beside a descriptor of its call that is over
			w.over, c.Decision.Allowed = false, true
		case !w.stopped:
		case resp.twins(w.from) > 1:
			room := w.roomOf(c)
			before := resp.before(i, room)
			w.over = before+w.hits > room
			if c.Decision.Allowed = !w.over; w.over && before+w.hits <= w.limit { // the call was of more hits
				c.Decision.RetryAfter = c.Decision.ResetAfter
			}
		case !w.over:
			w.over = w.exceeds(c)
		}
		st := &resp.Statuses[i]
		if w.answered(st, now, c); w.idle || !w.stopped && !w.shadow { // hits that came since must not deny what is held
			st.Code, st.Over, st.RetryAfter = OK, false, 0
		}
		if w.stopped && !w.counts && looked { // of a look, which tells what the hits would leave
			st.Remaining = w.whole(uint64(c.Decision.Remaining) + c.Hits)
		}
	}
	e.concludeHold(resp, denied >= 0)
}

// twins counts the descriptors that a call is of.
func (resp *Response) twins(call int) (n int) {
	for i := range resp.work {
		if w := &resp.work[i]; w.limited && w.from == call {
			n++
		}
	}
	return n
}

// before is the hits of the descriptors before one that are of its call and fit into room.
func (resp *Response) before(i int, room uint64) (sum uint64) {
	for j := range i {
		if o := &resp.work[j]; o.limited && o.from == resp.work[i].from && sum+o.hits <= room {
			sum += o.hits
		}
	}
	return sum
}

// roomOf is the room for a descriptor, from a call of it that has not been made.
func (w *work) roomOf(c *StoreCall) uint64 {
	switch {
	case w.counts:
		return w.limit - min(c.Count, w.limit)
	case c.Second.Counter != nil:
		return uint64(c.Decision.Remaining) + uint64(c.Second.Decision.Remaining)
	case c.Decision.Allowed: // it tells what the hits would leave
		return uint64(c.Decision.Remaining) + c.Hits
	}
	return uint64(c.Decision.Remaining)
}

// holdCalls lists the calls of the limits. Descriptors with the same count of one counter make one call, since
// a hold has one number for each key. work.from is the call of a descriptor.
func (resp *Response) holdCalls(g *generation, d *domainState, h *Hold) {
	resp.calls = resp.calls[:0]
	for i := range resp.work {
		w := &resp.work[i]
		if !w.limited {
			continue
		}
		c := w.call(g, d, &h.Request.Descriptors[i], resp.Statuses[i].Rule)
		if c.Op = CountFitting; w.shadow {
			c.Op = CountAll
		}
		c.Debt = w.debt
		w.from = len(resp.calls)
		for j := range resp.calls {
			if o := &resp.calls[j]; o.Counter == c.Counter && o.Key == c.Key && o.Op == c.Op {
				w.from = j
				o.Debt += c.Debt
				if o.Hits += c.Hits; c.Limit.Rate < o.Limit.Rate {
					o.Limit = c.Limit
				}
			}
		}
		if w.from == len(resp.calls) {
			resp.calls = append(resp.calls, c)
		}
	}
}
