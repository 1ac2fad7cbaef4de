package sluice

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/ledger"
)

// A Charge is one charge of a call of TakeAll, TakeAllReservations, WaitAll or AllowEach.
type Charge struct {
	Key Key
	// Cost is how many units are charged. It must be set: with 0 nothing is charged, and the
	// charge is admitted if one unit would be.
	Cost int
}

// trackRounds is how often a transaction tracks its new keys again because one of them was
// dropped before all were held, if the shard is full. Without room for all of them, each new key
// pushes out another one, for ever. In other shards only a sweep, or a call that brings another limit, drops
// a key that is not charged yet, and the transaction goes on. Not tuned.
const trackRounds = 64

// A transaction makes charges for several keys, or none of them: TakeAll and WaitAll. It holds
// the words of all keys, lets its judge decide, and releases the words. A key that is to be charged needs
// a word, and for a reservation a record: the judge says if one is missing, and decides again once it is there.
type transaction struct {
	charges []Charge
	same    chain            // nil if nothing walks through the charges of a key
	each    []Decision       // where describeAll describes the first charges, or nil
	space   []claim          // room for a claim of each charge; a count in place of a slice
	n       int              // the number of claims, one a key, lets space and records stay on the stack
	records []*ledger.Record // of the claims' keys; as long as charges, or nil
	locked  bool             // the records
	looks   bool             // changes nothing: for PeekAll
}

func (t *transaction) claims() []claim { return t.space[:t.n] }

// A step is the next thing that a judge asks for.
type step uint8

const (
	done     step = iota // nothing: it has decided, and made the charges or not
	lockThem             // the records
	trackNew             // words for the keys that have none
)

// run asks the judge, with the keys held, until it has decided. It leaves the records locked.
func (t *transaction) run(judge func() step) {
	t.collect()
	t.lockFound()
	for round := 0; ; {
		if moving := holdAll(t.claims()); moving != nil {
			moving.lim.awaitMove(moving.id)
			t.collectAgain()
			continue
		}
		next := judge()
		releaseAll(t.claims())
		switch next {
		case done:
			return
		case lockThem:
			// Records are locked before words are held, and after the keys have been put under the limits
			// that the charges go by.
			lockRecords(t.records[:t.n], t.claims())
			t.locked = true
			t.collectAgain()
		case trackNew:
			trackAll(t.claims(), round)
			round++
		}
	}
}

func (t *transaction) collectAgain() {
	clear(t.space)
	t.collect()
}

// collect makes one claim of the charges of each key, in the order in which they are to be
// held: by limiter, then by id. The space is zero.
func (t *transaction) collect() {
	claims := t.space
	for i := range claims {
		c, charge := &claims[i], &t.charges[i]
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
			sameAs(t.each, c.index, claims[n-1].index)
			if t.same != nil {
				t.same[before] = c.index
			}
			continue
		}
		if n < i {
			claims[n].asked = c.asked
		}
		n++
	}
	t.n = n
	readClocks(claims[:n])
	for i := range claims[:n] {
		c := &claims[i]
		c.policy = Key{c.lim, c.id, c.terms}.policyFor(!t.locked && !t.looks)
	}
}

// asked is the part of a claim that is set before the claims are sorted.
type asked struct {
	lim   *Limiter
	id    uint64
	terms *terms // the terms that the first Key brings, or nil
	cost  int64  // the sum of the key's charges; negative if one of them is
	index int    // the index of the key's first charge
}

// A claim is the sum of a transaction's charges for one key, and the decision on it.
type claim struct {
	asked
	now    int64
	noRoom outcome // waved or refused if there was no room to track the key
	hold
	next  uint64 // the word after the charge, of a one-word algorithm
	until uint64 // when the key's block ends, or has ended; 0 if it has none
	made  bool   // the Decision describes the charge as made
	Decision
}

// sameAs notes in each, until describeAll, that charge i is for the key of an earlier charge:
// by a RetryAfter below 0, which no Decision has.
func sameAs(each []Decision, i, first int) {
	if i < len(each) {
		each[i] = Decision{RetryAfter: time.Duration(^first)}
	}
}

// describeAll writes the decisions on the claims, and on the charges added to them, to each.
func (t *transaction) describeAll() {
	claims := t.claims()
	for i := range claims {
		if at := claims[i].index; at < len(t.each) {
			t.each[at] = claims[i].Decision
		}
	}
	for i := range t.each {
		if at := t.each[i].RetryAfter; at < 0 {
			t.each[i] = t.each[^at]
		}
	}
}

