package sluice

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/limittext"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestLimit_Constructors(t *testing.T) {
	for _, c := range []struct {
		got  Limit
		want Limit
		text string
	}{
		{PerSecond(3), Limit{Rate: 3, Period: time.Second}, "3/s"},
		{PerMinute(3), Limit{Rate: 3, Period: time.Minute}, "3/m"},
		{PerHour(3), Limit{Rate: 3, Period: time.Hour}, "3/h"},
		{PerDay(3), Limit{Rate: 3, Period: 24 * time.Hour}, "3/d"},
		{Per(3, 90*time.Second), Limit{Rate: 3, Period: 90 * time.Second}, "3/1m30s"},
		{Per(3, 90*time.Second).WithBurst(7), Limit{Rate: 3, Period: 90 * time.Second, Burst: 7}, "3/1m30s burst 7"},
		{Per(3, 90*time.Second).WithBurst(7).WithBurst(0), Limit{Rate: 3, Period: 90 * time.Second}, "3/1m30s"},
		{AtOnce(3, time.Minute), Limit{Rate: 3, Period: time.Minute, Burst: limittext.AtOnce}, "3 at once, lease 1m"},
		{AtOnce(0, 36*time.Hour), Limit{Period: 36 * time.Hour, Burst: limittext.AtOnce}, "0 at once, lease 36h"},
		{AtOnce(3, time.Minute).WithBurst(0), PerMinute(3), "3/m"},
		{Unlimited, Limit{Rate: math.MaxInt, Period: time.Second}, "unlimited"},
		{DenyAll, Limit{Period: time.Second}, "0/s"},
	} {
		assert.Equal(t, c.want, c.got, c.text)
		assert.Equal(t, c.text, c.got.String())
	}
}

// anyLimit draws numbers of all lengths, so that short and long ones are alike
// frequent, and round durations as well as odd ones.
func anyLimit(r *rand.Rand) Limit {
	number := func() int { return int(r.Uint64() >> (r.UintN(64)) & math.MaxInt) }
	units := []time.Duration{1, time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour, day}
	l := Limit{Rate: number(), Period: units[r.IntN(len(units))]}
	switch r.IntN(3) {
	case 0:
		l.Period *= time.Duration(1 + r.IntN(100_000))
	case 1:
		l.Period = max(1, time.Duration(r.Uint64()>>(1+r.UintN(63))))
	}
	switch r.IntN(3) {
	case 0:
		l.Burst = number()
	case 1:
		l = AtOnce(min(l.Rate, math.MaxInt-1), l.Period)
	}
	return l
}

func TestLimit_StringIsTheInverseOfParseLimit(t *testing.T) {
	r := seeded.Rand(t)
	for range 20_000 {
		l := anyLimit(r)
		s := l.String()
		back, err := ParseLimit(s)
		require.NoError(t, err, s)
		require.Equal(t, l, back, s)

		text, err := l.MarshalText()
		require.NoError(t, err)
		require.Equal(t, s, string(text))
		var unmarshaled Limit
		require.NoError(t, unmarshaled.UnmarshalText(text))
		require.Equal(t, l, unmarshaled)
	}
}

func TestLimit_InvalidLimitHasNoTextForm(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		want  string
	}{
		{Limit{Rate: 1}, "Limit.Period: 0s is not positive; want a positive duration, as in sluice.PerSecond(100)"},
		{PerSecond(-1), "Limit.Rate: -1 is negative; want units per period, or 0 to deny everything"},
		{PerSecond(1).WithBurst(-1), "Limit.Burst: -1 is negative; want 0 for the rate, or at least 1"},
	} {
		_, err := c.limit.MarshalText()
		require.EqualError(t, err, "sluice: limit has no text form: "+c.want)
	}
	l := PerSecond(5)
	require.EqualError(t, l.UnmarshalText([]byte("5/0s")), `sluice: limit "5/0s": period "0s" is not positive`)
	require.Equal(t, PerSecond(5), l, "a failed UnmarshalText leaves the limit")
}

