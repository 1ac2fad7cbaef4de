package sluice

import "time"

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

// Block denies all calls for the key for the time d, or longer if the key is already blocked for
// longer or would take longer to become fresh without a block. Then the key is fresh. A block
// that would end after 2116 never ends; a d that is not positive does nothing. Block reports
// whether it has blocked the key: it cannot if there is no room for the key at MaxKeys under
// OverflowDenyNew and OverflowAdmitNew. OverflowEvictSoonest drops blocked keys last. A block holds
// under any limit, Unlimited too, and a new limit does not end it.
func (k Key) Block(d time.Duration) (blocked bool) {
	l := k.lim.made()
	now := max(l.now(), 0)
	if d <= 0 {
		return false
	}
	k.act(false, func(p *policy, key state) uint64 {
		blocked = true
		return p.block(key, after(now, d))
	}, func(p *policy) (done bool) {
		blocked = false
		_, out := l.insert(p, k.id, now, 0, nil, gap{})
		return out == waved || out == refused // else the key is tracked now, and fresh
	})
	return blocked
}

// Unblock ends the block of the key, which is then fresh. It does nothing if the key is not
// blocked.
func (k Key) Unblock() {
	l := k.lim.made()
	lg := l.ledgers.Of(k.id)
	rec := lg.Guard(k.id)
	defer lg.Unguard(rec)
	was := false
	l.update(k.id, func(p *policy, key state) uint64 {
		if was = p.blockedUntil(key) > 0; was {
			return p.unblock(key)
		}
		return key.word
	})
	if was {
		rec.Forget()
	}
}

// act replaces the key's word by the result of f, under the policy that policyFor finds for a
// call through k. It starts over if the key has another policy by then, so f may be called
// several times, under several policies: the last call counts. If the key is not tracked,
// act calls absent in place of f, and starts over unless absent returns done.
func (k Key) act(put bool, f func(p *policy, key state) uint64, absent func(p *policy) (done bool)) {
	for {
		p := k.policyFor(put)
		if tracked, same := k.lim.updateUnder(p, k.id, f); same && (tracked || absent(p)) {
			return
		}
	}
}

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
	lg.Unguard(rec)
	l.awaiting.wake(id)
}
