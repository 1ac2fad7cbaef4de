package countertest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/rules"
)

// model is MEANING.md of package rules as a program, without bounds and without speed. It is written from that page, apart from
// every implementation: windows are numbers by name, every other count is a model of package oracle, and one call is made after
// the other.
type model struct {
	*script
	set      []rule
	now      func() time.Time
	at       int64 // the time of the present call
	windows  map[string]int64
	limiters map[string]*oracle.Model
	denied   map[string]*denials
	spilled  map[string]spill // the parts of keys in their second budgets
	holds    map[string]*hold
	rests    []*hold // of settled holds, units of limits that the rules have lost
	stats    map[string]*numbers
	needs    map[Operation]bool // the operations of the calls so far
}

func newModel(s *script, now func() time.Time) *model {
	return &model{
		script: s, set: s.sets[0], now: now, windows: map[string]int64{}, limiters: map[string]*oracle.Model{},
		denied: map[string]*denials{}, spilled: map[string]spill{}, holds: map[string]*hold{}, stats: map[string]*numbers{}, needs: map[Operation]bool{},
	}
}

// denials are the hits of entries that were denied and have not been given back: hits that a window counts, and other hits.
type denials struct {
	window           string
	counted, missing int64
}

// spill is the part of a key in a second budget, until that has forgotten it.
type spill struct{ units, until int64 }

// counter is where a descriptor counts.
type counter struct {
	id       string // of the count
	lim      *oracle.Model
	key      string // of lim
	limit    int64
	period   int64
	calendar *oracle.Calendar // or nil, for the period
	path     string           // of its statistics
	whose    string           // whose denials
	debt     int64
	inFlight bool
	second   *counter
}

// windowed reports whether it is a window that counts all hits.
func (c *counter) windowed() bool { return c.lim == nil }

// item is a descriptor of a call.
type item struct {
	counter
	hits                   int64
	limited, ruled, refund bool
	shadow, quota          bool
	over                   bool
	own                    int64 // of two budgets, the part of the first; the second has the rest
	asked                  int64 // hits, with the hits of the count before it in the call
	remaining              int64
	times                  times
	idle                   bool // asked for nothing, by a hold
}

// call makes a call.
func (m *model) call(c *call) outcome {
	m.at = m.now().UnixNano()
	switch c.op {
	case "take":
		return m.take(c)
	case "hold", "extend":
		return m.charge(c)
	case "settle", "release":
		return m.end(c)
	case "reset":
		return m.reset(c)
	case "reload":
		m.set = m.sets[c.set]
		m.forgetStats()
	case "series":
		return outcome{text: m.seriesOf(c.series)}
	}
	return outcome{}
}

// need notes an operation that a call needs, if it does.
func (m *model) need(operation Operation, does bool) {
	if does {
		m.needs[operation] = true
	}
}

// resolve finds the counts of a call.
func (m *model) resolve(c *call) (items []*item) {
	for i := range c.descriptors {
		d := &c.descriptors[i]
		it := &item{hits: int64(min(d.hits, math.MaxInt64)), refund: d.refund}
		items = append(items, it)
		if c.domain == "o" {
			continue
		}
		if o := d.override; o != nil {
			it.limited, it.ruled = true, true
			it.counter = m.window(c.domain, entriesOf(d.entries), o.Unit, int64(o.Requests))
			it.path, it.whose, it.debt = c.domain+"/override", fmt.Sprint(c.domain, it.key, o.Unit), 10*it.limit
			continue
		}
		r := find(m.set, d)
		if r == nil {
			continue
		}
		it.ruled, it.shadow, it.quota = true, r.shadow, r.quota
		it.path = c.domain + "/" + r.path()
		if r.isUnlimited {
			continue
		}
		it.limited = true
		if d.counted {
			it.hits = 0
			for _, e := range d.entries[1:] {
				n := int64(0)
				_, _ = fmt.Sscan(e.Value, &n)
				it.hits += n * r.weights[e.Key]
			}
		}
		it.counter = m.of(c.domain, r, d.entries[0].Value)
	}
	return items
}

func entriesOf(entries []rules.Entry) string { return fmt.Sprintf("%q", entries) }

func (r *rule) path() string {
	if r.value == "" {
		return r.key
	}
	return r.key + "_" + r.value
}

// room is how many hits fit now.
func (m *model) room(c *counter) int64 {
	if c.windowed() {
		return max(0, c.limit-m.windows[c.id])
	}
	return m.look(c, 0).Remaining
}