func TestLimit_UnlimitedOnEveryAlgorithm(t *testing.T) {
	for _, a := range algorithms {
		for _, limit := range []Limit{Unlimited, PerDay(math.MaxInt)} {
			l := mustNew(t, Config{Algorithm: a, Limit: limit, Stats: true, MaxKeys: 1, Overflow: OverflowDenyNew})
			for _, cost := range []int{1, 0, 7, math.MaxInt} {
				want := Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}
				require.Equal(t, want, l.Take("k", cost), "%v cost %d", a, cost)
				require.Equal(t, want, l.Key("k").Peek(cost), "%v cost %d", a, cost)
				require.True(t, l.AllowN("other", cost))
			}
			denied := Decision{Limit: math.MaxInt, Remaining: math.MaxInt, RetryAfter: Never}
			for _, cost := range []int{-1, math.MinInt} {
				require.Equal(t, denied, l.Take("k", cost), "%v cost %d", a, cost)
				require.Equal(t, denied, l.Key("k").Peek(cost), "%v cost %d", a, cost)
				require.False(t, l.AllowN("k", cost))
			}
			require.Zero(t, l.Len(), "no state")
			require.Equal(t, math.MaxInt, l.WorstCase(0))
			l.Key("k").Reset()
			require.Zero(t, l.Sweep())
			require.Equal(t, Stats{Admitted: 6, Denied: 4}, l.Stats())
		}
	}
}

func TestLimit_DenyAllOnEveryAlgorithm(t *testing.T) {
	for _, a := range algorithms {
		for _, limit := range []Limit{DenyAll, PerDay(0), DenyAll.WithBurst(3)} {
			l := mustNew(t, Config{Algorithm: a, Limit: limit, Stats: true})
			for _, cost := range []int{1, 0, 7, -1, math.MaxInt, math.MinInt} {
				require.Equal(t, Decision{RetryAfter: Never}, l.Take("k", cost), "%v cost %d", a, cost)
				require.Equal(t, Decision{RetryAfter: Never}, l.Key("k").Peek(cost), "%v cost %d", a, cost)
				require.False(t, l.AllowN("k", cost))
			}
			require.Zero(t, l.Len(), "no state")
			require.Zero(t, l.WorstCase(math.MaxInt64))
			require.Equal(t, Stats{Denied: 10}, l.Stats(), "cost 0 is not counted")
		}
	}
}

func TestNew_AcceptsEveryPracticalLimit(t *testing.T) {
	accepted := map[Limit][]Algorithm{
		PerSecond(1_000_000):              algorithms,
		PerDay(100_000_000):               {GCRA, TokenBucket, LeakyBucket, SlidingWindow, FixedWindow},
		PerSecond(1_000_000_000):          {GCRA, TokenBucket, LeakyBucket, SlidingWindow, FixedWindow},
		PerDay(1 << 20):                   algorithms, // the sliding log's most
		PerSecond(1 << 20):                algorithms,
		Per(1<<20, 1):                     {SlidingLog},
		Per(1, 100*year):                  algorithms,       // once a century
		Per(1, math.MaxInt64):             windowAlgorithms, // the longest period
		Per(1, maxBurst):                  bucketAlgorithms, // and the longest interval
		Per(1, 1):                         algorithms,       // the shortest
		Per(3, 1):                         {GCRA, TokenBucket, LeakyBucket, SlidingLog, FixedWindow},
		Per(4, 1):                         {GCRA, LeakyBucket, SlidingLog},
		Per(3, 7):                         algorithms, // no whole number of ns a unit
		PerSecond(100).WithBurst(1):       bucketAlgorithms,
		PerSecond(1).WithBurst(1_000_000): bucketAlgorithms,
		Per(1, year).WithBurst(146):       bucketAlgorithms,
		PerSecond(7).WithBurst(7):         algorithms, // a burst that is the rate
		// A prime.
		PerSecond(999_999_937): {GCRA, TokenBucket, LeakyBucket, SlidingWindow, FixedWindow},
	}
	for limit, algs := range accepted {
		for _, a := range algs {
			t.Run(fmt.Sprintf("limit=%v/algorithm=%v", limit, a), func(t *testing.T) {
				l, _ := newFrozen(t, Config{Algorithm: a, Limit: limit})
				burst := limit.burst()
				d := l.Take("k", burst)
				require.True(t, d.Allowed, "a fresh key has its burst")
				require.Equal(t, burst, d.Limit)
				require.Zero(t, d.Remaining)
				require.False(t, l.Allow("k"), "and no more")
			})
		}
	}
}

