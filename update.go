package sluice

import (
	"sync/atomic"
	"time"
)

// Reset makes key fresh, as if it had never been charged.
func (l *Limiter) Reset(key string) { l.reset(l.made().hash.string(key)) }

// Refund gives key back cost units that it has been charged, so that only what
// turned out to matter counts: a login that succeeded, say. It gives back at most
// what still counts against the key, which makes the key fresh, and at most the
// burst and Config.Soft. A window algorithm gives back from the units of the present window first;
// FixedWindow has nothing to give back of an earlier one. A cost below 1 does
// nothing.
//
// WorstCase holds for what was admitted and not refunded. Under SlidingLog a call
// with an older time than the units given back is then charged at its own time.
func (l *Limiter) Refund(key string, cost int) {
	l.refundAt(l.made().hash.string(key), l.now(), cost)
}

// Block denies all calls for key for the time d, or longer if the key is blocked for
// longer or would take longer to become fresh by itself. Then the key is fresh. A block
// that would end after 2116 never ends; a d that is not positive does nothing. Block
// reports whether it has blocked the key: it cannot if there is no room for it at MaxKeys
// under OverflowDenyNew and OverflowAdmitNew. OverflowEvictSoonest drops blocked keys last. A block holds under any
// limit, Unlimited too, and outlasts SetLimit and SetKeyLimit.
func (l *Limiter) Block(key string, d time.Duration) bool {
	return l.blockAt(l.made().hash.string(key), d)
}

// Unblock ends the block of key, which is then fresh. It does nothing if key is not
// blocked.
func (l *Limiter) Unblock(key string) { l.unblock(l.made().hash.string(key)) }

// Reset is Limiter.Reset for this key.
func (k Key) Reset() { k.lim.made().reset(k.id) }

// Refund is Limiter.Refund for this key.
func (k Key) Refund(cost int) { k.lim.made().refundAt(k.id, k.lim.now(), cost) }

// Block is Limiter.Block for this key.
func (k Key) Block(d time.Duration) bool { return k.lim.made().blockAt(k.id, d) }

// Unblock is Limiter.Unblock for this key.
func (k Key) Unblock() { k.lim.made().unblock(k.id) }

func (l *Limiter) blockAt(id uint64, d time.Duration) bool {
	now := max(l.now(), 0)
	return d > 0 && l.block(id, now, after(now, d))
}

func (l *Limiter) refundAt(id uint64, now int64, cost int) {
	if cost > 0 {
		l.refund(id, max(now, 0), cost)
	}
}

// update replaces the word of id by f's, and reports false if id is not tracked. f may be
// called several times.
func (st *store) update(id uint64, f func(p *policy, key state) uint64) (tracked bool) {
	tracked, _ = st.updateUnder(nil, id, f)
	return tracked
}

// updateUnder is update for a key that is under the policy want, if that is not nil. Under
// another one it does nothing.
func (st *store) updateUnder(want *policy, id uint64, f func(p *policy, key state) uint64) (tracked, same bool) {
	s := st.shardOf(id)
	for {
		p, e, tail := s.slotOf(id)
		switch {
		case e == nil:
			return false, true
		case want != nil && p != want:
			return true, false
		case e.update(p, tail, f):
			return true, true
		}
		st.awaitMove(s)
	}
}

// act replaces the word of id by f's, under the policy that policyFor finds for a call
// through l. It starts over if the key has another policy by then, so f may be called
// several times, under several policies: the last call counts. If id is not tracked, absent
// is called in place of f, and act starts over unless that is done.
func (l *Limiter) act(id uint64, policyFor func(*Limiter, uint64) *policy, f func(p *policy, key state) uint64, absent func(p *policy) (done bool)) {
	for {
		p := policyFor(l, id)
		if tracked, same := l.core.updateUnder(p, id, f); same && (tracked || absent(p)) {
			return
		}
	}
}

// update fails if the word, which is of p, has gone. If f leaves a word without a tail as it
// is, nothing is written.
func (e *slot) update(p *policy, tail []atomic.Uint64, f func(p *policy, key state) uint64) (ok bool) {
	if p.wide != nil {
		word, ok := e.lock()
		if ok {
			e.word.Store(f(p, state{word, tail}))
		}
		return ok
	}
	for {
		word := e.released()
		if word == moved || word == elsewhere {
			return false
		}
		if next := f(p, state{word: word}); next == word || e.word.CompareAndSwap(word, next) {
			return true
		}
	}
}

// reset makes id fresh. The key stays in its table, where the next sweep finds it
// idle.
func (l *Limiter) reset(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	l.core.update(id, (*policy).reset)
	rec.forget()
}

// block blocks id until then at least. It fails where the key cannot be tracked.
func (l *Limiter) block(id uint64, now int64, until uint64) (blocked bool) {
	l.act(id, (*Limiter).policyNow, func(p *policy, key state) uint64 {
		blocked = true
		return p.block(key, until)
	}, func(p *policy) (done bool) {
		blocked = false
		_, out := l.core.insert(l.core.shardOf(id), p, id, now, 0, nil)
		return out == waved || out == refused // else it is tracked now, and fresh
	})
	return blocked
}

// blockOf returns when the block of id ends, 0 if it has none. It fails if p is not the
// policy of the key.
func (st *store) blockOf(p *policy, id uint64) (until uint64, ok bool) {
	s := st.shardOf(id)
	for {
		at := s.locate(id)
		switch {
		case at.slot == nil:
			return 0, at.admits(p)
		case at.policy != p:
			return 0, false
		case p.wide == nil:
			if word := at.slot.released(); word < elsewhere {
				return p.blockedUntil(state{word: word}), true
			}
		case at.slot.word.Load() < blockedTail:
			return 0, true
		default:
			if word, ok := at.slot.lock(); ok { // or the end of the block could be another's
				until = p.blockedUntil(state{word, at.tail})
				at.slot.word.Store(word)
				return until, true
			}
		}
		st.awaitMove(s)
	}
}

// blockNow returns when the block of id ends, or has ended; 0 if it has none.
func (l *Limiter) blockNow(id uint64) (until uint64) {
	l.core.update(id, func(p *policy, key state) uint64 {
		until = p.blockedUntil(key)
		return key.word
	})
	return until
}

// unblock ends the block of id, if there is one.
func (l *Limiter) unblock(id uint64) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	was := false
	l.core.update(id, func(p *policy, key state) uint64 {
		if was = p.blockedUntil(key) > 0; was {
			return p.unblock(key)
		}
		return key.word
	})
	if was {
		rec.forget()
	}
}

// refund gives back cost > 0 units of id.
func (l *Limiter) refund(id uint64, now int64, cost int) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	given := uint64(0)
	l.core.update(id, func(p *policy, key state) uint64 {
		given = 0
		a := p.line()
		if a == nil || p.blockedUntil(key) > 0 {
			return p.refund(key, now, cost)
		}
		given = a.full(key.word)
		next := p.refund(key, now, cost)
		given -= a.full(next)
		return next
	})
	rec.refunded(given)
	lg.unguard(rec)
}
