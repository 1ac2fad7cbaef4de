package sluice

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNew_NoErrorIsNilInterface(t *testing.T) {
	// A nil *ConfigError in an error would not equal nil.
	for _, a := range algorithms {
		_, err := New(Config{Algorithm: a, Limit: PerSecond(10)})
		require.True(t, err == nil, "%v", a)
	}
}

// TestErrors_CanBeToldApart: each matches itself alone, says that it is of this package, and
// ErrWouldExceedDeadline matches context.DeadlineExceeded.
func TestErrors_CanBeToldApart(t *testing.T) {
	all := []error{
		ErrCostExceedsBurst, ErrNegativeCost, ErrWouldExceedDeadline, ErrQueueFull, ErrBlocked, ErrNoRoom,
		ErrTooManyReservations, ErrNotReservable, ErrBadSnapshot,
	}
	texts := map[string]bool{}
	for _, err := range all {
		require.Contains(t, err.Error(), "sluice: ")
		require.False(t, texts[err.Error()], "two errors say %q", err)
		texts[err.Error()] = true
		for _, other := range all {
			require.Equal(t, err == other, errors.Is(err, other), "%v is %v", err, other)
		}
		require.Equal(t, err == ErrWouldExceedDeadline, errors.Is(err, context.DeadlineExceeded), "%v", err)
	}
}
