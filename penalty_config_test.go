package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNew_PenaltyErrors are those of BlockFor, BlockAfter and CountDenied.
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
		{"block-for=lowest", Config{Limit: ok, BlockFor: math.MinInt64, BlockAfter: 1}, "BlockFor",
			"-2562047h47m16.854775808s is negative; want 0 for no blocks, or a positive duration"},
		{"block-after=negative", Config{Limit: ok, BlockFor: 1, BlockAfter: -1}, "BlockAfter",
			"-1 is not a number of denials; want 0 to 1048576"},
		{"block-after=many", Config{Limit: ok, BlockFor: 1, BlockAfter: 1<<20 + 1}, "BlockAfter",
			"1048577 is not a number of denials; want 0 to 1048576"},
		{"block-after=many, without a block", Config{Limit: ok, BlockAfter: 1<<20 + 1}, "BlockAfter",
			"1048577 is not a number of denials; want 0 to 1048576"},
		{"block-after=without a block", Config{Limit: ok, BlockAfter: 5}, "BlockAfter",
			"5 with a BlockFor of 0, which does not block; want 0, or a BlockFor"},
		{"block-after=1, without a block", Config{Limit: DenyAll, BlockAfter: 1}, "BlockAfter",
			"1 with a BlockFor of 0, which does not block; want 0, or a BlockFor"},
		{"count-denied=gcra", Config{Limit: ok, CountDenied: true}, "CountDenied", "true with gcra" + counts},
		{"count-denied=token-bucket", Config{Algorithm: TokenBucket, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket" + counts},
		{"count-denied=interval", Config{Algorithm: TokenBucket, Refill: Interval, Limit: ok, CountDenied: true}, "CountDenied", "true with token-bucket" + counts},
		{"count-denied=leaky-bucket", Config{Algorithm: LeakyBucket, Limit: Unlimited, CountDenied: true}, "CountDenied", "true with leaky-bucket" + counts},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireConfigError(t, c.config, c.field, c.reason)
		})
	}
}

// TestNew_PenaltiesAreAccepted up to their ends, and where there is no state to punish.
func TestNew_PenaltiesAreAccepted(t *testing.T) {
	for name, c := range everyLayout {
		for _, limit := range []Limit{c.Limit, Unlimited, DenyAll} {
			for _, after := range []int{0, 1, 2, 3, 4, 5, 1<<20 - 1, 1 << 20} {
				for _, block := range []time.Duration{1, time.Hour, math.MaxInt64} {
					c := c
					c.Limit, c.BlockFor, c.BlockAfter, c.CountDenied = limit, block, after, c.Algorithm.windowed()
					_, err := New(c)
					require.NoError(t, err, "%s %+v", name, c)
				}
			}
		}
	}
}

// TestBlockAfter_Many: the count has room for as many denials as New accepts, also at
// powers of two, where one more bit would be needed for one more.
func TestBlockAfter_Many(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 7, 8, 9, 1<<10 - 1, 1 << 10, 1<<10 + 1} {
		forEveryLayout(t, func(t *testing.T, c Config) {
			c.BlockFor, c.BlockAfter = 1000*time.Hour, n
			l, _ := newFrozen(t, c)
			k, burst := l.Key("k"), int(l.policyOf(0).burst)
			require.True(t, k.AllowN(burst))
			for range n - 1 {
				require.False(t, k.Allow())
			}
			require.Less(t, k.Peek(1).RetryAfter, c.BlockFor)
			require.Equal(t, c.BlockFor, k.Take(1).RetryAfter)
		})
	}
	if testing.Short() {
		return
	}
	l, _ := newFrozen(t, Config{Limit: PerMinute(1), BlockFor: 1000 * time.Hour, BlockAfter: maxBlockAfter})
	k := l.Key("k")
	require.True(t, k.Allow())
	for range maxBlockAfter - 1 {
		require.False(t, k.Allow())
	}
	require.Less(t, k.Peek(1).RetryAfter, time.Hour)
	require.Equal(t, 1000*time.Hour, k.Take(1).RetryAfter)
}
