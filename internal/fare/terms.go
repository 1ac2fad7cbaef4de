package fare

import (
	"fmt"
	"time"
)

// What clients that retry have in common.
const (
	DefaultMaxRetryAfter = 5 * time.Minute
	LongestWait          = 365 * 24 * time.Hour // waits add up without overflow
	mostRetries          = 100
)

// Terms are the fields that the configurations of clients have in common.
type Terms struct {
	Limits        bool // there is a Limiter
	Key, Cost     bool // are set
	MaxWait       time.Duration
	FailFast      bool
	MaxRetries    int
	MaxRetryAfter time.Duration
}

// Check returns the field that is invalid, and its mistake, or two empty texts. The word for a call in the reason is the client's.
func (t Terms) Check(call string) (field, reason string) {
	switch {
	case !t.Limits && t.Key:
		return "Key", "set without a Limiter to use it; want a Limiter, or no Key"
	case !t.Limits && t.Cost:
		return "Cost", "set without a Limiter to charge it; want a Limiter, or no Cost"
	case t.MaxWait < 0:
		return "MaxWait", fmt.Sprintf("%v is negative; want 0 for the deadline of the %s, or %v without one, or a positive duration", t.MaxWait, call, DefaultMaxWait)
	case t.MaxWait > 0 && t.FailFast:
		return "MaxWait", fmt.Sprintf("%v with FailFast, which never waits; want 0, or no FailFast", t.MaxWait)
	case t.MaxRetries < 0 || t.MaxRetries > mostRetries:
		return "MaxRetries", fmt.Sprintf("%d is not a number of retries; want 0 to %d", t.MaxRetries, mostRetries)
	case t.MaxRetries > 0 && t.FailFast:
		return "MaxRetries", fmt.Sprintf("%d with FailFast, which never waits; want 0, or no FailFast", t.MaxRetries)
	case t.MaxRetryAfter < 0 || t.MaxRetryAfter > LongestWait:
		return "MaxRetryAfter", fmt.Sprintf("%v is out of range; want 0 for %v, or up to %v", t.MaxRetryAfter, DefaultMaxRetryAfter, LongestWait)
	}
	return "", ""
}
