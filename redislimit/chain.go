package redislimit

import (
	"fmt"
	"math"

	"github.com/sluice-go/sluice"
)

// A Part says how many units a call of DoAll is about. A call of Whole and the calls of other Parts right behind it are a
// chain: they divide its Cost among them. Their own Costs are not used.
type Part uint8

const (
	// Whole is Cost.
	Whole Part = iota
	// Rest is the rest of the Cost that the calls of its chain before it have left: an OpTake charges as many units as there is room
	// for if a Rest follows it, and never denies then. An OpRefund leaves the units that its key does not have.
	Rest
	// Same is as many units as the call before it has charged, or given back. It leaves as many as that one.
	Same
)

// chained is how a call is part of a chain.
type chained struct {
	part  Part
	leads bool // calls behind it depend on the units that it has made, or left
	upTo  bool // it takes as much as there is room for
}

// in reports whether the call is part of a chain.
func (c chained) in() bool { return c.leads || c.part != Whole }

// chained returns how a call is part of a chain, or an error if it cannot be.
func (a *together) chained(i int, p *plan) (c chained, err error) {
	call := &a.calls[i]
	c.part, c.upTo = call.Part, a.upTo(i)
	c.leads = c.part != Same && a.divides(i)
	if !c.in() {
		return c, nil
	}
	return c, c.check(i, call, p)
}

func (c chained) check(i int, call *StoreCall, p *plan) error {
	switch {
	case i == 0 && c.part != Whole:
		return fmt.Errorf("redislimit: call 0 is about a part of the call before it, and there is none; want Whole")
	case c.leads && call.Op != OpTake && call.Op != OpRefund, call.Op != OpTake && call.Op != OpRefund && call.Op != OpDebit:
		return fmt.Errorf("redislimit: call %d: %v divides no units; want OpTake or OpRefund with other calls of its chain behind it, or one of these or OpDebit at its end", i, call.Op)
	case c.part == Whole && call.Cost < 1:
		return fmt.Errorf("redislimit: call %d: a Cost of %d cannot be divided; want at least 1", i, call.Cost)
	case call.Op == OpTake && p.constant(), !p.counts():
		return fmt.Errorf("redislimit: call %d: its limit, %v, counts no units; want one with a Rate of at least 1, and not Unlimited", i, p.limit)
	case call.Op == OpTake && p.block > 0:
		return fmt.Errorf("redislimit: call %d: its limit has BlockFor, and units cannot be divided; want a limit without", i)
	case c.upTo && p.burst > math.MaxUint32:
		return fmt.Errorf("redislimit: call %d: its limit admits %d units at once, and what is left of them is known up to %d; want a smaller one, or Whole behind it", i, p.burst, uint32(math.MaxUint32))
	case c.leads && call.Op == OpRefund && !p.whole():
		return fmt.Errorf("redislimit: call %d: its limit tells of no whole units that it gives back; want FixedWindow, FixedWindowFirstCharge or InFlight, without MaxHolds", i)
	}
	return nil
}

// whole reports whether a view has the units that a refund can give back, as whole numbers.
func (p *plan) whole() bool {
	letter := p.letter()
	return letter == 'w' || letter == 'a' || letter == datedLetter || letter == inFlightLetter
}

// newPart returns a call of a chain. Redis puts the number of its units in, if that is not the Cost.
func (l *StoreLimit) newPart(p *plan, call *StoreCall, c chained) takeCall {
	cost := call.Cost
	if c.part != Whole {
		cost = 1
	}
	t := l.newCall(p, call.Key, cost, call.Op)
	t.chained = c
	if call.Op == OpTake {
		t.n, t.k, t.cost = min(int64(cost), exact/2-1), 1, cost
	}
	return t
}

// divided puts in the units that Redis says each call of a chain is about. calls are those that it was sent.
func (a *together) divided(r *allReply, calls []takeCall) {
	for i := range a.work {
		w := &a.work[i]
		w.takeCall = calls[i] // the shares may have divided them otherwise
		if !w.in() {
			continue
		}
		w.n = r.units[i]
		if made := r.made(); w.op == opAdmit && (made || !w.upTo) {
			w.cost = int(w.n)
		}
		if r.made() {
			w.out.Units = int(w.n)
		}
	}
}

// divide divides the units of chains as the shares stand. A call that is then about no units becomes a look.
func (a *together) divide() {
	left, made := int64(0), int64(0)
	for i := range a.work {
		w := &a.work[i]
		if !w.in() {
			continue
		}
		n := int64(w.call.Cost)
		switch w.part {
		case Rest:
			n = left
		case Same:
			n = made
		}
		units := n
		if w.upTo || w.leads && w.call.Op == OpRefund {
			units = min(n, a.shareHas(i))
		}
		if w.part != Same {
			left, made = n-units, units
		}
		w.out.Units = int(units)
		c := w.chained
		w.takeCall = w.call.Limit.newPart(w.plan, w.call, c)
		switch w.n = units; {
		case units == 0:
			w.op, w.k, w.n, w.cost, w.charges, w.judges = opAdmit, 0, 1, 0, false, false
		case w.op == opAdmit:
			w.cost = int(units)
		}
		w.terms = nil
	}
}

// shareHas returns how many units the share of a call has room for, or has to give back. Without shares there is room
// for all that the limit admits at once, and nothing to give back.
func (a *together) shareHas(i int) int64 {
	w := &a.work[i]
	refund := w.call.Op == OpRefund
	if a.store.decides() != LocalShare {
		if refund {
			return 0
		}
		return w.plan.burst
	}
	d := w.subject.share(w.plan).Peek(0)
	if refund {
		return int64(d.Limit - d.Remaining)
	}
	room := int64(d.Remaining)
	for j := range a.work[:i] { // which are charged together
		if o := &a.work[j]; o.k > 0 && o.subject.id == w.subject.id {
			room -= o.n
		}
	}
	return max(room, 0)
}

// divides reports whether a call has further calls of its chain behind it.
func (a *together) divides(i int) bool { return i+1 < len(a.calls) && a.calls[i+1].Part != Whole }

// upTo reports whether a call takes as much as there is room for.
func (a *together) upTo(i int) bool {
	next := i + 1
	for next < len(a.calls) && a.calls[next].Part == Same {
		next++
	}
	return a.calls[i].Op == OpTake && a.calls[i].Part != Same && next < len(a.calls) && a.calls[next].Part == Rest
}

// standing is the decision on a key that tells how it stands, and whether there is room as asked says.
func standing(stands, asked sluice.Decision) sluice.Decision {
	stands.Allowed, stands.RetryAfter = asked.Allowed, asked.RetryAfter
	return stands
}
