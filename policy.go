package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// A policy is a limit as an algorithm keeps it. The words of a table are those of one
// policy; the limit changes by moving all words into tables of another.
type policy struct {
	alg   algorithm // one of alg and wide is set
	wide  wideAlgorithm
	limit Limit
	base  Limit // the limit that the algorithm is of: limit, or what it was before Unlimited or DenyAll
	room  int   // the most that words can count, or more
	of    *terms
	penalty
	burst uint64 // costs from 1 to burst are decided by the key's state; others by Limiter.edge
	plain uint64 // the same for Limiter.allowAt, which not everything is plain enough for
	empty *table // of a shard without keys. It takes no ids.
}

// newPolicy returns the policy of c, whose defaults are filled in. It is to take over
// what keys have spent under the policy from, unless that is nil, and can count as much.
// (Else a limit that is lowered and raised again would have forgotten what exceeded the
// lower one.)
func newPolicy(c Config, from *policy) (*policy, *ConfigError) {
	if from == nil {
		from = &policy{alg: stateless{}}
	}
	p := &policy{limit: c.Limit, room: from.room}
	if c.Limit.constant() {
		p.alg, p.wide, p.penalty, p.base = from.alg, from.wide, from.penalty, from.base
	} else {
		burst := c.enforced().burst()
		p.base = c.Limit
		p.burst, p.room, p.blockFor = uint64(burst), max(burst, from.room), int64(c.BlockFor)
		var err *ConfigError
		if p.alg, p.wide, err = newAlgorithm(c, p.room); err != nil {
			p.room = burst // so much, in windows of that length, takes more than a word
			if p.alg, p.wide, err = newAlgorithm(c, p.room); err != nil {
				return nil, err
			}
		}
		p.punish(c)
	}
	if p.alg != nil && !c.Stats && !p.denies {
		p.plain = p.burst
	}
	p.empty = &table{slots: make([]slot, 1), policy: p}
	return p, nil
}

// newAlgorithm returns the algorithm of c. Its words can count up to room, which is at
// least the burst.
func newAlgorithm(c Config, room int) (algorithm, wideAlgorithm, *ConfigError) {
	l := c.enforced()
	var alg algorithm
	var wide wideAlgorithm
	var err *ConfigError
	switch c.Algorithm {
	case TokenBucket:
		if c.Refill == RefillInterval {
			alg, err = newTokenInterval(l, c.Offset, room)
		} else {
			alg, err = newTokenBucket(l)
		}
	case LeakyBucket:
		alg, err = newLeakyBucket(l)
	case SlidingWindow:
		alg, wide, err = newSlidingWindow(l, c.Offset, room)
	case SlidingLog:
		wide, err = newSlidingLog(l, room)
	case FixedWindow:
		if c.Anchor == AnchorFirstCharge {
			wide, err = newAnchoredWindow(l, room)
		} else {
			alg, err = newFixedWindow(l, c.Offset, room)
		}
	default:
		alg, err = newGCRA(l)
	}
	return alg, wide, err
}

func (p *policy) unlimited() bool { return p.limit.Rate == math.MaxInt }
func (p *policy) denyAll() bool   { return p.limit.Rate == 0 }

// wordless reports whether there has never been a limit to keep.
func (p *policy) wordless() bool { return p.alg == algorithm(stateless{}) }

// stateless stands in for an algorithm where there has never been a limit to keep. Its
// words are 0, except those of blocked keys.
type stateless struct{}

func (stateless) charge(uint64, int64, int) (uint64, bool) { return 0, false }
func (stateless) debit(uint64, int64, int) uint64          { return 0 }
func (stateless) refund(uint64, int64, int) uint64         { return 0 }
func (stateless) idleAt(uint64) uint64                     { return 0 }
func (stateless) rank(uint64, int64) uint64                { return 0 }
func (stateless) worstCase(int64) uint64                   { return 0 }

func (stateless) describe(uint64, int64, int, bool) (remaining int, retry, reset time.Duration) {
	return 0, 0, 0
}

func (stateless) adopt(*policy, entry, []atomic.Uint64, int64) uint64 { return 0 }

// fits reports whether the key's state decides on a call of that cost.
func (p *policy) fits(cost int) bool { return uint64(cost)-1 < p.burst }

func (p *policy) idleAt(e entry) uint64 {
	word := e.word
	if p.wide != nil {
		word &^= locked
	}
	switch until := p.blockedUntil(word, e.tail); {
	case until > 0:
		return until
	case p.wide != nil:
		return p.wide.idleAt(word, e.tail)
	}
	return p.alg.idleAt(word)
}

