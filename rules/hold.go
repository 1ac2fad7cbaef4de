package rules

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// A Hold is units that a call is charged before it knows what it will need: Engine.Hold charges an estimate,
// Engine.Extend charges more, and Engine.Settle replaces all of it by what was used. A call of one of these has a Hold
// of its own. It may be changed once the method has returned.
type Hold struct {
	// Request is the call that the hold is for. Its hits are the estimate in Hold, what is to be added in Extend, and
	// what was used in Settle. Extend, Settle and Release want the descriptors of the Hold again, in its order.
	Request Request
	// ID names the hold in its domain: 1 to 128 visible characters of ASCII. The client chooses it, so that it can
	// repeat a call whose answer it has not got. If it is empty, Engine.Hold puts in 128 random bits, as text.
	ID string
	// TTL is how long after Hold, and after each Extend that was admitted, the hold lapses, if nobody settles it. 0
	// means 10 minutes. More than Config.MaxHoldTTL counts as that.
	TTL time.Duration
	// GiveBack says what happens then: false means that its units are spent, true that they are given back. It
	// is that of Engine.Hold; the others ignore it.
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
// counts nothing, also in windows that count denied hits, and takes no refunds. A hold that only Config.Shadow
// lets pass holds nothing. In windows a held hit counts as one that has been counted.
//
// Limits that are asked for 0 hits are never in the way. If no rule limits any descriptor, nothing is held.
//
// The same request with the same ID again holds nothing while the hold is open: it is admitted, with Hold.Again and the
// numbers of now. Another request with the ID gets ErrOtherHold, and for ten minutes after a hold has been settled, as far as
// there is room to remember it, any request gets ErrEndedHold. A denial and a hold that has lapsed are not remembered: the request
// is then judged anew.
//
// Open holds survive Swap: what the rules still limit is settled, and the units of a limit that they have lost stay until
// the hold's TTL. They do not survive the process: in a Snapshot, and after a restart, their units are spent. With a
// Store any engine can settle a hold, as long as its rules find the same limits; ErrNoHolds says that the Store is no
// HoldStore.
//
// MEANING.md lists what each call about a hold does.
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
	if err == nil && limited {
		for i := range resp.work {
			resp.work[i].idle = resp.work[i].hits == 0
		}
		now := e.clock.Now()
		switch {
		case e.config.Store != nil:
			err = e.chargeShared(g, d, h, resp, now, use)
		case use == holding:
			err = e.holdHere(h, resp, now)
		default:
			err = e.extendHere(h, resp, now)
		}
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

// watchedOnly is nil for an ErrNotHeld under Config.Shadow, which holds nothing that it would deny.
func (e *Engine) watchedOnly(err error) error {
	if e.config.Shadow && errors.Is(err, ErrNotHeld) {
		return nil
	}
	return err
}

// Extend charges more hits to the limits of an open hold, all or none, by the rules in force. If it is admitted, the hold
// lapses TTL from now. If it is denied (Response.Code) it has charged nothing, and the hold is as it was: the client cuts
// what it does, and settles. Limits with 0 hits never deny it: if all are 0 it only prolongs the hold, by a TTL that may be another.
// It also keeps the hold's units in flight for as long; in memory, until a unit of their limit from now, unless they have
// lapsed. It is ErrNotHeld if there is no such hold.
func (e *Engine) Extend(h *Hold, resp *Response) error { return e.chargeFor(h, resp, extending) }

// Settle ends a hold: the hits of the request are what was used in all, estimate and extensions together. What has
// been held beyond that is given back, as far as it would still be there if it had not been held; what was used
// beyond it is charged, above the limit if it must be, and up to max_debt of the rule: see Hold.Capped and
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
	switch {
	case err != nil || !limited:
	case e.config.Store != nil:
		err = e.settleShared(g, d, h, resp, released)
	default:
		err = e.settleHere(h, resp, released, e.clock.Now())
	}
	for i := range resp.work {
		if err == nil && !h.Again && resp.Statuses[i].unlimited() {
			resp.work[i].series.settle(resp.work[i].hits)
		}
	}
	return e.watchedOnly(err)
}

// hitsUse says what the hits of a request stand for.
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
		case use != holding && !h.counted(i, r):
			return false, noHits(i)
		}
	}
	if replaces {
		resp.replace()
	}
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

