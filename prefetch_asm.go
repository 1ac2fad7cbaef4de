//go:build (amd64 || arm64) && !purego

package sluice

// prefetch asks for the cache line of p. It has no effect that a program could
// notice but in time.
//
//go:noescape
func prefetch(p *slot)
