package sluice

import (
	"math"
	"math/bits"
	"sync"

	"github.com/sluice-go/sluice/internal/ledger"
)

// Terms are a limit that keys have in common: the limiter's own, or one that a key, or a call, has
// brought. The keys of all terms but the limiter's own are in cells. A call goes by the terms that its Key
// brings; if it brings none, by the override of its key; else by the limiter's own terms. A key that
// is under other terms is put under these first. Terms never change: a limiter whose limit changes gets new
// terms, and a key under the old ones is put under the new ones by its next call, if not before.
type terms struct {
	own    bool    // the limiter's
	config *Config // the limiter's, but its Limit may be another one
	limit  Limit
	common *policy // for keys that have spent no more than the limit

	mu       sync.Mutex
	policies map[variant]*policy
}

// A variant says which policy of the terms a key needs. Unlimited and DenyAll have the algorithm of
// the limit before, and units spent under a larger limit need words with more reach.
type variant struct {
	base  Limit
	reach int
}

// maxVariants bounds how many policies terms remember, and maxBrought how many limits of keys
// and calls a limiter remembers, unless more keys have an override. Others are made anew when
// needed. Neither was tuned.
const (
	maxVariants = 64
	maxBrought  = 4096
)

// called reports whether p belongs to other terms than the limiter's own.
func (p *policy) called() bool {
	return p.of != nil && !p.of.own
}

// variantFor returns the policy of the terms for a key whose state under from is e. If the
// limit is constant, the policy has the base of from, but under the limiter's own terms the
// last limit of the limiter that was not constant.
func (tm *terms) variantFor(from *policy, e state, now int64) *policy {
	common, base := tm.common, tm.limit
	if base.constant() {
		if base = from.base; tm.own && !common.wordless() {
			base = common.base
		}
	}
	need := from.needs(e, now)
	if common.base == base {
		if need <= common.reach {
			return common
		}
		need = min(need, common.widest(from))
	}
	v := variant{base, 1<<bits.Len(uint(need)) - 1}
	switch {
	case base == from.base && tm.limit.constant():
		v.reach = from.reach
	case tm.config.Algorithm == SlidingLog:
		v.reach = min(v.reach, maxLog)
	}
	tm.mu.Lock()
	defer tm.mu.Unlock()
	if p := tm.policies[v]; p != nil {
		return p
	}
	p, err := tm.newVariant(v, from)
	if err != nil {
		return common // no word has such reach: the units beyond it are forgotten
	}
	if tm.policies == nil || len(tm.policies) >= maxVariants {
		tm.policies = map[variant]*policy{}
	}
	tm.policies[v] = p
	return p
}

func (tm *terms) newVariant(v variant, from *policy) (p *policy, err error) {
	if !tm.limit.constant() || v.base != from.base {
		if from, err = newPolicy(tm.config, v.base, &policy{reach: v.reach}); err != nil {
			return nil, err
		}
	}
	if p = from; tm.limit.constant() {
		if p, err = newPolicy(tm.config, tm.limit, from); err != nil {
			return nil, err
		}
	}
	p.of = tm
	return p, nil
}

// newTerms returns terms of the limit in a limiter with the config. They take over from the policy from,
// unless it is nil. The error is a *ConfigError.
func newTerms(config *Config, limit Limit, from *policy) (*terms, error) {
	p, err := newPolicy(config, limit, from)
	if err != nil {
		return nil, err
	}
	p.of = &terms{config: config, limit: limit, common: p}
	return p.of, nil
}

// needs returns how large a count a new word must hold for the units of e under p. A bucket's debt fits into any word.
func (p *policy) needs(e state, now int64) int {
	if e.word == 0 || p.bucket() != nil || p.blockedUntil(e) > 0 {
		return 0
	}
	if log, ok := p.wide.(*slidingLog); ok {
		return int(log.counting(e, now))
	}
	return int(min(p.rank(e, 0), math.MaxInt)) // at 0 all of it counts
}

// widest returns the largest count that words of p have bits for, if p keeps from's sliding windows; else MaxInt.
// In wider words a charge would end with its window, although from charges the rest of it to
// the next window.
func (p *policy) widest(from *policy) int {
	a, old := p.sliding(), from.sliding()
	if a == nil || old == nil || !a.same(&old.window) || a.bits < old.bits {
		return math.MaxInt
	}
	return int(min(1<<a.bits-1, uint64(math.MaxInt)))
}

// sliding returns the sliding window of p, or nil if it is of another algorithm.
func (p *policy) sliding() *slidingWindow { return slidingOf(p.arith) }

// Tick implements ledger.Policy.
func (p *policy) Tick(now int64) uint64 {
	if a := p.line; a != nil {
		return a.tick(now)
	}
	return uint64(max(now, 0))
}

// Ticks implements ledger.Policy.
func (p *policy) Ticks(units int) uint64 {
	if a := p.line; a != nil {
		return a.ticks(units)
	}
	return 0
}

// Turn implements ledger.Policy.
func (p *policy) Turn(end uint64, units int) uint64 {
	b := p.bucket()
	if b == nil {
		return math.MaxUint64
	}
	s, queue := b.turns()
	if queue {
		return s.earliest(end - min(end, s.ticks(units)))
	}
	return s.earliest(end - min(end, s.burst))
}

// Carry implements ledger.Policy.
func (p *policy) Carry(from ledger.Policy) (kept, same bool) {
	old := from.(*policy)
	if p.bucket() == nil || old.bucket() == nil {
		return p.keepsReservations(old), p.logPeriod() == old.logPeriod()
	}
	before, _ := old.bucket().turns()
	after, _ := p.bucket().turns()
	return true, before.sameTicks(after)
}

// End implements ledger.Policy.
func (p *policy) End(from ledger.Policy, end uint64, now int64) uint64 {
	old := from.(*policy)
	if p.bucket() == nil {
		return end - old.logPeriod() + p.logPeriod() // the stamp stays
	}
	before, _ := old.bucket().turns()
	after, _ := p.bucket().turns()
	return after.adopt(before, end, now)
}

// logPeriod is how long a unit in a log counts, and 0 for another algorithm.
func (p *policy) logPeriod() uint64 {
	if a, ok := p.arith.(*slidingLog); ok {
		return a.period
	}
	return 0
}

// keepsReservations reports whether the ends and stamps of reservations under from, whose algorithm has
// no turns, mean the same under p.
func (p *policy) keepsReservations(from *policy) bool {
	switch a := p.arith.(type) {
	case *fixedWindow:
		old, ok := from.alg.(*fixedWindow)
		return ok && a.same(&old.window)
	case *tokenInterval:
		old, ok := from.alg.(*tokenInterval)
		return ok && a.same(&old.window) && a.gain() == old.gain()
	case *firstChargeWindow:
		old, ok := from.wide.(*firstChargeWindow)
		return ok && a.period == old.period
	case *slidingLog:
		return true
	}
	a, old := p.sliding(), from.sliding()
	return a != nil && old != nil && a.same(&old.window)
}
