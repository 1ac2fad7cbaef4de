package ledger

import "github.com/sluice-go/sluice/internal/ends"

// Free lets the turn of r, the last one, move up with the ends before it: no end of its own holds it back.
func (rec *Record) Free(r *ends.Node) {
	r.Least = 0
	rec.Changed(r)
}

// Turn is the first ns at which the turn of rs, which follow each other, can begin now, whatever they are held for.
func (rec *Record) Turn(rs ...*ends.Node) uint64 {
	end, units := rec.Before(rs[0]), 0
	for _, r := range rs {
		end += r.Ahead + r.Span
		units += r.Units
	}
	return rec.policy.Turn(end-rec.back, units)
}

// Tell wakes the first call that waits, if its turn can begin sooner than it knows.
func (rec *Record) Tell() {
	if rec == nil {
		return
	}
	if r := rec.Waiting(); r != nil && rec.Turn(r) < uint64(r.At) {
		select {
		case r.Wake <- struct{}{}:
		default: // it has not read the last one
		}
	}
}

// Hold has rs, whose turn has moved up, end no later than the turn demands. It reports false if they are free.
func (rec *Record) Hold(rs ...*ends.Node) bool {
	if rs[0].Least == 0 {
		return false
	}
	for _, r := range rs {
		r.Least = rec.policy.Tick(r.At) + r.Span + rec.back
		rec.Changed(r)
	}
	return true
}

// Begin ends the waiting of rs, whose turn has begun: it stays where it is.
func (rec *Record) Begin(rs ...*ends.Node) {
	for _, r := range rs {
		rec.Leave(r)
		if r.Least == 0 {
			r.Least = min(r.End(rec.Before(r)), rec.policy.Tick(r.At)+r.Span+rec.back)
			rec.Changed(r)
		}
	}
}
