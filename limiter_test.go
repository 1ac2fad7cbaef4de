package sluice

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// caller is one way to call a limiter.
type caller struct {
	name   string
	allow  func(key string, cost int) bool
	take   func(key string, cost int) Decision
	peek   func(key string, cost int) Decision
	forget func(key string)
}

// callers are three ways of saying the same to three limiters that are alike.
func callers(t *testing.T, c Config) []caller {
	strings, keys, times := mustNew(t, c), mustNew(t, c), mustNew(t, c)
	peek := func(l *Limiter) func(key string, cost int) Decision {
		return func(key string, cost int) Decision { return l.Key(key).Peek(cost) }
	}
	reset := func(l *Limiter) func(key string) { return func(key string) { l.Key(key).Reset() } }
	return []caller{
		{"string forms", func(key string, cost int) bool {
			if cost == 1 {
				return strings.Allow(key)
			}
			return strings.AllowN(key, cost)
		}, strings.Take, peek(strings), reset(strings)},
		{"key forms", func(key string, cost int) bool {
			if cost == 1 {
				return keys.Key(key).Allow()
			}
			return keys.Key(key).AllowN(cost)
		},
			func(key string, cost int) Decision { return keys.Key(key).Take(cost) },
			func(key string, cost int) Decision { return keys.KeyBytes([]byte(key)).Peek(cost) },
			reset(keys)},
		{"times given by the caller",
			func(key string, cost int) bool { return times.Key(key).AllowAt(c.Clock.Now(), cost) },
			func(key string, cost int) Decision { return times.Key(key).TakeAt(c.Clock.Now(), cost) },
			peek(times), reset(times)},
	}
}

func TestLimiter_StringAndKeyFormsBehaveIdentically(t *testing.T) {
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			rng := seeded.Rand(t)
			clock := NewManualClock(start)
			c.Clock, c.Stats = clock, true
			burst := c.Limit.burst()
			costs := []int{1, 1, 1, 0, 2, burst / 2, burst, burst + 1, -1, math.MaxInt, math.MinInt}
			ways := callers(t, c)
			for step := range 3000 {
				key, cost := fmt.Sprint("key ", rng.IntN(5)), costs[rng.IntN(len(costs))]
				op := rng.IntN(8)
				var first any
				for i, w := range ways {
					var got any
					switch op {
					case 0:
						w.forget(key)
					case 1, 2:
						got = w.peek(key, cost)
					case 3, 4:
						got = w.take(key, cost)
					default:
						got = w.allow(key, cost)
					}
					if i == 0 {
						first = got
					}
					require.Equal(t, first, got, "step %d: %s and %s, operation %d, cost %d", step, ways[0].name, w.name, op, cost)
				}
				clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / 4)))
			}
		})
	}
}

func TestLen_CountsTrackedKeys(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, clock *ManualClock) {
		require.Zero(t, l.Len())
		for i := range 500 {
			require.True(t, l.Allow(fmt.Sprint(i)))
			require.True(t, l.Allow(fmt.Sprint(i/2)))
			require.Equal(t, i+1, l.Len())
			require.Equal(t, i+1, l.Stats().Keys)
		}
		clock.Advance(2 * l.Config().Limit.Period)
		require.Equal(t, 500, l.Len(), "idle keys count until they are swept")
		require.Equal(t, 500, l.Sweep())
		require.Zero(t, l.Len())
		require.Zero(t, l.Sweep())
	})
}

func TestLimiter_NegativeNowCountsAsZero(t *testing.T) {
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			c.Clock = badClock(-1 << 40)
			bad := mustNew(t, c)
			c.Clock = NewManualClock(time.Unix(0, 0))
			zero := mustNew(t, c)
			for _, cost := range []int{1, 0, 3, burstOf(zero), -1, burstOf(zero) - 4, 1} {
				require.Equal(t, zero.Key("k").Peek(cost), bad.Key("k").Peek(cost))
				require.Equal(t, zero.Take("k", cost), bad.Take("k", cost))
				require.Equal(t, zero.AllowN("k", cost), bad.AllowN("k", cost))
				require.Equal(t, zero.Key("k").TakeAt(0, cost), bad.Key("k").TakeAt(math.MinInt64, cost))
				require.Equal(t, zero.Key("k").AllowAt(0, cost), bad.Key("k").AllowAt(-1, cost))
			}
			bad.Key("k").Reset()
			require.True(t, bad.Allow("k"))
			require.Zero(t, bad.Sweep())
		})
	}
}

// badClock breaks the rule that a clock does not return a negative number.
type badClock int64

func (c badClock) Now() int64 { return int64(c) }

