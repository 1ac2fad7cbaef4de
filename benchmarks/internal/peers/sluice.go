package peers

import (
	"io"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// sluiceModule has no version of its own here: it is the tree this module is in.
const sluiceModule = "github.com/sluice-go/sluice"

// maxLog is the largest limit that a sliding log takes.
const maxLog = 1 << 20

// sluiceSubjects returns the six algorithms under the system clock, GCRA under the fast
// one, and the algorithms of one word under the coarse one. The sliding log is not among
// the latter: while a coarse clock stands still it would have to keep more units than it
// can.
func sluiceSubjects() []Subject {
	const log = "It holds at most 2^20 units. Where others have units that are never spent, it has 10^9 a second: 2^20 in 1.05 ms."
	var system, fast, coarse []Subject
	for _, s := range []struct {
		name, note string
		algorithm  sluice.Algorithm
	}{
		{"sluice GCRA", "", sluice.GCRA},
		{"sluice token bucket", "", sluice.TokenBucket},
		{"sluice leaky bucket", "", sluice.LeakyBucket},
		{"sluice sliding window", "", sluice.SlidingWindow},
		{"sluice fixed window", "", sluice.FixedWindow},
		{"sluice sliding log", log, sluice.SlidingLog},
	} {
		sub := Subject{
			Name: s.name, Module: sluiceModule, Kind: Ours, Clock: System, Note: s.note,
			Bounded: true, DeniesNew: true, Sweeps: true, Batches: true, PerUnit: s.algorithm == sluice.SlidingLog,
			New: func(o Options) (Limiter, error) { return newSluice(s.algorithm, o, nil) },
		}
		system = append(system, sub)
		if sub.PerUnit {
			continue
		}
		sub.Name, sub.Clock = s.name+", coarse clock", Coarse
		sub.New = func(o Options) (Limiter, error) {
			return newSluice(s.algorithm, o, sluice.NewCoarseClock(0))
		}
		coarse = append(coarse, sub)
		if sub.Stands() {
			sub.Name, sub.Clock = s.name+", fast clock", Fast
			sub.New = func(o Options) (Limiter, error) {
				return newSluice(s.algorithm, o, sluice.NewFastClock())
			}
			fast = append(fast, sub)
		}
	}
	return slices.Concat(system, fast, coarse)
}

// newSluice returns a limiter with the defaults, except two: it has no bound on
// its keys unless the options have one, and it keeps idle keys for a day, since a
// sweep would change the number of keys that a workload declares. The README says so.
func newSluice(a sluice.Algorithm, o Options, clock sluice.Clock) (Limiter, error) {
	c := sluice.Config{
		Algorithm: a, Limit: limitOf(a, o), MaxKeys: o.MaxKeys, TTL: 24 * time.Hour, Clock: clock,
	}
	if o.MaxKeys == 0 {
		c.MaxKeys = -1
	}
	if o.DenyNew {
		c.Overflow = sluice.OverflowDenyNew
	}
	if o.Stable {
		c.Hash = sluice.HashStable
	}
	lim, err := sluice.New(c)
	if err != nil {
		return nil, err
	}
	return sluiceLimiter{lim}, nil
}

func limitOf(a sluice.Algorithm, o Options) sluice.Limit {
	limit := sluice.Per(o.Rate, o.Period).WithBurst(o.Burst)
	switch a {
	case sluice.SlidingWindow, sluice.FixedWindow, sluice.SlidingLog:
		limit.Burst = 0 // theirs is the rate
	}
	if a == sluice.SlidingLog && o.Rate > maxLog {
		limit = sluice.Per(maxLog, time.Duration(float64(o.Period)/float64(o.Rate)*maxLog))
	}
	return limit
}

type sluiceLimiter struct{ lim *sluice.Limiter }

func (l sluiceLimiter) Allow(key string) bool { return l.lim.Allow(key) }

func (l sluiceLimiter) Keys() int { return l.lim.Len() }

func (l sluiceLimiter) Sweep() { l.lim.Sweep() }

func (l sluiceLimiter) SetLimit(o Options) error {
	return l.lim.SetLimit(limitOf(l.lim.Config().Algorithm, o))
}

func (l sluiceLimiter) Snapshot(w io.Writer) error { return l.lim.Snapshot(w) }

func (l sluiceLimiter) Close() {
	if c, ok := l.lim.Config().Clock.(*sluice.FastClock); ok {
		noteSource(c)
	}
}

func (l sluiceLimiter) Batch(n int) Batch {
	return &sluiceBatch{l.lim, make([]sluice.Charge, 0, n), make([]bool, 0, n)}
}

type sluiceBatch struct {
	lim      *sluice.Limiter
	charges  []sluice.Charge
	admitted []bool
}

func (b *sluiceBatch) Add(key string) {
	b.charges = append(b.charges, sluice.Charge{Key: b.lim.Key(key), Cost: 1})
}

func (b *sluiceBatch) AllowSingly() (passed int) {
	b.admitted = b.admitted[:0]
	for _, c := range b.charges {
		b.admitted = append(b.admitted, c.Key.AllowN(c.Cost))
	}
	return b.take()
}

func (b *sluiceBatch) Allow() int {
	b.admitted = sluice.AllowEach(b.admitted[:0], b.charges...)
	return b.take()
}

// take empties the batch, and returns how many of its keys have been admitted.
func (b *sluiceBatch) take() (passed int) {
	b.charges = b.charges[:0]
	for _, ok := range b.admitted {
		if ok {
			passed++
		}
	}
	return passed
}

// Limiter is the limiter behind the adapter.
func (l sluiceLimiter) Limiter() *sluice.Limiter { return l.lim }
