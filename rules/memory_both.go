package rules

import (
	"time"

	"github.com/sluice-go/sluice"
)

// One TakeAll charges both budgets of a call, so that no other call sees the one without the other. The lock of the key is held from
// the look at the first budget to the charge, and all calls for that key take it. So the room that was seen is still there, unless a
// Swap lowers the limit just then: the call is denied.

// appendBoth divides the hits between the budgets, and appends the charges. The first budget has as many hits as it has room
// for, beside the charges that come before in the same call.
func (c *call) appendBoth(charges []sluice.Charge) []sluice.Charge {
	key, s := c.at(), c.second
	room := key.Peek(0).Remaining
	for i := range charges {
		if charges[i].Key == key {
			room -= min(room, charges[i].Cost)
		}
	}
	own := min(c.hits, uint64(room))
	s.hits = c.hits - own
	if own != 0 {
		charges = append(charges, sluice.Charge{Key: key, Cost: clampInt(own)})
	}
	if s.hits != 0 {
		charges = append(charges, sluice.Charge{Key: s.at(), Cost: clampInt(s.hits)})
	}
	return charges
}

// both charges both budgets, or none. The lock of the key is held.
func (m *memory) both(c *call, now int64) {
	var few [2]sluice.Charge
	all := sluice.AllDecision{Allowed: c.fitsBoth()}
	if c.hits != 0 {
		all = sluice.TakeAll(c.appendBoth(few[:0])...)
	}
	c.answerBoth(!all.Allowed, all.RetryAfter)
	m.noteBoth(c, now, !all.Allowed)
}

// fitsBoth reports whether the budgets have room for the hits together, or for one if there are none.
func (c *call) fitsBoth() bool {
	a, b := c.at().Peek(0), c.second.at().Peek(0)
	if c.hits == 0 {
		return a.Allowed || b.Allowed
	}
	return c.hits <= uint64(a.Remaining)+uint64(b.Remaining)
}

// standBoth fills in how both budgets stand, without the charges behind the call.
func (c *call) standBoth() {
	s := c.second
	c.decision, s.decision = c.at().Peek(0), s.at().Peek(0)
	c.decision.Remaining += clampInt(c.after)
	s.decision.Remaining += clampInt(s.after)
}

// answerBoth fills in the answer after the charge, or after none. over says whether there was no room here, for at least retry.
func (c *call) answerBoth(over bool, retry time.Duration) {
	if c.standBoth(); over {
		c.over = true
		c.decision.RetryAfter, c.second.decision.RetryAfter = c.at().Peek(clampInt(c.hits)).RetryAfter, retry
	}
}

// noteBoth notes the hits as denied, or which of them the second budget has.
func (m *memory) noteBoth(c *call, now int64, denied bool) {
	if s := c.second; denied {
		m.denied(c, now, 0, c.hits)
	} else if s.hits != 0 {
		m.spilled.add(c.id, s.name(), now, s.hits, s.decision.ResetAfter)
	}
}