// sortClaims sorts the claims, and keeps claims of one key in the order of the charges. A few
// are sorted by insertion: they are often in order already, and a claim is large to move.
func sortClaims(claims []claim) {
	if len(claims) > 16 {
		slices.SortStableFunc(claims, func(a, b claim) int {
			return cmp.Or(cmp.Compare(a.lim.serial, b.lim.serial), cmp.Compare(a.id, b.id))
		})
		return
	}
	for i := 1; i < len(claims); i++ {
		for j := i; j > 0 && claims[j].before(&claims[j-1]); j-- {
			claims[j].swap(&claims[j-1].asked)
		}
	}
}

// swap swaps the fields of two claims that have just been written, word by word: a load of several words
// at once would wait until the stores of these words are done.
func (a *asked) swap(b *asked) {
	a.lim, b.lim = b.lim, a.lim
	a.id, b.id = b.id, a.id
	a.terms, b.terms = b.terms, a.terms
	a.cost, b.cost = b.cost, a.cost
	a.index, b.index = b.index, a.index
}

func (c *claim) before(d *claim) bool {
	if c.lim != d.lim {
		return c.lim.serial < d.lim.serial
	}
	return c.id < d.id
}

// readClocks reads the clock of each limiter, once for all of its keys; all system clocks at once, and all fast ones.
func readClocks(claims []claim) {
	system, fast := int64(-1), int64(-1)
	for i := range claims {
		c := &claims[i]
		if i > 0 && claims[i-1].lim == c.lim {
			c.now = claims[i-1].now
			continue
		}
		switch clock := c.lim.clock.(type) {
		case *systemClock:
			if system < 0 {
				system = monotonic()
			}
			c.now = max(clock.zero+system, 0)
		case *FastClock:
			if fast < 0 {
				fast = clock.Now() - clock.zero
			}
			c.now = max(clock.zero+fast, 0)
		default:
			c.now = max(c.lim.now(), 0)
		}
	}
}

// addCosts adds costs of one key. The sum with a negative cost is negative, whatever the other
// cost is. A sum that is too large stays too large: no burst is math.MaxInt64. (On 32 bits some
// bursts are math.MaxInt.)
func addCosts(a, b int64) int64 {
	switch {
	case a < 0 || b < 0:
		return -1
	case a > math.MaxInt64-b:
		return math.MaxInt64
	}
	return a + b
}

// A chain has for each charge the next one for the same key, or 0 if there is none. (A search among
// all charges, for each key, would take a time in proportion to the square of their number, with all
// keys held.)
type chain []int

// of yields the charges for the key of a claim, in their order.
func (same chain) of(c *claim) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := c.index; yield(i) && same[i] > 0; i = same[i] {
		}
	}
}

// unfit reports whether every state of the key decides the claim alike. The Decision still describes the key.
func (c *claim) unfit() bool { return c.cost < 0 || uint64(max(c.cost, 1)) > c.policy.burst }

// units returns how many units a claim that fits asks for: with a cost of 0, one.
func (c *claim) units() int { return int(max(c.cost, 1)) }

// ready reports whether the key has a word to charge, or the claim needs no word.
func (c *claim) ready() bool {
	return c.cost == 0 || c.slot != nil || c.noRoom != denied || c.unfit()
}

// decides reports whether the state of the key decides on the claim.
func (c *claim) decides() bool { return !c.unfit() && (c.slot != nil || c.noRoom == denied) }

// trackAll makes the claims ready, and reads their clocks again, since the keys may have been
// dropped since the last reading.
func trackAll(claims []claim, round int) {
	for i := range claims {
		c := &claims[i]
		c.track(round >= trackRounds && c.lim.shardOf(c.id).full())
	}
	readClocks(claims)
}

// track makes a claim ready. The last time, it decides the claim without room, in case the
// key is dropped again: OverflowEvictSoonest then admits it without state, since as always
// at MaxKeys it gives up state and denies nothing.
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

// judge describes the claim as Take would, and changes no key. Unless made is true, it describes an
// admitted claim as not charged.
func (c *claim) judge(made bool) {
	p := c.policy
	c.made = made && c.cost > 0
	c.Decision, c.until = Decision{}, 0
	if c.word >= blockedTail {
		c.until = p.blockedUntil(c.state)
	}
	switch {
	case c.decides():
		c.Limit = int(p.burst)
		c.next, c.Allowed, c.Remaining, c.RetryAfter, c.ResetAfter = p.judge(c.state, c.now, c.units(), c.made)
	case !c.unfit():
		p.tell(&c.Decision, 0, c.noRoom, c.now, c.units())
	case c.cost > 0 && !p.unlimited(): // too large for an int, perhaps
		p.peek(&c.Decision, c.state, c.until, c.now, -1)
	default:
		p.peek(&c.Decision, c.state, c.until, c.now, int(min(c.cost, 1)))
	}
}

