package limittest

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

// An Arrival is a call to come.
type Arrival struct {
	At   int64 // Unix nanoseconds
	Key  string
	Cost int
}

// Traffic has the settings of arrivals of any pattern. Its methods are the patterns: sequences in the order of
// time, which end after N arrivals, or at the last nanosecond. Two with the same fields are the same on one kind of processor, however
// often they are begun. The methods panic if a field is negative, or one of their arguments is not positive.
type Traffic struct {
	// Seed is of all that is drawn.
	Seed uint64

	// N is how many arrivals there are; 0 for no end.
	N int

	// Start is the time from which the arrivals are counted; a zero Start, and one before 1970, is 1970.
	Start time.Time

	// Every is the time from one arrival to the next, of all keys together and, where it is drawn, on average. 0 means 1 ms.
	Every time.Duration

	// Keys is how many keys there are, all equally likely; 0 means 1. They are "key-0", "key-1", and so on.
	Keys int

	// MaxCost is the largest cost: all from 1 to it are equally likely. 0 means 1.
	MaxCost int
}

// Steady has an arrival after each Every, exactly.
func (t Traffic) Steady() iter.Seq[Arrival] {
	t = t.withDefaults()
	return t.arrivals(func(_ *rand.Rand, _, at int64) int64 { return after(at, t.Every) })
}

// Poisson has arrivals that know nothing of each other, as of many independent clients: the times between them are
// exponential.
func (t Traffic) Poisson() iter.Seq[Arrival] {
	t = t.withDefaults()
	return t.arrivals(func(rng *rand.Rand, _, at int64) int64 { return after(at, t.exponential(rng)) })
}

// Bursty has size arrivals at one instant, and then none until their share of time has passed.
func (t Traffic) Bursty(size int) iter.Seq[Arrival] {
	wantPositive("Bursty", "size", int64(size))
	t = t.withDefaults()
	return t.arrivals(func(_ *rand.Rand, n, at int64) int64 {
		if n%int64(size) != 0 {
			return at
		}
		return after(at, times(t.Every, int64(size)))
	})
}

// Boundary attacks windows of limit.Period that begin at multiples of it, in Unix time: it asks for limit.Rate units in
// the last nanosecond of a window and as many in the first one of the next, with costs of 1. Between two attacks it skips a
// window, so that the units have come back. Every and MaxCost do not matter. Each key is attacked in its turn. Of a limit with a
// calendar the windows are the calendar's.
func (t Traffic) Boundary(limit sluice.Limit) iter.Seq[Arrival] {
	wantPositive("Boundary", "limit.Rate", int64(limit.Rate))
	wantPositive("Boundary", "limit.Period", int64(limit.Period))
	t = t.withDefaults()
	rate := int64(limit.Rate)
	next := boundariesOf(limit)
	return func(yield func(Arrival) bool) {
		n, boundary := int64(0), next(next(t.start()))
		for attack := int64(0); boundary < math.MaxInt64; attack++ {
			key := keyName(attack % int64(t.Keys))
			for _, at := range [...]int64{boundary - 1, boundary} {
				for range rate {
					if !yield(Arrival{at, key, 1}) {
						return
					}
					if n++; n == int64(t.N) {
						return
					}
				}
			}
			boundary = next(next(boundary))
		}
	}
}

// boundariesOf returns a function to the first boundary after a time.
func boundariesOf(limit sluice.Limit) func(at int64) int64 {
	c := limit.Calendar()
	if c == (sluice.Calendar{}) {
		return func(at int64) int64 { return after(at/int64(limit.Period)*int64(limit.Period), limit.Period) }
	}
	return func(at int64) int64 {
		_, ends, err := c.Window(time.Unix(0, at))
		if err != nil {
			panic("limittest: Boundary: " + err.Error())
		}
		return ends.UnixNano()
	}
}

