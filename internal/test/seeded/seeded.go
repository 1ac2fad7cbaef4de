// Package seeded makes the random numbers of tests. Only tests use it.
package seeded

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Rand returns a generator from the test's Seed, which it logs.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed, _ := Seed(tb)
	tb.Logf("SLUICE_SEED=%d repeats this run", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// Seed returns the seed of a test. If SLUICE_SEED is a number, that is the seed, and given is true. If it is random, the
// seed is new in each run. Else the seed comes from the test's name, and from what follows "of:" in SLUICE_SEED, so that a
// run repeats the run before: the gate names its commit there.
func Seed(tb testing.TB) (seed uint64, given bool) {
	tb.Helper()
	s := os.Getenv("SLUICE_SEED")
	run, named := strings.CutPrefix(s, "of:")
	switch {
	case s == "" || named:
		h := fnv.New64a()
		h.Write([]byte(tb.Name() + run))
		return h.Sum64(), false
	case s == "random":
		return rand.Uint64(), false
	}
	seed, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		tb.Fatalf("SLUICE_SEED is %q; want a number, random, or of: and a name", s)
	}
	return seed, true
}
