package sluice

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Limiter decides, for each key by itself, whether a call may pass now.
//
// It is safe for concurrent use. Decisions on one key take effect one at a time,
// in an order consistent with real time; an admitted call synchronizes before
// every later decision on its key. Decisions on different keys are independent.
// Contention is never an error and never a denial.
//
// Nothing has to be closed: a limiter that is no longer referenced is collected.
// It must be made by New and not be copied. Any other one panics when used, and so does a
// nil one: with a sentence, except in Allow, AllowN, Take, Peek and the making of Keys, where
// looking would cost time.
type Limiter struct {
	store
	core    *Limiter // itself, or the limiter that has the state: see Key.WithLimit
	under   *plan    // what the calls through this view of the limiter bring; or nil
	plans   atomic.Pointer[plans]
	ledgers *ledgers
	hash    hasher
	direct  bool   // keys are seeded, and nobody asks who is denied: see Allow
	serial  uint64 // orders limiters: see TakeAll
	soft    int
	shadow  bool
	top     *topDenied // nil without Config.TopDenied
	tally   tally      // nil without Config.Stats
	config  atomic.Pointer[Config]
	admin   sync.Mutex // held to change the limiter's limit, or a plan's
}

// New returns a limiter. The error is a *ConfigError: it names the field, its
// value and what would be accepted. A limit that the algorithm cannot keep
// exactly is an error, never a weaker limit.
func New(c Config) (*Limiter, error) { return newLimiter(c, math.MaxUint64) }

// made returns l if New has made it, and panics otherwise.
func (l *Limiter) made() *Limiter {
	if l == nil || l.shards == nil {
		panic("sluice: this Limiter has not been made by New, or this Key by no Limiter; want sluice.New(sluice.Config{Limit: sluice.PerSecond(100)}), and Key of that")
	}
	return l
}

// Must returns l, or panics if err is not nil. It wraps New where a limiter that
// cannot be made is a programming error, as in a package variable.
func Must(l *Limiter, err error) *Limiter {
	if err != nil {
		panic(err)
	}
	return l
}

// newLimiter is New with a mask on where in a table a key's probe starts. Tests
// clear bits of it to crowd all keys into a few places.
func newLimiter(c Config, homes uint64) (*Limiter, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(c, nil)
	if err != nil {
		return nil, err
	}
	shards := defaultShards(c.MaxKeys)
	if c.Shards != 0 {
		shards = pow2(c.Shards)
	}
	for shards > c.MaxKeys {
		shards /= 2
	}
	l := &Limiter{soft: c.Soft, shadow: c.Shadow, serial: serials.Add(1)}
	if c.TopDenied > 0 {
		l.top = newTopDenied(c.TopDenied)
	}
	l.hash = newHasher(c.Hash, l.top)
	l.direct = !l.hash.stable && l.top == nil && !l.shadow
	l.core = l
	l.setUp(c, p, shards, c.MaxKeys, homes)
	return l, nil
}

// setUp makes the limiter ready to decide, with a number of shards, or one if homes are
// crowded.
func (l *Limiter) setUp(c Config, p *policy, shards, maxKeys int, homes uint64) {
	if homes != math.MaxUint64 {
		shards = 1
	}
	config := new(Config)
	*config = c
	l.config.Store(config)
	l.clock, l.ttl, l.overflow, l.homes = c.Clock, int64(c.TTL), c.Overflow, homes
	l.cached = &notCached
	switch clock := c.Clock.(type) {
	case *systemClock:
		l.timed = true
	case *CoarseClock:
		l.timed, l.cached = true, &clock.now
	case *ManualClock:
		l.cached = &clock.now
	}
	if c.Stats {
		l.tally = make(tally, shards)
	}
	l.init(p, shards, maxKeys)
	l.ledgers = newLedgers(shards, l.shift)
	l.books = l.ledgers
}

// Allow charges one unit to key and reports whether it was admitted.
func (l *Limiter) Allow(key string) bool {
	if !l.direct {
		return l.AllowN(key, 1)
	}
	id := l.hash.seeded(key) // one frame less than AllowN
	l.ahead(id)
	return l.allowAt(id, l.now(), 1)
}

