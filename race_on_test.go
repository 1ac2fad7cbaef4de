//go:build race

package sluice

// raceEnabled reports whether the race detector is on, which allocates. Its twin
// is in race_off_test.go.
const raceEnabled = true
