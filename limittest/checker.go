package limittest

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// A Violation is a span of time in which a key was admitted more than was promised. It is an error.
type Violation struct {
	Key string

	// From and To are the first and the last instant of the span, in Unix nanoseconds. All that is counted was
	// admitted at From, at To, or between.
	From, To int64

	// Admitted is how many units that were, and Most how many the promise allows; math.MaxInt if that is less.
	Admitted, Most int
}

// Span returns how long the span is.
func (v *Violation) Span() time.Duration { return time.Duration(v.To - v.From) }

// Error tells the promise, and the units admitted.
func (v *Violation) Error() string {
	return fmt.Sprintf("limittest: key %q was admitted %d units within %v, from %d to %d ns; the promise is at most %d",
		v.Key, v.Admitted, v.Span(), v.From, v.To, v.Most)
}

// A Checker is told the decisions of a limiter, and finds out whether a promise was ever broken. It must be made by
// NewChecker, and is safe for concurrent use.
//
// Records of one key come in the order of their times; of concurrent calls, a Recorder puts them in order. A
// record that comes late is never held against the limiter where that is not certain, but can hide a case that is.
// Of records in order nothing is missed: an excess of a single unit is found.
//
// For Bucket, and for the buckets of Of, the memory of a key is bounded: the start of its largest debt is all that is needed to
// find an excess. To name the shortest span, other instants at which that may begin are kept, too, of 16 bytes each: up to
// 128, and one or two while the key has all of its burst. If there were more, a shorter span can be among those that
// went. Bound tells the memory of the other promises. A record of a known key allocates only to keep more instants, and
// to tell of a violation; a million of them took 0.06 to 0.08 s (BenchmarkChecker).
type Checker struct {
	promise Promise

	mu       sync.Mutex // guards the rest
	keys     map[string]*history
	shortest *Violation
	units    uint64
}

// NewChecker returns a Checker that has not been told anything.
func NewChecker(p Promise) *Checker {
	return &Checker{promise: p, keys: map[string]*history{}}
}

// Record tells that a call was judged at now, in Unix nanoseconds: of so many units for key. A call that was not
// admitted, or with a cost below 1, is nothing to remember.
func (c *Checker) Record(now int64, key string, cost int, admitted bool) {
	c.RecordWithin(now, now, key, cost, admitted)
}

// RecordWithin is Record for a call that was judged at an unknown instant from one time to another, both included:
// those before and after it. A violation is only one if it is one wherever in these the instants were. A time before
// 1970 counts as 1970. It panics if to is before from.
func (c *Checker) RecordWithin(from, to int64, key string, cost int, admitted bool) {
	from, to = max(from, 0), max(to, 0)
	if to < from {
		panic(fmt.Sprintf("limittest: RecordWithin: from %d to %d goes back in time; want two times in order", from, to))
	}
	if !admitted || cost < 1 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.keys[key]
	if h == nil {
		h = &history{promise: &c.promise}
		c.keys[key] = h
	}
	c.units += uint64(cost)
	v := h.add(from, to, uint64(cost))
	if v == nil {
		return
	}
	v.Key = key
	if old := c.shortest; old == nil || v.Span() < old.Span() || v.Key == old.Key && v.From == old.From && v.To == old.To {
		c.shortest = v
	}
}

// Violation returns the violation of the shortest span so far, of several the one that was found first; nil if the
// promise was kept.
func (c *Checker) Violation() *Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shortest == nil {
		return nil
	}
	v := *c.shortest
	return &v
}

// Err returns Violation as an error, nil if there is none.
func (c *Checker) Err() error {
	if v := c.Violation(); v != nil {
		return v
	}
	return nil
}

// Admitted returns how many units the Checker was told were admitted, so that a test can demand that there were some.
func (c *Checker) Admitted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.units
}

// maxStarts is how many instants a history under a line keeps at which the shortest span may begin.
const maxStarts = 128

// A history is the units admitted to one key. The span from starts[i] to the newest record holds total - before of
// it. Both fields of the starts ascend, and the last of them is the newest from.
//
// Under a line, the debt since a start is the units admitted since, less the units that came back. If a later start shows no less
// of it, an earlier one is of no use: a promise that the earlier one breaks, the later one breaks within a shorter span. So
// debts descend from the first start to the last, the first one finds every violation, and if a start shows one,
// all before it do.
type history struct {
	promise *Promise
	starts  []start
	total   uint64
	newest  int64 // the newest to
}

