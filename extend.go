package sluice

// Extend charges n further units to the reservation's key, if they are admitted now, all or none. They belong to the
// reservation from then on: Settle and Cancel are about all units together. So a stream can ask for more while it grows, and is
// cut where its limit is reached. Extend reports false, and charges nothing, for a reservation that is nil or settled, and for
// an n below 1.
func (r *Reservation) Extend(n int) bool {
	if r == nil || n < 1 {
		return false
	}
	r.extending.Lock()
	defer r.extending.Unlock()
	if r.settled.Load() {
		return false
	}
	k := r.lim.key(r.id)
	if p := r.lim.locate(r.id).policy; p.called() {
		k.terms = p.of // the limit that the key has now
	}
	var one [1]*Reservation
	if !TakeAllReservations(one[:], nil, Charge{k, n}).Allowed {
		return false
	}
	r.more = append(r.more, one[0])
	return true
}
