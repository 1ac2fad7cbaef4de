package redistier

import (
	"fmt"
	"time"
)

// beginHold is begin for a call of a hold.
func (a *together) beginHold(i int, p *plan) error {
	call := &a.calls[i]
	if call.Op != OpSettle && !call.Over && a.denied < 0 && int64(call.Cost) > p.burst {
		a.denied = i
	}
	if p.constant() && (call.Op == OpHold || p.burst > 0) {
		a.out[i] = StoreResult{Decision: p.decideConstant(call.Cost), Source: FromCache, HoldID: call.HoldID}
		return nil
	}
	w := storeCall{subject: call.Limit.named.subject(call.Key), out: &a.out[i], call: call, before: -1}
	w.takeCall = call.Limit.newHold(p, call)
	w.terms, w.k = nil, 1
	for j := range a.work {
		if o := &a.work[j]; o.key == w.key && o.op == opHold && o.id == w.id {
			return fmt.Errorf("redistier: DoAll of two holds %q of the key %q; want another HoldID for each", call.HoldID, call.Key)
		}
	}
	a.work, a.at = append(a.work, w), append(a.at, i)
	return nil
}

// settleHere settles holds of the share, if one of the calls is of one. Then all calls have to be of such holds.
func (a *together) settleHere() (done bool, err error) {
	n := 0
	for i := range a.work {
		if w := &a.work[i]; w.what == whatSettle && a.store.held.of(holdKey{w.key, w.id}) != nil {
			n++
		}
	}
	if n == 0 {
		return false, nil
	}
	if n < len(a.calls) {
		return false, fmt.Errorf("%w: Redis did not answer when some of these holds were made; want them settled by calls of their own", ErrNotHeld)
	}
	for i := range a.work {
		a.store.settleHere(&a.work[i], a.work[i].call)
	}
	return true, nil
}

// needsRoom reports whether a call stands in the way of others if there is no room for it.
func (c *StoreCall) needsRoom() bool {
	return c.Op == OpTake || (c.Op == OpHold || c.Op == OpExtend) && !c.Over
}

// holdHere notes a hold that the share has admitted.
func (a *together) holdHere(i int, asked asked) error {
	w := &a.work[i]
	of := &localHold{lane: asked.lane, units: w.n, late: asked.failed == errLate}
	if i < len(a.receipts) {
		of.receipt = a.receipts[i]
	}
	w.out.HoldID, w.out.Held = w.id, int(w.n)
	return a.store.held.add(holdKey{w.key, w.id}, of, time.Duration(w.ttl*micro), w.flags&flagGiveBack != 0)
}
