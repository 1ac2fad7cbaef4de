//go:build (amd64 || arm64) && !purego

// Package counter reads the processor's counter of time.
package counter

// Read returns the counter. It waits for nothing: the processor may read the counter before
// the instructions in front of it are done, and go on with those behind it.
//
//go:noescape
func Read() uint64

// ReadInOrder is Read after all instructions in front of it are done, and before any that
// comes behind it begins.
//
//go:noescape
func ReadInOrder() uint64
