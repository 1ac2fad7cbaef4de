package sluice

import (
	"cmp"
	"math"
	"reflect"
	"time"

	"github.com/sluice-go/sluice/internal/limittext"
)

// Config describes a limiter. The zero value of every field but Limit is a
// sensible default.
type Config struct {
	// Algorithm decides how cost is counted over time. The zero value is GCRA.
	Algorithm Algorithm

	// Limit is the limit of each key by itself.
	Limit Limit

	// Offset moves the windows of FixedWindow and SlidingWindow, and the refills of
	// TokenBucketInterval: boundaries are at k*Period + Offset of Unix time. It must be at least 0
	// and below Limit.Period, and 0 for the other algorithms.
	//
	// Unix time began on a Thursday at 00:00 UTC, and so do windows without an offset.
	// A day that starts at midnight in Korea, 15:00 UTC, is PerDay with an Offset of 15 hours;
	// a week that starts on Monday at 00:00 UTC is Per(n, 7*24*time.Hour) with an Offset of
	// 4*24 hours. All windows have the same length: days do not follow daylight saving, as those of PerCalendar do, which takes no Offset.
	Offset time.Duration

	// MaxKeys bounds the number of tracked keys, and so the memory. 0 means
	// 1<<20; a negative number means no bound. Each shard holds an equal share, so
	// overflow begins when the fullest shard is full, which with the default shards
	// is at about 90 to 99% of MaxKeys. With a single shard the bound is exact; that
	// is the default up to 2047 keys.
	MaxKeys int

	// Overflow selects how a new key is treated when its shard is full and
	// dropping idle keys did not make room.
	Overflow Overflow

	// TTL is how long a key is kept after it has become idle before a sweep may
	// drop it. It never changes a decision: an idle key decides like a fresh one.
	// A longer TTL keeps keys that come and go in the table, a shorter one gives
	// memory back sooner. 0 means 10 s.
	TTL time.Duration

	// Shards is the number of independently locked parts, rounded up to a power
	// of two and lowered to at most MaxKeys. 0 means a number chosen from
	// GOMAXPROCS.
	Shards int

	// Clock tells the time. nil means SystemClock.
	Clock Clock

	// Hash turns keys into ids. The zero value is HashSeeded, which withstands keys
	// chosen by strangers.
	Hash Hash

	// Stats makes the limiter count admitted and denied calls, for a few ns each. A
	// denied call then writes to memory, too.
	Stats bool

	// Soft is how many units beyond the limit are admitted at once, and flagged:
	// Decision.OverSoft. A key has the limit's burst (or, with a window algorithm, its
	// rate) and Soft units on top of it; the rate at which they come back is the
	// limit's. Limiter.WorstCase counts them.
	Soft int

	// Shadow tries a limit out: every call is admitted, and Decision.WouldDeny reports a
	// call that the limit would have denied. Such a call leaves its key as a denied call would.
	// Stats then counts WouldDeny instead of Denied, and TopDenied lists the keys all the same.
	Shadow bool

	// BlockFor is how long a denied call blocks its key: all calls for the key are then denied,
	// with the time to the end of the block as RetryAfter, and after the block the key is fresh.
	// If the key would take longer than BlockFor to become fresh without a block, the block lasts as
	// long as that: under 5 per hour, a key that has spent all 5 is blocked for the hour that it
	// takes to get them back (under FixedWindow, until the hour ends), also with a BlockFor of 15 minutes.
	// For a shorter block, choose a limit with a shorter period. 0 does not block. A cost that every state
	// of a key denies does not block, nor do Peek, Wait and Reserve. A charge of a TakeAll blocks its key if
	// that charge was denied itself.
	//
	// To block a key after n failures, give it a limit of n in BlockFor, charge every
	// attempt, and Reset the key when one succeeds: see the example of Block.
	BlockFor time.Duration

	// CountDenied makes denied calls count under the window algorithms, up to the limit, so
	// that a client that goes on calling too often stays limited. Under SlidingLog nothing is
	// then admitted before the client has kept to the limit for a period; under the
	// others, the denied calls fill their window up to the limit. Together with BlockFor it
	// changes nothing: a denied call blocks its key, which is fresh afterwards.
	CountDenied bool

	// TopDenied is how many keys Limiter.TopDenied can list, at most 65,536. 0 means
	// that denials are not attributed to keys.
	TopDenied int
}

// Algorithm names a way of counting: the six classic rate limiting algorithms, two of which have a
// variant, and InFlight. The package documentation says which one to use when.
type Algorithm uint8

