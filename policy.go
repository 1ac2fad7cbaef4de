package sluice

import (
	"math"
	"sort"
	"sync/atomic"
	"time"
)

// A policy is a limit as an algorithm keeps it. All words of a table are under one
// policy; the limit changes by moving all words into tables of another policy.
type policy struct {
	alg   algorithm // one of alg and wide is set
	wide  wideAlgorithm
	limit Limit
	base  Limit // the limit that alg or wide was made for: limit, or the one before Unlimited or DenyAll
	reach int   // the most that words can count, or more
	of    *terms
	penalty
	burst uint64     // the key's state decides on costs from 1 to burst; Key.edge on others
	plain uint64     // the same for Limiter.allowAt; 0 if only Key.decide can make these decisions
	most  uint64     // units given back at once: the burst, or under Unlimited and DenyAll the burst of base
	line  line       // alg, if it is one
	arith arithmetic // alg or wide, whichever is set
}

// newPolicy returns the policy of a limit in a limiter of that config. Unless from is nil,
// the new policy takes over the units that keys have spent under from, and can count as many.
// (Else a limit that is lowered and raised again would have forgotten the units above the
// lower one.) The error is a *ConfigError.
func newPolicy(config *Config, limit Limit, from *policy) (*policy, error) {
	c := *config
	if c.Limit = limit; limit.constant() {
		c.Soft = 0 // such a limit has no units beyond it
	}
	if _, err := c.withDefaults(); err != nil {
		return nil, err
	}
	if from == nil {
		from = &policy{alg: stateless{}, arith: stateless{}}
	}
	p := &policy{limit: limit, reach: from.reach}
	if limit.constant() {
		p.alg, p.wide, p.arith, p.penalty, p.base, p.most = from.alg, from.wide, from.arith, from.penalty, from.base, from.most
	} else {
		burst := c.enforced().burst()
		p.base = limit
		p.burst, p.reach, p.blockFor = uint64(burst), max(burst, from.reach), int64(c.BlockFor)
		p.most = p.burst
		var err *ConfigError
		if p.alg, p.wide, err = newAlgorithm(c, p.reach); err != nil {
			p.reach = burst // a count up to the larger reach does not fit into a word
			if p.alg, p.wide, err = newAlgorithm(c, p.reach); err != nil {
				return nil, unkept(c)
			}
		}
		if p.arith = p.wide; p.alg != nil {
			p.arith = p.alg
		}
		if c.CountDenied {
			p.counts, _ = p.arith.(denialCounter) // all window algorithms are
		}
		p.denies = p.blockFor > 0 || p.counts != nil
	}
	p.line, _ = p.alg.(line)
	if p.alg != nil && !c.Stats && !p.denies {
		p.plain = p.burst
	}
	return p, nil
}

// newAlgorithm returns the algorithm of c. Its words can count up to reach, which is at
// least the burst.
func newAlgorithm(c Config, reach int) (algorithm, wideAlgorithm, *ConfigError) {
	l := c.enforced()
	var alg algorithm
	var wide wideAlgorithm
	var err *ConfigError
	switch c.Algorithm {
	case TokenBucket:
		alg, err = newTokenBucket(l)
	case TokenBucketInterval:
		alg, err = newTokenInterval(l, c.Offset, reach)
	case LeakyBucket:
		alg, err = newLeakyBucket(l)
	case SlidingWindow:
		alg, wide, err = newSlidingWindow(l, c.Offset, reach)
	case InFlight:
		alg, wide, err = newInFlight(l, reach)
	case SlidingLog:
		wide, err = newSlidingLog(l, reach)
	case FixedWindow:
		alg, err = newFixedWindow(l, c.Offset, reach)
	case FixedWindowFirstCharge:
		wide, err = newFirstChargeWindow(l, reach)
	default:
		alg, err = newGCRA(l)
	}
	return alg, wide, err
}

// unkept returns the error of c, for which there is no algorithm: it names the limit, or else
// the soft units on top.
func unkept(c Config) *ConfigError {
	of := func(soft int) *ConfigError {
		c := c
		c.Soft = soft
		_, _, err := newAlgorithm(c, c.enforced().burst())
		return err
	}
	if err := of(0); err != nil {
		return err
	}
	most := sort.Search(c.Soft, func(soft int) bool { return of(soft) != nil }) - 1
	return configErrorf("Soft", "%d on top of a limit of %v is more than %v can keep; want at most %d", c.Soft, c.Limit, c.Algorithm, most)
}

func (p *policy) unlimited() bool { return p.limit.Rate == math.MaxInt }
func (p *policy) denyAll() bool   { return p.limit.Rate == 0 }

// wordless reports whether there has never been a limit to keep.
func (p *policy) wordless() bool { return p.alg == algorithm(stateless{}) }

// keeps reports whether charges are kept. Unlimited keeps none.
func (p *policy) keeps() bool { return !p.unlimited() && !p.wordless() }

// fits reports whether the key's state decides on a call of that cost.
func (p *policy) fits(cost int) bool { return uint64(cost)-1 < p.burst }

