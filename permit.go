package sluice

import (
	"math"
	"runtime"
	"sync/atomic"
)

// A Permit is the right to units of an InFlight limit, from Acquire until Release. Its methods can be called
// concurrently. The zero Permit, and a nil one, hold nothing. Pass the pointer on: the Permit itself must not be copied,
// and go vet finds copies.
type Permit struct {
	lim   *Limiter
	id    uint64
	start uint64 // of the window that the units are counted in, or uncounted
	units owned
}

// uncounted is the start of a permit whose units are not counted: under Unlimited or Shadow, or without room for the key.
const uncounted = math.MaxUint64

// Acquire charges cost units to key until they are released, all or none:
//
//	p, err := lim.Acquire("user:42", 1)
//	if err != nil { ... } // ErrDenied
//	defer p.Release()
//
// It is AllowN for an InFlight limit, with a permit by which exactly these units are given back. A permit that is neither
// released nor renewed lapses: its units come back after the limit's Period, before the end of a second one. The error is
// ErrDenied if AllowN would be false, and ErrNotInFlight, without a call, under other algorithms. The permit is never nil; with an
// error, or a cost of 0, it holds nothing.
//
// Acquire allocates nothing if the permit stays in the calling function, as above. A permit that leaves it, as a
// result, in a field or with a goroutine, takes an allocation of 32 bytes.
//
// A permit knows its units by the time of the charge. Refund, Reset and Block take units away from permits without
// their knowledge; a permit from before may then give back units of others that were charged in the same Period. After a
// change of the limit's Period, permits from before are not held: their units come back by themselves.
func (l *Limiter) Acquire(key string, cost int) (*Permit, error) {
	p := new(Permit) // in the caller's frame, into which Acquire is inlined
	return p, p.acquireFor(l, key, cost)
}

// Acquire is Limiter.Acquire for this key.
func (k Key) Acquire(cost int) (*Permit, error) {
	p := new(Permit)
	return p, p.acquire(k, cost)
}

func (p *Permit) acquireFor(l *Limiter, key string, cost int) error {
	return p.acquire(l.Key(key), cost)
}

// acquire makes the zero Permit p one of the key, if it is admitted.
//
// It decides a call for a key in a table in this frame, as allowAt does.
func (p *Permit) acquire(k Key, cost int) error {
	l := k.lim.made()
	l.ahead(k.id)
	now := max(l.now(), 0)
	pol := l.current.Load()
	a, ok := pol.alg.(*inFlight)
	if !ok || k.terms != nil || pol.denies || !pol.fits(cost) {
		return p.acquireSlow(k, cost)
	}
	t := l.guide.tableOf(k.id)
	e, _ := t.lookup(k.id)
	if e == nil || t.policy != pol {
		return p.acquireSlow(k, cost)
	}
	word := e.word.Load()
	if word >= reserved {
		return p.acquireSlow(k, cost)
	}
	next, ok := a.charge(word, now, cost)
	switch {
	case !ok:
		l.count(k.id, denied)
		if !l.deny(k.id, "", cost) {
			return ErrDenied
		}
		p.hold(k, uncounted, cost)
		return nil
	case !e.word.CompareAndSwap(word, next):
		return p.acquireSlow(k, cost)
	}
	l.count(k.id, admitted)
	p.hold(k, a.unpack(next).number*a.period, cost)
	return nil
}

// hold makes the zero Permit p one for units of the key.
func (p *Permit) hold(k Key, start uint64, cost int) {
	p.lim, p.id, p.start, p.units.units = k.lim, k.id, start, uintptr(cost)
}

