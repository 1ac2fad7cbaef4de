package sluice

// Reset makes the key fresh, as if it had never been charged.
func (k Key) Reset() {
	l := k.lim.made()
	lg := l.ledgers.Of(k.id)
	rec := lg.Guard(k.id)
	defer lg.Unguard(rec)
	l.update(k.id, (*policy).reset) // the key stays in its table until a sweep finds it idle
	rec.Forget()
	l.awaiting.wake(k.id)
}

// Refund gives the key back cost units that it has been charged, for a call that should
// not count after all: a login that succeeded, say. It gives back at most the units
// that still count against the key, which makes the key fresh, and at most the
// burst and Config.Soft. A window algorithm gives back the units of the present window first;
// FixedWindow has none to give back of an earlier window. A cost below 1 does nothing.
// Under Unlimited, where nothing is charged, Refund does nothing; under a DenyAll that has
// replaced another limit it does the same as under that limit.
//
// WorstCase holds for units that were admitted and not refunded. Under SlidingLog a call
// with an older time than the units given back is then charged at its own time.
func (k Key) Refund(cost int) { k.lim.made().refundAt(k.id, k.lim.now(), cost) }

func (l *Limiter) refundAt(id uint64, now int64, cost int) {
	if cost <= 0 {
		return
	}
	now = max(now, 0)
	lg := l.ledgers.Of(id)
	rec := lg.Guard(id)
	given := uint64(0)
	l.update(id, func(p *policy, key state) uint64 {
		next := p.refund(key, now, cost)
		given = 0
		if a := p.line; a != nil && rec != nil && next != key.word { // it is not blocked
			given = a.full(key.word) - a.full(next)
		}
		return next
	})
	rec.Refunded(given)
	rec.Tell()
	lg.Unguard(rec)
	l.awaiting.wake(id)
}
