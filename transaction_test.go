package sluice

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestTakeAll_ManyCharges: there is no bound on their number.
func TestTakeAll_ManyCharges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		var charges []Charge
		for i := range 100 {
			charges = append(charges, Charge{l.KeyUint64(uint64(i * 7919 % 90)), 1})
		}
		require.Equal(t, AllDecision{Allowed: true, Denied: -1, Remaining: burstOf(l) - 2}, TakeAll(charges...))
		require.Equal(t, 90, l.Len())
		require.True(t, charges[63].Key.AllowN(burstOf(l)-1))
		require.Equal(t, 63, TakeAll(charges...).Denied)
	})
}

// TestCollect_LinksTheChargesOfEachKey: whoever goes through those of all keys, meets each charge once.
// With thousands of them, looking at all for each key took seconds, while the keys were held.
func TestCollect_LinksTheChargesOfEachKey(t *testing.T) {
	l, other := mustNew(t, Config{Limit: PerSecond(5)}), mustNew(t, Config{Limit: PerSecond(5)})
	rng := seeded.Rand(t)
	for _, n := range []int{1, 2, 8, 100} { // sorted in two ways
		charges := make([]Charge, n)
		for i := range charges {
			charges[i] = Charge{[]*Limiter{l, other}[rng.IntN(2)].KeyUint64(rng.Uint64N(1 + uint64(n)/3)), 1}
		}
		want := map[Key][]int{}
		for i, c := range charges {
			want[c.Key] = append(want[c.Key], i)
		}
		tx := transaction{charges: charges, space: make([]claim, n), same: make(chain, n)}
		got := map[Key][]int{}
		for range 2 { // as a TakeAll does that starts over
			clear(got)
			tx.collectAgain()
			for _, c := range tx.claims() {
				got[Key{c.lim, c.id, c.terms}] = slices.Collect(tx.same.of(&c))
			}
		}
		require.Equal(t, want, got)
	}
}

// TestTakeAll_NewKeyDroppedByOthers: calls that bring another limit drop the new key of a TakeAll, which is idle until it is
// charged. That is no lack of room, however often they do: the key gets its word, and the limit holds.
func TestTakeAll_NewKeyDroppedByOthers(t *testing.T) {
	for _, a := range []Algorithm{GCRA, InFlight} {
		now, drops := start.UnixNano(), 0
		var other Key
		l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(5), Shards: 1, Clock: clockFunc(func() int64 {
			if left := drops - 1; left >= 0 {
				drops = 0 // Take reads the clock, too
				other.Take(0)
				drops = left
			}
			return now
		})})
		k, err := l.Key("a").WithLimit(PerMinute(4))
		require.NoError(t, err)
		other, err = l.Key("a").WithLimit(PerMinute(3))
		require.NoError(t, err)
		drops = 3 * trackRounds
		d := TakeAll(Charge{k, 1}, Charge{l.Key("b"), 1})
		require.Zero(t, drops, "the key was dropped in each round")
		require.True(t, d.Allowed, "%v", a)
		require.Equal(t, 3, k.Peek(0).Remaining, "%v: the unit counts", a)
		require.Zero(t, l.Stats().Untracked)
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

// TestTakeAll_MoreNewKeysThanRoom: it ends, though each key that is tracked pushes
// another one out.
func TestTakeAll_MoreNewKeysThanRoom(t *testing.T) {
	for _, o := range overflows {
		for _, maxKeys := range []int{1, 2, 3, 7, 10, 16} {
			forEveryLayout(t, func(t *testing.T, c Config) {
				if !slices.Contains(overflowsOf(c), o) {
					return
				}
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
				require.Equal(t, l.Config().Limit.interval(), d.RetryAfter)
				for _, ch := range charges {
					require.Equal(t, burstOf(l), ch.Key.Peek(0).Remaining)
				}
			})
		}
	}
}

// holdByHand takes the word of a tracked key as a TakeAll does.
func holdByHand(t *testing.T, k Key) hold {
	t.Helper()
	var h hold
	require.True(t, h.tryHold(&k.lim.store, k.id))
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
			require.True(t, b.AllowN(burstOf(l)))
			h := holdByHand(t, b)
			var d AllDecision
			wait := goDo(1, func(int) { d = TakeAll(Charge{b, 1}, Charge{a, 0}) })
			for range 4 {
				runtime.Gosched() // into the wait for b, or the race is not run this time
			}
			require.True(t, a.AllowN(burstOf(l)))
			h.word = h.policy.reset(h.state)
			h.release()
			wait()
			assert.False(t, d.Allowed)
		}
	})
}

// TestTakeAll_EveryOtherCallWaits for a held key, and then sees what it was left with.
func TestTakeAll_EveryOtherCallWaits(t *testing.T) {
	if splits() {
		return // it is about one table
	}
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, call := range map[string]func(k Key){
			"Allow":   func(k Key) { assert.True(t, k.Allow()) },
			"Take":    func(k Key) { assert.Equal(t, burstOf(k.lim)-3, k.Take(1).Remaining) },
			"Peek":    func(k Key) { assert.Equal(t, burstOf(k.lim)-3, k.Peek(1).Remaining) },
			"Peek 0":  func(k Key) { assert.Equal(t, burstOf(k.lim)-2, k.Peek(0).Remaining) },
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
				l.Key(fmt.Sprint("idle", i)).Reset()
			}
			require.True(t, k.AllowN(2))
			h := holdByHand(t, k)
			wait := goDo(1, func(int) { call(k) })
			for range 4 {
				runtime.Gosched()
			}
			h.release()
			wait()
			left := map[string]int{"Allow": 3, "Take": 3, "Reset": 0, "Refund": 1, "TakeAll": 3}
			spent, changed := left[name]
			if !changed {
				spent = 2
			}
			require.Equal(t, burstOf(l)-spent, k.Peek(0).Remaining, name)
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
			require.Equal(t, burstOf(l)-1, ch.Key.Peek(0).Remaining)
		}
	})
}
