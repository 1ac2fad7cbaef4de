package rules

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Hold is units that a call is charged before it knows its need: Engine.Hold charges an estimate,
// Engine.Extend charges more, and Engine.Settle replaces all of it by the units used. A call of one of these has a Hold
// of its own. It may be changed once the method has returned.
type Hold struct {
	// Request is the call that the hold is for. Its hits are the estimate in Hold, the units to add in Extend, and
	// the units used in Settle. Extend, Settle and Release want the descriptors of the Hold again, in its order.
	Request Request
	// ID names the hold in its domain: 1 to 128 visible characters of ASCII. The client chooses it, so that it can
	// repeat a call whose answer it has not got. If it is empty, Engine.Hold puts in 128 random bits, as text.
	ID string
	// TTL is how long after Hold, and after each Extend that was admitted, the hold lapses, if nobody settles it. 0
	// means 10 minutes. More than Config.MaxHoldTTL counts as that.
	TTL time.Duration
	// GiveBack decides on its units then: false means that they are spent, true that they are given back. It
	// is for Engine.Hold; the other calls ignore it.
	GiveBack bool
	// Step names an Extend in its hold, so that it can be repeated: an Extend of a step that was admitted charges nothing
	// and is answered as admitted. Up to 128 bytes; an Extend without one is new each time.
	Step string

	// Again is set by each method: the same call was made before, and this one has changed nothing.
	Again bool
	// Capped is set by Settle: more was used than max_debt of a rule lets one hold owe, and only so much is charged.
	Capped bool
}

// Bounds of holds.
const (
	maxHoldID      = 128
	maxSteps       = 1024 // of a hold
	defaultHoldTTL = 10 * time.Minute
	// rememberHolds is how long the end of a hold is remembered, so that it can be repeated.
	rememberHolds = 10 * time.Minute
)

// Hold charges the hits of all limits of a request, or denies it and charges none, in domains that are atomic and
// in others. Then the units are held until Settle, Release or the end of TTL. Response.Code is OverLimit if a limit has no
// room; a rule with quota_mode denies as any other, and one in shadow_mode never does. A hold that is denied
// counts nothing, also in windows that count denied hits, and takes no refunds; rules with counts_denials_of count the
// denial. A hold that only Config.Shadow lets pass holds nothing. In windows a held hit counts as one that has been counted.
//
// Limits that are asked for 0 hits are never in the way. If no rule limits any descriptor, nothing is held.
//
// The same request with the same ID again holds nothing while the hold is open: it is admitted, with Hold.Again and the
// numbers of now, unless a rule with counts_denials_of denies it by now. Another request with the ID gets ErrOtherHold, and
// for ten minutes after a hold has been settled, as far as there is room to remember it, any request gets ErrEndedHold. A denial and a hold that has lapsed are not remembered: the request
// is then judged anew.
//
// Open holds survive Swap: limits that the rules still have are settled, and the units of a limit that they have lost stay until
// the hold's TTL. They do not survive the process: in a Snapshot, and after a restart, their units are spent. With a
// Store any engine can settle a hold, as long as its rules find the same limits; ErrNoHolds says that the Store is no
// HoldStore.
//
// MEANING.md lists the effect of each call about a hold.
func (e *Engine) Hold(h *Hold, resp *Response) error {
	if h.ID == "" {
		h.ID = rand.Text()
	}
	return e.chargeFor(h, resp, holding)
}

// chargeFor is Hold, and Extend.
func (e *Engine) chargeFor(h *Hold, resp *Response, use hitsUse) error {
	g, d, limited, err := e.beginHold(h, resp, use)
	if err == nil {
		err = e.holdable(resp)
	}
	banned := false
	if err == nil && resp.looks() && (use == holding || resp.asks()) {
		banned, err = e.isBanned(g, d, &h.Request, resp)
	}
	switch {
	case err != nil:
	case banned:
		if e.concludeHold(resp, true); resp.Code == OverLimit {
			e.denialCounter(use).Add(1)
		}
	case limited:
		err = e.askHold(g, d, h, resp, use)
	}
	if err != nil && e.watchedOnly(err) == nil {
		resp.reset(len(h.Request.Descriptors))
		err = nil
	}
	if err == nil && !h.Again {
		resp.countUnlimited(true)
	}
	if err == nil {
		d.answered(resp)
	}
	return err
}

// askHold makes the calls of a Hold or an Extend, and answers them.
func (e *Engine) askHold(g *generation, d *domainState, h *Hold, resp *Response, use hitsUse) error {
	b, ask, made := resp.fill(g, d, &h.Request, e.clock.Now()), e.counts.hold, &e.holds.held
	if use == extending {
		ask, made = e.counts.extend, nil
	}
	b.mode = allOrNone
	for i := range b.calls {
		b.calls[i].idle = b.calls[i].hits == 0
	}
	names := h.names(resp)
	if err := ask(h.terms(names, h.request(names)), b); err != nil {
		return err
	}
	h.Again = b.again
	for i := range resp.work {
		if resp.work[i].limited {
			resp.answerHeld(i)
		}
	}
	stop := b.denied
	if stop && use == holding && resp.looks() {
		e.countDenials(g, d, &h.Request, resp, true)
	}
	switch e.concludeHold(resp, stop); {
	case h.Again:
	case resp.Code == OverLimit:
		e.denialCounter(use).Add(1)
	case made != nil && !stop:
		made.Add(1)
	}
	return nil
}

