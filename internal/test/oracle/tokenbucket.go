package oracle

import "math/big"

// Token bucket: B tokens at first, Rate more per Period, continuously, never
// above B.
//
// State: the tokens there were at the last charge, and when that was. Tokens
// are counted in parts of 1/unit, one of which is gained with every tick.
//
//	admit n at t:  tokens(t) >= n
//	charge:        tokens = tokens(max(t, last)) - n, last = max(t, last)
//	refund:        tokens = min(tokens(t) + n, B), last = t, if tokens(t) < B
//
// A time t older than last is judged by the tokens at last less what the bucket
// gained between t and last. The line is followed backwards as it is, so the
// bucket may seem to have owed tokens then, and nothing passes.

type tokenBucket struct {
	*ticks
	full   *big.Int // B tokens; never written
	tokens big.Int  // at tick last; 0 <= tokens <= full
	last   big.Int
}

func newTokenBucket(tk *ticks, burst int64) func() state {
	full := new(big.Int).Set(tk.cost(burst))
	return func() state {
		s := &tokenBucket{ticks: tk, full: full}
		s.tokens.Set(full)
		return s
	}
}

// tokensAt returns, as scratch, the tokens at tick a. They are negative where
// a lies so far before last that the bucket cannot have held so little.
func (s *tokenBucket) tokensAt(a *big.Int) *big.Int {
	have := s.sum.Sub(a, &s.last)
	have.Add(have, &s.tokens)
	if have.Cmp(s.full) > 0 {
		return have.Set(s.full)
	}
	return have
}

func (s *tokenBucket) admits(t, n int64) bool {
	return s.tokensAt(s.at(t)).Cmp(s.cost(n)) >= 0
}

func (s *tokenBucket) charge(t, n int64) {
	if a := s.at(t); a.Cmp(&s.last) > 0 {
		s.tokens.Set(s.tokensAt(a))
		s.last.Set(a)
	}
	s.tokens.Sub(&s.tokens, s.cost(n))
}

// refund puts tokens back, as many as fit. In a bucket that is full none do.
func (s *tokenBucket) refund(t, n int64) {
	a := s.at(t)
	have := s.tokensAt(a)
	if have.Cmp(s.full) == 0 {
		return
	}
	s.tokens.Add(have, s.cost(n))
	if s.tokens.Cmp(s.full) > 0 {
		s.tokens.Set(s.full)
	}
	s.last.Set(a)
}

// idle: a full bucket is as if fresh, and it stays full until the next charge.
// One that is not full denies a call of the whole burst.
func (s *tokenBucket) idle(t int64) bool {
	return s.tokensAt(s.at(t)).Cmp(s.full) == 0
}

func (s *tokenBucket) clone() state {
	c := &tokenBucket{ticks: s.ticks, full: s.full}
	c.tokens.Set(&s.tokens)
	c.last.Set(&s.last)
	return c
}
