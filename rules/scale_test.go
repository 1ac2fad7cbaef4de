package rules

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// wide skips what needs an int of 64 bits; the rules are then refused.
func wide(t *testing.T, rule string) {
	if math.MaxInt > math.MaxInt32 {
		return
	}
	_, err := Load([]File{{Name: "f", Data: []byte(rule)}}, Options{})
	require.ErrorContains(t, err, "is more than 2147483646; want a smaller one")
	t.SkipNow()
}

// TestScale_Exact: a budget beyond 2^32 units is counted to the unit, under every algorithm, and the answers are in
// the words of requests_per_unit.
func TestScale_Exact(t *testing.T) {
	const million = 1_000_000
	rule := "domain: d\nsluice: {atomic: %t}\ndescriptors:\n- {key: k, rate_limit: {unit: month, requests_per_unit: 50_000, scale: 1_000_000%s}}\n"
	wide(t, fmt.Sprintf(rule, false, ""))
	for _, more := range []string{"", ", algorithm: fixed-window", ", algorithm: sliding-window", ", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: leaky-bucket", ", count_denied: false"} {
		for _, atomic := range []bool{false, true} {
			w := newWorld(t, Config{}, fmt.Sprintf(rule, atomic, more))
			ask := func(hits uint64) Status { return w.ask(withHits("k=x", hits)).Statuses[0] }
			st := ask(49_999 * million)
			require.Equal(t, OK, st.Code, more)
			require.EqualValues(t, 50_000, st.Requests)
			require.EqualValues(t, 1, st.Remaining)
			st = ask(1)
			require.EqualValues(t, 0, st.Remaining, "less than one is left")
			require.Equal(t, OK, ask(million-2).Code)
			require.Equal(t, OK, ask(1).Code, "the last unit")
			st = ask(1)
			require.Equal(t, OverLimit, st.Code, more)
			require.Equal(t, OverLimit, ask(math.MaxUint64).Code)
			require.Equal(t, OverLimit, ask(1<<35).Code)
			w.clock.Advance(61 * 24 * time.Hour)
			require.Equal(t, OverLimit, ask(50_000*million+1).Code, "%s: no hits count for less", more)
		}
	}
}

// TestScale_Soft: burst and soft are in the words of requests_per_unit, too.
func TestScale_Soft(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 10, scale: 100, burst: 2, soft: 1, algorithm: gcra}}\n")
	require.Equal(t, OK, w.ask(withHits("k=x", 300)).Code)
	require.Equal(t, OverLimit, w.ask(withHits("k=x", 1)).Code)
	require.Equal(t, "d.k: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false, scale: 100, algorithm: gcra, burst: 200, soft: 100", w.now.Load().set.rules[0].String())
}

// TestScale_TooMuch: a limit that cannot be counted is an error that says what could be.
func TestScale_TooMuch(t *testing.T) {
	for text, want := range map[string]string{
		"unit: hour, requests_per_unit: 2_000_000_000, scale: 1_000_000_000":                                  "f:3:78: d.k: scale is 1000000000, and in units requests_per_unit: 2000000000000000000 per 1h0m0s: the count leaves too few of 64 bits for the number of the window, which would run out before 2043; want at most 17592186044415",
		"unit: second, requests_per_unit: 4_000, scale: 1_000_000_000, algorithm: gcra":                       "f:3:72: d.k: scale is 1000000000, and in units requests_per_unit: 4000000000000 per 1s is more units than a 64-bit word can keep exactly until 2043; want at most 4000000000",
		"unit: day, requests_per_unit: 4, burst: 2_000_000_000, scale: 900_000_000, soft: 5, algorithm: gcra": "",
	} {
		_, err := Load([]File{{Name: "f", Data: []byte("domain: d\ndescriptors:\n- {key: k, rate_limit: {" + text + "}}\n")}}, Options{})
		require.Error(t, err, text)
		if math.MaxInt > math.MaxInt32 && want != "" {
			require.Equal(t, want, err.Error())
		}
		require.ErrorContains(t, err, "d.k: scale is ")
	}
}

// TestScale_Reload: counts stay when scale changes, and over a restart.
func TestScale_Reload(t *testing.T) {
	rule := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: month, requests_per_unit: %d, scale: %d}}\n"
	wide(t, fmt.Sprintf(rule, 50, 1_000_000_000))
	for _, scales := range [][2]int{{1, 2}, {1_000_000_000, 999_999_999}} {
		w := newWorld(t, Config{}, fmt.Sprintf(rule, 50, scales[0]))
		w.ask(withHits("k=x", 40*uint64(scales[0])))
		require.NoError(t, w.Swap(mustLoad(t, fmt.Sprintf(rule, 50, scales[1]))))
		left := (50*scales[1] - 40*scales[0]) / scales[1]
		require.Equal(t, left, w.left("k=x"))
		again, err := w.restored(fmt.Sprintf(rule, 50, scales[1]), w.snapshot())
		require.NoError(t, err)
		require.Equal(t, left, again.left("k=x"))
	}
}

// TestScale_Stored: a store is not asked for more than it counts.
func TestScale_Stored(t *testing.T) {
	rule := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: month, requests_per_unit: %d, scale: 1_000_000}}\n"
	clock := sluice.NewManualClock(start)
	c := Config{Clock: clock, Store: newModelStore(clock)}
	e, err := New(mustLoad(t, fmt.Sprintf(rule, 2000)), c)
	require.NoError(t, err)
	w := world{tb: t, clock: clock, Engine: e}
	require.Equal(t, OK, w.ask(withHits("k=x", 1_999_000_001)).Code)
	require.Zero(t, w.left("k=x"))
	require.Equal(t, OK, w.ask(withHits("k=x", 999_999)).Code)
	require.Equal(t, OverLimit, w.ask(withHits("k=x", 1)).Code)
	wide(t, fmt.Sprintf(rule, 5000))
	_, err = New(mustLoad(t, fmt.Sprintf(rule, 5000)), c)
	require.EqualError(t, err, "test.yaml:3:24: d.k: requests_per_unit times scale is 5000000000, of which a store counts at most 4294967295; want a smaller scale, or counts in memory")
}

// TestMaxDebt: max_debt is in the words of requests_per_unit, and without it ten times the limit, or the burst.
func TestMaxDebt(t *testing.T) {
	for limit, want := range map[string]uint64{
		"requests_per_unit: 5":                                        50,
		"requests_per_unit: 5, burst: 7, algorithm: gcra":             70,
		"requests_per_unit: 5, burst: 2, algorithm: gcra":             50,
		"requests_per_unit: 5, scale: 10":                             500,
		"requests_per_unit: 5, scale: 10, max_debt: 3":                30,
		"requests_per_unit: 5, max_debt: 0":                           0,
		"requests_per_unit: 5, max_debt: 4294967295, scale: 10000000": 4294967295 * 10000000,
	} {
		set := mustLoad(t, oneRule("{unit: year, "+limit+"}"))
		require.Equal(t, want, set.Match("d", entries("k=v")).debt, limit)
	}
}
