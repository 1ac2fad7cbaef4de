package sluice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A layout is one way in which the state of a key is laid out in words, as an algorithm with
// its options, and limits that have it.
type layout struct {
	name    string
	options Config // of what decides: all but the limit
	few     Limit  // of 10 units, except where only many take two words: every unit can be spent
	many    Limit  // of 500 units or more, for many goroutines
	wide    bool   // the state has a tail
}

// layouts is the table of configurations. Whatever is to hold for all of them ranges over it,
// through one of the views below; a new algorithm, or a new way to lay it out, is a new line.
// An Offset is that of the many.
var layouts = []layout{
	{name: "gcra", options: Config{Algorithm: GCRA}, few: PerSecond(10), many: PerMinute(60).WithBurst(500)},
	{name: "gcra-uneven", options: Config{Algorithm: GCRA}, few: Per(10, 7*time.Second), many: PerMinute(7).WithBurst(500)},
	{name: "token-bucket", options: Config{Algorithm: TokenBucket}, few: PerSecond(10), many: PerMinute(60).WithBurst(500)},
	{name: "token-interval", options: Config{Algorithm: TokenBucket, Refill: RefillInterval}, few: PerSecond(10), many: PerMinute(60).WithBurst(500)},
	{name: "token-interval-offset", options: Config{Algorithm: TokenBucket, Refill: RefillInterval, Offset: time.Second}, few: PerSecond(10), many: PerMinute(60).WithBurst(500)},
	{name: "leaky-bucket", options: Config{Algorithm: LeakyBucket}, few: PerSecond(10), many: PerMinute(60).WithBurst(500)},
	{name: "sliding-window", options: Config{Algorithm: SlidingWindow}, few: PerSecond(10), many: PerMinute(500)},
	{name: "sliding-window-wide", options: Config{Algorithm: SlidingWindow}, few: PerDay(100_000_000), many: PerSecond(100_000), wide: true},
	{name: "sliding-offset", options: Config{Algorithm: SlidingWindow, Offset: 59 * time.Second}, few: PerSecond(10), many: PerMinute(500)},
	{name: "sliding-log", options: Config{Algorithm: SlidingLog}, few: PerSecond(10), many: PerMinute(500), wide: true},
	{name: "fixed-window", options: Config{Algorithm: FixedWindow}, few: PerSecond(10), many: PerMinute(500)},
	{name: "fixed-window-offset", options: Config{Algorithm: FixedWindow, Offset: 7 * time.Second}, few: PerSecond(10), many: PerMinute(500)},
	{name: "fixed-first-charge", options: Config{Algorithm: FixedWindow, Anchor: AnchorFirstCharge}, few: PerSecond(10), many: PerMinute(500), wide: true},
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
	for _, la := range layouts {
		c := la.options
		c.Offset = min(c.Offset, 1)
		if !slices.ContainsFunc(all, func(o Config) bool { return variantName(o) == variantName(c) }) {
			all = append(all, c)
		}
	}
	return all
}()

// variantName names the options of a config that decide, except its limit.
func variantName(c Config) string {
	name := c.Algorithm.String()
	if c.Anchor != AnchorUnix {
		name += "+" + c.Anchor.String()
	}
	if c.Refill != RefillContinuous {
		name += "+" + c.Refill.String()
	}
	if c.Offset != 0 {
		name += "+offset"
	}
	return name
}

// algorithms are all of them; bucketAlgorithms share a schedule, hand out slots and take a
// burst other than the rate; windowAlgorithms count.
var (
	algorithms       = algorithmsThat(func(Algorithm) bool { return true })
	bucketAlgorithms = algorithmsThat(func(a Algorithm) bool { return !a.windowed() })
	windowAlgorithms = algorithmsThat(Algorithm.windowed)
)

func algorithmsThat(is func(Algorithm) bool) (all []Algorithm) {
	for _, la := range layouts {
		if a := la.options.Algorithm; is(a) && !slices.Contains(all, a) {
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
var penalties = []Config{
	{},
	{BlockFor: 1},
	{CountDenied: true},
	{CountDenied: true, BlockFor: 1},
}

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
		offered("Anchor", n, Anchor(n).String())
		offered("Refill", n, Refill(n).String())
		offered("Overflow", n, Overflow(n).String())
	}
	names := map[string]bool{}
	for _, la := range layouts {
		got = append(got, la.options.Algorithm.String(), la.options.Anchor.String(), la.options.Refill.String())
		require.False(t, names[la.name], la.name)
		names[la.name] = true
		for _, c := range []Config{la.withFew(), la.withMany()} {
			require.Equal(t, la.wide, mustNew(t, c).policyOf(0).wide != nil, la.name)
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
