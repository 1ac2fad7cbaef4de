package rules

import (
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
	if !stop {
		all = resp.takeLimiters(d.atomic)
		stop = !all.Allowed
	}
	for i := range resp.work {
		w, st := &resp.work[i], &resp.Statuses[i]
		switch {
		case !w.limited:
		case w.byTakeAll(d.atomic) && w.second != nil:
			over := stop && (w.holds(all.Denied) || !w.fitsBoth())
			e.answerBoth(w, st, now, stop, over, all.RetryAfter)
		case w.byTakeAll(d.atomic), w.later && stop:
			w.answerLimiter(st, stop, w.holds(resp.deniedCharge(all.Denied)), all.RetryAfter)
			if stop {
				e.deny(w, st, now, 0, w.hits)
			}
		case stop && (d.atomic || !w.over):
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
// keep others from it, and charges of the same counter add up.
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
				if o := &resp.work[j]; o.limited && o.counts && !o.refund && o.id == w.id && o.limiter == w.limiter {
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

// holds reports whether a charge of TakeAll is one of the descriptor's.
func (w *work) holds(charge int) bool { return charge >= w.from && charge < w.to }

// deniedCharge returns the charge with which the charges of a key no longer fit. TakeAll names the first charge of the key.
func (resp *Response) deniedCharge(denied int) int {
	if denied < 0 {
		return denied
	}
	key := resp.charges[denied].Key
	left := key.Peek(0).Remaining
	for i, c := range resp.charges[denied:] {
		if c.Key != key {
			continue
		}
		if c.Cost > left {
			return denied + i
		}
		left -= c.Cost
	}
	return denied
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
		if !w.byTakeAll(false) || w.second != nil {
			continue
		}
		for j := range i {
			if o := &resp.work[j]; o.byTakeAll(false) && o.id == w.id && o.limiter == w.limiter {
				w.later = w.key().Peek(clampInt(w.hits)).Allowed
				break
			}
		}
	}
}

// takeLimiters charges all limiters, or none.
func (resp *Response) takeLimiters(atomic bool) sluice.AllDecision {
	resp.charges = resp.charges[:0]
	for i := range resp.work {
		w := &resp.work[i]
		w.from = len(resp.charges)
		switch {
		case !w.byTakeAll(atomic):
		case w.second == nil:
			resp.charges = append(resp.charges, sluice.Charge{Key: w.key(), Cost: clampInt(w.hits)})
		case w.hits == 0 && !w.fitsBoth():
			return sluice.AllDecision{Denied: -1}
		case w.hits != 0:
			resp.charges = w.appendBoth(resp.charges)
		}
		w.to = len(resp.charges)
	}
	return sluice.TakeAll(resp.charges...)
}

// answerLimiter fills in how a limiter stands after TakeAll. If the call is stopped, TakeAll has not charged
// it. denied says whether it was the first that stood in the way.
func (w *work) answerLimiter(st *Status, stopped, denied bool, retry time.Duration) {
	if !stopped {
		d := w.key().Peek(0)
		w.limiterStatus(st, &d, false)
		return
	}
	d := w.key().Peek(clampInt(w.hits))
	if denied && d.Allowed { // by itself it would be admitted
		d.RetryAfter, d.Remaining = retry, w.key().Peek(0).Remaining
	}
	w.limiterStatus(st, &d, denied || !d.Allowed)
}
