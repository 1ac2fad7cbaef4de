package sluice

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// year is a common year, for limits near the end of the clock's range.
const year = 365 * day

func TestNew_ErrorNamesFieldValueAndWhatIsAccepted(t *testing.T) {
	const noBoundaries = ", which has no boundaries to move; want 0, or fixed-window, sliding-window or token-bucket-interval"
	const counts = ", which counts what is admitted; want false, or sliding-window, sliding-log, fixed-window or fixed-window-first-charge"
	const algorithmList = "[gcra token-bucket token-bucket-interval leaky-bucket sliding-window sliding-log fixed-window fixed-window-first-charge in-flight]"
	ok := PerSecond(1)
	for _, c := range []struct {
		name   string
		config Config
		field  string
		reason string
	}{
		{"algorithm=unknown", Config{Limit: ok, Algorithm: 9}, "Algorithm",
			"Algorithm(9) is not an algorithm; want one of " + algorithmList},
		{"algorithm=max", Config{Limit: ok, Algorithm: 255}, "Algorithm",
			"Algorithm(255) is not an algorithm; want one of " + algorithmList},
		{"overflow=unknown", Config{Limit: ok, Overflow: 3}, "Overflow",
			"Overflow(3) is not an overflow policy; want one of [evict-soonest deny-new admit-new]"},
		{"hash=unknown", Config{Limit: ok, Hash: 2}, "Hash",
			"Hash(2) is not a hash; want one of [seeded stable]"},
		{"ttl=negative", Config{Limit: ok, TTL: -1}, "TTL",
			"-1ns is negative; want 0 for 10s, or a positive duration"},
		{"shards=negative", Config{Limit: ok, Shards: -3}, "Shards",
			"-3 is negative; want 0 for a default, or 1 to 65536"},
		{"shards=many", Config{Limit: ok, Shards: 65537}, "Shards",
			"65537 is too many; want 0 for a default, or 1 to 65536"},
		{"top-denied=negative", Config{Limit: ok, TopDenied: -1}, "TopDenied",
			"-1 is not a number of keys that can be kept; want 0 to 65536"},
		{"top-denied=many", Config{Limit: ok, TopDenied: 65537}, "TopDenied",
			"65537 is not a number of keys that can be kept; want 0 to 65536"},
		{"clock=nil pointer", Config{Limit: ok, Clock: (*ManualClock)(nil)}, "Clock",
			"a nil *sluice.ManualClock; want a clock that has been made, or none, which means SystemClock"},
		{"clock=nil function", Config{Limit: ok, Clock: clockFunc(nil)}, "Clock",
			"a nil sluice.clockFunc; want a clock that has been made, or none, which means SystemClock"},
		{"soft=negative", Config{Limit: ok, Soft: -1}, "Soft",
			"-1 is negative; want units beyond the limit, or 0"},
		{"soft=unlimited", Config{Limit: Unlimited, Soft: 5}, "Soft",
			"5 with a limit of unlimited, which nothing is beyond; want 0"},
		{"soft=deny-all", Config{Limit: Per(0, time.Second), Soft: 5}, "Soft",
			"5 with a limit of 0/s, which nothing is beyond; want 0"},
		{"soft=too large", Config{Limit: PerSecond(10).WithBurst(7), Soft: math.MaxInt - 10}, "Soft",
			fmt.Sprintf("%d on top of a limit of 10/s burst 7 is too large to count; want at most %d", math.MaxInt-10, math.MaxInt-11)},
		{"limit=zero", Config{}, "Limit.Period",
			"0s is not positive; want a positive duration, as in sluice.PerSecond(100)"},
		{"period=negative", Config{Limit: Per(1, -time.Second)}, "Limit.Period",
			"-1s is not positive; want a positive duration, as in sluice.PerSecond(100)"},
		{"rate=negative", Config{Limit: PerSecond(-1)}, "Limit.Rate",
			"-1 is negative; want units per period, or 0 to deny everything"},
		{"burst=negative", Config{Limit: ok.WithBurst(-1)}, "Limit.Burst",
			"-1 is negative; want 0 for the rate, or at least 1"},
		// A limit that denies or admits everything is checked like any other.
		{"period=missing/rate=0", Config{Limit: Limit{Burst: 5}}, "Limit.Period",
			"0s is not positive; want a positive duration, as in sluice.PerSecond(100)"},
		{"burst=negative/rate=0", Config{Limit: DenyAll.WithBurst(-1)}, "Limit.Burst",
			"-1 is negative; want 0 for the rate, or at least 1"},
		{"offset=negative", Config{Algorithm: FixedWindow, Limit: PerDay(1), Offset: -9 * time.Hour}, "Offset",
			"-9h0m0s is negative; want 15h0m0s, which is the same for a period of 24h0m0s"},
		{"offset=period", Config{Algorithm: FixedWindow, Limit: PerDay(1), Offset: day}, "Offset",
			"24h0m0s is not below the period of 24h0m0s; want 0s, which is the same"},
		{"offset=large", Config{Algorithm: SlidingWindow, Limit: PerDay(1), Offset: 39 * time.Hour}, "Offset",
			"39h0m0s is not below the period of 24h0m0s; want 15h0m0s, which is the same"},
		{"offset=longest", Config{Algorithm: FixedWindow, Limit: Per(1, math.MaxInt64), Offset: math.MinInt64}, "Offset",
			"-2562047h47m16.854775808s is negative; want 2562047h47m16.854775806s, which is the same for a period of 2562047h47m16.854775807s"},
		{"offset=gcra", Config{Limit: PerDay(1), Offset: time.Hour}, "Offset",
			"1h0m0s with gcra" + noBoundaries},
		{"offset=token-bucket", Config{Algorithm: TokenBucket, Limit: PerDay(1), Offset: time.Hour}, "Offset",
			"1h0m0s with token-bucket" + noBoundaries},
		{"offset=interval", Config{Algorithm: TokenBucketInterval, Limit: PerDay(1), Offset: day}, "Offset",
			"24h0m0s is not below the period of 24h0m0s; want 0s, which is the same"},
		{"offset=first-charge", Config{Algorithm: FixedWindowFirstCharge, Limit: ok, Offset: ms}, "Offset",
			"1ms with fixed-window-first-charge" + noBoundaries},
		{"offset=sliding-log", Config{Algorithm: SlidingLog, Limit: PerDay(1), Offset: time.Hour}, "Offset",
			"1h0m0s with sliding-log" + noBoundaries},
		{"block-for=negative", Config{Limit: ok, BlockFor: -1}, "BlockFor",
			"-1ns is negative; want 0 for no blocks, or a positive duration"},
		{"block-for=lowest", Config{Limit: ok, BlockFor: math.MinInt64}, "BlockFor",
			"-2562047h47m16.854775808s is negative; want 0 for no blocks, or a positive duration"},
		{"count-denied=gcra", Config{Limit: ok, CountDenied: true}, "CountDenied", "true with gcra" + counts},
		{"count-denied=token-bucket", Config{Algorithm: TokenBucket, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket" + counts},
		{"count-denied=interval", Config{Algorithm: TokenBucketInterval, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket-interval" + counts},
		{"count-denied=leaky-bucket", Config{Algorithm: LeakyBucket, Limit: Unlimited, CountDenied: true}, "CountDenied", "true with leaky-bucket" + counts},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireConfigError(t, c.config, c.field, c.reason)
		})
	}
}

// TestNew_OffsetOfALimitThatNeedsNone: a limit may be switched off, or to deny all,
// without touching the offset.
func TestNew_OffsetOfALimitThatNeedsNone(t *testing.T) {
	for _, limit := range []Limit{Unlimited, DenyAll} {
		_, err := New(Config{Algorithm: FixedWindow, Limit: limit, Offset: 15 * time.Hour})
		require.NoError(t, err)
	}
	requireConfigError(t, Config{Algorithm: FixedWindow, Limit: Unlimited, Offset: -1}, "Offset",
		"-1ns is negative; want 999.999999ms, which is the same for a period of 1s")
}

func requireConfigError(t *testing.T, c Config, field, reason string) {
	t.Helper()
	l, err := New(c)
	require.EqualError(t, err, "sluice: "+field+": "+reason)
	require.Nil(t, l)
	var configErr *ConfigError
	require.True(t, errors.As(err, &configErr))
	require.Equal(t, ConfigError{Field: field, Reason: reason}, *configErr)
}

func TestNew_ZeroFieldsTakeTheirDefaults(t *testing.T) {
	l, err := newUncrowded(Config{Limit: PerSecond(10)})
	require.NoError(t, err)
	assert.IsType(t, &gcra{}, l.policyOf(0).alg)
	assert.Equal(t, 10, burstOf(l), "burst")
	assert.Equal(t, 1<<20, sumOfShares(l), "MaxKeys")
	assert.Equal(t, OverflowEvictSoonest, l.overflow)
	assert.Equal(t, int64(10*time.Second), l.ttl)
	assert.IsType(t, &systemClock{}, l.clock)
	assert.True(t, l.timed, "sweeps on a timer")
	assert.True(t, l.direct, "seeded")
	assert.Nil(t, l.tally, "stats")
	assert.Equal(t, max(64, pow2(32*runtime.GOMAXPROCS(0))), len(l.shards))
}

func TestNew_GivenFieldsAreKept(t *testing.T) {
	clock := NewManualClock(start)
	l, err := newUncrowded(Config{
		Algorithm: LeakyBucket, Limit: PerSecond(10).WithBurst(3), MaxKeys: 100_001, Overflow: OverflowAdmitNew,
		TTL: time.Minute, Shards: 8, Clock: clock, Hash: HashStable, Stats: true,
	})
	require.NoError(t, err)
	assert.True(t, l.policyOf(0).alg.(*gcra).queue)
	assert.Equal(t, 3, burstOf(l))
	assert.Equal(t, 100_001, sumOfShares(l))
	assert.Equal(t, OverflowAdmitNew, l.overflow)
	assert.Equal(t, int64(time.Minute), l.ttl)
	assert.Same(t, clock, l.clock)
	assert.False(t, l.timed)
	assert.False(t, l.direct)
	assert.NotNil(t, l.tally)
	assert.Len(t, l.shards, 8)
}

func TestNew_EveryAlgorithmGetsItsOwn(t *testing.T) {
	for a, want := range map[Algorithm]any{
		GCRA: &gcra{}, TokenBucket: &tokenBucket{}, LeakyBucket: &gcra{},
		SlidingWindow: &slidingWindowWord{}, SlidingLog: &slidingLog{}, FixedWindow: &fixedWindow{},
	} {
		l, err := New(Config{Algorithm: a, Limit: PerSecond(10)})
		require.NoError(t, err)
		if isWide(l) {
			assert.IsType(t, want, l.policyOf(0).wide)
			assert.Nil(t, l.policyOf(0).alg)
		} else {
			assert.IsType(t, want, l.policyOf(0).alg)
			if g, ok := l.policyOf(0).alg.(*gcra); ok {
				assert.Equal(t, a == LeakyBucket, g.queue)
			}
		}
	}
}

func TestNew_ShardsAreAPowerOfTwoAndAtMostMaxKeys(t *testing.T) {
	for _, c := range []struct{ shards, maxKeys, want int }{
		{1, 0, 1}, {2, 0, 2}, {3, 0, 4}, {5, 0, 8}, {64, 0, 64}, {65, 0, 128}, {65536, 0, 65536}, {65535, -1, 65536},
		{8, 8, 8}, {8, 7, 4}, {8, 1, 1}, {64, 3, 2},
		// By default a shard has at least 1024 keys.
		{0, 1, 1}, {0, 1024, 1}, {0, 2047, 1}, {0, 2048, 2}, {0, 4096, 4}, {0, 31 * 1024, 16}, {0, 32 * 1024, 32},
	} {
		l, err := newUncrowded(Config{Limit: PerSecond(1), Shards: c.shards, MaxKeys: c.maxKeys})
		require.NoError(t, err)
		assert.Len(t, l.shards, c.want, "Shards %d, MaxKeys %d", c.shards, c.maxKeys)
		if c.maxKeys > 0 {
			assert.Equal(t, c.maxKeys, sumOfShares(l), "Shards %d: shares add up to MaxKeys", c.shards)
		}
		for i := range l.shards {
			require.Positive(t, l.shards[i].share)
		}
	}
}

func TestNew_NegativeMaxKeysMeansNoBound(t *testing.T) {
	for _, maxKeys := range []int{-1, math.MinInt} {
		l, err := newUncrowded(Config{Limit: PerSecond(1), MaxKeys: maxKeys})
		require.NoError(t, err)
		assert.Equal(t, math.MaxInt, sumOfShares(l))
	}
}

func sumOfShares(l *Limiter) (sum int) {
	for i := range l.shards {
		sum += l.shards[i].share
	}
	return sum
}

func TestNew_OneConfigMakesIndependentLimiters(t *testing.T) {
	c := Config{Limit: PerHour(1), Clock: NewManualClock(start)}
	before := c
	a, b := mustNew(t, c), mustNew(t, c)
	require.Equal(t, before, c)
	require.True(t, a.Allow("k"))
	require.False(t, a.Allow("k"))
	require.True(t, b.Allow("k"), "the second limiter knows nothing of the first")

	// A nil Clock stays nil in the caller's copy, and each limiter gets its own.
	c = Config{Limit: PerHour(1)}
	a, b = mustNew(t, c), mustNew(t, c)
	require.Nil(t, c.Clock)
	require.NotSame(t, a.clock, b.clock)
}

func TestMust_PanicsWithTheErrorOfNew(t *testing.T) {
	require.PanicsWithError(t, "sluice: Limit.Rate: -1 is negative; want units per period, or 0 to deny everything",
		func() { Must(New(Config{Limit: PerSecond(-1)})) })
	require.NotNil(t, Must(New(Config{Limit: PerSecond(1)})))
}

// textForm is what Algorithm, Overflow, Hash and Limit have in common.
type textForm interface {
	fmt.Stringer
	encoding.TextMarshaler
}

func TestEnum_TextFormsRoundTrip(t *testing.T) {
	checkEnum(t, []Algorithm{GCRA, TokenBucket, TokenBucketInterval, LeakyBucket, SlidingWindow, SlidingLog, FixedWindow, FixedWindowFirstCharge, InFlight},
		[]string{"gcra", "token-bucket", "token-bucket-interval", "leaky-bucket", "sliding-window", "sliding-log", "fixed-window", "fixed-window-first-charge", "in-flight"},
		"algorithm", "Algorithm")
	checkEnum(t, []Overflow{OverflowEvictSoonest, OverflowDenyNew, OverflowAdmitNew}, []string{"evict-soonest", "deny-new", "admit-new"},
		"overflow", "Overflow")
	checkEnum(t, []Hash{HashSeeded, HashStable}, []string{"seeded", "stable"},
		"hash", "Hash")
}

func checkEnum[T interface {
	~uint8
	textForm
}, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, values []T, names []string, kind, typeName string) {

	t.Helper()
	parse := func(s string) (v T, err error) {
		err = P(&v).UnmarshalText([]byte(s))
		return v, err
	}
	for i, v := range values {
		require.Equal(t, T(i), v, "the zero value is the default, and the order is part of the API")
		require.Equal(t, names[i], v.String())
		text, err := v.MarshalText()
		require.NoError(t, err)
		require.Equal(t, names[i], string(text))
		back, err := parse(names[i])
		require.NoError(t, err)
		require.Equal(t, v, back)
	}
	for _, bad := range []T{T(len(values)), math.MaxUint8} {
		require.Equal(t, fmt.Sprintf("%s(%d)", typeName, bad), bad.String())
		_, err := bad.MarshalText()
		require.EqualError(t, err, fmt.Sprintf("sluice: %s %d has no text form", kind, bad))
	}
	for _, bad := range []string{"", "GCRA", " gcra", "seeded ", "token_bucket", "Algorithm(0)", "0"} {
		_, err := parse(bad)
		require.EqualError(t, err, fmt.Sprintf("sluice: unknown %s %q; want one of %v", kind, bad, names))
	}
}

func TestEnum_FailedUnmarshalLeavesTheValue(t *testing.T) {
	a, o, h := FixedWindow, OverflowAdmitNew, HashStable
	require.Error(t, a.UnmarshalText([]byte("x")))
	require.Error(t, o.UnmarshalText([]byte("x")))
	require.Error(t, h.UnmarshalText([]byte("x")))
	require.Equal(t, []any{FixedWindow, OverflowAdmitNew, HashStable}, []any{a, o, h})
}

func TestConfig_JSONRoundTrip(t *testing.T) {
	type settings struct {
		Algorithm Algorithm
		Limit     Limit
		Overflow  Overflow
		Hash      Hash
		ByName    map[Algorithm]Limit // text forms serve as map keys, too
	}
	in := settings{SlidingLog, PerMinute(20), OverflowDenyNew, HashStable, map[Algorithm]Limit{FixedWindow: PerSecond(100).WithBurst(100)}}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"Algorithm":"sliding-log","Limit":"20/m","Overflow":"deny-new","Hash":"stable",
		"ByName":{"fixed-window":"100/s burst 100"}}`, string(text))
	var out settings
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	for _, bad := range []string{`{"Algorithm":"leaky"}`, `{"Limit":"20"}`, `{"Overflow":"drop"}`, `{"Hash":"md5"}`, `{"Limit":20}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &out), bad)
	}
	_, err = json.Marshal(settings{Limit: Limit{Rate: 1}})
	require.ErrorContains(t, err, "sluice: limit has no text form: Limit.Period: 0s is not positive")
}

// TestNew_PenaltiesAreAccepted up to their ends, and where there is no state to punish.
func TestNew_PenaltiesAreAccepted(t *testing.T) {
	for name, c := range everyMany {
		for _, limit := range []Limit{c.Limit, Unlimited, DenyAll} {
			for _, block := range []time.Duration{1, time.Hour, math.MaxInt64} {
				c := c
				c.Limit, c.BlockFor, c.CountDenied = limit, block, c.Algorithm.countsDenied()
				_, err := New(c)
				require.NoError(t, err, "%s %+v", name, c)
			}
		}
	}
}
