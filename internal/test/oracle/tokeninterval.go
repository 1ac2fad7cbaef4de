package oracle

import "math/big"

// Token bucket with refill at intervals: B tokens at first, and at each instant
// k*Period + Offset another Rate at once, never above B.
//
// State: the tokens there were at the last charge, and between which two refills
// that was.
//
//	admit n at t:  tokens(t) >= n
//	charge:        tokens = tokens(t) - n, at t, or between the key's own two
//	               refills if those are newer
//	refund:        likewise, tokens = min(tokens(t) + n, B)
//
// A time t before the last refill that the key has seen is judged after that refill.

type tokenInterval struct {
	*windows
	rate, full *big.Int // Rate and B; never written
	tokens     big.Int  // 0 <= tokens <= full
	win        big.Int

	have big.Int // scratch
}

func newTokenInterval(c Config, burst int64) func() state {
	w := newWindows(c, burst)
	first := w.first()
	return func() state {
		s := &tokenInterval{windows: w, rate: big.NewInt(c.Rate), full: &w.limit}
		s.tokens.Set(s.full)
		s.win.Set(first)
		return s
	}
}

// tokensAt returns, as scratch, the tokens at t.
func (s *tokenInterval) tokensAt(t int64) *big.Int {
	refills, _ := s.at(t)
	refills.Sub(refills, &s.win)
	if refills.Sign() <= 0 {
		return s.have.Set(&s.tokens)
	}
	s.have.Mul(refills, s.rate)
	s.have.Add(&s.have, &s.tokens)
	if s.have.Cmp(s.full) > 0 {
		s.have.Set(s.full)
	}
	return &s.have
}

func (s *tokenInterval) admits(t, n int64) bool {
	return s.tokensAt(t).Cmp(s.left.SetInt64(n)) >= 0
}

func (s *tokenInterval) charge(t, n int64) {
	s.tokens.Sub(s.tokensAt(t), s.left.SetInt64(n))
	s.see(t)
}

// refund puts tokens back, as many as fit. In a bucket that is full none do.
func (s *tokenInterval) refund(t, n int64) {
	have := s.tokensAt(t)
	if have.Cmp(s.full) == 0 {
		return
	}
	if s.tokens.Add(have, s.left.SetInt64(n)); s.tokens.Cmp(s.full) > 0 {
		s.tokens.Set(s.full)
	}
	s.see(t)
}

// see records that the refills up to t are in tokens.
func (s *tokenInterval) see(t int64) {
	if k, _ := s.at(t); k.Cmp(&s.win) > 0 {
		s.win.Set(k)
	}
}

// idle: a full bucket is as if fresh, and it stays full until the next charge.
func (s *tokenInterval) idle(t int64) bool {
	return s.tokensAt(t).Cmp(s.full) == 0
}

func (s *tokenInterval) clone() state {
	c := &tokenInterval{windows: s.windows, rate: s.rate, full: s.full}
	c.tokens.Set(&s.tokens)
	c.win.Set(&s.win)
	return c
}
