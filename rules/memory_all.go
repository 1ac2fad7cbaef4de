package rules

import (
	"cmp"
	"time"

	"github.com/sluice-go/sluice"
)

// together judges all calls before it counts any. Of allOrNone a batch that is denied counts nothing. Of onlyWhatOver
// only the calls over their limit are counted.
//
// Windows are locked by key, in order, while they are looked at and charged, so that no other batch comes between. Limiters are
// charged by TakeAll, which is exact by itself, while the windows are locked; if it fails, the windows have not been charged yet. A
// batch that is stopped gives nothing back either.
func (m *memory) together(b *batch) {
	held := m.lock(b.calls)
	defer m.unlock(held)
	stop := b.lookCounters()
	all := sluice.AllDecision{Denied: -1}
	if b.mode == onlyWhatOver {
		b.putLater()
	}
	full := b.listCharges(b.byTakeAll)
	if stop = stop || full; !stop {
		all = sluice.TakeAll(b.charges...)
		stop = !all.Allowed
	}
	if stop {
		b.markLacking(all.Denied)
	} else {
		b.noteAfter()
	}
	for i := range b.calls {
		c := &b.calls[i]
		switch {
		case c.counter == nil:
		case c.second != nil && (b.byTakeAll(c) || c.later && stop):
			c.stopped = stop
			c.answerBoth(stop && (c.lacking || !c.fitsBoth()), all.RetryAfter)
			m.noteBoth(c, b.now, stop)
		case b.byTakeAll(c), c.later && stop:
			c.answerLimiter(stop, all.RetryAfter)
			if stop {
				m.denied(c, b.now, 0, c.hits)
			}
		case stop && (b.mode == allOrNone || !c.over):
			c.stopped, c.none = true, b.mode == allOrNone
			m.one(c, b.now, 0)
			if c.op != GiveBack {
				m.denied(c, b.now, 0, c.hits)
			}
		case c.later: // not before the charges of TakeAll
			m.one(c, m.config.Clock.Now(), c.hits)
		default:
			m.one(c, b.now, c.hits)
		}
	}
}

// lookCounters marks the windows that would be over their limit, and reports whether that keeps
// others from being charged. Of allOrNone a call in shadow mode does not keep others from it, and charges of the same
// window that fit add up.
func (b *batch) lookCounters() (stop bool) {
	for i := range b.calls {
		c := &b.calls[i]
		if c.counter == nil || !c.counts || c.op == GiveBack || c.idle {
			continue
		}
		look := c.at().TakeAt(b.now, 0)
		sum := c.here().count(look.Remaining) + c.hits
		if b.mode == allOrNone {
			for j := range i {
				if o := &b.calls[j]; o.counter != nil && o.counts && o.op != GiveBack && (!o.over || o.shadow) && o.at() == c.at() {
					sum += o.hits
				}
			}
		}
		if sum > c.limit {
			c.over = true
			stop = stop || b.mode == onlyWhatOver || !c.shadow
		}
	}
	return stop
}

// markLacking marks the calls that keep the others from being charged: of allOrNone a call that does not fit beside the
// charges before it that fit, else a call that does not fit by itself. If there is none any longer, since others have given something
// back, it is the call of the charge that TakeAll has found.
func (b *batch) markLacking(denied int) {
	any := false
	for i := range b.calls {
		c, before := &b.calls[i], 0
		if b.mode == allOrNone {
			before = i
		}
		switch {
		case c.counter == nil || c.idle || c.from == c.to && c.second == nil:
		case c.second != nil:
			c.lacking = !c.fitsBoth() || c.hits > b.roomBeside(before, c.at())+b.roomBeside(before, c.second.at())
		default:
			key := c.at()
			look := key.Peek(0)
			c.asked = c.hits + b.taken(before, key)
			c.lacking = c.asked > uint64(look.Remaining) || !look.Allowed
		}
		any = any || c.lacking
	}
	for i := range b.calls {
		if c := &b.calls[i]; !any && c.counter != nil && denied >= c.from && denied < c.to {
			c.lacking = true
		}
	}
}

