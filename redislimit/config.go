package redislimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Config describes a shared limiter. Replicas that share keys should use the same Config.
// Each field tells the effect if replicas differ in it.
type Config struct {
	// Algorithm decides how cost is counted over time. The zero value is GCRA. GCRA,
	// TokenBucket and LeakyBucket share their state in Redis. Other algorithms have states of
	// their own, so a key has a separate budget under each of them. Under InFlight Take holds units and Refund gives them
	// back, the oldest first; those that nobody gives back come back after one Period to two. A RetryAfter is the wait for
	// these. A denial is then not remembered.
	Algorithm sluice.Algorithm

	// Limit is the limit of each single key. For a while replicas may have
	// different limits, as in a rolling deployment: each replica judges its calls by its own limit, and
	// units that have been spent count for all of them.
	Limit sluice.Limit

	// Offset moves windows and refills; see sluice.Config.
	Offset time.Duration

	// BlockFor is how long a denied call blocks its key, rounded up to a microsecond. 0 blocks no
	// keys. See sluice.Config.
	BlockFor time.Duration

	// Prefix begins the names of all keys in Redis. It has 1 to 64 bytes, and must not contain a ~, which
	// ends the Prefix in a name. Limiters with the same Prefix share their keys, and should have the same limit. New
	// refuses a Prefix that another limiter of the same client has in this process with another limit. Differences
	// between processes are not detected, since limits may differ during a rolling deployment.
	//
	// In a cluster, a Prefix with a hash tag, such as "rl:{login}", puts all its keys in one slot. Without a
	// hash tag the keys are spread over the slots. The text of a key never chooses its slot.
	Prefix string

	// TimeSource chooses the clock that decisions use. The zero value is RedisClock.
	TimeSource TimeSource

	// Remember is the number of keys whose last states the limiter keeps, to restore them if Redis
	// loses them. 0 means 65,536; a negative number keeps none. A key takes up to about 150
	// bytes. If there are more keys, the states that would expire soonest are dropped.
	Remember int
}

// TimeSource chooses the clock that decisions use.
type TimeSource uint8

// The clocks.
const (
	// RedisClock is the clock of the Redis server. It is read once in each call.
	RedisClock TimeSource = iota
	// CallerClock is the caller's clock, for servers that do not let scripts call TIME. Replicas
	// whose clocks differ by J admit at most min(burst, J*rate) more in all.
	// With windows, and with refills at intervals, a replica whose clock is behind can admit another burst
	// of a key within J before a boundary, if it has not seen the key's state.
	CallerClock
)

var timeSourceNames = []string{"redis", "caller"}

// String returns redis or caller.
func (c TimeSource) String() string { return nameOf("TimeSource", timeSourceNames, c) }

// ConfigError is the error of New and SetLimit for an invalid configuration.
type ConfigError struct {
	Field  string // the offending field, such as "Limit.Period"
	Reason string // its value, the mistake, and a value that would be accepted
}

// Error names the field and the reason.
func (e *ConfigError) Error() string { return "redislimit: " + e.Field + ": " + e.Reason }

func configErrorf(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

const (
	maxPrefix       = 64
	defaultRemember = 1 << 16
)

func (c Config) validate() error {
	switch {
	case c.Prefix == "" || len(c.Prefix) > maxPrefix:
		return configErrorf("Prefix", "%q has %d bytes; want 1 to %d, such as \"rl:login\"", c.Prefix[:min(len(c.Prefix), maxPrefix)], len(c.Prefix), maxPrefix)
	case strings.Contains(c.Prefix, "~"):
		return configErrorf("Prefix", "%q has a ~ in it, which ends the prefix in the names of keys; want another character, such as a colon", c.Prefix)
	case untagged(c.Prefix):
		return configErrorf("Prefix", "%q has a { and no } behind it, so that in a cluster the text of keys would choose their slots; want a whole hash tag, such as \"rl:{login}\", or no {", c.Prefix)
	case int(c.TimeSource) >= len(timeSourceNames):
		return configErrorf("TimeSource", "%v is not a source of time; want one of %v", c.TimeSource, timeSourceNames)
	}
	return nil
}

// untagged reports whether a prefix has the beginning of a hash tag, but not its end.
func untagged(prefix string) bool {
	_, rest, begins := strings.Cut(prefix, "{")
	return begins && !strings.Contains(rest, "}")
}
