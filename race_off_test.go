//go:build !race

package sluice

// raceEnabled reports whether the race detector is on, which allocates. Its twin
// is in race_on_test.go.
const raceEnabled = false
