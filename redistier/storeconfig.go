package redistier

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// StoreConfig describes a Store. Replicas that share limits should have the same one.
type StoreConfig struct {
	// Prefix begins the names of all keys in Redis, as Config.Prefix does; limits tell theirs
	// apart by LimitConfig.Name.
	Prefix string

	// Clock says whose clock judges. The zero value is RedisClock.
	Clock Clock

	// Remember is how many keys' last states are kept, of all limits; see Config.Remember.
	Remember int

	// Replicas is how many processes share the limits. 0 means that they find out by themselves,
	// once a second, by a key of their own in Redis; see Store.Replicas.
	Replicas int

	// Budget is how long a call may take, OnUnavailable what happens if Redis does not answer
	// by then, and MaxStale how long a denial is answered from memory; see TierConfig.
	Budget        time.Duration
	OnUnavailable OnUnavailable
	MaxStale      time.Duration

	// MaxKeys bounds the keys that are tracked for LocalShare, for each Algorithm and Offset,
	// those that are known to be denied, those that have leases, and those that
	// Redis has to be told of: each of all limits together. 0 means 65,536.
	MaxKeys int

	// OnMode is called when the mode changes; see TierConfig.OnMode.
	OnMode func(mode Mode, cause error)
}

// LimitConfig describes a limit of a Store.
type LimitConfig struct {
	// Name is part of the names of the limit's keys in Redis, of 1 to 128 bytes of any kind. Limits
	// of one Name share their keys, whatever their Limit: each call is judged by its own, and units
	// that have been spent count for all of them. So they must have the same Algorithm, Offset and
	// Tag, and unless they are buckets the same Limit.Period.
	Name string

	// Tag, if any, is a hash tag of up to 64 bytes: in a cluster all keys of limits with the same Tag
	// are in one slot, and so on one primary, as Store.DoAll needs it. It stands in the names of keys,
	// and is up to whoever writes the configuration. With it, and without, nothing in a key chooses its slot.
	Tag string

	// Algorithm, Limit, Offset and BlockFor are those of Config. A Limit with a Rate of
	// 0 denies; Charge counts under it, too, in windows of its Period.
	Algorithm sluice.Algorithm
	Limit     sluice.Limit
	Offset    time.Duration
	BlockFor  time.Duration

	// Lease lets Redis lend units; see Lease. The zero value lends none.
	Lease Lease

	// Exact asks Redis at every call, so that each answer tells what remains just then. Without it a denial from memory
	// tells what remained when Redis denied the key. It goes without a Lease.
	Exact bool
}

const (
	maxName = 128
	maxTag  = 64
)

// tierConfig returns the part that a Tier has as well, for so many replicas.
func (c *StoreConfig) tierConfig() TierConfig {
	return TierConfig{
		Replicas: max(c.Replicas, 1), Budget: c.Budget, OnUnavailable: c.OnUnavailable, MaxKeys: c.MaxKeys, MaxStale: c.MaxStale, OnMode: c.OnMode,
	}
}

func (c *StoreConfig) validate() error {
	if c.Replicas < 0 {
		return configErrorf("Replicas", "%d is negative; want a number of processes, or 0 to find out", c.Replicas)
	}
	return Config{Prefix: c.Prefix, Clock: c.Clock}.validate()
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
	return nil
}

// config returns the part that a Limiter has as well.
func (c *LimitConfig) config() Config {
	return Config{Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, BlockFor: c.BlockFor}
}

// escaped is a text without what has a meaning in the names of keys. No two texts have the same.
var escaped = strings.NewReplacer("%", "%25", "~", "%7E", "{", "%7B", "}", "%7D")

// keyNames begin the names of a limit's keys in Redis: of the key itself, or of its hash.
//
// A name is prefix~x{tag}~name~key. No other limit has it, and no Limiter, whose names have a : or a # behind the
// letter.
type keyNames struct {
	plain, hashed string
	tagged        bool // so that no text of a key chooses its slot
}

func newKeyNames(prefix string, c *LimitConfig, letter byte) keyNames {
	begin := prefix + "~" + string(letter)
	if c.Tag != "" {
		begin += "{" + escaped.Replace(c.Tag) + "}"
	}
	begin += "~" + escaped.Replace(c.Name)
	return keyNames{begin + "~", begin + "#", strings.Contains(begin, "{")}
}

func (n *keyNames) of(key string) string {
	if len(key) <= maxPlain && (n.tagged || strings.IndexByte(key, '{') < 0) {
		return n.plain + key
	}
	return n.hashed + digest(key)
}

// A shapeOf is all of a limit but its rate, that limits of one Name must have in common.
type shapeOf struct {
	algorithm sluice.Algorithm
	offset    time.Duration
	period    time.Duration // 0 of a bucket
	tag       string
}

func (c *LimitConfig) shapeOf(p *plan) shapeOf {
	s := shapeOf{c.Algorithm, c.Offset, c.Limit.Period, c.Tag}
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
	return text + fmt.Sprintf(" and the tag %q", s.tag)
}

// An Op says what a call of a Store does.
type Op uint8

// The operations.
const (
	// OpTake charges the cost if it is there, as Tier.Take does.
	OpTake Op = iota
	// OpPeek charges nothing, and says what OpTake would.
	OpPeek
	// OpCharge charges the cost whether it is there or not, and says whether it was: so denied calls
	// count, too. In windows all of it is forgotten with its window, however much it is.
	OpCharge
	// OpRefund gives the cost back, but not more than has been charged, and says what OpPeek of 0 would
	// afterwards.
	OpRefund
)

var opNames = []string{"take", "peek", "charge", "refund"}

// String returns take, peek, charge or refund.
func (o Op) String() string { return nameOf("Op", opNames, o) }

// A StoreCall is a call of Store.Do and DoAll. OpTake and OpPeek take a Cost as Limiter.Take does; for the
// others one below 1 is an OpPeek of 0.
type StoreCall struct {
	Limit *StoreLimit
	Key   string
	Cost  int
	Op    Op

	// Override is a limit in the place of that of Limit, for this call alone, unless it is the zero
	// value. It is of the same period, unless the limit is a bucket. Spent units count under both.
	Override sluice.Limit
}

// A StoreResult is the outcome of a StoreCall.
type StoreResult struct {
	// Decision holds if Err is nil. Of OpCharge it says of the cost what that of OpTake would, but for
	// the Remaining, which is what is left afterwards.
	Decision sluice.Decision

	// Count is how many units of the key count, this call's included if they were charged, so of OpTake that is
	// denied without them; also beyond the limit, where OpCharge has charged more. Of buckets it is what has not drained yet, of a
	// sliding window its estimate, both rounded up. Units on lease to other processes count; of a key that is blocked
	// it is the limit at least. FromCache it is what counted when Redis denied the key, and FromLease the limit's burst less the
	// Remaining. FromFallback it is what this process's share has counted, up to the share. It is 0 under Unlimited, and of
	// OpTake and OpPeek under a limit of 0, of which Redis is not asked.
	Count int64

	Source Source
	Err    error
}
