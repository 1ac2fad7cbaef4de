package sluice

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCharge_CarriesWhatASlidingWindowCannotCount into the next window: it weighs more
// there than it would have.
func TestCharge_CarriesWhatASlidingWindowCannotCount(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: SlidingWindow, Limit: PerSecond(20_000)})
	const most = 1<<15 - 1
	require.Equal(t, int64(most), countMost(l.Config()))
	clock.Set(start.Truncate(time.Second).Add(time.Second))
	require.False(t, l.Key("k").Debit(most+5000).Allowed)
	require.Equal(t, 2*time.Second, l.Key("k").Peek(15_000).RetryAfter, "when 5000 are those of the window before")
	clock.Advance(2*time.Second - 1)
	require.Equal(t, 14_999, l.Key("k").Peek(0).Remaining)
	clock.Advance(time.Second + 1)
	require.Equal(t, 20_000, l.Key("k").Peek(0).Remaining)
	require.False(t, l.Key("k").Debit(math.MaxInt).Allowed)
	clock.Advance(2*time.Second - 1)
	require.False(t, l.Allow("k"), "two windows, and what weighs in the third")
}

// TestCharge_CarriesOnWhereTheKeyGoes: a key that owes all that two windows can count
// charges the rest to the next window wherever it is moved, and not to a larger count.
func TestCharge_CarriesOnWhereTheKeyGoes(t *testing.T) {
	for _, limit := range []Limit{PerSecond(5), PerSecond(40_000), {Rate: 5, Period: 7 * day}} { // one word, two, one
		raised := limit
		raised.Rate++
		moves := map[string]func(l *Limiter, c Config) *Limiter{
			"Restore": func(l *Limiter, c Config) *Limiter { return restoredFrom(t, c, snapshotOf(t, l)) },
			"Restore under another limit": func(l *Limiter, c Config) *Limiter {
				c.Limit = raised
				return restoredFrom(t, c, snapshotOf(t, l))
			},
			"SetLimit": func(l *Limiter, _ Config) *Limiter {
				require.NoError(t, l.SetLimit(raised))
				return l
			},
			"Key.SetLimit": func(l *Limiter, _ Config) *Limiter {
				require.NoError(t, l.Key("k").SetLimit(raised))
				return l
			},
		}
		for name, move := range moves {
			c := Config{Algorithm: SlidingWindow, Limit: limit, Hash: HashStable}
			l, clock := newFrozen(t, c)
			c.Clock = clock
			most := int(countMost(c))
			l.Key("k").Debit(2 * most)
			l = move(l, c)
			reset := l.Key("k").Debit(1).ResetAfter
			free := (start.UnixNano()/int64(limit.Period) + 4) * int64(limit.Period)
			require.Equal(t, free, start.UnixNano()+int64(reset), "%s under %v: two windows are full, and the third one counts 1", name, limit)
		}
	}
}

// TestCharge_ToTheEndOfTime: a bucket that owes more than there is time for denies for
// ever.
func TestCharge_ToTheEndOfTime(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, limit := range []Limit{PerHour(1), PerMinute(7), PerSecond(1_000_000_000), PerDay(1).WithBurst(50_000)} {
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: limit, TTL: math.MaxInt64})
			for range 3 {
				d := l.Key("k").Debit(math.MaxInt)
				few := math.MaxInt == math.MaxInt32 && limit.Rate > 1000
				require.Equal(t, few, d.RetryAfter != Never)
				require.Equal(t, few, d.ResetAfter != Never)
			}
			clock.Advance(100 * 365 * day)
			require.Equal(t, math.MaxInt == math.MaxInt32 && limit.Rate > 1000, l.Allow("k"), "%v %v", a, limit)
		}
	}
}

// TestCharge_BesideABlock makes it as long as the key would take to become fresh, however
// the charges are divided.
func TestCharge_BesideABlock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, charges := range [][]int{{1}, {400}, {200, 200}, {1000, 1000, 1000}} {
			l, clock := newFrozen(t, c)
			free, _ := newFrozen(t, c)
			require.True(t, l.Key("k").Block(time.Second))
			for _, n := range charges {
				d := l.Key("k").Debit(n)
				require.False(t, d.Allowed)
				require.Zero(t, d.Remaining)
				require.Equal(t, d.RetryAfter, d.ResetAfter)
				free.Key("k").Debit(n)
			}
			d := l.Key("k").Peek(0)
			require.GreaterOrEqual(t, d.RetryAfter, free.Key("k").Peek(0).ResetAfter, "%v", charges)
			clock.Advance(d.RetryAfter)
			require.Equal(t, burstOf(l), l.Key("k").Peek(0).Remaining)
			l.Key("k").Block(math.MaxInt64)
			require.Equal(t, Never, l.Key("k").Debit(1).RetryAfter)
		}
	})
}