// denialCounter is the counter of denied Holds, or Extends.
func (e *Engine) denialCounter(use hitsUse) *atomic.Uint64 {
	if use == extending {
		return &e.holds.cut
	}
	return &e.holds.denied
}

// answerHeld fills in the status of a call of a Hold or an Extend.
func (resp *Response) answerHeld(i int) {
	b, w, st, c := &resp.batch, &resp.work[i], &resp.Statuses[i], &resp.batch.calls[i]
	if b.again {
		w.hits = 0
	}
	if w.answered(st, c); c.idle || !b.denied && !w.shadow { // hits that came since must not deny the hold
		st.Code, st.Over, st.RetryAfter = OK, false, 0
	}
	switch {
	case b.again:
	case !b.denied:
		w.series.estimate(w.hits)
	case c.unmade != 0:
		st.Remaining = w.whole(uint64(c.decision.Remaining) + c.unmade)
	}
}

// watchedOnly is nil for an ErrNotHeld under Config.Shadow, which holds nothing that it would deny.
func (e *Engine) watchedOnly(err error) error {
	if e.config.Shadow && errors.Is(err, ErrNotHeld) {
		return nil
	}
	return err
}

// Extend charges more hits to the limits of an open hold, all or none, by the rules in force. A rule with counts_denials_of denies it
// while it denies other calls, unless all hits are 0. If it is admitted, the hold
// lapses TTL from now. If it is denied (Response.Code) it has charged nothing, and the hold is as it was: the client cuts
// what it does, and settles. Limits with 0 hits never deny it: if all are 0 it only prolongs the hold, by a TTL that may be another.
// It also keeps the hold's units in flight for as long; in memory, until a unit of their limit from now, unless they have
// lapsed. It is ErrNotHeld if there is no such hold.
func (e *Engine) Extend(h *Hold, resp *Response) error { return e.chargeFor(h, resp, extending) }

// Settle ends a hold: the hits of the request are the hits used in all, estimate and extensions together. Hits
// held beyond that are given back, as far as they would still be there without the hold; hits used
// beyond it are charged, above the limit if it must be, and up to max_debt of the rule: see Hold.Capped and
// sluice.Reservation.Settle.
//
// It is ErrNotHeld if there is no such hold: it was settled with other numbers, it has lapsed, it has never been, or it is
// of other descriptors. Nothing has changed then. The same Settle again is no error within ten minutes, and changes nothing.
func (e *Engine) Settle(h *Hold) error { return e.end(h, false) }

// Release gives all of a hold back. It is Settle with 0, whatever hits the request has.
func (e *Engine) Release(h *Hold) error { return e.end(h, true) }

func (e *Engine) end(h *Hold, released bool) error {
	resp, _ := e.holds.scratch.Get().(*Response)
	if resp == nil {
		resp = new(Response)
	}
	defer e.holds.scratch.Put(resp)
	use := settling
	if released {
		use = releasing
	}
	g, d, limited, err := e.beginHold(h, resp, use)
	if err == nil {
		err = e.holdable(resp)
	}
	if err == nil && limited {
		err = e.settle(g, d, h, resp, released)
	}
	if err != nil || h.Again {
		return e.watchedOnly(err)
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited || resp.Statuses[i].unlimited() {
			w.series.settle(w.hits)
		}
	}
	return nil
}

func (e *Engine) settle(g *generation, d *domainState, h *Hold, resp *Response, released bool) error {
	b := resp.fill(g, d, &h.Request, e.clock.Now())
	if err := e.counts.settle(h.terms(h.names(resp), resp.usage()), b); err != nil {
		return err
	}
	switch h.Again, h.Capped = b.again, b.capped; {
	case b.again:
	case released:
		e.holds.released.Add(1)
	default:
		e.holds.settled.Add(1)
	}
	return nil
}

