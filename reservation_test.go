package sluice

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/ledger"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// mustTake is a TakeAllReservations of one charge that is to be admitted.
func mustTake(t testing.TB, k Key, cost int) *Reservation {
	t.Helper()
	var all [1]*Reservation
	require.True(t, TakeAllReservations(all[:], nil, Charge{k, cost}).Allowed)
	return all[0]
}

// TestTakeAllReservations_Overlapping: many requests of one key are open at once, and all succeed
// in the end. Time that nobody has used while they were open is not saved up for later.
func TestTakeAllReservations_Overlapping(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Limit.Rate, c.Limit.Period, c.Offset = 10, 10*sec, 0
		if c.Limit.Burst != 0 {
			c.Limit.Burst = 10
		}
		for _, back := range []bool{false, true} {
			l, clock := newFrozen(t, c)
			k := l.Key("k")
			var open []*Reservation
			for range 10 {
				open = append(open, mustTake(t, k, 1))
			}
			clock.Advance(3 * sec)
			for i := range open {
				if back {
					i = len(open) - 1 - i
				}
				open[i].Cancel()
			}
			assert.Equal(t, 10, k.Peek(0).Remaining, "all of it has come back")
			require.True(t, k.AllowN(10))
			for _, r := range open {
				r.Cancel()
			}
			assert.Zero(t, k.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReservations_AcrossLimits: a change that leaves the windows as they are leaves the
// reservations good.
func TestTakeAllReservations_AcrossLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, change := range map[string]func(l *Limiter, to Limit) error{
			"all": func(l *Limiter, to Limit) error { return l.SetLimit(to) },
			"own": func(l *Limiter, to Limit) error { return l.Key("k").SetLimit(to) },
		} {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			r, other := mustTake(t, k, 5), mustTake(t, k, 2)
			to := c.Limit
			if to.Burst != 0 {
				to.Burst *= 2
			} else {
				to.Rate *= 2
			}
			require.NoError(t, change(l, to))
			r.Settle(1)
			assert.Equal(t, to.Capacity()-1-2, k.Peek(0).Remaining, name)
			require.NoError(t, change(l, DenyAll))
			other.Cancel()
			require.NoError(t, change(l, to))
			assert.Equal(t, to.Capacity()-1, k.Peek(0).Remaining, name)

			third := mustTake(t, k, 4)
			to.Period *= 3
			require.NoError(t, change(l, to))
			left := k.Peek(0).Remaining
			third.Cancel()
			assert.GreaterOrEqual(t, k.Peek(0).Remaining, left, name)
			assert.LessOrEqual(t, k.Peek(0).Remaining, to.Capacity()-1, name)
		}
	})
}

// TestTakeAllReservations_NilAndEmpty: there is a reservation for each charge that was made, and for
// none else; one of nothing gives nothing back, and can still be charged.
func TestTakeAllReservations_NilAndEmpty(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		c.Shadow = true
		shadow, _ := newFrozen(t, c)
		k, other := l.Key("k"), l.Key("other")
		most := c.Limit.Capacity()
		all, each := make([]*Reservation, 4), make([]Decision, 4)
		all[0], all[3] = &Reservation{}, &Reservation{}
		d := TakeAllReservations(all, each, Charge{k, 1}, Charge{other, most + 1})
		assert.False(t, d.Allowed)
		assert.Equal(t, 1, d.Denied)
		assert.True(t, each[0].Allowed)
		assert.Nil(t, all[0])
		assert.Nil(t, all[1])
		assert.NotNil(t, all[3], "what is beyond the charges is left alone")
		assert.Zero(t, l.Len(), "a denial tracks nothing")

		shadow.AllowN("k", most)
		d = TakeAllReservations(all, each, Charge{k, 0}, Charge{shadow.Key("k"), 1}, Charge{other, 2})
		assert.True(t, d.Allowed)
		assert.True(t, d.WouldDeny)
		assert.Nil(t, all[1], "nothing was charged")
		all[1].Settle(5)
		all[1].Cancel()
		assert.Zero(t, all[1].Delay())
		assert.True(t, all[1].WouldDeny())
		assert.Zero(t, shadow.Key("k").Peek(0).Remaining, "and so nothing is settled")
		all[0].Cancel()
		assert.Equal(t, most, k.Peek(0).Remaining)
		all[0] = nil
		all[2].Settle(3)
		assert.Equal(t, most-3, other.Peek(0).Remaining)

		require.NoError(t, l.SetLimit(Unlimited))
		mustTake(t, k, 5).Cancel()
		mustTake(t, k, 5).Settle(7)
		require.NoError(t, l.SetLimit(c.Limit))
		assert.Equal(t, most, k.Peek(0).Remaining)

		assert.True(t, TakeAllReservations(nil, nil).Allowed)
		assert.True(t, TakeAllReservations(nil, nil, Charge{k, 1}).Allowed, "without a place for the reservation")
		assert.Equal(t, most-1, k.Peek(0).Remaining)
	})
}