// The algorithms. Their text forms are gcra, token-bucket, token-bucket-interval, leaky-bucket,
// sliding-window, sliding-log, fixed-window, fixed-window-first-charge and in-flight.
const (
	GCRA Algorithm = iota
	// TokenBucket gains its tokens with time: one after each Period/Rate.
	TokenBucket
	// TokenBucketInterval adds Rate tokens at once at each boundary k*Period + Config.Offset of Unix
	// time; tokens above Burst are lost. In any span d at most Burst units, and Rate for each
	// boundary in it, are admitted. A call with an older time than its key has seen is
	// judged and charged after the last boundary that the key has seen.
	TokenBucketInterval
	// LeakyBucket is a queue: the burst is its length in units, with the unit that is draining. With a
	// burst of 1 no call can wait while a unit drains; so that ten calls of one unit can wait,
	// use WithBurst(11).
	LeakyBucket
	SlidingWindow
	SlidingLog
	// FixedWindow begins the windows of all keys together, at k*Period + Config.Offset of Unix time, or, with a limit of
	// PerCalendar, at dates of a time zone.
	FixedWindow
	// FixedWindowFirstCharge makes a key's window begin, to the nanosecond, at its first charge
	// after its last window has ended: s to s+Period. Rates are at most 2147483647, and
	// a key takes 31 to 51 bytes, 40 on average, instead of 18 to 30. A key that is Reset,
	// or Refunded all that it has been charged in its window, begins a new one with its
	// next charge. Up to twice the rate can pass around the end of a window here, too.
	FixedWindowFirstCharge
	// InFlight limits units that are in use at once, to the Rate: calls that run, streams that are
	// open: see AtOnce. Units are given back when they end: see Limiter.Acquire, or httplimit and grpclimit, which
	// do so for servers, and renew what runs. The Period is their TTL: units that are
	// not given back, or renewed, come back by themselves, after one Period at the earliest and
	// before the end of the second. A RetryAfter is the wait for these, so it is an upper bound. A key
	// whose units are in use is never dropped for room: OverflowEvictSoonest behaves like OverflowDenyNew.
	InFlight
)

func (a Algorithm) windowed() bool {
	return a >= SlidingWindow
}

// countsDenied reports whether CountDenied has a meaning: denied units are not in use.
func (a Algorithm) countsDenied() bool { return a.windowed() && a != InFlight }

// bounded reports whether the algorithm has boundaries on the clock, which an offset can move.
func (a Algorithm) bounded() bool {
	return a == SlidingWindow || a == FixedWindow || a == TokenBucketInterval
}

// Overflow is the policy for a new key at MaxKeys, when the idle keys of its
// shard have been dropped and the shard is still full.
type Overflow uint8

// The overflow policies. Their text forms are evict-soonest, deny-new and
// admit-new.
//
// A look for idle keys takes time in proportion to their number. So each look at a full shard is at some
// thousand keys, and looks come at the rate of one look at all keys in a pause of 1 us for each key of
// MaxKeys (1 s at the default). Between the looks, OverflowEvictSoonest also drops live keys. The other
// policies turn new keys away, and look once at all keys of a share for each quarter of a share of rejected keys.
const (
	// OverflowEvictSoonest drops live keys, a third of up to 2,000 at a time: the ones that
	// would become idle soonest, and under the window algorithms, where keys become
	// idle together, the ones with the fewest counted units. In a flood of new keys that are
	// charged once, these keys push out each other, not the key that has spent the most.
	// Stats.Evicted counts the dropped keys, since each of them starts afresh.
	OverflowEvictSoonest Overflow = iota
	// OverflowDenyNew denies the new key. No tracked key loses its state. The limiter cannot know
	// when there will be room, so RetryAfter is Period/Rate, rounded up.
	OverflowDenyNew
	// OverflowAdmitNew admits the new key without tracking it. No tracked key loses its
	// state, and keys without room are not limited.
	OverflowAdmitNew
)

// Hash is how a key becomes the 64-bit id by which it is tracked.
type Hash uint8

// The hashes. Their text forms are seeded and stable.
const (
	// HashSeeded hashes with a random seed of this limiter, so that strangers cannot
	// find keys that collide, crowd one shard, or share another key's budget.
	HashSeeded Hash = iota
	// HashStable is xxHash64: the same hash in every process and run. It is for keys
	// that strangers cannot choose; else strangers can find keys that share a budget. (They cannot crowd a
	// shard: the place of a hash is a secret of this limiter.) To use
	// Snapshot with keys that strangers choose, use an HMAC of the key, by a secret, as the key.
	HashStable
)

