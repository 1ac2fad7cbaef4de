package sluice

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/ledger"
)

// A Charge is one of the charges of TakeAll or AllowEach.
type Charge struct {
	Key Key
	// Cost is how many units are charged. It must be set: with 0 nothing is charged, and the
	// call passes as long as one unit is there.
	Cost int
}

// trackRounds is how often a TakeAll tracks its new keys anew because one of them has
// been dropped before all were held. Where a shard cannot hold them all at once, each
// pushes another one out, for ever. (A sweep may come in between as well, but hardly
// so often.) Not tuned.
const trackRounds = 64

// A claim is what a TakeAll wants of one key.
type claim struct {
	lim    *Limiter
	id     uint64
	terms  *terms // that the first Key brings, or nil
	cost   int64  // the sum of the key's charges; negative if one of them is
	index  int    // of the key's first charge
	now    int64
	noRoom outcome // waved or refused, if there was no room to track the key
	hold
	next  uint64 // the word after the charge, of a one-word algorithm
	until uint64 // when the key's block ends, or has ended; 0 if it has none
	Decision
}

// collect makes one claim of the charges of each key, in the order in which they are to be
// held: by limiter, then by id. It returns them in the front of space, which is zero. They go
// by the policies that policyFor finds. Unless same is nil it links the charges of each key.
func collect(space []claim, charges []Charge, each []Decision, same chain, policyFor func(Key) *policy) []claim {
	claims := space[:len(charges)]
	for i := range charges {
		c, charge := &claims[i], &charges[i]
		c.lim, c.id, c.terms, c.cost, c.index = charge.Key.lim.made(), charge.Key.id, charge.Key.terms, int64(charge.Cost), i
		c.lim.lookAhead(c.id)
	}
	sortClaims(claims)
	n, last := 0, 0
	for i := range claims {
		c := &claims[i]
		before := last
		last = c.index
		if n > 0 && claims[n-1].lim == c.lim && claims[n-1].id == c.id {
			claims[n-1].cost = addCosts(claims[n-1].cost, c.cost)
			sameAs(each, c.index, claims[n-1].index)
			if same != nil {
				same[before] = c.index
			}
			continue
		}
		if n < i {
			claims[n] = *c
		}
		n++
	}
	readClocks(claims[:n])
	for i := range claims[:n] {
		c := &claims[i]
		c.policy = policyFor(Key{c.lim, c.id, c.terms})
	}
	return claims[:n]
}

// sameAs notes in each, until describeAll, that charge i is for the key of an earlier one:
// by a RetryAfter below 0, which no Decision has.
func sameAs(each []Decision, i, first int) {
	if i < len(each) {
		each[i] = Decision{RetryAfter: time.Duration(^first)}
	}
}

// describeAll tells of the claims, which are settled, and of the charges added to them.
func describeAll(each []Decision, claims []claim) {
	for i := range claims {
		if at := claims[i].index; at < len(each) {
			each[at] = claims[i].Decision
		}
	}
	for i := range each {
		if at := each[i].RetryAfter; at < 0 {
			each[i] = each[^at]
		}
	}
}

// sortClaims sorts the claims, those of one key in the order of the charges. A few are
// sorted by insertion: they are often in order already, and large to be handed to a
// function by value.
func sortClaims(claims []claim) {
	if len(claims) > 16 {
		slices.SortStableFunc(claims, func(a, b claim) int {
			return cmp.Or(cmp.Compare(a.lim.serial, b.lim.serial), cmp.Compare(a.id, b.id))
		})
		return
	}
	for i := 1; i < len(claims); i++ {
		for j := i; j > 0 && claims[j].before(&claims[j-1]); j-- {
			claims[j], claims[j-1] = claims[j-1], claims[j]
		}
	}
}

func (c *claim) before(d *claim) bool {
	if c.lim != d.lim {
		return c.lim.serial < d.lim.serial
	}
	return c.id < d.id
}

