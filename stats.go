package sluice

import "github.com/puzpuzpuz/xsync/v3"

// Stats is a snapshot of a limiter's counters. They are read one after the other
// while decisions run, so they need not add up exactly.
type Stats struct {
	// Keys is the number of tracked keys, as Len.
	Keys int

	// Admitted and Denied count the calls that charge or would have charged;
	// calls of cost 0 and Peek are not counted. They stay 0 without Config.Stats.
	Admitted, Denied uint64

	// Evicted counts live keys dropped at MaxKeys: each of them may have been
	// admitted more than its limit since. Untracked counts calls for new keys that were
	// decided without state, denied under DenyNew or admitted under AdmitNew.
	Evicted, Untracked uint64

	// Swept counts idle keys dropped, Growths the tables rebuilt larger.
	Swept, Growths uint64
}

// tally counts the outcomes of decisions. It is striped, so that counting does
// not make processors contend.
type tally struct{ admitted, denied *xsync.Counter }

func newTally() *tally { return &tally{xsync.NewCounter(), xsync.NewCounter()} }

func (t *tally) count(allowed bool) {
	if allowed {
		t.admitted.Inc()
	} else {
		t.denied.Inc()
	}
}

// Stats returns the counters.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Keys:      l.Len(),
		Evicted:   l.evicted.Load(),
		Untracked: l.untracked.Load(),
		Swept:     l.swept.Load(),
		Growths:   l.growths.Load(),
	}
	if l.tally != nil {
		s.Admitted = uint64(l.tally.admitted.Value())
		s.Denied = uint64(l.tally.denied.Value())
	}
	return s
}
