package sluice

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTakeAll_AllOrNone(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		other := mustNew(t, Config{Limit: PerMinute(3), Clock: clock})
		burst := int(l.policyOf(0).burst)
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
		k, other, burst := l.Key("k"), l.Key("other"), int(l.policyOf(0).burst)
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

// TestTakeAllInto_NamesEveryDenier, whatever it is that denies.
func TestTakeAllInto_NamesEveryDenier(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		none := mustNew(t, Config{Limit: DenyAll, Clock: clock}).Key("none")
		a, b, burst := l.Key("a"), l.Key("b"), int(l.policyOf(0).burst)
		require.True(t, b.AllowN(burst-1))
		each := make([]Decision, 6)
		d := TakeAllInto(each, Charge{a, 2}, Charge{b, 1}, Charge{none, 1}, Charge{b, 1}, Charge{a, 3}, Charge{l.Key("c"), -1})
		require.Equal(t, 1, d.Denied)
		deniers := [6]bool{1: true, 2: true, 3: true, 5: true}
		for i := range each {
			require.Equal(t, deniers[i], !each[i].Allowed, "charge %d", i)
		}
		require.Equal(t, b.Peek(2), each[1])
		require.Equal(t, each[1], each[3])
		require.Equal(t, a.Peek(0), each[0], "not made")
		require.Equal(t, l.Peek("c", -1), each[5])
		require.Equal(t, Decision{RetryAfter: Never}, each[2])

		each[5] = Decision{Limit: 7}
		d = TakeAllInto(each[:2], Charge{a, 2}, Charge{b, 1}, Charge{a, 3})
		require.True(t, d.Allowed)
		require.Equal(t, []Decision{a.Peek(0), {Allowed: true, Limit: burst, ResetAfter: b.Peek(0).ResetAfter}, {RetryAfter: Never}}, each[:3])
		require.Equal(t, Decision{Limit: 7}, each[5])
	})
}

// TestTakeAllInto_SoftAndShadow: as of Take, and nothing that was not made is beyond the
// limit.
func TestTakeAllInto_SoftAndShadow(t *testing.T) {
	c := Config{Limit: PerMinute(3), Soft: 2}
	l, clock := newFrozen(t, c)
	c.Clock, c.Shadow = clock, true
	shadow := mustNew(t, c)
	each := make([]Decision, 2)
	require.True(t, TakeAllInto(each, Charge{l.Key("a"), 4}, Charge{shadow.Key("a"), 4}).OverSoft)
	require.Equal(t, Decision{Allowed: true, OverSoft: true, Limit: 3, ResetAfter: 80 * sec}, each[0])
	require.Equal(t, each[0], each[1])
	require.Equal(t, AllDecision{Allowed: true, Denied: -1, WouldDeny: true, OverSoft: true},
		TakeAllInto(each, Charge{l.Key("a"), 1}, Charge{shadow.Key("a"), 2}))
	require.Equal(t, [2]bool{false, true}, [2]bool{each[0].WouldDeny, each[1].WouldDeny})
	require.False(t, TakeAllInto(each, Charge{shadow.Key("a"), 1}, Charge{l.Key("a"), 1}).OverSoft)
	require.Equal(t, [2]bool{}, [2]bool{each[0].OverSoft, each[1].OverSoft})
}

func TestTakeAll_CostZeroAsksForOneUnit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		a, b, burst := l.Key("a"), l.Key("b"), int(l.policyOf(0).burst)
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
}

// TestTakeAll_ManyCharges: there is no bound on their number.
func TestTakeAll_ManyCharges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		var charges []Charge
		for i := range 100 {
			charges = append(charges, Charge{l.KeyUint64(uint64(i * 7919 % 90)), 1})
		}
		require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: int(l.policyOf(0).burst) - 2}, TakeAll(charges...))
		require.Equal(t, 90, l.Len())
		require.True(t, charges[63].Key.AllowN(int(l.policyOf(0).burst)-1))
		require.Equal(t, 63, TakeAll(charges...).Denied)
	})
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

// countingClock counts its readings, and moves on with each.
type countingClock struct{ n int64 }

func (c *countingClock) Now() int64 { c.n++; return c.n * int64(time.Second) }

// TestTakeAll_ReadsEachClockOnce, where all keys are tracked: one instant for all
// keys of a limiter. Each limiter goes by its own clock.
func TestTakeAll_ReadsEachClockOnce(t *testing.T) {
	first, second := &countingClock{}, &countingClock{n: 1000}
	l := mustNew(t, Config{Limit: PerMinute(2), Clock: first})
	m := mustNew(t, Config{Limit: PerMinute(2), Clock: second})
	charges := []Charge{{l.Key("a"), 1}, {m.Key("a"), 1}, {l.Key("b"), 1}, {m.Key("b"), 1}}
	require.True(t, TakeAll(charges...).Allowed)
	atFirst, atSecond := first.n, second.n
	require.True(t, TakeAll(charges...).Allowed)
	require.Equal(t, []int64{atFirst + 1, atSecond + 1}, []int64{first.n, second.n})
}

