package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// These tests are the table of cases that hold for every algorithm, one test a
// row, each run on every layout of state.

// snapshot lists all that the limiter's tables hold: ids, words and tails.
func snapshot(l *Limiter) []uint64 {
	var all []uint64
	for _, t := range tablesOf(l) {
		for j := range t.slots {
			if id := t.slots[j].id.Load(); id != 0 {
				e := t.state(uint64(j), t.slots[j].word.Load())
				all = append(all, id, e.word)
				for k := range e.tail {
					all = append(all, e.tail[k].Load())
				}
			}
		}
	}
	return all
}

// newFrozen returns a limiter on a manual clock.
func newFrozen(t *testing.T, c Config) (*Limiter, *ManualClock) {
	t.Helper()
	clock := NewManualClock(start)
	c.Clock = clock
	return mustNew(t, c), clock
}

func TestSemantics_CostZeroPeeksForOneUnit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		burst := burstOf(l)
		require.True(t, l.AllowN("k", 0))
		require.Equal(t, Decision{Allowed: true, Limit: burst, Remaining: burst}, l.Take("k", 0))
		require.Zero(t, l.Len())
		require.True(t, l.AllowN("k", burst))
		before := snapshot(l)
		one := l.Take("k", 1)
		require.False(t, one.Allowed)
		require.False(t, l.AllowN("k", 0))
		require.Equal(t, one, l.Take("k", 0))
		clock.Advance(one.RetryAfter)
		require.True(t, l.AllowN("k", 0))
		require.Equal(t, before, snapshot(l))
		left := l.Take("k", 0).Remaining
		require.True(t, l.AllowN("k", left))
		require.False(t, l.AllowN("k", 0))
	})
}

func TestSemantics_DeniedCallWritesNothing(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		require.True(t, l.AllowN("k", burstOf(l)))
		before := snapshot(l)
		for range 5 {
			require.False(t, l.Allow("k"))
			require.False(t, l.AllowN("k", burstOf(l)))
			require.False(t, l.Take("k", 2).Allowed)
			clock.Advance(1)
		}
		require.Equal(t, before, snapshot(l))
		require.Equal(t, 1, l.Len())
	})
}

// TestSemantics_NothingDrifts: k periods after a key was emptied exactly k*R units
// have come back, for intervals that are no whole number of ns, too, and for more
// than one unit a nanosecond.
func TestSemantics_NothingDrifts(t *testing.T) {
	limits := []Limit{
		PerSecond(3), PerSecond(7), PerMinute(7), PerDay(1_000_003), PerSecond(999_999_937),
		PerSecond(1_999_999_973), Per(3, 2), Per(7, 2), Per(4, 1), Per(11, 7),
	}
	for _, limit := range limits {
		for _, a := range bucketAlgorithms {
			if a == TokenBucket && limit.Rate > 3*int(limit.Period) {
				continue // it takes 3 a nanosecond
			}
			const periods = 1000
			burst := limit.Rate
			if limit.Rate < math.MaxInt32/periods {
				burst *= periods
			}
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: limit.WithBurst(burst)})
			k, t0 := l.Key("k"), start.UnixNano()
			require.True(t, k.AllowAt(t0, burst), "%v %v", a, limit)
			for i := range burst / limit.Rate {
				at := t0 + int64(i)*int64(limit.Period)
				require.Equal(t, i*limit.Rate, k.TakeAt(at, 0).Remaining, "%v %v after %d periods", a, limit, i)
			}
		}
	}
}

// TestSemantics_NothingDriftsInSmallSteps empties the key in every period anew.
func TestSemantics_NothingDriftsInSmallSteps(t *testing.T) {
	for _, limit := range []Limit{PerSecond(7).WithBurst(14), Per(7, 2).WithBurst(14), PerMinute(13).WithBurst(26)} {
		l, _ := newFrozen(t, Config{Limit: limit})
		k, t0 := l.Key("k"), start.UnixNano()
		require.True(t, k.AllowAt(t0, limit.Burst))
		for i := range 10_000 {
			at := t0 + int64(i+1)*int64(limit.Period)
			require.Equal(t, limit.Rate, k.TakeAt(at, 0).Remaining, "%v in period %d", limit, i)
			require.True(t, k.AllowAt(at, limit.Rate))
		}
	}
}

