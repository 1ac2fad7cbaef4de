package sluice

import (
	"bytes"
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBlock_UnderUnlimited: every way to ask sees it, made so or become so.
func TestBlock_UnderUnlimited(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, made := range []bool{true, false} {
			c := c
			c.Stats = true
			if made {
				c.Limit, c.Offset = Unlimited, 0
			}
			l, clock := newFrozen(t, c)
			require.NoError(t, l.SetLimit(Unlimited))
			require.True(t, l.Key("k").Block(time.Hour))
			want := Decision{Limit: math.MaxInt, RetryAfter: time.Hour, ResetAfter: time.Hour}
			require.Equal(t, want, l.Take("k", 1))
			require.Equal(t, want, l.Take("k", math.MaxInt))
			require.Equal(t, want, l.Take("k", 0))
			require.Equal(t, want, l.Key("k").Peek(3))
			require.Equal(t, want, l.Key("k").Debit(3))
			require.False(t, l.Allow("k"))
			require.Equal(t, Never, l.Take("k", -1).RetryAfter)
			n, d := l.Key("k").TakeUpTo(3)
			require.Zero(t, n)
			require.Equal(t, want, d)
			all := TakeAll(Charge{l.Key("k"), 1}, Charge{l.Key("other"), 1})
			require.Equal(t, AllDecision{RetryAfter: time.Hour}, all)
			_, err := l.Key("k").Reserve(1, Never)
			require.ErrorIs(t, err, ErrBlocked)
			ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
			require.Error(t, l.Wait(ctx, "k", 1))
			cancel()
			require.True(t, l.Allow("other"))
			require.Equal(t, l.Stats().Denied, l.Stats().Blocked)
			clock.Advance(time.Hour)
			require.True(t, l.Take("k", math.MaxInt).Allowed)
			require.Equal(t, 1, l.Sweep())
			require.True(t, l.Key("k").Block(time.Hour))
			l.Key("k").Unblock()
			require.True(t, l.Allow("k"))
		}
	})
}

// TestBlock_OutlastsEveryLimit: made under a limit that keeps no state, or none but it, which the
// limiter has had from the beginning, or has got.
func TestBlock_OutlastsEveryLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, constant := range []Limit{Unlimited, DenyAll} {
			made := c
			made.Limit, made.Offset, made.Hash = constant, 0, HashStable
			changed, _ := newFrozen(t, c)
			require.True(t, changed.Allow("tracked"))
			require.NoError(t, changed.SetLimit(constant))
			for _, key := range []string{"tracked", "new"} {
				require.True(t, changed.Key(key).Block(time.Hour))
				require.False(t, changed.Allow(key))
			}
			require.NoError(t, changed.SetLimit(c.Limit))
			require.False(t, changed.Allow("tracked") || changed.Allow("new"))

			l, clock := newFrozen(t, made)
			require.True(t, l.Key("k").Block(time.Hour))
			require.NoError(t, l.Key("k").SetLimit(c.Limit))
			require.Equal(t, time.Hour, l.Take("k", 1).RetryAfter)
			l.Key("k").ClearLimit()
			require.NoError(t, l.Key("k").SetLimit(Unlimited))
			require.Equal(t, time.Hour, l.Take("k", 1).RetryAfter)
			l.Key("k").ClearLimit()
			require.NoError(t, l.SetLimit(c.Limit))
			require.Equal(t, time.Hour, l.Take("k", 1).RetryAfter)
			require.NoError(t, l.SetLimit(constant))

			other, _ := newFrozen(t, made)
			require.True(t, other.Key("k").Block(time.Hour))
			restored, restoredClock := newFrozen(t, made)
			require.NoError(t, restored.Restore(bytes.NewReader(snapshotOf(t, other))))
			require.NoError(t, restored.SetLimit(c.Limit))
			require.Equal(t, time.Hour, restored.Take("k", 1).RetryAfter)
			clock.Advance(time.Hour)
			restoredClock.Advance(time.Hour)
			require.True(t, restored.Allow("k"))
		}
	})
}
