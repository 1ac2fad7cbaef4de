package countertest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// hold is a hold of the model.
type hold struct {
	request, names, used string
	back, ended, broken  bool // broken: one of its keys was reset
	limits               []held
	steps                map[string]bool
	until                int64 // when it lapses, or is forgotten
}

// held are the units of a hold in a limit.
type held struct {
	counter
	units int64
}

const remembered = int64(10 * time.Minute)

// names are the descriptors of a call as they name a hold, and requested are they with their hits.
func (c *call) names() (out string) {
	for i := range c.descriptors {
		d := &c.descriptors[i]
		named := d.entries
		if d.counted {
			named = named[:1]
		}
		out += entriesOf(named)
		if d.override != nil {
			out += fmt.Sprint(*d.override)
		}
	}
	return out
}

func hitsOf(items []*item) (out string) {
	for _, it := range items {
		out += fmt.Sprint(it.hits, " ")
	}
	return out
}

// lapse ends the holds whose time is over.
func (m *model) lapse() {
	for id, h := range m.holds {
		if h.until <= m.at {
			m.give(h)
			delete(m.holds, id)
		}
	}
	kept := m.rests[:0]
	for _, h := range m.rests {
		if h.until <= m.at {
			m.give(h)
		} else {
			kept = append(kept, h)
		}
	}
	m.rests = kept
}

// give gives back the units of a hold that has lapsed, if it gives back.
func (m *model) give(h *hold) {
	if h.ended {
		return
	}
	for i := range h.limits {
		l := &h.limits[i]
		if h.back || l.inFlight {
			m.move(&l.counter, -l.units)
		}
	}
}

// move adds units to a count, whether they fit or not, or takes them off.
func (m *model) move(c *counter, units int64) {
	switch {
	case c.windowed():
		m.windows[c.id] = max(0, m.windows[c.id]+units)
	case units > 0:
		c.lim.Debit(c.key, m.at, units)
	case units < 0:
		c.lim.Refund(c.key, m.at, -units)
	}
}

// notHeld is the answer to a call about a hold that is not there.
func (m *model) notHeld(items []*item) outcome {
	m.need(OtherHolds, true)
	if !m.script.shadow {
		return outcome{text: "not held"}
	}
	text := "OK"
	for range items {
		text += " -"
	}
	return outcome{text: text}
}

// charge is Engine.Hold and Engine.Extend.
func (m *model) charge(c *call) outcome {
	m.lapse()
	items := m.resolve(c)
	limited, ruled := 0, true
	for _, it := range items {
		it.idle = it.hits == 0
		ruled = ruled && it.ruled
		if it.limited {
			limited++
			m.need(HoldsOfThen, it.second != nil)
			m.need(HoldsOfLog, strings.Contains(it.id, " sliding-log "))
		}
	}
	m.need(Extensions, c.op == "extend")
	m.need(Lapses, c.ttl < time.Minute)
	id, known, extends := c.domain+" "+c.id, m.holds[c.domain+" "+c.id], c.op == "extend"
	request := fmt.Sprint(c.names(), hitsOf(items), c.back)
	switch {
	case limited == 0 && extends && !ruled:
		return m.notHeld(items)
	case limited == 0:
		m.estimate(items)
		return m.answer(items, "")
	case extends && (known == nil || known.ended || known.names != c.names() || !known.knows(items)):
		return m.notHeld(items)
	case extends && c.step != "" && known.steps[c.step]:
		return m.again(items)
	case !extends && known != nil && known.request != request:
		m.need(OtherHolds, true)
		return outcome{text: "other"}
	case !extends && known != nil && known.ended:
		m.need(OtherHolds, true)
		return outcome{text: "ended"}
	case !extends && known != nil:
		return m.again(items)
	}
	if m.judge(items) {
		m.refuseHold(items)
		return m.answer(items, "")
	}
	h := known
	if !extends {
		h = &hold{request: request, names: c.names(), back: c.back, steps: map[string]bool{}}
		m.holds[id] = h
	}
	m.hold(h, items)
	m.estimate(items)
	h.until = m.at + int64(c.ttl)
	if c.step != "" {
		h.steps[c.step] = true
	}
	return m.answer(items, "")
}

// estimate counts the hits of holds that were admitted.
func (m *model) estimate(items []*item) {
	for _, it := range items {
		if it.ruled {
			m.stat(it.path)[estimated] += it.hits
		}
	}
}