// TestCharge_WhereThereIsNothingToCharge: Unlimited keeps no state, a DenyAll that there
// has always been knows no units; another one does.
func TestCharge_WhereThereIsNothingToCharge(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		made := c
		for limit, want := range map[Limit]Decision{
			Unlimited: {Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt},
			DenyAll:   {RetryAfter: Never},
		} {
			made.Limit, made.Offset = limit, 0
			l, _ := newFrozen(t, made)
			require.Equal(t, want, l.Key("k").Debit(5))
			require.Zero(t, l.Len())

			l, _ = newFrozen(t, c)
			burst := burstOf(l)
			l.Key("old").Debit(1)
			require.NoError(t, l.SetLimit(limit))
			require.Equal(t, want, l.Key("old").Debit(2))
			require.Equal(t, want, l.Key("new").Debit(3))
			require.NoError(t, l.SetLimit(c.Limit))
			charged := limit == DenyAll
			require.Equal(t, map[bool]int{true: burst - 3, false: burst - 1}[charged], l.Key("old").Peek(0).Remaining)
			require.Equal(t, map[bool]int{true: burst - 3, false: burst}[charged], l.Key("new").Peek(0).Remaining)
		}
	})
}

// TestCharge_AtMaxKeys: OverflowEvictSoonest finds room, the others do not charge a new key.
func TestCharge_AtMaxKeys(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, o := range overflowsOf(c) {
			c.MaxKeys, c.Overflow, c.Stats = 2, o, true
			l, _ := newFrozen(t, c)
			burst := burstOf(l)
			require.Equal(t, 2, fill(l, "key", 2))
			before := l.Stats()
			d := l.Key("k").Debit(3 * burst)
			require.Equal(t, o == OverflowAdmitNew, d.Allowed)
			require.Equal(t, o == OverflowEvictSoonest, !l.Key("k").Peek(1).Allowed, "it owes")
			require.Equal(t, 2, l.Len())
			require.False(t, l.Key("k").Debit(1).Allowed && o == OverflowEvictSoonest)
			if o == OverflowDenyNew {
				require.Equal(t, Decision{Limit: burst, RetryAfter: l.Config().Limit.interval()}, d)
			}
			after := l.Stats()
			require.Equal(t, [2]uint64{before.Admitted, before.Denied}, [2]uint64{after.Admitted, after.Denied}, "a charge is no decision")
		}
	})
}

// TestCharge_SoftAndShadow: the debt begins beyond the soft units; under Shadow it is made.
func TestCharge_SoftAndShadow(t *testing.T) {
	for _, a := range algorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerHour(4), Soft: 2})
		d := l.Key("k").Debit(4)
		require.Equal(t, Decision{Allowed: true, OverSoft: true, Limit: 4, ResetAfter: d.ResetAfter}, d, "%v", a)
		require.Equal(t, d, l.Key("k").Debit(0), "%v", a)
		require.False(t, l.Key("k").Debit(2).Allowed, "%v", a)
		require.False(t, l.Key("k").Debit(2).OverSoft, "%v", a)

		l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(4), Shadow: true})
		require.True(t, l.Key("k").Debit(9).WouldDeny, "%v", a)
		require.True(t, l.Take("k", 1).WouldDeny, "%v", a)
	}
}

// TestCharge_IsNoDenial: it neither blocks nor counts, whatever it leaves.
func TestCharge_IsNoDenial(t *testing.T) {
	for _, a := range algorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerHour(1), BlockFor: 100 * time.Hour, CountDenied: a.countsDenied(), Stats: true, TopDenied: 1})
		require.False(t, l.Key("k").Debit(1).Allowed)
		require.False(t, l.Key("k").Debit(1).Allowed)
		clock.Advance(2 * time.Hour)
		require.True(t, l.Allow("k"), "%v", a)
		require.Equal(t, uint64(0), l.Stats().Denied)
		require.Empty(t, l.TopDenied())
	}
}

