// Package seeded makes the random numbers of tests. Only tests use it.
package seeded

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Rand returns a generator whose seed is logged, and can be given back in SLUICE_SEED to
// repeat a failure.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("SLUICE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			tb.Fatalf("SLUICE_SEED: %v", err)
		}
	}
	tb.Logf("SLUICE_SEED=%d repeats this run", seed)
	return rand.New(rand.NewPCG(seed, seed))
}
