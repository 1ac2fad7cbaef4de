package sluice

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// BenchmarkTakeAll is the hot workload for several keys at once: two of one limiter,
// one each of two, eight of two. All other keys are hot, too.
func BenchmarkTakeAll(b *testing.B) {
	for _, keys := range []struct {
		name        string
		here, there int // of the limiter that is checked, and of another one
	}{{"2-of-one", 2, 0}, {"2-of-two", 1, 1}, {"8-of-two", 4, 4}} {
		for _, mode := range []string{"serial", "parallel"} {
			for _, a := range algorithms {
				b.Run(fmt.Sprintf("keys=%s/mode=%s/clock=system/algorithm=%v", keys.name, mode, a), func(b *testing.B) {
					benchTakeAll(b, hot.config(a, SystemClock()), keys.here, keys.there, mode == "parallel")
				})
			}
		}
	}
}

func benchTakeAll(b *testing.B, c Config, here, there int, parallel bool) {
	w := hot
	w.keys = here
	l, other := mustNew(b, c), mustNew(b, c)
	var charges []Charge
	for i := range here {
		charges = append(charges, Charge{l.Key(fmt.Sprint("user:", i)), 1})
	}
	for i := range there {
		charges = append(charges, Charge{other.Key(fmt.Sprint("host:", i)), 1})
	}
	drive(b, w, l, parallel, func(uint64) bool { return TakeAll(charges...).Allowed })
	checkKeys(b, w, l)
}

// BenchmarkTakeAll_Million is a TakeAll of keys out of a million, on a coarse clock.
func BenchmarkTakeAll_Million(b *testing.B) {
	sequence := uniformIndexes()
	l := mustNew(b, uniform.config(GCRA, NewCoarseClock(time.Millisecond)))
	for i := range uint64(million) {
		l.KeyUint64(i).Allow()
	}
	for _, keys := range []int{1, 2, 4, 8} {
		charges := make([]Charge, keys)
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			drive(b, uniform, l, false, func(i uint64) bool {
				for j := range charges {
					charges[j] = Charge{l.KeyUint64(uint64(sequence[(i*uint64(keys)+uint64(j))%sequenceLen])), 1}
				}
				return TakeAll(charges...).Allowed
			})
		})
	}
}

// BenchmarkRefund is the hot key of BenchmarkAllow, charged and refunded: take off
// what BenchmarkAllow says.
func BenchmarkRefund(b *testing.B) {
	eachCase(b, hot, 1, func(b *testing.B, a Algorithm, c Clock, parallel bool) {
		l := mustNew(b, hot.config(a, c))
		drive(b, hot, l, parallel, func(uint64) bool {
			ok := l.Allow("user:42")
			l.Key("user:42").Refund(1)
			return ok
		})
		checkKeys(b, hot, l)
	})
}

// BenchmarkReserve makes a reservation and cancels any of those that are open.
func BenchmarkReserve(b *testing.B) {
	for _, open := range []int{1, 1_000, 40_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			l := mustNew(b, Config{Limit: PerSecond(1_000_000).WithBurst(100), Clock: NewManualClock(start)})
			k := l.Key("k")
			all := make([]*Reservation, open)
			for i := range all {
				all[i] = mustReserve(b, k, 1)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				r, err := k.Reserve(1, math.MaxInt64)
				if err != nil {
					b.Fatal(err)
				}
				i := rng.IntN(open)
				all[i].Cancel()
				all[i] = r
			}
		})
	}
}

// BenchmarkWait_Cancelled has so many calls wait for one key, and cancels all of them.
func BenchmarkWait_Cancelled(b *testing.B) {
	for _, waiting := range []int{1_000, 20_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			l := mustNew(b, Config{Limit: PerSecond(1).WithBurst(1)})
			k := l.Key("k")
			k.Allow()
			for b.Loop() {
				ctx, cancel := context.WithCancel(context.Background())
				var all sync.WaitGroup
				for range waiting {
					all.Go(func() { _ = k.Wait(ctx, 1) })
				}
				cancel()
				all.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(waiting), "ns/wait")
		})
	}
}

// BenchmarkSnapshot writes and reads 100,000 keys, in the default number of shards. Table is the copy of
// one table: where there are cells, the shard is held for it.
func BenchmarkSnapshot(b *testing.B) {
	const keys = 100_000
	for name, c := range map[string]Config{
		"gcra":                {Limit: never},
		"sliding-window-wide": {Algorithm: SlidingWindow, Limit: Per(1<<30, 1<<40)},
		"sliding-log-100":     {Algorithm: SlidingLog, Limit: Per(100, time.Hour)},
	} {
		c.Hash, c.Clock = HashStable, NewManualClock(start)
		l := mustNew(b, c)
		for i := range keys {
			l.KeyUint64(uint64(i)).Allow()
		}
		data := snapshotOf(b, l)
		b.Run("write/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Snapshot(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
		})
		b.Run("table/"+name, func(b *testing.B) {
			var keys copied
			for b.Loop() {
				l.copyKeys(0, &keys, new(copies))
			}
			b.ReportMetric(float64(l.tableOf(0).used), "keys")
		})
		b.Run("read/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				restoredFrom(b, c, bytes.Clone(data))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
		})
	}
}

// BenchmarkAllow_LimitsOfKeys is for keys that have limits of their own, and for calls that bring one, on
// a coarse clock.
func BenchmarkAllow_LimitsOfKeys(b *testing.B) {
	for _, keys := range []int{1, 1000, 100_000} {
		w := thousand
		w.keys = keys
		own, brings := make([]Key, keys), make([]Key, keys)
		for _, kind := range []struct {
			name string
			keys []Key
		}{{"own", own}, {"brings", brings}} {
			l := mustNew(b, w.config(GCRA, NewCoarseClock(time.Millisecond)))
			limit := l.Config().Limit
			limit.Rate /= 2
			for i := range kind.keys {
				k := l.KeyUint64(uint64(i))
				if kind.name == "own" {
					_ = k.SetLimit(limit)
				} else {
					k, _ = k.WithLimit(limit)
				}
				k.Allow()
				kind.keys[i] = k
			}
			for _, mode := range []string{"serial", "parallel"} {
				b.Run(fmt.Sprintf("limit=%s/keys=%d/mode=%s", kind.name, keys, mode), func(b *testing.B) {
					drive(b, w, l, mode == "parallel", func(i uint64) bool { return kind.keys[i%uint64(keys)].Allow() })
				})
			}
		}
	}
}