// rank orders keys as their algorithm does, and blocked ones after all others.
func (p *policy) rank(e entry, now int64) uint64 {
	word := e.word
	if p.wide != nil {
		word &^= locked
	}
	switch until := p.blockedUntil(word, e.tail); {
	case until > 0:
		return blockedWord(until)
	case p.wide != nil:
		return p.wide.rank(word, e.tail, now)
	}
	return p.alg.rank(word, now)
}

// judge describes a call for a key with the word. With charges, an admitted call is
// described as having been charged.
func (p *policy) judge(word uint64, tail []atomic.Uint64, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration) {
	switch at := p.blockedUntil(word, tail); {
	case at > uint64(now):
		wait := until(at, now)
		return false, 0, wait, wait
	case at > 0:
		word = 0
	}
	if p.wide != nil {
		return p.wide.describe(word, tail, now, cost, charges)
	}
	next, allowed := p.alg.charge(word, now, cost)
	if allowed && charges {
		word = next
	}
	remaining, retry, reset = p.alg.describe(word, now, cost, allowed)
	return allowed, remaining, retry, reset
}

// commit returns the word after a charge that is admitted. A wide word is locked.
func (p *policy) commit(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	if p.wide != nil {
		return p.wide.commit(word, tail, now, cost)
	}
	next, _ := p.alg.charge(word, now, cost)
	return next
}

// debit returns the word after a charge of any cost > 0 that nobody asks about. A wide
// word is locked. A block has no room for what is charged beside it, so it becomes longer.
func (p *policy) debit(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	word, until := p.admissible(word, tail, now)
	switch {
	case until > 0:
		return p.block(word, tail, p.lengthen(until, now, cost))
	case p.wide != nil:
		return p.debitTail(word, tail, now, cost)
	}
	return p.alg.debit(word, now, cost)
}

// debitTail is debit for a key that is not blocked, with a tail. A log counts to its limit,
// whatever room it has: that depends on where its key has been, and on sweeps.
func (p *policy) debitTail(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	if log, ok := p.wide.(*slidingLog); ok {
		return log.countDenied(word, tail, now, cost)
	}
	return p.wide.commit(word, tail, now, cost)
}

// lengthen returns when a block ends, that would end at until, of a key that is charged
// cost at now: not before it would be fresh after any number of such charges without the
// block. In a window units count for as long whatever there are of them. Buckets have to
// gain each of them, and gain nothing else before the block is over.
func (p *policy) lengthen(until uint64, now int64, cost int) uint64 {
	if until > math.MaxInt64 {
		return until
	}
	if p.wide != nil {
		return p.wide.lasts(now, cost)
	}
	if _, window := p.alg.(denialCounter); !window {
		now = int64(until)
	}
	return p.alg.idleAt(p.alg.debit(0, now, cost))
}

// describe describes the call that left the key with word, of a one-word algorithm.
func (p *policy) describe(word uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration) {
	if word >= reserved {
		wait := until(p.blockedUntil(word, nil), now)
		return 0, wait, wait
	}
	return p.alg.describe(word, now, cost, allowed)
}

// refund returns the word after a refund, which does nothing for a blocked key.
func (p *policy) refund(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	cost = int(min(uint64(cost), p.burst))
	switch {
	case word == 0 || cost == 0 || p.blockedUntil(word, tail) > 0:
		return word
	case p.wide == nil:
		return p.alg.refund(word, now, cost)
	}
	return p.wide.refund(word, tail, now, cost)
}

// reset returns the word of a key that is fresh.
func (p *policy) reset(word uint64, tail []atomic.Uint64) uint64 {
	switch {
	case p.wide == nil:
		return 0
	case p.blockedUntil(word, tail) > 0:
		return p.unblock(word, tail)
	}
	return p.wide.reset(word, tail)
}

// adopt returns the word of a key, and writes its tail, that has spent what e says under
// the policy from.
func (p *policy) adopt(from *policy, e entry, tail []atomic.Uint64, now int64) uint64 {
	if e.word == 0 {
		return 0
	}
	if until := from.blockedUntil(e.word, e.tail); until > 0 {
		return p.block(0, tail, until)
	}
	if p.wide != nil {
		return p.wide.adopt(from, e, tail, now)
	}
	return p.alg.adopt(from, e, nil, now)
}

// worstCase is the most that a key can be admitted in a closed span of d >= 0 ns.
func (p *policy) worstCase(d int64) uint64 {
	switch {
	case p.denyAll():
		return 0
	case p.unlimited():
		return math.MaxUint64
	case p.wide != nil:
		return p.wide.worstCase(d)
	}
	return p.alg.worstCase(d)
}
