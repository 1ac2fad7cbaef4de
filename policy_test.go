package sluice

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

// ask makes a random call on two limiters that differ in their leniency alone, and
// hands both decisions, or both answers, to the checks.
func ask(rng *rand.Rand, strict, lenient *Limiter, check func(cost int, strict, lenient Decision), pass func(strict, lenient bool)) {
	name := []string{"a", "b", "c"}[rng.IntN(3)]
	cost := rng.IntN(burstOf(strict)+3) - 1
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
		check(cost, strict.Key(name).Peek(cost), lenient.Key(name).Peek(cost))
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
		shadow.hash = strict.hash
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
			clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / int64(burstOf(strict)))))
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
		if !c.Algorithm.windowed() {
			hard.Limit = c.Limit.WithBurst(c.Limit.burst() + c.Soft)
		} else {
			hard.Limit.Rate += c.Soft
		}
		strict, lenient := mustNew(t, hard), mustNew(t, c)
		lenient.hash = strict.hash
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
				clock.Advance(strict.Key("a").Peek(0).ResetAfter) // it is fresh again
			}
		}
		require.Equal(t, snapshot(strict), snapshot(lenient))
		require.Positive(t, flagged)
		require.Positive(t, plain)
		require.Equal(t, strict.WorstCase(time.Hour), lenient.WorstCase(time.Hour))
	})
}

// TestSoft_TooMuchForTheAlgorithm: the error names what is too much, the soft units or the limit itself.
func TestSoft_TooMuchForTheAlgorithm(t *testing.T) {
	const longest = 100 * year
	log, window, gcra := Config{Algorithm: SlidingLog}, Config{Algorithm: FixedWindow}, Config{}
	interval := Config{Algorithm: TokenBucketInterval}
	for _, c := range []struct {
		config        Config
		limit         Limit
		soft          int
		field, reason string
	}{
		{log, PerHour(1 << 20), 1, "Soft", "1 on top of a limit of 1048576/h is more than sliding-log can keep; want at most 0"},
		{log, PerHour(1_000_000), 1 << 17, "Soft", "131072 on top of a limit of 1000000/h is more than sliding-log can keep; want at most 48576"},
		{log, PerHour(1<<20 + 1), 1, "Limit.Rate", "1048577 with sliding-log, which keeps 8 bytes a unit for every key; want at most 1048576, or sliding-window or gcra, which keep 8 bytes a key"},
		{window, Per(3, 1), 1, "Soft", "1 on top of a limit of 3/1ns is more than fixed-window can keep; want at most 0"},
		{window, Per(2, 1), 100, "Soft", "100 on top of a limit of 2/1ns is more than fixed-window can keep; want at most 1"},
		{interval, Per(3, 1), 1, "Soft", "1 on top of a limit of 3/1ns is more than token-bucket-interval can keep; want at most 0"},
		{gcra, Per(1, longest), 1, "Soft", "1 on top of a limit of 1/876000h is more than gcra can keep; want at most 0"},
		{gcra, Per(1, longest/50), 1_000_000, "Soft", "1000000 on top of a limit of 1/17520h is more than gcra can keep; want at most 72"},
		{gcra, Per(1, longest).WithBurst(2), 7, "Limit.Burst", "2 at 1 per 876000h0m0s takes 200 years to refill; want at most 146 years, 2^62 ns"},
	} {
		c.config.Limit, c.config.Soft = c.limit, c.soft
		requireConfigError(t, c.config, c.field, c.reason)
	}
}

