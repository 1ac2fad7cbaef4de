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
//     however long that takes; at RefillInterval, at each boundary.
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
// second FixedWindow and TokenBucket at RefillInterval count to 2^30, with AnchorFirstCharge to 2^28,
// and SlidingWindow to 2^15, or where the limit takes two words, to 2^28. With each 64
// times longer period that is 6 bits more, and for a SlidingWindow of one word 3; with
// AnchorFirstCharge it stays. SlidingWindow charges the rest to its next window, and
// TokenBucket at RefillInterval forgives it. For the others it changes no decision.
// Refund gives back of what has been counted, and of a log, of as many units as its limit.
//
// A new key for which there is no room at MaxKeys is not charged under OverflowDenyNew and
// OverflowAdmitNew: see Stats.Untracked. WorstCase does not speak of what is charged.
func (l *Limiter) Charge(key string, cost int) (d Decision) {
	id := l.made().hash.string(key)
	l.ahead(id)
	l.chargeAt(&d, id, l.now(), cost)
	return d
}

// Charge is Limiter.Charge for this key.
func (k Key) Charge(cost int) (d Decision) {
	k.lim.made().ahead(k.id)
	k.lim.chargeAt(&d, k.id, k.lim.now(), cost)
	return d
}

// ChargeAt is Charge at now; see AllowAt.
func (k Key) ChargeAt(now int64, cost int) (d Decision) {
	k.lim.made().chargeAt(&d, k.id, now, cost)
	return d
}

// chargeAt describes in d, which is zero, the call for one unit that comes after the
// charge.
func (l *Limiter) chargeAt(d *Decision, id uint64, now int64, cost int) {
	now = max(now, 0)
	if cost <= 0 || !l.debit(d, id, now, cost, (*Limiter).policyFor) {
		l.peekAt(d, id, now, 0)
	}
	d.amend(l.soft, l.shadow, 0)
}

// debit charges cost > 0 units of id, under the policy that policyFor finds. It fails where
// there is no state to charge, and then leaves d as it was.
func (l *Limiter) debit(d *Decision, id uint64, now int64, cost int, policyFor func(*Limiter, uint64) *policy) (charged bool) {
	l.act(id, policyFor, func(p *policy, key state) uint64 {
		if charged = p.keeps(); charged {
			key.word = p.debit(key, now, cost)
			p.look(d, key, now)
		}
		return key.word
	}, func(p *policy) bool {
		charged = p.keeps()
		return !charged || l.core.debitNew(d, p, id, now, cost)
	})
	return charged
}

// debitNew is debit for a key that is not tracked. It is not done if that is to be tried again.
func (st *store) debitNew(d *Decision, p *policy, id uint64, now int64, cost int) (done bool) {
	var next Decision // of a key with a tail
	switch word, out := st.insert(p, id, now, cost, &next, gap{}); {
	case out == retrying:
		return false
	case (out == waved || out == refused) && !p.denyAll():
		*d = Decision{}
		p.tell(d, word, out, now, 1)
	case p.wide == nil || p.denyAll():
		p.look(d, state{word: word}, now)
	default:
		*d = next
		d.Limit = int(p.burst)
	}
	return true
}

// look describes in d a call for one unit that charges nothing.
func (p *policy) look(d *Decision, key state, now int64) {
	*d = Decision{Limit: int(p.burst), RetryAfter: Never}
	if !p.denyAll() {
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, 1, false)
	}
}