// readClocks reads the clock of each limiter, once for all of its keys.
func readClocks(claims []claim) {
	for i := range claims {
		c := &claims[i]
		if i > 0 && claims[i-1].lim == c.lim {
			c.now = claims[i-1].now
		} else {
			c.now = max(c.lim.now(), 0)
		}
	}
}

// addCosts adds costs of one key. A negative one is not made up for by another, and a
// sum that is too large stays too large: no burst is math.MaxInt64. (On 32 bits some are
// math.MaxInt.)
func addCosts(a, b int64) int64 {
	switch {
	case a < 0 || b < 0:
		return -1
	case a > math.MaxInt64-b:
		return math.MaxInt64
	}
	return a + b
}

// A chain has for each charge the next one for the same key, or 0 if there is none. (Looking for
// them among all charges, for each key, would take a time in proportion to the square of their number,
// with all keys held.)
type chain []int

// of yields the charges for the key of a claim, in their order.
func (same chain) of(c *claim) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := c.index; yield(i) && same[i] > 0; i = same[i] {
		}
	}
}

// stateless reports whether all calls of its key are decided alike, or all while it is not
// blocked.
func (c *claim) stateless() bool { return c.policy.burst == 0 }

// unfit reports whether no state of its key admits the claim. It still describes the key.
func (c *claim) unfit() bool { return c.cost < 0 || uint64(c.cost) > c.policy.burst }

// units is what a claim that fits asks for: one with a cost of 0 asks for one.
func (c *claim) units() int { return int(max(c.cost, 1)) }

// ready reports whether there is a word for the charge to go to, or no need of one.
func (c *claim) ready() bool {
	return c.cost == 0 || c.slot != nil || c.noRoom != denied || c.unfit()
}

// turnless reports whether the algorithm of the claim has no turns, though it has states.
func (c *claim) turnless() bool { return !c.policy.unlimited() && c.policy.bucket() == nil }

// trackAll makes the claims ready, and reads their clocks again, since the keys may have been
// forgotten since the last reading.
func trackAll(claims []claim, round int) {
	for i := range claims {
		claims[i].track(round >= trackRounds)
	}
	readClocks(claims)
}

// track makes a claim ready. The last time, it settles what becomes of it if the key
// is dropped again. As ever at MaxKeys, OverflowEvictSoonest gives up state for that, and
// denies nothing.
func (c *claim) track(last bool) {
	if c.ready() {
		return
	}
	_, out := c.lim.insert(c.policy, c.id, c.now, 0, nil, gap{})
	switch {
	case out == waved || out == refused:
		c.noRoom = out
	case last:
		c.lim.untracked.Add(1)
		if c.noRoom = waved; c.lim.overflow == OverflowDenyNew {
			c.noRoom = refused
		}
	}
}

// judge sets Allowed to whether the claim would be admitted.
func (c *claim) judge() {
	switch {
	case c.stateless():
		if c.policy.unlimited() {
			c.until = c.policy.blockedUntil(c.state)
			c.Allowed = c.cost >= 0 && c.until <= uint64(c.now)
		}
	case c.unfit():
		c.Allowed = false
	case c.slot == nil && c.noRoom != denied:
		c.Allowed = c.noRoom == waved
	default:
		from := c.word
		if c.until = c.policy.blockedUntil(c.state); c.until > 0 {
			from = 0
		}
		switch wide := c.policy.wide; {
		case c.until > uint64(c.now):
			c.Allowed = false
		case wide != nil:
			c.Allowed = wide.admit(state{from, c.tail}, c.now, c.units())
		default:
			c.next, c.Allowed = c.policy.alg.charge(from, c.now, c.units())
		}
	}
}

