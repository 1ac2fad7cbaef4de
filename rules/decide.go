package rules

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// A Request asks whether a call may pass.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	// Hits is how many hits the call counts for, for descriptors without Hits. 0 counts as 1.
	Hits uint32
}

// A Descriptor describes the call. A rule that fits the Descriptor limits the call.
type Descriptor struct {
	Entries []Entry
	// Hits is how many hits the call counts for here; nil means Request.Hits. 0 only looks: a window
	// passes up to its limit, even if it is full, and a limiter passes if it would admit one unit. A number above
	// 2^32 counts as 2^32, and for a limit above 2^32 as 2^32 above the limit.
	Hits *uint64
	// Refund gives back the hits that the call would count: at most the hits that a window still holds, or that
	// the key of a limiter still owes. Envoy sends refunds for denied calls, too, and does not say for which calls a
	// refund is. So a refund is first set off against the denied hits of these entries: hits that were never
	// counted are not given back. Series.Absorbed says how long denied hits wait for that. A descriptor with Refund
	// passes. Its hits count in Series.Refunded only.
	Refund bool
	// Override is a limit that replaces the rule's limit. The domain must have rules, but no rule has to fit.
	// An Override counts in the same window as a rule of its unit.
	Override *Override
}

// An Override is a limit that comes in a request.
type Override struct {
	Requests uint32
	Unit     Unit
}

// Code is the answer to a call, or to one of its descriptors, with the numbers of Envoy's protocol.
type Code uint8

// The codes.
const (
	OK        Code = 1
	OverLimit Code = 2
)

// String returns OK, OVER_LIMIT or Code(n).
func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case OverLimit:
		return "OVER_LIMIT"
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

// A Response answers a Request. Decide reuses it: keep one for many calls.
type Response struct {
	// Code is OverLimit if a status is OverLimit whose rule is no quota, or if all quotas are.
	Code Code
	// Statuses answer the descriptors, in their order.
	Statuses []Status
	// Tightest is the status to tell the client of: the last one that denies and is no quota, else the
	// first one with the least left; -1 if no descriptor is limited.
	Tightest int
	// WouldDeny reports that Config.Shadow has admitted the call.
	WouldDeny bool

	work    []work
	seconds []second // as many as work has room for
	batch   batch
	told    *domainOptions // the domain's, of which only the hint is read; nil without limits
}

// RetryAfter returns the wait to tell the client of a denied call: until no rule denies the call any more, but at most
// max_retry_after of the domain, and with its retry_jitter, which each call of RetryAfter draws anew. The RetryAfter of the
// Statuses is exact. It is sluice.Never if no wait helps, and 0 for a call that is not denied. asked reports whether
// the domain has one of the two settings: services that otherwise tell no wait then tell this one.
func (resp *Response) RetryAfter() (wait time.Duration, asked bool) {
	if resp.Code != OverLimit {
		return 0, false
	}
	for i := range resp.Statuses {
		if st := &resp.Statuses[i]; st.Code == OverLimit {
			wait = max(wait, st.RetryAfter)
		}
	}
	if resp.told == nil {
		return wait, false
	}
	return resp.told.hint.Of(wait), resp.told.hints
}

// DeniedBy returns the path of the rule that has denied the call, or would have denied it without Config.Shadow. If
// Tightest is over its limit it is the rule of Tightest, otherwise the rule of the first status over its limit. The path
// has no values of requests. It is "override" for a limit that came in the request, and "" if no rule denies the call.
func (resp *Response) DeniedBy() string {
	i := resp.Denying()
	switch {
	case i < 0:
		return ""
	case resp.Statuses[i].Rule == nil:
		return "override"
	}
	return resp.Statuses[i].Rule.path
}

// Denying returns the index of the status whose rule DeniedBy names, or -1 if it names none.
func (resp *Response) Denying() int {
	at := -1
	if resp.Code != OverLimit && !resp.WouldDeny {
		return at
	}
	for i := range resp.Statuses {
		if resp.Statuses[i].Code == OverLimit && (at < 0 || i == resp.Tightest) {
			at = i
		}
	}
	return at
}