// TestSemantics_WordsStayClear of those that have a meaning: no charge leaves a
// fresh word, and neither charges nor refunds leave the mark of a held or moved one, at the
// ends of time and with the largest bursts either.
func TestSemantics_WordsStayClear(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() / 200 {
		c := randomConfig(rng, variants[rng.IntN(len(variants))])
		if c.Algorithm <= LeakyBucket && rng.IntN(2) == 0 {
			// Bursts up to what New accepts make the largest words.
			c.Limit.Rate = 1 + rng.IntN(4)
			c.Limit.Period = time.Duration(math.MaxInt64 >> rng.IntN(63))
			c.Limit.Burst = int(min(math.MaxInt, max(1, math.MaxInt64/int64(c.Limit.interval()))))
		}
		l, err := New(c)
		if err != nil || l.policyOf(0).alg == nil {
			continue
		}
		for _, refunds := range []bool{false, true} {
			alg, word := l.policyOf(0).alg, uint64(0)
			left := func(now int64) int { n, _, _ := alg.describe(word, now, 1, true); return n }
			for range 20 {
				now := math.MaxInt64 - rng.Int64()>>rng.IntN(63)
				cost := 1 + rng.IntN(burstOf(l))
				next, ok := alg.charge(word, now, cost)
				if ok {
					require.Greater(t, next, word, "%+v: state moved back", c)
					require.Less(t, next, uint64(reserved), "%+v", c)
				} else {
					require.Equal(t, word, next)
				}
				if word = next; !refunds {
					continue
				}
				had := left(now)
				word = alg.refund(state{word: word}, now, cost)
				require.Less(t, word, uint64(reserved), "%+v", c)
				require.GreaterOrEqual(t, left(now), had, "%+v: a refund took away", c)
				require.LessOrEqual(t, left(now)-had, cost, "%+v: a refund gave too much", c)
			}
		}
	}
}

// TestDecide_ABlockThatHasEndedMeanwhile: whoever has seen the block's word, and then a tail
// without a block, looks again and changes nothing.
func TestDecide_ABlockThatHasEndedMeanwhile(t *testing.T) {
	forEveryTail(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		require.True(t, k.Block(sec))
		at := l.locate(k.id)
		seen := state{at.slot.word.Load(), at.tail}
		k.Unblock()
		require.True(t, k.AllowN(3), "so that its tail has a time, or a count")
		free := at.slot.word.Load()
		var d Decision
		require.False(t, at.policy.stillBlocked(at.slot, seen, 0, &d))
		require.Zero(t, d)
		require.Equal(t, free, at.slot.word.Load())
	})
}

// TestDecide_LimitsOfKeysTakeNoLock: a call for a key that has a limit of its own, or that brings one,
// is decided with the shard locked.
func TestDecide_LimitsOfKeysTakeNoLock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := burstOf(l)
		other := Per(burst-1, c.Limit.Period)
		own := l.Key("own")
		require.NoError(t, own.SetLimit(other))
		brings, err := l.Key("brings").WithLimit(other)
		require.NoError(t, err)
		for _, k := range []Key{own, brings} {
			require.True(t, k.Allow())
			s := l.shardOf(k.id)
			s.mu.Lock()
			require.True(t, k.Allow())
			require.Equal(t, burst-4, k.Take(1).Remaining)
			require.True(t, k.AllowN(burst-4))
			require.False(t, k.Take(1).Allowed)
			require.False(t, k.Allow())
			s.mu.Unlock()
		}
		require.True(t, l.Allow("another"), "all others have the limiter's")
		require.Equal(t, burst-2, l.Take("another", 1).Remaining)
	})
}
