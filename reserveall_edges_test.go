package sluice

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newAtTheEnd makes a limiter whose clock is a minute before the end of time.
func newAtTheEnd(t *testing.T, shadow bool) *Limiter {
	return mustNew(t, Config{Limit: PerSecond(1000), Shadow: shadow, TTL: math.MaxInt64, Clock: NewManualClock(time.Unix(0, math.MaxInt64).Add(-time.Minute))})
}

// TestReserveAll_AfterTheEndOfTime: the turn of all is that of the slowest key. If the clock of another
// one does not get there, nobody is charged.
func TestReserveAll_AfterTheEndOfTime(t *testing.T) {
	late := newAtTheEnd(t, false)
	slow, _ := newFrozen(t, Config{Limit: Per(1, time.Hour)})
	a, b := slow.Key("a"), late.Key("b")
	all, err := ReserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.NoError(t, err, "at once there is time enough")
	require.Len(t, all, 2)
	left := b.Peek(0)
	_, err = ReserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.ErrorIs(t, err, ErrWouldExceedDeadline)
	require.Equal(t, left, b.Peek(0))
	require.Equal(t, time.Hour, a.Peek(1).RetryAfter)
}

// TestReserveAll_ShadowKeepsNobodyWaiting: a key in Shadow whose clock does not get to the turn is passed
// over, which its receipt says, and gives nothing back.
func TestReserveAll_ShadowKeepsNobodyWaiting(t *testing.T) {
	late := newAtTheEnd(t, true)
	slow, _ := newFrozen(t, Config{Limit: Per(1, time.Hour)})
	a, b := slow.Key("a"), late.Key("b")
	require.True(t, a.Allow())
	require.True(t, b.Allow())
	left := b.Peek(0)
	all, err := ReserveAll(Never, Charge{a, 1}, Charge{b, 1})
	require.NoError(t, err)
	require.Equal(t, time.Hour, all[0].Delay())
	require.False(t, all[0].WouldDeny())
	require.True(t, all[1].WouldDeny())
	require.Equal(t, left, b.Peek(0))
	all[1].Cancel()
	require.Equal(t, left, b.Peek(0))
}

// TestReserveAll_AdmittedWithoutState: for a key that there is no room for, OverflowAdmitNew gives a
// turn now, which charges nobody.
func TestReserveAll_AdmittedWithoutState(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerMinute(10), MaxKeys: 1, Shards: 1, Overflow: OverflowAdmitNew})
		require.True(t, l.Allow("first"))
		all, err := ReserveAll(0, Charge{l.Key("first"), 1}, Charge{l.Key("second"), 2})
		if a == LeakyBucket { // whose queue has one ahead
			all, err = ReserveAll(time.Minute, Charge{l.Key("first"), 1}, Charge{l.Key("second"), 2})
		}
		require.NoError(t, err)
		require.Equal(t, 1, l.Len())
		require.Equal(t, 8, l.Peek("first", 0).Remaining)
		all[1].Cancel()
		require.Equal(t, 10, l.Peek("second", 0).Remaining)
		all[0].Cancel()
		require.Equal(t, 9, l.Peek("first", 0).Remaining)
	}
}
