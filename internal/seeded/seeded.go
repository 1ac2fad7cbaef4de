// Package seeded makes the random numbers of tests. Only tests use it.
package seeded

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Rand returns a generator from the test's Seed, which it logs.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed, _ := Seed(tb)
	tb.Logf("SLUICE_SEED=%d repeats this run", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// Seed returns the seed of a test. SLUICE_SEED is the seed, and given is true; or it is random for a new seed in each
// run, as in the gate. Without it the seed comes from the test's name, so that a run repeats the run before.
func Seed(tb testing.TB) (seed uint64, given bool) {
	tb.Helper()
	switch s := os.Getenv("SLUICE_SEED"); s {
	case "":
		h := fnv.New64a()
		h.Write([]byte(tb.Name()))
		return h.Sum64(), false
	case "random":
		return rand.Uint64(), false
	default:
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			tb.Fatalf("SLUICE_SEED is %q; want a number, or random", s)
		}
		return seed, true
	}
}
