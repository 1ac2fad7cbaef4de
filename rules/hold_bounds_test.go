package rules

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHold_OfNothing: holds that no rule limits, and holds of unknown domains, take no memory and no room.
func TestHold_OfNothing(t *testing.T) {
	w := newWorld(t, Config{MaxHolds: 2}, tokenRules)
	ds := make([]Descriptor, 256)
	for i := range ds {
		ds[i] = describe(fmt.Sprint("none=", i))
	}
	bytes := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := bytes()
	for i := range 5000 {
		require.True(t, w.hold(holdOf(fmt.Sprint(i), ds...)))
		h := holdOf(fmt.Sprint(i), withHits("tokens=u", 1))
		h.Request.Domain = fmt.Sprint("unknown", i)
		require.True(t, w.hold(h))
	}
	took := bytes() - before
	t.Logf("10,000 holds of nothing take %d bytes", took)
	require.Less(t, took, int64(100_000))
	require.Empty(t, w.memory.holds.domains)
	require.Equal(t, Holds{}, w.Holds())
	require.True(t, w.hold(holdOf("a", withHits("tokens=u", 1))), "there is room")
}

// TestHold_CountsLimits: MaxHolds bounds limits that are held, not holds, and descriptors without a limit take none of it.
func TestHold_CountsLimits(t *testing.T) {
	w := newWorld(t, Config{MaxHolds: 4}, tokenRules)
	three := []Descriptor{withHits("tokens=u", 1), withHits("user=u", 1), withHits("bucket=u", 1), withHits("none=u", 1)}
	require.True(t, w.hold(holdOf("a", three...)))
	require.ErrorIs(t, w.Hold(holdOf("b", three...), &w.resp), ErrManyHolds)
	require.True(t, w.hold(holdOf("b", withHits("tokens=u", 1))))
	require.ErrorIs(t, w.Extend(holdOf("b", withHits("tokens=u", 1)), &w.resp), ErrManyHolds)
	require.True(t, w.extend(holdOf("b", withHits("tokens=u", 0))), "an extension of nothing takes no room")
	require.NoError(t, w.Settle(holdOf("a", three...)))
	require.True(t, w.extend(holdOf("b", withHits("tokens=u", 1))))
}

// TestHold_EachDomainHasItsPart: a domain that holds all it can leaves each other one its part, also of the ends that are remembered.
func TestHold_EachDomainHasItsPart(t *testing.T) {
	rule := "descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000}}]"
	w := newWorld(t, Config{MaxHolds: 40}, "domain: a\n"+rule)
	both, err := Load([]File{{Name: "a", Data: []byte("domain: a\n" + rule)}, {Name: "b", Data: []byte("domain: b\n" + rule)}}, Options{})
	require.NoError(t, err)
	require.NoError(t, w.Swap(both))
	of := func(domain string, i int) *Hold {
		h := holdOf(fmt.Sprint(i), withHits("k=v", 1))
		h.Request.Domain = domain
		return h
	}
	fill := func(domain string, from int) (held int) {
		for held = 0; held < 100; held++ {
			if err := w.Hold(of(domain, from+held), &w.resp); err != nil {
				require.ErrorIs(t, err, ErrManyHolds)
				break
			}
		}
		return held
	}
	require.Equal(t, 30, fill("a", 0), "its quarter, and the half that is for all")
	require.Equal(t, 10, fill("b", 0), "its quarter")
	for i := range 10 {
		require.NoError(t, w.Release(of("b", i)))
	}
	for i := range 30 {
		require.NoError(t, w.Release(of("a", i)))
	}
	require.NoError(t, w.Release(of("b", 0)), "it is remembered")
	require.ErrorIs(t, w.Release(of("a", 9)), ErrNotHeld, "a has its 20")
	require.NoError(t, w.Release(of("a", 10)))
	require.Equal(t, 30, fill("b", 100))
	require.Equal(t, 10, fill("a", 100))
	w.swap("domain: a\n" + rule)
	w.clock.Advance(defaultHoldTTL)
	w.Holds()
	w.swap("domain: a\n" + rule)
	require.Empty(t, w.memory.holds.domains, "nothing is held")
	require.Equal(t, 40, fill("a", 200))
}

