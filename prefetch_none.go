//go:build (!amd64 && !arm64) || purego

package sluice

func prefetch(*slot) {}
