package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestRefund_SlidingLogYoungerThanItsPeriod: places that were never overwritten are
// unused again, also where the clock has not run for a period yet.
func TestRefund_SlidingLogYoungerThanItsPeriod(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 7} {
		l := mustNew(t, Config{Algorithm: SlidingLog, Limit: PerHour(limit), Clock: NewManualClock(time.Unix(0, 0))})
		for range 3 {
			require.True(t, l.AllowN("k", limit))
			for n := 1; n <= limit; n++ {
				l.Key("k").Refund(1)
				require.Equal(t, n, l.Key("k").Peek(0).Remaining)
			}
			require.Zero(t, l.Key("k").Peek(0).ResetAfter)
		}
	}
}

func TestRefund_NothingToGiveBack(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Stats = true
		l, clock := newFrozen(t, c)
		burst := burstOf(l)
		l.Key("k").Refund(1)
		l.Key("k").Refund(burst)
		require.Zero(t, l.Len(), "an untracked key stays untracked")
		require.True(t, l.AllowN("k", 3))
		before := snapshot(l)
		for _, cost := range []int{0, -1, math.MinInt} {
			l.Key("k").Refund(cost)
		}
		l.Key("other").Refund(1)
		require.Equal(t, before, snapshot(l))
		stats := l.Stats()
		l.Key("k").Refund(1)
		require.Equal(t, stats, l.Stats(), "a refund is no decision")
		l.Key("k").Refund(burst + 1)
		require.Equal(t, Decision{Allowed: true, Limit: burst, Remaining: burst}, l.Key("k").Peek(0), "never more than fresh")
		require.False(t, l.AllowN("k", burst+1))
		require.True(t, l.AllowN("k", burst))
		clock.Advance(l.Key("k").Peek(0).ResetAfter)
		l.Key("k").Refund(burst)
		require.True(t, l.AllowN("k", burst), "an idle key is as fresh as can be")
		require.False(t, l.Allow("k"))
	})
}

// TestRefund_OfAnIdleKeyWritesNothing: nothing is counted, so an older call finds the
// key as it was. (The log strikes out its newest units whether they count or not.)
func TestRefund_OfAnIdleKeyWritesNothing(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Algorithm == SlidingLog {
			t.Skip()
		}
		l, clock := newFrozen(t, c)
		require.True(t, l.AllowN("k", 5))
		before := snapshot(l)
		clock.Advance(l.Key("k").Peek(0).ResetAfter)
		l.Key("k").Refund(5)
		require.Equal(t, before, snapshot(l))
	})
}

func TestRefund_UnlimitedAndDenyAll(t *testing.T) {
	for _, a := range algorithms {
		for _, limit := range []Limit{Unlimited, DenyAll} {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: limit})
			before := l.Key("k").Peek(1)
			for _, cost := range []int{0, 1, -1, math.MaxInt} {
				l.Key("k").Refund(cost)
			}
			require.Equal(t, before, l.Key("k").Peek(1))
			require.Zero(t, l.Len())
		}
	}
}

// TestRefund_WhileAllIsDenied: as under the limit before, which units are charged and come back under as
// well. Under Unlimited calls are admitted without a charge, so that there is nothing to give back.
func TestRefund_WhileAllIsDenied(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, own := range []bool{false, true} {
			l, _ := newFrozen(t, c)
			set := l.SetLimit
			if own {
				set = func(limit Limit) error { return l.Key("k").SetLimit(limit) }
			}
			burst := c.Limit.Capacity()
			require.True(t, l.AllowN("k", burst))
			require.NoError(t, set(Unlimited))
			l.Key("k").Refund(1)
			require.NoError(t, set(DenyAll))
			l.Key("k").Refund(2)
			l.Key("k").Debit(1)
			require.NoError(t, set(c.Limit))
			require.Equal(t, 1, l.Key("k").Peek(0).Remaining)
			require.NoError(t, set(DenyAll))
			l.Key("k").Refund(math.MaxInt)
			require.NoError(t, set(c.Limit))
			require.Equal(t, burst, l.Key("k").Peek(0).Remaining)
		}
	})
}