var (
	algorithmNames = []string{"gcra", "token-bucket", "token-bucket-interval", "leaky-bucket", "sliding-window", "sliding-log", "fixed-window", "fixed-window-first-charge", "in-flight"}
	overflowNames  = []string{"evict-soonest", "deny-new", "admit-new"}
	hashNames      = []string{"seeded", "stable"}
)

// String returns the text form, or Algorithm(n) for a value that has none.
func (a Algorithm) String() string { return enumString("Algorithm", algorithmNames, a) }

// MarshalText returns the text form; a value that has none is an error.
func (a Algorithm) MarshalText() ([]byte, error) {
	return enumMarshal("algorithm", algorithmNames, a)
}

// UnmarshalText accepts exactly the text forms.
func (a *Algorithm) UnmarshalText(text []byte) error {
	return enumUnmarshal("algorithm", algorithmNames, a, text)
}

// String returns the text form, or Overflow(n) for a value that has none.
func (o Overflow) String() string { return enumString("Overflow", overflowNames, o) }

// MarshalText returns the text form; a value that has none is an error.
func (o Overflow) MarshalText() ([]byte, error) { return enumMarshal("overflow", overflowNames, o) }

// UnmarshalText accepts exactly the text forms.
func (o *Overflow) UnmarshalText(text []byte) error {
	return enumUnmarshal("overflow", overflowNames, o, text)
}

// String returns the text form, or Hash(n) for a value that has none.
func (h Hash) String() string { return enumString("Hash", hashNames, h) }

// MarshalText returns the text form; a value that has none is an error.
func (h Hash) MarshalText() ([]byte, error) { return enumMarshal("hash", hashNames, h) }

// UnmarshalText accepts exactly the text forms.
func (h *Hash) UnmarshalText(text []byte) error {
	return enumUnmarshal("hash", hashNames, h, text)
}

const (
	defaultMaxKeys = 1 << 20
	defaultTTL     = 10 * time.Second

	maxShards    = 1 << 16
	maxTopDenied = 1 << 16
)

// withDefaults returns c with every zero field but Limit and Shards replaced by
// its default, or the first error in it. It leaves it to newAlgorithm to check whether
// the algorithm can represent the limit.
func (c Config) withDefaults() (Config, *ConfigError) {
	for _, validate := range []func(Config) *ConfigError{Config.validateFields, Config.validateClock, Config.validateLimit, Config.validateSoft, Config.validateOffset} {
		if err := validate(c); err != nil {
			return c, err
		}
	}
	switch {
	case c.MaxKeys == 0:
		c.MaxKeys = defaultMaxKeys
	case c.MaxKeys < 0:
		c.MaxKeys = math.MaxInt
	}
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	if c.Clock == nil {
		c.Clock = SystemClock()
	}
	if c.Algorithm == InFlight && c.Overflow == OverflowEvictSoonest {
		c.Overflow = OverflowDenyNew // else permits would give back units of others
	}
	return c, nil
}

// validateFields checks all fields except the clock, the limit, and the fields that depend on the limit.
func (c Config) validateFields() *ConfigError {
	switch {
	case int(c.Algorithm) >= len(algorithmNames):
		return configErrorf("Algorithm", "%v is not an algorithm; want one of %v", c.Algorithm, algorithmNames)
	case int(c.Overflow) >= len(overflowNames):
		return configErrorf("Overflow", "%v is not an overflow policy; want one of %v", c.Overflow, overflowNames)
	case int(c.Hash) >= len(hashNames):
		return configErrorf("Hash", "%v is not a hash; want one of %v", c.Hash, hashNames)
	case c.TTL < 0:
		return configErrorf("TTL", "%v is negative; want 0 for %v, or a positive duration", c.TTL, defaultTTL)
	case c.Shards < 0:
		return configErrorf("Shards", "%d is negative; want 0 for a default, or 1 to %d", c.Shards, maxShards)
	case c.Shards > maxShards:
		return configErrorf("Shards", "%d is too many; want 0 for a default, or 1 to %d", c.Shards, maxShards)
	case c.BlockFor < 0:
		return configErrorf("BlockFor", "%v is negative; want 0 for no blocks, or a positive duration", c.BlockFor)
	case c.CountDenied && !c.Algorithm.countsDenied():
		return configErrorf("CountDenied", "true with %v, which counts what is admitted; want false, or %v, %v, %v or %v",
			c.Algorithm, SlidingWindow, SlidingLog, FixedWindow, FixedWindowFirstCharge)
	case c.TopDenied < 0 || c.TopDenied > maxTopDenied:
		return configErrorf("TopDenied", "%d is not a number of keys that can be kept; want 0 to %d", c.TopDenied, maxTopDenied)
	}
	return nil
}

