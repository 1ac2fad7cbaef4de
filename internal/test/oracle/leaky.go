package oracle

import "math/big"

// Leaky bucket as a meter: a queue with room for B units that leaks Rate per
// Period until it is empty.
//
// State: the level of the queue after the last charge, and when that was. The
// level is counted in parts of 1/unit, one of which leaks with every tick.
//
//	admit n at t:  level(t) + n <= B
//	charge:        level = level(max(t, last)) + n, last = max(t, last)
//	refund:        level = max(level(t) - n, 0), last = t, if level(t) > 0
//
// At a time t older than last the queue is taken to have been fuller by what
// leaked between t and last.

type leakyBucket struct {
	*ticks
	room  *big.Int // B units; never written
	level big.Int  // at tick last; 0 <= level <= room
	last  big.Int
}

func newLeakyBucket(tk *ticks, burst int64) func() state {
	room := new(big.Int).Set(tk.cost(burst))
	return func() state { return &leakyBucket{ticks: tk, room: room} }
}

// levelAt returns, as scratch, the level at tick a.
func (s *leakyBucket) levelAt(a *big.Int) *big.Int {
	leaked := s.sum.Sub(a, &s.last)
	level := leaked.Sub(&s.level, leaked)
	if level.Sign() < 0 {
		return level.SetInt64(0)
	}
	return level
}

func (s *leakyBucket) admits(t, n int64) bool {
	level := s.levelAt(s.at(t))
	return level.Add(level, s.cost(n)).Cmp(s.room) <= 0
}

func (s *leakyBucket) charge(t, n int64) {
	if a := s.at(t); a.Cmp(&s.last) > 0 {
		s.level.Set(s.levelAt(a))
		s.last.Set(a)
	}
	s.level.Add(&s.level, s.cost(n))
}

// refund scoops out of the queue, of which there is only the level at t.
func (s *leakyBucket) refund(t, n int64) {
	a := s.at(t)
	level := s.levelAt(a)
	if level.Sign() == 0 {
		return
	}
	s.level.Sub(level, s.cost(n))
	if s.level.Sign() < 0 {
		s.level.SetInt64(0)
	}
	s.last.Set(a)
}

// idle: an empty queue is as if fresh. One that holds anything has no room for
// the whole burst.
func (s *leakyBucket) idle(t int64) bool {
	return s.levelAt(s.at(t)).Sign() == 0
}

func (s *leakyBucket) clone() state {
	c := &leakyBucket{ticks: s.ticks, room: s.room}
	c.level.Set(&s.level)
	c.last.Set(&s.last)
	return c
}
