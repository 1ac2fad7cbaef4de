package rules

import (
	"cmp"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
)

// decideTogether judges all descriptors before it counts any. In an atomic domain a call that is
// denied counts nothing. With StopWhenOver only the descriptors over their limit are counted.
//
// Counters are locked by key, in order, while they are looked at and charged, so that no other
// call of the domain comes between. Limiters are charged by TakeAll, which is exact by itself,
// while the counters are locked; if it fails, the counters have not been charged yet. A call that is
// stopped gives nothing back either.
func (e *Engine) decideTogether(d *domainState, resp *Response, now int64) {
	held := e.lock(resp.work)
	defer e.unlock(held)
	stop := lookCounters(d.atomic, resp, now)
	all := sluice.AllDecision{Denied: -1}
	if !d.atomic {
		resp.putLater()
	}
	full := resp.listCharges(func(w *work) bool { return w.byTakeAll(d.atomic) })
	if stop = stop || full; !stop {
		all = sluice.TakeAll(resp.charges...)
		stop = !all.Allowed
	}
	if stop {
		resp.markLacking(d.atomic, all.Denied)
	} else {
		resp.noteAfter()
	}
	for i := range resp.work {
		w, st := &resp.work[i], &resp.Statuses[i]
		switch {
		case !w.limited:
		case w.second != nil && (w.byTakeAll(d.atomic) || w.later && stop):
			over := stop && (w.lacking || !w.fitsBoth())
			e.answerBoth(w, st, now, stop, over, all.RetryAfter)
		case w.byTakeAll(d.atomic), w.later && stop:
			w.answerLimiter(st, stop, all.RetryAfter)
			if stop {
				e.deny(w, st, now, 0, w.hits)
			}
		case stop && (d.atomic || !w.over):
			w.none = d.atomic
			e.take(w, st, now, 0)
			if !w.refund {
				e.deny(w, st, now, 0, w.hits)
			}
		case w.later: // not before what TakeAll has charged
			e.take(w, st, e.clock.Now(), w.hits)
		default:
			e.take(w, st, now, w.hits)
		}
	}
}

// lock locks the keys of all counters, and of all rules with a second budget.
func (e *Engine) lock(works []work) (held [4]uint64) {
	for i := range works {
		if w := &works[i]; w.limited && (w.counts || w.second != nil) {
			n := w.id >> 56
			held[n/64] |= 1 << (n % 64)
		}
	}
	for i, set := range held {
		for ; set != 0; set &= set - 1 {
			e.locks[i*64+bits.TrailingZeros64(set)].Lock()
		}
	}
	return held
}

func (e *Engine) unlock(held [4]uint64) {
	for i, set := range held {
		for ; set != 0; set &= set - 1 {
			e.locks[i*64+bits.TrailingZeros64(set)].Unlock()
		}
	}
}

// lookCounters marks the counters that would be over their limit, and reports whether that keeps
// others from being charged. If atomic is true, as in an atomic domain and for holds, a rule in shadow mode does not
// keep others from it, and charges of the same counter that fit add up.
func lookCounters(atomic bool, resp *Response, now int64) (stop bool) {
	for i := range resp.work {
		w := &resp.work[i]
		if !w.limited || !w.counts || w.refund || w.idle {
			continue
		}
		look := w.key().TakeAt(now, 0)
		sum := uint64(w.most-look.Remaining) + w.hits
		if atomic {
			for j := range i {
				if o := &resp.work[j]; o.limited && o.counts && !o.refund && (!o.over || o.shadow) && o.id == w.id && o.limiter == w.limiter {
					sum += o.hits
				}
			}
		}
		if sum > w.limit {
			w.over = true
			stop = stop || !atomic || !w.shadow
		}
	}
	return stop
}

// markLacking marks the descriptors that keep the others from being charged: if together, a descriptor that does not fit beside the
// charges before it that fit, else a descriptor that does not fit by itself. If there is none any longer, since others have given something
// back, it is the descriptor of the charge that TakeAll has found.
func (resp *Response) markLacking(together bool, denied int) {
	any := false
	for i := range resp.work {
		w, before := &resp.work[i], 0
		if together {
			before = i
		}
		switch {
		case !w.limited || w.idle || w.from == w.to && w.second == nil:
		case w.second != nil:
			w.lacking = !w.fitsBoth() || w.hits > resp.roomBeside(before, w.key())+resp.roomBeside(before, w.second.key())
		default:
			c := &resp.charges[w.from]
			look := c.Key.Peek(0)
			w.asked = w.hits + resp.taken(before, c.Key)
			w.lacking = w.asked > uint64(look.Remaining) || !look.Allowed
		}
		any = any || w.lacking
	}
	for i := range resp.work {
		if w := &resp.work[i]; !any && w.limited && denied >= w.from && denied < w.to {
			w.lacking = true
		}
	}
}

