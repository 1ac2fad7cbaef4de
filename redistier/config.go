package redistier

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Config describes a shared limiter. Replicas that share keys should have the same one;
// what happens where they differ is said at the fields.
type Config struct {
	// Algorithm decides how cost is counted over time. The zero value is GCRA. GCRA,
	// TokenBucket and LeakyBucket share their state in Redis. Under algorithms of
	// different states a key has a budget each.
	Algorithm sluice.Algorithm

	// Limit is the policy that holds for each key by itself. For a while replicas may have
	// different ones, as in a rolling deployment: each judges by its own, and units that
	// have been spent count for all of them.
	Limit sluice.Limit

	// Offset moves windows and refills; see sluice.Config.
	Offset time.Duration

	// BlockFor is how long a denied call blocks its key, or 0; see sluice.Config. It is
	// rounded up to a microsecond.
	BlockFor time.Duration

	// Prefix begins the names of all keys in Redis. It has 1 to 64 bytes, and no ~, which
	// ends it there. Limiters with the same Prefix share their keys, and should be of one limit: New
	// refuses a Prefix that another limiter of the client has in this process with another limit, and
	// nothing finds out about those of other processes, since in a rolling deployment limits may differ.
	//
	// In a cluster, a Prefix with a hash tag, such as "rl:{login}", has all its keys in one slot. Without one
	// they are spread, and nothing in a key chooses its slot.
	Prefix string

	// Clock says whose clock judges. The zero value is RedisClock.
	Clock Clock

	// Remember is how many keys' last states the limiter keeps, to put them back if Redis
	// loses them: 0 means 65,536, and a negative number none. A key takes up to about 150
	// bytes. Beyond that, the ones that would be fresh soonest go.
	Remember int
}

// Clock says whose clock judges calls.
type Clock uint8

// The clocks.
const (
	// RedisClock is that of the Redis server, read once in each call.
	RedisClock Clock = iota
	// CallerClock is that of the caller, for servers that refuse TIME to scripts. Replicas
	// whose clocks differ by J admit at most min(burst, J*rate) more in all.
	// With windows, and refills at intervals, one whose clock is behind can admit a burst more of a
	// key within J before a boundary, if it has not seen the key's state.
	CallerClock
)

var clockNames = []string{"redis", "caller"}

// String returns redis or caller.
func (c Clock) String() string { return nameOf("Clock", clockNames, c) }

// ConfigError is the error of New and SetLimit for what cannot be.
type ConfigError struct {
	Field  string // the offending field, such as "Limit.Period"
	Reason string // its value, what is wrong with it, and what would be accepted
}

// Error names the field and the reason.
func (e *ConfigError) Error() string { return "redistier: " + e.Field + ": " + e.Reason }

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
	case int(c.Clock) >= len(clockNames):
		return configErrorf("Clock", "%v is not a clock; want one of %v", c.Clock, clockNames)
	}
	return nil
}

// untagged reports whether a hash tag begins in a prefix, and does not end there.
func untagged(prefix string) bool {
	_, rest, begins := strings.Cut(prefix, "{")
	return begins && !strings.Contains(rest, "}")
}
