package sluice

import (
	"context"
	"math"
	"math/bits"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

// fewRecords is how many records a ledger has at least when it looks for those that are over.
const fewRecords = 64

// TestLedger_KeysAreInNobodyElsesWay: while a key's reservations are being changed, however
// long that takes, all can be done with the other keys of its shard.
func TestLedger_KeysAreInNobodyElsesWay(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(10), Shards: 1})
	busy, k := l.Key("busy"), l.Key("k")
	mustReserve(t, busy, 1)
	rec := l.ledgers.Of(busy.id).Find(busy.id)
	require.True(t, rec.Lock())
	defer rec.Release()
	for range 200 { // enough records to be tidied
		mustReserve(t, l.KeyUint64(uint64(clock.Now())), 1)
		clock.Advance(1)
	}
	mustReserve(t, k, 5).Cancel()
	k.Refund(1)
	mustReserve(t, k, 5).Settle(1)
	k.Refund(1)
	k.Reset()
	k.Block(sec)
	k.Unblock()
	spend(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.Wait(ctx, 1), context.Canceled)
	require.NoError(t, k.SetLimit(PerSecond(20)))
	mustReserve(t, k, 5).Settle(8)
	k.ClearLimit()
	require.True(t, busy.Allow(), "nor are calls for the key itself")
}

// TestLedger_RecordsOfAbandonedReservationsGo, although nobody sweeps.
func TestLedger_RecordsOfAbandonedReservationsGo(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1000), Shards: 1, TTL: math.MaxInt64})
	most := 0
	for i := range 10_000 {
		mustReserve(t, l.KeyUint64(uint64(i)), 1)
		clock.Advance(sec / 10_000) // ten are open at a time
		most = max(most, recordsOf(l))
	}
	require.LessOrEqual(t, most, 2*fewRecords)
}

// TestLedger_RecordsGoWithTheirKeys: those of reservations that nobody settles are at most twice as many as
// MaxKeys allows, and the next reservation ends those of keys that have been dropped.
func TestLedger_RecordsGoWithTheirKeys(t *testing.T) {
	const most = 1000
	for name, reserve := range map[string]func(l *Limiter, i uint64){
		"Reserve": func(l *Limiter, i uint64) { mustReserve(t, l.KeyUint64(i), 1) },
		"TakeAllReservations": func(l *Limiter, i uint64) {
			reservations := make([]*Reservation, 1)
			require.True(t, TakeAllReservations(reservations, nil, Charge{l.KeyUint64(i), 1}).Allowed)
			require.NotNil(t, reservations[0])
		},
	} {
		l, clock := newFrozen(t, Config{Limit: PerDay(100), MaxKeys: most})
		for i := range uint64(10 * most) {
			reserve(l, i)
			require.LessOrEqual(t, recordsOf(l), 2*most+2*fewRecords, name)
		}
		require.LessOrEqual(t, l.Len(), most)
		clock.Advance(48 * time.Hour)
		for i := range uint64(10 * most) {
			l.KeyUint64(1<<32 + i).Allow()
		}
		for i := range uint64(100) { // as many as there are shards, and some
			reserve(l, 1<<40+i)
		}
		require.LessOrEqual(t, recordsOf(l), 100, name)
	}
}

// openOf returns how many open reservations the key has.
func openOf(k Key) int {
	if rec := k.lim.ledgers.Of(k.id).Find(k.id); rec != nil {
		return rec.Len()
	}
	return 0
}

// TestSweep_EndsRecordsOfDroppedKeys, though their units have not come back.
func TestSweep_EndsRecordsOfDroppedKeys(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerDay(100), MaxKeys: 1, Shards: 1})
	k := l.Key("k")
	mustReserve(t, k, 1)
	require.True(t, l.Allow("other"))
	require.NotZero(t, openOf(k))
	l.Sweep()
	require.Zero(t, openOf(k))
}

// TestReserve_TooMany: a key can have so many reservations and waiting calls, until some
// have been settled, have come back by themselves, or have gone with their key.
func TestReserve_TooMany(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1 << 20), MaxKeys: 1, Shards: 1, Stats: true})
		other, _ := newFrozen(t, Config{Limit: PerSecond(1)})
		k, o := l.Key("k"), other.Key("k")
		full := func() {
			t.Helper()
			_, err := k.Reserve(1, Never)
			require.ErrorIs(t, err, ErrTooManyReservations, "%v", a)
			_, err = k.Reserve(0, Never)
			require.NoError(t, err, "which charges nothing")
		}
		first := mustReserve(t, k, 1)
		for range maxReservations - 1 {
			mustReserve(t, k, 1)
		}
		full()
		first.Cancel()
		mustReserve(t, k, 1)
		full()
		_, err := reserveAll(Never, Charge{o, 1}, Charge{k, 1})
		require.ErrorIs(t, err, ErrTooManyReservations)
		require.Zero(t, o.Peek(0).ResetAfter, "none has been charged")
		clock.Advance(10 * sec)
		mustReserve(t, k, 1)
		for err = nil; err == nil; {
			_, err = k.Reserve(1, Never)
		}
		full()
		require.True(t, l.Allow("other"))
		mustReserve(t, k, 1)
		require.Equal(t, 1, openReservations(l))
		require.NotZero(t, l.Stats().Denied)
	}
}

