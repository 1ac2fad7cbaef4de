package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice"
)

// sharedUnits are the counters of a Store for overrides, by unit.
type sharedUnits [Week + 1]StoreCounter

// openAll opens the counters of set in the Store, and returns the counters that were not open before. The error
// is a *LoadError of all that the Store does not keep; openAll has then closed these counters again.
func (e *Engine) openAll(set *Set) (opened map[StoreLimit]StoreCounter, err error) {
	opened = map[StoreLimit]StoreCounter{}
	open := func(l StoreLimit) error {
		if e.shared[l] != nil || opened[l] != nil {
			return nil
		}
		c, err := e.config.Store.Open(l)
		if err == nil {
			opened[l] = c
		}
		return err
	}
	var problems []Problem
	ofDomains := map[*domain]string{}
	for _, d := range set.domains {
		for _, u := range units {
			if err := open(unitLimit(d, u)); err != nil {
				problems = append(problems, d.at.problem(d.name, err.Error()))
				ofDomains[d] = err.Error()
				break
			}
		}
	}
	for _, r := range set.rules {
		if r.unlimited {
			continue
		}
		err := r.unshared()
		if err == nil {
			err = open(e.storeLimit(r))
		}
		if err != nil && err.Error() != ofDomains[r.domain] {
			problems = append(problems, r.at.problem(r.path, err.Error()))
		}
	}
	if len(problems) == 0 {
		return opened, nil
	}
	for _, c := range opened {
		c.Close()
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), comparePlaces(a, b))
	})
	return nil, &LoadError{problems}
}

// unshared refuses rules that no Store can keep, or only as a weaker limit.
func (r *Rule) unshared() error {
	c := r.config
	switch {
	case c.Soft != 0:
		return fmt.Errorf("soft: %d, which a store has no word for; want it deleted, or counts in memory", c.Soft)
	case r.limit > maxRequests:
		return fmt.Errorf("requests_per_unit times scale is %d, of which a store counts at most %d; want a smaller scale, or counts in memory", r.limit, uint64(maxRequests))
	case c.CountDenied && c.Algorithm != sluice.FixedWindow:
		return fmt.Errorf("count_denied: true with %v, of which a store counts what is admitted; want it deleted, or counts in memory", c.Algorithm)
	}
	return nil
}

// storeLimit returns the StoreLimit of a rule.
func (e *Engine) storeLimit(r *Rule) StoreLimit {
	c := r.config
	l := StoreLimit{Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, BlockFor: c.BlockFor}
	l.Domain, l.Atomic, l.Second = r.domain.name, r.domain.atomic || r.second != nil || r.isSecond, r.isSecond
	l.Admitted = l.Windows() && !r.counting
	l.Leases = e.config.Leases && !r.noLeases && !l.Atomic && !e.config.StopWhenOver
	return l
}

// unitLimit returns the StoreLimit of overrides of a unit. Their thresholds come with the calls.
func unitLimit(d *domain, u Unit) StoreLimit {
	return StoreLimit{Domain: d.name, Atomic: d.atomic, Override: true, Algorithm: sluice.FixedWindow, Limit: sluice.Per(maxRequests, u.Period())}
}

// commitShared puts the counters of g into force. It returns the counters that no rule needs any more, to be
// closed when g is in force.
func (e *Engine) commitShared(g *generation, opened map[StoreLimit]StoreCounter) (idle []StoreCounter) {
	if e.config.Store == nil {
		return nil
	}
	before := opened
	maps.Copy(before, e.shared)
	e.shared = map[StoreLimit]StoreCounter{}
	use := func(l StoreLimit) StoreCounter {
		e.shared[l] = before[l]
		return before[l]
	}
	for i, r := range g.set.rules {
		if !r.unlimited {
			l := e.storeLimit(r)
			g.rules[i].shared, g.rules[i].offset = use(l), int64(l.Offset)
		}
	}
	for _, d := range g.domains {
		for _, u := range units {
			d.shared[u] = use(unitLimit(d.domain, u))
		}
	}
	for l, c := range before {
		if e.shared[l] == nil {
			idle = append(idle, c)
		}
	}
	return idle
}

