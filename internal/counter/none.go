//go:build (!amd64 && !arm64) || purego

// Package counter reads the processor's counter of time, which it cannot here.
package counter

// Read returns 0.
func Read() uint64 { return 0 }

// ReadInOrder returns 0.
func ReadInOrder() uint64 { return 0 }

// Name names no counter.
const Name = ""

// clocksource is Linux's name for the counter.
const clocksource = ""

func unsteady() string { return "this build does not read the processor's counter" }
