package redistier

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// TierConfig describes a Tier.
type TierConfig struct {
	// Replicas is how many processes share the limit, at least 1: each enforces its part of
	// it when Redis does not answer.
	Replicas int

	// Budget is how long a call may take. It waits for Redis for seven eighths of that, or for all
	// but 2 ms if that is longer: timers are late, and those who have waited still have to be
	// answered. 0 means 5 ms; the least is 100 us.
	Budget time.Duration

	// OnUnavailable says what happens to a call that Redis does not answer within Budget.
	// The zero value is LocalShare.
	OnUnavailable OnUnavailable

	// MaxKeys bounds the keys that are tracked for LocalShare, those that are known to be
	// denied, those that have leases, and those that Redis has to be told of. 0 means 65,536.
	MaxKeys int

	// MaxStale is how long a denial is answered from memory, even if the key cannot be
	// admitted anything before, so that refunds and raised limits show. 0 means 1 s.
	MaxStale time.Duration

	// Lease lets Redis lend units, from which calls are admitted without asking it. The zero
	// value lends none.
	Lease Lease

	// OnMode is called when the mode changes, in the order of the changes, with the error
	// that has led to it if there is one. It may take its time, but must not call Close.
	OnMode func(mode Mode, cause error)
}

// A Lease is a number of units that Redis lends a process for a while. They count as if they had
// been admitted, until they are given back; so whatever the number of replicas, and whatever
// becomes of them, nothing beyond Limiter.WorstCase is admitted. The price is that a caller
// can be denied a unit that another process holds: each lease has at most the 2*Replicas-th part
// of what is left of the key's budget. Of a bucket that is called for above its limit, a process takes what
// drains in a pause of up to Life as one lease; so a caller can be admitted later than without leases, by Life at most.
//
// A key gets leases if its calls come fast enough to use them: of one unit at first, and of twice as
// many each time that one is spent within half of Life. Units that are unused at the end are
// given back. A process that dies loses its leases: Redis takes them for spent within twice
// Life + 2*Budget.
//
// SlidingLog and BlockFor have no leases.
type Lease struct {
	// Max is the most units that are lent at once. 0 means that none are. No lease has more
	// than the limit admits within Life in the long run, so a limit that admits less than a unit has none.
	Max int

	// Life is how long a lease can be spent, from Budget to half of the limit's period, and at most an
	// hour. 0 means 100 ms, or twice the Budget if that is more, or half of the period if that is less. Windows, and intervals
	// of refills, end it. A SetLimit to a shorter period ends leases until another one.
	Life time.Duration
}

// OnUnavailable is what happens to calls that Redis does not answer in time. Its values stand
// behind the name of their field, and so do without it in their own.
type OnUnavailable uint8

// The answers without Redis.
const (
	// LocalShare enforces Limit.Share(Replicas) in this process. It has been
	// charged with what the process has been admitted before, as far as that fits, so that a
	// failing Redis gives nobody a fresh budget. A cost above the share is denied until
	// Redis is asked the next time.
	LocalShare OnUnavailable = iota
	// Open admits.
	Open
	// Closed returns ErrUnavailable.
	Closed
)

// Source is where a decision comes from.
type Source uint8

// The sources.
const (
	FromRedis    Source = iota // the shared limiter
	FromCache                  // a denial that still holds; or a limit that denies or admits everything
	FromLease                  // units that Redis has lent
	FromFallback               // OnUnavailable
)

// Mode says whether all primaries of Redis are asked.
type Mode uint8

// The modes.
const (
	// ModeShared asks Redis about every call.
	ModeShared Mode = iota
	// ModeDegraded answers calls for the keys of at least one primary without it, until a
	// probe succeeds, and half a second more within the share of LocalShare.
	ModeDegraded
)

var (
	onUnavailableNames = []string{"local-share", "open", "closed"}
	sourceNames        = []string{"redis", "cache", "lease", "fallback"}
	modeNames          = []string{"shared", "degraded"}
)

func nameOf[T ~uint8](kind string, names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(v))
}

// String returns local-share, open or closed.
func (o OnUnavailable) String() string { return nameOf("OnUnavailable", onUnavailableNames, o) }

// String returns redis, cache, lease or fallback.
func (s Source) String() string { return nameOf("Source", sourceNames, s) }

// String returns shared or degraded.
func (m Mode) String() string { return nameOf("Mode", modeNames, m) }

// The errors of a Tier.
var (
	// ErrUnavailable is in the errors under Closed, and of Refund and Reset, when Redis does
	// not answer in time.
	ErrUnavailable = errors.New("redistier: Redis is unavailable")
	// ErrClosed is the error after Close.
	ErrClosed = errors.New("redistier: the tier is closed")
)