// AllowN charges cost units to key and reports whether they were admitted, all or
// none. See Take for the costs that are not from 1 to the burst.
func (l *Limiter) AllowN(key string, cost int) bool {
	id := l.hash.string(key)
	l.ahead(id)
	return l.allowAt(id, l.now(), cost) || l.deny(id, key, cost)
}

// Take charges cost units to key and describes the decision.
//
// The charge is all or nothing: a denied call leaves the key as it was, and a key
// that is not tracked stays untracked. A cost of 0 charges nothing; the decision
// is then the one on one unit, without regard to MaxKeys. A negative cost, or one
// above the burst, is denied with RetryAfter Never. Take does not retain key.
func (l *Limiter) Take(key string, cost int) (d Decision) {
	id := l.hash.string(key)
	l.ahead(id)
	l.takeAt(&d, id, l.now(), cost)
	if !d.Allowed || l.soft > 0 {
		l.finish(&d, id, key, cost)
	}
	return d
}

// Peek returns what Take would return, but charges nothing and tracks nothing. For
// a key that is not tracked it does not consider MaxKeys; nor, for a call that would be
// denied, what the denial would do to the key (BlockFor, CountDenied).
func (l *Limiter) Peek(key string, cost int) (d Decision) {
	id := l.hash.string(key)
	l.ahead(id)
	l.peekAt(&d, id, l.now(), cost)
	if !d.Allowed || l.soft > 0 {
		l.amend(&d, cost)
	}
	return d
}

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
// longer or would take longer to become fresh by itself. Then the key is fresh. What d
// does not fit in before 2116 does not end; a d that is not positive does nothing. Block
// reports whether it has blocked the key: it cannot if there is no room for it at MaxKeys
// under OverflowDenyNew and OverflowAdmitNew. OverflowEvictSoonest drops blocked keys last. A block holds under any
// limit, Unlimited too, and outlasts SetLimit and SetKeyLimit.
func (l *Limiter) Block(key string, d time.Duration) bool {
	return l.blockAt(l.made().hash.string(key), d)
}

// Unblock ends the block of key, which is then fresh. It does nothing if key is not
// blocked.
func (l *Limiter) Unblock(key string) { l.unblock(l.made().hash.string(key)) }

// Len returns the number of tracked keys, idle ones that have not been swept yet
// included. It is at most MaxKeys at any time.
func (l *Limiter) Len() int { return l.made().len() }

// Sweep drops all keys that are idle now, whatever the TTL, and returns how many.
// It changes no decision, and there is no need to call it: with a system clock a
// timer sweeps, with any other clock insertions do.
func (l *Limiter) Sweep() int {
	l.made().ledgers.dropPassed(max(l.clock.Now(), 0))
	return l.sweep()
}

// WorstCase returns the most units that any one key can be admitted in any closed
// span [t, t+d], whatever the pattern of calls; math.MaxInt if that is not below
// math.MaxInt, 0 for a negative d. It does not cover keys that were evicted at
// MaxKeys, admitted under OverflowAdmitNew, or Reset, nor what Shadow admits. For
// SlidingWindow and d beyond the period it is an upper bound that need not be
// reached.
func (l *Limiter) WorstCase(d time.Duration) int {
	if d < 0 {
		return 0
	}
	return int(min(l.made().current.Load().worstCase(int64(d)), math.MaxInt))
}

// A Key is a key of one limiter, already hashed: a small value that is cheap to
// make and to copy. Its methods are those of the limiter without the key. It must
// be made by a limiter; the zero Key panics when used.
//
// Keys can be compared, and be keys of a map. Two that the same limiter has made are equal
// if they are handles of the same key. Keys of WithLimit and WithPlan are equal to no others,
// and need not be equal to each other.
type Key struct {
	lim *Limiter
	id  uint64
}

// Key returns the handle of s: hash once, decide often.
func (l *Limiter) Key(s string) Key { return Key{l, l.hash.string(s)} }

// KeyBytes returns the handle of string(b). It does not retain b.
func (l *Limiter) KeyBytes(b []byte) Key { return Key{l, l.hash.bytes(b)} }

// KeyUint64 returns the handle of a number. Different numbers do not share an id.
// It is not the handle of the number's decimal form.
func (l *Limiter) KeyUint64(n uint64) Key { return Key{l, l.hash.uint64(n)} }

