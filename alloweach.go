package sluice

// AllowEach decides on each of the charges by itself, in their order, as Key.AllowN does, and
// appends to dst whether it was admitted. It returns the extended slice, and allocates only if
// dst has no room:
//
//	admitted = sluice.AllowEach(admitted[:0], charges...)
//
// The memory of the next keys is fetched meanwhile, so a decision on one of a million keys takes
// about half the time in a batch of 16, and three quarters of it on a CoarseClock. The clock is
// read once for all charges in a row whose keys are of one limiter. They are judged as if they
// had all come at that time, so divide a large batch into parts. For charges that are made together
// or not at all, see TakeAll.
func AllowEach(dst []bool, charges ...Charge) []bool {
	if len(charges) == 1 { // as fast as AllowN
		return append(dst, charges[0].Key.AllowN(charges[0].Cost))
	}
	for i := range charges[:min(eachAhead, len(charges))] {
		charges[i].Key.lim.made().lookAhead(charges[i].Key.id)
	}
	var lim *Limiter
	var now int64
	for i := range charges {
		if next := i + eachAhead; next < len(charges) {
			charges[next].Key.lim.made().lookAhead(charges[next].Key.id)
		}
		k := charges[i].Key
		if k.lim != lim {
			lim = k.lim
			now = lim.now()
		}
		dst = append(dst, k.AllowAt(now, charges[i].Cost))
	}
	return dst
}
