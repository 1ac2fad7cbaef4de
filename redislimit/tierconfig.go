package redislimit

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
	// Replicas is the number of processes that share the limit, at least 1. Each process enforces
	// its part of the limit when Redis does not answer.
	Replicas int

	// Budget is the longest time that a call may take. The call waits for Redis for seven eighths of Budget, or for
	// Budget less 2 ms if that is longer. The rest is for late timers and for the answers to callers that have
	// waited. Where the process gets no processor and a timer has been more than 1 ms late within a second, the call waits
	// for as much longer, up to another Budget. The caller's context ends the wait in any case. 0 means 5 ms; the least is 100 us.
	Budget time.Duration

	// OnUnavailable decides calls that Redis does not answer within Budget.
	// The zero value is LocalShare.
	OnUnavailable OnUnavailable

	// MaxKeys bounds four sets of keys: the keys tracked for LocalShare, the keys known to be denied,
	// the keys with leases, and the keys with charges that Redis has yet to be told of. 0 means 65,536.
	MaxKeys int

	// MaxStale is the longest time that a denial is answered from memory. Redis is then asked again, even if
	// the key cannot be admitted yet, so that refunds and raised limits are noticed. 0 means 1 s.
	MaxStale time.Duration

	// Lease lets Redis lend units. Calls are admitted from these without asking Redis. The zero
	// value lends none.
	Lease Lease

	// OnMode is called when the mode changes, in the order of the changes, with the error
	// that caused the change if there is one. It is called with ModeDegraded again for each further primary that is not asked,
	// and when the reason why a primary does not answer is found out later: why no connection can be made, say. It may take
	// its time, but must not call Close.
	OnMode func(mode Mode, cause error)
}

// A Lease is a number of units that Redis lends a process for a while. Lent units count as admitted until they
// are given back. So no more than Limiter.WorstCase is admitted, however many replicas there are and even if
// they fail. The price: a caller can be denied a unit that another process holds. Each lease has at most
// 1/(2*Replicas) of the rest of the key's budget. If a bucket is asked for more than its limit, a process takes
// the units that drain during a pause of up to Life as one lease. So leases can delay the admission of a caller,
// by Life at most.
//
// A key gets leases if its calls come fast enough to use them. The first lease has one unit. The next one
// has twice as many whenever a lease is spent within half of Life. Units that are unused at the end are
// given back. A process that dies loses its leases: Redis counts their units as spent
// within 2*(Life + 2*Budget).
//
// SlidingLog, InFlight and BlockFor have no leases.
type Lease struct {
	// Max is the most units in one lease. 0 means that no units are lent. No lease has more units than the
	// limit admits within Life in the long run, so a limit that admits less than one unit in Life has no leases.
	Max int

	// Life is how long a lease can be spent: from Budget to half of the limit's period, and at most an hour. 0 means
	// 100 ms, or twice the Budget if that is more, or half of the period if that is less. The end of a window, or of
	// a refill interval, ends the lease. A lease of a window that is a small part of what is left lives up to 30 times as long,
	// and half of the period at most. A SetLimit to a period below 2*Life stops leases until another SetLimit.
	Life time.Duration
}

// OnUnavailable is how calls are decided that Redis does not answer in time. The names of its values have no
// prefix, since they are used after the name of their field.
type OnUnavailable uint8

// The answers without Redis.
const (
	// LocalShare enforces Limit.Share(Replicas) in this process. The share has already been
	// charged with the units that this process was admitted before, as far as they fit, so that an
	// outage of Redis never provides a fresh budget. A cost above the share is denied until
	// Redis is asked again.
	LocalShare OnUnavailable = iota
	// FailOpen admits.
	FailOpen
	// FailClosed returns ErrUnavailable.
	FailClosed
)

// Source says how a decision was made.
type Source uint8

// The sources.
const (
	FromRedis    Source = iota // the shared limiter
	FromCache                  // a remembered denial that still holds; or a limit that denies or admits everything
	FromLease                  // units that Redis has lent this process
	FromFallback               // without Redis: see OnUnavailable
)

// Mode says whether calls for all primaries of Redis are sent to them.
type Mode uint8

// The modes.
const (
	// ModeShared asks Redis about every call.
	ModeShared Mode = iota
	// ModeDegraded answers calls for the keys of at least one primary without asking it, until a
	// probe succeeds. For another half second those calls also keep to the share of LocalShare.
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
	// ErrUnavailable is in the errors of calls under FailClosed, and of Refund and Reset, when Redis does
	// not answer in time.
	ErrUnavailable = errors.New("redislimit: Redis is unavailable")
	// ErrClosed is the error after Close.
	ErrClosed = errors.New("redislimit: the tier is closed")
)

// Stats are the counts of a Tier.
type Stats struct {
	Redis, Cache, Lease, Fallback uint64 // calls by Source; calls that failed are in none of these

	Scripts      uint64 // calls of scripts that were sent for them
	Led          uint64 // of Scripts: sent by the callers themselves; see NewClient
	Late         uint64 // calls that were not answered within the budget
	Failed       uint64 // calls to which the client or Redis answered with an error
	DialErrors   uint64 // calls of scripts, and probes, for which the client could not connect
	PoolTimeouts uint64 // calls of scripts for which the client had no connection
	Outages      uint64 // times that calls stopped to be sent to a primary
	Lent         uint64 // units that Redis has lent
	Returned     uint64 // of Lent: units that were given back unused

	Unasked  uint64        // calls that were not sent, since their primary was degraded
	Unshared uint64        // units that were admitted, or charged, without Redis
	Trips    uint64        // pipelines that have come back, plus calls that callers have sent themselves
	TripTime time.Duration // the sum of the times that Trips took

	Leased int64 // units in leases that can be spent now
	Owed   int64 // units that Redis has yet to be told of
}

// Status is the mode of a Store, and the history of that mode.
type Status struct {
	Mode     Mode
	Since    time.Time // the time when the mode began; for the first mode, when the Store was made
	Cause    error     // the error that led to the mode, or nil
	Unshared uint64    // units admitted or charged without Redis since then
}

type tierStats struct {
	redis, cache, lease, fallback, scripts, led, late, failed, poolTimeouts, dialErrors, outages, lent, returned, unasked, unshared, trips, tripTime atomic.Uint64
}

const (
	defaultBudget      = 5 * time.Millisecond
	defaultMaxStale    = time.Second
	defaultTierMaxKeys = 1 << 16
	minBudget          = 100 * time.Microsecond // a number without a unit is ns; and no Redis answers sooner
	maxBudget          = time.Minute
	maxReserve         = 2 * time.Millisecond // the part of the budget that is left for the answer after the wait
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

// wait returns how long callers wait for Redis.
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
	case shared.Algorithm == sluice.InFlight:
		return configErrorf("Lease", "%v: units that are lent would be in use for a whole Period, and cannot be given back one by one; want no Lease", shared.Algorithm)
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
