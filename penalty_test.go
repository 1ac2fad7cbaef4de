package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBlock_DeniesUntilThenAndIsFresh(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, after := range []int{0, 3} {
			c := c
			if after > 0 {
				c.BlockFor, c.BlockAfter = 10*time.Minute, after
			}
			l, clock := newFrozen(t, c)
			burst := int(l.policyOf(0).burst)
			require.True(t, l.Block("new", time.Hour))
			require.True(t, l.Allow("old"))
			require.True(t, l.Block("old", time.Hour))
			for _, key := range []string{"new", "old"} {
				want := Decision{Limit: burst, RetryAfter: time.Hour, ResetAfter: time.Hour}
				require.Equal(t, want, l.Take(key, 1))
				require.Equal(t, want, l.Peek(key, burst))
				require.Equal(t, want, l.Take(key, 0))
				require.False(t, l.AllowN(key, burst))
				require.Equal(t, AllDecision{Denied: 0, RetryAfter: time.Hour}, TakeAll(Charge{l.Key(key), 1}))
				require.True(t, l.Block(key, time.Minute), "a shorter block does not end it sooner")
				require.Equal(t, want, l.Take(key, 1))
				l.Refund(key, burst)
				require.Equal(t, want, l.Take(key, 1))
			}
			l.Sweep()
			clock.Advance(time.Hour - 1)
			for _, key := range []string{"new", "old"} {
				require.Equal(t, time.Duration(1), l.Take(key, 1).RetryAfter)
			}
			clock.Advance(1)
			require.Equal(t, burst-1, l.Take("new", 1).Remaining)
			require.Equal(t, burst, l.Peek("old", 0).Remaining)
			require.True(t, TakeAll(Charge{l.Key("old"), burst}).Allowed)
		}
	})
}