// TestTakeAllReservations_WithoutRoom: a key that is admitted without state has nothing to give
// back, and one that is denied for want of room no reservation.
func TestTakeAllReservations_WithoutRoom(t *testing.T) {
	for _, o := range []Overflow{OverflowAdmitNew, OverflowDenyNew} {
		l, _ := newFrozen(t, Config{Limit: PerSecond(10), MaxKeys: 1, Shards: 1, Overflow: o})
		require.True(t, l.Allow("first"))
		all := make([]*Reservation, 1)
		require.Equal(t, o == OverflowAdmitNew, TakeAllReservations(all, nil, Charge{l.Key("k"), 3}).Allowed)
		require.Equal(t, o == OverflowAdmitNew, all[0] != nil)
		if all[0] != nil {
			all[0].Cancel()
		}
		require.Equal(t, 10, l.Key("k").Peek(0).Remaining)
		require.Equal(t, 9, l.Key("first").Peek(0).Remaining)
	}
}

// TestTakeAllReservations_LeavesNoRecords once all have been settled, nor after denials.
func TestTakeAllReservations_LeavesNoRecords(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		var open []*Reservation
		for range 5 {
			open = append(open, mustTake(t, k, 1))
		}
		require.NotZero(t, openOf(k))
		for _, r := range open {
			r.Settle(1)
		}
		require.Zero(t, openOf(k))
		require.False(t, TakeAllReservations(nil, nil, Charge{k, -1}).Allowed)
		require.Zero(t, openOf(k))
	})
}

// TestConcurrent_ReservationsGiveBackWhatTheyTook: goroutines take and give back at once, with a
// clock that stands still, while tables grow and keys get limits of their own. In the end all is
// there, and never has more been admitted than there was.
func TestConcurrent_ReservationsGiveBackWhatTheyTook(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		keys := []Key{l.Key("a"), l.Key("b")}
		most := c.Limit.Capacity()
		goDo(4, func(g int) {
			for i := range 300 {
				first, second := keys[g%2], keys[(g+1)%2]
				all := make([]*Reservation, 2)
				d := TakeAllReservations(all, nil, Charge{first, 1}, Charge{second, 2})
				if d.Allowed {
					all[0].Cancel()
					all[1].Cancel()
				}
				switch {
				case g == 0 && i%10 == 0:
					_ = first.SetLimit(c.Limit)
					first.ClearLimit()
				case g == 1:
					l.KeyUint64(uint64(i)).Allow()
				}
			}
		})()
		for _, k := range keys {
			require.Equal(t, most, k.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReservations_ManyCharges: more than fit into its own space, each with its reservation.
func TestTakeAllReservations_ManyCharges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		var charges []Charge
		for i := range 30 {
			charges = append(charges, Charge{l.KeyUint64(uint64(i % 20)), 1})
		}
		all := make([]*Reservation, len(charges))
		require.True(t, TakeAllReservations(all, nil, charges...).Allowed)
		for i, r := range all {
			require.NotNil(t, r, "charge %d", i)
			r.Cancel()
		}
		for _, charge := range charges {
			require.Equal(t, c.Limit.Capacity(), charge.Key.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReservations_AfterABlock that is over, and that nobody has swept: its end is not taken
// for what the key owes.
func TestTakeAllReservations_AfterABlock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		k := l.Key("k")
		k.Allow()
		require.True(t, k.Block(sec))
		clock.Advance(k.Peek(0).ResetAfter + sec)
		most := c.Limit.Capacity()
		first, second := mustTake(t, k, 2), mustTake(t, k, 3)
		first.Cancel()
		require.Equal(t, most-3, k.Peek(0).Remaining)
		second.Cancel()
		require.Equal(t, most, k.Peek(0).Remaining)
	})
}

// TestTakeAllReservations_OfUnitsThatWereRefunded: what a log has struck out is not given back a second
// time, and units of other times are left alone.
func TestTakeAllReservations_OfUnitsThatWereRefunded(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerMinute(10)})
	k := l.Key("k")
	require.True(t, k.AllowN(3))
	clock.Advance(sec)
	r := mustTake(t, k, 4)
	k.Refund(3)
	require.Equal(t, 6, k.Peek(0).Remaining)
	other := mustTake(t, k, 0)
	r.Cancel()
	require.Equal(t, 7, k.Peek(0).Remaining, "one unit of its own was left")
	other.Cancel()
	r = mustTake(t, k, 2)
	k.Refund(2)
	clock.Advance(sec)
	require.True(t, k.Allow())
	r.Cancel()
	require.Equal(t, 6, k.Peek(0).Remaining, "none was left")
}