func TestNew_RefusesWhatItCannotKeepExactly(t *testing.T) {
	type refusal struct {
		algs   []Algorithm
		limit  Limit
		field  string
		reason string
	}
	refused := []refusal{
		{bucketAlgorithms, Per(1, year).WithBurst(147), "Limit.Burst",
			"147 at 1 per 8760h0m0s takes 147 years to refill; want at most 146 years, 2^62 ns"},
		{bucketAlgorithms, PerDay(1).WithBurst(math.MaxInt32), "Limit.Burst",
			"2147483647 at 1 per 24h0m0s takes 5.88e+06 years to refill; want at most 146 years, 2^62 ns"},
		{bucketAlgorithms, Per(2, math.MaxInt64).WithBurst(math.MaxInt32), "Limit.Burst",
			"2147483647 at 2 per 2562047h47m16.854775807s takes 3.14e+11 years to refill; want at most 146 years, 2^62 ns"},
		{[]Algorithm{GCRA, LeakyBucket}, Per(5, 1), "Limit.Rate",
			"5 per 1ns is more units than a 64-bit word can keep exactly until 2043; want at most 4"},
		{[]Algorithm{GCRA, LeakyBucket}, Per(41, 10), "Limit.Rate",
			"41 per 10ns is more units than a 64-bit word can keep exactly until 2043; want at most 40"},
		{[]Algorithm{TokenBucket}, Per(4, 1), "Limit.Rate",
			"4 per 1ns is more units than a 64-bit word can keep exactly until 2043; want at most 3"},
		{[]Algorithm{SlidingLog}, PerDay(1<<20 + 1), "Limit.Rate",
			"1048577 with sliding-log, which keeps 8 bytes a unit for every key; want at most 1048576, or sliding-window or gcra, which keep 8 bytes a key"},
		{[]Algorithm{SlidingWindow}, Per(2, 1), "Limit.Rate",
			"2 per 1ns: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most 1"},
		{[]Algorithm{FixedWindow}, Per(4, 1), "Limit.Rate",
			"4 per 1ns: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most 3"},
		{algorithms, Unlimited.WithBurst(3), "Limit.Burst",
			fmt.Sprintf("3 with an unlimited rate, under which no burst would hold; want 0, or a rate below %d", math.MaxInt)},
	}
	for _, a := range windowAlgorithms {
		refused = append(refused,
			refusal{[]Algorithm{a}, PerSecond(10).WithBurst(9), "Limit.Burst",
				fmt.Sprintf("9 with %v; a window algorithm admits at most the rate at once, want 0 or 10", a)},
			refusal{[]Algorithm{a}, PerSecond(10).WithBurst(11), "Limit.Burst",
				fmt.Sprintf("11 with %v; a window algorithm admits at most the rate at once, want 0 or 10", a)})
	}
	for _, r := range refused {
		for _, a := range r.algs {
			t.Run(fmt.Sprintf("limit=%v/algorithm=%v", r.limit, a), func(t *testing.T) {
				requireConfigError(t, Config{Algorithm: a, Limit: r.limit}, r.field, r.reason)
			})
		}
	}
}

// A limit is kept or refused, but never panics or divides by zero in New.
func TestNew_RandomLimitsNeverPanic(t *testing.T) {
	r := seeded.Rand(t)
	accepted := 0
	for range 20_000 {
		limit, a := anyLimit(r), algorithms[r.IntN(len(algorithms))]
		l, err := New(Config{Algorithm: a, Limit: limit, Shards: 1})
		if err == nil {
			accepted++
			l.WorstCase(time.Duration(r.Int64()))
		}
	}
	require.Greater(t, accepted, 1000, "the generator must reach past validation")
}

// TestLimit_ZeroLimitInADump: a struct with a limit that nobody has set can be written,
// and read again; and New refuses it still.
func TestLimit_ZeroLimitInADump(t *testing.T) {
	type config struct{ Limit Limit }
	dump, err := json.Marshal(map[string]config{"set": {PerSecond(5)}, "unset": {}})
	require.NoError(t, err)
	require.JSONEq(t, `{"set": {"Limit": "5/s"}, "unset": {"Limit": ""}}`, string(dump))
	back := map[string]config{"unset": {PerSecond(9)}}
	require.NoError(t, json.Unmarshal(dump, &back))
	require.Equal(t, map[string]config{"set": {PerSecond(5)}, "unset": {}}, back)
	_, err = New(Config{Limit: back["unset"].Limit})
	require.ErrorContains(t, err, "Limit.Period")
	_, err = ParseLimit("")
	require.Error(t, err, "a limit by itself is not empty")
}