func (h *Hold) terms(names, told []byte) *holdTerms {
	return &holdTerms{domain: h.Request.Domain, id: h.ID, names: names, told: told, ttl: h.TTL, giveBack: h.GiveBack, step: h.Step}
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

// hitsUse gives the hits of a request their meaning.
type hitsUse uint8

const (
	holding   hitsUse = iota // without a number they are 1
	extending                // there must be a number
	settling                 // there must be a number
	releasing                // they are 0, whatever the request says
)

// beginHold checks a call of a hold, and finds its limits. If there is none the call is answered: OK, or with an error. d is nil if
// the domain has no rules.
func (e *Engine) beginHold(h *Hold, resp *Response, use hitsUse) (g *generation, d *domainState, limited bool, err error) {
	if err := h.check(); err != nil {
		return nil, nil, false, err
	}
	h.Again, h.Capped = false, false
	if h.TTL = cmp.Or(h.TTL, defaultHoldTTL); h.TTL > e.config.MaxHoldTTL {
		h.TTL = e.config.MaxHoldTTL
	}
	resp.reset(len(h.Request.Descriptors))
	g = e.now.Load()
	if d = g.domains[h.Request.Domain]; d == nil {
		e.unknown.add(h.Request.Domain, uint64(len(h.Request.Descriptors)))
		return g, nil, false, notHeldUnless(use == holding)
	}
	ruled, err := e.findHeld(g, d, h, resp, use)
	if err != nil {
		return nil, nil, false, err
	}
	if resp.limits() == 0 {
		return g, d, false, notHeldUnless(use == holding || ruled)
	}
	return g, d, true, nil
}

func notHeldUnless(ok bool) error {
	if ok {
		return nil
	}
	return ErrNotHeld
}

// findHeld finds the limits of a call of a hold. ruled reports whether each descriptor has a rule or a limit of its own.
func (e *Engine) findHeld(g *generation, d *domainState, h *Hold, resp *Response, use hitsUse) (ruled bool, err error) {
	replaces := false
	ruled = true
	for i := range h.Request.Descriptors {
		desc, w := &h.Request.Descriptors[i], &resp.work[i]
		r := e.resolve(g, d, &h.Request, resp, i)
		replaces = replaces || r != nil && len(r.replaces) != 0
		ruled = ruled && (r != nil || desc.Override != nil)
		if w.named = len(desc.Entries); r != nil && r.weights != nil {
			w.named = len(r.levels)
		}
		switch fault := resp.Statuses[i].Fault; {
		case use == releasing:
			w.hits = 0
		case fault != "":
			return false, &InvalidError{fmt.Sprintf("descriptor %d: %s", i, fault)}
		case use != holding && !w.looks && !h.counted(i, r):
			return false, noHits(i)
		}
	}
	if replaces {
		resp.replace()
	}
	resp.setAside()
	return ruled, nil
}

// limits counts the descriptors with a limit.
func (resp *Response) limits() (n int) {
	for i := range resp.work {
		if resp.work[i].limited {
			n++
		}
	}
	return n
}

func noHits(i int) error {
	return &InvalidError{fmt.Sprintf("descriptor %d has no hits; want hits there, or once for all descriptors", i)}
}

// counted reports whether a descriptor has a number of hits, or counts for the weights of its rule.
func (h *Hold) counted(i int, r *Rule) bool {
	d := &h.Request.Descriptors[i]
	return d.Hits != nil || h.Request.Hits != 0 || r != nil && r.weights != nil && len(d.Entries) > len(r.levels)
}

func (h *Hold) check() error {
	switch {
	case h.Request.Domain == "":
		return ErrNoDomain
	case len(h.Request.Descriptors) == 0:
		return ErrNoDescriptors
	case !validHoldID(h.ID):
		return &InvalidError{"the id of the hold is no text of 1 to 128 visible characters of ASCII"}
	case h.TTL < 0:
		return &InvalidError{fmt.Sprintf("the hold's TTL is %v; want more than 0, or 0 for %v", h.TTL, defaultHoldTTL)}
	case len(h.Step) > maxHoldID:
		return &InvalidError{fmt.Sprintf("the step has %d bytes; want at most %d", len(h.Step), maxHoldID)}
	}
	for i := range h.Request.Descriptors {
		d := &h.Request.Descriptors[i]
		if d.Refund {
			return &InvalidError{fmt.Sprintf("descriptor %d gives hits back; want a hold to be settled instead", i)}
		}
		if d.Override != nil {
			if err := d.Override.check(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func validHoldID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return id != "" && len(id) <= maxHoldID
}

// answered counts the answer to a call. d may be nil.
func (d *domainState) answered(resp *Response) {
	switch {
	case d == nil:
	case resp.Code == OK:
		d.ok.Add(1)
	default:
		d.overLimit.Add(1)
	}
}

// concludeHold combines the statuses. Whatever has stopped the hold denies it.
func (e *Engine) concludeHold(resp *Response, stop bool) {
	if e.conclude(resp); stop && resp.Code != OverLimit && !resp.WouldDeny {
		e.deny(resp)
	}
}

// holdStats counts the calls about holds of an engine.
type holdStats struct {
	scratch                              sync.Pool // of *Response
	held, denied, settled, released, cut atomic.Uint64
}

// Holds is the holds of an engine. With a Store it has the calls that this engine has made, and nothing of
// Open and Lapsed, of which only the Store knows.
type Holds struct {
	Open int
	// Held is the holds that were made. Each of these is then Settled, Released or Lapsed.
	Held, Settled, Released, Lapsed uint64
	// Denied is the Holds that were denied, and Cut the Extends.
	Denied, Cut uint64
}

// Holds returns the counters of holds. Series has the units.
func (e *Engine) Holds() Holds {
	s := &e.holds
	var out Holds
	e.counts.held(e.clock.Now(), &out)
	out.Held, out.Settled, out.Released = s.held.Load(), s.settled.Load(), s.released.Load()
	out.Denied, out.Cut = s.denied.Load(), s.cut.Load()
	return out
}
