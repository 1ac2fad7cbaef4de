package rules

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStats_Evicted: live keys that make room count, those of units and those of a rule's limiter.
func TestStats_Evicted(t *testing.T) {
	w := newWorld(t, Config{MaxKeys: 10}, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}\n- {key: own, rate_limit: {unit: day, requests_per_unit: 9, algorithm: gcra}}\n")
	for _, key := range []string{"k", "own"} {
		before := w.Stats()
		for i := range 100 {
			w.one(fmt.Sprint(key, "=", i))
		}
		after := w.Stats()
		evicted := after.Evicted - before.Evicted
		require.GreaterOrEqual(t, evicted, uint64(90), key)
		require.EqualValues(t, 100, evicted+uint64(after.Keys[Day]+after.Keys[UnknownUnit]-before.Keys[Day]-before.Keys[UnknownUnit]), key)
		require.Zero(t, after.Untracked)
	}
}

// TestSeries_OnlyRefunded: overrides are told of as soon as there is anything to tell.
func TestSeries_OnlyRefunded(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\n")
	require.Empty(t, w.Series())
	d := override("k=a", 5, Minute)
	d.Refund = true
	w.ask(d)
	require.EqualValues(t, 1, w.series("override").Refunded)
	require.Len(t, w.Series(), 1)
}
