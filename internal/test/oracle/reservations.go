package oracle

import "math/big"

// Reservations is a key with reservations under GCRA, TokenBucket or LeakyBucket, with the
// history of all that it has been charged, so that it can say what would be left if a
// reservation had been smaller.
//
// The three differ in where the slot of a reservation is, and in nothing else: at the
// first instant at which the call would be admitted; under LeakyBucket, at the first one
// at which the queue is empty, provided that there is room now. It is charged at once, as
// if the call had been made then:
//
//	TAT = max(TAT, slot) + n*T
//
// The units that a reservation gives back are not always determined. They are by the history if
// that tells more than bounds: see Settle.
type Reservations struct {
	rule   *rule
	queue  bool
	now    *gcra
	first  *ticks // the time line of the first event
	base   big.Int
	events []*Event // since the TAT was base
	loose  bool     // a settlement among them was not exact
}

// Event is a charge of a key, or a refund. Events of Reserve are reservations.
type Event struct {
	arrival  int64 // of a reservation
	slot     int64
	units    int64 // less than 0: given back
	cost     int64 // of a reservation
	reserved bool
	settled  bool
	adopt    *ticks  // the time line from then on, if the limit has changed
	ended    bool    // forgotten: the charge has gone
	before   big.Int // the TAT without it, when it was made
}

// Outcome is the outcome of a Reserve.
type Outcome int

// The outcomes of Reserve.
const (
	Reserved Outcome = iota
	Negative
	TooMuch
	QueueFull
	TooLate
)

// NewReservations returns a fresh key.
func NewReservations(c Config) *Reservations {
	rule, tk := newRule(c, nil), newTicks(c)
	return &Reservations{rule: rule, queue: c.Algorithm == LeakyBucket, first: tk, now: newGCRA(tk, rule.limit)().(*gcra)}
}

// Take is Model.Take.
func (r *Reservations) Take(t, cost int64) Decision {
	d := (&key{rule: r.rule, state: r.now}).decide(t, cost, Decision{})
	if d.Allowed && cost > 0 {
		r.events = append(r.events, &Event{slot: t, units: cost})
	}
	return d
}

// Peek is Model.Peek.
func (r *Reservations) Peek(t, cost int64) Decision {
	return (&key{rule: r.rule, state: r.now.clone()}).decide(t, cost, Decision{})
}

// Reserve returns the wait for the slot, which is at most most, and the reservation. No wait
// is as short as a negative most.
func (r *Reservations) Reserve(t, cost, most int64) (wait int64, e *Event, out Outcome) {
	asked := max(cost, 1)
	switch {
	case cost < 0:
		return 0, nil, Negative
	case asked > r.rule.limit:
		return 0, nil, TooMuch
	case r.queue && !r.now.admits(t, asked):
		return 0, nil, QueueFull
	case r.queue:
		wait = leastWait(t, r.now.idle, 0)
	default:
		wait = leastWait(t, func(u int64) bool { return r.now.admits(u, asked) }, 0)
	}
	if wait > most {
		return 0, nil, TooLate
	}
	return wait, r.ReserveFor(t, cost, t+wait), Reserved
}

// ReserveFor is Reserve for a slot that is not before the one it would give.
func (r *Reservations) ReserveFor(t, cost, slot int64) *Event {
	e := &Event{arrival: t, slot: slot, units: cost, cost: cost, reserved: true}
	if cost > 0 {
		e.before.Set(&r.now.tat)
		r.now.charge(e.slot, cost)
		r.events = append(r.events, e)
	}
	return e
}

// Slot is when the reservation begins, and Used its units that count.
func (e *Event) Slot() int64 { return e.slot }

// Used is how many units count.
func (e *Event) Used() int64 { return e.units }

// Ended reports whether the charge of the reservation has gone with the key.
func (e *Event) Ended() bool { return e.ended }

// Refund is Model.Refund.
func (r *Reservations) Refund(t, cost int64) {
	if cost > 0 && r.now.tat.Cmp(r.now.at(t)) > 0 {
		cost = min(cost, r.rule.limit)
		r.now.refund(t, cost)
		r.events = append(r.events, &Event{slot: t, units: -cost})
	}
}

// Reset makes the key fresh, and lets all reservations end.
func (r *Reservations) Reset() {
	r.now.tat.SetInt64(0)
	r.forget()
}

// Evict drops the key, for want of room: it is fresh, and what it had been charged can no
// longer be given back.
func (r *Reservations) Evict() { r.Reset() }

func (r *Reservations) forget() {
	for _, e := range r.events {
		e.ended = true
	}
	r.events, r.first, r.loose = nil, r.now.ticks, false
	r.base.Set(&r.now.tat)
}

// SetLimit keeps the debt, in units, rounded up to a tick.
func (r *Reservations) SetLimit(t int64, c Config) {
	tk := newTicks(c)
	r.rule = newRule(c, r.rule)
	r.now.shift(t, tk)
	r.now.limit = new(big.Int).Set(tk.cost(r.rule.limit))
	r.events = append(r.events, &Event{slot: t, adopt: tk})
}

