package sluice

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestTakeAll_AllOrNone(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		other := mustNew(t, Config{Limit: PerMinute(3), Clock: clock})
		burst := burstOf(l)
		a, b, x := l.Key("a"), l.Key("b"), other.Key("x")

		require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: 1},
			TakeAll(Charge{x, 2}, Charge{a, burst - 1}, Charge{b, 1}))
		before, otherBefore := snapshot(l), snapshot(other)
		d := TakeAll(Charge{b, 1}, Charge{a, 2}, Charge{x, 1})
		require.Equal(t, AllDecision{Denied: 1, Remaining: 1, RetryAfter: a.Peek(2).RetryAfter}, d)
		d = TakeAll(Charge{x, 2}, Charge{b, 1}, Charge{a, 2})
		require.Equal(t, 0, d.Denied)
		require.Equal(t, max(a.Peek(2).RetryAfter, x.Peek(2).RetryAfter), d.RetryAfter)
		require.Equal(t, before, snapshot(l), "a denial wrote")
		require.Equal(t, otherBefore, snapshot(other), "a denial wrote")

		// Exactly the units that are there are charged.
		require.Equal(t, AllDecision{Allowed: true, Denied: -1}, TakeAll(Charge{a, 1}, Charge{b, burst - 1}, Charge{x, 1}))
		for _, k := range []Key{a, b, x} {
			require.Zero(t, k.Peek(0).Remaining)
		}
	})
}

func TestTakeAll_ChargesOfOneKeyAddUp(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k, other, burst := l.Key("k"), l.Key("other"), burstOf(l)
		half := Charge{k, burst/2 + 1}
		require.Equal(t, AllDecision{Denied: 1, Remaining: burst, RetryAfter: Never}, TakeAll(Charge{other, 1}, half, half))
		require.Zero(t, l.Len())
		require.True(t, TakeAll(half, Charge{other, 1}, Charge{k, 0}).Allowed)
		require.Equal(t, burst-half.Cost, k.Peek(0).Remaining)
		d := TakeAll(half, Charge{other, 1}, Charge{k, -1})
		require.Equal(t, 0, d.Denied, "the first charge of the key that denies")
		require.Equal(t, Never, d.RetryAfter, "a negative cost is not made up for")
		d = TakeAll(Charge{k, math.MaxInt}, Charge{other, 1}, Charge{k, math.MaxInt}, Charge{k, 2})
		require.Equal(t, AllDecision{Denied: 0, Remaining: burst - half.Cost, RetryAfter: Never}, d, "the sum does not wrap")
	})
}

// TestPeekAll_IsTheNextTakeAll: PeekAll says what TakeAll decides then, on charges of any costs for any keys, also of one
// key twice and under limits of their own, and changes nothing.
func TestPeekAll_IsTheNextTakeAll(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		c.Stats, c.BlockFor = true, 0
		l, clock := newFrozen(t, c)
		soft := mustNew(t, Config{Limit: PerMinute(3), Soft: 1, Clock: clock})
		shadow := mustNew(t, Config{Limit: PerMinute(2), Shadow: true, Clock: clock})
		half := c.Limit
		half.Rate = max(half.Rate/2, 1)
		own, err := l.Key("b").WithLimit(half)
		require.NoError(t, err)
		keys := []Key{l.Key("a"), l.Key("b"), own, soft.Key("a"), shadow.Key("a")}
		denied := 0
		for range 500 {
			charges := make([]Charge, 1+rng.IntN(5))
			for i := range charges {
				charges[i] = Charge{keys[rng.IntN(len(keys))], rng.IntN(4)}
				if rng.IntN(20) == 0 {
					charges[i].Cost = []int{-1, math.MaxInt}[rng.IntN(2)]
				}
			}
			before, stats := snapshot(l), l.Stats()
			looked := PeekAll(charges...)
			require.Equal(t, looked, PeekAll(charges...))
			require.Equal(t, before, snapshot(l))
			require.Equal(t, stats, l.Stats())
			if looked.Allowed {
				require.Zero(t, looked.RetryAfter)
			} else {
				denied++
			}
			require.Equal(t, TakeAll(charges...), looked)
			clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period) / 8)))
		}
		require.Positive(t, denied)
	})
}

