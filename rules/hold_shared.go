package rules

import (
	"errors"
	"fmt"
)

// holdShared is Hold with a Store.
func (e *Engine) holdShared(g *generation, d *domainState, h *Hold, resp *Response, now int64) error {
	err := e.askHold(g, d, h, resp, now, func(s HoldStore, terms HoldTerms) (int, error) { return s.Hold(terms, resp.calls) })
	switch {
	case err != nil:
	case resp.Code == OverLimit:
		e.holds.denied.Add(1)
	default:
		e.holds.held.Add(1)
		resp.estimated()
	}
	return err
}

// extendShared is Extend with a Store.
func (e *Engine) extendShared(g *generation, d *domainState, h *Hold, resp *Response, now int64) error {
	err := e.askHold(g, d, h, resp, now, func(s HoldStore, terms HoldTerms) (int, error) { return s.Extend(terms, resp.calls) })
	switch {
	case err != nil:
	case resp.Code == OverLimit:
		e.holds.cut.Add(1)
	default:
		resp.estimated()
	}
	return err
}

// settleShared is Settle with a Store.
func (e *Engine) settleShared(g *generation, d *domainState, h *Hold, resp *Response, released bool) error {
	store, err := e.holdStore(resp)
	if err != nil || d == nil {
		return err
	}
	if resp.holdCalls(g, d, h); len(resp.calls) == 0 {
		return nil
	}
	defer clear(resp.calls)
	if err := store.Settle(h.terms(), resp.calls); err != nil {
		return storeError(err)
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

func (e *Engine) holdStore(resp *Response) (HoldStore, error) {
	store, ok := e.config.Store.(HoldStore)
	if !ok {
		return nil, ErrNoHolds
	}
	for i := range resp.work {
		if resp.work[i].limited && resp.work[i].second != nil {
			return nil, fmt.Errorf("%w of two budgets, and %s has then; want Decide and a refund, or a rule without then for what is held", ErrNoHolds, resp.Statuses[i].Rule.path)
		}
	}
	return store, nil
}

func (h *Hold) terms() HoldTerms {
	return HoldTerms{ID: h.ID, TTL: h.TTL, GiveBack: h.GiveBack, Remember: rememberHolds, Step: h.Step}
}

// storeError is the error of a method of a HoldStore.
func storeError(err error) error {
	for _, own := range []error{ErrNotHeld, ErrOtherHold, ErrManyHolds} {
		if errors.Is(err, own) {
			return own
		}
	}
	if errors.Is(err, ErrNoHolds) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// askHold charges all limits by ask, or none, and answers. A request without limits asks nothing.
func (e *Engine) askHold(g *generation, d *domainState, h *Hold, resp *Response, now int64, ask func(HoldStore, HoldTerms) (int, error)) error {
	store, err := e.holdStore(resp)
	if err != nil || d == nil {
		return err
	}
	resp.holdCalls(g, d, h)
	denied := -1
	if len(resp.calls) > 0 {
		if denied, err = ask(store, h.terms()); err != nil {
			return storeError(err)
		}
	}
	for i := range resp.work {
		w := &resp.work[i]
		if !w.limited {
			continue
		}
		c := &resp.calls[w.from]
		w.stopped, w.over = denied >= 0, denied >= 0 && w.from == denied
		if w.stopped && !w.over {
			w.over = w.exceeds(c)
		}
		st := &resp.Statuses[i]
		if w.answered(st, now, c); w.idle || !w.stopped && !w.shadow { // hits that came since must not deny what is held
			st.Code, st.Over, st.RetryAfter = OK, false, 0
		}
	}
	clear(resp.calls)
	e.concludeHold(resp, denied >= 0)
	return nil
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
		w.from = len(resp.calls)
		for j := range resp.calls {
			if o := &resp.calls[j]; o.Counter == c.Counter && o.Key == c.Key && o.Op == c.Op {
				w.from = j
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

// estimated counts the hits that a call has held.
func (resp *Response) estimated() {
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.series.estimate(w.hits)
		}
	}
}