// acquireSlow is acquire by the way of TakeAll, which knows the state after the charge.
func (p *Permit) acquireSlow(k Key, cost int) error {
	if !k.lim.holds() {
		return ErrNotInFlight
	}
	var d AllDecision
	var claims [1]claim
	charges := [1]Charge{{k, cost}}
	t := transaction{charges: charges[:], space: claims[:]}
	start := uint64(uncounted)
	t.run(func() step {
		return t.takeAll(&d, true, func(int, uint64) {
			c := &claims[0]
			if a := c.policy.sliding(); a != nil && a.whole && c.slot != nil && cost > 0 && c.policy.keeps() {
				number, _ := c.policy.stamper().stamp(state{c.word, c.tail})
				start = number * a.period
			}
		})
	})
	if !d.Allowed {
		return ErrDenied
	}
	p.hold(k, start, cost)
	return nil
}

// Release gives the units back, whole. It returns ErrNotHeld, and changes nothing, if the permit has been released
// or has lapsed. Of several at the same time one gives the units back; the others may return before it has.
func (p *Permit) Release() error {
	if p == nil {
		return ErrNotHeld
	}
	units := p.units.take(0)
	switch {
	case units == 0:
		return ErrNotHeld
	case p.start == uncounted:
		return nil
	case !p.change(units, false):
		return ErrNotHeld
	}
	p.lim.awaiting.wake(p.id)
	return nil
}

// Renew holds the units for another Period from now on, as if they had just been acquired. It returns ErrNotHeld, and
// changes nothing, if the permit has been released or has lapsed.
func (p *Permit) Renew() error {
	if p == nil {
		return ErrNotHeld
	}
	units := p.units.take(renewing)
	if units != 0 {
		if p.start != uncounted && !p.change(units, true) {
			units = 0
		}
		atomic.StoreUintptr(&p.units.units, units)
	}
	if units == 0 {
		return ErrNotHeld
	}
	return nil
}

// owned are the units of a permit: 0 if nothing is held, and renewing while a Renew has them. The call that takes them
// owns the permit.
type owned struct {
	noCopy
	units uintptr
}

// noCopy lets go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

const renewing = math.MaxUint

// take returns the units, once no Renew has them, and leaves the mark in their place. It returns 0 if nothing is held.
func (o *owned) take(mark uintptr) (units uintptr) {
	units = atomic.LoadUintptr(&o.units)
	if units-1 < renewing-1 && atomic.CompareAndSwapUintptr(&o.units, units, mark) {
		return units
	}
	return o.takeLater(mark)
}

// takeLater is take for units that another call has, or has just had.
func (o *owned) takeLater(mark uintptr) (units uintptr) {
	for {
		units = atomic.LoadUintptr(&o.units)
		if units == renewing {
			runtime.Gosched()
		} else if units == 0 || atomic.CompareAndSwapUintptr(&o.units, units, mark) {
			return units
		}
	}
}

// change is moveOut for the permit, whose units the caller owns. It decides a call for a key in a table in this frame.
func (p *Permit) change(units uintptr, renew bool) (ok bool) {
	l := p.lim
	now := max(l.now(), 0)
	pol := l.current.Load()
	if a, one := pol.alg.(*inFlight); one {
		t := l.guide.tableOf(p.id)
		if e, _ := t.lookup(p.id); e != nil && t.policy == pol {
			if word := e.word.Load(); word < reserved {
				c, start, ok := a.moveOut(a.unpack(word), now, p.start, uint64(units), renew)
				if !ok {
					return false
				}
				if e.word.CompareAndSwap(word, a.pack(c)) {
					p.start = start
					t.idleSooner()
					return true
				}
			}
		}
	}
	return p.changeSlow(now, uint64(units), renew)
}

// changeSlow is change in every case: its closure would keep change's variables in memory.
func (p *Permit) changeSlow(now int64, n uint64, renew bool) (ok bool) {
	var start uint64
	tracked := p.lim.update(p.id, func(pol *policy, key state) (word uint64) {
		word, start, ok = pol.moveOut(key, now, p.start, n, renew)
		return word
	})
	if ok = ok && tracked; ok { // a try from before the key was dropped may have set ok
		p.start = start
	}
	return ok
}
