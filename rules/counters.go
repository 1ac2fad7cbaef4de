package rules

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// A counter is a FixedWindow that also counts denied hits, with a limit that no rule reaches. The
// count is that limit less the remaining units. Thresholds are compared with the count outside of the counter, so
// that rules, overrides and reloads change thresholds and never counts.

// maxCount is the most that a counter counts in a window. It counts less in a short window that leaves too few bits
// for the number of the window.
const maxCount = min(1<<33-1, math.MaxInt-1)

// maxRequests is the largest requests_per_unit. Only if int has 32 bits is it less than the largest number
// of the format.
const maxRequests = min(math.MaxUint32, math.MaxInt-1)

// counter is a limiter that counts, and its limit: the StoreCounter of memory.
type counter struct {
	limiter *sluice.Limiter
	most    int
}

// Close does nothing: memory keeps its counters for rules that come back.
func (*counter) Close() {}

// newCounter makes a counter of o's windows that counts at least to its limit.
func newCounter(o *rateLimit, base sluice.Config) (counter, error) {
	base.Algorithm, base.CountDenied, base.Hash = sluice.FixedWindow, true, sluice.HashStable
	base.Offset = o.config.Offset
	first := maxCount
	if o.limit > maxRequests {
		first = math.MaxInt / 2
	}
	for most := first; ; most /= 2 {
		base.Limit = o.windows(most)
		lim, err := sluice.New(base)
		if err == nil {
			return counter{lim, most}, nil
		}
		if most/2 < int(o.limit) || most < 2 {
			return counter{}, err
		}
	}
}

// counters are the counters of a domain, or of all domains without counters of their own, by unit.
type counters [Week + 1]counter

func newCounters(base sluice.Config) (*counters, error) {
	var cs counters
	for _, u := range units {
		c, err := newCounter(&rateLimit{limit: maxRequests, period: u.Period(), config: &sluice.Config{}}, base)
		if err != nil {
			return nil, err
		}
		cs[u] = c
	}
	return &cs, nil
}

// empty drops keys that are idle, and reports whether none is left.
func (cs *counters) empty() bool {
	for _, u := range units {
		cs[u].limiter.Sweep()
		if cs[u].limiter.Len() != 0 {
			return false
		}
	}
	return true
}

func floorMod(a, n int64) int64 {
	if a %= n; a < 0 {
		a += n
	}
	return a
}

// roundUp rounds up to whole seconds; the largest results are Never. The reset of a window is between 1 s and its
// length.
func roundUp(d time.Duration) time.Duration {
	r := d % time.Second
	switch {
	case r <= 0:
		return d
	case d-r > sluice.Never-time.Second:
		return sluice.Never
	}
	return d - r + time.Second
}
