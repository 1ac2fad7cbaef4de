package sluice

// Debit charges cost units to the key whether they are there or not. It returns the Decision that
// Peek with a cost of 0 would return right after it: whether one more unit would be admitted,
// and if not, when. Use it for costs that are known too late to be denied, and to mirror the
// decisions of another limiter. It blocks no key, and counts neither as admitted nor
// as denied. A cost below 1 charges nothing.
//
// The key is left exactly as if the call had been admitted. Units beyond its burst are
// a debt, and calls for the key are denied until the debt is paid back:
//
//   - GCRA, TokenBucket and LeakyBucket gain units at the rate until the debt is paid,
//     however long that takes: for ResetAfter less the Config.RefillTime of the burst and
//     Config.Soft. TokenBucketInterval gains at each boundary.
//   - FixedWindow counts the debt in the present window, and it ends with that window.
//   - SlidingWindow counts the debt like all other units of the window: in full until the
//     window ends, and then less and less.
//   - SlidingLog counts the debt for one period, up to its limit: under a higher limit
//     later, no more than that counts.
//
// A block becomes longer: under the buckets, by the time in which they gain the cost;
// under the window algorithms, it lasts until the cost no longer counts. Under Unlimited
// nothing is charged, nor under a DenyAll that the limiter has been made with; under any
// other DenyAll the cost is charged as under the limit before. With Config.Soft the debt
// begins beyond the soft units. Under Shadow, Debit makes a debt as well.
//
// Buckets have room for all debts, to the end of time. A window counts at least to the
// limit, and as far beyond it as the number of the window leaves bits: with periods of a
// second FixedWindow and TokenBucketInterval count to 2^30, FixedWindowFirstCharge to 2^28,
// and SlidingWindow to 2^15, or where the limit takes two words, to 2^28. Each 64 times longer
// period adds 6 bits, and 3 to a SlidingWindow of one word, but none to FixedWindowFirstCharge.
// Of the units beyond these counts, SlidingWindow charges the rest to its next window, and
// TokenBucketInterval forgives them. With the other algorithms they change no decision.
// Refund gives back units that have been counted, and of a log at most as many as its limit.
//
// A new key for which there is no room at MaxKeys is not charged under OverflowDenyNew and
// OverflowAdmitNew: see Stats.Untracked. WorstCase does not include the units of a Debit.
func (k Key) Debit(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.debitAt(&d, k.lim.now(), cost)
	return d
}

// debitAt describes in d, which is zero, a call for one unit right after the
// charge.
func (k Key) debitAt(d *Decision, now int64, cost int) {
	now = max(now, 0)
	if cost <= 0 || !k.addDebt(d, now, cost, true) {
		k.peekAt(d, now, 0)
		return
	}
	d.amend(k.lim.soft, k.lim.shadow, 0)
}

// addDebt charges cost > 0 units, under the policy that policyFor finds. It fails where
// there is no state to charge, and then leaves d as it was.
func (k Key) addDebt(d *Decision, now int64, cost int, put bool) (charged bool) {
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

// debitNew is addDebt for a key that is not tracked. It returns false if the caller has to try again.
func (st *store) debitNew(d *Decision, p *policy, id uint64, now int64, cost int) (done bool) {
	*d = Decision{}
	var next Decision // only for a key with a tail
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

// TakeUpTo charges as many of cost units to the key as there are at one instant, and returns
// how many it has taken: from 1 to cost, or 0 if no unit is there. The decision is the one of
// Take for the units taken. If no unit is there, it is the denial of Take for one unit,
// which has all effects of a denial. A cost below 1 takes nothing: see Take.
//
// Under Unlimited TakeUpTo takes all of cost. Under Shadow it returns all of cost as well, but
// charges only the units that were there; WouldDeny reports whether they were fewer. A new key
// without room at MaxKeys gets up to its burst under OverflowAdmitNew.
func (k Key) TakeUpTo(cost int) (taken int, d Decision) {
	k.lim.made().ahead(k.id)
	taken = k.takeUpToAt(&d, k.lim.now(), cost)
	return taken, d
}

// takeUpToAt describes the decision in d, which is zero.
func (k Key) takeUpToAt(d *Decision, now int64, cost int) (taken int) {
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
		l.finish(d, k.id, "", asked)
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

// takeSome returns the word of the key after the charge, and how many units were taken if the call is
// admitted. A wide word is locked.
func (p *policy) takeSome(d *Decision, key state, now int64, cost int) (next uint64, taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 { // Unlimited or DenyAll: all or nothing
		until := p.blockedUntil(key)
		p.peek(d, key, until, now, cost)
		return key.word, cost, edgeOutcome(d, until, now)
	}
	_, _, there, _, _ := p.judge(key, now, 1, false)
	taken = min(cost, max(there, 1))
	if next, out = p.decide(d, key, now, taken); out != admitted {
		taken = 0
	}
	return next, taken, out
}

// takeNew charges a key that was not tracked, and so has its whole burst.
func (st *store) takeNew(d *Decision, p *policy, id uint64, now int64, cost int) (taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 {
		if at := st.locate(id); !at.fresh(p) {
			return 0, retrying
		}
		p.peek(d, state{}, 0, now, cost)
		return cost, edgeOutcome(d, 0, now)
	}
	taken = min(cost, d.Limit)
	word, out := st.insert(p, id, now, taken, d, gap{})
	if out == retrying {
		return 0, retrying
	}
	d.RetryAfter = 0 // insert set it for one more unit
	p.tell(d, word, out, now, taken)
	return taken, out
}
