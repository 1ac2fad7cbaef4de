package sluice

// inFlight is the one-word packing of InFlight: the sliding window counter, with the units of the previous window
// counted in full. So a charge in window k counts until window k+2 begins, unless it is given back before:
//
//	admit n at t:  prev + cur + n <= limit
//
// The number of the window is the stamp of the charge, by which it is taken out: see slidingWindow.
type inFlight struct{ slidingWindowWord }

// newInFlight returns the one-word packing, or if the counts do not fit, the wide sliding window that counts in full.
func newInFlight(l Limit, reach int) (algorithm, wideAlgorithm, *ConfigError) {
	a, fits, err := newSlidingCounts(l, 0, reach)
	a.whole = true
	switch {
	case err != nil:
		return nil, nil, err
	case fits:
		return &inFlight{slidingWindowWord{a}}, nil, nil
	}
	return nil, &slidingWindowWide{a}, nil
}

func (a *inFlight) charge(word uint64, now int64, cost int) (uint64, bool) {
	c := a.unpack(word)
	if _, in := a.since(c.number, now); !in { // saves the call
		c, _ = a.rollIn(c, now)
	}
	if c.cur+c.prev+uint64(cost) > a.limit {
		return word, false
	}
	c.cur += uint64(cost)
	return a.pack(c), true
}

// moveOut takes n units out of the window that begins at start, at now, and with renew charges them to the window of now
// instead, which begins at next. ok is false if the window does not hold them, or no longer counts.
func (a *slidingWindow) moveOut(c counts, now int64, start, n uint64, renew bool) (_ counts, next uint64, ok bool) {
	if _, in := a.since(c.number, now); !in {
		c, _ = a.rollIn(c, now)
	}
	switch next = c.number * a.period; {
	case next == start && c.cur >= n:
		c.cur -= n
	case next == start+a.period && c.prev >= n:
		c.prev -= n
	default:
		return c, 0, false
	}
	if renew {
		c.cur += n
	}
	return c, next, true
}
