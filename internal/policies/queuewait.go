package policies

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
)

// longest returns the claim that s would wait for longest, and how long.
func (s *stand) longest() (at *claim, wait time.Duration) {
	for i := range s.claims {
		if w := s.wait(&s.claims[i]); at == nil || w > wait {
			at, wait = &s.claims[i], w
		}
	}
	return at, wait
}

// wait returns how long s would wait for a claim, by the limiter's clock: until whoever stands in front has had its turn, as far as
// is known, and there is room for s. It is sluice.Never if no wait helps, and 0 if there is room and nobody in front.
func (s *stand) wait(c *claim) time.Duration {
	own := c.key.Peek(c.cost).RetryAfter
	front, head := s.front(c)
	if head == nil || own == sluice.Never {
		return holdsOr(c, own)
	}
	first := c.key.Peek(head.at.cost).RetryAfter
	if first == sluice.Never { // it will give up
		first = own
	}
	conf := c.limiter.Config()
	conf.Limit = c.key.Limit()
	if c.holds { // others may end at any time
		return max(1, inflight.RetryAfter(max(first, conf.Limit.Period)))
	}
	return max(1, first+min(behind(&conf, front, head.at.cost, c.cost), sluice.Never-1-first))
}

// holdsOr returns the wait of the first of a line.
func holdsOr(c *claim, wait time.Duration) time.Duration {
	if c.holds {
		return inflight.RetryAfter(wait)
	}
	return wait
}

// front returns the costs of those who stand in the line of a claim and came before s, and the first of them; nil for nobody.
func (s *stand) front(c *claim) (units int, head *stand) {
	l := s.queue.lines[c.lineKey]
	switch {
	case l == nil || l.first == nil || l.first.number >= s.number:
		return 0, nil
	case l.last.number < s.number:
		return l.units, l.first
	}
	for o := l.first; o.number < s.number; o = o.next { // the last is s, or came later
		units += min(max(o.at.cost, 0), math.MaxInt-units)
	}
	return units, l.first
}

// behind returns how long after the first of a line somebody has its turn who has front units in front, with those of the first. It
// is what the limit takes to admit as many; under sliding windows it can take longer.
func behind(c *sluice.Config, front, first, own int) time.Duration {
	each := 0 // units that come back together
	switch c.Algorithm {
	case sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket:
		return c.RefillTime(front - first + min(own, math.MaxInt-front))
	case sluice.TokenBucketInterval:
		each = min(c.Limit.Rate, c.Limit.Capacity())
	default:
		each = c.Limit.Capacity()
	}
	if each < 1 {
		return sluice.Never
	}
	periods := (front + min(max(own, 1), math.MaxInt-front) - 1) / each
	hi, lo := bits.Mul64(uint64(periods), uint64(c.Limit.Period))
	if hi != 0 || lo > math.MaxInt64 {
		return sluice.Never
	}
	return time.Duration(lo)
}