// decideShared does the work of Decide with a Store.
func (e *Engine) decideShared(g *generation, d *domainState, req *Request, resp *Response, now int64) error {
	resp.calls = resp.calls[:0]
	for i := range resp.work {
		if w := &resp.work[i]; w.limited {
			c := w.call(g, d, &req.Descriptors[i], resp.Statuses[i].Rule)
			c.at = i
			resp.calls = append(resp.calls, c)
		}
	}
	if len(resp.calls) == 0 {
		return nil
	}
	if err := e.ask(d, resp); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	denied := resp.calls[:0]
	for i := range resp.calls {
		c := &resp.calls[i]
		w, st := &resp.work[c.at], &resp.Statuses[c.at]
		w.answered(st, now, c)
		if w.hits != 0 && !w.refund && (st.Over || w.stopped) {
			denied = append(denied, StoreCall{Counter: c.Counter, Key: c.Key, Op: Deny, Hits: w.hits, Counted: c.Counted && !w.stopped, Second: c.Second})
		}
	}
	if len(denied) > 0 && e.config.Store.Decide(denied) != nil { // the denial still stands
		e.denials.unrecorded.Add(uint64(len(denied)))
	}
	clear(resp.calls)
	return nil
}

// call returns the call of the Store for a descriptor. The limit of an override comes with the call.
func (w *work) call(g *generation, d *domainState, desc *Descriptor, r *Rule) StoreCall {
	c := StoreCall{Key: d.key(r, desc.Entries), Hits: w.hits}
	if r != nil {
		c.Counter = g.rules[r.index].shared
		if w.second != nil {
			w.callBoth(g, d, &c, desc.Entries, r)
		}
	} else {
		o := desc.Override
		c.Counter, c.Limit = d.shared[o.Unit], sluice.Per(int(o.Requests), o.Unit.Period())
	}
	switch {
	case w.refund:
		c.Op = GiveBack
	case w.counts && (!d.atomic || w.shadow):
		c.Op = CountAll
	default:
		c.Op = CountFitting
	}
	return c
}

// key is the text of domain and entries under which a rule counts, with the lengths of all parts, so that different
// lists have different keys. A star marks a value that shares the count of its pattern.
func (d *domainState) key(r *Rule, entries []Entry) string {
	b := append(make([]byte, 0, 64), d.storeName...)
	if r != nil {
		entries = entries[:len(r.levels)]
	}
	for i := range entries {
		b = appendPart(b, '.', entries[i].Key)
		if r != nil && r.levels[i].share {
			b = appendPart(b, '*', r.levels[i].value())
		} else {
			b = appendPart(b, '=', entries[i].Value)
		}
	}
	return string(b)
}

func appendPart(b []byte, kind byte, text string) []byte {
	b = strconv.AppendInt(append(b, kind), int64(len(text)), 10)
	return append(append(b, ':'), text...)
}

// ParseStoreKey takes a StoreCall's Key apart, for a Store that has names of its own. It returns the domain and the
// entries of the descriptor. A value that shares the count of its pattern is replaced by the pattern. Such names can
// be equal for entries that have different Keys.
func ParseStoreKey(key string) (domain string, entries []Entry, err error) {
	bad := func() error { return fmt.Errorf("rules: %q is no Key of a StoreCall", key) }
	for rest := key; rest != ""; {
		length, text, ok := strings.Cut(rest[1:], ":")
		n, err := strconv.Atoi(length)
		if !ok || err != nil || n < 0 || n > len(text) {
			return "", nil, bad()
		}
		part := text[:n]
		switch {
		case rest[0] == '.' && domain == "" && len(entries) == 0 && len(rest) == len(key):
			domain = part
		case rest[0] == '.':
			entries = append(entries, Entry{Key: part})
		case (rest[0] == '=' || rest[0] == '*') && len(entries) > 0:
			entries[len(entries)-1].Value = part
		default:
			return "", nil, bad()
		}
		rest = text[n:]
	}
	return domain, entries, nil
}

// ask makes the calls, in the way that the domain and the engine require.
func (e *Engine) ask(d *domainState, resp *Response) error {
	switch {
	case d.atomic:
		return e.askAtomic(resp)
	case e.config.StopWhenOver:
		return e.askStopping(resp)
	}
	return e.config.Store.Decide(resp.calls)
}

// askAtomic makes all calls or none. A rule in shadow mode never stands in the way: its window counts all hits, and its
// limiter counts the hits that fit, after the others have been counted.
func (e *Engine) askAtomic(resp *Response) error {
	var later []int
	for i := range resp.calls {
		if w := &resp.work[resp.calls[i].at]; w.shadow && !w.counts && !w.refund {
			resp.calls[i].Op, resp.calls[i].Hits = Look, 0
			later = append(later, i)
		}
	}
	denied, err := e.config.Store.DecideAll(resp.calls)
	if err != nil {
		return err
	}
	if denied >= 0 {
		resp.judgeTwins()
	}
	for i := range resp.calls {
		w := &resp.work[resp.calls[i].at]
		w.stopped, w.none, w.over, w.made = denied >= 0, denied >= 0, i == denied, denied < 0 && (w.counts || !w.shadow)
		if w.stopped && resp.calls[i].Op == CountAll {
			c := resp.calls[i]
			c.Count += resp.hitsBefore(i)
			w.over = w.exceeds(&c)
		}
	}
	if denied >= 0 || len(later) == 0 {
		return nil
	}
	again := make([]StoreCall, len(later))
	for j, i := range later {
		again[j] = resp.calls[i]
		again[j].Op, again[j].Hits = CountFitting, resp.work[again[j].at].hits
	}
	err = e.config.Store.Decide(again)
	for j, i := range later {
		resp.calls[i] = again[j]
	}
	return err
}

