package metamorphic

import (
	"math/rand/v2"
	"testing"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// FuzzDecisions decodes a byte string into a limit and operations, and replays
// them against the exact model: each choice of the tracer takes one byte.
func FuzzDecisions(f *testing.F) {
	for a := range variants {
		f.Add([]byte{byte(a), 0, 3, 120, 200, 7, 0, 1, 0, 255, 90, 17, 3, 44, 201, 8, 250, 130, 12, 99})
		f.Add([]byte{byte(a), 1, 240, 30, 11, 180, 66, 230, 5, 140, 77, 2, 199, 33, 210, 61, 0, 0, 128, 64, 32, 16})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 4096 {
			return
		}
		variant, older := variants[int(data[0])%len(variants)], data[1]%2 == 1
		src := traces.NewBytes(data[2:])
		rng := rand.New(src)
		c := variant.random(rng)
		if _, err := sluice.New(c); err != nil {
			return
		}
		tr := newTracer(t, rng, c, older).record()
		for src.Left() {
			tr.run(1, older)
		}
	})
}

// FuzzTakeAll does the same for TakeAll on several limiters.
func FuzzTakeAll(f *testing.F) {
	for i := range byte(4) {
		f.Add([]byte{i, 0, 3, 120, 200, 7, 0, 1, 0, 255, 90, 17, 3, 44, 201, 8, 250, 130, 12, 99, i * 60, 31, 77, 190})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		src := traces.NewBytes(data)
		tr := newAllTracer(t, rand.New(src))
		for src.Left() {
			tr.step()
		}
	})
}

// FuzzPenalties decodes a byte string into a limit, its penalties and operations, and
// replays them against the exact model: each choice of the tracer takes one byte.
func FuzzPenalties(f *testing.F) {
	for i := range variants {
		for p := range traces.Penalties {
			f.Add([]byte{byte(i), byte(p), byte(i + p), 3, 120, 200, 7, 0, 1, 0, 255, 90, 17, 3, 44, 201, 8, 250, 130, 12, 99, 4, 77, 240})
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 2048 {
			return
		}
		variant, penalty := variants[int(data[0])%len(variants)], traces.Penalties[int(data[1])%len(traces.Penalties)]
		older := data[2]%2 == 1
		if penalty.Counts && !variant.CountsDenied() {
			return
		}
		src := traces.NewBytes(data[3:])
		rng := rand.New(src)
		c := randomPenalty(rng, variant, penalty)
		c.Stats = true
		if _, err := sluice.New(c); err != nil {
			return
		}
		tr := newPenaltyTracer(t, rng, c, older)
		for src.Left() {
			tr.step()
		}
		tr.finish()
	})
}