// TestPeekAll_BesideCalls: looks change nothing of calls at the same time, whose keys move, grow and are swept.
func TestPeekAll_BesideCalls(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		own, err := l.Key("a").WithLimit(c.Limit)
		require.NoError(t, err)
		var calls, looks sync.WaitGroup
		var done atomic.Bool
		var admitted atomic.Int64
		looks.Go(func() {
			for !done.Load() {
				d := PeekAll(Charge{own, 1}, Charge{l.Key("b"), 1}, Charge{l.Key("a"), 1})
				assert.GreaterOrEqual(t, d.Remaining, 0)
			}
		})
		looks.Go(func() {
			for !done.Load() {
				l.Sweep()
			}
		})
		for range 4 {
			calls.Go(func() {
				for range burst {
					if TakeAll(Charge{l.Key("a"), 1}, Charge{l.Key("b"), 1}).Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		calls.Wait()
		done.Store(true)
		looks.Wait()
		require.EqualValues(t, burst, admitted.Load())
	})
}

// TestTakeAll_SumsBeyondInt: the largest burst of 32 bits does not admit a sum that is
// beyond it.
func TestTakeAll_SumsBeyondInt(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1_000_000_000).WithBurst(math.MaxInt32)})
		k := l.Key("k")
		for _, extra := range []int{1, 2, math.MaxInt32} {
			d := TakeAll(Charge{k, math.MaxInt32}, Charge{k, extra})
			require.Equal(t, AllDecision{Denied: 0, Remaining: math.MaxInt32, RetryAfter: Never}, d, "%v", a)
		}
		require.Equal(t, AllDecision{Allowed: true, Denied: -1}, TakeAll(Charge{k, math.MaxInt32 - 1}, Charge{k, 1}))
	}
}

// TestTakeAllReservations_NamesEveryDenier, whatever it is that denies.
func TestTakeAllReservations_NamesEveryDenier(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		none := mustNew(t, Config{Limit: DenyAll, Clock: clock}).Key("none")
		a, b, burst := l.Key("a"), l.Key("b"), burstOf(l)
		require.True(t, b.AllowN(burst-1))
		each := make([]Decision, 6)
		d := TakeAllReservations(nil, each, Charge{a, 2}, Charge{b, 1}, Charge{none, 1}, Charge{b, 1}, Charge{a, 3}, Charge{l.Key("c"), -1})
		require.Equal(t, 1, d.Denied)
		deniers := [6]bool{1: true, 2: true, 3: true, 5: true}
		for i := range each {
			require.Equal(t, deniers[i], !each[i].Allowed, "charge %d", i)
		}
		require.Equal(t, b.Peek(2), each[1])
		require.Equal(t, each[1], each[3])
		require.Equal(t, a.Peek(0), each[0], "not made")
		require.Equal(t, l.Key("c").Peek(-1), each[5])
		require.Equal(t, Decision{RetryAfter: Never}, each[2])

		each[5] = Decision{Limit: 7}
		d = TakeAllReservations(nil, each[:2], Charge{a, 2}, Charge{b, 1}, Charge{a, 3})
		require.True(t, d.Allowed)
		require.Equal(t, []Decision{a.Peek(0), {Allowed: true, Limit: burst, ResetAfter: b.Peek(0).ResetAfter}, {RetryAfter: Never}}, each[:3])
		require.Equal(t, Decision{Limit: 7}, each[5])
	})
}

// TestTakeAllReservations_SoftAndShadow: as of Take, and nothing that was not made is beyond the
// limit.
func TestTakeAllReservations_SoftAndShadow(t *testing.T) {
	c := Config{Limit: PerMinute(3), Soft: 2}
	l, clock := newFrozen(t, c)
	c.Clock, c.Shadow = clock, true
	shadow := mustNew(t, c)
	each := make([]Decision, 2)
	require.True(t, TakeAllReservations(nil, each, Charge{l.Key("a"), 4}, Charge{shadow.Key("a"), 4}).OverSoft)
	require.Equal(t, Decision{Allowed: true, OverSoft: true, Limit: 3, ResetAfter: 80 * sec}, each[0])
	require.Equal(t, each[0], each[1])
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, WouldDeny: true, OverSoft: true},
		TakeAllReservations(nil, each, Charge{l.Key("a"), 1}, Charge{shadow.Key("a"), 2}))
	require.Equal(t, [2]bool{false, true}, [2]bool{each[0].WouldDeny, each[1].WouldDeny})
	require.False(t, TakeAllReservations(nil, each, Charge{shadow.Key("a"), 1}, Charge{l.Key("a"), 1}).OverSoft)
	require.Equal(t, [2]bool{}, [2]bool{each[0].OverSoft, each[1].OverSoft})
}

