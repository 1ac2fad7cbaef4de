package sluice

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

// ask makes a random call on two limiters that differ in their leniency alone, and
// hands both decisions, or both answers, to the checks.
func ask(rng *rand.Rand, strict, lenient *Limiter, check func(cost int, strict, lenient Decision), pass func(strict, lenient bool)) {
	name := []string{"a", "b", "c"}[rng.IntN(3)]
	cost := rng.IntN(int(strict.policyOf(0).burst)+3) - 1
	if rng.IntN(2) == 0 {
		cost = min(cost, 1)
	}
	now := strict.clock.Now() - rng.Int64N(3)*rng.Int64N(1e9)
	switch k, m := strict.Key(name), lenient.Key(name); rng.IntN(8) {
	case 0:
		check(cost, strict.Take(name, cost), lenient.Take(name, cost))
	case 1:
		check(cost, k.Take(cost), m.Take(cost))
	case 2:
		check(cost, k.TakeAt(now, cost), m.TakeAt(now, cost))
	case 3:
		check(cost, strict.Peek(name, cost), lenient.Peek(name, cost))
	case 4:
		check(cost, k.Peek(cost), m.Peek(cost))
	case 5:
		pass(strict.AllowN(name, cost), lenient.AllowN(name, cost))
	case 6:
		pass(k.AllowAt(now, cost), m.AllowAt(now, cost))
	default:
		pass(strict.Allow(name), lenient.Allow(name))
	}
}

// TestShadow_LeavesWhatEnforcementWouldHave: beside a limiter that enforces, on the
// same random calls, it says the same except for the verdict, and its tables are equal.
func TestShadow_LeavesWhatEnforcementWouldHave(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		clock := NewManualClock(start)
		c.Clock, c.Hash, c.Stats, c.MaxKeys, c.Overflow = clock, HashStable, rng.IntN(2) == 0, 2, Overflow(rng.IntN(3))
		strict := mustNew(t, c)
		c.Shadow = true
		shadow := mustNew(t, c)
		denials := 0
		for range 5000 {
			ask(rng, strict, shadow, func(_ int, want, got Decision) {
				if !want.Allowed {
					denials++
				}
				want.Allowed, want.WouldDeny = true, !want.Allowed
				require.Equal(t, want, got)
			}, func(_, allowed bool) { require.True(t, allowed) })
			require.Equal(t, snapshot(strict), snapshot(shadow))
			clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / int64(strict.policyOf(0).burst))))
		}
		require.Positive(t, denials)
		want, got := strict.Stats(), shadow.Stats()
		want.Admitted, want.Denied, want.WouldDeny = want.Admitted+want.Denied, 0, want.Denied
		require.Equal(t, want, got)
		require.Equal(t, c.Stats, got.WouldDeny > 0)
	})
}

// TestSoft_IsALimitThatSaysSo: beside a limiter whose limit is higher by the soft
// units, on the same random calls, it decides the same, and flags what is beyond.
func TestSoft_IsALimitThatSaysSo(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		clock := NewManualClock(start)
		c.Clock, c.Hash = clock, HashStable
		c.Soft = 1 + rng.IntN(2*c.Limit.burst())
		hard := c
		hard.Soft = 0
		if c.Algorithm == GCRA || c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
			hard.Limit = c.Limit.WithBurst(c.Limit.burst() + c.Soft)
		} else {
			hard.Limit.Rate += c.Soft
		}
		strict, lenient := mustNew(t, hard), mustNew(t, c)
		flagged, plain := 0, 0
		for range 5000 {
			ask(rng, strict, lenient, func(cost int, want, got Decision) {
				after := want.Remaining
				if cost == 0 {
					after-- // the one unit that is asked about
				}
				want.OverSoft = want.Allowed && after < c.Soft
				want.Limit -= c.Soft
				want.Remaining = max(0, want.Remaining-c.Soft)
				require.Equal(t, want, got, "cost %d", cost)
				if got.OverSoft {
					flagged++
				} else if got.Allowed {
					plain++
				}
			}, func(want, got bool) { require.Equal(t, want, got) })
			clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / int64(c.Limit.burst()))))
			if rng.IntN(50) == 0 {
				clock.Advance(strict.Peek("a", 0).ResetAfter) // it is fresh again
			}
		}
		require.Equal(t, snapshot(strict), snapshot(lenient))
		require.Positive(t, flagged)
		require.Positive(t, plain)
		require.Equal(t, strict.WorstCase(time.Hour), lenient.WorstCase(time.Hour))
	})
}

// TestSoft_ByHand: two, and one beyond.
func TestSoft_ByHand(t *testing.T) {
	for _, a := range algorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerHour(2), Soft: 1})
		require.Equal(t, 2, l.Peek("k", 0).Limit)
		d := l.Take("k", 2)
		require.True(t, d.Allowed && !d.OverSoft && d.Remaining == 0, "%v %+v", a, d)
		require.True(t, l.Peek("k", 0).OverSoft, "the next unit would be beyond the limit")
		d = l.Take("k", 1)
		require.True(t, d.Allowed && d.OverSoft && d.Remaining == 0, "%v %+v", a, d)
		d = l.Take("k", 1)
		require.False(t, d.Allowed || d.OverSoft, "%v", a)
		require.False(t, l.AllowN("other", 4), "%v", a)
		require.True(t, l.AllowN("other", 3), "%v", a)
	}
}

// TestShadow_AdmitsWhateverTheCost, and notes whom it would have denied.
func TestShadow_AdmitsWhateverTheCost(t *testing.T) {
	for _, limit := range []Limit{PerHour(1), DenyAll, Unlimited} {
		l, _ := newFrozen(t, Config{Limit: limit, Shadow: true, TopDenied: 3})
		for _, cost := range []int{-1, 0, 1, 2, 1 << 30} {
			require.True(t, l.AllowN("k", cost))
			require.True(t, l.Take("k", cost).Allowed)
			require.True(t, l.Peek("k", cost).Allowed)
		}
		require.True(t, l.Take("k", -1).WouldDeny)
		require.Equal(t, limit != Unlimited, l.Take("k", 1).WouldDeny)
		for range 3000 {
			l.Allow("k")
		}
		require.True(t, limit == Unlimited || len(l.TopDenied()) == 1, "%v", limit)
	}
}

// TestTakeAll_ShadowAndSoft: a charge in shadow keeps nothing from being made, and is
// not made where it would be denied.
func TestTakeAll_ShadowAndSoft(t *testing.T) {
	for _, a := range algorithms {
		testTakeAllShadowAndSoft(t, a)
	}
}

func testTakeAllShadowAndSoft(t *testing.T, a Algorithm) {
	t.Helper()
	shadow, _ := newFrozen(t, Config{Algorithm: a, Limit: PerHour(1), Shadow: true, Stats: true})
	soft, _ := newFrozen(t, Config{Limit: PerHour(1), Soft: 1, Stats: true})
	both := []Charge{{shadow.Key("a"), 1}, {soft.Key("b"), 1}}
	require.Equal(t, AllDecision{Allowed: true, Denied: -1}, TakeAll(both...))
	before := snapshot(shadow)
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, WouldDeny: true, OverSoft: true}, TakeAll(both...))
	require.Equal(t, AllDecision{Denied: 1, WouldDeny: true, RetryAfter: time.Hour}, TakeAll(both...))
	require.Equal(t, before, snapshot(shadow), "%v", a)
	require.Equal(t, Stats{Keys: 1, Admitted: 3, WouldDeny: 2}, shadow.Stats())
	require.Equal(t, Stats{Keys: 1, Admitted: 2, Denied: 1}, soft.Stats())
}