// A Status answers a Descriptor.
type Status struct {
	Code Code
	// Rule is the rule that fits. It is nil if there is none, for an override, and if another rule replaces it.
	Rule *Rule
	// Limited reports whether there is a limit. Requests, Unit and Period describe that limit;
	// Remaining, ResetAfter and RetryAfter refer to it.
	Limited  bool
	Requests uint32
	Unit     Unit // UnknownUnit if Period is not the length of a unit
	Period   time.Duration
	// Remaining is how many hits could be admitted now. For a window that counts denied hits it is 0 after a
	// denial; for other algorithms some hits may remain, if fewer than the call asked for. It is
	// math.MaxUint32 for an unlimited rule.
	Remaining uint32
	// ResetAfter is the time until the window ends, in whole seconds, rounded up. For algorithms other than
	// fixed windows it is the time until the key is fresh. It is sluice.Never if that
	// never happens. After a denial by units in flight it is RetryAfter, rounded up.
	ResetAfter time.Duration
	// RetryAfter is how long to wait after a denial, to the nanosecond, or sluice.Never. It is 0
	// if the descriptor passed. For units in flight, of which nobody knows when they end, it is at most a second.
	RetryAfter time.Duration
	// Over reports whether the limit was exceeded; a rule in shadow_mode says OK all the same.
	Over bool
	// Fault says why the entries with counts for the rule's weights make no number of units. The descriptor is then
	// denied, unless it is a Refund, and nothing is counted for it. Then refunds of these entries are taken to be for it,
	// up to the most that one can give back, for as long as denied hits wait. It is empty otherwise.
	Fault string
}

// unlimited reports whether the rule admits everything: it is then no quota.
func (st *Status) unlimited() bool { return st.Rule != nil && st.Rule.unlimited }

// work is the part of a judgement that no answer shows.
type work struct {
	counter StoreCounter
	id      uint64
	hits    uint64
	refused uint64  // hits that refuse has kept from counting
	second  *second // nil for none
	limit   uint64
	near    uint64
	scale   uint64 // units in one of Status.Requests
	series  *series
	offset  int64
	debt    uint64 // the most that a settlement charges beyond the hold
	named   int    // so many entries of the descriptor name the hold, and the rest are counts for weights
	counts  bool   // denied hits count; else counter is a limiter
	refund  bool
	limited bool
	looks   bool   // the rule counts denials of another one
	left    uint64 // units that it has room for
	full    bool   // it has counted the last denial that it had room for
	shadow  bool
}

// The errors of Decide for incomplete requests.
var (
	ErrNoDomain      = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors = errors.New("rate limit descriptor list must not be empty")
)

// InvalidError is the error of Decide for an invalid override.
type InvalidError struct{ Reason string }

// Error is the reason.
func (e *InvalidError) Error() string { return e.Reason }

// Decide judges a request, counts it, and answers in resp. After an error nothing has been counted, but a Store may
// have counted. A request for a domain without rules is OK, and so is a descriptor without a rule.
func (e *Engine) Decide(req *Request, resp *Response) error {
	if err := req.check(); err != nil {
		return err
	}
	resp.reset(len(req.Descriptors))
	g := e.now.Load()
	d := g.domains[req.Domain]
	if d == nil {
		e.unknown.add(req.Domain, uint64(len(req.Descriptors)))
		return nil
	}
	replaces, faulty, bans := false, false, false
	for i := range req.Descriptors {
		r := e.resolve(g, d, req, resp, i)
		replaces = replaces || r != nil && len(r.replaces) != 0
		faulty = faulty || resp.Statuses[i].Fault != ""
		bans = bans || r.countsDenials()
	}
	if replaces {
		resp.replace()
	}
	if faulty {
		resp.refuse(d.atomic || e.config.StopWhenOver)
	}
	b := resp.fill(g, d, req, e.clock.Now())
	switch {
	case d.atomic:
		b.mode = allOrNone
	case e.config.StopWhenOver:
		b.mode = onlyWhatOver
	}
	if err := e.counts.do(b); err != nil {
		return err
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.answered(&resp.Statuses[i], &b.calls[i])
		}
	}
	if faulty {
		e.denyRefused(g, d, req, resp)
	}
	if bans {
		e.countDenials(g, d, req, resp, e.denies(resp))
	}
	e.conclude(resp)
	resp.countUnlimited(false)
	if resp.Code == OK {
		d.ok.Add(1)
	} else {
		d.overLimit.Add(1)
	}
	return nil
}