func TestTakeAll_CostZeroAsksForOneUnit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		a, b, burst := l.Key("a"), l.Key("b"), burstOf(l)
		require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: burst}, TakeAll(Charge{a, 0}, Charge{b, 0}))
		require.Zero(t, l.Len(), "nothing is tracked")
		require.True(t, a.AllowN(burst))
		require.Equal(t, AllDecision{Denied: 1, RetryAfter: a.Peek(1).RetryAfter}, TakeAll(Charge{b, 1}, Charge{a, 0}))
		require.Equal(t, 1, l.Len())
		require.True(t, TakeAll(Charge{b, 1}, Charge{l.Key("c"), 0}).Allowed)
		require.Equal(t, 2, l.Len())
	})
}

func TestTakeAll_NoCharges(t *testing.T) {
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: math.MaxInt}, TakeAll())
}

func TestTakeAll_UnlimitedAndDenyAll(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerMinute(5)})
	free := mustNew(t, Config{Limit: Unlimited, Clock: clock}).Key("k")
	none := mustNew(t, Config{Limit: DenyAll, Clock: clock}).Key("k")
	k := l.Key("k")
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: 4}, TakeAll(Charge{free, math.MaxInt}, Charge{k, 1}, Charge{free, math.MaxInt}))
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: math.MaxInt}, TakeAll(Charge{free, 1}))
	for _, cost := range []int{0, 1, -1, math.MinInt} {
		require.Equal(t, AllDecision{Denied: 2, RetryAfter: Never}, TakeAll(Charge{free, 1}, Charge{k, 1}, Charge{none, cost}))
	}
	require.Equal(t, AllDecision{Denied: 1, Remaining: 4, RetryAfter: Never}, TakeAll(Charge{k, 1}, Charge{free, -1}))
	require.Equal(t, 4, k.Peek(0).Remaining)
	require.Zero(t, free.lim.Len()+none.lim.Len())
	blocked := mustNew(t, Config{Limit: Unlimited, Clock: clock}).Key("k")
	require.True(t, blocked.Block(60*sec))
	for _, cost := range []int{0, 1, -1} {
		for _, k := range []Key{free, none, blocked} {
			var each [1]Decision
			TakeAllReservations(nil, each[:], Charge{k, cost})
			require.Equal(t, k.Peek(cost), each[0])
		}
	}
}

// TestTakeAll_Tally: one call for each key that is charged, one for each key that
// denies, none for those that would have been admitted.
func TestTakeAll_Tally(t *testing.T) {
	for _, limit := range []Limit{PerMinute(5), Unlimited, DenyAll} {
		l, clock := newFrozen(t, Config{Limit: PerMinute(5), Stats: true})
		other := mustNew(t, Config{Limit: limit, Clock: clock, Stats: true})
		a, b, x := l.Key("a"), l.Key("b"), other.Key("x")
		d := TakeAll(Charge{a, 1}, Charge{x, 2}, Charge{b, 3}, Charge{a, 1}, Charge{l.Key("c"), 0})
		want, otherWant := [2]uint64{2, 0}, [2]uint64{1, 0}
		if limit == DenyAll {
			want, otherWant = [2]uint64{0, 0}, [2]uint64{0, 1}
		}
		counted := func(l *Limiter) [2]uint64 { s := l.Stats(); return [2]uint64{s.Admitted, s.Denied} }
		require.Equal(t, limit != DenyAll, d.Allowed)
		require.Equal(t, want, counted(l))
		require.Equal(t, otherWant, counted(other))

		require.False(t, TakeAll(Charge{b, 6}, Charge{a, 1}, Charge{a, -3}, Charge{l.Key("c"), 0}, Charge{x, 0}).Allowed)
		want[1] += 2
		require.Equal(t, want, counted(l))
		require.Equal(t, otherWant, counted(other))
	}
}

