package recommend

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/spool"
)

// none is the need of a client that no limit in numbers would satisfy.
const none = math.MaxInt64

// A meter finds the need of each client. It is shown the requests in the order of time, some at a time.
type meter interface {
	see(requests []spool.Request)
	// needs fills in the needs by client, none if nothing will do. i is 0, or of buckets the number of a rate.
	needs(i int, out []int64)
}

// buckets are the meter of GCRA, the token bucket and the leaky bucket at some rates: a client needs a burst of its largest debt, with
// the cost of a request. What it keeps of a client lies together, since most of its time would go to waiting for memory.
type buckets struct {
	rates  []bucketRate
	states []bucketState // len(rates) for each client

	fetched uint64 // so that the compiler keeps what fetch does
}

// bucketRate is a rate in the library's ticks: a unit lasts a whole number of them (see schedule.go of the root), so the meter rounds as
// a limiter does.
type bucketRate struct {
	unit     uint64 // ticks a unit
	num, den uint64 // ticks a ns
	end      int64  // time stops here
	now      int64  // of the request before, which is often the time of the next, too
	tick     uint64 // at now
}

type bucketState struct {
	full uint64 // the tick at which the bucket is full again
	debt uint64 // the largest, in ticks
}

// statesPerLine is how many of them share a cache line.
const statesPerLine = 4

// maxTicks is the longest burst that a limiter takes.
const maxTicks = 1 << 62

// newBuckets returns the meter of the rates of limits, which a limiter must accept. It takes the memory of a meter that is done with, if that
// will do.
func newBuckets(limits []sluice.Limit, clients int, old meter) *buckets {
	b := &buckets{rates: make([]bucketRate, len(limits))}
	for i, limit := range limits {
		b.rates[i] = newBucketRate(limit)
	}
	if o, ok := old.(*buckets); ok && cap(o.states) >= clients*len(limits) {
		b.states = o.states[:clients*len(limits)]
		clear(b.states)
	} else {
		b.states = make([]bucketState, clients*len(limits))
	}
	return b
}

func newBucketRate(limit sluice.Limit) bucketRate {
	rate, period := uint64(limit.Rate), uint64(limit.Period)
	unit := (period-1)/rate + 1
	r := bucketRate{unit: unit, num: rate * unit, den: period, end: math.MaxInt64}
	if r.num == r.den {
		r.num, r.den = 1, 1
	}
	if hi, lo := bits.Mul64(math.MaxInt64, r.den); hi < r.num {
		if end, _ := bits.Div64(hi, lo, r.num); end < math.MaxInt64 {
			r.end = int64(end)
		}
	}
	return r // whose tick at the time 0 is 0
}

func (r *bucketRate) advance(now int64) {
	r.now, r.tick = now, uint64(min(now, r.end))
	if r.num != r.den {
		hi, lo := bits.Mul64(r.tick, r.num)
		r.tick, _ = bits.Div64(hi, lo, r.den)
	}
}

func (b *buckets) see(requests []spool.Request) {
	b.fetch(requests)
	for _, q := range requests {
		states := b.states[q.Client*len(b.rates):][:len(b.rates)]
		for i := range states {
			r, s := &b.rates[i], &states[i]
			if q.Now != r.now {
				r.advance(q.Now)
			}
			full := max(s.full, r.tick) + r.unit
			debt := full - r.tick
			if debt > maxTicks { // more than any limit allows; all that follows is, too
				debt, full = maxTicks+1, r.tick+maxTicks
			}
			s.full, s.debt = full, max(s.debt, debt)
		}
	}
}

// fetch brings the clients of requests near: loads that wait for no other one go on side by side.
func (b *buckets) fetch(requests []spool.Request) {
	var sum uint64
	for _, q := range requests {
		for i := 0; i < len(b.rates); i += statesPerLine {
			sum += b.states[q.Client*len(b.rates)+i].debt
		}
	}
	b.fetched = sum
}

func (b *buckets) needs(i int, out []int64) {
	unit := b.rates[i].unit
	for client := range out {
		debt := b.states[client*len(b.rates)+i].debt
		out[client] = none
		if units := (debt-1)/unit + 1; debt > 0 && debt <= maxTicks && units < math.MaxInt {
			out[client] = int64(units)
		}
	}
}

// fixedWindow counts in windows of Unix time. A client needs the most that one of them has.
type fixedWindow struct {
	period int64
	states []windowState
}

type windowState struct{ number, cur, prev, most int64 }

func newFixedWindow(period time.Duration, clients int) *fixedWindow {
	return &fixedWindow{int64(period), make([]windowState, clients)}
}

func (w *fixedWindow) see(requests []spool.Request) {
	for _, q := range requests {
		s := &w.states[q.Client]
		s.roll(q.Now / w.period)
		s.cur++
		s.most = max(s.most, s.cur)
	}
}

func (w *fixedWindow) needs(_ int, out []int64) { mostOf(w.states, out) }

// roll makes number the present window.
func (s *windowState) roll(number int64) {
	switch {
	case number == s.number:
		return
	case number == s.number+1:
		s.prev = s.cur
	default:
		s.prev = 0
	}
	s.number, s.cur = number, 0
}

func mostOf(states []windowState, out []int64) {
	for i, s := range states {
		out[i] = s.most
	}
}

// slidingWindow counts the window before in proportion to its part that lies less than a period back.
type slidingWindow struct{ fixedWindow }

func newSlidingWindow(period time.Duration, clients int) *slidingWindow {
	return &slidingWindow{*newFixedWindow(period, clients)}
}

func (w *slidingWindow) see(requests []spool.Request) {
	for _, q := range requests {
		s := &w.states[q.Client]
		s.roll(q.Now / w.period)
		s.cur++
		used := s.cur
		if s.prev > 0 {
			hi, lo := bits.Mul64(uint64(s.prev), uint64(w.period-q.Now%w.period))
			units, rest := bits.Div64(hi, lo, uint64(w.period)) // at most prev
			if rest > 0 {
				units++
			}
			used += int64(units)
		}
		s.most = max(s.most, used)
	}
}

// slidingLog counts the requests of the last period. A second reader of the requests, a period behind, says which no longer count.
type slidingLog struct {
	period int64
	reader *spool.Reader
	behind []spool.Request // that reader has read, and that still count; empty at its end
	buf    []spool.Request
	counts []logCount
}

type logCount struct{ now, most int64 }

func newSlidingLog(period time.Duration, clients int, requests *spool.Spool) *slidingLog {
	s := &slidingLog{period: int64(period), reader: requests.Read(), buf: make([]spool.Request, batch), counts: make([]logCount, clients)}
	s.behind = s.reader.Batch(s.buf)
	return s
}

func (s *slidingLog) see(requests []spool.Request) {
	for _, q := range requests {
		for len(s.behind) > 0 && s.behind[0].Now <= q.Now-s.period {
			s.counts[s.behind[0].Client].now--
			if s.behind = s.behind[1:]; len(s.behind) == 0 {
				s.behind = s.reader.Batch(s.buf)
			}
		}
		c := &s.counts[q.Client]
		c.now++
		c.most = max(c.most, c.now)
	}
}

func (s *slidingLog) needs(_ int, out []int64) {
	for i, c := range s.counts {
		out[i] = c.most
	}
}
