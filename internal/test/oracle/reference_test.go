package oracle

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// The references below are the definitions once more, in the most naive form
// there is. They know no keys, no waits and, except GCRA, no older times:
// they check admission, and with it the state.

// rational is GCRA in big.Rat, in ns.
type rational struct {
	interval, limit, tat *big.Rat
	grid                 *big.Rat // nil: arrivals stay where they are
}

func newRational(c Config) *rational {
	r := &rational{interval: big.NewRat(c.Period, c.Rate), tat: new(big.Rat)}
	r.limit = new(big.Rat).Mul(r.interval, new(big.Rat).SetInt64(c.Burst))
	if c.Grid {
		ceil := (c.Period-1)/c.Rate + 1
		r.grid = new(big.Rat).Quo(r.interval, new(big.Rat).SetInt64(ceil))
	}
	return r
}

func (r *rational) take(t, n int64) bool {
	at := new(big.Rat).SetInt64(t)
	if r.grid != nil {
		k := new(big.Rat).Quo(at, r.grid)
		floor := new(big.Int).Quo(k.Num(), k.Denom())
		moved := new(big.Rat).Mul(new(big.Rat).SetInt(floor), r.grid)
		by := new(big.Rat).Sub(at, moved)
		if by.Sign() < 0 || by.Cmp(big.NewRat(1, 1)) >= 0 {
			panic("an arrival was moved by 1 ns or more, or forward")
		}
		at = moved
	}
	tat := r.tat
	if tat.Cmp(at) < 0 {
		tat = at
	}
	tat = new(big.Rat).Add(tat, new(big.Rat).Mul(r.interval, new(big.Rat).SetInt64(n)))
	if new(big.Rat).Sub(tat, at).Cmp(r.limit) > 0 {
		return false
	}
	r.tat = tat
	return true
}

// history is every charge ever admitted; the windows are sums over it.
type history struct {
	c       Config
	charges []struct{ at, n int64 }
}

// sum returns the cost charged at times in (after, upTo].
func (h *history) sum(after, upTo *big.Int) *big.Int {
	total := new(big.Int)
	for _, c := range h.charges {
		if at := big.NewInt(c.at); at.Cmp(after) > 0 && at.Cmp(upTo) <= 0 {
			total.Add(total, big.NewInt(c.n))
		}
	}
	return total
}

// take judges and charges at t, not older than any time before.
func (h *history) take(t, n int64) bool {
	now, period, limit := big.NewInt(t), big.NewInt(h.c.Period), big.NewInt(h.c.Rate)
	elapsed := new(big.Int).Sub(now, big.NewInt(h.c.Offset))
	elapsed.Mod(elapsed, period)                   // not negative, whatever the sign
	beforeWindow := new(big.Int).Sub(now, elapsed) // its first instant, less 1
	beforeWindow.Sub(beforeWindow, one)
	beforeLast := new(big.Int).Sub(beforeWindow, period)

	used := new(big.Int)
	switch h.c.Algorithm {
	case FixedWindow:
		used = h.sum(beforeWindow, now)
	case SlidingLog:
		used = h.sum(new(big.Int).Sub(now, period), now)
	case SlidingWindow: // in parts of 1/Period
		used.Mul(h.sum(beforeLast, beforeWindow), new(big.Int).Sub(period, elapsed))
		used.Add(used, new(big.Int).Mul(h.sum(beforeWindow, now), period))
		used.Add(used, new(big.Int).Mul(big.NewInt(n), period))
		limit.Mul(limit, period)
		if used.Cmp(limit) > 0 {
			return false
		}
		h.charges = append(h.charges, struct{ at, n int64 }{t, n})
		return true
	}
	if used.Add(used, big.NewInt(n)).Cmp(limit) > 0 {
		return false
	}
	h.charges = append(h.charges, struct{ at, n int64 }{t, n})
	return true
}

// ring is the sliding log as a ring of `limit` timestamps, older times
// included.
type ring struct {
	period *big.Int
	slots  []*big.Int // ascending; nil is unused
}

func (r *ring) take(t, n int64) bool {
	now := big.NewInt(t)
	if s := r.slots[n-1]; s != nil && new(big.Int).Add(s, r.period).Cmp(now) > 0 {
		return false
	}
	if newest := r.slots[len(r.slots)-1]; newest != nil && newest.Cmp(now) > 0 {
		now = newest
	}
	r.slots = r.slots[n:]
	for range n {
		r.slots = append(r.slots, now)
	}
	return true
}