// judgeTwins judges calls of one key that have not been made in their order: each of them beside the calls before it that fit. A Store
// may have judged each by itself.
func (resp *Response) judgeTwins() {
	for i := range resp.calls {
		c := &resp.calls[i]
		if c.Op != CountFitting || c.Hits == 0 {
			continue
		}
		before := resp.hitsBefore(i)
		if before == 0 {
			continue
		}
		w, d := &resp.work[c.at], &c.Decision
		room := w.roomOf(c)
		fits := before+c.Hits <= room
		switch {
		case fits == d.Allowed:
		case c.Second.Counter != nil:
			d.Allowed = fits
		case fits:
			d.Allowed, d.RetryAfter, d.Remaining = true, 0, clampInt(room-c.Hits)
		default:
			d.Allowed, d.RetryAfter, d.Remaining = false, d.ResetAfter, clampInt(room)
		}
		if !fits && c.Second.Counter == nil && before+c.Hits > w.limit {
			d.RetryAfter = sluice.Never
		}
	}
}

// hitsBefore is the hits of the calls before one that are of its key and operation: of CountFitting the hits that fit.
func (resp *Response) hitsBefore(i int) (sum uint64) {
	c := &resp.calls[i]
	for j := range i {
		o := &resp.calls[j]
		if o.Counter == c.Counter && o.Key == c.Key && o.Op == c.Op && (o.Op == CountAll || o.Decision.Allowed) {
			sum += o.Hits
		}
	}
	return sum
}

// askStopping first looks. If some calls are over their limit it counts only these. Other calls can come between
// these two steps, as in upstream.
func (e *Engine) askStopping(resp *Response) error {
	ops := make([]StoreOp, len(resp.calls))
	for i := range resp.calls {
		ops[i], resp.calls[i].Op = resp.calls[i].Op, Look
	}
	if err := e.config.Store.Decide(resp.calls); err != nil {
		return err
	}
	stop := false
	for i := range resp.calls {
		c := &resp.calls[i]
		w := &resp.work[c.at]
		w.over = !w.refund && w.exceeds(c)
		stop = stop || w.over
	}
	for i := range resp.calls {
		c := &resp.calls[i]
		w := &resp.work[c.at]
		switch w.stopped = stop && !w.over; {
		case !w.stopped:
			c.Op = ops[i]
		case w.refund:
			c.Hits = 0
		}
	}
	return e.config.Store.Decide(resp.calls)
}

// exceeds reports whether the hits of a call exceed the room of its key.
func (w *work) exceeds(c *StoreCall) bool {
	if w.counts && (!c.Local || w.hits == 0) {
		return c.Count+w.hits > w.limit
	}
	return !w.fits(c)
}

// fits reports whether a limit that counts no denied hits has room for a call, or for a hit if the call has none. A Store
// lets a look at a full window pass, as is right where denied hits count.
func (w *work) fits(c *StoreCall) bool {
	return c.Decision.Allowed && (w.hits > 0 || w.counts || w.second != nil || c.Decision.Remaining > 0)
}

// answered fills in the status for a call that the Store has made.
func (w *work) answered(st *Status, now int64, c *StoreCall) {
	d := &c.Decision
	left := d.ResetAfter
	if left == 0 {
		left = w.left(st, now)
	}
	n := w.hits
	if w.stopped {
		n = 0
	}
	switch {
	case w.second != nil:
		w.answeredBoth(st, c, n)
	case w.refund:
		w.gaveBack(st, n, c.Absorbed, left, c.Count, d)
	case !w.counts:
		if w.made { // with charges of its key, after which nothing may be left for a look
			d.Allowed = true
		} else if !w.fits(c) && d.Allowed {
			d.Allowed, d.RetryAfter = false, left
			if w.limit == 0 {
				d.RetryAfter = sluice.Never
			}
		}
		w.limiterStatus(st, d, w.over || !d.Allowed)
	default:
		w.over = w.over || !d.Allowed && (c.Op == CountFitting || c.Local && w.hits > 0)
		w.counted(st, left, c.Count)
	}
}
