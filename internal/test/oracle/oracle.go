// Package oracle holds exact, slow, obviously right models of the six rate
// limiting algorithms. Tests compare the library with them, call by call.
//
// Nothing here is shared with the library: the models are written from the
// definitions alone, in math/big, behind one mutex. An algorithm supplies only
// four things (see state): whether n units pass at a time, the effect of a charge,
// the effect of a refund, and whether a key is as if fresh. Every number of a Decision is then found by
// searching over those, never by a closed form, so that the closed forms
// of the library are checked against something else than themselves.
//
// Time is in nanoseconds since the Unix epoch and cost in units, both int64. A
// negative time counts as 0. A key's state never moves back: a call whose time
// is older than the newest charge of its key is judged no more kindly than at
// the time of that charge, and charged there. A model never forgets a key that
// has become idle, because a later call with an older time could still see it,
// until the key's limit changes.
package oracle

import (
	"fmt"
	"math"
	"math/big"
	"sort"
	"sync"
)

// Algorithm names a model. The values are the library's.
type Algorithm int

// The algorithms, in the order of the library.
const (
	GCRA Algorithm = iota
	TokenBucket
	LeakyBucket
	SlidingWindow
	SlidingLog
	FixedWindow
	InFlight
)

// Never is the RetryAfter of a call that no wait helps, and of one that would
// have to wait beyond the last nanosecond of int64. ResetAfter uses it likewise.
const Never int64 = math.MaxInt64

// named has the configurations by the text forms of sluice.Algorithm.
var named = map[string]Config{
	"gcra": {Algorithm: GCRA}, "token-bucket": {Algorithm: TokenBucket}, "token-bucket-interval": {Algorithm: TokenBucket, Interval: true},
	"leaky-bucket": {Algorithm: LeakyBucket}, "sliding-window": {Algorithm: SlidingWindow}, "sliding-log": {Algorithm: SlidingLog},
	"fixed-window": {Algorithm: FixedWindow}, "fixed-window-first-charge": {Algorithm: FixedWindow, FirstCharge: true},
	"in-flight": {Algorithm: InFlight},
}

// Named returns a configuration of the algorithm with that text form, without a limit.
func Named(text string) Config {
	c, ok := named[text]
	if !ok {
		panic("oracle: no algorithm is " + text)
	}
	return c
}

// Name is the text form of the algorithm of c.
func (c Config) Name() string {
	for text, o := range named {
		if o.Algorithm == c.Algorithm && o.Interval == c.Interval && o.FirstCharge == c.FirstCharge {
			return text
		}
	}
	panic("oracle: an algorithm without a name")
}

// Config describes one limit under one algorithm.
type Config struct {
	Algorithm Algorithm

	// Rate is the cost admitted per Period in the long run. 0 denies every
	// call and math.MaxInt64 admits every call of cost >= 0; for these two
	// Period and Burst do not matter.
	Rate int64

	// Burst is the cost a fresh key admits at once; 0 means Rate. The window
	// algorithms know no other burst than Rate.
	Burst int64

	// Period is in nanoseconds and at least 1.
	Period int64

	// Interval makes TokenBucket gain its Rate at once, at the boundaries k*Period +
	// Offset. It must be false for other algorithms.
	Interval bool

	// FirstCharge makes the windows of FixedWindow begin at a key's first charge after
	// the last one has ended. It must be false for other algorithms.
	FirstCharge bool

	// Offset moves the windows of FixedWindow and SlidingWindow, and the refills of
	// an Interval, 0 <= Offset < Period. It must be 0 for other algorithms.
	Offset int64

	// Calendar, unless it is nil, says where the windows of FixedWindow begin, in the place of Period and Offset. It must be nil
	// for other algorithms, and two Calendars are the same if the pointers are.
	Calendar *Calendar

	// Grid makes GCRA, TokenBucket and LeakyBucket floor each arrival to a
	// grid of Period/(Rate*c) ns, c = ceil(Period/Rate): less than 1 ns, by a
	// fixed rule, after which everything is exact on the grid. Where
	// Period/Rate is a whole number the grid is 1 ns and changes nothing. The
	// windows ignore it.
	Grid bool

	// BlockFor and CountDenied are the effects of a denied call on its key: see penalty.go.
	// CountDenied must be false except for the windows.
	BlockFor    int64
	CountDenied bool

	// CountMost is the most that Charge can make a window, or the tokens missing at
	// Interval, count, at least the limit; 0 for no end. A word has room for so much.
	CountMost int64

	// BlockEnd is the time from which on a block that would end there never ends, or 0:
	// a word has room for so much.
	BlockEnd int64
}