// chargeHold charges all limits, or none, and answers. made are the receipts, a list for each descriptor.
//
// The keys of counters are locked while they are looked at and charged, as in decideTogether. Calls that do not
// lock them may come between, and so may the begin of another window. So the counts are looked at again, with the
// charge in them: if one is above its limit, everything is given back, and the hold is denied.
func (e *Engine) chargeHold(resp *Response, now int64) (made [][]*sluice.Reservation, stop bool) {
	held := e.lock(resp.work)
	defer e.unlock(held)
	all := sluice.AllDecision{Denied: -1}
	var receipts []*sluice.Reservation
	var each []sluice.Decision
	stop = lookCounters(true, resp, now)
	full := resp.listCharges(func(w *work) bool { return w.limited && !w.shadow && !w.idle })
	if stop = stop || full; !stop {
		receipts = make([]*sluice.Reservation, len(resp.charges))
		each = make([]sluice.Decision, len(resp.charges))
		if all = sluice.TakeAllReceipts(receipts, each, resp.charges...); !all.Allowed || resp.exceeded(each) {
			stop = true
			for _, r := range receipts {
				r.Cancel()
			}
		}
	}
	if stop {
		resp.markLacking(true, all.Denied)
	}
	if made = make([][]*sluice.Reservation, len(resp.work)); !stop {
		for i := range resp.work {
			made[i] = receipts[resp.work[i].from:resp.work[i].to:resp.work[i].to]
		}
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			made[i] = append(made[i], e.answerHold(w, &resp.Statuses[i], now, stop, all, each)...)
		}
	}
	e.concludeHold(resp, stop)
	return made, stop
}

// exceeded marks the counters that are above their limit after the charge, and reports whether there is one.
func (resp *Response) exceeded(each []sluice.Decision) (any bool) {
	for i := range resp.work {
		w := &resp.work[i]
		if w.limited && w.counts && !w.shadow && !w.idle && uint64(w.most-each[w.from].Remaining) > w.limit {
			w.over, any = true, true
		}
	}
	return any
}

// answerHold fills in a status after the charge, or after none. It charges a rule in shadow mode, which stands in
// nobody's way, by itself.
func (e *Engine) answerHold(w *work, st *Status, now int64, stop bool, all sluice.AllDecision, each []sluice.Decision) (made []*sluice.Reservation) {
	if w.idle {
		w.answerIdle(st, now)
		return nil
	}
	shadow := [1]sluice.Decision{}
	if w.shadow && !stop {
		made = make([]*sluice.Reservation, 1)
		sluice.TakeAllReceipts(made, shadow[:], sluice.Charge{Key: w.key(), Cost: clampInt(w.hits)})
	}
	switch {
	case w.counts && stop:
		w.none = true
		e.take(w, st, now, 0)
	case w.counts && w.shadow:
		w.counted(st, w.left(st, now), uint64(w.most-shadow[0].Remaining))
	case w.counts: // as it was with the charge: hits that came since must not deny what is held
		w.counted(st, w.left(st, now), uint64(w.most-each[w.from].Remaining))
	case w.shadow && !stop:
		w.limiterStatus(st, &shadow[0], !shadow[0].Allowed)
	case w.second == nil:
		w.answerLimiter(st, stop, all.RetryAfter)
		if stop {
			st.Remaining = w.whole(uint64(w.key().Peek(0).Remaining))
		}
	case stop:
		e.answerBoth(w, st, now, true, w.lacking || !w.fitsBoth(), all.RetryAfter)
		e.denials.absorb(w.denialID(st), now, w.hits, w.window(st, now)) // no refund comes for a hold
	default:
		took := w.second.took // is settled, and so cannot be given back by refunds
		w.hits, w.second.took = w.hits-took, 0
		e.answerBoth(w, st, now, false, false, 0)
		w.hits, w.second.took = w.hits+took, took
		b := w.second.key().Peek(0)
		more := withinOf(took, w.second.rule.limit, w.second.near, &b)
		w.second.series.add(w.second.id, &more)
	}
	return made
}

// answerIdle fills in the status of a limit that a call asks nothing of, and that passes therefore.
func (w *work) answerIdle(st *Status, now int64) {
	look := w.key().Peek(0)
	if w.counts {
		w.windowStatus(st, w.left(st, now), min(uint64(w.most-look.Remaining), w.limit), false)
		return
	}
	left := uint64(look.Remaining)
	if w.second != nil {
		more := w.second.key().Peek(0)
		left += uint64(more.Remaining)
	}
	st.Remaining, st.ResetAfter = w.whole(left), roundUp(look.ResetAfter)
}

// answerAgain answers a call that was made before: it passes, with the numbers of now.
func (e *Engine) answerAgain(h *Hold, resp *Response, now int64) {
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.answerIdle(&resp.Statuses[i], now)
		}
	}
	e.conclude(resp)
	h.Again = true
}

// concludeHold combines the statuses. Whatever has stopped the hold denies it.
func (e *Engine) concludeHold(resp *Response, stop bool) {
	if e.conclude(resp); !stop || resp.Code == OverLimit || resp.WouldDeny {
		return
	}
	if e.config.Shadow {
		resp.WouldDeny = true
		e.globalShadow.Add(1)
		return
	}
	resp.Code = OverLimit
}
