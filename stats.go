package sluice

import "sync/atomic"

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
