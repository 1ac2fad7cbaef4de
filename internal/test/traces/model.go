package traces

import (
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/test/oracle"
)

// A Config is the part of the library's that decides on a key.
type Config struct {
	Options
	Limit       Limit
	Soft        int
	BlockFor    time.Duration
	CountDenied bool
}

// Capacity is the most that a fresh key can be charged at once, as far as its state says so: 0 under
// limits that keep none.
func (c Config) Capacity() int {
	l := c.Limit
	switch {
	case l.Rate == 0 || l.Rate == math.MaxInt:
		return 0
	case l.Burst == 0:
		return l.Rate + c.Soft
	}
	return l.Burst + c.Soft
}

// Oracle describes the configuration to its exact model, which follows the one liberty that
// the library takes, the grid for intervals that are no whole number of ns.
func (c Config) Oracle() oracle.Config {
	o := oracle.Config{
		Algorithm:   c.Algorithm,
		Rate:        int64(c.Limit.Rate),
		Burst:       int64(c.Limit.Burst),
		Period:      int64(c.Limit.Period),
		Offset:      int64(c.Offset),
		Interval:    c.Interval,
		FirstCharge: c.FirstCharge,
		Grid:        true,
		BlockFor:    int64(c.BlockFor),
		CountDenied: c.CountDenied,
	}
	switch {
	case c.Limit.Rate == math.MaxInt:
		o.Rate = math.MaxInt64 // Unlimited, on 32-bit machines, too
	case c.Soft > 0 && c.Windowed():
		o.Rate, o.Burst = int64(c.Capacity()), 0
	case c.Soft > 0:
		o.Burst = int64(c.Capacity())
	}
	return o
}

// NewCounting returns the model of a limiter whose words can count as far as they do.
func NewCounting(c oracle.Config) *oracle.Model {
	c.CountMost = WordsOf(c).CountMost
	return oracle.New(c)
}

// A Decision is the library's.
type Decision struct {
	Allowed    bool
	WouldDeny  bool
	OverSoft   bool
	Limit      int
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
}

// FromOracle narrows a model's decision to the int of this platform.
func FromOracle(d oracle.Decision) Decision {
	return Decision{
		Allowed:    d.Allowed,
		Limit:      int(min(d.Limit, math.MaxInt)),
		Remaining:  int(min(d.Remaining, math.MaxInt)),
		RetryAfter: time.Duration(d.RetryAfter),
		ResetAfter: time.Duration(d.ResetAfter),
	}
}

// Guess is what a limiter has decided, to be searched for first by a model: see Model.Guess.
func (d Decision) Guess() oracle.Decision {
	return oracle.Decision{Remaining: int64(d.Remaining), RetryAfter: int64(d.RetryAfter), ResetAfter: int64(d.ResetAfter)}
}