// Stats counts what a Tier has done.
type Stats struct {
	Redis, Cache, Lease, Fallback uint64 // calls by Source; those that failed are in none

	Scripts      uint64 // calls of scripts that were sent for them
	Led          uint64 // of these, calls that callers have sent themselves; see NewClient
	Late         uint64 // calls that were not answered within the budget
	Failed       uint64 // calls to which the client or Redis answered with an error
	PoolTimeouts uint64 // calls of scripts for which the client had no connection
	Outages      uint64 // times that a primary was no longer asked
	Lent         uint64 // units that Redis has lent
	Returned     uint64 // of these, units that were given back unused

	Unasked  uint64        // calls that were not sent, since their primary is not asked
	Unshared uint64        // units that were admitted, or charged, without Redis
	Trips    uint64        // pipelines that have come back, and calls that callers have sent themselves
	TripTime time.Duration // how long these took, in all

	Leased int64 // units that can be spent from leases now
	Owed   int64 // units that Redis has still to be told of
}

// Status is the mode of a Store, and what has become of it.
type Status struct {
	Mode     Mode
	Since    time.Time // when it has begun; that of the Store for the first one
	Cause    error     // what has led to it, if there is anything
	Unshared uint64    // units that have been admitted, or charged, without Redis since then
}

type tierStats struct {
	redis, cache, lease, fallback, scripts, led, late, failed, poolTimeouts, outages, lent, returned, unasked, unshared, trips, tripTime atomic.Uint64
}

const (
	defaultBudget      = 5 * time.Millisecond
	defaultMaxStale    = time.Second
	defaultTierMaxKeys = 1 << 16
	minBudget          = 100 * time.Microsecond // a plain number is ns; nor is there a Redis that answers sooner
	maxBudget          = time.Minute
	maxReserve         = 2 * time.Millisecond // of the budget, for the answer after the wait
	defaultLife        = 100 * time.Millisecond
	maxLife            = time.Hour
)

func (c *TierConfig) validate() error {
	switch {
	case c.Replicas < 1:
		return configErrorf("Replicas", "%d is not a number of processes; want at least 1", c.Replicas)
	case c.Budget != 0 && c.Budget < minBudget || c.Budget > maxBudget:
		return configErrorf("Budget", "%v is not a time that callers can wait; want 0 for %v, or %v to %v", c.Budget, defaultBudget, minBudget, maxBudget)
	case int(c.OnUnavailable) >= len(onUnavailableNames):
		return configErrorf("OnUnavailable", "%v is not an answer; want one of %v", c.OnUnavailable, onUnavailableNames)
	case c.MaxKeys < 0:
		return configErrorf("MaxKeys", "%d is negative; want 0 for %d, or a number of keys", c.MaxKeys, defaultTierMaxKeys)
	case c.MaxStale < 0:
		return configErrorf("MaxStale", "%v is negative; want 0 for %v, or a duration", c.MaxStale, defaultMaxStale)
	}
	c.Budget = cmp.Or(c.Budget, defaultBudget)
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultTierMaxKeys)
	c.MaxStale = cmp.Or(c.MaxStale, defaultMaxStale)
	return nil
}

// wait returns for how long callers wait for Redis.
func (c *TierConfig) wait() time.Duration { return c.Budget - min(c.Budget/8, maxReserve) }

// validateLease is validate for leases of a shared limiter.
func (c *TierConfig) validateLease(shared Config) error {
	l := &c.Lease
	half := shared.Limit.Period / 2
	switch {
	case l.Max == 0 && l.Life == 0:
		return nil
	case l.Max < 1:
		return configErrorf("Lease.Max", "%d with a Life of %v; want at least 1 unit, or neither", l.Max, l.Life)
	case shared.Algorithm == sluice.SlidingLog:
		return configErrorf("Lease", "%v keeps the time of each unit, and cannot lend any; want no Lease, or %v", shared.Algorithm, sluice.SlidingWindow)
	case shared.BlockFor > 0:
		return configErrorf("Lease", "BlockFor is %v, which would not hold for units that are lent; want no Lease, or no BlockFor", shared.BlockFor)
	}
	if l.Life == 0 {
		l.Life = min(max(defaultLife, 2*c.Budget), half)
	}
	if l.Life < c.Budget || l.Life > min(half, maxLife) {
		return configErrorf("Lease.Life", "%v is not from %v, the Budget, to %v, half of the limit's period or %v; want a Life in between, or no Lease", l.Life, c.Budget, min(half, maxLife), maxLife)
	}
	return nil
}
