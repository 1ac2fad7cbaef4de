package sluice

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/sluice-go/sluice/internal/crowding"
	"github.com/sluice-go/sluice/internal/keyid"
	"github.com/sluice-go/sluice/internal/spacesaving"
)

// A Limiter decides, for each key by itself, whether a call may pass now.
//
// It is safe for concurrent use. Decisions on one key take effect one at a time,
// in an order consistent with real time; an admitted call synchronizes before
// every later decision on its key. Decisions on different keys are independent.
// Contention is never an error and never a denial.
//
// Nothing has to be closed: a limiter that is no longer referenced is collected.
// A Limiter must be made by New: any other Limiter panics when used, also a nil one. It must not
// be copied; go vet finds copies.
type Limiter struct {
	store
	brought atomic.Pointer[xsync.MapOf[Limit, *terms]] // limits of keys and calls; nil until there is one
	hash    keyid.Hasher
	direct  bool   // keys are seeded, and a denial only returns false: see Allow
	serial  uint64 // orders limiters: see TakeAll
	soft    int
	shadow  bool
	top     *spacesaving.Top // nil without Config.TopDenied
	tally   tally            // nil without Config.Stats
	config  atomic.Pointer[Config]
	admin   sync.Mutex // held to change the limiter's limit, and by Restore

	waiting  atomic.Int64 // calls that sleep
	awaiting awaiting     // of them, under InFlight
}

// New returns a limiter. The error is a *ConfigError: it names the field, its value
// and the accepted values. A limit that the algorithm cannot keep exactly
// is an error, never a weaker limit.
func New(c Config) (*Limiter, error) { return newLimiter(c, crowding.Homes, crowding.IDs) }

// notMade is a variable since a constant would be boxed in each of made's callers, which
// includes the hot ones.
var notMade any = "sluice: this Limiter has not been made by New, or this Key by no Limiter; want sluice.New(sluice.Config{Limit: sluice.PerSecond(100)}), and Key of that"

// made returns l if New has made it, and panics otherwise.
func (l *Limiter) made() *Limiter {
	if l == nil || l.shards == nil {
		panic(notMade)
	}
	return l
}

// Must returns v, or panics if err is not nil. It wraps New, and the constructors of other packages, where what
// cannot be made is a programming error, as in a package variable.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newLimiter is New with bounds on how many slots of a table are homes, and how many ids it has
// before it is split.
func newLimiter(c Config, homes uint64, most int) (*Limiter, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter{soft: c.Soft, shadow: c.Shadow, serial: serials.Add(1)}
	config := new(Config)
	*config = c
	tm, terr := newTerms(config, c.Limit, nil)
	if terr != nil {
		return nil, terr
	}
	shards := defaultShards(c.MaxKeys)
	if c.Shards != 0 {
		shards = pow2(c.Shards)
	}
	for shards > c.MaxKeys {
		shards /= 2
	}
	if c.TopDenied > 0 {
		l.top = spacesaving.New(c.TopDenied)
	}
	l.hash = keyid.New(c.Hash == HashStable)
	l.direct = c.Hash == HashSeeded && l.top == nil && !l.shadow
	tm.own = true
	l.setUp(config, tm, shards, homes, most)
	return l, nil
}

// setUp makes the limiter ready to decide, with the number of shards, or with one shard if
// homes are crowded.
func (l *Limiter) setUp(c *Config, tm *terms, shards int, homes uint64, most int) {
	if homes != math.MaxUint64 {
		shards = 1
	}
	l.config.Store(c)
	l.clock, l.ttl, l.overflow, l.homes = c.Clock, int64(c.TTL), c.Overflow, homes
	l.cached = &notCached
	switch clock := c.Clock.(type) {
	case *systemClock, *FastClock:
		l.timed = true
	case *CoarseClock:
		l.timed, l.cached = true, &clock.now
	case *ManualClock:
		l.cached = &clock.now
	}
	if c.Stats {
		l.tally = make(tally, shards)
	}
	l.init(tm, shards, c.MaxKeys, most)
}

// Len returns the number of tracked keys, also idle ones that have not been swept
// yet. It is at most MaxKeys at any time.
func (l *Limiter) Len() int { return l.made().len() }

// Sweep drops all keys that are idle now, even before the TTL, and returns how many.
// It changes no decision, and there is seldom a need to call it: with a system clock a
// timer sweeps; with any other clock idle keys are dropped when a table grows, and at MaxKeys.
func (l *Limiter) Sweep() int {
	l.made().ledgers.DropPassed(max(l.clock.Now(), 0))
	return l.sweep()
}

