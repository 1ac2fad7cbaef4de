package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	inFlightRules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: in_flight}}\n"
	atOnceRules   = "domain: d\ndescriptors:\n- {key: k, rate_limit: {at_once: 2, lease: 1m}}\n"
)

// TestInFlight: so many hits are there at once, and come back when they are given back, or by themselves after a unit.
func TestInFlight(t *testing.T) {
	for _, spelling := range []string{inFlightRules, atOnceRules} {
		testInFlight(t, spelling)
	}
}

func testInFlight(t *testing.T, spelling string) {
	w := newWorld(t, Config{}, spelling)
	back := withHits("k=x", 1)
	back.Refund = true
	for range 3 {
		require.Equal(t, OK, w.one("k=x").Code)
		require.Equal(t, OK, w.one("k=x").Code)
		require.Equal(t, OverLimit, w.one("k=x").Code)
		for range 3 {
			require.Equal(t, OK, w.ask(back).Code, "of the one that was denied, too")
		}
		require.Equal(t, 2, w.left("k=x"))
	}
	w.ask(withHits("k=x", 2))
	w.clock.Advance(59 * time.Second)
	require.Equal(t, 0, w.left("k=x"))
	w.clock.Advance(61 * time.Second)
	require.Equal(t, 2, w.left("k=x"))
	require.Equal(t, "test.yaml:3: d.k: at most 2 at once; one that is not given back comes back after 1m0s at the earliest, and 2m0s at the latest", w.now.Load().set.rules[0].Explain())
	require.Equal(t, "d.k: at_once: 2, lease: 1m0s, shadow_mode: false, quota_mode: false", w.now.Load().set.rules[0].String())
}

// TestInFlight_Late: a hit that is given back after it has come back by itself takes the place of another one, as a refund has no
// owner; deploy/envoy/README.md says so.
func TestInFlight_Late(t *testing.T) {
	w := newWorld(t, Config{}, inFlightRules)
	require.Equal(t, OK, w.one("k=x").Code)
	w.clock.Advance(2 * time.Minute)
	w.ask(withHits("k=x", 2))
	require.Equal(t, 0, w.left("k=x"))
	back := withHits("k=x", 1)
	back.Refund = true
	w.ask(back)
	require.Equal(t, 1, w.left("k=x"))
}

// TestSet_InFlight: the rule of units in flight that applies to a request is found, of several the one whose units lapse first.
func TestSet_InFlight(t *testing.T) {
	w := newWorld(t, Config{}, `domain: d
descriptors:
- {key: k, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: in_flight}}
- {key: k, value: none, rate_limit: {unlimited: true}}
- {key: s, rate_limit: {unit: second, requests_per_unit: 2, algorithm: in_flight}, shadow_mode: true}
- {key: r, rate_limit: {unit: minute, requests_per_unit: 2}}
`)
	set, _ := w.Set()
	path := func(domain string, keys ...string) string {
		req := Request{Domain: domain}
		for _, k := range keys {
			key, value, _ := strings.Cut(k, "=")
			req.Descriptors = append(req.Descriptors, Descriptor{Entries: []Entry{{key, value}}})
		}
		rule := set.InFlight(&req)
		if rule == nil {
			return ""
		}
		return rule.Path()
	}
	require.Empty(t, path("d"))
	require.Empty(t, path("e", "k=x"))
	require.Empty(t, path("d", "k=none", "r=x", "other=x"))
	require.Equal(t, "d.k", path("d", "r=x", "k=x"))
	require.Equal(t, "d.s", path("d", "k=x", "s=x", "k=y"))
	override := Request{Domain: "d", Descriptors: []Descriptor{{Entries: []Entry{{"k", "x"}}, Override: &Override{Requests: 1, Unit: Hour}}}}
	require.Nil(t, set.InFlight(&override), "a limit that comes with a request is no limit of units in flight")
}