// validateClock finds an interface that is not nil, but holds a nil pointer or another nil value.
func (c Config) validateClock() *ConfigError {
	switch v := reflect.ValueOf(c.Clock); v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		if v.IsNil() {
			return configErrorf("Clock", "a nil %v; want a clock that has been made, or none, which means SystemClock", v.Type())
		}
	}
	return nil
}

func (c Config) validateLimit() *ConfigError {
	l := c.Limit
	if err := l.validate(); err != nil {
		return err
	}
	if l.Burst == limittext.AtOnce {
		if c.Algorithm != InFlight {
			return configErrorf("Limit", "%q with %v, which counts calls over time; want Algorithm: InFlight, or a limit such as sluice.PerMinute(%d)",
				l, c.Algorithm, l.Rate)
		}
		return nil
	}
	if l.dated() && c.Algorithm != FixedWindow {
		return configErrorf("Limit", "%q with %v, which knows no calendar; want Algorithm: FixedWindow, or a limit such as sluice.PerDay(%d)",
			l, c.Algorithm, l.Rate)
	}
	if c.Algorithm.windowed() && l.Burst != 0 && l.Burst != l.Rate && !l.constant() {
		return configErrorf("Limit.Burst", "%d with %v; a window algorithm admits at most the rate at once, want 0 or %d",
			l.Burst, c.Algorithm, l.Rate)
	}
	return nil
}

func (c Config) validateSoft() *ConfigError {
	l := c.Limit
	switch {
	case c.Soft < 0:
		return configErrorf("Soft", "%d is negative; want units beyond the limit, or 0", c.Soft)
	case c.Soft > 0 && l.constant():
		return configErrorf("Soft", "%d with a limit of %v, which nothing is beyond; want 0", c.Soft, l)
	}
	// The sum stays below math.MaxInt, which is the Rate of Unlimited.
	if most := max(0, math.MaxInt-1-max(l.Rate, l.burst())); c.Soft > most {
		return configErrorf("Soft", "%d on top of a limit of %v is too large to count; want at most %d", c.Soft, l, most)
	}
	return nil
}

// enforced returns the limit with the soft units on top.
func (c Config) enforced() Limit {
	l := c.Limit
	if c.Soft == 0 {
		return l
	}
	if c.Algorithm.windowed() {
		l.Rate += c.Soft
		return l.WithBurst(0)
	}
	return l.WithBurst(l.burst() + c.Soft)
}

// validateOffset does not compare the offset with the period of a limit that denies or
// admits everything: such a limit has no windows, and may stand in for one with windows.
func (c Config) validateOffset() *ConfigError {
	rest := c.Offset % c.Limit.Period
	if rest < 0 {
		rest += c.Limit.Period
	}
	switch {
	case c.Offset == 0:
	case !c.Algorithm.bounded():
		return configErrorf("Offset", "%v with %v, which has no boundaries to move; want 0, or %v, %v or %v",
			c.Offset, c.Algorithm, FixedWindow, SlidingWindow, TokenBucketInterval)
	case c.Limit.dated():
		return configErrorf("Offset", "%v with the limit %q, whose calendar says where windows begin; want 0", c.Offset, c.Limit)
	case c.Offset < 0:
		return configErrorf("Offset", "%v is negative; want %v, which is the same for a period of %v", c.Offset, rest, c.Limit.Period)
	case c.Offset >= c.Limit.Period && !c.Limit.constant():
		return configErrorf("Offset", "%v is not below the period of %v; want %v, which is the same", c.Offset, c.Limit.Period, rest)
	}
	return nil
}

// RefillTime returns how long so many spent units take to come back under c.Limit, rounded up
// to the nanosecond: Period/Rate each. Under TokenBucketInterval, where a boundary brings back the
// lesser of Rate and burst, it is Period/min(Rate, burst) each; under the window algorithms, where
// units do not come back one by one, it is the Period. It is 0 for less than one unit and under
// Unlimited, and Never under DenyAll, and for a time that does not fit into a Duration. Of the other
// fields only Algorithm matters. For a key with a limit of its own, set Limit to that limit.
//
// The units may come back earlier in fact: see Status.
func (c Config) RefillTime(units int) time.Duration {
	rate := c.Limit.Rate
	switch {
	case units <= 0 || rate == math.MaxInt:
		return 0
	case rate <= 0:
		return Never
	case c.Algorithm.windowed():
		return c.Limit.Period
	case c.Algorithm == TokenBucketInterval:
		rate = min(rate, c.Limit.burst())
	}
	t, rest := mulDiv(uint64(units), uint64(max(c.Limit.Period, 0)), uint64(rate))
	if rest != 0 {
		t++
	}
	return time.Duration(min(t, math.MaxInt64))
}
