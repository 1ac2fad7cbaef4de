package redislimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// StoreConfig describes a Store. Replicas that share limits should use the same StoreConfig.
type StoreConfig struct {
	// Prefix begins the names of all keys in Redis, as Config.Prefix does. LimitConfig.Name keeps the keys
	// of different limits apart.
	Prefix string

	// TimeSource chooses the clock that decisions use. The zero value is RedisClock.
	TimeSource TimeSource

	// Remember is the number of keys whose last states are kept, over all limits; see Config.Remember.
	Remember int

	// Replicas is the number of processes that share the limits. 0 means that they count each other
	// once a second, through a key of their own in Redis; see Store.Replicas. Until Redis has answered once there is no
	// share then: under LocalShare calls that Redis does not answer get ErrUnavailable.
	Replicas int

	// Budget is the longest time that a call may take. OnUnavailable decides calls that Redis does not answer
	// by then. MaxStale is how long a denial is answered from memory. See TierConfig for all three.
	Budget        time.Duration
	OnUnavailable OnUnavailable
	MaxStale      time.Duration

	// MaxKeys bounds four sets of keys, each over all limits together: the keys tracked for LocalShare (for
	// each Algorithm and Offset), the keys known to be denied, the keys with leases, and the keys with charges
	// that Redis has yet to be told of. 0 means 65,536.
	MaxKeys int

	// OnMode is called when the mode changes; see TierConfig.OnMode.
	OnMode func(mode Mode, cause error)
}

// LimitConfig describes a limit of a Store.
type LimitConfig struct {
	// Name is part of the names of the limit's keys in Redis, 1 to 128 bytes of any kind. Limits with the
	// same Name share their keys, even if their Limits differ: each limit judges its own calls, and units
	// that have been spent count for all of them. So they must have the same Algorithm, Offset and
	// Tag, and, unless they are buckets, the same Limit.Period, or the same Calendar.
	Name string

	// Tag, if it is set, is a hash tag of up to 64 bytes. In a cluster all keys of limits with the same Tag
	// are in one slot, and so on one primary, as Store.DoAll requires. The Tag is part of the keys' names and
	// comes from the configuration alone. With or without it, the text of a key never chooses its slot.
	Tag string

	// Algorithm, Limit, Offset and BlockFor mean the same as in Config. A Limit with a Rate of
	// 0 denies everything; OpDebit still counts under it, in windows of its Period.
	Algorithm sluice.Algorithm
	Limit     sluice.Limit
	Offset    time.Duration
	BlockFor  time.Duration

	// Lease lets Redis lend units; see Lease. The zero value lends none.
	Lease Lease

	// Exact asks Redis at every call, so that each answer tells the units that remain at that moment. Without it a denial
	// from memory tells the units that remained when Redis denied the key. Exact cannot be combined with a Lease.
	Exact bool

	// MaxHolds is the most holds of a key that can be open at once, up to 1,048,576, such as 10,000. 0 means a limit
	// without holds. A limit with holds has other keys in Redis than one without, so that a key begins afresh when that
	// changes. SlidingLog and BlockFor have no holds.
	MaxHolds int
}

const (
	maxName = 128
	maxTag  = 64
)

// tierConfig returns the fields that a Tier has as well, for the given number of replicas.
func (c *StoreConfig) tierConfig() TierConfig {
	return TierConfig{
		Replicas: max(c.Replicas, 1), Budget: c.Budget, OnUnavailable: c.OnUnavailable, MaxKeys: c.MaxKeys, MaxStale: c.MaxStale, OnMode: c.OnMode,
	}
}

func (c *StoreConfig) validate() error {
	if c.Replicas < 0 {
		return configErrorf("Replicas", "%d is negative; want a number of processes, or 0 to find out", c.Replicas)
	}
	return Config{Prefix: c.Prefix, TimeSource: c.TimeSource}.validate()
}

func (c *LimitConfig) validate(prefix string) error {
	switch {
	case c.Name == "" || len(c.Name) > maxName:
		return configErrorf("Name", "%q has %d bytes; want 1 to %d, such as \"login\"", c.Name[:min(len(c.Name), maxName)], len(c.Name), maxName)
	case len(c.Tag) > maxTag:
		return configErrorf("Tag", "%q has %d bytes; want at most %d", c.Tag[:maxTag], len(c.Tag), maxTag)
	case c.Exact && c.Lease.Max > 0:
		return configErrorf("Exact", "it is set with a Lease, from which calls are answered without Redis; want one of them")
	case c.Tag != "" && strings.Contains(prefix, "{"):
		return configErrorf("Tag", "%q, and the Prefix %q has a hash tag already; want one of them", c.Tag, prefix)
	}
	return c.validateHolds(prefix)
}

