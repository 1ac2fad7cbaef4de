package rules

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

func (s *stored) hold(t *holdTerms, b *batch) error   { return s.charge(t, b, HoldStore.Hold) }
func (s *stored) extend(t *holdTerms, b *batch) error { return s.charge(t, b, HoldStore.Extend) }

// charge makes the calls of a Hold or an Extend, and fills in their answers.
func (s *stored) charge(t *holdTerms, b *batch, do func(HoldStore, HoldTerms, []StoreCall) (HoldResult, error)) error {
	b.listHeld()
	defer b.clear()
	r, err := do(s.config.Store.(HoldStore), t.digests(), b.asked)
	if err != nil {
		return storeError(err)
	}
	b.again, b.denied = r.Again, r.Denied >= 0
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil {
			c.idle = c.idle || r.Again
			b.answerHeld(i, r.Denied)
		}
	}
	return nil
}

func (s *stored) settle(t *holdTerms, b *batch) error {
	b.listHeld()
	defer b.clear()
	r, err := s.config.Store.(HoldStore).Settle(t.digests(), b.asked)
	if err != nil {
		return storeError(err)
	}
	b.again, b.capped = r.Again, r.Capped
	return nil
}

func (t *holdTerms) digests() HoldTerms {
	named, told := sha256.Sum256(t.names), sha256.Sum256(t.told)
	return HoldTerms{
		Domain: t.domain, ID: t.id, Names: hex.EncodeToString(named[:16]), Digest: binary.BigEndian.Uint64(told[:]),
		TTL: t.ttl, GiveBack: t.giveBack, Remember: rememberHolds, Step: t.step,
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

// listHeld makes the calls of b calls of a HoldStore: one for all calls that have a key of a counter, since a hold has one number
// for each key. call.from is its place.
func (b *batch) listHeld() {
	b.list()
	all := b.asked
	b.asked = all[:0]
	for _, told := range all {
		c := &b.calls[told.at]
		if told.Op = CountFitting; c.shadow {
			told.Op = CountAll
		}
		c.from = len(b.asked)
		for j := range b.asked {
			if o := &b.asked[j]; o.Counter == told.Counter && o.Key == told.Key && o.Op == told.Op {
				c.from = j
				o.Debt += told.Debt
				if o.Hits += told.Hits; told.Limit.Rate < o.Limit.Rate {
					o.Limit = told.Limit
				}
			}
		}
		if c.from == len(b.asked) {
			b.asked = append(b.asked, told)
		}
	}
}

// answerHeld fills in the answer of call i of a Hold or an Extend, of which the Store has denied a call, or -1.
func (b *batch) answerHeld(i, denied int) {
	c := &b.calls[i]
	told := b.asked[c.from]
	if c.stopped, c.none, c.over = denied >= 0, denied >= 0, denied == c.from; c.stopped && !c.counts && told.Decision.Allowed {
		c.unmade = told.Hits
	}
	switch {
	case c.idle: // also beside a call of its key that is over
		c.over, told.Decision.Allowed = false, true
	case !c.stopped:
	case b.twins(c.from) > 1:
		room := c.roomOf(&told)
		before := b.before(i, room)
		c.over = before+c.hits > room
		if told.Decision.Allowed = !c.over; c.over && before+c.hits <= c.limit { // the Store was asked for more hits
			told.Decision.RetryAfter = told.Decision.ResetAfter
		}
	case !c.over:
		c.over = c.exceeds(&told)
	}
	c.answered(&told, b.now)
}

// twins counts the calls that the Store has been asked for as one.
func (b *batch) twins(asked int) (n int) {
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil && c.from == asked {
			n++
		}
	}
	return n
}

// before is the hits of the calls before one that the Store has been asked for with it, and that fit into room.
func (b *batch) before(i int, room uint64) (sum uint64) {
	for j := range i {
		if o := &b.calls[j]; o.counter != nil && o.from == b.calls[i].from && sum+o.hits <= room {
			sum += o.hits
		}
	}
	return sum
}
