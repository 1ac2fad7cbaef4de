package sluice

import (
	"math"
	"sync/atomic"
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

// Stats is a snapshot of a limiter's counters. They are read one after the other
// while decisions run, so they need not add up exactly.
type Stats struct {
	// Keys is the number of tracked keys, as Len.
	Keys int

	// Admitted and Denied count the calls that charge or would have charged;
	// calls of cost 0 and Peek are not counted. They stay 0 without Config.Stats.
	//
	// A TakeAll counts as one call for each of its keys, in the Stats of the key's limiter:
	// as admitted if all charges were made, and else as denied if the key denied it. It
	// counts as nothing for a key that would have admitted its charges, if only another key
	// denied its own.
	Admitted, Denied uint64

	// WouldDeny counts the admitted calls that Config.Shadow admitted although the
	// limit would have denied them.
	WouldDeny uint64

	// Blocked counts the denied calls whose key was blocked, whatever their cost; under Config.Shadow, the
	// calls that would have been denied. It stays 0 without Config.Stats.
	Blocked uint64

	// Evicted counts live keys dropped at MaxKeys: each of them may have been
	// admitted more than its limit since. Untracked counts calls for new keys that were
	// decided without state, denied under OverflowDenyNew or admitted under OverflowAdmitNew. It also
	// counts keys of a TakeAll without room beside the other keys, and calls of Block for keys without
	// room.
	Evicted, Untracked uint64

	// Swept counts idle keys dropped.
	Swept uint64

	// Waiting is how many calls of Wait wait now. A call of WaitAll is counted by the limiter of one of
	// its keys.
	Waiting int
}

// A tally counts the outcomes of decisions, in as many stripes as there are shards,
// so that processors that decide on different keys do not contend. Calls for one key do,
// as they do for its word. (An xsync.Counter would avoid that, but takes four times as
// long without contention.)
type tally []stripe

type stripe struct {
	admitted, denied, blocked atomic.Uint64
	_                         [104]byte // to a pair of cache lines
}

// count counts a call for id, which is in the shard of the same number.
func (t tally) count(shard uint64, out outcome) {
	switch {
	case out.allowed():
		t[shard].admitted.Add(1)
	case out == blocked:
		t[shard].blocked.Add(1)
	default:
		t[shard].denied.Add(1)
	}
}

func (t tally) addTo(s *Stats) {
	for i := range t {
		s.Admitted += t[i].admitted.Load()
		blocked := t[i].blocked.Load()
		s.Blocked += blocked
		s.Denied += t[i].denied.Load() + blocked
	}
}
