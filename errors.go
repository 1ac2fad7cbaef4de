package sluice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-go/sluice/internal/snapfile"
)

// ConfigError is the error of New, and of the methods that change limits.
type ConfigError struct {
	Field  string // the offending field of Config, such as "Limit.Period"
	Reason string // its value, why that is wrong, and which values would be accepted
}

// Error names the field and the reason.
func (e *ConfigError) Error() string { return "sluice: " + e.Field + ": " + e.Reason }

func configErrorf(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// The errors of Wait and Reserve.
var (
	// ErrCostExceedsBurst: no wait helps, since the cost is above the burst, or the limit is
	// DenyAll.
	ErrCostExceedsBurst = errors.New("sluice: the cost exceeds the burst")
	// ErrNegativeCost: a cost must be at least 0.
	ErrNegativeCost = errors.New("sluice: the cost is negative")
	// ErrWouldExceedDeadline: the wait would take longer than the caller can wait. It matches
	// context.DeadlineExceeded, too.
	ErrWouldExceedDeadline error = deadlineError{}
	// ErrQueueFull: a LeakyBucket has no room for the cost in its queue.
	ErrQueueFull = errors.New("sluice: the queue is full")
	// ErrBlocked: the key is blocked, and a turn after its block cannot be reserved.
	ErrBlocked = errors.New("sluice: the key is blocked")
	// ErrNoRoom: the key is new, and there is no room for it at MaxKeys under OverflowDenyNew.
	ErrNoRoom = errors.New("sluice: there is no room for a new key")
	// ErrTooManyReservations: the key has 65,536 open reservations and waiting calls.
	ErrTooManyReservations = errors.New("sluice: the key has too many reservations")
	// ErrNotReservable: the algorithm has no turns to hand out. GCRA, TokenBucket and
	// LeakyBucket have turns.
	ErrNotReservable = errors.New("sluice: the algorithm has no turns to reserve")
	// ErrDenied: an Acquire is denied.
	ErrDenied = errors.New("sluice: denied")
	// ErrNotInFlight: an Acquire under another algorithm, which gives no units back.
	ErrNotInFlight = errors.New("sluice: Acquire needs units that are given back; want Algorithm: sluice.InFlight")
	// ErrNotHeld: the Permit or Reservation has been released or settled, or its units have come back by themselves, or
	// the limiter has never admitted it.
	ErrNotHeld = errors.New("sluice: the units are not held: they have been released, or have lapsed")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "sluice: the wait would exceed the deadline" }

func (deadlineError) Is(target error) bool {
	return target == context.DeadlineExceeded
}

// ErrBadSnapshot is matched by the errors of Restore for input that is not a snapshot, has an
// unknown version or comes from another kind of limiter, or has been cut short or
// changed.
var ErrBadSnapshot = snapfile.ErrBad