// TestWait_TooMany: calls that wait count, and those that have been woken do not.
func TestWait_TooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Limit: PerSecond(10).WithBurst(1 << 17)})
		require.True(t, l.AllowN("k", 1<<17))
		var held []*Reservation
		for range maxReservations - 5 {
			held = append(held, mustReserve(t, l.Key("k"), 1))
		}
		errs := make(chan error, 6)
		for range 6 {
			go func() { errs <- l.Wait(t.Context(), "k", 1) }()
		}
		require.ErrorIs(t, <-errs, ErrTooManyReservations)
		require.NoError(t, <-errs)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		for range 4 {
			require.NoError(t, <-errs)
		}
		for _, r := range held {
			r.Cancel()
		}
		require.Zero(t, openReservations(l))
	})
}

// TestReserve_NoWaitIsAsShortAsANegativeOne, whatever the key's state.
func TestReserve_NoWaitIsAsShortAsANegativeOne(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, limit := range []Limit{PerSecond(1).WithBurst(5), Unlimited} {
			for _, c := range []Config{{}, {MaxKeys: 1, Overflow: OverflowAdmitNew, Shards: 1}} {
				c.Algorithm, c.Limit = a, limit
				l, _ := newFrozen(t, c)
				for _, key := range []string{"k", "another"} {
					for _, cost := range []int{0, 1} {
						for range 2 {
							_, err := l.Key(key).Reserve(cost, -1)
							require.ErrorIs(t, err, ErrWouldExceedDeadline, "%v, %v, cost %d", a, limit, cost)
							require.NotContains(t, key, l.Len(), "a denied call tracks nothing")
						}
					}
					_, err := l.Key(key).Reserve(1, 0)
					require.NoError(t, err)
				}
			}
		}
	}
}

// TestReserve_ShadowSaysWhatWouldBeDenied.
func TestReserve_ShadowSaysWhatWouldBeDenied(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(2), Shadow: true})
		for i, want := range []bool{false, a == LeakyBucket, true, true} {
			r, err := l.Key("k").Reserve(1, 0)
			require.NoError(t, err)
			require.Zero(t, r.Delay())
			require.Equal(t, want, r.WouldDeny(), "%v, %d", a, i)
			if r.WouldDeny() {
				r.Settle(7)
			}
		}
		require.LessOrEqual(t, l.Key("k").Peek(0).ResetAfter, 2*sec)
		r, err := l.Key("k").Reserve(3, time.Hour)
		require.NoError(t, err)
		require.True(t, r.WouldDeny())
	}
}

// backClock is a clock that can go back, as the time of day can.
type backClock struct{ now int64 }

func (c *backClock) Now() int64 { return c.now }

// TestCancel_OfASweptKeyMintsNothing, though the clock goes back after the sweep.
func TestCancel_OfASweptKeyMintsNothing(t *testing.T) {
	for _, a := range bucketAlgorithms {
		clock := &backClock{now: 100 * int64(sec)}
		l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), Clock: clock, Shards: 1, TTL: 1})
		k := l.Key("k")
		r := mustReserve(t, k, 6)
		clock.now += 20 * int64(sec)
		require.Equal(t, 1, l.Sweep(), "%v", a)
		clock.now -= 18 * int64(sec)
		require.True(t, k.AllowN(10))
		owes := k.Peek(0).ResetAfter
		r.Cancel()
		require.Equal(t, owes, k.Peek(0).ResetAfter, "%v", a)
	}
}

// TestCancel_DoesNotBunchSlotsUnderAnotherLimit: they are still to come after a change of the
// limit, or of its burst only.
func TestCancel_DoesNotBunchSlotsUnderAnotherLimit(t *testing.T) {
	for _, a := range []Algorithm{GCRA, TokenBucket} {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1)})
		k := l.Key("k")
		require.True(t, k.Allow())
		first, second := mustReserve(t, k, 1), mustReserve(t, k, 1)
		require.Equal(t, 2*sec, second.Delay())
		require.NoError(t, l.SetLimit(PerSecond(1).WithBurst(2)))
		require.NoError(t, k.SetLimit(PerSecond(1).WithBurst(1)))
		first.Cancel()
		require.Equal(t, 3*sec, mustReserve(t, k, 1).Delay(), "%v: two units in one instant", a)
	}
}