// config returns the fields that a Limiter has as well.
func (c *LimitConfig) config() Config {
	return Config{Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, BlockFor: c.BlockFor}
}

// escaped escapes the characters that have a meaning in the names of keys. Different texts stay different.
var escaped = strings.NewReplacer("%", "%25", "~", "%7E", "{", "%7B", "}", "%7D")

// keyNames holds how the names of a limit's keys in Redis begin: before the key itself, or before its hash.
//
// A name is prefix~x{tag}~name~key. No other limit uses the same name. Nor does a Limiter: its names have
// a : or a # after the letter.
type keyNames struct {
	plain, hashed string
	tagged        bool   // every name has a hash tag, so that the text of a key cannot choose its slot
	braces        string // which a key in a name without one must not have
}

func newKeyNames(prefix string, c *LimitConfig, letter byte) keyNames {
	begin := prefix + "~" + string(letter)
	if c.Tag != "" {
		begin += "{" + escaped.Replace(c.Tag) + "}"
	}
	begin += "~" + escaped.Replace(c.Name)
	n := keyNames{begin + "~", begin + "#", strings.Contains(begin, "{"), "{"}
	if c.MaxHolds > 0 {
		n.braces = "{}" // see holdNames
	}
	return n
}

func (n *keyNames) of(key string) string {
	if len(key) <= maxPlain && (n.tagged || !strings.ContainsAny(key, n.braces)) {
		return n.plain + key
	}
	return n.hashed + digest(key)
}

// A shapeOf holds the settings, all but the rate, that limits of one Name must have in common.
type shapeOf struct {
	algorithm sluice.Algorithm
	offset    time.Duration
	period    time.Duration // 0 for a bucket
	calendar  sluice.Calendar
	tag       string
	holds     bool
}

func (c *LimitConfig) shapeOf(p *plan) shapeOf {
	s := shapeOf{c.Algorithm, c.Offset, c.Limit.Period, c.Limit.Calendar(), c.Tag, c.MaxHolds > 0}
	if _, ok := p.shape.(bucket); ok {
		s.period = 0
	}
	return s
}

func (s shapeOf) String() string {
	text := fmt.Sprintf("%v, an offset of %v", s.algorithm, s.offset)
	if s.period > 0 {
		text += fmt.Sprintf(", a period of %v", s.period)
	}
	if s.calendar != (sluice.Calendar{}) {
		text += fmt.Sprintf(", %q", sluice.PerCalendar(1, s.calendar))
	}
	if s.holds {
		text += ", holds"
	}
	return text + fmt.Sprintf(" and the tag %q", s.tag)
}

// An Op is the operation that a call of a Store makes.
type Op uint8

// The operations.
const (
	// OpTake charges the cost if the limit has room for it, as Tier.Take does.
	OpTake Op = iota
	// OpPeek charges nothing, and reports the decision that OpTake would make.
	OpPeek
	// OpDebit charges the cost whether the limit has room or not, and reports whether it had: so denied calls
	// count, too. In windows the whole charge expires with its window, however large it is.
	OpDebit
	// OpRefund gives the cost back, up to the units that have been charged. It then reports the decision
	// that OpPeek with a cost of 0 would make.
	OpRefund
	// OpHold sets the cost apart for a caller that does not know yet how much it will use: it is admitted if OpTake would
	// be. A bucket's units on hold do not come back until the hold ends; in windows they count as spent in the present
	// window. A hold ends when it is settled, in any process, or when it lapses after TTL: then it has been spent, or
	// comes back, with GiveBack. Under InFlight it always comes back, at the latest when the second window after it was held
	// or extended begins. If the key has an open hold of that HoldID, the call is taken for one that is tried
	// again: it is admitted, and changes nothing; with another Cost or GiveBack it is ErrOtherHold. The same goes for one
	// that has ended, until it would have lapsed, if
	// HoldID was given, and the key has not had MaxHolds ended ones since.
	OpHold
	// OpSettle ends a hold of which Cost units have been used, and reports the decision that OpPeek with a cost of 0 would
	// make. What was not used is free again: of a bucket all of it; in windows as far as it would still count. What was
	// used beyond the hold is charged as by OpDebit. A hold is released with a Cost of 0. Do does not need an answer of
	// Redis for it: see Store.Do.
	OpSettle
	// OpExtend adds Cost units to a hold if the limit has room for them, and lets it lapse TTL from now on, unless TTL is
	// 0. If it is denied, the hold stays as it is. With a Cost of 0 it renews the hold; under InFlight all its units then count
	// from now on, and those that no longer counted need room. Unlike the others it is not to
	// be tried again after an error, unless it has a Step: it may have been made.
	OpExtend
)

