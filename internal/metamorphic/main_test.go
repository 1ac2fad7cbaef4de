package metamorphic

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/suite"
	"github.com/sluice-go/sluice/internal/traces"
)

// TestSuite_CrowdedHomes runs all tests again with home slots cut to 16 and to one.
func TestSuite_CrowdedHomes(t *testing.T) { suite.CrowdedHomes(t) }

// TestSuite_TablesOfAFewIDs runs all tests again with tables that are split when they have three ids.
func TestSuite_TablesOfAFewIDs(t *testing.T) { suite.TablesOfAFewIDs(t, "^(TestModel|Fuzz)") }

type trace = traces.Trace[sluice.Config]

var start = traces.Start

// A variant is an algorithm with its options. An Offset stands for a random one.
type variant struct{ traces.Options }

// variants are those of all layouts.
var variants = func() (all []variant) {
	for _, o := range traces.Variants {
		all = append(all, variant{o})
	}
	return all
}()

// config returns the variant's configuration, which lacks a limit.
func (v variant) config() sluice.Config {
	c := sluice.Config{Algorithm: sluice.Algorithm(v.Algorithm), Offset: v.Offset}
	if v.Interval {
		c.Refill = sluice.RefillInterval
	}
	if v.Anchored {
		c.Anchor = sluice.AnchorFirstCharge
	}
	return c
}

// random draws a limit for the variant, and an offset if it has one.
func (v variant) random(rng *rand.Rand) sluice.Config {
	c := v.config()
	if c.Limit = randomLimit(rng, c.Algorithm); c.Offset != 0 {
		c.Offset = traces.RandomOffset(rng, c.Limit.Period)
	}
	return c
}

// valid draws until New accepts a configuration.
func valid(draw func() sluice.Config) sluice.Config {
	for {
		c := draw()
		if _, err := sluice.New(c); err == nil {
			return c
		}
	}
}

func randomLimit(rng *rand.Rand, a sluice.Algorithm) sluice.Limit {
	return sluice.Limit(traces.RandomLimit(rng, oracle.Algorithm(a)))
}

func windowed(a sluice.Algorithm) bool { return a >= sluice.SlidingWindow }

func mustNew(tb testing.TB, c sluice.Config) *sluice.Limiter {
	tb.Helper()
	l, err := sluice.New(c)
	require.NoError(tb, err)
	return l
}

// capacity is what a fresh key of the limiter can be charged, by its state.
func capacity(c sluice.Config) int {
	if c.Limit == sluice.Unlimited || c.Limit.Rate == 0 {
		return 0
	}
	return c.Limit.Capacity() + c.Soft
}

// oracleConfig describes a limiter to its model, which follows the one liberty that the library
// takes, the grid for intervals that are no whole number of ns.
func oracleConfig(c sluice.Config) oracle.Config {
	o := oracle.Config{
		Algorithm: oracle.Algorithm(c.Algorithm),
		Rate:      int64(c.Limit.Rate),
		Burst:     int64(c.Limit.Burst),
		Period:    int64(c.Limit.Period),
		Offset:    int64(c.Offset),
		Interval:  c.Refill == sluice.RefillInterval,
		Anchored:  c.Anchor == sluice.AnchorFirstCharge,
		Grid:      true,

		BlockFor:    int64(c.BlockFor),
		CountDenied: c.CountDenied,
	}
	switch {
	case c.Limit.Rate == math.MaxInt:
		o.Rate = math.MaxInt64 // Unlimited, on 32-bit machines, too
	case c.Soft > 0 && windowed(c.Algorithm):
		o.Rate, o.Burst = int64(capacity(c)), 0
	case c.Soft > 0:
		o.Burst = int64(capacity(c))
	}
	return o
}

// newOracle returns the exact model of a limiter.
func newOracle(c sluice.Config) *oracle.Model { return oracle.New(oracleConfig(c)) }

// newCounting returns the model of a limiter whose words can count as far as they do.
func newCounting(c oracle.Config) *oracle.Model {
	c.CountMost = traces.WordsOf(c).CountMost
	return oracle.New(c)
}

// fromOracle narrows a model's decision to the int of this platform.
func fromOracle(d oracle.Decision) sluice.Decision {
	return sluice.Decision{
		Allowed:    d.Allowed,
		Limit:      int(min(d.Limit, math.MaxInt)),
		Remaining:  int(min(d.Remaining, math.MaxInt)),
		RetryAfter: time.Duration(d.RetryAfter),
		ResetAfter: time.Duration(d.ResetAfter),
	}
}

// guess is what a limiter has decided, to be searched for first by a model: see Model.Guess.
func guess(d sluice.Decision) oracle.Decision {
	return oracle.Decision{Remaining: int64(d.Remaining), RetryAfter: int64(d.RetryAfter), ResetAfter: int64(d.ResetAfter)}
}
