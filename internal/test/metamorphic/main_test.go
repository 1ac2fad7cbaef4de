package metamorphic

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/suite"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// TestSuite_CrowdedHomes runs all tests again with home slots cut to 16 and to one.
func TestSuite_CrowdedHomes(t *testing.T) { suite.CrowdedHomes(t) }

// TestSuite_TablesOfAFewIDs runs all tests again with tables that are split when they have two ids:
// most traces have three keys, and a sweep after each call merges what is left.
func TestSuite_TablesOfAFewIDs(t *testing.T) { suite.TablesOfAFewIDs(t, 2, "^(TestModel|Fuzz)") }

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
	c := sluice.Config{Offset: v.Offset}
	if err := c.Algorithm.UnmarshalText([]byte(oracle.Config{Algorithm: v.Algorithm, Interval: v.Interval, FirstCharge: v.FirstCharge}.Name())); err != nil {
		panic(err)
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
	return limitOf(traces.RandomLimit(rng, oracle.Named(a.String()).Algorithm))
}

func windowed(a sluice.Algorithm) bool { return a >= sluice.SlidingWindow }

func mustNew(tb testing.TB, c sluice.Config) *sluice.Limiter {
	tb.Helper()
	l, err := sluice.New(c)
	require.NoError(tb, err)
	return l
}

// traced is c for the models and whatever else the traces share.
func limitOf(l traces.Limit) sluice.Limit { return sluice.Per(l.Rate, l.Period).WithBurst(l.Burst) }

func tracedLimit(l sluice.Limit) traces.Limit {
	return traces.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst}
}

func traced(c sluice.Config) traces.Config {
	o := oracle.Named(c.Algorithm.String())
	return traces.Config{
		Options: traces.Options{Algorithm: o.Algorithm, Interval: o.Interval, FirstCharge: o.FirstCharge, Offset: c.Offset},
		Limit:   tracedLimit(c.Limit), Soft: c.Soft, BlockFor: c.BlockFor, CountDenied: c.CountDenied,
	}
}

func capacity(c sluice.Config) int { return traced(c).Capacity() }

func oracleConfig(c sluice.Config) oracle.Config { return traced(c).Oracle() }

// newOracle returns the exact model of a limiter.
func newOracle(c sluice.Config) *oracle.Model { return oracle.New(oracleConfig(c)) }

func fromOracle(d oracle.Decision) sluice.Decision { return sluice.Decision(traces.FromOracle(d)) }

func guess(d sluice.Decision) oracle.Decision { return traces.Decision(d).Guess() }