// Decision is the outcome of one call. RetryAfter and ResetAfter are in
// nanoseconds from the time of the call, also when that time is an older one.
type Decision struct {
	// Allowed is whether the call passed, or for cost 0 whether 1 unit would.
	Allowed bool
	// Limit is the most that can be admitted at once.
	Limit int64
	// Remaining is the greatest cost that would be admitted at the same time
	// after this call, or 0.
	Remaining int64
	// RetryAfter is 0 if Allowed, else the least wait after which the same call
	// would be admitted if nothing else happens, or Never.
	RetryAfter int64
	// ResetAfter is the least wait until the key is idle, or Never.
	ResetAfter int64
}

// state has the charges of one key, under one algorithm. The zero history
// is a state like any other. Times are >= 0 and costs are between 1 and the
// limit: the Model sees to both.
type state interface {
	// admits reports whether n units pass at t. It is monotone: units that pass at
	// t pass at every later time, and so do fewer units.
	admits(t, n int64) bool
	// charge records n units at t, which admits has just accepted.
	charge(t, n int64)
	// debit records n units at t whether admits accepts them or not: see debit.go.
	debit(t, n int64)
	// refund takes back, at t, up to n of the units that have been charged: see
	// Model.Refund.
	refund(t, n int64)
	// adopt makes this state, which is fresh, that of a key which has spent at t what old
	// says under another limit of the same algorithm.
	adopt(old state, t int64)
	// idle reports whether no call at t or later can tell this state from one
	// that was never charged. It is monotone in t.
	idle(t int64) bool
	// clone returns a state that later charges of this one do not touch.
	clone() state
}

// Model judges calls for any number of keys, under one Config at a time. It is safe for
// concurrent use.
type Model struct {
	mu      sync.Mutex // guards all, and the scratch numbers that states share
	main    *rule
	own     map[string]*rule // of the keys that have one
	largest int64            // limit of main so far
	keys    map[string]*key
	guess   Decision // see Guess
}

// A rule is a Config in force.
type rule struct {
	cfg   Config
	limit int64        // most that can be admitted at once; Burst with its default applied
	fresh func() state // nil where no decision depends on time or history, see constant
	base  *rule        // itself; if fresh is nil, the last rule before whose fresh is not; or nil
}

// nothing is the state of keys under a limit that has never been another than Rate 0 or
// Rate math.MaxInt64.
type nothing struct{}

func (nothing) admits(int64, int64) bool { return true }
func (nothing) charge(int64, int64)      {}
func (nothing) debit(int64, int64)       {}
func (nothing) refund(int64, int64)      {}
func (nothing) adopt(state, int64)       {}
func (nothing) idle(int64) bool          { return true }
func (nothing) clone() state             { return nothing{} }

// A key has the state of a key that is not fresh.
type key struct {
	rule  *rule // that state is of: the base of the one in force
	state state // fresh if until is not nil

	// until is the end of the last block, if nothing has been charged since, else nil. It
	// may lie beyond the end of time, and is never written in place.
	until *big.Int
}

// New returns a model in which every key is fresh. It panics if the library's
// contract does not cover c: a test that gets there is wrong.
func New(c Config) *Model {
	m := &Model{own: map[string]*rule{}, keys: map[string]*key{}}
	m.setMain(newRule(c, nil))
	return m
}

func (m *Model) setMain(r *rule) {
	m.main = r
	if r.fresh != nil {
		m.largest = max(m.largest, r.limit)
	}
}

// newRule returns the rule of c, to follow another one or nil.
func newRule(c Config, before *rule) *rule {
	r := &rule{cfg: c}
	if c.Rate == 0 || c.Rate == math.MaxInt64 {
		r.limit = c.Rate
		if before != nil {
			r.base = before.base
		}
		return r
	}
	r.base, r.limit = r, c.Burst
	if r.limit == 0 {
		r.limit = c.Rate
	}
	c.check(r.limit)
	switch c.Algorithm {
	case GCRA:
		r.fresh = newGCRA(newTicks(c), r.limit)
	case TokenBucket:
		r.fresh = newTokenBucket(newTicks(c), r.limit)
		if c.Interval {
			r.fresh = newTokenInterval(c, r.limit)
		}
	case LeakyBucket:
		r.fresh = newLeakyBucket(newTicks(c), r.limit)
	case SlidingWindow, InFlight:
		r.fresh = newSlidingWindow(c, r.limit)
	case SlidingLog:
		r.fresh = newSlidingLog(c.Period, r.limit)
	case FixedWindow:
		r.fresh = newFixedWindow(c, r.limit)
		if c.FirstCharge {
			r.fresh = newFirstChargeWindow(c, r.limit)
		}
	default:
		panic(fmt.Sprintf("oracle: unknown algorithm %d", c.Algorithm))
	}
	return r
}