// TestCancel_WhatHasComeBackStays: it cannot be had again by giving back what was charged
// before other charges.
func TestCancel_WhatHasComeBackStays(t *testing.T) {
	for _, a := range []Algorithm{GCRA, TokenBucket} {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(20)})
		k := l.Key("k")
		first := mustReserve(t, k, 10)
		clock.Advance(9 * sec)
		require.True(t, k.AllowN(5))
		second := mustReserve(t, k, 1)
		clock.Advance(sec / 2)
		owes := k.Peek(0).ResetAfter
		first.Cancel()
		require.Equal(t, owes-sec/2, k.Peek(0).ResetAfter, "%v", a)
		second.Cancel()
		require.Equal(t, owes-3*sec/2, k.Peek(0).ResetAfter, "%v", a)
	}
}

// TestLedger_AnotherBurstKeepsWhatIsMissingBeforeSlots: of two slots of a queue the first one
// is cancelled, the burst changes, and the other one is cancelled. Nothing stays charged.
func TestLedger_AnotherBurstKeepsWhatIsMissingBeforeSlots(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for name, change := range map[string]func(l *Limiter, limit Limit) error{
			"limiter": (*Limiter).SetLimit,
			"key":     func(l *Limiter, limit Limit) error { return l.Key("k").SetLimit(limit) },
		} {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10)})
			require.True(t, l.AllowN("k", 2))
			first, err := l.Key("k").Reserve(5, math.MaxInt64)
			require.NoError(t, err)
			second, err := l.Key("k").Reserve(3, math.MaxInt64)
			require.NoError(t, err)
			first.Cancel()
			require.NoError(t, change(l, PerSecond(1).WithBurst(12)))
			second.Cancel()
			require.Equal(t, 2*sec, l.Key("k").Peek(0).ResetAfter, "%v %s", a, name)
		}
	}
}

// TestEnds_StepsAreLogarithmic in the number of reservations, each of them, in every order
// of settling.
func TestEnds_StepsAreLogarithmic(t *testing.T) {
	rng := seeded.Rand(t)
	orders := map[string]func(i, n int) int{
		"first": func(int, int) int { return 0 },
		"last":  func(_, n int) int { return n - 1 },
		"any":   func(_, n int) int { return rng.IntN(n) },
	}
	for name, pick := range orders {
		for _, n := range []int{1, 100, 40_000} {
			l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(10)})
			k := l.Key("k")
			all := make([]*Reservation, n)
			steps := func(what string, f func()) int {
				rec := l.ledgers.Of(k.id).Find(k.id)
				if rec == nil {
					f()
					return 0
				}
				before := rec.Visited
				f()
				spent := rec.Visited - before
				require.LessOrEqual(t, spent, 40*(bits.Len(uint(n))+1), "%s of %d, %s first", what, n, name)
				return spent
			}
			sum := 0
			for i := range all {
				sum += steps("Reserve", func() { all[i] = mustReserve(t, k, 1) })
			}
			for i := range n {
				j := pick(i, n-i)
				r := all[j]
				if j == 0 {
					all = all[1:]
				} else {
					all[j] = all[n-i-1]
					all = all[:n-i-1]
				}
				if i%10 == 0 {
					sum += steps("Refund", func() { k.Refund(1) })
				}
				sum += steps("Settle", r.Cancel)
			}
			require.Less(t, sum, 12*n*(bits.Len(uint(n))+2), "of %d, %s first", n, name)
			require.Zero(t, openReservations(l))
		}
	}
}

// TestLedger_MoreIsRefundedThanARecordCanTell: the reservations end then, and give nothing back
// that has come back already.
func TestLedger_MoreIsRefundedThanARecordCanTell(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, refunds := range [][]int{{2}, {1, 1}} {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: Per(1, 20*365*day).WithBurst(4)})
			k := l.Key("k")
			first, second := mustTake(t, k, 1), mustTake(t, k, 3)
			rec := l.ledgers.Of(k.id).Find(k.id)
			require.Equal(t, 2, rec.Len())
			for _, n := range refunds {
				k.Refund(n)
			}
			require.Zero(t, rec.Len(), "%v: refunds of %v", a, refunds)
			require.Equal(t, 2, k.Peek(0).Remaining)
			first.Cancel()
			second.Settle(1)
			require.Equal(t, 2, k.Peek(0).Remaining, "%v: no more than was refunded", a)
			require.Zero(t, openOf(k))
		}
	}
}

