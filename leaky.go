package sluice

import "sync/atomic"

// leakyBucket is a queue that holds B units and drains at R per P. Allow and
// Take use it as a meter: a call is admitted iff the queue has room for its cost
// (the continuous-state leaky bucket of ITU-T I.371, annex A).
//
// The word is emptyAt, the tick at which the queue will have drained empty.
//
// The level at tick t, in ticks of draining, is emptyAt - t, or 0 if that has
// passed. A call of n units is admitted iff level + n*unit <= burst, and raises
// the level by n*unit. I.371 proves that this decides like GCRA.
//
// Invariant: emptyAt only grows, except by refunds. An older t sees a higher level.
type leakyBucket struct{ schedule }

func newLeakyBucket(l Limit) (algorithm, *ConfigError) {
	s, err := newSchedule(l)
	return &leakyBucket{s}, err
}

func (a *leakyBucket) adopt(from adopter, e state, _ []atomic.Uint64, now int64) uint64 {
	return a.schedule.adopt(&from.(*leakyBucket).schedule, e.word, now)
}

func (a *leakyBucket) full(word uint64) uint64    { return word }
func (a *leakyBucket) pack(full, _ uint64) uint64 { return full }
func (a *leakyBucket) turns() (*schedule, bool)   { return &a.schedule, true }

func (a *leakyBucket) charge(word uint64, now int64, cost int) (uint64, bool) {
	t := a.tick(now)
	level := uint64(0)
	if word > t {
		level = word - t
	}
	pour := uint64(cost) * a.unit // <= burst, since cost <= B
	if level > a.burst-pour {
		return word, false
	}
	return t + level + pour, true
}
