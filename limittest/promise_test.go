package limittest

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// mostIn is what a promise allows within d, by what a Checker of it says.
func mostIn(p Promise, d int64) int64 {
	if p.line == nil {
		return int64(p.most(d))
	}
	return int64(min(p.line.most(math.MaxUint64, uint64(d)), math.MaxInt))
}

// randomConfig draws what New takes: any algorithm, and limits of all magnitudes.
func randomConfig(rng *rand.Rand) sluice.Config {
	for {
		magnitude := func(bits int) int64 { return 1 + rng.Int64N(1<<(1+rng.IntN(bits))) }
		c := sluice.Config{
			Algorithm: sluice.Algorithm(rng.IntN(8)), Clock: sluice.NewManualClock(time.Time{}),
			Limit: sluice.Per(int(magnitude(20)), time.Duration(magnitude(60))),
		}
		switch {
		case c.Algorithm < sluice.SlidingWindow:
			c.Limit.Burst = int(magnitude(30))
		}
		if rng.IntN(4) == 0 {
			c.Soft = rng.IntN(100)
		}
		if _, err := sluice.New(c); err == nil {
			return c
		}
	}
}

// TestOf_IsWorstCase: for limits of all magnitudes and all spans.
func TestOf_IsWorstCase(t *testing.T) {
	rng := seeded.Rand(t)
	lines := 0
	for range depth.Of(500, 3_000, 50_000) {
		c := randomConfig(rng)
		lim := sluice.Must(sluice.New(c))
		p := Of(lim, 0)
		if p.line != nil {
			lines++
		}
		period := int64(c.Limit.Period)
		for range 20 {
			d := rng.Int64N(1 << (1 + rng.IntN(62)))
			if rng.IntN(2) == 0 { // where a unit, or a window, has just come back
				d = min(d, math.MaxInt64/period-1)/max(period, 1)*period + rng.Int64N(3) - 1
				d = max(d, 0)
			}
			require.Equal(t, int64(lim.WorstCase(time.Duration(d))), mostIn(p, d), "%+v within %d", c, d)
		}
	}
	require.Positive(t, lines)
}

// TestOf_IsOfTheLimitNow: a promise does not change with the limiter.
func TestOf_IsOfTheLimitNow(t *testing.T) {
	for a := sluice.GCRA; a <= sluice.FixedWindow; a++ {
		lim := sluice.Must(sluice.New(sluice.Config{Algorithm: a, Limit: sluice.PerSecond(3)}))
		before := Of(lim, 0)
		require.NoError(t, lim.SetLimit(sluice.PerSecond(5)))
		assert.Equal(t, int64(3), mostIn(before, 0), a)
		assert.Equal(t, int64(5), mostIn(Of(lim, 0), 0), a)
	}
}

func TestOf_WithoutALimit(t *testing.T) {
	for _, c := range []struct {
		config sluice.Config
		most   int
	}{
		{sluice.Config{Limit: sluice.Unlimited}, math.MaxInt},
		{sluice.Config{Limit: sluice.DenyAll}, 0},
		{sluice.Config{Limit: sluice.PerSecond(1), Shadow: true}, math.MaxInt},
	} {
		assert.Equal(t, int64(c.most), mostIn(Of(sluice.Must(sluice.New(c.config)), 0), 1e9))
	}
	assert.Equal(t, 0, check(Promise{}, []record{{1, 1, "k", 1}}).Most, "the zero Promise")
}

// TestOf_Longest: a log needs no longer spans than a period, other windows all.
func TestOf_Longest(t *testing.T) {
	of := func(a sluice.Algorithm, longest time.Duration) int64 {
		return Of(sluice.Must(sluice.New(sluice.Config{Algorithm: a, Limit: sluice.PerSecond(1)})), longest).longest
	}
	assert.Equal(t, int64(time.Second-1), of(sluice.SlidingLog, 0))
	assert.Equal(t, int64(time.Second-1), of(sluice.SlidingLog, time.Hour))
	assert.Equal(t, int64(7), of(sluice.SlidingLog, 7))
	assert.Equal(t, int64(math.MaxInt64), of(sluice.FixedWindow, 0))
	assert.Equal(t, int64(time.Hour), of(sluice.FixedWindow, time.Hour))
}

func TestPromise_RefusesWhatCannotBe(t *testing.T) {
	for _, limit := range []sluice.Limit{{Rate: -1, Period: 1}, {Rate: 1}, {Rate: 1, Period: -1}, {Rate: 1, Period: 1, Burst: -1}} {
		assert.Panics(t, func() { Bucket(limit) }, limit)
	}
	assert.NotPanics(t, func() { Bucket(sluice.DenyAll); Bucket(sluice.Unlimited) })
	assert.Panics(t, func() { Bound(nil, 0) })
	assert.Panics(t, func() { Bound(func(time.Duration) int { return 1 }, -1) })
}

// TestWide: beside big numbers.
func TestWide(t *testing.T) {
	rng := seeded.Rand(t)
	number := func(w wide) *big.Int {
		n := new(big.Int).SetUint64(w.high)
		n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(w.mid))
		return n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(w.lo))
	}
	word := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	for range 10_000 {
		a, b, n := wide{word(), word(), 0}, wide{word(), word(), word() >> 1}, word()
		if rng.IntN(8) == 0 {
			b = a
		}
		require.Equal(t, new(big.Int).Mul(number(a), new(big.Int).SetUint64(n)), number(a.times(n)))
		require.Equal(t, number(a).Cmp(number(b)), a.compare(b))
		require.Equal(t, new(big.Int).Add(number(a), number(b)), number(a.plus(b)))
	}
}