func (p *policy) idleAt(key state) uint64 {
	switch until := p.blockedUntil(key); {
	case until > 0:
		return until
	case p.wide != nil:
		return p.wide.idleAt(state{key.word &^ locked, key.tail})
	}
	return p.alg.idleAt(key.word)
}

// rank orders keys as their algorithm does, and blocked keys after all others.
func (p *policy) rank(key state, now int64) uint64 {
	switch until := p.blockedUntil(key); {
	case until > 0:
		return blockedWord(until)
	case p.wide != nil:
		return p.wide.rank(state{key.word &^ locked, key.tail}, now)
	}
	return p.alg.rank(key.word, now)
}

// judge describes a call whose cost the state decides on, and writes nothing. With charges, it describes
// an admitted call as charged. next is the word after an admitted call, if the key has no tail.
func (p *policy) judge(key state, now int64, cost int, charges bool) (next uint64, allowed bool, remaining int, retry, reset time.Duration) {
	if key.word >= blockedTail { // the words of blocked keys are among these
		switch at := p.blockedUntil(key); {
		case at > uint64(now):
			wait := until(at, now)
			return key.word, false, 0, wait, wait
		case at > 0:
			key.word = 0
		}
	}
	if p.wide != nil {
		allowed, remaining, retry, reset = p.wide.describe(key, now, cost, charges)
		return key.word, allowed, remaining, retry, reset
	}
	next, allowed = p.alg.charge(key.word, now, cost)
	if allowed && charges {
		key.word = next
	}
	remaining, retry, reset = p.alg.describe(key.word, now, cost, allowed)
	return next, allowed, remaining, retry, reset
}

// commit returns the word after a call that judge admits; next is the word from judge. A wide word is locked.
func (p *policy) commit(key state, next uint64, now int64, cost int) uint64 {
	if p.wide == nil {
		return next
	}
	if key.word&blockedTail != 0 {
		key, _ = p.admissible(key, now)
	}
	return p.wide.commit(key, now, cost)
}

// decide decides on a call, describes it in d, which is zero, and returns the word after it. A wide
// word is locked.
func (p *policy) decide(d *Decision, key state, now int64, cost int) (next uint64, out outcome) {
	d.Limit = int(p.burst)
	next, d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, cost, true)
	switch {
	case d.Allowed:
		return p.commit(key, next, now, cost), admitted
	case p.blockedUntil(key) > uint64(now):
		return key.word, blocked
	case p.denies:
		key.word = p.deny(key, now, cost)
		_, _, d.Remaining, d.RetryAfter, d.ResetAfter = p.judge(key, now, cost, false)
	}
	return key.word, denied
}

// debit returns the word after an unconditional charge of any cost > 0. A wide
// word is locked. A block cannot hold a charge as well, so the block becomes longer.
func (p *policy) debit(key state, now int64, cost int) uint64 {
	key, until := p.admissible(key, now)
	switch {
	case until > 0:
		return p.block(key, p.lengthen(until, now, cost))
	case p.wide != nil:
		return p.debitTail(key, now, cost)
	}
	return p.alg.debit(key.word, now, cost)
}

// debitTail is debit for a key with a tail that is not blocked. A log counts up to its limit
// and not to its reach, since the reach depends on the limits that the key has had, and on sweeps.
func (p *policy) debitTail(key state, now int64, cost int) uint64 {
	if log, ok := p.wide.(*slidingLog); ok {
		return log.countDenied(key, now, cost)
	}
	return p.wide.commit(key, now, cost)
}

// lengthen returns the new end of a block that would have ended at until, after the key is
// charged cost at now. However often it is charged, the key is not fresh sooner than it would
// be without the block. In a window all units count for equally long, however many there are. A
// bucket has to gain each unit, and gains none before the block is over.
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

// refund returns the word after a refund. A refund does nothing for a blocked key, nor under Unlimited:
// there the units have not been charged.
func (p *policy) refund(key state, now int64, cost int) uint64 {
	cost = int(min(uint64(cost), p.most))
	if key.word == 0 || cost == 0 || p.unlimited() || p.blockedUntil(key) > 0 {
		return key.word
	}
	return p.arith.refund(key, now, cost)
}

func (p *policy) reset(key state) uint64 {
	switch {
	case p.wide == nil:
		return 0
	case p.blockedUntil(key) > 0:
		return p.unblock(key)
	}
	return p.wide.reset(key)
}

// adopt returns the word under p of a key whose state under the policy from is e, and
// writes the key's tail.
func (p *policy) adopt(from *policy, e state, tail []atomic.Uint64, now int64) uint64 {
	if e.word == 0 {
		return 0
	}
	if until := from.blockedUntil(e); until > 0 {
		return p.block(state{0, tail}, until)
	}
	return p.arith.adopt(from.arith, e, tail, now)
}

// adopted is adopt with a tail of its own.
func (p *policy) adopted(from *policy, e state, now int64) (key state) {
	if p.wide != nil {
		key.tail = make([]atomic.Uint64, p.tailLen())
	}
	key.word = p.adopt(from, e, key.tail, now)
	return key
}

