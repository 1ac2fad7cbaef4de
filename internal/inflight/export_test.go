package inflight

import "time"

// NextIn returns the time until the next look. armed is false if there will be none.
func (r *Renewer) NextIn() (d time.Duration, armed bool) {
	next := r.next.Load()
	return time.Duration(next - instant()), next != never
}

// Look looks at all leases, now.
func (r *Renewer) Look() { r.look() }

// MakeDue has the next look renew all leases.
func (r *Renewer) MakeDue() {
	for i := range r.shards {
		s := &r.shards[i]
		for l := s.ring.following; l != &s.ring; l = l.following {
			l.due = 0
		}
	}
}
