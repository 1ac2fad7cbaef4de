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

// A meter finds the need of each client. It is asked about requests in the order of time.
type meter interface {
	see(client int, now int64)
	needs() []int64 // by client; none if nothing will do
}

// bucket is the meter of GCRA, the token bucket and the leaky bucket at one rate: a client needs a burst of its largest debt, with
// the cost of a request. Time is in the library's ticks: a unit lasts a whole number of them (see schedule.go of the root), so the meter rounds
// as a limiter does.
type bucket struct {
	unit     uint64 // ticks a unit
	num, den uint64 // ticks a ns
	end      int64  // time stops here
	full     []uint64
	debt     []uint64 // the largest, in ticks
}

// maxTicks is the longest burst that a limiter takes.
const maxTicks = 1 << 62

// newBucket returns the meter of limit's rate, which a limiter must accept.
func newBucket(limit sluice.Limit, clients int) *bucket {
	rate, period := uint64(limit.Rate), uint64(limit.Period)
	unit := (period-1)/rate + 1
	b := &bucket{unit: unit, num: rate * unit, den: period, end: math.MaxInt64, full: make([]uint64, clients), debt: make([]uint64, clients)}
	if b.num == b.den {
		b.num, b.den = 1, 1
	}
	if hi, lo := bits.Mul64(math.MaxInt64, b.den); hi < b.num {
		if end, _ := bits.Div64(hi, lo, b.num); end < math.MaxInt64 {
			b.end = int64(end)
		}
	}
	return b
}

func (b *bucket) see(client int, now int64) {
	tick := uint64(min(now, b.end))
	if b.num != b.den {
		hi, lo := bits.Mul64(tick, b.num)
		tick, _ = bits.Div64(hi, lo, b.den)
	}
	full := max(b.full[client], tick) + b.unit
	debt := full - tick
	if debt > maxTicks { // more than any limit allows; all that follows is, too
		debt, full = maxTicks+1, tick+maxTicks
	}
	b.full[client] = full
	b.debt[client] = max(b.debt[client], debt)
}

func (b *bucket) needs() []int64 {
	out := make([]int64, len(b.debt))
	for i, debt := range b.debt {
		out[i] = none
		if units := (debt-1)/b.unit + 1; debt > 0 && debt <= maxTicks && units < math.MaxInt {
			out[i] = int64(units)
		}
	}
	return out
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

func (w *fixedWindow) see(client int, now int64) {
	s := &w.states[client]
	s.roll(now / w.period)
	s.cur++
	s.most = max(s.most, s.cur)
}

func (w *fixedWindow) needs() []int64 { return mostOf(w.states) }

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

func mostOf(states []windowState) []int64 {
	out := make([]int64, len(states))
	for i, s := range states {
		out[i] = s.most
	}
	return out
}

// slidingWindow counts the window before in proportion to its part that lies less than a period back.
type slidingWindow struct{ fixedWindow }

func newSlidingWindow(period time.Duration, clients int) *slidingWindow {
	return &slidingWindow{*newFixedWindow(period, clients)}
}

func (w *slidingWindow) see(client int, now int64) {
	s := &w.states[client]
	s.roll(now / w.period)
	s.cur++
	used := s.cur
	if s.prev > 0 {
		hi, lo := bits.Mul64(uint64(s.prev), uint64(w.period-now%w.period))
		units, rest := bits.Div64(hi, lo, uint64(w.period)) // at most prev
		if rest > 0 {
			units++
		}
		used += int64(units)
	}
	s.most = max(s.most, used)
}

// slidingLog counts the requests of the last period. A second reader of the requests, a period behind, says which no longer count.
type slidingLog struct {
	period int64
	behind *spool.Reader
	more   bool // behind stands at a request
	count  []int64
	most   []int64
}

func newSlidingLog(period time.Duration, clients int, requests *spool.Spool) *slidingLog {
	s := &slidingLog{period: int64(period), behind: requests.Read(), count: make([]int64, clients), most: make([]int64, clients)}
	s.more = s.behind.Next()
	return s
}

func (s *slidingLog) see(client int, now int64) {
	for s.more && s.behind.Now <= now-s.period {
		s.count[s.behind.Client]--
		s.more = s.behind.Next()
	}
	s.count[client]++
	s.most[client] = max(s.most[client], s.count[client])
}

func (s *slidingLog) needs() []int64 { return s.most }
