package redislimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-go/sluice"
)

// beginHold is begin for a call of a hold.
func (a *together) beginHold(i int, p *plan) error {
	call := &a.calls[i]
	if call.needsRoom() && call.HoldID == "" && a.denied < 0 && int64(call.Cost) > p.burst {
		a.denied = i
	}
	if call.needsNoRedis(p) {
		a.constant(i, p, call.Cost)
		if call.needsRoom() && a.denied < 0 && int64(call.Cost) > p.burst {
			a.denied = i
		}
		return nil
	}
	w := storeCall{subject: call.Limit.named.subject(call.Key), out: &a.out[i], call: call, before: -1}
	w.takeCall = call.Limit.newHold(p, call)
	w.terms, w.k = nil, 1
	w.owed = w.what != whatHold && a.store.owesHold(&w.request)
	for j := range a.work {
		if o := &a.work[j]; o.key == w.key && o.op == opHold && o.id == w.id {
			return fmt.Errorf("redislimit: DoAll of two holds %q of the key %q; want another HoldID for each", call.HoldID, call.Key)
		}
	}
	a.work, a.at = append(a.work, w), append(a.at, i)
	return nil
}

// settleHere settles holds of the share, if all calls are of such holds. If only some are, Redis is told of these before it is asked.
func (a *together) settleHere() (done bool, err error) {
	if len(a.work) < len(a.calls) {
		return false, nil
	}
	for i := range a.work {
		if a.work[i].what != whatSettle {
			return false, nil
		}
	}
	return a.store.settleHere(a.work)
}

// keepHere takes out the settlements of holds that stay with this process: Redis is not told of them. They are made behind all other calls.
func (a *together) keepHere() (here []storeCall, err error) {
	work, at := a.work[:0], a.at[:0]
	for i := range a.work {
		w := &a.work[i]
		stays := false
		if w.what == whatSettle {
			if stays, err = a.store.stays(&w.request, w.call.Remember > 0); err != nil {
				return nil, err
			}
		}
		if stays {
			here = append(here, *w)
		} else {
			work, at = append(work, *w), append(at, a.at[i])
		}
	}
	a.work, a.at = work, at
	return here, nil
}

// settleKept makes the settlements that keepHere has taken out, unless a call stands in the way.
func (a *together) settleKept(ctx context.Context, here []storeCall) error {
	for i := range here {
		w := &here[i]
		if a.denied >= 0 {
			*w.out = StoreResult{Decision: w.subject.share(w.plan).Peek(0), Source: FromFallback, HoldID: w.id}
			continue
		}
		done, err := a.store.settleHere(here[i : i+1])
		if err == nil && !done { // Redis has been told of it meanwhile
			out := make([]StoreResult, 1)
			err = errors.Join(a.store.do(ctx, []StoreCall{*w.call}, out), out[0].Err)
			*w.out = out[0]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repeats makes looks of the calls that make holds of the share again.
func (a *together) repeats(lane *lane) error {
	holds, all := int64(0), false
	for i := range a.work {
		w := &a.work[i]
		if w.what != whatHold {
			continue
		}
		holds++
		again, err := all, error(nil)
		if !all {
			again, err = lane.repeats(&w.request)
		}
		if err != nil {
			a.giveBack()
			return err
		}
		if all = all || again && w.allAgain; again {
			if a.within && !w.none {
				w.subject.share(w.plan).Refund(w.takeCall.cost)
			}
			w.k, w.charges, w.takeCall.cost, w.again = 0, false, 0, true
		}
	}
	if holds > 0 && a.store.heldHere.Load()+holds > int64(a.store.core.maxKeys) {
		a.giveBack()
		return ErrManyHolds
	}
	return nil
}

// needsNoRedis reports whether the outcome of a call of a hold is known without Redis: under Unlimited there is nothing to hold, and a limit of 0
// has no room. What needs no room is a hold there as elsewhere, so that it can be settled.
func (c *StoreCall) needsNoRedis(p *plan) bool {
	return p.constant() && (p.burst > 0 || c.Op == OpHold && c.needsRoom() && c.Cost > 0)
}

// needsRoom reports whether a call denies other calls if there is no room for it.
func (c *StoreCall) needsRoom() bool {
	return c.Op == OpTake || (c.Op == OpHold || c.Op == OpExtend) && !c.Over && !c.OrNone
}

// holdHere notes a hold that the share has admitted.
func (a *together) holdHere(i int, asked asked) error {
	w := &a.work[i]
	if w.out.HoldID, w.out.Held = w.id, int(w.n); w.none {
		w.out.Decision.Allowed, w.out.Held = false, 0
	}
	if w.again {
		w.out.Decision.Allowed, w.out.Decision.RetryAfter, w.out.Again = true, 0, true
		return nil
	}
	var share *sluice.Reservation
	if i < len(a.reservations) {
		share = a.reservations[i]
	}
	again, err := asked.lane.hold(asked.group, &w.request, w.none, share)
	if again || err != nil { // another call was first
		share.Cancel()
		w.out.Again = again
	}
	return err
}

// notYet is storeCall.notYet for the error of calls that are made together.
func (a *together) notYet(err error) error {
	for i := range a.work {
		err = a.work[i].notYet(err)
	}
	return err
}