// TestHold_EndsAreSmall: of a hold that has ended only what a repeated call is compared with stays.
func TestHold_EndsAreSmall(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	ds := []Descriptor{withHits("tokens=u", 1), withHits("user=u", 1)}
	h := holdOf("a", ds...)
	h.Step = "1"
	require.True(t, w.hold(h) && w.extend(h))
	require.NoError(t, w.Settle(h))
	known := w.memory.holds.domains["d"].byID["a"]
	require.Nil(t, known.limits)
	require.Nil(t, known.steps)
	require.Zero(t, w.memory.holds.domains["d"].limits)
}

// TestHold_LapseInBatches: if very many holds lapse at one instant, no call ends more than a part of them; but a call about one
// of them finds it gone.
func TestHold_LapseInBatches(t *testing.T) {
	const n = 20_000
	w := newWorld(t, Config{}, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 100000}}]")
	for i := range n {
		h := holdOf(fmt.Sprint(i), withHits("k=v", 1))
		h.GiveBack = true
		require.True(t, w.hold(h))
	}
	h := holdOf("stream", withHits("k=v", 1))
	h.GiveBack, h.TTL = true, 5*time.Minute
	require.True(t, w.hold(h))
	for range 3 * lapseBatch {
		require.True(t, w.extend(h))
	}
	w.clock.Advance(defaultHoldTTL)
	require.ErrorIs(t, w.Settle(holdOf(fmt.Sprint(n-1), withHits("k=v", 1))), ErrNotHeld)
	require.ErrorIs(t, w.Extend(holdOf(fmt.Sprint(n-2), withHits("k=v", 1)), &w.resp), ErrNotHeld)
	require.True(t, w.hold(holdOf(fmt.Sprint(n-3), withHits("k=v", 1))), "its id is free")
	calls, before := 0, w.reservations()
	for ; w.memory.holds.open > 1; calls++ {
		w.left("k=v")
		left := w.reservations()
		require.LessOrEqual(t, before-left, lapseBatch, "in one call")
		before = left
	}
	require.Greater(t, calls, n/lapseBatch)
	require.Equal(t, 100_000-1, w.left("k=v"))
	require.EqualValues(t, n+1, w.Holds().Lapsed)
}

// reservations counts what is held.
func (w *world) reservations() (n int) {
	for _, h := range w.memory.holds.ends {
		for i := range h.limits {
			n += len(h.limits[i].reservations)
		}
	}
	return n
}

// TestHold_EndIsRemembered: an id is refused until its hold would have lapsed, and for ten minutes at least.
func TestHold_EndIsRemembered(t *testing.T) {
	for ttl, remembered := range map[time.Duration]time.Duration{time.Minute: rememberHolds, time.Hour: time.Hour} {
		w := newWorld(t, Config{}, tokenRules)
		h := holdOf("a", withHits("tokens=u", 1))
		h.TTL = ttl
		require.True(t, w.hold(h))
		require.NoError(t, w.Settle(h))
		w.clock.Advance(remembered - 1)
		require.ErrorIs(t, w.Hold(h, &w.resp), ErrEndedHold)
		require.NoError(t, w.Settle(h))
		w.clock.Advance(1)
		require.ErrorIs(t, w.Settle(h), ErrNotHeld)
		require.True(t, w.hold(h))
	}
}

// TestHold_KnowsItsSteps: a hold knows 1,024 extensions by their steps, as in Redis.
func TestHold_KnowsItsSteps(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	extend := func(step string) *Hold {
		h := holdOf("a", withHits("tokens=u", 0))
		h.Step = step
		return h
	}
	require.True(t, w.hold(holdOf("a", withHits("tokens=u", 1))))
	for i := range maxSteps {
		require.True(t, w.extend(extend(fmt.Sprint(i))))
	}
	require.ErrorIs(t, w.Extend(extend("more"), &w.resp), ErrManyHolds)
	require.True(t, w.extend(extend("0")))
	require.True(t, w.extend(extend("")))
}
