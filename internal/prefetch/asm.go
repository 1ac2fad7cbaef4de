//go:build (amd64 || arm64) && !purego

// Package prefetch is one instruction.
package prefetch

import "unsafe"

// Line asks for the cache line of p. It has no effect that a program could
// notice but in time.
//
//go:noescape
func Line(p unsafe.Pointer)