// shift makes s the state that adopts it on another time line.
func (s *gcra) shift(t int64, tk *ticks) {
	next := gcra{ticks: tk}
	next.adopt(s, t)
	s.ticks = tk
	s.tat.Set(&next.tat)
}

// replay returns the TAT after a history, with what the i-th event has left it at, and
// the latest slot before t that lies after the TAT that was there, or -1.
func (r *Reservations) replay(t int64, i int) (tat, mid *big.Int, gap bool) {
	s := &gcra{ticks: r.first}
	s.tat.Set(&r.base)
	changed := -1
	for j, e := range r.events {
		if e.adopt != nil {
			changed = j
		}
	}
	for j, e := range r.events {
		switch {
		case e.adopt != nil:
			s.shift(e.slot, e.adopt)
		case e.units < 0:
			s.refund(e.slot, -e.units)
		case e.units > 0:
			if a := s.at(e.slot); e.reserved && e.slot <= t && j > 0 && s.tat.Cmp(a) < 0 {
				gap = true
			}
			at := e.slot
			if e.reserved && j < changed {
				at = e.arrival // a wait for a slot is no unit that another limit would keep
			}
			s.charge(at, e.units)
		}
		if j == i {
			mid = new(big.Int).Set(&s.tat)
		}
	}
	return &s.tat, mid, gap
}

// Bounds are what the TAT can be after a Settle: what a history with what was used
// instead of the cost has, Least, or more, up to Most. A slot that others have been promised keeps its place in
// that history.
type Bounds struct{ Least, Most *big.Int }

// Settle lets only what was used count of the reservation, or charges the rest, and returns
// what the TAT can be then.
//
// It is exact if the TAT has been exact so far and nobody else has been charged since; or
// if, without what was not used, the key would be owed something all the while, and none
// of the slots that have begun follows a gap that another reservation has left.
// Otherwise at least what lies between now and the end of the reservation is given back,
// unless slots of others are to come, or there has been a refund or another limit since.
func (r *Reservations) Settle(e *Event, t, actual int64) Bounds {
	tat := new(big.Int).Set(&r.now.tat)
	as := Bounds{tat, tat}
	if e.settled {
		return as
	}
	e.settled = true
	switch {
	case actual > e.cost:
		rest := actual - e.cost
		r.now.charge(t, rest)
		r.events = append(r.events, &Event{slot: t, units: rest})
		as.Least, as.Most = &r.now.tat, &r.now.tat
		return as
	case actual < 0 || actual == e.cost || e.ended:
		return as
	}
	return r.giveBack(e, t, actual)
}

func (r *Reservations) giveBack(e *Event, t, actual int64) Bounds {
	tat := new(big.Int).Set(&r.now.tat)
	i, alone, changed, pending := 0, true, false, false
	for j, other := range r.events {
		switch {
		case other == e:
			i, alone, changed, pending = j, true, false, false
		case other.adopt != nil:
			r.loose = true
		case other.units < 0:
			alone, changed = false, true
		case other.units > 0:
			alone = false
			pending = pending || other.slot > t
		}
	}
	before, end, gap := r.replay(t, i)
	strict := !r.loose && before.Cmp(tat) == 0
	unused := new(big.Int).Mul(big.NewInt(e.units-actual), &r.now.unit)
	cost := e.units
	e.units = actual
	without, mid, _ := r.replay(t, i)
	now := new(big.Int).Set(r.now.at(t))
	if tat.Cmp(now) <= 0 || strict && !changed && end.Cmp(now) <= 0 {
		e.units = cost // it has come back by itself
		return Bounds{tat, tat}
	}
	b := Bounds{Least: larger(without, now), Most: tat}
	if strict && !changed && !gap && (alone || mid.Cmp(now) >= 0) {
		b.Most = b.Least
		return b
	}
	r.loose = true
	if strict && !changed && !gap && !pending {
		back := new(big.Int).Sub(end, now)
		if back.Cmp(unused) > 0 {
			back = unused
		}
		b.Most = new(big.Int).Sub(tat, back)
	}
	return b
}

func larger(x, y *big.Int) *big.Int {
	if x.Cmp(y) < 0 {
		return y
	}
	return x
}

// Observe makes tat, which must be within the bounds of the last Settle, what is owed. It
// reports whether it is.
func (r *Reservations) Observe(tat uint64, b Bounds) bool {
	x := new(big.Int).SetUint64(tat)
	if x.Cmp(b.Least) < 0 || x.Cmp(b.Most) > 0 {
		return false
	}
	r.now.tat.Set(x)
	return true
}

// TAT is the debt of the key, as a tick.
func (r *Reservations) TAT() *big.Int { return &r.now.tat }

// Rest forgets the history if the key is fresh at t, and reports whether it is.
func (r *Reservations) Rest(t int64) bool {
	if !r.now.idle(t) {
		return false
	}
	r.forget()
	return true
}

// Undo forgets the reservation that has just been made: it is asked what would be.
func (r *Reservations) Undo(e *Event) {
	if e == nil || e.cost == 0 {
		return
	}
	r.events = r.events[:len(r.events)-1]
	r.now.tat.Set(&e.before)
}