type start struct {
	from   int64
	before uint64 // of total, the units admitted before
}

// add adds a record, and returns the shortest violation that ends with it.
func (h *history) add(from, to int64, cost uint64) *Violation {
	h.newest = max(h.newest, to)
	h.makeRoom()
	i := h.insert(from, cost)
	h.total += cost
	if h.promise.line == nil {
		h.prune()
		return h.shortestUnderBound()
	}
	h.dropNeedless(i)
	return h.shortestUnderLine()
}

// insert makes a start of from, if there is none, and returns its index. All starts after it do not count the cost.
func (h *history) insert(from int64, cost uint64) int {
	i := len(h.starts)
	before := h.total
	for i > 0 && h.starts[i-1].from > from { // the record is late
		i--
		before = h.starts[i].before
		h.starts[i].before += cost
	}
	if i > 0 && h.starts[i-1].from == from {
		return i - 1
	}
	h.starts = slices.Insert(h.starts, i, start{from, before})
	return i
}

// dropNeedless drops, under a line, the starts before i that show no more debt than i, and i if it shows no more than the
// next one.
func (h *history) dropNeedless(i int) {
	first := i
	for first > 0 && h.returned(h.starts[first-1], h.starts[i]) {
		first--
	}
	if i+1 < len(h.starts) && h.returned(h.starts[i], h.starts[i+1]) {
		i++
	}
	h.starts = slices.Delete(h.starts, first, i)
	if len(h.starts) > maxStarts {
		h.starts = slices.Delete(h.starts, 1, maxStarts/2)
	}
}

// returned reports whether all that was admitted between two starts had come back at the second.
func (h *history) returned(a, b start) bool {
	return h.promise.line.returned(b.before-a.before, uint64(b.from-a.from))
}

// makeRoom keeps the units admitted since the first start below 2^63, so that a cost can be added: more than that a promise
// does not bound. total and before wrap; their differences do not.
func (h *history) makeRoom() {
	for len(h.starts) > 0 && h.total-h.starts[0].before > math.MaxInt64 {
		h.starts = h.starts[1:]
	}
}

// prune drops the starts of spans that are too long to be looked at.
func (h *history) prune() {
	n := 0
	for n < len(h.starts) && h.newest-h.starts[n].from > h.promise.longest {
		n++
	}
	h.starts = h.starts[n:]
}

// shortestUnderLine: the starts owe more from one to the next, so if one shows a violation, all before it do.
func (h *history) shortestUnderLine() *Violation {
	breaks := func(i int) bool {
		return h.promise.line.breaks(h.total-h.starts[i].before, uint64(h.newest-h.starts[i].from))
	}
	if !breaks(0) {
		return nil
	}
	i := sort.Search(len(h.starts), func(i int) bool { return !breaks(i) }) - 1
	sum, d := h.total-h.starts[i].before, uint64(h.newest-h.starts[i].from)
	return h.violation(i, h.promise.line.most(sum, d))
}

// shortestUnderBound goes back from the newest start. Where a span is within its bound, the next one to be looked at
// is the shortest that holds more than this bound, since the bounds of those between are no lower.
func (h *history) shortestUnderBound() *Violation {
	for i := len(h.starts) - 1; i >= 0; {
		most := 0
		if h.promise.most != nil {
			most = h.promise.most(h.newest - h.starts[i].from)
		}
		sum, bound := h.total-h.starts[i].before, uint64(max(most, 0))
		switch {
		case most == math.MaxInt || bound >= h.total-h.starts[0].before:
			return nil
		case sum > bound:
			return h.violation(i, bound)
		}
		i = sort.Search(i, func(k int) bool { return h.total-h.starts[k].before <= bound }) - 1
	}
	return nil
}

func (h *history) violation(i int, most uint64) *Violation {
	return &Violation{
		From: h.starts[i].from, To: h.newest,
		Admitted: int(min(h.total-h.starts[i].before, math.MaxInt)), Most: int(min(most, math.MaxInt)),
	}
}
