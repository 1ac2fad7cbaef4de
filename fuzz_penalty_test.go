package sluice

import (
	"math/rand/v2"
	"testing"
)

// FuzzPenalties decodes a byte string into a limit, its penalties and operations, and
// replays them against the exact model: each choice of the tracer takes one byte.
func FuzzPenalties(f *testing.F) {
	for i := range variants {
		for p := range penalties {
			f.Add([]byte{byte(i), byte(p), byte(i + p), 3, 120, 200, 7, 0, 1, 0, 255, 90, 17, 3, 44, 201, 8, 250, 130, 12, 99, 4, 77, 240})
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 2048 {
			return
		}
		variant, penalty := variants[int(data[0])%len(variants)], penalties[int(data[1])%len(penalties)]
		older := data[2]%2 == 1
		if penalty.CountDenied && !variant.Algorithm.windowed() {
			return
		}
		src := &byteSource{data: data[3:], rest: rand.NewPCG(1, 2)}
		rng := rand.New(src)
		c := randomPenalty(rng, variant, penalty)
		c.Stats = true
		if _, err := New(c); err != nil {
			return
		}
		tr := newPenaltyTracer(t, rng, c, older)
		for len(src.data) > 0 {
			tr.step()
		}
		tr.finish()
	})
}