func TestWorstCase_ClosedForms(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		algs  []Algorithm
		limit Limit
		want  map[time.Duration]int
	}{
		// A burst, and a unit for each interval of 100 ms that fits.
		{bucketAlgorithms, PerSecond(10).WithBurst(5), map[time.Duration]int{
			0: 5, 1: 5, 100*time.Millisecond - 1: 5, 100 * time.Millisecond: 6, s: 15, 10 * s: 105, 24 * time.Hour: 864_005,
		}},
		// The third of a second is rounded once, not once a unit.
		{bucketAlgorithms, PerSecond(3).WithBurst(1), map[time.Duration]int{
			0: 1, 333_333_332: 1, 333_333_333: 2, 333_333_334: 2, s - 1: 3, s: 4, 3 * s: 10, 3_000_000 * s: 9_000_001,
		}},
		{bucketAlgorithms, Per(3, 1), map[time.Duration]int{0: 3, 1: 6, 100: 303}},
		// A window's limit, and another one for each boundary that a closed span of d
		// can meet.
		{[]Algorithm{FixedWindow}, PerSecond(10), map[time.Duration]int{
			0: 10, 1: 20, s: 20, s + 1: 30, 2 * s: 30, 2*s + 1: 40, 59 * s: 600,
		}},
		// A limit at 0, P, 2P, ...
		{[]Algorithm{SlidingLog}, PerSecond(10), map[time.Duration]int{
			0: 10, s - 1: 10, s: 20, 2*s - 1: 20, 2 * s: 30, 59 * s: 600,
		}},
		// A limit at the end of a window, and then the rate.
		{[]Algorithm{SlidingWindow}, PerSecond(10), map[time.Duration]int{
			0: 10, 1: 10, 100 * time.Millisecond: 10, 100*time.Millisecond + 1: 11, s: 19, s + 1: 20, 10*s + 1: 110,
		}},
		{[]Algorithm{SlidingWindow}, PerDay(100_000_000), map[time.Duration]int{
			0: 100_000_000, day + 1: 200_000_000,
		}},
	} {
		for _, a := range c.algs {
			l := mustNew(t, Config{Algorithm: a, Limit: c.limit})
			for d, want := range c.want {
				assert.Equal(t, want, l.WorstCase(d), "%v %v, span %v", a, c.limit, d)
			}
		}
	}
}

// TestWorstCase_Interval is a full bucket, and a refill for each boundary behind the
// first instant, of which no more fits than the bucket holds.
func TestWorstCase_Interval(t *testing.T) {
	l := mustNew(t, Config{Algorithm: TokenBucketInterval, Limit: PerSecond(10).WithBurst(25)})
	for d, want := range map[time.Duration]int{-1: 0, 0: 25, 1: 35, sec: 35, sec + 1: 45, 59 * sec: 615} {
		assert.Equal(t, want, l.WorstCase(d), "span %v", d)
	}
	l = mustNew(t, Config{Algorithm: TokenBucketInterval, Limit: PerSecond(10).WithBurst(4)})
	for d, want := range map[time.Duration]int{0: 4, 1: 8, sec: 8, sec + 1: 12} {
		assert.Equal(t, want, l.WorstCase(d), "span %v", d)
	}
	l = mustNew(t, Config{Algorithm: TokenBucketInterval, Limit: Per(3, 1)})
	assert.Equal(t, math.MaxInt, l.WorstCase(math.MaxInt64))
}

// TestWorstCase_FirstCharge is that of windows in Unix time.
func TestWorstCase_FirstCharge(t *testing.T) {
	l := mustNew(t, Config{Algorithm: FixedWindowFirstCharge, Limit: PerSecond(10)})
	for d, want := range map[time.Duration]int{-1: 0, 0: 10, 1: 20, sec: 20, sec + 1: 30, 59 * sec: 600} {
		assert.Equal(t, want, l.WorstCase(d), "span %v", d)
	}
	l = mustNew(t, Config{Algorithm: FixedWindowFirstCharge, Limit: Per(3, 1)})
	assert.Equal(t, math.MaxInt, l.WorstCase(math.MaxInt64))
}

func TestWorstCase_EdgesOnEveryAlgorithm(t *testing.T) {
	for _, a := range algorithms {
		for _, limit := range []Limit{Per(1, 1), Per(1<<20, time.Second), Per(1, maxBurst), Per(7, 1000)} {
			l := mustNew(t, Config{Algorithm: a, Limit: limit})
			assert.Zero(t, l.WorstCase(-1), "%v %v: a negative span", a, limit)
			assert.Zero(t, l.WorstCase(math.MinInt64), "%v %v: a negative span", a, limit)
			assert.Equal(t, map[bool]int{false: limit.burst(), true: math.MaxInt}[a == InFlight], l.WorstCase(0), "%v %v: an instant", a, limit)
			last := 0
			for d := time.Duration(1); d > 0; d *= 3 {
				require.GreaterOrEqual(t, l.WorstCase(d), last, "%v %v: a longer span admits no less", a, limit)
				last = l.WorstCase(d)
			}
			require.GreaterOrEqual(t, l.WorstCase(math.MaxInt64), last)
		}
	}
}

