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

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/seeded"
)

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

// TestConcurrent_ReceiptsAddUp: with the clock frozen, what keys owe in the end is what was
// used, whatever was reserved, settled, cancelled and taken meanwhile, while the tables
// are replaced.
func TestConcurrent_ReceiptsAddUp(t *testing.T) {
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

// TestConcurrent_ReceiptsAmongEverything: nothing that can be done to keys stands in the
// way of anything else, and in the end all is forgotten.
func TestConcurrent_ReceiptsAmongEverything(t *testing.T) {
	t.Parallel()
	for _, a := range bucketAlgorithms {
		rng := seeded.Rand(t)
		seed := rng.Uint64()
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(100).WithBurst(50), Shards: 2, TTL: 1, MaxKeys: 60, BlockFor: sec / 10, Stats: true})
		var done atomic.Bool
		ticking := goDo(1, func(int) {
			for !done.Load() {
				clock.Advance(sec / 1000)
				runtime.Gosched()
			}
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
		done.Store(true)
		ticking()
		clock.Advance(1000 * time.Hour)
		l.Sweep()
		require.Zero(t, openReservations(l))
		eachRecord(l, func(*record) { t.Error("an empty record is left") })
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