// roomBeside is the room of a key beside the charges of the first n descriptors, without those that lack room.
func (resp *Response) roomBeside(n int, key sluice.Key) uint64 {
	room := uint64(key.Peek(0).Remaining)
	return room - min(room, resp.taken(n, key))
}

// taken is what the first n descriptors charge a key, without those that lack room.
func (resp *Response) taken(n int, key sluice.Key) (sum uint64) {
	for i := range n {
		if w := &resp.work[i]; !w.lacking {
			sum += costOf(resp.charges[w.from:w.to], key)
		}
	}
	return sum
}

// noteAfter notes what was charged behind each descriptor: its answer tells how its keys stood before.
func (resp *Response) noteAfter() {
	for i := range resp.work {
		w := &resp.work[i]
		behind := resp.charges[w.to:]
		if len(behind) == 0 {
			return
		}
		switch {
		case w.second != nil:
			w.after, w.second.after = costOf(behind, w.key()), costOf(behind, w.second.key())
		case w.from < w.to:
			w.after = costOf(behind, resp.charges[w.from].Key)
		}
	}
}

// costOf is what charges charge a key.
func costOf(charges []sluice.Charge, key sluice.Key) (sum uint64) {
	for i := range charges {
		if charges[i].Key == key {
			sum += uint64(charges[i].Cost)
		}
	}
	return sum
}

// byTakeAll reports whether TakeAll charges the limit of a descriptor: a limiter that can stand in the way of others.
func (w *work) byTakeAll(atomic bool) bool {
	return w.limited && !w.counts && !w.refund && !w.later && !(atomic && w.shadow)
}

// putLater has limiters that fit by themselves, and that the call charges before, charged by themselves, after the others: the second
// charge of a key may then be denied, as in a window.
func (resp *Response) putLater() {
	for i := range resp.work {
		w := &resp.work[i]
		if !w.byTakeAll(false) {
			continue
		}
		for j := range i {
			if o := &resp.work[j]; o.byTakeAll(false) && o.id == w.id && o.limiter == w.limiter {
				w.later = w.second == nil && w.key().Peek(clampInt(w.hits)).Allowed || w.second != nil && w.fitsBoth()
				break
			}
		}
	}
}

// listCharges lists the charges of the descriptors that can stand in the way of others. It reports whether one of them looks at two
// budgets and finds no room.
func (resp *Response) listCharges(inTheWay func(*work) bool) (full bool) {
	resp.charges = resp.charges[:0]
	for i := range resp.work {
		w := &resp.work[i]
		w.from = len(resp.charges)
		switch {
		case !inTheWay(w):
		case w.second == nil:
			resp.charges = append(resp.charges, sluice.Charge{Key: w.key(), Cost: clampInt(w.hits)})
		case w.hits != 0:
			resp.charges = w.appendBoth(resp.charges)
		default:
			full = full || !w.fitsBoth()
		}
		w.to = len(resp.charges)
	}
	return full
}

// answerLimiter fills in how a limiter stands after TakeAll. If the call is stopped, TakeAll has not charged
// it: a descriptor that lacks room beside others waits until all of them fit, or for retry.
func (w *work) answerLimiter(st *Status, stopped bool, retry time.Duration) {
	if !stopped {
		d := w.key().Peek(0)
		d.Remaining += clampInt(w.after)
		w.limiterStatus(st, &d, false)
		return
	}
	d := w.key().Peek(clampInt(w.hits))
	if w.lacking && (d.Allowed || w.asked > w.hits) { // by itself it would be admitted, or earlier
		d = w.key().Peek(0)
		d.RetryAfter = cmp.Or(w.key().Peek(clampInt(w.asked)).RetryAfter, retry)
	}
	w.limiterStatus(st, &d, w.lacking || !d.Allowed)
}