func (c *claim) describe() {
	_, _, c.Remaining, c.RetryAfter, c.ResetAfter = c.policy.judge(c.state, c.now, c.units(), false)
}

// charge changes the key once all claims have been judged. With all, the key is charged if its
// own claim is admitted. A claim that is itself denied leaves its key as a denied Take
// would.
func (c *claim) charge(all bool) {
	p := c.policy
	switch {
	case !c.decides() || c.cost == 0:
	case all && c.Allowed:
		c.word = p.commit(c.state, c.next, c.now, c.units())
	case c.Allowed && c.made:
		c.describe()
	case !c.Allowed && p.denies && c.until == 0 && c.slot != nil:
		c.word = p.deny(c.state, c.now, c.units())
		c.describe()
	}
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

// holdAll holds the keys of all claims that are tracked. If one of them is being moved, perhaps
// to another policy, it holds none and returns that claim. It waits for keys that others hold
// while it holds some itself. No two transactions can wait for each other, since all hold keys in
// the same order; and no transaction waits for a lock while it holds a key.
func holdAll(claims []claim) (moving *claim) {
	for i := range claims {
		c := &claims[i]
		was := c.policy
		ok := c.tryHold(&c.lim.store, c.id)
		if ok && c.slot == nil {
			c.policy = was // the loop below looks at it
		}
		if !ok || c.policy != was {
			releaseAll(claims[:i+1])
			return c
		}
	}
	// A key that was not tracked is not held, and may have been charged meanwhile. All
	// other keys are held now, so this looks for an instant at which it is fresh.
	for i := range claims {
		c := &claims[i]
		if c.slot != nil {
			continue
		}
		if at := c.lim.locate(c.id); !at.fresh(c.policy) {
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

// A hold is a key whose word no other call can use, for a moment: a call that
// needs the word waits without sleeping. A holder must not wait for a shard's lock, since a
// rebuild holds that lock while it waits for words.
type hold struct {
	policy *policy
	slot   *slot // nil if the key is not tracked
	state        // as it was, without the lock bit
}

// tryHold holds the word of id once no other call does. It fails if the word is being
// moved; awaitMove then waits for the end of the move. An untracked key is fresh, and not held.
// It writes to h, since a hold is too large for registers.
func (h *hold) tryHold(st *store, id uint64) (ok bool) {
	p, e, tail := st.slotOf(id)
	h.policy, h.slot, h.state = p, nil, state{tail: tail}
	switch {
	case e == nil:
		return true
	case p.wide != nil:
		h.word, ok = e.lock()
	default:
		h.word, ok = e.hold()
	}
	if ok {
		h.slot = e
	}
	return ok
}

// hold marks the word as held, and returns the word. It fails if the word is moved or elsewhere.
func (e *slot) hold() (word uint64, ok bool) {
	for {
		word = e.released()
		if word == moved || word == elsewhere {
			return 0, false
		}
		if e.word.CompareAndSwap(word, held) {
			return word, true
		}
	}
}

// release ends the hold, and stores the word that the hold has by then in the key's slot.
func (h *hold) release() {
	if h.slot != nil {
		h.slot.word.Store(h.word)
		h.slot = nil
	}
}

// lockRecords locks the records of the claims' keys, and puts them into records. It makes all missing
// records before it locks the first one: to make one takes the lock of a ledger.
func lockRecords(records []*ledger.Record, claims []claim) {
	for {
		for i := range claims {
			c := &claims[i]
			records[i] = c.lim.ledgers.Of(c.id).Record(c.id, c.now)
		}
		n := 0
		for n < len(records) && records[n].Lock() {
			n++
		}
		if n == len(records) {
			return
		}
		releaseRecords(records[:n])
	}
}

// releaseRecords ends a transaction that may have locked records.
func (t *transaction) releaseRecords() {
	if t.locked {
		releaseRecords(t.records[:t.n])
	}
}

// lockFound is lockRecords if all records are there, and free. Then the keys need not be collected and held again.
func (t *transaction) lockFound() {
	if t.records == nil {
		return
	}
	n := 0
	for ; n < t.n; n++ {
		c := &t.space[n]
		rec := c.lim.ledgers.Of(c.id).Find(c.id)
		if rec == nil || !rec.TryLock() {
			break
		}
		t.records[n] = rec
	}
	if t.locked = n == t.n; !t.locked {
		releaseRecords(t.records[:n])
	}
}

func releaseRecords(records []*ledger.Record) {
	for _, rec := range records {
		rec.Release()
	}
}
