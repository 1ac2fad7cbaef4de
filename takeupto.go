package sluice

// TakeUpTo charges as many of cost units to key as there are at one instant, and returns
// how many that is: from 1 to cost, or 0 if there is none. The decision is that of Take
// for the units taken; or if there is none, that of Take for one unit, which is denied,
// with all that a denial does. A cost below 1 takes nothing: see Take.
//
// Under Unlimited that is all of cost. So it is under Shadow: what is charged is what
// there was, and WouldDeny says whether that was less. A new key without room at MaxKeys
// gets up to its burst under OverflowAdmitNew.
func (l *Limiter) TakeUpTo(key string, cost int) (taken int, d Decision) {
	id := l.made().hash.string(key)
	l.ahead(id)
	taken = l.takeUpToAt(&d, id, key, l.now(), cost)
	return taken, d
}

// TakeUpTo is Limiter.TakeUpTo for this key.
func (k Key) TakeUpTo(cost int) (taken int, d Decision) {
	k.lim.made().ahead(k.id)
	taken = k.lim.takeUpToAt(&d, k.id, "", k.lim.now(), cost)
	return taken, d
}

// TakeUpToAt is TakeUpTo at now; see AllowAt.
func (k Key) TakeUpToAt(now int64, cost int) (taken int, d Decision) {
	taken = k.lim.made().takeUpToAt(&d, k.id, "", now, cost)
	return taken, d
}

// takeUpToAt describes the decision in d, which is zero.
func (l *Limiter) takeUpToAt(d *Decision, id uint64, name string, now int64, cost int) (taken int) {
	now = max(now, 0)
	asked := cost
	if cost > 0 {
		taken = l.takeSome(d, id, now, cost)
		asked = max(taken, 1)
	} else {
		l.decide(d, id, now, cost)
	}
	if !d.Allowed || l.soft > 0 {
		l.finish(d, id, name, asked)
	}
	if l.shadow && taken < cost {
		d.WouldDeny = true
		return cost
	}
	return taken
}

// takeSome charges id as many of cost > 0 units as there are.
func (l *Limiter) takeSome(d *Decision, id uint64, now int64, cost int) (taken int) {
	out := retrying
	l.act(id, (*Limiter).policyFor, func(p *policy, key state) (next uint64) {
		next, taken, out = p.takeSome(d, key, now, cost)
		return next
	}, func(p *policy) (done bool) {
		taken, out = l.core.takeNew(d, p, id, now, cost)
		return out != retrying
	})
	l.count(id, out)
	return taken
}

// takeSome returns the word of the key after the charge. A wide word is locked.
func (p *policy) takeSome(d *Decision, key state, now int64, cost int) (next uint64, taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 { // all or nothing, whatever there is
		taken, out = p.takeEdge(d, p.blockedUntil(key), now, cost)
		return key.word, taken, out
	}
	key, blockedUntil := p.admissible(key, now)
	if blockedUntil > 0 {
		d.block(blockedUntil, now)
		return key.word, 0, blocked
	}
	_, there, _, _ := p.judge(key, now, 1, false)
	if taken = min(cost, there); taken > 0 {
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, taken, true)
		return p.commit(key, now, taken), taken, admitted
	}
	if p.denies {
		key.word = p.deny(key, now, 1)
	}
	_, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, 1, false)
	return key.word, 0, denied
}

// takeEdge is takeSome for Unlimited and DenyAll, and a key with a block until then, or 0.
func (p *policy) takeEdge(d *Decision, until uint64, now int64, cost int) (taken int, out outcome) {
	if p.unlimited() {
		d.unlimited(until, now)
	}
	p.settleEdge(d, cost)
	switch {
	case d.Allowed:
		return cost, admitted
	case p.unlimited():
		return 0, blocked
	}
	return 0, denied
}

// takeNew charges a key that was not tracked, which has all that is asked for.
func (st *store) takeNew(d *Decision, p *policy, id uint64, now int64, cost int) (taken int, out outcome) {
	*d = Decision{Limit: int(p.burst)}
	if p.burst == 0 {
		if !st.fresh(id, p) {
			return 0, retrying
		}
		return p.takeEdge(d, 0, now, cost)
	}
	taken = min(cost, d.Limit)
	word, out := st.insert(p, id, now, taken, d, gap{})
	if out == retrying {
		return 0, retrying
	}
	d.RetryAfter = 0 // of the unit after these
	if p.tell(d, word, out, now, taken); !d.Allowed {
		taken = 0
	}
	return taken, out
}
