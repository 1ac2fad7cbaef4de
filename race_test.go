//go:build race

package sluice

func init() { raceEnabled = true }