// yieldingBucket loses the processor between a decision and its swap.
type yieldingBucket struct{ bucket }

func (y yieldingBucket) charge(word uint64, now int64, cost int) (uint64, bool) {
	defer yieldSometimes()
	return y.bucket.charge(word, now, cost)
}

func (y yieldingBucket) pack(full, now uint64) uint64 {
	defer yieldSometimes()
	return y.bucket.pack(full, now)
}

func (y yieldingBucket) idleAt(word uint64) uint64 {
	defer yieldSometimes()
	return y.bucket.idleAt(word)
}

// TestConcurrent_ReservationsAddUp: with the clock frozen, what keys owe in the end is what was
// used, whatever was reserved, settled, cancelled and taken meanwhile, while the tables
// are replaced.
func TestConcurrent_ReservationsAddUp(t *testing.T) {
	for _, a := range bucketAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			for round := range 4 {
				// A queue has slots to come at once, and those that are used leave gaps, so
				// that there nothing is used. The others have no slots to come in every other
				// round.
				c := Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), Shards: 1}
				if a == LeakyBucket || round%2 == 0 {
					c.Limit.Burst = 1_000_000
				}
				l, _ := newFrozen(t, c)
				setAlgorithm(l, yieldingBucket{l.policyOf(0).bucket()}, nil)
				addUp(t, l, a != LeakyBucket && round%2 == 0, rng.Uint64())
			}
		})
	}
}

func addUp(t *testing.T, l *Limiter, uses bool, seed uint64) {
	t.Helper()
	keys := []Key{l.Key("a"), l.Key("b")}
	var used [2]atomic.Int64
	stop := churnAll([]*Limiter{l})
	goDo(3, func(g int) {
		rng := rand.New(rand.NewPCG(seed, uint64(g)))
		open := map[*Reservation]int{}
		settle := func(r *Reservation, key int) {
			actual := 0
			if uses {
				actual = rng.IntN(2*r.cost+2) - 1
				used[key].Add(int64(actual))
				if actual < 0 {
					used[key].Add(int64(1 + r.cost))
				}
			}
			if goDo(2, func(int) { r.Settle(actual) })(); rng.IntN(2) == 0 {
				r.Cancel()
			}
			delete(open, r)
		}
		for range 300 {
			key, cost := rng.IntN(2), 1+rng.IntN(4)
			switch rng.IntN(4) {
			case 0:
				if keys[key].AllowN(cost) {
					used[key].Add(int64(cost))
				}
			case 1, 2:
				r, err := keys[key].Reserve(cost, math.MaxInt64)
				if err != nil {
					t.Error(err)
					return
				}
				open[r] = key
			default:
				for r, key := range open {
					settle(r, key)
					break
				}
			}
		}
		for r, key := range open {
			settle(r, key)
		}
	})()
	stop()
	for i := range keys {
		require.Equal(t, time.Duration(used[i].Load())*sec, keys[i].Peek(0).ResetAfter, "key %d", i)
	}
	require.Zero(t, openReservations(l))
}