// WorstCase returns the most units that any one key can be admitted in any closed
// span [t, t+d], with any pattern of calls; math.MaxInt if that is not below
// math.MaxInt, 0 for a negative d. It is math.MaxInt under InFlight, which limits what is in use
// at once: units that are given back can be admitted again, any number of times in any span. It does
// not cover keys that were evicted at MaxKeys, admitted under OverflowAdmitNew, or Reset, nor calls that only Shadow admits.
// For SlidingWindow and d beyond the period it is an upper bound that need not be
// reached.
func (l *Limiter) WorstCase(d time.Duration) int {
	if d < 0 {
		return 0
	}
	return int(min(l.made().current.Load().worstCase(int64(d)), math.MaxInt))
}

// A Key is a key of one limiter, already hashed: a small value that is cheap to
// make and to copy. It has the limiter's methods that take a key, without that parameter, and all others
// about one key. It must be made by a limiter that New has made: the methods of the zero Key panic.
//
// Keys can be compared, and be keys of a map. Two Keys that the same limiter has made are equal
// if they are handles of the same key. A Key of WithLimit is not equal to a Key without a
// limit, and need not be equal to another Key of WithLimit.
type Key struct {
	lim   *Limiter
	id    uint64
	terms *terms // the terms that its calls bring, or nil
}

// Limiter returns the limiter that has made the key.
func (k Key) Limiter() *Limiter { return k.lim.made() }

// key returns KeyHash of an id.
func (l *Limiter) key(id uint64) Key { return Key{lim: l, id: id} }

// Key returns the handle of s: hash once, decide often.
func (l *Limiter) Key(s string) Key {
	k := l.made().key(l.hash.String(s))
	if l.top.Nameless(k.id) {
		l.top.Name(k.id, s)
	}
	return k
}

// KeyBytes returns the handle of string(b). It does not retain b.
func (l *Limiter) KeyBytes(b []byte) Key {
	k := l.made().key(l.hash.Bytes(b))
	if l.top.Nameless(k.id) {
		l.top.Name(k.id, string(b))
	}
	return k
}

// KeyUint64 returns the handle of a number. Different numbers do not share an id, except for one
// pair of all 2^64, since no id is 0. It is not the handle of the number's decimal form.
func (l *Limiter) KeyUint64(n uint64) Key { return l.made().key(l.hash.ID(l.hash.Number(n))) }

// KeyAddr returns the handle of an address. An IPv4 address and its IPv4-mapped
// IPv6 form are the same key, and a zone makes no difference. It is not the handle
// of the address's text. An IPv6 host has a network of 2^64 addresses, each of which is
// a key: cut it, as in the example. httplimit.ByRemoteIP does. The zero Addr is a key of its own,
// which no address shares.
func (l *Limiter) KeyAddr(a netip.Addr) Key {
	k := l.made().key(l.hash.Addr(a))
	if l.top.Nameless(k.id) {
		l.top.Name(k.id, a.Unmap().WithZone("").String())
	}
	return k
}

// KeyHash returns the handle of an id that the caller has hashed. With HashSeeded its high bits
// pick the shard and its low bits the place in the shard, so all 64 must be well
// mixed; 0 is replaced by another id. With HashStable, KeyHash of the xxHash64 of
// s is Key(s).
func (l *Limiter) KeyHash(h uint64) Key { return l.made().key(l.hash.ID(h)) }

// Config returns the current configuration: with defaults filled in, and with the limit
// that SetLimit has set. Shards stays 0 if it was 0. New accepts this Config, except while SetLimit
// has set Unlimited or DenyAll and Soft is not 0. (Soft counts again under the next other limit.)
func (l *Limiter) Config() Config { return *l.made().config.Load() }

// serials numbers limiters, for an order in which all TakeAll hold their keys.
var serials atomic.Uint64

// holds reports whether the limiter is of InFlight.
func (l *Limiter) holds() bool { return l.config.Load().Algorithm == InFlight }

// Stats returns the counters.
func (l *Limiter) Stats() Stats {
	l.made()
	s := Stats{
		Keys:      l.Len(),
		Evicted:   l.evicted.Load(),
		Untracked: l.untracked.Load(),
		Swept:     l.swept.Load(),
		Waiting:   int(l.waiting.Load()),
	}
	l.tally.addTo(&s)
	if l.shadow {
		s.Admitted, s.Denied, s.WouldDeny = s.Admitted+s.Denied, 0, s.Denied
	}
	return s
}

func (l *Limiter) count(id uint64, out outcome) {
	if l.tally != nil {
		l.tally.count(id>>l.shift, out)
	}
}
