package sluice

import (
	"math"
	"math/bits"
	"time"
)

// A schedule is the arithmetic that GCRA, the token bucket and the leaky bucket
// share: a rate R per period P and a burst B on a grid of ticks on which one
// unit of cost lasts a whole number of ticks.
//
//	c     = ceil(P/R)   ticks a unit, so a tick is P/(R*c) <= 1 ns
//	g(t)  = floor(t*R*c/P)   the tick of the clock's nanosecond t
//
// If P/R is a whole number of nanoseconds, a tick is one nanosecond and g is
// the identity. Otherwise g moves an arrival by less than one tick, always to
// the tick before it, and everything after that is exact: k periods are always
// k*R*c ticks, so k*R units accrue in them and nothing drifts.
//
// The state of all three algorithms is the full tick: the tick from which the key
// is as if fresh. They differ in how they encode it in the word.
type schedule struct {
	end   int64  // time stops here, at the last tick
	whole uint64 // ticks a ns, whole part
	part  uint64 // ticks a ns, fraction part/den; 0 if there is none
	magic uint64 // floor(part*2^64/den)
	den   uint64

	unit  uint64 // c: ticks a unit
	burst uint64 // ticks of B units

	most     uint64 // the last full tick that a word can hold
	num      uint64 // ticks a ns are num/den
	capacity int    // B
}

const (
	// maxBurst is the longest burst in ticks, 146 years. With ticks up to MaxInt64 a full
	// tick stays below reserved, the first word that no algorithm uses.
	maxBurst = 1 << 62

	// minHorizon is the earliest end of time that New accepts: almost 2^61 ns after 1970
	// is January 2043. Rates up to 2 a nanosecond end in 2116 or later, rates up to
	// 1 a nanosecond with a whole interval with the clock, in 2262. At its end time
	// stands still, so a limit can only get stricter.
	minHorizon = 1<<61 - 1
)

// newSchedule returns the schedule of l, which must be a valid limit that is
// neither DenyAll nor Unlimited.
func newSchedule(l Limit) (schedule, *ConfigError) {
	rate, period, burst := uint64(l.Rate), uint64(l.Period), uint64(l.burst())
	unit := (period-1)/rate + 1
	divisor := gcd(rate*unit, period) // rate*unit < period+rate < 2^64
	s := schedule{
		num:      rate * unit / divisor,
		den:      period / divisor,
		unit:     unit,
		most:     reserved - 1,
		capacity: l.burst(),
	}
	hi, ticks := bits.Mul64(burst, unit)
	if hi != 0 || ticks > maxBurst {
		return s, configErrorf("Limit.Burst", "%d at %d per %v takes %.3g years to refill; want at most 146 years, 2^62 ns",
			burst, rate, l.Period, float64(burst)*float64(unit)/float64(365*day))
	}
	s.burst = ticks
	s.whole, s.part = s.num/s.den, s.num%s.den
	s.magic, _ = bits.Div64(s.part, 0, s.den)
	return s, s.endAt(l, math.MaxInt64)
}

// endAt lets time end at the given last tick.
func (s *schedule) endAt(l Limit, last uint64) *ConfigError {
	s.end = math.MaxInt64
	if end, _ := mulDiv(last, s.den, s.num); end < math.MaxInt64 {
		s.end = int64(end)
	}
	if s.end < minHorizon {
		most, _ := mulDiv(uint64(l.Period), last, minHorizon)
		return configErrorf("Limit.Rate", "%d per %v is more units than a 64-bit word can keep exactly until 2043; want at most %d",
			l.Rate, l.Period, most)
	}
	return nil
}

// tick returns g(now). It is monotonic.
func (s *schedule) tick(now int64) uint64 {
	t := uint64(min(now, s.end))
	if s.part == 0 {
		return t * s.whole
	}
	// Only amd64 has an instruction for a division of 128 bits. Two products replace
	// it: q is floor(t*part/den) or one less, since magic is below part*2^64/den by
	// less than 1, and so t*magic/2^64 is too low by less than t/2^64 < 1. The
	// remainder tells which of the two q is. It is below 2*den < 2^64, so the products
	// may wrap.
	q, _ := bits.Mul64(t, s.magic)
	if t*s.part-q*s.den >= s.den {
		q++
	}
	return t*s.whole + q
}

// sameTicks reports whether a unit has as many ticks as under v, and a tick lasts as long. The
// bursts may differ: that changes no full tick.
func (s *schedule) sameTicks(v *schedule) bool {
	return s.unit == v.unit && s.num == v.num && s.den == v.den && s.end == v.end
}

// earliest returns the first nanosecond whose tick is at least tick, or
// math.MaxUint64 if time ends before.
func (s *schedule) earliest(tick uint64) uint64 {
	t := tick
	if s.num != s.den { // a division takes longer than the rest of a decision
		var rest uint64
		if t, rest = mulDiv(tick, s.den, s.num); rest != 0 {
			t++
		}
	}
	if t > uint64(s.end) {
		return math.MaxUint64
	}
	return t
}

// debit, refund, describe, idleAt and rank are as in algorithm, for a word that is the full tick.

// debit moves the full tick to a later one, at most to the last tick that a word can hold:
// such a debt lasts to the end of time.
func (s *schedule) debit(full uint64, now int64, cost int) uint64 {
	from := max(full, s.tick(now))
	return from + min(s.ticks(cost), s.most-from)
}

// ticks returns how many ticks units last.
func (s *schedule) ticks(units int) uint64 {
	n, _ := mulDiv(uint64(units), s.unit, 1)
	return n
}

// refund moves the full tick earlier, to now at most: units that have already come back
// are not given back again.
func (s *schedule) refund(key state, now int64, cost int) uint64 {
	full, t := key.word, s.tick(now)
	if full <= t {
		return full
	}
	return full - min(uint64(cost)*s.unit, full-t)
}

func (s *schedule) describe(full uint64, now int64, cost int, allowed bool) (remaining int, retry, reset time.Duration) {
	t := s.tick(now)
	remaining = s.capacity
	if full > t {
		remaining = int((s.burst - min(full-t, s.burst)) / s.unit)
		reset = until(s.earliest(full), now)
	}
	if !allowed {
		// Admitted once full + cost*unit - t <= burst.
		retry = until(s.earliest(full-(s.burst-uint64(cost)*s.unit)), now)
	}
	return remaining, retry, reset
}

// adopt returns the full tick of a key that owes as much at now as full says under old. Units
// beyond the burst stay owed.
func (s *schedule) adopt(old *schedule, full uint64, now int64) uint64 {
	since := old.tick(now)
	if full <= since {
		return 0
	}
	owed, rest := mulDiv(full-since, s.unit, old.unit)
	if rest != 0 {
		owed++
	}
	t := s.tick(now)
	return t + min(owed, s.most-t)
}

func (s *schedule) idleAt(full uint64) uint64 { return s.earliest(full) }

func (s *schedule) rank(full uint64, _ int64) uint64 { return full }

// worstCase is a burst, and the units that accrue in the most ticks that a span of
// d ns can hold.
func (s *schedule) worstCase(d int64) uint64 {
	ticks, rest := mulDiv(uint64(d), s.num, s.den)
	if rest != 0 && ticks != math.MaxUint64 {
		ticks++
	}
	return saturatingAdd(uint64(s.capacity), ticks/s.unit)
}
