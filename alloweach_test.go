package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A countedClock counts its readings.
type countedClock struct {
	ManualClock
	readings int
}

func (c *countedClock) Now() int64 {
	c.readings++
	return c.ManualClock.Now()
}

// eachTwins are two limiters of every variant, with what happens to keys beside calls. The
// charges to the first of each are batched.
func eachTwins(t *testing.T, rng *rand.Rand) (batched, single []*Limiter, clock *ManualClock) {
	clock = NewManualClock(start)
	for _, c := range variants {
		c.Limit = Per(1+rng.IntN(20), time.Duration(1+rng.IntN(1000))*time.Millisecond)
		if c.Offset != 0 {
			c.Offset = c.Limit.Period / 3
		}
		c.Clock, c.Stats = clock, true
		c.MaxKeys, c.Shadow = 1000, rng.IntN(8) == 0
		if rng.IntN(4) == 0 {
			c.BlockFor = 50 * time.Millisecond
		}
		batched, single = append(batched, mustNew(t, c)), append(single, mustNew(t, c))
	}
	return batched, single, clock
}

// eachKey returns a key of both limiters, now and then one that brings a limit.
func eachKey(rng *rand.Rand, a, b *Limiter) (Key, Key) {
	n := rng.Uint64N(12)
	id := (n + 1) * 0x9e3779b97f4a7c15
	ka, kb := a.KeyHash(id), b.KeyHash(id)
	if n == 0 && a.Config().Algorithm != FixedWindowFirstCharge {
		limit := a.Config().Limit
		limit.Rate += 3
		if with, err := ka.WithLimit(limit); err == nil {
			twin, _ := kb.WithLimit(limit)
			return with, twin
		}
	}
	return ka, kb
}

func TestAllowEach_DecidesAsOneByOne(t *testing.T) {
	rng := seeded.Rand(t)
	admitted, denied := 0, 0
	for range 20 {
		batched, single, clock := eachTwins(t, rng)
		for range 200 {
			clock.Advance(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			charges := make([]Charge, rng.IntN(50))
			want := []bool{true, false}
			at := rng.IntN(len(batched))
			for i := range charges {
				if rng.IntN(3) == 0 { // runs of one limiter
					at = rng.IntN(len(batched))
				}
				a, b := eachKey(rng, batched[at], single[at])
				costs := []int{1, 1, 1, 2, 3, 0, -1, math.MaxInt}
				charges[i] = Charge{a, costs[rng.IntN(len(costs))]}
				if i == 0 && rng.IntN(4) == 0 {
					a.Block(30 * time.Millisecond)
					b.Block(30 * time.Millisecond)
				}
				want = append(want, b.AllowN(charges[i].Cost))
				if want[len(want)-1] {
					admitted++
				} else {
					denied++
				}
			}
			require.Equal(t, want, AllowEach([]bool{true, false}, charges...))
		}
		for i := range batched {
			require.Equal(t, single[i].Stats(), batched[i].Stats())
		}
	}
	require.Greater(t, min(admitted, denied), 1000, "of both there must be many")
}

func TestAllowEach_ReadsTheClockOnceForALimiter(t *testing.T) {
	clock := &countedClock{}
	l := mustNew(t, Config{Limit: PerSecond(1), Clock: clock})
	var charges []Charge
	for i := range 100 {
		k := l.KeyUint64(uint64(i))
		k.Allow()
		charges = append(charges, Charge{k, 1})
	}
	clock.readings = 0
	require.Len(t, AllowEach(nil, charges...), 100)
	require.Equal(t, 1, clock.readings)
	require.Empty(t, AllowEach(nil))
	require.Equal(t, 1, clock.readings)
}

func TestAllowEach_RefusesAZeroKey(t *testing.T) {
	require.PanicsWithValue(t, (*Limiter)(nil).madePanic(), func() { AllowEach(nil, Charge{}) })
	require.PanicsWithValue(t, (*Limiter)(nil).madePanic(), func() { AllowEach(nil, Charge{}, Charge{}) })
}

// madePanic is what made panics with.
func (l *Limiter) madePanic() (text any) {
	defer func() { text = recover() }()
	l.made()
	return nil
}

func TestAllowEach_AllocatesNothing(t *testing.T) {
	skipUnderRace(t)
	for _, c := range variants {
		c.Limit = Per(5, time.Hour)
		if c.Offset != 0 {
			c.Offset = time.Minute
		}
		l := mustNew(t, c)
		keys := [3]Key{l.Key("a"), l.Key("b"), l.Key("c")}
		admitted := make([]bool, 0, 4)
		allow := func() {
			admitted = AllowEach(admitted[:0], Charge{keys[0], 1}, Charge{keys[1], 1}, Charge{keys[2], 2}, Charge{keys[0], 1})
		}
		allow()
		require.Zero(t, leastAllocs(200, allow), variantName(c))
	}
}

// Tables grow, and are swept, while batches with the same keys are decided: each key's
// burst is admitted exactly once.
func TestAllowEach_ConcurrentBatchesAdmitTheBurst(t *testing.T) {
	const goroutines, burst = 6, 4
	keys := 3000
	if crowded() {
		keys = 300
	}
	for _, a := range algorithms {
		l := mustNew(t, Config{Algorithm: a, Limit: Per(burst, day), Clock: NewManualClock(start)})
		admitted := make([]atomic.Int32, keys)
		var wg sync.WaitGroup
		rng := seeded.Rand(t)
		for range goroutines {
			order := rng.Perm(keys)
			wg.Go(func() {
				var results []bool
				charges := make([]Charge, 0, 33)
				for n := range 2 * keys {
					i := order[n%keys]
					charges = append(charges, Charge{l.KeyUint64(uint64(i)), 1})
					if len(charges) < cap(charges) && n < 2*keys-1 {
						continue
					}
					results = AllowEach(results[:0], charges...)
					for j, ok := range results {
						if ok {
							admitted[order[(n-len(results)+1+j)%keys]].Add(1)
						}
					}
					charges = charges[:0]
					if n%10 == 0 {
						l.Sweep()
					}
				}
			})
		}
		wg.Wait()
		for i := range admitted {
			require.EqualValues(t, burst, admitted[i].Load(), "%v, key %d", a, i)
		}
	}
}

// BenchmarkAllowEach is a decision of a batch with keys of a million, at random.
func BenchmarkAllowEach(b *testing.B) {
	sequence := uniformIndexes()
	for _, clock := range clocks {
		clear(millions) // one that is made with this clock
		l := millionKeys(b, GCRA, clock.new())
		one, result := make([]Charge, 0, 1), make([]bool, 0, 1)
		b.Run(fmt.Sprintf("clock=%s/batch=none", clock.name), func(b *testing.B) {
			drive(b, uniform, l, false, func(i uint64) bool {
				one = append(one[:0], Charge{l.KeyUint64(uint64(sequence[i%sequenceLen])), 1})
				result = append(result[:0], one[0].Key.AllowN(one[0].Cost))
				return result[0]
			})
		})
		for _, size := range []int{1, 4, 16, 64, 256} {
			charges, results := make([]Charge, 0, size), make([]bool, 0, size)
			b.Run(fmt.Sprintf("clock=%s/batch=%d", clock.name, size), func(b *testing.B) {
				drive(b, uniform, l, false, func(i uint64) bool {
					charges = append(charges, Charge{l.KeyUint64(uint64(sequence[i%sequenceLen])), 1})
					if len(charges) < size {
						return true
					}
					results, charges = AllowEach(results[:0], charges...), charges[:0]
					return results[0]
				})
			})
		}
	}
}
