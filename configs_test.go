package sluice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// layouts is the table of configurations, traces.Layouts, in the types of this package. Whatever
// is to hold for all of them ranges over it, through one of the views below.
var layouts = func() (all []layout) {
	for _, la := range traces.Layouts {
		all = append(all, layout{la.Name, withOptions(la.Options), limitOf(la.Few), limitOf(la.Many), la.Wide})
	}
	return all
}()

type layout struct {
	name      string
	options   Config // of what decides: all but the limit
	few, many Limit
	wide      bool
}

// withOptions returns a configuration that lacks a limit.
func withOptions(o traces.Options) Config {
	c := Config{Offset: o.Offset}
	if err := c.Algorithm.UnmarshalText([]byte(oracle.Config{Algorithm: o.Algorithm, Interval: o.Interval, FirstCharge: o.FirstCharge}.Name())); err != nil {
		panic(err)
	}
	return c
}

// withFew is the layout's configuration with few units.
func (la layout) withFew() Config {
	c := la.options
	c.Limit, c.Offset = la.few, c.Offset*la.few.Period/la.many.Period
	return c
}

// withMany is the layout's configuration with many units.
func (la layout) withMany() Config {
	c := la.options
	c.Limit = la.many
	return c
}

// everyFew and everyMany range over the configurations of all layouts, by name.
func everyFew(yield func(string, Config) bool) {
	for _, la := range layouts {
		if !yield(la.name, la.withFew()) {
			return
		}
	}
}

func everyMany(yield func(string, Config) bool) {
	for _, la := range layouts {
		if !yield(la.name, la.withMany()) {
			return
		}
	}
}

// layoutNamed returns a line of the table.
func layoutNamed(name string) layout {
	return layouts[slices.IndexFunc(layouts, func(la layout) bool { return la.name == name })]
}

// variants are the options of all layouts, each of them once, for tests that draw a limit. An
// Offset is 1 ns, where it does not stand for a random one.
var variants = func() (all []Config) {
	for _, o := range traces.Variants {
		all = append(all, withOptions(o))
	}
	return all
}()

// variantName names the options of a config that decide, except its limit.
func variantName(c Config) string { return traced(c).Name() }

// randomLimit and randomConfig draw a limit for an algorithm, or for a variant, and an offset
// if it has one.
func randomLimit(rng *rand.Rand, a Algorithm) Limit {
	return limitOf(traces.RandomLimit(rng, oracle.Named(a.String()).Algorithm))
}

func randomConfig(rng *rand.Rand, variant Config) Config {
	c := variant
	if c.Limit = randomLimit(rng, c.Algorithm); c.Offset != 0 {
		c.Offset = traces.RandomOffset(rng, c.Limit.Period)
	}
	return c
}

// algorithms are all of them; bucketAlgorithms share a schedule, hand out slots and take a
// burst other than the rate; windowAlgorithms count.
var (
	algorithms       = algorithmsThat(func(Algorithm) bool { return true })
	bucketAlgorithms = algorithmsThat(func(a Algorithm) bool { return !a.windowed() })
	windowAlgorithms = algorithmsThat(Algorithm.windowed)
)

// algorithmsThat returns the six classic algorithms that are so.
func algorithmsThat(is func(Algorithm) bool) (all []Algorithm) {
	for _, la := range layouts {
		if a := la.options.Algorithm; a != TokenBucketInterval && a != FixedWindowFirstCharge && is(a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// overflows are all that can be done at MaxKeys; untracking are those that turn new keys away.
var (
	overflows  = []Overflow{OverflowEvictSoonest, OverflowDenyNew, OverflowAdmitNew}
	untracking = overflows[1:]
)

// forEveryEvicting is forEveryLayout, where keys are evicted.
func forEveryEvicting(t *testing.T, f func(t *testing.T, c Config)) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Algorithm != InFlight {
			f(t, c)
		}
	})
}

// overflowsOf are those that c can have: InFlight evicts no keys.
func overflowsOf(c Config) []Overflow {
	if c.Algorithm == InFlight {
		return untracking
	}
	return overflows
}

// clocks are the clocks that programs run under.
var clocks = []struct {
	name string
	new  func() Clock
}{
	{"system", SystemClock},
	{"fast", func() Clock { return NewFastClock() }},
	{"coarse", func() Clock { return NewCoarseClock(0) }},
}

// penalties are the settings of what denied calls do, each with blocks by hand.
var penalties = func() (all []Config) {
	for _, p := range traces.Penalties {
		c := Config{CountDenied: p.Counts}
		if p.Blocks {
			c.BlockFor = 1
		}
		all = append(all, c)
	}
	return all
}()

// onEveryLayout runs f on a fresh limiter of each layout, with few units and a clock of its own.
func onEveryLayout(t *testing.T, f func(t *testing.T, l *Limiter, clock *ManualClock)) {
	t.Helper()
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			clock := NewManualClock(start)
			c.Clock = clock
			f(t, mustNew(t, c), clock)
		})
	}
}

// forEveryLayout runs f as a sub-test for each layout, with many units.
func forEveryLayout(t *testing.T, f func(t *testing.T, c Config)) {
	t.Helper()
	for name, c := range everyMany {
		t.Run("layout="+name, func(t *testing.T) { f(t, c) })
	}
}

// TestLayouts_AreAllThereAre: the table has every algorithm and every option that decides, its
// limits have the layouts that it says, and no two lines are the same.
func TestLayouts_AreAllThereAre(t *testing.T) {
	var want, got []string
	offered := func(kind string, n uint8, text string) {
		if text != fmt.Sprintf("%s(%d)", kind, n) {
			want = append(want, text)
		}
	}
	for n := range uint8(255) {
		offered("Algorithm", n, Algorithm(n).String())
		offered("Overflow", n, Overflow(n).String())
	}
	names := map[string]bool{}
	for _, la := range layouts {
		got = append(got, la.options.Algorithm.String())
		require.False(t, names[la.name], la.name)
		names[la.name] = true
		for _, c := range []Config{la.withFew(), la.withMany()} {
			require.Equal(t, la.wide, isWide(mustNew(t, c)), la.name)
			require.Equal(t, la.options.Offset != 0, c.Offset != 0, la.name)
		}
	}
	for _, o := range overflows {
		got = append(got, o.String())
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, slices.Compact(got))
}

func limitOf(l traces.Limit) Limit { return Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst} }
func tracedLimit(l Limit) traces.Limit {
	return traces.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst}
}

// traced is c for the models and whatever else the traces share.
func traced(c Config) traces.Config {
	o := oracle.Named(c.Algorithm.String())
	return traces.Config{
		Options: traces.Options{Algorithm: o.Algorithm, Interval: o.Interval, FirstCharge: o.FirstCharge, Offset: c.Offset},
		Limit:   tracedLimit(c.Limit), Soft: c.Soft, BlockFor: c.BlockFor, CountDenied: c.CountDenied,
	}
}

func oracleConfig(c Config) oracle.Config { return traced(c).Oracle() }

// newOracle returns the exact model of a limiter.
func newOracle(c Config) *oracle.Model { return oracle.New(oracleConfig(c)) }

// countMost is the most that a word can count under c, or 0 for algorithms that do not.
func countMost(c Config) int64 { return traces.WordsOf(oracleConfig(c)).CountMost }

func fromOracle(d oracle.Decision) Decision { return Decision(traces.FromOracle(d)) }
