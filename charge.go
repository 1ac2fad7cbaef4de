package sluice

// Charge charges cost units to key whether they are there or not, and returns what Peek
// with a cost of 0 would say right after it: whether one more unit would be admitted, and
// if not, when. It is for costs that are known too late to be denied, and for mirroring
// what another limiter has decided. It blocks nobody, and counts neither as admitted nor
// as denied. A cost below 1 charges nothing.
//
// The key is left exactly as if the call had been admitted. So what it is charged beyond
// its burst is a debt, and it is denied until it has paid that back:
//
//   - GCRA, TokenBucket and LeakyBucket gain units at the rate until the debt is paid,
//     however long that takes: for ResetAfter less the Config.RefillTime of the burst and
//     Config.Soft. TokenBucketInterval gains at each boundary.
//   - FixedWindow counts it in the present window, with which it ends.
//   - SlidingWindow counts it like all other units of the window: in full until its end,
//     and then less and less.
//   - SlidingLog counts it for one period, up to its limit: a higher limit later finds no
//     more than that.
//
// A block becomes longer: under the buckets, by the time in which they gain the cost;
// under the window algorithms, it lasts until the cost no longer counts. Under Unlimited
// nothing is charged, nor under a DenyAll that the limiter has been made with; under any
// other DenyAll the cost is charged as under the limit before. With Config.Soft the debt
// begins beyond the soft units, and under Shadow it is made like any other.
//
// Buckets have room for all debts, to the end of time. A window counts at least to the
// limit, and as far beyond it as the number of the window leaves bits: with periods of a
// second FixedWindow and TokenBucketInterval count to 2^30, FixedWindowFirstCharge to 2^28,
// and SlidingWindow to 2^15, or where the limit takes two words, to 2^28. With each 64
// times longer period that is 6 bits more, and for a SlidingWindow of one word 3; with
// FixedWindowFirstCharge it stays. SlidingWindow charges the rest to its next window, and
// TokenBucketInterval forgives it. For the others it changes no decision.
// Refund gives back of what has been counted, and of a log, of as many units as its limit.
//
// A new key for which there is no room at MaxKeys is not charged under OverflowDenyNew and
// OverflowAdmitNew: see Stats.Untracked. WorstCase does not speak of what is charged.
func (l *Limiter) Charge(key string, cost int) (d Decision) {
	id := l.made().hash.String(key)
	l.ahead(id)
	l.key(id).chargeAt(&d, l.now(), cost)
	return d
}

// Charge is Limiter.Charge for this key.
func (k Key) Charge(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.chargeAt(&d, k.lim.now(), cost)
	return d
}

// chargeAt describes in d, which is zero, the call for one unit that comes after the
// charge.
func (k Key) chargeAt(d *Decision, now int64, cost int) {
	now = max(now, 0)
	if cost <= 0 || !k.debit(d, now, cost, true) {
		k.peekAt(d, now, 0)
		return
	}
	d.amend(k.lim.soft, k.lim.shadow, 0)
}

// debit charges cost > 0 units, under the policy that policyFor finds. It fails where
// there is no state to charge, and then leaves d as it was.
func (k Key) debit(d *Decision, now int64, cost int, put bool) (charged bool) {
	k.act(put, func(p *policy, key state) uint64 {
		if charged = p.keeps(); charged {
			key.word = p.debit(key, now, cost)
			*d = Decision{}
			p.peek(d, key, p.blockedUntil(key), now, 0)
		}
		return key.word
	}, func(p *policy) bool {
		charged = p.keeps()
		return !charged || k.lim.debitNew(d, p, k.id, now, cost)
	})
	return charged
}

// debitNew is debit for a key that is not tracked. It is not done if that is to be tried again.
func (st *store) debitNew(d *Decision, p *policy, id uint64, now int64, cost int) (done bool) {
	*d = Decision{}
	var next Decision // of a key with a tail
	switch word, out := st.insert(p, id, now, cost, &next, gap{}); {
	case out == retrying:
		return false
	case (out == waved || out == refused) && !p.denyAll():
		p.tell(d, word, out, now, 1)
	case p.wide == nil || p.denyAll():
		p.peek(d, state{word: word}, 0, now, 0)
	default:
		*d = next
		d.Limit = int(p.burst)
	}
	return true
}

// TakeUpTo charges as many of cost units to key as there are at one instant, and returns
// how many that is: from 1 to cost, or 0 if there is none. The decision is that of Take
// for the units taken; or if there is none, that of Take for one unit, which is denied,
// with all that a denial does. A cost below 1 takes nothing: see Take.
//
// Under Unlimited that is all of cost. So it is under Shadow: what is charged is what
// there was, and WouldDeny says whether that was less. A new key without room at MaxKeys
// gets up to its burst under OverflowAdmitNew.
func (l *Limiter) TakeUpTo(key string, cost int) (taken int, d Decision) {
	id := l.made().hash.String(key)
	l.ahead(id)
	taken = l.key(id).takeUpToAt(&d, key, l.now(), cost)
	return taken, d
}

// TakeUpTo is Limiter.TakeUpTo for this key.
func (k Key) TakeUpTo(cost int) (taken int, d Decision) {
	k.lim.made().ahead(k.id)
	taken = k.takeUpToAt(&d, "", k.lim.now(), cost)
	return taken, d
}

// takeUpToAt describes the decision in d, which is zero.
func (k Key) takeUpToAt(d *Decision, name string, now int64, cost int) (taken int) {
	l := k.lim
	now = max(now, 0)
	asked := cost
	if cost > 0 {
		taken = k.takeSome(d, now, cost)
		asked = max(taken, 1)
	} else {
		k.decide(d, now, cost)
	}
	if !d.Allowed || l.soft > 0 {
		l.finish(d, k.id, name, asked)
	}
	if l.shadow && taken < cost {
		d.WouldDeny = true
		return cost
	}
	return taken
}

// takeSome charges as many of cost > 0 units as there are.
func (k Key) takeSome(d *Decision, now int64, cost int) (taken int) {
	out := retrying
	k.act(true, func(p *policy, key state) (next uint64) {
		next, taken, out = p.takeSome(d, key, now, cost)
		return next
	}, func(p *policy) (done bool) {
		taken, out = k.lim.takeNew(d, p, k.id, now, cost)
		return out != retrying
	})
	k.lim.count(k.id, out)
	if !d.Allowed {
		return 0
	}
	return taken
}

// takeSome returns the word of the key after the charge, and what has been taken if that is admitted. A
// wide word is locked.
func (p *policy) takeSome(d *Decision, key state, now int64, cost int) (next uint64, taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 { // all or nothing, whatever there is
		p.peek(d, key, p.blockedUntil(key), now, cost)
		return key.word, cost, p.edgeOutcome(d, cost)
	}
	_, _, there, _, _ := p.judge(key, now, 1, false)
	taken = min(cost, max(there, 1))
	if next, out = p.decide(d, key, now, taken); out != admitted {
		taken = 0
	}
	return next, taken, out
}

// takeNew charges a key that was not tracked, which has all that is asked for.
func (st *store) takeNew(d *Decision, p *policy, id uint64, now int64, cost int) (taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 {
		if at := st.locate(id); !at.fresh(p) {
			return 0, retrying
		}
		p.peek(d, state{}, 0, now, cost)
		return cost, p.edgeOutcome(d, cost)
	}
	taken = min(cost, d.Limit)
	word, out := st.insert(p, id, now, taken, d, gap{})
	if out == retrying {
		return 0, retrying
	}
	d.RetryAfter = 0 // of the unit after these
	p.tell(d, word, out, now, taken)
	return taken, out
}
