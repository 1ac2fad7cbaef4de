package redislimit

import (
	"errors"
	"math"
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
)

// exact bounds all numbers that scripts see: doubles hold whole numbers below it exactly.
const exact = 1 << 53

const (
	micro = int64(time.Microsecond)
	// maxPeriod, in us, leaves room for the sum of a time and a period; 142 years.
	maxPeriod = exact / 2
)

// steps are the grids that times may be rounded down to, in us, the finest first.
var steps = []int64{1, 10, 100, 1000}

// A shape is a limit in the form in which a script keeps it. It turns the numbers of a
// script's reply into the numbers of a Decision. The scripts explain their numbers.
type shape interface {
	// letter stands for the shape in the names of keys.
	letter() byte
	script() *script
	// keeps reports whether state can be the script's, by its first byte and length.
	keeps(state string) bool
	// arguments appends the part of the limit that the script needs. now is in us, or 0 if Redis says the time.
	arguments(b []byte, now int64) []byte
	// free returns the units that would be admitted.
	free(v view) int64
	// used returns the units that count, also beyond the limit; a part of a unit counts as one.
	used(v view) int64
	// charged returns v with more units charged, or with fewer, if units is negative. It is
	// only used for units that were, or would be, admitted.
	charged(v view, units int64) view
	// wait returns after how many us cost units will be admitted that are not admitted yet. cost is at
	// most the burst.
	wait(v view, cost int64) int64
	// soonest is wait, as if all units on lease came back now.
	soonest(v view, cost int64) int64
	// open returns for how many us units that are lent now may be given back.
	open(v view) int64
	// reset returns after how many us the key is as if fresh.
	reset(v view) int64
	// cycle returns when owed units come back; see owed.go.
	cycle() cycle
	// worst returns the most units that are admitted in a closed span of d >= 0 ns.
	worst(d int64) uint64
}

// A view is a key's state at a time, in us. For all shapes except the log, c is the units that
// were lent to the call.
type view struct{ now, a, b, c int64 }

// A plan is a limit in force.
type plan struct {
	limit sluice.Limit
	burst int64 // the most at once; math.MaxInt for Unlimited, 0 for DenyAll
	block int64 // us
	shape shape
	kept  int64 // the burst of the limit that shape keeps; 0 if that limit decides nothing
	holds bool  // its keys can have holds; then they have other names, and other scripts: see holds.go
}

// constant reports whether decisions depend on nothing but the cost.
func (p *plan) constant() bool { return p.burst == 0 || p.burst == math.MaxInt }

// counts reports whether keys are charged units and given units back. Under DenyAll they are, as under the
// limit that DenyAll has replaced.
func (p *plan) counts() bool { return p.kept > 0 && p.burst != math.MaxInt }

// refunds returns the units that OpRefund gives back. Unlike Refund it also gives back units that were charged beyond
// the burst; a log does not keep these.
func (p *plan) refunds(cost int) int64 {
	if p.shape.letter() == logLetter {
		return min(int64(cost), p.kept)
	}
	return min(int64(cost), exact/2-1)
}

// newPlan returns the plan of c. before, which may be nil, is the plan that it replaces. A
// limit that decides nothing keeps the shape of before, so that keys can still be reset, and charged.
func newPlan(c Config, before *plan) (*plan, error) {
	_, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit,
		Offset: c.Offset, BlockFor: c.BlockFor, MaxKeys: 1,
	})
	if err != nil {
		var bad *sluice.ConfigError
		if errors.As(err, &bad) {
			return nil, &ConfigError{bad.Field, bad.Reason}
		}
		return nil, err
	}
	p := &plan{limit: c.Limit, burst: int64(c.Limit.Capacity()), block: min(ceilDiv(int64(c.BlockFor), micro), maxPeriod)}
	switch {
	case !p.constant():
		p.kept = p.burst
		if p.shape, err = newShape(c); err == nil && before != nil && (before.shape.letter() == datedLetter) != isDated(c.Limit) {
			return nil, configErrorf("Limit", "%q in the place of %q: units in windows by a calendar have other keys in Redis than units in windows of a period; want a limiter made with such a limit", c.Limit, before.limit)
		}
		return p, err
	case before != nil:
		p.shape, p.kept = before.shape, before.kept
		return p, nil
	}
	if c.Offset = 0; isDated(c.Limit) {
		c.Limit.Rate = 1
	} else {
		c.Limit = sluice.PerSecond(1)
	}
	p.shape, err = newShape(c)
	return p, err
}