// TestShadow_AdmitsWhateverTheCost, and notes whom it would have denied.
func TestShadow_AdmitsWhateverTheCost(t *testing.T) {
	for _, limit := range []Limit{PerHour(1), DenyAll, Unlimited} {
		l, _ := newFrozen(t, Config{Limit: limit, Shadow: true, TopDenied: 3})
		for _, cost := range []int{-1, 0, 1, 2, 1 << 30} {
			require.True(t, l.AllowN("k", cost))
			require.True(t, l.Take("k", cost).Allowed)
			require.True(t, l.Key("k").Peek(cost).Allowed)
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

// The tests of this file put something between what a call reads of a wide key and what it
// makes of it, at the place where another goroutine would have to come in between.

// meanwhileWide does something before and after the next description reads the tail.
type meanwhileWide struct {
	wideAlgorithm
	before, after func()
}

func (m *meanwhileWide) describe(key state, now int64, cost int, charges bool) (bool, int, time.Duration, time.Duration) {
	before, after := m.before, m.after
	if m.before, m.after = nil, nil; before != nil {
		before()
		defer after()
	}
	return m.wideAlgorithm.describe(key, now, cost, charges)
}

// meanwhile makes the next description of a wide key do something before and after it.
func meanwhile(l *Limiter, before, after func()) {
	w := &meanwhileWide{wideAlgorithm: l.policyOf(0).wide, before: before, after: after}
	setAlgorithm(l, nil, w)
}

// forEveryTail runs f for each wide layout.
func forEveryTail(t *testing.T, f func(t *testing.T, c Config)) {
	t.Helper()
	forEveryLayout(t, func(t *testing.T, c Config) {
		if l, _ := newFrozen(t, c); isWide(l) {
			f(t, c)
		}
	})
}

func nothing() {}

// TestPenalty_ChargesBetweenAreSeen: what others do before the word is swapped, or between
// the two looks at it, is not lost.
func TestPenalty_ChargesBetweenAreSeen(t *testing.T) {
	forEveryTail(t, func(t *testing.T, c Config) {
		for _, late := range []bool{false, true} {
			do := func(l *Limiter, f func()) {
				if late {
					meanwhile(l, nothing, f)
				} else {
					meanwhile(l, f, nothing)
				}
			}
			l, clock := newFrozen(t, c)
			k, burst := l.Key("k"), burstOf(l)
			require.True(t, k.Allow())
			do(l, func() { require.True(t, k.AllowN(burst-1)) })
			require.False(t, k.Take(1).Allowed, "a charge was overlooked")
			k.Reset()
			require.True(t, k.AllowN(burst))
			do(l, func() { k.Refund(burst) })
			require.True(t, k.Take(1).Allowed || !late, "a refund was overlooked")
			k.Reset()
			require.True(t, k.Allow())
			do(l, func() { k.Block(time.Hour) })
			require.Equal(t, time.Hour, k.Take(1).RetryAfter, "a block was overlooked")
			want := Decision{Limit: burst, RetryAfter: time.Hour, ResetAfter: time.Hour}
			require.Equal(t, want, k.Peek(1))
			// The block is over, and becomes longer: the word is the same.
			clock.Advance(time.Hour)
			do(l, func() { k.Block(time.Hour) })
			require.Equal(t, want, k.Take(1), "a longer block was overlooked")
		}
	})
}

// TestBlockFor_RefundUnderADenial: a refund of units of the window before leaves the word of
// a wide sliding window as it is. A call that was to be denied finds room all the same, and
// does not block.
func TestBlockFor_RefundUnderADenial(t *testing.T) {
	for _, block := range []time.Duration{0, 1000 * time.Hour} {
		c := layoutNamed("sliding-window-wide").withMany()
		c.BlockFor, c.CountDenied = block, true
		l, clock := newFrozen(t, c)
		k, burst := l.Key("k"), burstOf(l)
		require.True(t, k.AllowN(burst))
		clock.Set(start.Truncate(time.Second).Add(time.Second + time.Millisecond))
		require.True(t, k.AllowN(1))
		k.Refund(1) // the word says nothing of this window, the tail all of the last
		meanwhile(l, nothing, func() { k.Refund(burst) })
		require.Equal(t, Decision{Allowed: true, Limit: burst, ResetAfter: 1999 * ms}, k.Take(burst))
	}
}

// TestBlock_TornReadOfAWideKey: a Block and an Unblock between the two looks of a reader
// leave the word of a wide sliding window as it was, and the time of the block, which the
// reader has found in the tail, is taken for the count of the window before.
func TestBlock_TornReadOfAWideKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, look := range map[string]func(Key) Decision{
			"peek": func(k Key) Decision { return k.Peek(1) },
			"take": func(k Key) Decision { return k.Take(1) },
		} {
			l, _ := newFrozen(t, c)
			if !isWide(l) {
				t.Skip("one word is read at once")
			}
			k := l.Key("k")
			require.True(t, k.Allow())
			k.Refund(1)
			meanwhile(l, func() { k.Block(time.Hour) }, k.Unblock)
			d := look(k)
			fresh := d.Allowed && d.RetryAfter == 0
			blocked := !d.Allowed && d.RetryAfter == time.Hour
			require.True(t, fresh || blocked, "%s: neither blocked nor fresh: %+v", name, d)
		}
	})
}

// TestTakeAll_LeavesABlockThatIsOver: a TakeAll that charges nothing for a key leaves it as
// it was, also if that is a block that is over. Otherwise an older time is admitted that
// was denied before, and charged as at a time that the key has long seen.
func TestTakeAll_LeavesABlockThatIsOver(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		full := mustNew(t, Config{Limit: DenyAll, Clock: clock})
		k, older := l.Key("k"), clock.Now()
		require.True(t, k.Block(time.Hour))
		clock.Advance(2 * time.Hour)
		require.False(t, k.AllowAt(older, 1))
		before := snapshot(l)
		TakeAll(Charge{k, 1}, Charge{full.Key("k"), 1})
		require.Equal(t, before, snapshot(l), "a denied TakeAll has written")
		TakeAll(Charge{k, 0})
		require.Equal(t, before, snapshot(l), "a cost of 0 has written")
		require.False(t, k.AllowAt(older, 1))
	})
}

// TestPolicy_RanksABlockThatEndedAtZero: a snapshot can have one. It is over, and its word is what
// the algorithm takes it for.
func TestPolicy_RanksABlockThatEndedAtZero(t *testing.T) {
	for _, a := range bucketAlgorithms {
		p := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1)}).policyOf(0)
		over := state{word: blockedWord(0)}
		require.Zero(t, p.blockedUntil(over))
		require.Equal(t, p.alg.rank(over.word, 5), p.rank(over, 5), "%v", a)
		require.Less(t, p.rank(state{word: blockedWord(1)}, 5), p.rank(state{word: blockedWord(2)}, 5))
	}
}
