// Package traces has the parts that random comparisons with the models share: the table of configurations,
// how limits, gaps and costs are drawn, what a word has room for, and the calls so far. It knows
// nothing of the library, so that tests inside that can use it. Only tests do.
package traces

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/test/oracle"
)

// A Limit is the library's.
type Limit struct {
	Rate   int
	Period time.Duration
	Burst  int
}

// Interval returns the time that one unit takes to return, rounded up.
func (l Limit) Interval() int64 { return (int64(l.Period)-1)/int64(l.Rate) + 1 }

// Options are an algorithm, and whatever else of a configuration says how the state of a key is
// laid out in words.
type Options struct {
	Algorithm   oracle.Algorithm
	Interval    bool // is refilled at intervals
	FirstCharge bool // windows begin at a key's first charge
	Offset      time.Duration
}

// Name names the options.
func (o Options) Name() string {
	name := [...]string{"gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log", "fixed-window", "in-flight"}[o.Algorithm]
	if o.FirstCharge {
		name += "+first-charge"
	}
	if o.Interval {
		name += "+interval"
	}
	if o.Offset != 0 {
		name += "+offset"
	}
	return name
}

// Windowed reports whether the algorithm counts in windows, or the log.
func (o Options) Windowed() bool { return o.Algorithm >= oracle.SlidingWindow }

// CountsDenied reports whether denied calls can count.
func (o Options) CountsDenied() bool { return o.Windowed() && o.Algorithm != oracle.InFlight }

// A Layout is one way in which the state of a key is laid out in words, as options and limits
// that have it.
type Layout struct {
	Name    string
	Options Options
	Few     Limit // of 10 units, except where only many take two words: every unit can be spent
	Many    Limit // of 500 units or more, for many goroutines
	Wide    bool  // the state has a tail
}

// Layouts is the table of configurations. Whatever is to hold for all of them ranges over it,
// or over Variants; a new algorithm, or a new way to lay it out, is a new line.
// An Offset is for Many.
var Layouts = []Layout{
	{Name: "gcra", Options: Options{Algorithm: oracle.GCRA}, Few: perSecond(10), Many: Limit{60, time.Minute, 500}},
	{Name: "gcra-uneven", Options: Options{Algorithm: oracle.GCRA}, Few: Limit{Rate: 10, Period: 7 * time.Second}, Many: Limit{7, time.Minute, 500}},
	{Name: "token-bucket", Options: Options{Algorithm: oracle.TokenBucket}, Few: perSecond(10), Many: Limit{60, time.Minute, 500}},
	{Name: "token-interval", Options: Options{Algorithm: oracle.TokenBucket, Interval: true}, Few: perSecond(10), Many: Limit{60, time.Minute, 500}},
	{Name: "token-interval-offset", Options: Options{Algorithm: oracle.TokenBucket, Interval: true, Offset: time.Second}, Few: perSecond(10), Many: Limit{60, time.Minute, 500}},
	{Name: "leaky-bucket", Options: Options{Algorithm: oracle.LeakyBucket}, Few: perSecond(10), Many: Limit{60, time.Minute, 500}},
	{Name: "sliding-window", Options: Options{Algorithm: oracle.SlidingWindow}, Few: perSecond(10), Many: perMinute(500)},
	{Name: "sliding-window-wide", Options: Options{Algorithm: oracle.SlidingWindow}, Few: Limit{Rate: 100_000_000, Period: day}, Many: perSecond(100_000), Wide: true},
	{Name: "sliding-offset", Options: Options{Algorithm: oracle.SlidingWindow, Offset: 59 * time.Second}, Few: perSecond(10), Many: perMinute(500)},
	{Name: "sliding-log", Options: Options{Algorithm: oracle.SlidingLog}, Few: perSecond(10), Many: perMinute(500), Wide: true},
	{Name: "fixed-window", Options: Options{Algorithm: oracle.FixedWindow}, Few: perSecond(10), Many: perMinute(500)},
	{Name: "fixed-window-offset", Options: Options{Algorithm: oracle.FixedWindow, Offset: 7 * time.Second}, Few: perSecond(10), Many: perMinute(500)},
	{Name: "fixed-first-charge", Options: Options{Algorithm: oracle.FixedWindow, FirstCharge: true}, Few: perSecond(10), Many: perMinute(500), Wide: true},
	{Name: "in-flight", Options: Options{Algorithm: oracle.InFlight}, Few: perSecond(10), Many: perMinute(500)},
	{Name: "in-flight-wide", Options: Options{Algorithm: oracle.InFlight}, Few: Limit{Rate: 100_000_000, Period: day}, Many: perSecond(100_000), Wide: true},
}

const day = 24 * time.Hour

func perSecond(n int) Limit { return Limit{Rate: n, Period: time.Second} }
func perMinute(n int) Limit { return Limit{Rate: n, Period: time.Minute} }

// Variants are the options of all layouts, each of them once, for tests that draw a limit. An
// Offset is 1 ns, where it does not stand for a random one.
var Variants = func() (all []Options) {
	for _, la := range Layouts {
		o := la.Options
		o.Offset = min(o.Offset, 1)
		if !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all
}()

// Sharing is how many variants have the model of this one, which differ in nothing but where
// their windows begin: they share the operations of their model.
func (o Options) Sharing() (n int) {
	for _, v := range Variants {
		if v.Offset = o.Offset; v == o {
			n++
		}
	}
	return n
}

// A Penalty is the effects of denied calls.
type Penalty struct {
	Blocks bool
	Counts bool // in windows
}

// Penalties are all of them.
var Penalties = []Penalty{{}, {Blocks: true}, {Counts: true}, {Counts: true, Blocks: true}}
