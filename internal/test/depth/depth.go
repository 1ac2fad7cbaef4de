// Package depth says how far the tests of this repository go: least with -short, further
// without it, and all the way, as the gate does, by
//
//	SLUICE_DEPTH=full go test -timeout 30m work
//
// Only tests use it.
package depth

import (
	"fmt"
	"os"
	"testing"
)

// Full reports whether tests go all the way. -short wins over SLUICE_DEPTH.
func Full() bool {
	switch s := os.Getenv("SLUICE_DEPTH"); s {
	case "":
		return false
	case "full":
		return !testing.Short()
	default:
		panic(fmt.Sprintf("SLUICE_DEPTH is %q; want it unset, or full", s))
	}
}

// Of returns one of three numbers: how often a test does something.
func Of(short, usual, full int) int {
	switch {
	case Full():
		return full
	case testing.Short():
		return short
	}
	return usual
}

// Ops returns how many random operations the comparisons with each model are made of.
func Ops() int { return Of(20_000, 20_000, 1_000_000) }
