package sluice

import (
	"math"
	"time"
)

// Never is the RetryAfter of a call that no wait can help, and the ResetAfter
// of a key that cannot become fresh within the range of the clock.
const Never time.Duration = math.MaxInt64

// Decision is the outcome of one call, with details for the client of the caller.
// All times are relative to the instant at which the call was judged.
type Decision struct {
	// Allowed reports whether the call was admitted. Its cost has then been charged,
	// except for Peek, a cost of 0 (Allowed and RetryAfter are then the ones for one
	// unit), under Unlimited, and under OverflowAdmitNew without room for the key.
	Allowed bool

	// WouldDeny reports, under Config.Shadow, that the call would have been denied.
	// Allowed is then true all the same, nothing has been charged, and the other
	// fields describe the denial.
	WouldDeny bool

	// OverSoft reports that the call was admitted, but only thanks to the units of
	// Config.Soft: it is beyond the limit.
	OverSoft bool

	// Limit is the most that can be admitted at once: the burst, or for the
	// window algorithms the rate, in either case without Config.Soft. It is
	// math.MaxInt under Unlimited and 0 under DenyAll.
	Limit int

	// Remaining is the cost that could be admitted now, after this call, rounded
	// down to whole units, without the units of Config.Soft.
	Remaining int

	// RetryAfter is 0 if the call was admitted. Otherwise it is the least wait
	// after which the same call is admitted if nothing else happens to the key,
	// exact to the nanosecond, or Never.
	RetryAfter time.Duration

	// ResetAfter is the time until the key is as if it had never been charged.
	ResetAfter time.Duration
}

// block describes a call at now for a key that is blocked until then.
func (d *Decision) block(at uint64, now int64) {
	d.Remaining, d.RetryAfter, d.ResetAfter = 0, until(at, now), until(at, now)
}

// unlimited describes a call under Unlimited for a key with a block until then, or 0.
func (d *Decision) unlimited(until uint64, now int64) {
	if d.Limit = math.MaxInt; until > uint64(now) {
		d.block(until, now)
		return
	}
	d.Allowed, d.Remaining = true, math.MaxInt
}

// amend turns the decision on the enforced limit into the one that Config.Soft and Config.Shadow
// report.
func (d *Decision) amend(soft int, shadow bool, cost int) {
	if soft > 0 && 0 < d.Limit && d.Limit < math.MaxInt { // Unlimited and DenyAll have no soft units
		after := d.Remaining
		if cost == 0 {
			after-- // the decision is on one unit, which has not been charged
		}
		d.OverSoft = d.Allowed && after < soft
		d.Limit -= soft
		d.Remaining = max(0, d.Remaining-soft)
	}
	if shadow && !d.Allowed {
		d.Allowed, d.WouldDeny = true, true
	}
}

type outcome uint8

const (
	denied outcome = iota
	admitted
	waved    // admitted without state: there is no room for the key
	refused  // denied because there is no room for the key
	blocked  // denied because the key is blocked
	unfit    // the key's state does not decide: see Key.edge
	retrying // start over, with the policy that the key has now
)

func (o outcome) decided() bool { return o != unfit && o != retrying }

func (o outcome) allowed() bool { return o == admitted || o == waved }