// TestTakeAll_AtMaxKeys: a call that is denied charges nothing, whatever the policy.
func TestTakeAll_AtMaxKeys(t *testing.T) {
	for _, o := range overflows {
		forEveryLayout(t, func(t *testing.T, c Config) {
			c.MaxKeys, c.Overflow = 8, o
			l, clock := newFrozen(t, c)
			other := mustNew(t, Config{Limit: PerMinute(3), Clock: clock})
			require.Equal(t, 8, fill(l, "old", 8))
			x, old, newKey := other.Key("x"), l.Key("old3"), l.Key("new")
			burst := int(l.policyOf(0).burst)

			d := TakeAll(Charge{x, 1}, Charge{newKey, 1}, Charge{old, burst})
			require.Equal(t, 2, d.Denied, "denied before anything is tracked")
			require.Equal(t, uint64(0), l.Stats().Evicted+l.Stats().Untracked)

			d = TakeAll(Charge{x, 1}, Charge{newKey, 1})
			switch o {
			case OverflowDenyNew:
				require.Equal(t, AllDecision{Denied: 1, RetryAfter: l.policyOf(0).limit.interval()}, d)
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

// TestTakeAll_MoreNewKeysThanRoom: it ends, though each key that is tracked pushes
// another one out.
func TestTakeAll_MoreNewKeysThanRoom(t *testing.T) {
	for _, o := range overflows {
		for _, maxKeys := range []int{1, 2, 3, 7, 10, 16} {
			forEveryLayout(t, func(t *testing.T, c Config) {
				c.MaxKeys, c.Overflow, c.Shards = maxKeys, o, 1+maxKeys/4
				l, _ := newFrozen(t, c)
				fill(l, "old", maxKeys/2)
				var charges []Charge
				for i := range maxKeys + 2 {
					charges = append(charges, Charge{l.Key(fmt.Sprint("new", i)), 1})
				}
				d := TakeAll(charges...)
				require.LessOrEqual(t, l.Len(), maxKeys)
				require.Equal(t, o != OverflowDenyNew, d.Allowed, "MaxKeys %d", maxKeys)
				if d.Allowed {
					return
				}
				require.Equal(t, l.policyOf(0).limit.interval(), d.RetryAfter)
				for _, ch := range charges {
					require.Equal(t, int(l.policyOf(0).burst), ch.Key.Peek(0).Remaining)
				}
			})
		}
	}
}

// holdByHand takes the word of a tracked key as a TakeAll does.
func holdByHand(t *testing.T, k Key) hold {
	t.Helper()
	h, ok := k.lim.tryHold(k.id)
	require.True(t, ok)
	require.NotNil(t, h.slot)
	return h
}

// TestTakeAll_UntrackedKeyIsJudgedWithTheOthers: a call looks for key a, which is not
// tracked and so cannot be held, and waits for b. Meanwhile a is exhausted, and then b
// is reset. There is no instant at which both would do.
func TestTakeAll_UntrackedKeyIsJudgedWithTheOthers(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for range 50 {
			l, clock := newFrozen(t, c)
			c.Clock = clock
			a, b := l.Key("a"), mustNew(t, c).Key("b")
			require.True(t, b.AllowN(int(l.policyOf(0).burst)))
			h := holdByHand(t, b)
			var d AllDecision
			wait := goDo(1, func(int) { d = TakeAll(Charge{b, 1}, Charge{a, 0}) })
			for range 4 {
				runtime.Gosched() // into the wait for b, or the race is not run this time
			}
			require.True(t, a.AllowN(int(l.policyOf(0).burst)))
			fresh := uint64(0)
			if l.policyOf(0).wide != nil {
				fresh = l.policyOf(0).wide.reset(state{h.word, h.tail})
			}
			h.release(fresh)
			wait()
			assert.False(t, d.Allowed)
		}
	})
}

// TestTakeAll_EveryOtherCallWaits for a held key, and then sees what it was left with.
func TestTakeAll_EveryOtherCallWaits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, call := range map[string]func(k Key){
			"Allow":   func(k Key) { assert.True(t, k.Allow()) },
			"Take":    func(k Key) { assert.Equal(t, int(k.lim.policyOf(0).burst)-3, k.Take(1).Remaining) },
			"Peek":    func(k Key) { assert.Equal(t, int(k.lim.policyOf(0).burst)-3, k.Peek(1).Remaining) },
			"Peek 0":  func(k Key) { assert.Equal(t, int(k.lim.policyOf(0).burst)-2, k.Peek(0).Remaining) },
			"Reset":   Key.Reset,
			"Refund":  func(k Key) { k.Refund(1) },
			"TakeAll": func(k Key) { assert.True(t, TakeAll(Charge{k, 1}).Allowed) },
			"Sweep":   func(k Key) { assert.Equal(t, 5, k.lim.Sweep()) },
			"grow":    func(k Key) { fill(k.lim, "filler", 100) },
		} {
			c.Shards = 1
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			fill(l, "idle", 5)
			for i := range 5 {
				l.Reset(fmt.Sprint("idle", i))
			}
			require.True(t, k.AllowN(2))
			h := holdByHand(t, k)
			wait := goDo(1, func(int) { call(k) })
			for range 4 {
				runtime.Gosched()
			}
			h.release(h.word)
			wait()
			left := map[string]int{"Allow": 3, "Take": 3, "Reset": 0, "Refund": 1, "TakeAll": 3}
			spent, changed := left[name]
			if !changed {
				spent = 2
			}
			require.Equal(t, int(l.policyOf(0).burst)-spent, k.Peek(0).Remaining, name)
		}
	})
}

// TestTakeAll_NewKeysSurviveGrowth: keys that are tracked for one call, and are as if
// idle until it charges them, all have to be there at once, however often their shard
// grows on the way.
func TestTakeAll_NewKeysSurviveGrowth(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Shards, c.MaxKeys, c.TTL = 1, -1, 1
		l, clock := newFrozen(t, c)
		clock.Advance(c.Limit.Period * 3 / 4) // a key is idle since its window began
		var charges []Charge
		for i := range uint64(200) {
			charges = append(charges, Charge{l.KeyUint64(i), 1})
		}
		require.True(t, TakeAll(charges...).Allowed)
		require.Equal(t, 200, l.Len())
		require.Zero(t, l.Stats().Untracked)
		for _, ch := range charges {
			require.Equal(t, int(l.policyOf(0).burst)-1, ch.Key.Peek(0).Remaining)
		}
	})
}
