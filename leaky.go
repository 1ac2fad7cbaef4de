package sluice

// newLeakyBucket returns a queue that holds B units and drains at R per P. Allow and
// Take use it as a meter: a call is admitted iff the queue has room for its cost
// (the continuous-state leaky bucket of ITU-T I.371, annex A).
//
// The word is emptyAt, the tick at which the queue will have drained empty.
//
// The level at tick t, in ticks of draining, is emptyAt - t, or 0 if that has
// passed. A call of n units is admitted iff level + n*unit <= burst, and raises
// the level by n*unit. I.371 proves that this decides like GCRA, and it is the same
// arithmetic: emptyAt is the TAT, level is max(TAT, t) - t. Only the turns differ: they are
// the turns of a queue.
func newLeakyBucket(l Limit) (algorithm, *ConfigError) {
	s, err := newSchedule(l)
	return &gcra{s, true}, err
}