func newShape(c Config) (shape, error) {
	if isDated(c.Limit) {
		return newDated(c)
	}
	switch c.Algorithm {
	case sluice.TokenBucketInterval, sluice.FixedWindow:
		return newCounter(c)
	case sluice.FixedWindowFirstCharge:
		return newFirstCharge(c)
	case sluice.SlidingWindow:
		return newSliding(c)
	case sluice.SlidingLog:
		return newSlog(c)
	case sluice.InFlight:
		return newInFlight(c)
	}
	return newBucket(c)
}

// describe returns the Decision on a call that has, or has not, been admitted. v is the key's state;
// blocked is how long the key is blocked, or 0.
func (p *plan) describe(v view, blocked int64, cost int, admitted bool) sluice.Decision {
	d := sluice.Decision{Allowed: admitted, Limit: int(p.burst)}
	asked := int64(max(cost, 1))
	switch {
	case blocked > 0 && !admitted:
		d.RetryAfter, d.ResetAfter = duration(blocked), duration(blocked)
	default:
		d.Remaining = int(min(p.shape.free(v), p.burst)) // under DenyAll the shape is of the limit that it has replaced
		d.ResetAfter = duration(p.shape.reset(v))
		if !admitted && asked <= p.burst {
			d.RetryAfter = duration(p.shape.wait(v, asked))
		}
	}
	if cost < 0 || asked > p.burst {
		d.RetryAfter = sluice.Never
	}
	return d
}

// judge returns the Decision on a call that has not been charged. With charges, the Decision is as if the call
// had been charged.
func (p *plan) judge(v view, blocked int64, cost int, charges bool) sluice.Decision {
	asked := int64(max(cost, 1))
	admitted := cost >= 0 && asked <= p.burst && blocked == 0 && p.shape.free(v) >= asked
	if admitted && charges {
		v = p.shape.charged(v, int64(cost))
	}
	return p.describe(v, blocked, cost, admitted)
}

// decideConstant is the Decision under Unlimited and DenyAll.
func (p *plan) decideConstant(cost int) sluice.Decision {
	d := sluice.Decision{Limit: int(p.burst), Remaining: int(p.burst)}
	if d.Allowed = p.burst > 0 && cost >= 0; !d.Allowed {
		d.RetryAfter = sluice.Never
	}
	return d
}

// worstCase is Limiter.WorstCase under the plan.
func (p *plan) worstCase(d time.Duration) int {
	switch {
	case d < 0 || p.burst == 0:
		return 0
	case p.constant():
		return math.MaxInt
	}
	return int(min(p.shape.worst(int64(d)), math.MaxInt))
}

// duration returns us as a Duration, or Never if it is too long for a Duration. What is due already, as a reply may say whose numbers do
// not belong together, is due now.
func duration(us int64) time.Duration {
	if us >= math.MaxInt64/micro {
		return sluice.Never
	}
	return time.Duration(max(us, 0) * micro)
}

// ceilDiv is ceil(x/y), for x >= 0 and y > 0.
func ceilDiv(x, y int64) int64 {
	if x == 0 {
		return 0
	}
	return (x-1)/y + 1
}

// floorDiv is floor(x/y), for y > 0.
func floorDiv(x, y int64) int64 {
	q := x / y
	if x%y < 0 {
		q--
	}
	return q
}

// product returns x*y, at most math.MaxInt64, for x, y >= 0.
func product(x, y int64) int64 {
	hi, lo := bits.Mul64(uint64(x), uint64(y))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// sum returns x+y, at most math.MaxUint64.
func sum(x, y uint64) uint64 {
	if s, carry := bits.Add64(x, y, 0); carry == 0 {
		return s
	}
	return math.MaxUint64
}

// mulDiv returns floor(x*y/z), at most math.MaxUint64.
func mulDiv(x, y, z uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	if hi >= z {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, z)
	return q
}

// times returns x*y, at most math.MaxUint64.
func times(x, y uint64) uint64 { return mulDiv(x, y, 1) }

func appendUint56(b []byte, n int64) []byte {
	return append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func appendUint32(b []byte, n int64) []byte {
	return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}
