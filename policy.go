package sluice

import (
	"math"
	"sync/atomic"
	"time"
)

// A policy is a limit as an algorithm keeps it. The words of a table are those of one
// policy; the limit changes by moving all words into tables of another.
type policy struct {
	alg   algorithm // one of alg and wide is set, unless there has never been a limit to keep
	wide  wideAlgorithm
	limit Limit
	burst uint64 // costs from 1 to burst are decided by the key's state; others by Limiter.edge
	plain uint64 // the same for Limiter.allowAt, which not everything is plain enough for
	empty *table // of a shard without keys. It takes no ids.
}

// newPolicy returns the policy of c, whose defaults are filled in.
func newPolicy(c Config) (*policy, *ConfigError) {
	p := &policy{limit: c.Limit}
	if !p.unlimited() && !p.denyAll() {
		var err *ConfigError
		if p.alg, p.wide, err = newAlgorithm(c); err != nil {
			return nil, err
		}
		p.burst = uint64(c.enforced().burst())
	}
	if p.alg != nil && !c.Stats {
		p.plain = p.burst
	}
	p.empty = &table{slots: make([]slot, 1), policy: p}
	return p, nil
}

func newAlgorithm(c Config) (algorithm, wideAlgorithm, *ConfigError) {
	l := c.enforced()
	var alg algorithm
	var wide wideAlgorithm
	var err *ConfigError
	switch c.Algorithm {
	case TokenBucket:
		if c.Refill == Interval {
			alg, err = newTokenInterval(l, c.Offset)
		} else {
			alg, err = newTokenBucket(l)
		}
	case LeakyBucket:
		alg, err = newLeakyBucket(l)
	case SlidingWindow:
		alg, wide, err = newSlidingWindow(l, c.Offset)
	case SlidingLog:
		wide, err = newSlidingLog(l)
	case FixedWindow:
		if c.Anchor == FirstCharge {
			wide, err = newAnchoredWindow(l)
		} else {
			alg, err = newFixedWindow(l, c.Offset)
		}
	default:
		alg, err = newGCRA(l)
	}
	return alg, wide, err
}

func (p *policy) unlimited() bool { return p.limit.Rate == math.MaxInt }
func (p *policy) denyAll() bool   { return p.limit.Rate == 0 }

// fits reports whether the key's state decides on a call of that cost.
func (p *policy) fits(cost int) bool { return uint64(cost)-1 < p.burst }

func (p *policy) idleAt(e entry) uint64 {
	if p.wide != nil {
		return p.wide.idleAt(e.word&^locked, e.tail)
	}
	return p.alg.idleAt(e.word)
}

func (p *policy) rank(e entry, now int64) uint64 {
	if p.wide != nil {
		return p.wide.rank(e.word&^locked, e.tail, now)
	}
	return p.alg.rank(e.word, now)
}

// describe describes the call that left the key with word, of a one-word algorithm.
func (p *policy) describe(word uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration) {
	return p.alg.describe(word, now, cost, allowed)
}

// refund returns the word after a refund.
func (p *policy) refund(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	cost = int(min(uint64(cost), p.burst))
	switch {
	case p.wide == nil:
		return p.alg.refund(word, now, cost)
	case word == 0:
		return 0
	}
	return p.wide.refund(word, tail, now, cost)
}

// reset returns the word of a key that is fresh.
func (p *policy) reset(word uint64, tail []atomic.Uint64) uint64 {
	if p.wide != nil {
		return p.wide.reset(word, tail)
	}
	return 0
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