// TestCancel_AfterAnEvictionMintsNothing: what a reservation has charged has gone with the
// key, whatever the key that comes back is charged with.
func TestCancel_AfterAnEvictionMintsNothing(t *testing.T) {
	recharges := map[string]func(k Key, cost int) bool{
		"Allow":   Key.AllowN,
		"Take":    func(k Key, cost int) bool { return k.Take(cost).Allowed },
		"TakeAll": func(k Key, cost int) bool { return TakeAll(Charge{k, cost}).Allowed },
		"Wait":    func(k Key, cost int) bool { return k.Wait(t.Context(), cost) == nil },
		"Reserve": func(k Key, cost int) bool { r, err := k.Reserve(cost, 0); return err == nil && r.Delay() == 0 },
	}
	for _, a := range bucketAlgorithms {
		for name, recharge := range recharges {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), MaxKeys: 1, Shards: 1})
			k := l.Key("k")
			r := mustReserve(t, k, 6)
			require.True(t, l.Allow("other"))
			require.Equal(t, uint64(1), l.Stats().Evicted)
			require.True(t, recharge(k, 10), "%v: a fresh key", a)
			r.Cancel()
			require.False(t, k.Allow(), "%v, recharged by %s: units that nobody has been charged", a, name)
		}
	}
}

// TestCancel_AfterAnEvictionOfAnother: the reservations of the key that has come back are good.
func TestCancel_AfterAnEvictionOfAnother(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), MaxKeys: 1, Shards: 1})
		k := l.Key("k")
		old := mustReserve(t, k, 2)
		require.True(t, l.Allow("other"))
		require.True(t, k.AllowN(5))
		r := mustReserve(t, k, 3)
		old.Cancel()
		require.Equal(t, 8*sec, k.Peek(0).ResetAfter, "%v", a)
		r.Settle(1)
		require.Equal(t, 6*sec, k.Peek(0).ResetAfter, "%v", a)
	}
}

// TestLedger_ARecordThatHasGone: whoever has found it before looks for the key's next one.
func TestLedger_ARecordThatHasGone(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10)})
	k := l.Key("k")
	r := mustReserve(t, k, 1)
	lg := l.ledgers.Of(k.id)
	found := lg.Find(k.id)
	require.NotNil(t, found)
	r.Cancel()
	require.Zero(t, openOf(k))
	l.Sweep()
	require.Nil(t, lg.Find(k.id))
	require.False(t, found.Lock())
	mustReserve(t, k, 1)
	require.NotSame(t, found, lg.Find(k.id))
}

// TestWaitAll_GivesTheReservationsOfTakeAllReservations: they are settled to the same effect, under every algorithm, but for the turns
// of LeakyBucket.
func TestWaitAll_GivesTheReservationsOfTakeAllReservations(t *testing.T) {
	rng := seeded.Rand(t)
	for name, c := range everyFew {
		if c.Algorithm == LeakyBucket {
			continue
		}
		t.Run("layout="+name, func(t *testing.T) {
			for range 40 {
				waits, clock := newFrozen(t, c)
				c.Clock = clock
				takes := mustNew(t, c)
				unit := max(burstOf(waits)/10, 1)
				var got, want []*Reservation
				for step := range 60 {
					switch op := rng.IntN(8); {
					case op < 3:
						n := 1 + rng.IntN(2)
						a, b := make([]Charge, n), make([]Charge, n)
						for i := range n {
							cost := rng.IntN(4) * unit
							a[i], b[i] = Charge{waits.Key("k"), cost}, Charge{takes.Key("k"), cost}
						}
						all := make([]*Reservation, n)
						if !TakeAllReservations(all, nil, b...).Allowed {
							continue
						}
						mine, err := WaitAll(t.Context(), a...)
						require.NoError(t, err)
						got, want = append(got, mine...), append(want, all...)
					case op < 6 && len(got) > 0:
						i, actual := rng.IntN(len(got)), rng.IntN(5)*unit
						got[i].Settle(actual)
						want[i].Settle(actual)
					case op == 6:
						clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period))))
					case op == 7 && rng.IntN(4) == 0:
						waits.Key("k").Block(c.Limit.Period)
						takes.Key("k").Block(c.Limit.Period)
					}
					require.Equal(t, takes.Key("k").Peek(1), waits.Key("k").Peek(1), "step %d", step)
				}
				for i := range got {
					got[i].Cancel()
					want[i].Cancel()
				}
				require.Equal(t, takes.Key("k").Peek(1), waits.Key("k").Peek(1))
			}
		})
	}
}
