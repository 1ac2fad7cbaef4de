package sluice

import (
	"fmt"
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
			l.Refund("user:42", 1)
			return ok
		})
		checkKeys(b, hot, l)
	})
}