// Flood is Steady with a key for each arrival that has not come before, as of an attacker who makes them up. Keys does not matter.
func (t Traffic) Flood() iter.Seq[Arrival] {
	steady := t.Steady()
	return func(yield func(Arrival) bool) {
		n := int64(0)
		for a := range steady {
			a.Key = keyName(n)
			if n++; !yield(a) {
				return
			}
		}
	}
}

// Diurnal is Poisson whose rate goes up and down as a day's does: from nothing at each multiple of day to twice the average half a
// day later, along a cosine.
func (t Traffic) Diurnal(day time.Duration) iter.Seq[Arrival] {
	wantPositive("Diurnal", "day", int64(day))
	return t.thinned(func(at int64) float64 {
		return (1 - math.Cos(2*math.Pi*float64(at%int64(day))/float64(day))) / 2
	})
}

// Ramp is Poisson whose rate grows evenly: from nothing at Start to one each Every after rise, and on to twice that, which it keeps.
func (t Traffic) Ramp(rise time.Duration) iter.Seq[Arrival] {
	wantPositive("Ramp", "rise", int64(rise))
	start := t.start()
	return t.thinned(func(at int64) float64 { return min(1, float64(at-start)/float64(rise)/2) })
}

// thinned is Poisson of twice the rate, of which a part is kept that depends on the time.
func (t Traffic) thinned(part func(at int64) float64) iter.Seq[Arrival] {
	t = t.withDefaults()
	return t.arrivals(func(rng *rand.Rand, _, at int64) int64 {
		for at < math.MaxInt64 {
			if at = after(at, t.exponential(rng)/2); rng.Float64() < part(at) {
				break
			}
		}
		return at
	})
}

// arrivals makes a sequence of next, of traffic with its defaults, which returns the time of arrival n = 1, 2, ..., given the last. The first
// one is at the start.
func (t Traffic) arrivals(next func(rng *rand.Rand, n, at int64) int64) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		rng := rand.New(rand.NewPCG(t.Seed, t.Seed))
		at := t.start()
		for n := int64(1); at < math.MaxInt64; n++ {
			if !yield(Arrival{at, keyName(rng.Int64N(int64(t.Keys))), 1 + rng.IntN(t.MaxCost)}) || n == int64(t.N) {
				return
			}
			at = next(rng, n, at)
		}
	}
}

func (t Traffic) withDefaults() Traffic {
	for field, n := range map[string]int64{"N": int64(t.N), "Every": int64(t.Every), "Keys": int64(t.Keys), "MaxCost": int64(t.MaxCost)} {
		if n < 0 {
			panic(fmt.Sprintf("limittest: Traffic.%s: %d is negative; want 0 for the default, or a positive one", field, n))
		}
	}
	if t.Every == 0 {
		t.Every = time.Millisecond
	}
	t.Keys, t.MaxCost = max(t.Keys, 1), max(t.MaxCost, 1)
	return t
}

// start is Start in Unix nanoseconds, as sluice's clocks have it.
func (t Traffic) start() int64 { return sluice.NewManualClock(t.Start).Now() }

// exponential draws the time to the next of independent arrivals.
func (t Traffic) exponential(rng *rand.Rand) time.Duration {
	d := rng.ExpFloat64() * float64(t.Every)
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d)
}

func wantPositive(pattern, argument string, n int64) {
	if n <= 0 {
		panic(fmt.Sprintf("limittest: Traffic.%s: %s is %d; want a positive one", pattern, argument, n))
	}
}

func keyName(n int64) string { return "key-" + strconv.FormatInt(n, 10) }

// after is a time later by d, or the last nanosecond.
func after(at int64, d time.Duration) int64 { return at + min(int64(d), math.MaxInt64-at) }

// times is n times d, or the longest Duration.
func times(d time.Duration, n int64) time.Duration {
	if int64(d) > math.MaxInt64/n {
		return math.MaxInt64
	}
	return time.Duration(int64(d) * n)
}
