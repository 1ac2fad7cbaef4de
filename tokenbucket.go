package sluice

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// tokenBucket holds B tokens when full, gains R per P continuously, and admits a
// call iff its cost in tokens is there (Turner, "New directions in
// communications", 1986; RFC 2697 gives the packet form).
//
// The word is two numbers, the time of the last refill in coarse units and what
// has been spent since then in ticks. A coarse unit is 2^u ticks, the least
// power of two that is no shorter than the time to fill the bucket.
//
// Counting spent tokens in ticks (a token is c ticks, the time in which it comes
// back) makes the refill exact: in the time of x ticks exactly x ticks' worth
// come back. At tick t
//
//	owed(t) = spent - (t - refill), at least 0; tokens(t) = (burst - owed(t)) / unit
//
// The fields never overflow. Right after a charge at t the refill time is t
// rounded down to a coarse unit, so spent = owed(t) + (t - refill) is at most
// burst + 2^u - 1 < 2^(u+1); and t < 2^63 leaves 63-u bits for the refill time. The
// word stays below reserved if t < 3*2^61; in 2189, if a tick is a nanosecond. (Where u
// is 62, a single bit is left for the refill time, and the full tick must stay below
// 2^63.)
//
// Invariant: refill + spent only grows, except by refunds; it is the tick at which the bucket is
// full again. That makes the bucket agree with GCRA on every decision, since its
// TAT is the same tick.
type tokenBucket struct {
	schedule
	coarse uint // u
}

func newTokenBucket(l Limit) (algorithm, *ConfigError) {
	s, err := newSchedule(l)
	if err != nil {
		return nil, err
	}
	a := &tokenBucket{schedule: s, coarse: uint(bits.Len64(s.burst - 1))}
	last := uint64(reserved/2 - 1)
	a.most = last + 1<<a.coarse
	if a.coarse == 62 {
		a.most = 1<<63 - 1
		last = min(last, a.most-s.burst)
	}
	return a, a.endAt(l, last)
}

func (a *tokenBucket) unpack(word uint64) (refill, spent uint64) {
	return word >> (a.coarse + 1) << a.coarse, word & (1<<(a.coarse+1) - 1)
}

func (a *tokenBucket) charge(word uint64, now int64, cost int) (uint64, bool) {
	t := a.tick(now)
	refill, spent := a.unpack(word)
	owed := uint64(0)
	if refill+spent > t {
		owed = refill + spent - t
	}
	need := uint64(cost) * a.unit // <= burst, since cost <= B
	if owed > a.burst-need {
		return word, false
	}
	// An older t refills nothing: the refill time never moves back, and what is
	// owed at t is owed later than at the newest time, so spent comes out right.
	refill = max(refill, t>>a.coarse<<a.coarse)
	spent = owed + need + t - refill
	return refill>>a.coarse<<(a.coarse+1) | spent, true
}

func (a *tokenBucket) debit(word uint64, now int64, cost int) uint64 {
	return a.pack(a.schedule.debit(a.full(word), now, cost), a.tick(now))
}

// refund takes what is given back from what was spent, and goes back before the last
// refill if that is not enough.
func (a *tokenBucket) refund(word uint64, now int64, cost int) uint64 {
	refill, _ := a.unpack(word)
	full := a.schedule.refund(a.full(word), now, cost)
	refill = min(refill, full>>a.coarse<<a.coarse)
	return refill>>a.coarse<<(a.coarse+1) | (full - refill)
}

// pack returns the word of a bucket that is full again at the given tick. If that is
// further away than what can be spent, the refill time lies in the future.
func (a *tokenBucket) pack(full, t uint64) uint64 {
	unit := uint64(1) << a.coarse
	refill := min(t, full) >> a.coarse << a.coarse
	if full-refill >= 2*unit {
		refill = full>>a.coarse<<a.coarse - unit
	}
	return refill>>a.coarse<<(a.coarse+1) | (full - refill)
}

func (a *tokenBucket) adopt(from adopter, e state, _ []atomic.Uint64, now int64) uint64 {
	old := from.(*tokenBucket)
	full := a.schedule.adopt(&old.schedule, old.full(e.word), now)
	return a.pack(full, a.tick(now))
}

func (a *tokenBucket) turns() (*schedule, bool) { return &a.schedule, false }

// full is the tick at which the bucket is full again.
func (a *tokenBucket) full(word uint64) uint64 {
	refill, spent := a.unpack(word)
	return refill + spent
}

func (a *tokenBucket) describe(word uint64, now int64, cost int, allowed bool) (int, time.Duration, time.Duration) {
	return a.schedule.describe(a.full(word), now, cost, allowed)
}

func (a *tokenBucket) idleAt(word uint64) uint64 { return a.schedule.idleAt(a.full(word)) }

func (a *tokenBucket) rank(word uint64, now int64) uint64 { return a.schedule.rank(a.full(word), now) }