// hold charges a hold, which fits.
func (m *model) hold(h *hold, items []*item) {
	for _, it := range items {
		if !it.limited {
			continue
		}
		units := it.hits
		switch {
		case it.windowed():
			m.windows[it.id] += it.hits
		case !it.lim.Take(it.key, m.at, it.hits).Allowed && it.hits > 0:
			it.over, units = true, 0 // of a rule in shadow mode
		}
		h.add(&it.counter, units)
	}
	for _, it := range items {
		switch {
		case !it.limited:
		case it.idle:
			m.answerIdle(it)
		case it.windowed():
			it.over = it.shadow && m.windows[it.id] > it.limit
			m.need(DeniedHits, m.windows[it.id] > it.limit)
			m.answerWindow(it, true)
		case it.over:
			d := m.look(&it.counter, it.hits)
			d.Remaining = m.room(&it.counter)
			m.answerLimiter(it, d)
			it.times.retry = -1 // it passes
		default:
			m.answerLimiter(it, m.look(&it.counter, 0))
		}
	}
}

// add adds units to the units held in a limit. A hold has one number for each count.
func (h *hold) add(c *counter, units int64) {
	for i := range h.limits {
		if h.limits[i].id == c.id {
			h.limits[i].units += units
			return
		}
	}
	h.limits = append(h.limits, held{*c, units})
}

// knows reports whether a hold has all limits of a call, and has not lost a key.
func (h *hold) knows(items []*item) bool {
	for _, it := range items {
		found := !it.limited
		for _, l := range h.limits {
			found = found || l.id == it.id
		}
		if !found {
			return false
		}
	}
	return !h.broken
}

// answerIdle fills in how a count stands that is asked for nothing.
func (m *model) answerIdle(it *item) {
	it.over, it.remaining, it.times = false, m.room(&it.counter), times{0, -1}
}

// again answers a call that was made before.
func (m *model) again(items []*item) outcome {
	for _, it := range items {
		if it.limited {
			m.answerIdle(it)
		}
	}
	return m.answer(items, " again")
}

// refuseHold answers a hold that does not fit, with the remaining hits without it.
func (m *model) refuseHold(items []*item) {
	for _, it := range items {
		switch {
		case !it.limited:
		case it.idle:
			m.answerIdle(it)
		case it.windowed():
			m.answerWindow(it, false)
		default:
			d := m.look(&it.counter, max(it.asked, it.hits))
			it.over = it.over || !d.Allowed
			d.Remaining = m.room(&it.counter)
			m.answerLimiter(it, d)
			it.times.reset = -1
			if it.times.retry != sluice.Never && twice(items, it) {
				it.times.retry = -1 // until it fits, or until the key is fresh
			}
		}
	}
}

// twice reports whether another item has the count of it.
func twice(items []*item, it *item) bool {
	return slices.ContainsFunc(items, func(o *item) bool { return o != it && o.id == it.id })
}

// end is Engine.Settle and Engine.Release.
func (m *model) end(c *call) outcome {
	m.lapse()
	items := m.resolve(c)
	limited, ruled := 0, true
	for _, it := range items {
		if c.op == "release" {
			it.hits = 0
		}
		ruled = ruled && it.ruled
		if it.limited {
			limited++
		}
	}
	known, used := m.holds[c.domain+" "+c.id], hitsOf(items)
	switch {
	case limited == 0 && !ruled:
		return m.notHeld(nil)
	case limited == 0:
		m.settle(items)
		return outcome{text: "OK"}
	case known == nil || known.names != c.names() || !known.ended && !known.knows(items) || known.ended && known.used != used:
		return m.notHeld(nil)
	case known.ended:
		return outcome{text: "OK again"}
	}
	text := "OK"
	rest := &hold{back: known.back, until: known.until}
	for i := range known.limits {
		l := &known.limits[i]
		actual, debt, found := int64(0), int64(0), false
		for _, it := range items {
			if it.limited && it.id == l.id {
				actual, debt, found = add(actual, it.hits), add(debt, it.debt), true
			}
		}
		switch {
		case !found:
			rest.limits = append(rest.limits, *l)
			continue
		case l.inFlight: // a call that has ended uses nothing
			actual = 0
		case actual > l.units && actual-l.units > debt:
			actual, text = l.units+debt, "OK capped"
		}
		m.move(&l.counter, actual-l.units)
		m.need(DeniedHits, l.windowed() && m.windows[l.id] > l.limit)
	}
	if len(rest.limits) > 0 {
		m.rests = append(m.rests, rest)
	}
	m.settle(items)
	known.ended, known.used, known.until = true, used, max(known.until, m.at+remembered)
	return outcome{text: text}
}

func add(a, b int64) int64 {
	if a > 1<<62-b {
		return 1 << 62
	}
	return a + b
}

// settle counts the hits of holds that were used.
func (m *model) settle(items []*item) {
	for _, it := range items {
		if it.ruled {
			m.stat(it.path)[settled] += it.hits
		}
	}
}