// roomBeside is the room of a key beside the charges of the first n calls, without those that lack room.
func (b *batch) roomBeside(n int, key sluice.Key) uint64 {
	room := uint64(key.Peek(0).Remaining)
	return room - min(room, b.taken(n, key))
}

// taken are the charges of the first n calls for a key, without calls that lack room.
func (b *batch) taken(n int, key sluice.Key) (sum uint64) {
	for i := range n {
		if c := &b.calls[i]; !c.lacking {
			sum += costOf(b.charges[c.from:c.to], key)
		}
	}
	return sum
}

// noteAfter notes the charges behind each call: its answer tells how its keys stood before.
func (b *batch) noteAfter() {
	for i := range b.calls {
		c := &b.calls[i]
		behind := b.charges[c.to:]
		if len(behind) == 0 {
			return
		}
		switch {
		case c.op == GiveBack:
		case c.second != nil:
			c.after, c.second.after = costOf(behind, c.at()), costOf(behind, c.second.at())
		case c.from < c.to:
			c.after = costOf(behind, b.charges[c.from].Key)
		}
	}
}

// costOf is the sum of charges for a key.
func costOf(charges []sluice.Charge, key sluice.Key) (sum uint64) {
	for i := range charges {
		if charges[i].Key == key {
			sum += uint64(charges[i].Cost)
		}
	}
	return sum
}

// byTakeAll reports whether TakeAll makes a call: of a limiter that can stand in the way of others.
func (b *batch) byTakeAll(c *call) bool {
	return c.counter != nil && !c.counts && c.op != GiveBack && !c.later && !(b.mode == allOrNone && c.shadow)
}

// putLater has limiters that fit by themselves, and that the call charges before, charged by themselves, after the others: the second
// charge of a key may then be denied, as in a window.
func (b *batch) putLater() {
	for i := range b.calls {
		c := &b.calls[i]
		if !b.byTakeAll(c) {
			continue
		}
		for j := range i {
			if o := &b.calls[j]; b.byTakeAll(o) && o.at() == c.at() {
				c.later = c.second == nil && c.at().Peek(clampInt(c.hits)).Allowed || c.second != nil && c.fitsBoth()
				break
			}
		}
	}
}

// listCharges lists the charges of the calls that can stand in the way of others. It reports whether one of them looks at two
// budgets and finds no room.
func (b *batch) listCharges(inTheWay func(*call) bool) (full bool) {
	b.charges = b.charges[:0]
	for i := range b.calls {
		c := &b.calls[i]
		c.from = len(b.charges)
		switch {
		case !inTheWay(c):
		case c.second == nil:
			b.charges = append(b.charges, sluice.Charge{Key: c.at(), Cost: clampInt(c.hits)})
		case c.hits != 0:
			b.charges = c.appendBoth(b.charges)
		default:
			full = full || !c.fitsBoth()
		}
		c.to = len(b.charges)
	}
	return full
}

// answerLimiter fills in how a limiter stands after TakeAll. If the call is stopped, TakeAll has not charged
// it: a call that lacks room beside others waits until all of them fit, or for retry.
func (c *call) answerLimiter(stopped bool, retry time.Duration) {
	if !stopped {
		c.decision = c.at().Peek(0)
		c.decision.Remaining += clampInt(c.after)
		return
	}
	c.stopped = true
	d := c.at().Peek(clampInt(c.hits))
	if c.lacking && (d.Allowed || c.asked > c.hits) { // by itself it would be admitted, or earlier
		d = c.at().Peek(0)
		d.RetryAfter = cmp.Or(c.at().Peek(clampInt(c.asked)).RetryAfter, retry)
	}
	c.decision, c.over = d, c.over || c.lacking || !d.Allowed
}