// check panics if c, with that limit, makes no sense.
func (c Config) check(limit int64) {
	if c.Rate < 0 || c.Period < 1 || c.Burst < 0 {
		panic(fmt.Sprintf("oracle: invalid config %+v", c))
	}
	if c.Algorithm >= SlidingWindow && limit != c.Rate {
		panic(fmt.Sprintf("oracle: a window's burst is its rate: %+v", c))
	}
	if c.Offset < 0 || c.Offset >= c.Period || c.Offset > 0 && !c.aligned() {
		panic(fmt.Sprintf("oracle: invalid offset: %+v", c))
	}
	if c.Calendar != nil && (c.Algorithm != FixedWindow || c.FirstCharge || c.Offset != 0) {
		panic(fmt.Sprintf("oracle: a calendar for other windows: %+v", c))
	}
	if c.CountDenied && (c.Algorithm < SlidingWindow || c.Algorithm == InFlight) || c.BlockFor < 0 {
		panic(fmt.Sprintf("oracle: invalid penalty: %+v", c))
	}
	if c.Interval && c.Algorithm != TokenBucket || c.FirstCharge && c.Algorithm != FixedWindow {
		panic(fmt.Sprintf("oracle: invalid options: %+v", c))
	}
}

// aligned reports whether c has boundaries in Unix time.
func (c Config) aligned() bool {
	return c.Algorithm == FixedWindow && !c.FirstCharge || c.Algorithm == SlidingWindow || c.Interval
}

// Guess says which decision the caller expects next, and returns m. Its numbers are the first to
// be tried: one that is right is found in three steps and not in a hundred, and one that is wrong
// is searched for as ever, so that no decision depends on guesses.
func (m *Model) Guess(d Decision) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guess = d
	return m
}

// Take charges cost to key at now and reports the decision. The charge is all
// or nothing, and a denied call or one of cost 0 leaves no trace but its penalty,
// which the decision tells of. A negative cost and one above the limit are denied for
// ever.
func (m *Model) Take(name string, now, cost int64) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.take(name, now, cost)
}

// take is Take. The caller holds mu.
func (m *Model) take(name string, now, cost int64) Decision {
	r := m.ruleOf(name)
	if r.fresh == nil {
		return m.constant(name, r, max(now, 0), cost)
	}
	t, k := max(now, 0), m.keyOf(name)
	blocked := k.blocks(t)
	d := k.decide(t, cost, m.guess)
	switch {
	case d.Allowed && cost > 0:
		k.until = nil
		m.keys[name] = k
	case !d.Allowed && !blocked && 0 < cost && cost <= r.limit:
		m.punish(k, t, cost)
		return k.decide(t, cost, m.guess) // which denies it all the more
	}
	return d
}

// ruleOf returns the rule in force for a key.
func (m *Model) ruleOf(name string) *rule {
	if r := m.own[name]; r != nil {
		return r
	}
	return m.main
}

// keyOf returns the key, or a fresh one that nobody knows yet.
func (m *Model) keyOf(name string) *key {
	if k := m.keys[name]; k != nil {
		return k
	}
	r := m.ruleOf(name)
	if r.base == nil {
		return &key{rule: r, state: nothing{}}
	}
	return &key{rule: r.base, state: m.newState(r.base)}
}

// Peek returns the answer of Take, Remaining and ResetAfter after the
// charge included, were there no penalties but blocks, and charges nothing.
func (m *Model) Peek(name string, now, cost int64) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.ruleOf(name); r.fresh == nil {
		return m.constant(name, r, max(now, 0), cost)
	}
	k := *m.keyOf(name)
	k.state = k.state.clone()
	return k.decide(max(now, 0), cost, m.guess)
}

// passes reports whether Peek would allow it.
func (m *Model) passes(name string, now, cost int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, k, t := m.ruleOf(name), m.keyOf(name), max(now, 0)
	switch {
	case r.fresh == nil:
		return m.constant(name, r, t, cost).Allowed
	case k.blocks(t) || cost < 0 || cost > k.rule.limit:
		return false
	}
	return k.state.admits(t, max(cost, 1))
}