// TestLimit_ShareByHand.
func TestLimit_ShareByHand(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		n     int
		want  Limit
	}{
		{PerSecond(10), 3, PerSecond(3)},
		{PerSecond(10).WithBurst(5), 3, PerSecond(3).WithBurst(1)},
		{PerSecond(10).WithBurst(2), 3, PerSecond(3).WithBurst(1)},
		{PerSecond(10), 10, PerSecond(1)},
		{PerDay(5), 10, Per(1, 2*day)},
		{PerDay(5).WithBurst(40), 10, Per(1, 2*day).WithBurst(4)},
		{Per(3, 10), 7, Per(1, 24)}, // 23.3 ns
		{PerDay(1), math.MaxInt, Per(1, math.MaxInt64)},
		{PerSecond(10), 1, PerSecond(10)},
		{PerSecond(10), 0, PerSecond(10)},
		{PerSecond(10), -3, PerSecond(10)},
		{AtOnce(10, time.Minute), 3, AtOnce(3, time.Minute)},
		{AtOnce(2, time.Minute), 3, AtOnce(1, time.Minute)},
		{AtOnce(0, time.Minute), 3, AtOnce(0, time.Minute)},
		{Unlimited, 3, Unlimited},
		{DenyAll, 3, DenyAll},
		{Limit{}, 3, Limit{}},
		{PerSecond(-5), 3, PerSecond(-5)},
	} {
		require.Equal(t, c.want, c.limit.Share(c.n), "%v by %d", c.limit, c.n)
	}
}

// TestLimit_SharesAddUpToNoMore than the limit, in the long run and at once, except a unit
// each.
func TestLimit_SharesAddUpToNoMore(t *testing.T) {
	r := seeded.Rand(t)
	for range 20_000 {
		l := anyLimit(r)
		n := 1 + int(r.Uint64()>>(r.UintN(63)+1)&math.MaxInt)>>1
		if l.Rate <= 0 || l.Rate == math.MaxInt {
			continue
		}
		share := l.Share(n)
		require.Nil(t, share.validate(), "%v by %d", l, n)
		all := new(big.Int).Mul(big.NewInt(int64(share.burst())), big.NewInt(int64(n)))
		require.LessOrEqual(t, all.Cmp(big.NewInt(int64(max(l.burst(), n)))), 0, "%v by %d is %v", l, n, share)
		if l.Burst == limittext.AtOnce {
			require.Equal(t, AtOnce(share.Rate, l.Period), share)
			continue
		}
		if share.Period == math.MaxInt64 && l.Period != share.Period {
			continue // 292 years
		}
		// n * share.Rate/share.Period <= l.Rate/l.Period
		all.Mul(big.NewInt(int64(share.Rate)), big.NewInt(int64(n)))
		all.Mul(all, big.NewInt(int64(l.Period)))
		whole := new(big.Int).Mul(big.NewInt(int64(l.Rate)), big.NewInt(int64(share.Period)))
		require.LessOrEqual(t, all.Cmp(whole), 0, "%v by %d is %v", l, n, share)
	}
}

func TestLimit_Capacity(t *testing.T) {
	assert.Equal(t, 10, PerSecond(10).Capacity())
	assert.Equal(t, 3, PerSecond(10).WithBurst(3).Capacity())
	assert.Equal(t, 30, PerSecond(10).WithBurst(30).Capacity())
	assert.Equal(t, 3, AtOnce(3, time.Hour).Capacity())
	assert.Equal(t, math.MaxInt, Unlimited.Capacity())
	assert.Equal(t, 0, DenyAll.Capacity())
	assert.Equal(t, 0, DenyAll.WithBurst(5).Capacity(), "denies everything, whatever the burst")
	rng := seeded.Rand(t)
	for range 1000 {
		c := randomConfig(rng, variants[rng.IntN(len(variants))])
		if l, err := New(c); err == nil {
			require.Equal(t, l.Key("k").Peek(0).Limit, c.Limit.Capacity(), "%+v", c.Limit)
		}
	}
}

func TestConfig_RefillTime(t *testing.T) {
	interval := Config{Algorithm: TokenBucketInterval, Limit: PerSecond(4).WithBurst(2)}
	for _, c := range []struct {
		conf  Config
		units int
		want  time.Duration
	}{
		{Config{Limit: PerSecond(4)}, 1, 250 * ms},
		{Config{Limit: PerSecond(4).WithBurst(8)}, 8, 2 * sec},
		{Config{Limit: PerSecond(3)}, 1, 333_333_334},
		{Config{Limit: PerSecond(3)}, 3, sec},
		{Config{Limit: PerSecond(4)}, 0, 0},
		{Config{Limit: PerSecond(4)}, -1, 0},
		{Config{Limit: Unlimited}, 5, 0},
		{Config{Limit: DenyAll}, 5, Never},
		{Config{Limit: DenyAll}, 0, 0},
		{Config{Limit: Limit{}}, 1, Never},
		{Config{Limit: Per(1, math.MaxInt64)}, 2, Never},
		{Config{Limit: Per(1, math.MaxInt64)}, 1, math.MaxInt64},
		{interval, 2, sec},
		{interval, 1, 500 * ms},
		{Config{Algorithm: TokenBucketInterval, Limit: PerSecond(4).WithBurst(8)}, 8, 2 * sec},
		{Config{Algorithm: FixedWindow, Limit: PerMinute(7)}, 1, time.Minute},
		{Config{Algorithm: SlidingWindow, Limit: PerMinute(7)}, 7, time.Minute},
		{Config{Algorithm: SlidingLog, Limit: PerMinute(7)}, 7, time.Minute},
	} {
		assert.Equal(t, c.want, c.conf.RefillTime(c.units), "%v %v %d", c.conf.Algorithm, c.conf.Limit, c.units)
	}
}

