package oracle

import "math/big"

// Fixed window: cost is counted in the windows [k*Period + Offset, (k+1)*Period +
// Offset). Window -1 is the one before an Offset > 0.
//
// State: the newest window that was charged, and the cost admitted in it.
//
//	admit n at t:  count(t) + n <= limit
//	charge:        in the window of t, or the key's own if that is newer
//	refund:        likewise, count = max(count - n, 0)
//
// A time t in a window older than the key's is judged and charged in the key's.

// windows is the division of time into windows of one period. The results of
// its methods are scratch, valid until the next call.
type windows struct {
	period, offset, limit big.Int
	most                  ceiling
	calendar              *Calendar // or nil; a window is then known by its first date

	index, elapsed, left, sum big.Int // scratch
}

func newWindows(c Config, limit int64) *windows {
	w := &windows{calendar: c.Calendar}
	w.period.SetInt64(c.Period)
	w.offset.SetInt64(c.Offset)
	w.most.SetInt64(c.CountMost)
	w.limit.SetInt64(limit)
	return w
}

// at returns the index of the window that instant t >= 0 lies in, and how far
// into it.
func (w *windows) at(t int64) (index, elapsed *big.Int) {
	if w.calendar != nil {
		return w.index.SetInt64(w.calendar.firstDate(t)), nil // a fixed window does not ask how far
	}
	w.elapsed.Sub(w.elapsed.SetInt64(t), &w.offset)
	return w.index.DivMod(&w.elapsed, &w.period, &w.elapsed) // rounds down, below 0, too
}

// first returns a copy of the index of the first window that any instant lies in.
func (w *windows) first() *big.Int {
	k, _ := w.at(0)
	return new(big.Int).Set(k)
}

type fixedWindow struct {
	*windows
	win   big.Int
	count big.Int // 0 <= count <= limit
}

func newFixedWindow(c Config, limit int64) func() state {
	w := newWindows(c, limit)
	first := w.first()
	return func() state {
		s := &fixedWindow{windows: w}
		s.win.Set(first)
		return s
	}
}

// used returns, as scratch, the units that count at t.
func (s *fixedWindow) used(t int64) *big.Int {
	if k, _ := s.at(t); k.Cmp(&s.win) > 0 {
		return s.sum.SetInt64(0)
	}
	return s.sum.Set(&s.count)
}

func (s *fixedWindow) admits(t, n int64) bool {
	used := s.used(t)
	return used.Add(used, s.left.SetInt64(n)).Cmp(&s.limit) <= 0
}

func (s *fixedWindow) charge(t, n int64) {
	used := s.used(t)
	if k, _ := s.at(t); k.Cmp(&s.win) > 0 {
		s.win.Set(k)
	}
	s.count.Add(used, s.left.SetInt64(n))
}

// refund: where t is in a newer window there is nothing to give back.
func (s *fixedWindow) refund(t, n int64) {
	used := s.used(t)
	if used.Sign() == 0 {
		return
	}
	s.count.Sub(used, s.left.SetInt64(n))
	if s.count.Sign() < 0 {
		s.count.SetInt64(0)
	}
}

// idle: with anything counted, a call of the whole limit is denied.
func (s *fixedWindow) idle(t int64) bool {
	return s.used(t).Sign() == 0
}

func (s *fixedWindow) clone() state {
	c := &fixedWindow{windows: s.windows}
	c.win.Set(&s.win)
	c.count.Set(&s.count)
	return c
}
