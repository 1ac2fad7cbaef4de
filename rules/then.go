package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice"
)

// A rule with then has a second budget, which is charged the hits that the first one has no room for. The counts charge both in one step.

// linkSeconds finds the rules that then names.
func (l *loader) linkSeconds(named map[ruleName][]*Rule) {
	for _, r := range l.set.rules {
		if r.then == "" {
			continue
		}
		if fault := r.link(named[ruleName{r.domain, l.set.names[r.then]}]); fault != "" {
			l.refuseName(r, r.thenAt, "then", r.then, fault)
		}
	}
	for _, r := range l.set.rules {
		s := r.second
		if s == nil {
			continue
		}
		s.isSecond = true
		if s.counting || s.config.CountDenied {
			c := *s.config
			c.CountDenied = false
			s.counting, s.ownCounter, s.config = false, false, l.keep.config(c)
		}
	}
}

// link makes the one rule of a list the second budget of r, or says why it cannot be.
func (r *Rule) link(found []*Rule) (fault string) {
	switch {
	case len(found) == 0:
		return nobodysName
	case len(found) > 1:
		return fmt.Sprintf("which %d rules of the domain have; want the name of one", len(found))
	}
	s := found[0]
	switch {
	case s == r:
		return "the rule itself; want the name of another rule"
	case s.unlimited:
		return "which is unlimited; want a rule with a limit"
	case s.then != "":
		return "which has then itself; want a rule without"
	case s.shadow:
		return "which is in shadow_mode and denies nothing; want a rule without"
	case s.config == nil:
		return "which has errors; want these mended first"
	case s.config.Soft != 0 || s.config.BlockFor != 0:
		return "which has soft or block_for; want a rule without"
	case s.scale != r.scale:
		return fmt.Sprintf("whose scale is %d, and here it is %d; want the same", s.scale, r.scale)
	case s.config.Algorithm == sluice.InFlight || r.config != nil && r.config.Algorithm == sluice.InFlight:
		return "but units in flight are no budget; want another algorithm than in-flight for both"
	case s.denialsOf != "":
		return "which counts denials of another rule; want a rule that counts calls"
	case s.deniedToo:
		return "which has count_denied: true, but hits that are denied count in neither; want it deleted there"
	}
	r.valueAt = make([]int, len(s.levels))
	for i, n := range s.levels {
		r.valueAt[i] = slices.IndexFunc(r.levels, func(own *node) bool { return own.key() == n.key() })
		switch {
		case n.pattern != nil:
			return fmt.Sprintf("whose descriptor %s is a pattern; want a value, or none for the value of the same key here", n.name)
		case n.value() != "":
			r.valueAt[i] = -1
		case r.valueAt[i] < 0:
			return fmt.Sprintf("whose descriptor %s has no value, and this rule has no such key; want one of its keys (%s), or a value there", n.name, keysOf(r.levels))
		}
	}
	r.second = s
	return ""
}

func keysOf(levels []*node) string {
	keys := make([]string, len(levels))
	for i, n := range levels {
		keys[i] = n.key()
	}
	return strings.Join(keys, ", ")
}

// checkThen refuses settings that a rule with then cannot keep.
func (r *rateLimitReader) checkThen() {
	if r.out.then == "" {
		return
	}
	if r.soft != 0 {
		r.errorAt(r.by.at("soft").value, r.path, "soft and then are both given; want one of them")
	}
	if r.blockFor != 0 {
		r.errorAt(r.by.at("block_for").value, r.path, "block_for and then are both given; want one of them")
	}
	if r.out.deniedToo {
		r.errorAt(r.by.at("count_denied").value, r.path, "count_denied is true, but with then hits that are denied count in neither budget; want it deleted")
	}
}

// second is the second budget of a descriptor.
type second struct {
	secondBudget
	rule   *Rule
	near   uint64
	series *series
}

// secondValue is the value of a level of the second budget, for entries of the first.
func (r *Rule) secondValue(level int, entries []Entry) string {
	if at := r.valueAt[level]; at >= 0 {
		return entries[at].Value
	}
	return r.second.levels[level].value()
}

// secondOf finds the second budget for these entries.
func (d *domainState) secondOf(g *generation, r *Rule, entries []Entry) second {
	state, h := &g.rules[r.second.index], d.hash
	for i, n := range r.second.levels {
		h.entry(n.key(), r.secondValue(i, entries), 0)
	}
	s := second{secondBudget: secondBudget{counter: state.counter, id: h.sum(), period: r.second.period}, rule: r.second, near: state.near, series: state.series}
	if s.rule.metricValues {
		s.series = cmp.Or(d.dynamic.get(s.rule, r.secondEntries(entries)), d.other)
	}
	return s
}

// secondEntries are the entries of the second budget, for entries of the first.
func (r *Rule) secondEntries(entries []Entry) []Entry {
	own := make([]Entry, len(r.second.levels))
	for i, n := range r.second.levels {
		own[i] = Entry{n.key(), r.secondValue(i, entries)}
	}
	return own
}

// bothStatus fills in the status of a call of two budgets.
func (w *work) bothStatus(st *Status, c *call) {
	a, b := &c.decision, &w.second.decision
	st.Over, st.ResetAfter = c.over, roundUp(a.ResetAfter)
	st.Remaining = w.whole(uint64(a.Remaining) + uint64(b.Remaining))
	h := hits{total: w.hits}
	switch {
	case c.over:
		h.over = w.hits
		// When either of them has room for its part, or when both are fresh. Beside other hits of the call that may be never.
		st.RetryAfter = min(cmp.Or(a.RetryAfter, sluice.Never), cmp.Or(b.RetryAfter, sluice.Never))
		if w.hits <= uint64(a.Limit)+uint64(b.Limit) {
			st.RetryAfter = min(st.RetryAfter, cmp.Or(max(a.ResetAfter, b.ResetAfter), sluice.Never))
		}
	case c.stopped:
		h.within = w.hits
	default:
		took := w.second.hits
		h = withinOf(w.hits-took, w.limit, w.near, a)
		if took != 0 {
			more := withinOf(took, w.second.rule.limit, w.second.near, b)
			w.second.series.add(w.second.id, &more)
		}
	}
	w.finish(st, &h)
}

// withinOf is the numbers of n hits that a limiter has admitted.
func withinOf(n, limit, near uint64, d *sluice.Decision) hits {
	h := hits{total: n, within: n}
	if after := limit - min(uint64(d.Remaining), limit); after > near {
		h.near = min(n, after-near)
	}
	return h
}