// check refuses a request that is incomplete, or has an invalid override.
func (req *Request) check() error {
	switch {
	case req.Domain == "":
		return ErrNoDomain
	case len(req.Descriptors) == 0:
		return ErrNoDescriptors
	}
	for i := range req.Descriptors {
		if o := req.Descriptors[i].Override; o != nil {
			if err := o.check(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *Override) check(i int) error {
	switch {
	case !o.Unit.Valid():
		return &InvalidError{fmt.Sprintf("descriptor %d: limit.unit is %v; want SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", i, o.Unit)}
	case uint64(o.Requests) > maxRequests:
		return &InvalidError{fmt.Sprintf("descriptor %d: limit.requests_per_unit is %d; want at most %d", i, o.Requests, uint64(maxRequests))}
	}
	return nil
}

func (resp *Response) reset(n int) {
	if cap(resp.Statuses) < n {
		resp.seconds = make([]second, n)
		resp.Statuses = make([]Status, n)
		resp.work = make([]work, n)
	}
	resp.Statuses, resp.work = resp.Statuses[:n], resp.work[:n]
	for i := range n {
		resp.Statuses[i] = Status{Code: OK}
		resp.work[i] = work{}
	}
	resp.Code, resp.Tightest, resp.WouldDeny, resp.told = OK, -1, false, nil
}

// resolve finds the limit of descriptor i, and returns its rule.
func (e *Engine) resolve(g *generation, d *domainState, req *Request, resp *Response, i int) *Rule {
	desc, st, w := &req.Descriptors[i], &resp.Statuses[i], &resp.work[i]
	w.refund = desc.Refund
	w.hits = uint64(max(req.Hits, 1))
	if desc.Hits != nil {
		w.hits = *desc.Hits
	}
	if o := desc.Override; o != nil {
		h := d.hash
		for i := range desc.Entries {
			h.entry(desc.Entries[i].Key, desc.Entries[i].Value, 0)
		}
		w.id, w.counter, w.counts, w.limited = h.sum(), d.counters[o.Unit], true, true
		w.limit, w.scale, w.series = uint64(o.Requests), 1, d.override
		w.debt = debtTimes * w.limit
		w.near = near(e.config.NearRatio, w.limit)
		w.bound()
		st.Limited, st.Requests, st.Unit, st.Period = true, o.Requests, o.Unit, o.Unit.Period()
		return nil
	}
	r := d.match(desc.Entries)
	if r == nil {
		return nil
	}
	st.Rule = r
	state, own := &g.rules[r.index], desc.Entries[:len(r.levels)]
	w.id, w.series = d.id(r, desc.Entries), state.series
	if r.unlimited {
		st.Remaining = math.MaxUint32
		return r
	}
	if w.looks = r.countsDenials(); w.looks && w.refund { // the call that it is of was not charged
		w.looks = false
		return r
	}
	if r.metricValues {
		w.series = cmp.Or(d.dynamic.get(r, own), d.other)
	}
	w.counter, w.counts, w.limited, w.shadow = state.counter, r.counting, true, r.shadow
	w.limit, w.scale, w.near, w.offset, w.debt = r.limit, r.scale, state.near, state.offset, r.debt
	st.Fault = w.weigh(r, desc)
	if r.second != nil {
		resp.seconds[i] = d.secondOf(g, r, own)
		w.second = &resp.seconds[i]
	}
	w.bound()
	st.Limited, st.Requests, st.Unit, st.Period = true, r.requests, r.unit, r.period
	return r
}

// id returns the hash under which a rule counts these entries.
func (d *domainState) id(r *Rule, entries []Entry) uint64 {
	h := d.hash
	for i, n := range r.levels {
		if n.share {
			h.entry(entries[i].Key, n.value(), shared)
		} else {
			h.entry(entries[i].Key, entries[i].Value, 0)
		}
	}
	return h.sum()
}

// replace lifts the limits of rules that other rules of the request replace. A rule that is replaced
// itself still replaces other rules. A rule without a limit cannot be replaced.
func (resp *Response) replace() {
	for i := range resp.Statuses {
		by := resp.Statuses[i].Rule
		if by == nil {
			continue
		}
		for _, name := range by.replaces {
			for j := range resp.work {
				if r := resp.Statuses[j].Rule; resp.work[j].limited && r != nil && r.nameID == name {
					resp.work[j].limited = false
				}
			}
		}
	}
	for i := range resp.work {
		if st := &resp.Statuses[i]; st.Limited && !resp.work[i].limited {
			*st, resp.work[i].looks = Status{Code: OK}, false
		}
	}
}

// refuse answers the descriptors whose counts are no numbers: nothing is counted for them, and they are denied, since
// proxies pass on a call that is refused with an error. Where calls are counted all or none, its other calls count nothing either.
func (resp *Response) refuse(together bool) {
	denied := false
	for i := range resp.work {
		w, st := &resp.work[i], &resp.Statuses[i]
		switch {
		case !w.limited || st.Fault == "":
			continue
		case w.refund:
			w.limited = false
		default:
			w.hits = math.MaxUint64
			w.bound()
			w.refused = w.hits // as many as one refund can give back: nobody knows how many the call would have been
			w.limited, w.hits = false, 1
			st.Over, st.RetryAfter = true, sluice.Never
			w.finish(st, &hits{total: 1, over: 1})
			denied = denied || !w.shadow
		}
	}
	for i := range resp.work {
		w := &resp.work[i]
		if !denied || !together {
			continue
		}
		if w.limited && !w.refund && !w.looks {
			w.refused = w.hits
		}
		w.hits, w.refund = 0, false
	}
}

// denyRefused notes the hits that refuse has kept from counting, since their refunds may come.
func (e *Engine) denyRefused(g *generation, d *domainState, req *Request, resp *Response) {
	resp.fillSome(g, d, req, func(i int) (uint64, bool) { return resp.work[i].refused, resp.work[i].refused != 0 })
	e.counts.deny(&resp.batch)
}

// fillSome makes calls for some descriptors, of other hits, each by itself. found reports whether there are any.
func (resp *Response) fillSome(g *generation, d *domainState, req *Request, hits func(i int) (n uint64, asks bool)) (found bool) {
	b := &resp.batch
	b.mode = eachAlone
	for i := range b.calls {
		c := &b.calls[i]
		*c = call{}
		if n, asks := hits(i); asks {
			resp.work[i].fill(c, g, d, &req.Descriptors[i], &resp.Statuses[i])
			c.hits, found = n, true
		}
	}
	return found
}

// fill makes a call for each descriptor.
func (resp *Response) fill(g *generation, d *domainState, req *Request, now int64) *batch {
	b := &resp.batch
	if n := len(resp.work); cap(b.calls) < n {
		b.calls = make([]call, n)
	} else {
		b.calls = b.calls[:n]
	}
	b.now, b.mode, b.denied, b.again, b.capped = now, eachAlone, false, false, false
	resp.told = &d.domainOptions
	for i := range resp.work {
		w, c := &resp.work[i], &b.calls[i]
		if *c = (call{}); w.limited {
			w.fill(c, g, d, &req.Descriptors[i], &resp.Statuses[i])
		}
	}
	return b
}

// fill makes c the call of a descriptor.
func (w *work) fill(c *call, g *generation, d *domainState, desc *Descriptor, st *Status) {
	r := st.Rule
	c.counter, c.id, c.hits, c.limit, c.period, c.offset = w.counter, w.id, w.hits, w.limit, st.Period, w.offset
	c.counts, c.shadow, c.inFlight, c.debt = w.counts, w.shadow, r.inFlight(), w.debt
	if w.looks {
		c.hits, c.final = 0, true
	}
	if r == nil {
		c.override = st.Unit
	} else {
		c.dates = r.dates
	}
	if w.second != nil {
		c.second = &w.second.secondBudget
	}
	if d.storeName != "" {
		if c.key = d.key(r, desc.Entries); c.second != nil {
			c.second.key = d.key(r.second, r.secondEntries(desc.Entries))
		}
	}
	switch {
	case w.refund:
		c.op = GiveBack
	case w.counts && (!d.atomic || w.shadow):
		c.op = CountAll
	default:
		c.op = CountFitting
	}
}
