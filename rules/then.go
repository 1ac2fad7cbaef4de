package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// A rule with then has a second budget, which is charged with what the first one has no room for. One TakeAll charges both, so
// that no other call sees the one without the other. The lock of the key is held from the look at the first budget to the charge,
// and all calls for that key take it. So the room that was seen is still there, unless a Swap lowers the limit just then: the call
// is denied. With a Store both are one StoreCall.

// linkSeconds finds the rules that then names. It is called when all files have been read.
func (l *loader) linkSeconds() {
	type name struct {
		domain *domain
		id     int
	}
	named := map[name][]*Rule{}
	for _, r := range l.set.rules {
		if r.nameID != 0 {
			named[name{r.domain, r.nameID}] = append(named[name{r.domain, r.nameID}], r)
		}
	}
	for _, r := range l.set.rules {
		if r.then == "" {
			continue
		}
		if fault := r.link(named[name{r.domain, l.set.names[r.then]}]); fault != "" {
			l.failed = true
			l.add(r.thenAt.problem(r.path, fmt.Sprintf("then names %q, %s", r.then, fault)))
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
		return "which no rule of the domain has; want the rate_limit.name of another rule"
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

// checkThen refuses what a rule with then cannot keep.
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
	counter
	rule   *Rule
	id     uint64
	near   uint64
	series *series
	took   uint64 // how many of the hits are for it
	after  uint64 // as work.after
}

func (s *second) key() sluice.Key { return s.limiter.KeyHash(s.id) }

// name is the second budget and its period.
func (s *second) name() uint64 { return s.id + uint64(s.rule.period)*0x9E3779B97F4A7C15 }

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
	s := second{counter: state.counter, rule: r.second, id: h.sum(), near: state.near, series: state.series}
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

// appendBoth divides the hits between the budgets, and appends the charges. The first budget has as many hits as it has room
// for, beside the charges that come before in the same call.
func (w *work) appendBoth(charges []sluice.Charge) []sluice.Charge {
	key := w.key()
	room := key.Peek(0).Remaining
	for i := range charges {
		if charges[i].Key == key {
			room -= min(room, charges[i].Cost)
		}
	}
	own := min(w.hits, uint64(room))
	w.second.took = w.hits - own
	if own != 0 {
		charges = append(charges, sluice.Charge{Key: key, Cost: clampInt(own)})
	}
	if w.second.took != 0 {
		charges = append(charges, sluice.Charge{Key: w.second.key(), Cost: clampInt(w.second.took)})
	}
	return charges
}

// takeBoth charges both budgets, or none. The lock of the key is held.
func (e *Engine) takeBoth(w *work, st *Status, now int64) {
	var few [2]sluice.Charge
	all := sluice.AllDecision{Allowed: w.fitsBoth()}
	if w.hits != 0 {
		all = sluice.TakeAll(w.appendBoth(few[:0])...)
	}
	e.answerBoth(w, st, now, !all.Allowed, !all.Allowed, all.RetryAfter)
}

// fitsBoth reports whether the budgets have room for the hits together, or for one if there are none.
func (w *work) fitsBoth() bool {
	a, b := w.key().Peek(0), w.second.key().Peek(0)
	if w.hits == 0 {
		return a.Allowed || b.Allowed
	}
	return w.hits <= uint64(a.Remaining)+uint64(b.Remaining)
}

// answerBoth fills in the status after the charge, or after none if the call is stopped. over says whether that was for
// lack of room here, for at least retry.
func (e *Engine) answerBoth(w *work, st *Status, now int64, stopped, over bool, retry time.Duration) {
	a, b := w.key().Peek(0), w.second.key().Peek(0)
	a.Remaining, b.Remaining = a.Remaining+clampInt(w.after), b.Remaining+clampInt(w.second.after)
	if over {
		retry = min(cmp.Or(retry, sluice.Never), w.key().Peek(clampInt(w.hits)).RetryAfter)
	}
	w.bothStatus(st, &a, &b, stopped, over, retry)
	if stopped {
		e.deny(w, st, now, 0, w.hits)
	} else if took := w.second.took; took != 0 {
		e.spilled.add(w, now, took, b.ResetAfter)
	}
}

// bothStatus fills in the status from how the budgets stand. retry is when either of them has room for its part.
func (w *work) bothStatus(st *Status, a, b *sluice.Decision, stopped, over bool, retry time.Duration) {
	st.Over, st.ResetAfter = over, roundUp(a.ResetAfter)
	st.Remaining = w.whole(uint64(a.Remaining) + uint64(b.Remaining))
	h := hits{total: w.hits}
	switch {
	case over:
		h.over = w.hits
		st.RetryAfter = retry
		if w.hits <= uint64(a.Limit)+uint64(b.Limit) {
			st.RetryAfter = min(st.RetryAfter, max(a.ResetAfter, b.ResetAfter))
		}
	case stopped:
		h.within = w.hits
	default:
		h = withinOf(w.hits-w.second.took, w.limit, w.near, a)
		if took := w.second.took; took != 0 {
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

// giveBackBoth gives n hits back: first to the second budget, as far as it was charged for these entries, then to the first.
func (e *Engine) giveBackBoth(w *work, st *Status, now int64, n uint64) {
	absorbed, spilled := uint64(0), uint64(0)
	if n != 0 {
		absorbed = e.denials.absorb(w.denialID(st), now, n, w.window(st, now))
		spilled = e.spilled.take(w, now, n-absorbed)
		w.second.key().Refund(clampInt(spilled))
		w.key().Refund(clampInt(n - absorbed - spilled))
	}
	a, b := w.key().Peek(0), w.second.key().Peek(0)
	w.gaveBackBoth(st, &a, &b, n, spilled, absorbed)
}

// gaveBackBoth fills in the status after n hits were given back: spilled of them to the second budget, and absorbed to none.
func (w *work) gaveBackBoth(st *Status, a, b *sluice.Decision, n, spilled, absorbed uint64) {
	if spilled != 0 {
		w.second.series.refund(w.second.id, spilled, 0)
	}
	w.gaveBack(st, n-spilled, absorbed, 0, 0, a)
	st.Remaining = w.whole(uint64(a.Remaining) + uint64(b.Remaining))
}

// callBoth makes the call of a Store one of both budgets.
func (w *work) callBoth(g *generation, d *domainState, c *StoreCall, entries []Entry, r *Rule) {
	c.Second = StoreSecond{Counter: g.rules[r.second.index].shared, Key: d.key(r.second, r.secondEntries(entries))}
}

// answeredBoth fills in the status for a call that a Store has made. n is how many hits it was to count or to give back.
func (w *work) answeredBoth(st *Status, c *StoreCall, n uint64) {
	a, b := &c.Decision, &c.Second.Decision
	if w.refund {
		w.gaveBackBoth(st, a, b, n, c.Second.Hits, c.Absorbed)
		return
	}
	w.second.took = c.Second.Hits
	w.over = w.over || !a.Allowed && !w.made
	w.bothStatus(st, a, b, w.stopped, w.over, min(cmp.Or(b.RetryAfter, sluice.Never), cmp.Or(a.RetryAfter, sluice.Never)))
}