// TestConcurrent_ChargesAreNeitherLostNorCountedTwice: with partial takes, takes and
// refunds of the same key beside them, while keys come and go.
func TestConcurrent_ChargesAreNeitherLostNorCountedTwice(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Clock, c.Shards = NewManualClock(start), 1
		moves, lost := uint64(0), uint64(0)
		for rounds := 0; rounds < 300 && (rounds < 4 || moves == 0 || lost == 0); rounds++ {
			l := mustNew(t, c)
			if rounds%2 == 1 {
				yieldBeforeSwap(l)
			}
			spent := chargeAndTake(t, l)
			burst := int64(burstOf(l))
			require.Equal(t, int(burst-spent), l.Key("hot").Peek(0).Remaining)
			// All that is left at once, and no more.
			n, d := l.Key("hot").TakeUpTo(math.MaxInt)
			require.Equal(t, burst-spent, int64(n))
			require.Zero(t, d.Remaining)
			moves, lost = moves+uint64(l.moves.Value()), lost+uint64(l.lostRaces.Value())
		}
		require.Positive(t, moves, "no call met a moved word")
		require.Positive(t, lost, "no swap failed")
	})
}

// chargeAndTake returns what was charged to one key by goroutines that have spent less than
// the burst.
func chargeAndTake(t *testing.T, l *Limiter) int64 {
	const callers, calls = 3, 60
	var spent atomic.Int64
	stop := goUntil(1, func(_, i int) {
		k := l.Key(fmt.Sprint("filler", i%100))
		k.Debit(1 + i%100)
		k.Reset()
		l.Sweep()
	})
	goDo(callers, func(g int) {
		for i := range calls {
			switch (g + i) % 4 {
			case 0:
				l.Key("hot").Debit(2)
				spent.Add(2)
			case 1:
				n, d := l.Key("hot").TakeUpTo(2)
				if n != 2 || !d.Allowed {
					t.Errorf("took %d of 2, %+v", n, d)
				}
				spent.Add(int64(n))
			case 2:
				if l.Allow("hot") {
					spent.Add(1)
				}
			default:
				l.Key("hot").Debit(1)
				l.Key("hot").Refund(1)
			}
		}
	})()
	stop()
	return spent.Load()
}

// TestWait_UnderUnlimitedUntilABlockIsOver.
func TestWait_UnderUnlimitedUntilABlockIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: Unlimited})
		require.True(t, l.Key("k").Block(time.Minute))
		begin := time.Now()
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		require.Equal(t, time.Minute, time.Since(begin))
	})
}

// TestCharge_ALogCountsToItsLimit, whatever its key has been under before, and whether or not
// a sweep has forgotten that.
func TestCharge_ALogCountsToItsLimit(t *testing.T) {
	for _, swept := range []bool{false, true} {
		l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(8), TTL: math.MaxInt64})
		k := l.Key("k")
		small, err := k.WithLimit(PerSecond(4))
		require.NoError(t, err)
		require.True(t, k.AllowN(5))
		require.False(t, small.Allow())
		clock.Advance(2 * time.Second)
		if swept {
			l.Sweep()
		}
		require.False(t, small.Debit(14).Allowed)
		require.Equal(t, 4, k.Peek(0).Remaining, "swept: %v", swept)

		require.NoError(t, l.SetLimit(PerSecond(4)))
		l.Key("other").Debit(3)
		l.Key("other").Debit(3)
		require.NoError(t, l.SetLimit(PerSecond(8)))
		require.Equal(t, 4, l.Key("other").Peek(0).Remaining)
	}
}

// TestTakeUpTo_ByHand: 5 an hour.
func TestTakeUpTo_ByHand(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		for cost, allowed := range map[int]bool{0: true, -1: false, math.MinInt: false} {
			n, d := l.Key("k").TakeUpTo(cost)
			require.Zero(t, n)
			require.Equal(t, l.Take("k", cost), d)
			require.Equal(t, allowed, d.Allowed)
		}
		require.Zero(t, l.Len())
		n, d := l.Key("new").TakeUpTo(math.MaxInt)
		require.Equal(t, burst, n)
		require.True(t, d.Allowed)
		n, d = l.Key("k").TakeUpTo(burst - 2)
		require.Equal(t, burst-2, n)
		require.Equal(t, 2, d.Remaining)
		n, d = l.Key("k").TakeUpTo(7)
		require.Equal(t, 2, n)
		require.True(t, d.Allowed && d.Remaining == 0 && d.RetryAfter == 0)
		n, d = l.Key("k").TakeUpTo(7)
		require.Zero(t, n)
		require.Equal(t, l.Take("k", 1), d)
	})
}