func (m *model) look(c *counter, hits int64) oracle.Decision { return c.lim.Peek(c.key, m.at, hits) }

// take is Engine.Decide.
func (m *model) take(c *call) outcome {
	m.lapse()
	items := m.resolve(c)
	switch {
	case c.domain == "a":
		if m.judge(items) {
			m.refuse(items)
		} else {
			m.count(items)
		}
	case m.stop && m.anyOver(items):
		m.countOver(items)
	default:
		for _, it := range items {
			m.one(it)
		}
	}
	for _, it := range items {
		if it.ruled && !it.limited && it.refund {
			m.stat(it.path)[refunded] += it.hits
		}
	}
	return m.answer(items, "")
}

// one judges and counts a descriptor by itself.
func (m *model) one(it *item) {
	switch {
	case !it.limited:
	case it.refund:
		m.giveBack(it, it.hits)
	case it.windowed():
		m.windows[it.id] += it.hits
		it.over = m.windows[it.id] > it.limit
		m.need(DeniedHits, it.over)
		m.answerWindow(it, true)
		if it.over {
			m.deny(it, it.hits, 0)
		}
	case it.second != nil:
		it.over = !m.split(it, 0, 0)
		if !it.over {
			m.chargeBoth(it)
		}
		m.answerBoth(it, it.over)
	default:
		d := it.lim.Take(it.key, m.at, it.hits)
		it.over = !d.Allowed
		m.answerLimiter(it, d)
		if it.over {
			m.deny(it, 0, it.hits)
		}
	}
}

// judge walks through the calls in their order. A call is over if it does not fit together with the calls of its count before it that
// fit. Hits that are given back make no room. It reports whether a call is over that is not of a rule in shadow mode.
func (m *model) judge(items []*item) (denied bool) {
	taken := map[string]int64{}
	for _, it := range items {
		if !it.limited || it.refund || it.idle {
			continue
		}
		before := taken[it.id]
		switch {
		case it.windowed():
			it.over = m.windows[it.id]+before+it.hits > it.limit
			m.need(DeniedHits, it.over && it.hits == 0)
		case it.shadow && it.second == nil:
			continue // it counts the hits that fit, behind all other calls
		case it.second != nil:
			it.over = !m.split(it, before, taken[it.second.id])
		case it.hits == 0:
			it.over = m.room(&it.counter) == 0
		default:
			it.asked = before + it.hits
			it.over = it.hits > m.room(&it.counter)-before
		}
		if it.over && !it.shadow {
			denied = true
			continue
		}
		taken[it.id] += it.hits
		if it.second != nil {
			taken[it.id] -= it.hits - it.own
			taken[it.second.id] += it.hits - it.own
		}
	}
	return denied
}

// split divides hits between two budgets, of which so many units are taken already, and reports whether they fit.
func (m *model) split(it *item, first, second int64) bool {
	a, b := m.room(&it.counter), m.room(it.second)
	if it.hits == 0 {
		it.own = 0
		return a > 0 || b > 0
	}
	it.own = min(it.hits, max(0, a-first))
	return it.hits-it.own <= b-second
}

// spilledOf is the part that the key still has in its second budget.
func (m *model) spilledOf(it *item) int64 {
	if s := m.spilled[it.id]; s.until > m.at {
		return s.units
	}
	return 0
}

func (m *model) chargeBoth(it *item) {
	it.lim.Take(it.key, m.at, it.own)
	if more := it.hits - it.own; more > 0 {
		d := it.second.lim.Take(it.second.key, m.at, more)
		m.spilled[it.id] = spill{m.spilledOf(it) + more, max(m.spilled[it.id].until, m.at+d.ResetAfter)}
	}
}

// count counts a call of an atomic domain that fits.
func (m *model) count(items []*item) {
	for _, it := range items {
		switch {
		case !it.limited || it.refund || it.windowed() || it.shadow:
		case it.second != nil:
			m.chargeBoth(it)
			m.answerBoth(it, false)
		default:
			m.answerLimiter(it, it.lim.Take(it.key, m.at, it.hits))
			it.times.reset = -1 // as it stands after all charges of the key
		}
	}
	for _, it := range items {
		if it.refund || it.windowed() || it.shadow {
			m.one(it)
		}
	}
}