// TestRefillTime_OfABucketIsItsReset: what is spent at once comes back in that time, to the
// nanosecond, since it is rounded up.
func TestRefillTime_OfABucketIsItsReset(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		c := Config{Algorithm: []Algorithm{GCRA, TokenBucket, LeakyBucket}[rng.IntN(3)], Clock: NewManualClock(time.Unix(0, 0))}
		c.Limit = randomLimit(rng, c.Algorithm)
		l, err := New(c)
		if err != nil {
			continue
		}
		n := 1 + rng.IntN(c.Limit.burst())
		require.Equal(t, l.Take("k", n).ResetAfter, c.RefillTime(n), "%v of %v", n, c.Limit)
	}
}

// TestAtOnce_IsOfInFlightAlone: no other algorithm takes it for a rate, wherever a limit comes from.
func TestAtOnce_IsOfInFlightAlone(t *testing.T) {
	for i := range algorithmNames {
		a := Algorithm(i)
		lim, err := New(Config{Algorithm: a, Limit: AtOnce(2, time.Minute)})
		if a == InFlight {
			require.NoError(t, err)
			require.Equal(t, AtOnce(2, time.Minute), lim.Config().Limit)
			for _, want := range []error{nil, nil, ErrDenied} {
				_, err = lim.Acquire("k", 1)
				require.ErrorIs(t, err, want)
			}
			continue
		}
		want := fmt.Sprintf(`sluice: Limit: "2 at once, lease 1m" with %v, which counts calls over time; want Algorithm: InFlight, or a limit such as sluice.PerMinute(2)`, a)
		require.EqualError(t, err, want)
		lim = mustNew(t, Config{Algorithm: a, Limit: PerMinute(2)})
		require.Error(t, lim.SetLimit(AtOnce(2, time.Minute)), "%v", a)
		require.Error(t, lim.Key("k").SetLimit(AtOnce(2, time.Minute)), "%v", a)
		_, err = lim.Key("k").WithLimit(AtOnce(2, time.Minute))
		require.Error(t, err, "%v", a)
		require.Error(t, lim.SetLimit(AtOnce(0, time.Minute)), "%v", a)
		require.NoError(t, lim.SetLimit(DenyAll))
	}
	_, err := New(Config{Algorithm: InFlight, Limit: AtOnce(2, 0)})
	require.ErrorContains(t, err, "Limit.Period")
	_, err = New(Config{Algorithm: InFlight, Limit: AtOnce(-2, 1)})
	require.ErrorContains(t, err, "Limit.Rate")
	_, err = New(Config{Algorithm: InFlight, Limit: AtOnce(math.MaxInt, 1)})
	require.ErrorContains(t, err, "Limit.Burst")
}

// TestAtOnce_IsASnapshotsLimit, of the limiter and of a key.
func TestAtOnce_IsASnapshotsLimit(t *testing.T) {
	c := Config{Algorithm: InFlight, Limit: AtOnce(3, time.Minute), Hash: HashStable, Clock: NewManualClock(start)}
	from, to := mustNew(t, c), mustNew(t, c)
	require.NoError(t, from.Key("own").SetLimit(AtOnce(5, time.Minute)))
	for _, key := range []string{"k", "own"} {
		_, err := from.Acquire(key, 2)
		require.NoError(t, err)
	}
	var b bytes.Buffer
	require.NoError(t, from.Snapshot(&b))
	require.NoError(t, to.Restore(&b))
	require.Equal(t, 1, to.Key("k").Peek(0).Remaining)
	require.Equal(t, 3, to.Key("own").Peek(0).Remaining)
	require.Equal(t, AtOnce(5, time.Minute), to.Key("own").Limit())
}