// TestConcurrent_ReservationsAmongEverything: nothing that can be done to keys stands in the
// way of anything else, and in the end all is forgotten.
func TestConcurrent_ReservationsAmongEverything(t *testing.T) {
	t.Parallel()
	for _, a := range bucketAlgorithms {
		rng := seeded.Rand(t)
		seed := rng.Uint64()
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(100).WithBurst(50), Shards: 2, TTL: 1, MaxKeys: 60, BlockFor: sec / 10, Stats: true})
		stop := goUntil(1, func(int, int) {
			clock.Advance(sec / 1000)
			runtime.Gosched()
		})
		goDo(4, func(g int) {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			var open []*Reservation
			for range 1200 {
				k := l.Key(fmt.Sprint(rng.IntN(3)))
				if op := rng.IntN(24); op < 8 {
					if r, err := k.Reserve(1+rng.IntN(9), time.Hour); err == nil {
						open = append(open, r)
					}
				} else if op < 14 && len(open) > 0 {
					i := rng.IntN(len(open))
					open[i].Settle(rng.IntN(12) - 1)
					open[i], open = open[len(open)-1], open[:len(open)-1]
				} else {
					disturbKey(l, k, rng)
				}
			}
		})()
		stop()
		clock.Advance(1000 * time.Hour)
		l.Sweep()
		require.Zero(t, openReservations(l))
		eachRecord(l, func(*ledger.Record) { t.Error("an empty record is left") })
		require.Zero(t, l.Len())
	}
}

// disturbKey does anything but reserve.
func disturbKey(l *Limiter, k Key, rng *rand.Rand) {
	other := l.KeyUint64(rng.Uint64N(100))
	limit := PerSecond(1 + rng.IntN(200)).WithBurst(30 + rng.IntN(50))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch rng.IntN(14) {
	case 0:
		k.Refund(1 + rng.IntN(9))
	case 1:
		k.Reset()
	case 2:
		k.Block(time.Duration(rng.Int64N(int64(sec))))
	case 3:
		k.Unblock()
	case 4:
		TakeAll(Charge{k, 1}, Charge{other, 2}, Charge{l.Key("0"), 1})
	case 5:
		_ = l.SetLimit(limit)
	case 6:
		_ = k.SetLimit(limit)
	case 7:
		k.ClearLimit()
	case 8:
		l.Sweep()
	case 9:
		l.Stats()
	case 10:
		go func() {
			runtime.Gosched()
			cancel()
		}()
		_ = k.Wait(ctx, 1+rng.IntN(20))
	default:
		other.Allow()
		k.AllowN(1 + rng.IntN(60))
	}
}

// TestTakeAllReservations_OfEarlierUnits: in a window algorithm a reservation takes its own units out,
// and none that were charged after them. Then the key is as if they had never been charged.
func TestTakeAllReservations_OfEarlierUnits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, later := range []time.Duration{c.Limit.Period / 4, c.Limit.Period / 2, c.Limit.Period, 2 * c.Limit.Period} {
			l, clock := newFrozen(t, c)
			if l.policyOf(0).stamper() == nil {
				return
			}
			k, without := l.Key("k"), l.Key("without")
			require.True(t, TakeAll(Charge{k, 3}, Charge{without, 3}).Allowed)
			clock.Advance(1)
			first := mustTake(t, k, 7)
			clock.Advance(later)
			require.True(t, TakeAll(Charge{k, 2}, Charge{without, 2}).Allowed)
			first.Settle(0)
			for range 8 {
				require.Equal(t, without.Peek(0).Remaining, k.Peek(0).Remaining, "after %v", later)
				clock.Advance(c.Limit.Period / 3)
			}
		}
	})
}

// TestCancel_AfterABlockThatHasBeenForgotten: a block has taken the place of what was charged, and
// a call for no units that of the block. When the clock goes back to before its end, the reservation
// has nothing to give back, nor has one that another one follows.
func TestCancel_AfterABlockThatHasBeenForgotten(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, more := range []bool{false, true} {
			clock := &backClock{now: start.UnixNano()}
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(20), BlockFor: sec, Clock: clock})
			k := l.Key("k")
			old := mustReserve(t, k, 20)
			require.False(t, k.Allow(), "which blocks, until the key would be fresh")
			clock.now += int64(20 * sec)
			require.NoError(t, k.Wait(t.Context(), 0))
			clock.now -= int64(14 * sec)
			require.True(t, k.AllowN(3), "%v", a)
			if more {
				mustReserve(t, k, 2)
			}
			owes := k.Peek(0).ResetAfter
			require.NotZero(t, owes)
			old.Cancel()
			require.Equal(t, owes, k.Peek(0).ResetAfter, "%v, followed by another one: %t", a, more)
		}
	}
}