// Refund gives back cost units that key has been charged, at most the limit, under Rate 0 the
// one before; a cost below 1 does nothing, nor does any under Rate math.MaxInt64. Buckets owe
// that much less at now, but never less than nothing. A window counts so many units less: those of the window of now, or
// of the key's own if that is newer, go first, then, under SlidingWindow, those of
// the window before. From the log the newest units are struck out.
func (m *Model) Refund(name string, now, cost int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, r := m.keys[name], m.ruleOf(name)
	if k != nil && cost > 0 && (r.fresh != nil || r.limit == 0) {
		k.state.refund(max(now, 0), min(cost, k.rule.limit))
	}
}

// Reset makes key fresh.
func (m *Model) Reset(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.keys, name)
}

// Idle reports whether key is indistinguishable from a fresh one for every
// possible later sequence of calls at now or later.
func (m *Model) Idle(name string, now int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[name]
	return k == nil || !k.blocks(max(now, 0)) && k.state.idle(max(now, 0))
}

// constant is the decision where nothing depends on time or history but blocks: Rate 0
// and Rate math.MaxInt64.
func (m *Model) constant(name string, r *rule, t, cost int64) Decision {
	if k := m.keys[name]; k != nil && k.blocks(t) && r.limit > 0 {
		return k.decideBlocked(r.limit, t, cost)
	}
	d := Decision{Limit: r.limit, Remaining: r.limit}
	d.Allowed = r.limit > 0 && cost >= 0
	if !d.Allowed {
		d.RetryAfter = Never
	}
	return d
}

// decide judges one call and charges k if it is admitted. The caller holds mu.
func (k *key) decide(t, cost int64, guess Decision) Decision {
	if k.blocks(t) {
		return k.decideBlocked(k.rule.limit, t, cost)
	}
	s, limit := k.state, k.rule.limit
	d := Decision{Limit: limit}
	asked := max(cost, 1) // cost 0 asks for 1 unit and takes none
	if cost < 0 || cost > limit {
		d.RetryAfter = Never
	} else {
		d.RetryAfter = leastWait(t, func(u int64) bool { return s.admits(u, asked) }, guess.RetryAfter)
		d.Allowed = d.RetryAfter == 0
	}
	if d.Allowed && cost > 0 {
		s.charge(t, cost)
	}
	d.Remaining = most(limit, func(n int64) bool { return s.admits(t, n) }, guess.Remaining)
	d.ResetAfter = leastWait(t, s.idle, guess.ResetAfter)
	return d
}

// leastWait returns the least w >= 0 for which holds(t+w), or Never if it holds
// at no time up to math.MaxInt64. holds must not become false once true. guess is tried
// first: there is one time only at which holds has just become true.
func leastWait(t int64, holds func(u int64) bool, guess int64) int64 {
	switch {
	case holds(t):
		return 0
	case guess == Never && !holds(math.MaxInt64):
		return Never
	case 0 < guess && guess <= math.MaxInt64-t && !holds(t+guess-1) && holds(t+guess):
		return guess
	}
	// Waits are of all magnitudes: the least power of two that is long enough comes first.
	long := func(bits int) bool { return t > math.MaxInt64-1<<bits }
	bits := sort.Search(63, func(bits int) bool { return long(bits) || holds(t+1<<bits) })
	// Invariant: holds(no) is false, holds(yes) is true. 0 <= no < yes, so the
	// difference cannot overflow.
	no, yes := t, int64(math.MaxInt64)
	if bits > 0 {
		no = t + 1<<(bits-1)
	}
	if bits < 63 && !long(bits) {
		yes = t + 1<<bits
	} else if !holds(yes) {
		return Never
	}
	for yes-no > 1 {
		if mid := no + (yes-no)/2; holds(mid) {
			yes = mid
		} else {
			no = mid
		}
	}
	return yes - t
}

// most returns the greatest n in [1, limit] for which holds(n), or 0 if there
// is none. holds must not become true once false. guess is tried first.
func most(limit int64, holds func(n int64) bool, guess int64) int64 {
	switch {
	case holds(limit):
		return limit
	case 0 <= guess && guess < limit && !holds(guess+1) && (guess == 0 || holds(guess)):
		return guess
	}
	// Invariant: holds(yes) is true or yes is 0, and holds(no) is false.
	yes, no := int64(0), limit
	for no-yes > 1 {
		if mid := yes + (no-yes)/2; holds(mid) {
			yes = mid
		} else {
			no = mid
		}
	}
	return yes
}