// describe fills in the Decision. With charges, it makes the charge.
func (c *claim) describe(charges bool) {
	p := c.policy
	switch {
	case c.stateless():
		p.peek(&c.Decision, c.state, c.until, c.now, int(min(c.cost, 1)))
		return
	case c.slot == nil && c.noRoom == waved:
		c.Remaining = int(p.burst)
	case c.slot == nil && c.noRoom == refused:
		c.RetryAfter = p.limit.interval()
	case c.unfit():
		_, c.Remaining, _, c.ResetAfter = p.judge(c.state, c.now, 1, false)
		c.RetryAfter = Never
	case charges && p.wide == nil:
		c.word = c.next
		c.Remaining, c.RetryAfter, c.ResetAfter = p.alg.describe(c.word, c.now, c.units(), true)
	default:
		if p.denies && !c.Allowed && c.until == 0 && c.slot != nil && c.cost > 0 {
			c.word = p.deny(c.state, c.now, c.units())
		}
		_, c.Remaining, c.RetryAfter, c.ResetAfter = p.judge(c.state, c.now, c.units(), charges)
		if charges {
			from, _ := p.admissible(c.state, c.now)
			c.word = p.wide.commit(from, c.now, c.units())
		}
	}
	c.Limit = int(p.burst)
}

func (c *claim) outcome() outcome {
	switch {
	case c.Allowed:
		return admitted
	case c.until > uint64(c.now):
		return blocked
	}
	return denied
}

// holdAll holds the keys of all claims that are tracked, or none if one of them is
// being moved, perhaps to another policy, which it returns. It waits for keys that others
// hold while it holds some itself. That cannot go round in circles, since all hold in the
// same order; and nobody waits for a lock while holding a key.
func holdAll(claims []claim) (moving *claim) {
	for i := range claims {
		c := &claims[i]
		was := c.policy
		var ok bool
		if c.hold, ok = c.lim.tryHold(c.id); ok && c.slot == nil {
			c.policy = was // which is looked at below
		}
		if !ok || c.policy != was {
			releaseAll(claims[:i+1])
			return c
		}
	}
	// A key that was not tracked is not held, and may have been charged meanwhile. Now
	// that all others are held there is an instant at which it is fresh.
	for i := range claims {
		c := &claims[i]
		if c.slot != nil {
			continue
		}
		if !c.lim.fresh(c.id, c.policy) {
			releaseAll(claims)
			return c
		}
	}
	return nil
}

func releaseAll(claims []claim) {
	for i := range claims {
		claims[i].release()
	}
}

// A hold is a key whose word is out of everybody else's reach, for a moment: a call that
// wants the word waits without sleeping. A holder must not wait for a shard's lock, since a
// rebuild holds that while it waits for words.
type hold struct {
	policy *policy
	slot   *slot // nil if the key is not tracked
	state        // as it was, without the lock bit
}

// tryHold holds the word of id once nobody else does. It fails if the word is being
// moved; awaitMove then waits for that. An untracked key is not held, and fresh.
func (st *store) tryHold(id uint64) (h hold, ok bool) {
	p, e, tail := st.slotOf(id)
	if e == nil {
		return hold{policy: p}, true
	}
	if p.wide != nil {
		word, ok := e.lock()
		if !ok {
			return hold{}, false
		}
		return hold{p, e, state{word, tail}}, true
	}
	for {
		word := e.released()
		if word == moved || word == elsewhere {
			return hold{}, false
		}
		if e.word.CompareAndSwap(word, held) {
			return hold{p, e, state{word: word}}, true
		}
	}
}

// release ends the hold, and leaves the key with the word that the hold has by then.
func (h *hold) release() {
	if h.slot != nil {
		h.slot.word.Store(h.word)
		h.slot = nil
	}
}

// lockRecords locks the records of the claims' keys, and returns them in the order of the claims, in
// space, if they fit. It makes all that are missing before it locks the first: to make one
// takes the lock of a ledger.
func lockRecords(space []*ledger.Record, claims []claim) []*ledger.Record {
	for {
		records := space
		for i := range claims {
			c := &claims[i]
			records = append(records, c.lim.ledgers.Of(c.id).Record(c.id, c.now))
		}
		n := 0
		for n < len(records) && records[n].Lock() {
			n++
		}
		if n == len(records) {
			return records
		}
		releaseRecords(records[:n])
	}
}

func releaseRecords(records []*ledger.Record) {
	for _, rec := range records {
		rec.Release()
	}
}