func TestWorstCase_SaturatesAtMaxInt(t *testing.T) {
	for _, a := range algorithms {
		limit := Per(1, 1) // MaxInt64 units in MaxInt64 ns, and then some
		switch a {
		case GCRA, TokenBucket, LeakyBucket, FixedWindow:
			limit = Per(3, 1) // three times as many
		case SlidingLog:
			limit = Per(1<<20, 1) // the product takes 83 bits
		}
		l := mustNew(t, Config{Algorithm: a, Limit: limit})
		assert.Equal(t, math.MaxInt, l.WorstCase(math.MaxInt64), "%v", a)
	}
}

// TestKey_CanBeCompared, and be a key of a map.
func TestKey_CanBeCompared(t *testing.T) {
	c := Config{Limit: PerHour(1), Hash: HashStable}
	l, other := mustNew(t, c), mustNew(t, c)
	seen := map[Key]bool{l.Key("a"): true}
	require.True(t, seen[l.KeyBytes([]byte("a"))])
	require.False(t, seen[l.Key("b")])
	require.False(t, seen[other.Key("a")], "the id is the same, the limiter is not")
	brings, err := l.Key("a").WithLimit(PerHour(2))
	require.NoError(t, err)
	require.False(t, seen[brings])
}

// TestLimiter_NotMadeByNew: whoever forgets to make a limiter is told so.
func TestLimiter_NotMadeByNew(t *testing.T) {
	for name, l := range map[string]*Limiter{"nil": nil, "zero": new(Limiter)} {
		k := Key{lim: l}
		calls := map[string]func(){
			"Allow":     func() { l.Allow("k") },
			"AllowN":    func() { l.AllowN("k", 1) },
			"Take":      func() { l.Take("k", 1) },
			"Key":       func() { l.Key("k") },
			"KeyBytes":  func() { l.KeyBytes([]byte("k")) },
			"KeyUint64": func() { l.KeyUint64(1) },
			"KeyAddr":   func() { l.KeyAddr(netip.IPv6Loopback()) },
			"KeyHash":   func() { l.KeyHash(1) },
			"Wait":      func() { _ = l.Wait(t.Context(), "k", 1) },
			"SetLimit":  func() { _ = l.SetLimit(PerSecond(1)) },
			"Snapshot":  func() { _ = l.Snapshot(new(bytes.Buffer)) },
			"Restore":   func() { _ = l.Restore(new(bytes.Buffer)) },
			"Config":    func() { l.Config() },
			"Stats":     func() { l.Stats() },
			"Metrics":   func() { l.Metrics("k") },
			"Len":       func() { l.Len() },
			"Sweep":     func() { l.Sweep() },
			"WorstCase": func() { l.WorstCase(1) },
			"TopDenied": func() { l.TopDenied() },
			"TakeAll":   func() { TakeAll(Charge{k, 1}) },
			"WaitAll":   func() { _, _ = WaitAll(t.Context(), Charge{k, 1}) },

			"Acquire":        func() { _, _ = l.Acquire("k", 1) },
			"Key.Acquire":    func() { _, _ = k.Acquire(1) },
			"Key.Allow":      func() { k.Allow() },
			"Key.AllowN":     func() { k.AllowN(1) },
			"Key.AllowAt":    func() { k.AllowAt(0, 1) },
			"Key.Take":       func() { k.Take(1) },
			"Key.TakeAt":     func() { k.TakeAt(0, 1) },
			"Key.Peek":       func() { k.Peek(1) },
			"Key.PeekAt":     func() { k.PeekAt(0, 1) },
			"Key.Status":     func() { k.Status() },
			"Key.Reset":      func() { k.Reset() },
			"Key.Refund":     func() { k.Refund(1) },
			"Key.Block":      func() { k.Block(time.Second) },
			"Key.Unblock":    func() { k.Unblock() },
			"Key.Debit":      func() { k.Debit(1) },
			"Key.TakeUpTo":   func() { k.TakeUpTo(1) },
			"Key.Wait":       func() { _ = k.Wait(t.Context(), 1) },
			"Key.Reserve":    func() { _, _ = k.Reserve(1, 0) },
			"Key.SetLimit":   func() { _ = k.SetLimit(PerSecond(1)) },
			"Key.ClearLimit": func() { k.ClearLimit() },
			"Key.Limit":      func() { k.Limit() },
			"Key.Limiter":    func() { k.Limiter() },
			"Key.WithLimit":  func() { _, _ = k.WithLimit(PerSecond(1)) },
		}
		for of, prefix := range map[reflect.Type]string{reflect.TypeFor[*Limiter](): "", reflect.TypeFor[Key](): "Key."} {
			for i := range of.NumMethod() {
				require.Contains(t, calls, prefix+of.Method(i).Name)
			}
		}
		for call, f := range calls {
			t.Run(name+"/"+call, func(t *testing.T) {
				require.PanicsWithValue(t, notMade, f)
			})
		}
	}
}