// worstCase is the most that a key can be admitted in a closed span of d >= 0 ns.
func (p *policy) worstCase(d int64) uint64 {
	switch {
	case p.denyAll():
		return 0
	case p.unlimited():
		return math.MaxUint64
	}
	return p.arith.worstCase(d)
}

// A penalty is the effect of a denied call on its key.
//
// The only state of a blocked key is the end of its block; the key is fresh then. A
// one-word block cannot hold an end from 2116 on; such a block lasts for ever. A key is never
// blocked for less time than it would take to become fresh, or a block would give units back.
type penalty struct {
	denies   bool          // a denied call changes its key
	blockFor int64         // ns, or 0
	counts   denialCounter // nil unless denied calls count
}

// blockedUntil returns when the block of the key ends, or 0 if it has none. A wide word is
// locked, or at rest.
func (p *policy) blockedUntil(key state) (until uint64) {
	switch {
	case p.wide != nil:
		if key.word&blockedTail != 0 {
			until, _ = blockEnd(key.tail)
		}
		return until
	case key.word >= reserved:
		if until := key.word - reserved; until < endless {
			return until
		}
		return math.MaxUint64
	}
	return 0
}

// block returns the word of the key that is blocked until then, or longer if it would
// not be fresh by then. A wide word is locked.
func (p *policy) block(key state, until uint64) uint64 {
	until = max(until, p.idleAt(key))
	if p.wide == nil {
		return blockedWord(until)
	}
	if key.word&blockedTail == 0 {
		key.word = p.wide.reset(key) | blockedTail
	}
	if until >= endless { // for ever, as in a one-word block: no layout ends a block sooner than another
		until = math.MaxInt64
	}
	key.tail[0].Store(until | blockMark)
	return key.word
}

func (p *policy) unblock(key state) uint64 {
	if p.wide == nil {
		return 0
	}
	key.tail[0].Store(0)
	return key.word &^ blockedTail
}

// admissible returns the state from which a charge at now starts, or the time until which the
// key is blocked. A wide word is locked.
func (p *policy) admissible(key state, now int64) (from state, until uint64) {
	switch until = p.blockedUntil(key); {
	case until > uint64(now):
		return key, until
	case until > 0:
		key.word = p.unblock(key)
	}
	return key, 0
}

// deny returns the word after a denied call for a key that is not blocked. A wide word
// is locked.
func (p *policy) deny(key state, now int64, cost int) uint64 {
	if p.blockFor > 0 { // a block replaces the count
		return p.block(key, after(now, time.Duration(p.blockFor)))
	}
	return p.counts.countDenied(key, now, cost)
}

func (p *policy) bucket() bucket {
	b, _ := p.alg.(bucket)
	return b
}

func (p *policy) stamper() stamper {
	s, _ := p.arith.(stamper)
	return s
}

// forward moves the full tick of a line earlier by ticks, which must still count at now, and returns
// the word.
func (p *policy) forward(word uint64, now int64, ticks uint64) uint64 {
	if b := p.bucket(); b != nil {
		s, _ := b.turns()
		return b.pack(b.full(word)-ticks, s.tick(now))
	}
	return p.alg.refund(state{word: word}, now, int(ticks)) // a tick of such a line is a unit
}

// moveOut is slidingWindow.moveOut for a key's state. It fails, and returns the word as it is, for a key that is blocked
// or is not under InFlight.
func (p *policy) moveOut(key state, now int64, start, n uint64, renew bool) (word, next uint64, ok bool) {
	a := p.sliding()
	if a == nil || !a.whole || p.blockedUntil(key) > 0 {
		return key.word, 0, false
	}
	c, next, ok := a.moveOut(a.load(key), now, start, n, renew)
	if !ok {
		return key.word, 0, false
	}
	return a.store(key.tail, c), next, true
}

// firstCharge returns the word after the first charge, at the time at, of a key under p. A
// cost within the burst is always admitted; a larger cost is a debt. Under a wide
// algorithm firstCharge also writes the tail; and unless d is nil, d describes a call for one
// more unit as seen from now, which is not later than at.
func (p *policy) firstCharge(tail []atomic.Uint64, now, at int64, cost int, d *Decision) uint64 {
	switch {
	case cost == 0:
		// The key is fresh from at on: an older call sees it as if it had been charged. (An empty log
		// holds no time to say so. A TakeAll reads its clock once more, and that may go back by a us.)
		return p.arith.refund(state{p.firstCharge(tail, now, at, 1, nil), tail}, at, 1)
	case p.wide == nil:
		return p.alg.debit(0, at, cost)
	}
	word := p.debitTail(state{0, tail}, at, cost)
	if d != nil {
		d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = p.wide.describe(state{word, tail}, now, 1, false)
	}
	return word
}

func (p *policy) tailLen() int {
	if p.wide == nil {
		return 0
	}
	return p.wide.tailLen()
}

// never returns the error of a cost that no wait helps, or nil.
func (p *policy) never(cost int) error {
	switch {
	case cost < 0:
		return ErrNegativeCost
	case !p.unlimited() && !p.fits(max(cost, 1)):
		return ErrCostExceedsBurst
	}
	return nil
}
