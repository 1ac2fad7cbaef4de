package sluice

import (
	"math"
	"time"
)

// Never is the RetryAfter of a call that no wait can help, and the ResetAfter
// of a key that cannot become fresh within the range of the clock.
const Never time.Duration = math.MaxInt64

// Decision is the outcome of one call, with what a caller may want to tell its
// client. All times are relative to the instant at which the call was judged.
type Decision struct {
	// Allowed reports whether the call was admitted. Its cost has then been
	// charged, but for Peek, for a cost of 0 (where Allowed speaks of one unit, and
	// so does RetryAfter), under Unlimited, and under OverflowAdmitNew for want of room.
	Allowed bool

	// WouldDeny reports, under Config.Shadow, that the call would have been denied.
	// Allowed is then true all the same, nothing has been charged, and the other
	// fields are those of the denial.
	WouldDeny bool

	// OverSoft reports that the call was admitted, but only by the units of
	// Config.Soft: it is beyond the limit.
	OverSoft bool

	// Limit is the most that can be admitted at once: the burst, or for the
	// window algorithms the rate, in either case without Config.Soft. It is
	// math.MaxInt under Unlimited and 0 under DenyAll.
	Limit int

	// Remaining is the cost that could be admitted now, after this call, rounded
	// down to whole units; without those of Config.Soft.
	Remaining int

	// RetryAfter is 0 if the call was admitted. Otherwise it is the least wait
	// after which the same call is admitted if nothing else happens to the key,
	// exact to the nanosecond, or Never.
	RetryAfter time.Duration

	// ResetAfter is the time until the key is as if it had never been charged.
	ResetAfter time.Duration
}
