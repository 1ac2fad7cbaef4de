package rules

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-go/sluice"
)

// A rule with counts_denials_of bans: calls that another rule denies are charged to it, and all other calls only look at it. The engine
// makes these charges, behind the call that was denied, so that memory and each Store count them as any others.

// countsDenials reports whether the rule is charged for denials of another rule.
func (r *Rule) countsDenials() bool { return r != nil && r.denialsOf != "" }

// checkDenials refuses settings that a rule with counts_denials_of cannot keep.
func (r *rateLimitReader) checkDenials(fixed bool) {
	f, ok := r.by.get("counts_denials_of")
	switch {
	case !ok:
		return
	case r.out.denialsOf == "" && f.value.Kind == yaml.ScalarNode && f.value.Value == "":
		r.errorAt(f.value, r.path, "counts_denials_of is empty; want the rate_limit.name of another rule")
	case r.algorithm == sluice.InFlight:
		r.errorAt(f.key, r.path, "counts_denials_of is given for units in flight, but a call that is denied does not run; want another algorithm than in-flight")
	case fixed && r.blockFor == 0 && r.domain.atomic:
		r.errorAt(f.key, r.path, "counts_denials_of is given for a fixed window of an atomic domain, where a look passes a full window; want block_for beside it, or another algorithm")
	case r.out.then != "":
		r.errorAt(f.key, r.path, "counts_denials_of and then are both given; want one of them")
	case r.soft != 0:
		r.errorAt(f.key, r.path, "counts_denials_of and soft are both given; want one of them")
	case r.out.deniedToo:
		r.errorAt(r.by.at("count_denied").value, r.path, "count_denied is true, but the rule counts no calls: it counts denials of %q; want it deleted", r.out.denialsOf)
	}
	r.out.noLeases = true // a lease knows nothing of a ban that another process has begun
}

// linkDenials checks the rules that counts_denials_of names.
func (l *loader) linkDenials(named map[ruleName][]*Rule) {
	for _, r := range l.set.rules {
		if r.denialsOf == "" || r.unlimited {
			continue
		}
		if fault := r.faultOfDenier(named[ruleName{r.domain, r.denialsID}]); fault != "" {
			l.refuseName(r, r.denialsAt, "counts_denials_of", r.denialsOf, fault)
		}
	}
}

// faultOfDenier says why r cannot count the denials of one of the rules, or is empty.
func (r *Rule) faultOfDenier(found []*Rule) string {
	if len(found) == 0 {
		return nobodysName
	}
	for _, of := range found {
		switch {
		case of == r:
			return "the rule itself; want the name of another rule"
		case of.unlimited:
			return "which is unlimited and denies nothing; want a rule with a limit"
		case of.denialsOf != "":
			return "which counts denials itself; want a rule that counts calls"
		case of.config != nil && of.inFlight():
			return "which is of units in flight, where each retry within a second would be a denial; want another rule"
		case of.quota:
			return "which has quota_mode and denies nothing by itself; want a rule without"
		}
	}
	return ""
}

// looked fills in the status of a rule that counts denials, after a look. The call's hits are in its statistics if it is denied.
func (w *work) looked(st *Status, c *call) {
	hits := w.hits
	if !c.over {
		w.hits = 0
	}
	w.limiterStatus(st, &c.decision, c.over)
	w.hits, w.left = hits, uint64(c.decision.Remaining)
}

// countDenials charges the rules that count denials for the rules that have denied the call: its hits, as far as there is room. A rule
// that has no room left then denies the call, too, and its block begins. If the counts do not answer, the denial of the call stands. denied
// reports whether the statuses deny the call together, so far.
func (e *Engine) countDenials(g *generation, d *domainState, req *Request, resp *Response, denied bool) {
	hits := func(i int) (uint64, bool) {
		return min(resp.work[i].hits, resp.work[i].left), resp.denialCounts(i, denied)
	}
	if !resp.fillSome(g, d, req, hits) {
		return
	}
	if e.counts.do(&resp.batch) != nil {
		e.uncounted.Add(1)
		return
	}
	for i := range resp.batch.calls {
		c, w := &resp.batch.calls[i], &resp.work[i]
		switch {
		case c.counter == nil:
			continue
		case !c.over:
			w.hits = c.hits
			w.limiterStatus(&resp.Statuses[i], &c.decision, false)
		}
		w.full = c.over || c.decision.Remaining == 0 // others may have taken the room since the look
		w.hits = 0                                   // its statistics have counted the call
	}
	one := func(i int) (uint64, bool) { return 1, resp.work[i].full } // which is denied, and blocks the key
	if !resp.fillSome(g, d, req, one) {
		return
	}
	if e.counts.do(&resp.batch) != nil {
		e.uncounted.Add(1)
		return
	}
	for i := range resp.batch.calls {
		if c := &resp.batch.calls[i]; c.counter != nil {
			resp.work[i].limiterStatus(&resp.Statuses[i], &c.decision, c.over)
		}
	}
}

// denialCounts reports whether the rule of status i counts denials, has room, and one of these rules has denied the call. A rule in
// shadow mode counts the calls that another one in shadow mode would deny, too.
func (resp *Response) denialCounts(i int, denied bool) bool {
	st, w := &resp.Statuses[i], &resp.work[i]
	if !w.looks || st.Over || w.hits == 0 {
		return false
	}
	return slices.ContainsFunc(resp.Statuses, func(of Status) bool {
		return of.Over && of.Fault == "" && of.Rule != nil && of.Rule.nameID == st.Rule.denialsID && (of.Code == OverLimit && denied || w.shadow)
	})
}

// asks reports whether the call asks a limit for hits.
func (resp *Response) asks() bool {
	return slices.ContainsFunc(resp.work, func(w work) bool { return w.limited && w.hits != 0 })
}

// looks reports whether a rule of the call counts denials.
func (resp *Response) looks() bool {
	return slices.ContainsFunc(resp.work, func(w work) bool { return w.looks })
}

// setAside takes the rules that count denials out of a call about a hold: nothing is held of them.
func (resp *Response) setAside() {
	for i := range resp.work {
		w := &resp.work[i]
		w.limited = w.limited && !w.looks
	}
}

// isBanned looks at the rules that count denials before anything is held. If one of them denies the hold, the statuses
// of the other limits tell how they stand.
func (e *Engine) isBanned(g *generation, d *domainState, req *Request, resp *Response) (banned bool, err error) {
	b := resp.fill(g, d, req, e.clock.Now())
	resp.fillSome(g, d, req, func(i int) (uint64, bool) { return 0, resp.work[i].looks })
	if err := e.counts.do(b); err != nil {
		return false, err
	}
	for i := range resp.work {
		if w, st := &resp.work[i], &resp.Statuses[i]; w.looks {
			w.looked(st, &b.calls[i])
			banned = banned || st.Code == OverLimit
		}
	}
	if !banned {
		return false, nil
	}
	resp.fillSome(g, d, req, func(i int) (uint64, bool) { return 0, resp.work[i].limited })
	if err := e.counts.do(b); err != nil {
		return false, err
	}
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			w.hits = 0
			w.answered(&resp.Statuses[i], &b.calls[i])
		}
	}
	return true, nil
}