// TestRefund_RefundedKeyIsSwept: what is as if fresh is idle.
func TestRefund_RefundedKeyIsSwept(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		require.True(t, l.AllowN("k", 7))
		l.Key("k").Refund(6)
		require.Zero(t, l.Sweep())
		l.Key("k").Refund(1)
		require.Zero(t, l.Key("k").Peek(0).ResetAfter)
		require.Equal(t, 1, l.Sweep())
		require.Zero(t, l.Len())
	})
}

// TestRefund_WorstCase: of what was admitted and not refunded, the newest units taken
// to be those that are, no closed span holds more than WorstCase.
func TestRefund_WorstCase(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		rng := seeded.Rand(t)
		for range 40 {
			if c.Limit.Rate < 1000 {
				c.Limit.Rate = 1 + rng.IntN(20)
			}
			if c.Limit.Burst = 0; c.Algorithm <= LeakyBucket {
				c.Limit.Burst = 1 + rng.IntN(20)
			}
			checkWorstCase(t, rng, c)
		}
	})
}

type keptCharge struct {
	at time.Duration
	n  int
}

func checkWorstCase(t *testing.T, rng *rand.Rand, c Config) {
	t.Helper()
	l, clock := newFrozen(t, c)
	k, burst := l.Key("k"), burstOf(l)
	var kept []keptCharge
	for range 80 {
		now := time.Duration(clock.Now())
		if left := k.Peek(0).Remaining; left > 0 {
			n := 1 + rng.IntN(left)
			require.True(t, k.AllowN(n))
			kept = append(kept, keptCharge{now, n})
		}
		if rng.IntN(2) == 0 {
			// A fraction of a unit may count: that one is refunded as a whole.
			n := 1 + rng.IntN(burst)
			rest := min(n, burst-k.Peek(0).Remaining)
			k.Refund(n)
			for ; rest > 0 && len(kept) > 0; kept = kept[:len(kept)-1] {
				last := &kept[len(kept)-1]
				if last.n > rest {
					last.n -= rest
					break
				}
				rest -= last.n
			}
		}
		gaps := []int64{0, 1, int64(c.Limit.interval()), int64(c.Limit.Period) / 3, rng.Int64N(int64(c.Limit.Period)) + 1}
		clock.Advance(time.Duration(gaps[rng.IntN(len(gaps))]))
	}
	for i, from := range kept {
		sum := 0
		for _, to := range kept[i:] {
			sum += to.n
			d := to.at - from.at
			require.LessOrEqual(t, sum, l.WorstCase(d), fmt.Sprintf("in %v under %v", d, c.Limit))
		}
	}
}

// TestRefund_LogWordChanges, also where as many units go as the ring has places: who
// reads the ring meanwhile takes a word that is still the same for a ring that is.
func TestRefund_LogWordChanges(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerMinute(5)})
	k := l.Key("k")
	for n := 1; n <= 5; n++ {
		require.True(t, k.AllowN(5))
		before := slotOf(k).word.Load()
		k.Refund(n)
		require.NotEqual(t, before, slotOf(k).word.Load())
		k.Refund(5)
	}
}

func TestReset_MakesTheKeyFresh(t *testing.T) {
	onEveryLayout(t, func(t *testing.T, l *Limiter, _ *ManualClock) {
		fresh := l.Key("k").Peek(1)
		for range 3 {
			require.True(t, l.AllowN("k", burstOf(l)))
			require.True(t, l.Allow("other"))
			require.False(t, l.Allow("k"))
			l.Key("k").Reset()
			require.Equal(t, fresh, l.Key("k").Peek(1))
		}
		require.Equal(t, burstOf(l)-3, l.Key("other").Peek(0).Remaining, "no other key is touched")
		l.Key("never seen").Reset()
		require.Equal(t, 2, l.Len())
		require.Equal(t, 1, l.Sweep(), "a reset key is idle")
		require.Equal(t, 1, l.Len())
	})
}
