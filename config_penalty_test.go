package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNew_PenaltyErrors are those of BlockFor and CountDenied.
func TestNew_PenaltyErrors(t *testing.T) {
	const counts = ", which counts what is admitted; want false, or sliding-window, sliding-log or fixed-window"
	ok := PerSecond(1)
	for _, c := range []struct {
		name   string
		config Config
		field  string
		reason string
	}{
		{"block-for=negative", Config{Limit: ok, BlockFor: -1}, "BlockFor",
			"-1ns is negative; want 0 for no blocks, or a positive duration"},
		{"block-for=lowest", Config{Limit: ok, BlockFor: math.MinInt64}, "BlockFor",
			"-2562047h47m16.854775808s is negative; want 0 for no blocks, or a positive duration"},
		{"count-denied=gcra", Config{Limit: ok, CountDenied: true}, "CountDenied", "true with gcra" + counts},
		{"count-denied=token-bucket", Config{Algorithm: TokenBucket, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket" + counts},
		{"count-denied=interval", Config{Algorithm: TokenBucket, Refill: RefillInterval, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket" + counts},
		{"count-denied=leaky-bucket", Config{Algorithm: LeakyBucket, Limit: Unlimited, CountDenied: true}, "CountDenied", "true with leaky-bucket" + counts},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireConfigError(t, c.config, c.field, c.reason)
		})
	}
}

// TestNew_PenaltiesAreAccepted up to their ends, and where there is no state to punish.
func TestNew_PenaltiesAreAccepted(t *testing.T) {
	for name, c := range everyMany {
		for _, limit := range []Limit{c.Limit, Unlimited, DenyAll} {
			for _, block := range []time.Duration{1, time.Hour, math.MaxInt64} {
				c := c
				c.Limit, c.BlockFor, c.CountDenied = limit, block, c.Algorithm.windowed()
				_, err := New(c)
				require.NoError(t, err, "%s %+v", name, c)
			}
		}
	}
}
