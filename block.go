package sluice

import "time"

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