var opNames = []string{"take", "peek", "debit", "refund", "hold", "settle", "extend"}

// String returns take, peek, charge, refund, hold, settle or extend.
func (o Op) String() string { return nameOf("Op", opNames, o) }

// A StoreCall is one call of Store.Do or Store.DoAll. OpTake and OpPeek accept the same Costs as Limiter.Take.
// For the other operations a Cost below 1 makes the call an OpPeek with a cost of 0.
type StoreCall struct {
	Limit *StoreLimit
	Key   string
	Cost  int
	Op    Op

	// Override, unless it is the zero value, replaces the StoreLimit's own limit for this call alone.
	// It must have the same period or calendar, unless the limit is a bucket. Spent units count under both.
	Override sluice.Limit

	// HoldID names a hold of the key, in at most 128 bytes of any kind. OpSettle and OpExtend need it. OpHold makes one of
	// 128 random bits if there is none; StoreResult has it.
	HoldID string
	// TTL is when a hold lapses, at most 365 days. OpHold needs it. GiveBack lets its units come back then.
	TTL      time.Duration
	GiveBack bool

	// Part, unless it is Whole, makes a call of DoAll be about units of the Cost of a call before it.
	Part Part

	// Over makes OpHold and OpExtend hold the cost whether the limit has room or not, as OpDebit charges.
	Over bool

	// OrNone makes OpHold and OpExtend hold nothing where the limit has no room for the cost, and be made all the same: the hold is
	// there, and Decision.Allowed is false.
	OrNone bool

	// Once makes OpHold refuse the HoldID of a hold that has ended, as long as that is known: ErrEndedHold.
	Once bool

	// AllAgain, of call 0 of a DoAll, makes the calls behind it change nothing if this call of a hold was made before. They are answered as
	// Again then, also if their own keys have no such hold, and Held says nothing.
	AllAgain bool

	// Capped makes OpSettle charge at most Debt units beyond the hold, whatever was used: see StoreResult.Capped.
	Capped bool
	Debt   int

	// Remember is how long the settlement of an OpSettle is known: within that time, and as
	// far as MaxHolds has room, an OpSettle of the same Cost and with a Remember is done no other time, and has no error.
	Remember time.Duration

	// Step, if not empty, names an OpExtend in its hold: an OpExtend of a Step that the hold has made holds nothing more, and is
	// answered as admitted. A hold has at most 1,024 of them.
	Step string
}

// A StoreResult is the outcome of a StoreCall.
type StoreResult struct {
	// Decision holds if Err is nil. For OpDebit it judges the cost as OpTake would, except that
	// Remaining are the units left after the charge.
	Decision sluice.Decision

	// Count is how many of the key's units count after the call. If this call's units were charged they are included;
	// for a denied OpTake they are not. OpDebit can take Count beyond the limit. A bucket counts units that have not
	// drained yet, a sliding window its estimate, both rounded up. Units on lease to other processes are included.
	// A blocked key has at least the limit. FromCache, Count is from the time when Redis denied the key; FromLease, the
	// limit's burst less Remaining; FromFallback, the units counted by this process's share, up to the share. Count
	// is 0 under Unlimited, and for OpTake and OpPeek under a limit of 0, for which Redis is not asked.
	Count int64

	// Units is how many units a call of a chain has charged or given back: see Part. It is 0 if DoAll has made none.
	Units int

	// HoldID is the id of the hold, and Held its units; for OpSettle, before the settlement.
	HoldID string
	Held   int
	// Again reports that the call was made before, and that this one has changed nothing; Capped, that an OpSettle has charged less
	// than was used: see StoreCall.Capped.
	Again, Capped bool

	Source Source
	Err    error
}