// KeyAddr returns the handle of an address. An IPv4 address and its IPv4-mapped
// IPv6 form are the same key, and a zone makes no difference. It is not the handle
// of the address's text.
func (l *Limiter) KeyAddr(a netip.Addr) Key { return Key{l, l.hash.addr(a)} }

// KeyHash returns the handle of an id that the caller has hashed. Its high bits
// pick the shard and its low bits the place in the shard, so all 64 must be well
// mixed; 0 is replaced by another id. With HashStable, KeyHash of the xxHash64 of
// s is Key(s).
func (l *Limiter) KeyHash(h uint64) Key { return Key{l, nonZero(h)} }

// Allow is Limiter.Allow for this key.
func (k Key) Allow() bool { return k.AllowN(1) }

// AllowN is Limiter.AllowN for this key.
func (k Key) AllowN(cost int) bool {
	k.lim.ahead(k.id)
	return k.lim.allowAt(k.id, k.lim.now(), cost) || k.lim.deny(k.id, "", cost)
}

// Take is Limiter.Take for this key.
func (k Key) Take(cost int) (d Decision) {
	k.lim.ahead(k.id)
	k.lim.takeAt(&d, k.id, k.lim.now(), cost)
	if !d.Allowed || k.lim.soft > 0 {
		k.lim.finish(&d, k.id, "", cost)
	}
	return d
}

// Peek is Limiter.Peek for this key.
func (k Key) Peek(cost int) (d Decision) {
	k.lim.ahead(k.id)
	k.lim.peekAt(&d, k.id, k.lim.now(), cost)
	if !d.Allowed || k.lim.soft > 0 {
		k.lim.amend(&d, cost)
	}
	return d
}

// Reset is Limiter.Reset for this key.
func (k Key) Reset() { k.lim.made().reset(k.id) }

// Refund is Limiter.Refund for this key.
func (k Key) Refund(cost int) { k.lim.made().refundAt(k.id, k.lim.now(), cost) }

// Block is Limiter.Block for this key.
func (k Key) Block(d time.Duration) bool { return k.lim.made().blockAt(k.id, d) }

// Unblock is Limiter.Unblock for this key.
func (k Key) Unblock() { k.lim.made().unblock(k.id) }

// AllowAt is AllowN at now, the caller's own reading of the limiter's clock in
// Unix nanoseconds, so that one reading can serve a batch. It must come from that
// clock, which says what is idle: with recorded times, give the limiter a
// ManualClock and move it along. A now far ahead of the clock spends the key's
// units in that future.
//
// An older now than the key has seen is safe: nothing is admitted that would be
// denied at the newest one, and what is admitted is charged in full as at the
// newest one. A negative now counts as 0.
func (k Key) AllowAt(now int64, cost int) bool {
	return k.lim.allowAt(k.id, now, cost) || k.lim.deny(k.id, "", cost)
}

// TakeAt is Take at now; see AllowAt.
func (k Key) TakeAt(now int64, cost int) (d Decision) {
	k.lim.takeAt(&d, k.id, now, cost)
	if !d.Allowed || k.lim.soft > 0 {
		k.lim.finish(&d, k.id, "", cost)
	}
	return d
}

func (l *Limiter) blockAt(id uint64, d time.Duration) bool {
	now := max(l.now(), 0)
	return d > 0 && l.block(id, now, after(now, d))
}

func (l *Limiter) refundAt(id uint64, now int64, cost int) {
	if cost > 0 {
		l.refund(id, max(now, 0), cost)
	}
}

// Config returns the configuration in force: with defaults filled in, and with the limit
// that SetLimit has set. Shards stays 0 if it was. New takes it, except while SetLimit has
// set Unlimited or DenyAll beside a Soft, which counts again under the next other limit.
func (l *Limiter) Config() Config { return *l.made().config.Load() }

// serials numbers limiters, for an order in which all TakeAll hold their keys.
var serials atomic.Uint64

// Stats returns the counters.
func (l *Limiter) Stats() Stats {
	l.made()
	s := Stats{
		Keys:      l.Len(),
		Evicted:   l.evicted.Load(),
		Untracked: l.untracked.Load(),
		Swept:     l.swept.Load(),
	}
	l.addTally(&s)
	if l.shadow {
		s.Admitted, s.Denied, s.WouldDeny = s.Admitted+s.Denied, 0, s.Denied
	}
	return s
}