// TestTakeAll_AtMaxKeys: a call that is denied charges nothing, whatever the policy.
func TestTakeAll_AtMaxKeys(t *testing.T) {
	for _, o := range overflows {
		forEveryLayout(t, func(t *testing.T, c Config) {
			if !slices.Contains(overflowsOf(c), o) {
				return
			}
			c.MaxKeys, c.Overflow = 8, o
			l, clock := newFrozen(t, c)
			other := mustNew(t, Config{Limit: PerMinute(3), Clock: clock})
			require.Equal(t, 8, fill(l, "old", 8))
			x, old, newKey := other.Key("x"), l.Key("old3"), l.Key("new")
			burst := burstOf(l)

			d := TakeAll(Charge{x, 1}, Charge{newKey, 1}, Charge{old, burst})
			require.Equal(t, 2, d.Denied, "denied before anything is tracked")
			require.Equal(t, uint64(0), l.Stats().Evicted+l.Stats().Untracked)

			d = TakeAll(Charge{x, 1}, Charge{newKey, 1})
			switch o {
			case OverflowDenyNew:
				require.Equal(t, AllDecision{Denied: 1, RetryAfter: l.Config().Limit.interval()}, d)
				require.Equal(t, 3, x.Peek(0).Remaining)
			case OverflowAdmitNew:
				require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: 2}, d)
				require.Equal(t, burst, newKey.Peek(0).Remaining, "admitted without state")
			case OverflowEvictSoonest:
				require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: 2}, d)
				require.Equal(t, burst-1, newKey.Peek(0).Remaining)
			}
			require.Equal(t, o != OverflowEvictSoonest, l.Stats().Untracked == 1)
			require.Equal(t, o == OverflowEvictSoonest, l.Stats().Evicted > 0)
			require.LessOrEqual(t, l.Len(), 8)
		})
	}
}

// TestTakeAll_OneKeyUnderTwoLimits: the limit of its first charge decides on the sum, though
// other keys stand between them, and however many charges there are.
func TestTakeAll_OneKeyUnderTwoLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		per := func(n int) Limit { return Per(n, c.Limit.Period) }
		for _, others := range []int{0, 1, 30} {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			bring := func(n int) Key {
				with, err := k.WithLimit(per(n))
				require.NoError(t, err)
				return with
			}
			take := func(first, second Charge) (Decision, Decision, bool) {
				charges := []Charge{first}
				for i := range others {
					charges = append(charges, Charge{l.KeyUint64(uint64(i)), 1})
				}
				charges = append(charges, second)
				each := make([]Decision, len(charges))
				d := TakeAllReservations(nil, each, charges...)
				if !d.Allowed {
					require.Equal(t, 0, d.Denied)
				}
				return each[0], each[len(each)-1], d.Allowed
			}
			small, large := bring(10), bring(2000)
			for _, spent := range []int{0, 4} { // of a key that is not tracked, and of one that is
				if spent > 0 {
					require.True(t, k.AllowN(spent))
				}
				a, b, ok := take(Charge{small, 5}, Charge{large, 6})
				require.False(t, ok)
				require.Equal(t, 10, a.Limit)
				require.Equal(t, a, b)
				a, b, ok = take(Charge{large, 5}, Charge{small, 6})
				require.True(t, ok)
				require.Equal(t, Decision{Allowed: true, Limit: 2000, Remaining: 2000 - 11 - spent, ResetAfter: a.ResetAfter}, a)
				require.Equal(t, a, b)
				k.Reset()
			}
			a, b, ok := take(Charge{k, 5}, Charge{small, 6})
			require.True(t, ok)
			require.Equal(t, int(l.current.Load().burst)-11, a.Remaining)
			require.Equal(t, a, b)
			_, _, ok = take(Charge{small, 0}, Charge{k, 1})
			require.False(t, ok)
			require.NoError(t, k.SetLimit(per(12)))
			_, _, ok = take(Charge{k, 1}, Charge{large, 1})
			require.False(t, ok)
			_, _, ok = take(Charge{large, 1}, Charge{k, 1})
			require.True(t, ok)
		}
	})
}