// TestTakeUpTo_WhereNothingIsCounted, or nobody is denied, or there is no room.
func TestTakeUpTo_WhereNothingIsCounted(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: Unlimited, Stats: true})
	n, d := l.Key("k").TakeUpTo(7)
	require.Equal(t, 7, n)
	require.Equal(t, Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, d)
	l, _ = newFrozen(t, Config{Limit: DenyAll, Stats: true})
	n, d = l.Key("k").TakeUpTo(7)
	require.Zero(t, n)
	require.Equal(t, Decision{RetryAfter: Never}, d)
	require.Equal(t, uint64(1), l.Stats().Denied)
	for _, a := range algorithms {
		l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), Shadow: true})
		for _, would := range []bool{false, true, true} {
			n, d = l.Key("k").TakeUpTo(4)
			require.Equal(t, 4, n)
			require.True(t, d.Allowed)
			require.Equal(t, would, d.WouldDeny)
		}
		l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), Soft: 2})
		n, d = l.Key("k").TakeUpTo(9)
		require.Equal(t, 7, n)
		require.True(t, d.OverSoft)
		for o, want := range map[Overflow]int{OverflowEvictSoonest: 5, OverflowDenyNew: 0, OverflowAdmitNew: 5} {
			if !slices.Contains(overflowsOf(Config{Algorithm: a}), o) {
				continue
			}
			l, _ = newFrozen(t, Config{Algorithm: a, Limit: PerHour(5), MaxKeys: 1, Overflow: o})
			require.True(t, l.AllowN("other", 5))
			n, d = l.Key("k").TakeUpTo(9)
			require.Equal(t, want, n, "%v", o)
			require.Equal(t, want > 0, d.Allowed)
		}
	}
}

// TestConcurrent_TakeUpToTakesWhatThereIs: whoever gets less than was asked for has left
// nothing, and together they get the burst.
func TestConcurrent_TakeUpToTakesWhatThereIs(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Clock = NewManualClock(start)
		for range 50 {
			l := mustNew(t, c)
			yieldBeforeSwap(l)
			burst := burstOf(l)
			ask := burst/7 + 1
			var got atomic.Int64
			var partial atomic.Int64
			goDo(3, func(int) {
				for range 5 {
					n, d := l.Key("k").TakeUpTo(ask)
					got.Add(int64(n))
					if 0 < n && n < ask {
						partial.Add(1)
					}
					if n < ask && d.Remaining != 0 || d.Allowed != (n > 0) {
						t.Errorf("took %d of %d, %+v", n, ask, d)
					}
				}
			})()
			require.Equal(t, int64(burst), got.Load())
			require.LessOrEqual(t, partial.Load(), int64(1))
		}
	})
}

// TestTakeUpTo_OfAKeyThatIsTrackedMeanwhile is made again: under DenyAll a key that is there can only be blocked.
func TestTakeUpTo_OfAKeyThatIsTrackedMeanwhile(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: DenyAll})
	k := l.Key("k")
	take := func() outcome {
		var d Decision
		_, out := l.takeNew(&d, l.policyOf(k.id), k.id, clock.Now(), 1)
		return out
	}
	require.Equal(t, denied, take())
	require.True(t, k.Block(sec))
	require.Equal(t, retrying, take())
}

// TestCharge_OfAKeyThatIsTrackedMeanwhile is made again, and charges nothing before.
func TestCharge_OfAKeyThatIsTrackedMeanwhile(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.AllowN(3))
		var d Decision
		require.False(t, l.debitNew(&d, l.policyOf(k.id), k.id, clock.Now(), 5))
		require.Zero(t, d)
		require.Equal(t, 3, spentOf(l, "k"))
	})
}

// TestCharge_UnderADenyAllThatHasComeMeanwhile says nothing of what an attempt before has found.
func TestCharge_UnderADenyAllThatHasComeMeanwhile(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerHour(10)})
	require.NoError(t, l.SetLimit(DenyAll))
	d := Decision{Allowed: true, Limit: 9, Remaining: 3, ResetAfter: sec}
	require.True(t, l.debitNew(&d, l.policyOf(0), l.Key("k").id, clock.Now(), 5))
	require.Equal(t, Decision{RetryAfter: Never}, d)
}

// meanwhileDebited does something before the word of the next debit is swapped in.
type meanwhileDebited struct {
	algorithm
	f func()
}

func (m *meanwhileDebited) debit(word uint64, now int64, cost int) uint64 {
	f := m.f
	m.f = func() {}
	f()
	return m.algorithm.debit(word, now, cost)
}

// TestCharge_OfAKeyThatIsBlockedMeanwhile says that of the block only.
func TestCharge_OfAKeyThatIsBlockedMeanwhile(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerHour(10)})
	k := l.Key("k")
	require.True(t, k.Allow())
	setAlgorithm(l, &meanwhileDebited{l.policyOf(0).alg, func() { k.Block(time.Hour) }}, nil)
	d := k.Debit(1)
	require.Equal(t, Decision{Limit: 10, RetryAfter: d.ResetAfter, ResetAfter: d.ResetAfter}, d)
	require.GreaterOrEqual(t, d.ResetAfter, time.Hour)
}