// refuse answers a call of an atomic domain that does not fit.
func (m *model) refuse(items []*item) {
	for _, it := range items {
		switch {
		case !it.limited:
			continue
		case it.refund:
			m.giveBack(it, 0)
			continue
		case it.windowed():
			m.need(DeniedHits, it.over && it.shadow)
			m.answerWindow(it, false)
		case it.second != nil:
			m.answerBoth(it, true)
			continue
		case it.shadow:
			it.over = m.room(&it.counter) == 0
			m.answerLimiter(it, m.look(&it.counter, 0))
		default:
			m.answerStopped(it)
		}
		m.deny(it, 0, it.hits)
	}
}

// anyOver looks at each descriptor by itself, for Config.StopWhenOver.
func (m *model) anyOver(items []*item) (any bool) {
	for _, it := range items {
		switch {
		case !it.limited || it.refund:
		case it.windowed():
			it.over = m.windows[it.id]+it.hits > it.limit
			m.need(DeniedHits, it.over && it.hits == 0)
		case it.second != nil:
			it.over = !m.split(it, 0, 0)
		default:
			it.over = !m.look(&it.counter, it.hits).Allowed
		}
		any = any || it.over
	}
	return any
}

// countOver counts the calls that are over under Config.StopWhenOver, and nothing else.
func (m *model) countOver(items []*item) {
	for _, it := range items {
		switch {
		case !it.limited:
		case it.refund:
			m.giveBack(it, 0)
		case it.windowed() && it.over:
			m.one(it)
		case it.windowed():
			it.over = m.windows[it.id] > it.limit           // by a charge before, of the same call
			m.answerWindow(it, it.hits <= m.windows[it.id]) // the hits are placed as if they came last, as upstream does
			m.deny(it, 0, it.hits)
		case it.second != nil:
			m.answerBoth(it, true)
		default:
			m.answerStopped(it)
			m.deny(it, 0, it.hits)
		}
	}
}

// deny notes denied hits, for their refunds.
func (m *model) deny(it *item, counted, missing int64) {
	if counted|missing == 0 {
		return
	}
	d := m.deniedOf(it)
	d.counted += counted
	d.missing += missing
}

func (m *model) deniedOf(it *item) *denials {
	d := m.denied[it.whose]
	if d == nil {
		d = &denials{}
		m.denied[it.whose] = d
	}
	if d.window != it.id {
		*d = denials{window: it.id, missing: d.missing + d.counted}
	}
	return d
}

// giveBack gives hits back, but for hits that were denied and not counted.
func (m *model) giveBack(it *item, n int64) {
	gone, spilled := int64(0), int64(0)
	if n > 0 {
		m.need(Refunds, true)
		d := m.deniedOf(it)
		gone = min(d.missing, n)
		d.missing -= gone
		d.counted -= min(d.counted, n-gone)
		back := n - gone
		switch {
		case it.windowed():
			m.windows[it.id] = max(0, m.windows[it.id]-back)
		case it.second != nil:
			known := m.spilledOf(it)
			spilled = min(back, known)
			m.spilled[it.id] = spill{known - spilled, m.spilled[it.id].until}
			it.second.lim.Refund(it.second.key, m.at, spilled)
			it.lim.Refund(it.key, m.at, back-spilled)
		default:
			it.lim.Refund(it.key, m.at, back)
		}
		s := m.stat(it.path)
		s[refunded] += n - spilled
		s[absorbed] += gone
		if it.second != nil {
			m.stat(it.second.path)[refunded] += spilled
		}
	}
	it.times = times{0, -1}
	it.remaining = m.room(&it.counter)
	switch {
	case it.windowed():
		it.times.reset = m.left(&it.counter)
	case it.second != nil:
		it.remaining += m.room(it.second)
	}
}

// reset is Engine.Reset.
func (m *model) reset(c *call) outcome {
	m.need(Resets, true)
	m.lapse()
	items := m.resolve(c)
	for _, it := range items {
		if !it.limited {
			return outcome{text: "invalid"}
		}
	}
	for _, it := range items {
		m.fresh(&it.counter)
		if it.second != nil {
			m.fresh(it.second)
			delete(m.spilled, it.id)
		}
		if d := m.denied[it.whose]; d != nil {
			d.missing, d.counted = d.missing+d.counted, 0
		}
		for _, h := range m.holds {
			before := len(h.limits)
			h.limits = slices.DeleteFunc(h.limits, func(l held) bool { return l.id == it.id })
			h.broken = h.broken || len(h.limits) < before
		}
	}
	return outcome{}
}

func (m *model) fresh(c *counter) {
	if c.windowed() {
		delete(m.windows, c.id)
	} else {
		c.lim.Reset(c.key)
	}
}