// firstCharge goes through the whole history to find where the last window begins.
type firstCharge struct{ history }

// take judges and charges at t, not older than any time before.
func (h *firstCharge) take(t, n int64) bool {
	end, used := big.NewInt(-1), new(big.Int)
	for _, c := range append(h.charges, struct{ at, n int64 }{t, n}) {
		if at := big.NewInt(c.at); at.Cmp(end) >= 0 {
			end.Add(at, big.NewInt(h.c.Period))
			used.SetInt64(0)
		}
		used.Add(used, big.NewInt(c.n))
	}
	if used.Cmp(big.NewInt(h.c.Rate)) > 0 {
		return false
	}
	h.charges = append(h.charges, struct{ at, n int64 }{t, n})
	return true
}

// bucket is refilled by hand, one boundary after the other, until it is full.
type bucket struct {
	c      Config
	tokens int64
	next   int64 // the first refill that has not been seen; -1 if time ends before it
}

// take judges and charges at t, not older than any time before.
func (b *bucket) take(t, n int64) bool {
	for b.next >= 0 && b.next <= t {
		b.tokens = min(b.c.Burst, b.tokens+min(b.c.Rate, b.c.Burst-b.tokens))
		if b.tokens == b.c.Burst {
			b.next += (t - b.next) / b.c.Period * b.c.Period // the others change nothing
		}
		if b.next > math.MaxInt64-b.c.Period {
			b.next = -1
			break
		}
		b.next += b.c.Period
	}
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// TestMatchesReferences compares admission on random traces with the naive
// definitions.
func TestMatchesReferences(t *testing.T) {
	eachConfig(t, 150, func(t *testing.T, rng *rand.Rand, c Config) {
		m := New(c)
		c.Burst = m.main.limit
		take := (&history{c: c}).take
		older := false
		switch {
		case c.FirstCharge:
			take = (&firstCharge{history{c: c}}).take
		case c.Interval:
			if c.Burst/c.Rate > 10_000 {
				return // too many refills to count
			}
			take = (&bucket{c: c, tokens: c.Burst, next: c.Offset}).take
		case c.Algorithm <= LeakyBucket:
			take, older = newRational(c).take, true
		}
		tr := newTrace(rng, c)
		for range 80 {
			now, cost := tr.next()
			if !older {
				now = tr.now
			}
			got := m.Take("k", now, cost)
			if cost < 1 || cost > m.main.limit {
				continue
			}
			require.Equal(t, take(max(now, 0), cost), got.Allowed, "%+v now %d cost %d", c, now, cost)
		}
	})
}

// TestMatchesRing: the log agrees with the ring that the design describes, at
// older times too.
func TestMatchesRing(t *testing.T) {
	rng := seeded.Rand(t)
	for range 300 {
		c := randomConfig(rng)
		c.Algorithm, c.Burst = SlidingLog, 0
		c.Rate = 1 + rng.Int64N(64)
		m := New(c)
		r := &ring{period: big.NewInt(c.Period), slots: make([]*big.Int, c.Rate)}
		tr := newTrace(rng, c)
		for range 100 {
			now, cost := tr.next()
			got := m.Take("k", now, cost)
			if cost < 1 || cost > m.main.limit {
				continue
			}
			require.Equal(t, r.take(max(now, 0), cost), got.Allowed, "%+v now %d cost %d", c, now, cost)
		}
	}
}

// TestNoDrift: after k periods exactly k*Rate more units have accrued, where
// the key does not become fresh in between: here it is charged whatever it can
// pay at random instants, from a burst of two periods' worth.
func TestNoDrift(t *testing.T) {
	rng := seeded.Rand(t)
	for range 60 {
		rate, period := 1+rng.Int64N(2000), 1+rng.Int64N(2000)
		for _, a := range family {
			for _, grid := range []bool{false, true} {
				m := New(Config{Algorithm: a, Rate: rate, Period: period, Burst: 2 * rate, Grid: grid})
				start := rng.Int64N(1 << 60)
				if grid {
					start -= start % period // where an instant is a tick
				}
				m.Take("k", start, 2*rate)
				now, total := start, int64(0)
				for k := int64(1); k <= 50; k++ {
					end := start + k*period
					for now < end {
						now = min(end, now+1+rng.Int64N(period))
						left := m.Peek("k", now, 0).Remaining
						m.Take("k", now, left)
						total += left
					}
					require.Equal(t, k*rate, total, "%s rate %d period %d grid %v", names[a], rate, period, grid)
				}
			}
		}
	}
}
