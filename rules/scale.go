package rules

import (
	"math"

	"github.com/sluice-go/sluice"
)

// maxScale is the most that scale can be.
const maxScale = 1_000_000_000

// debtTimes is how many times its limit a rule lets one settlement charge beyond the hold, without max_debt. So many
// times more than the whole limit is a mistake of who counts, rather than use; and it is paid off in so many periods.
const debtTimes = 10

// defaultDebt is max_debt where the file has none.
func (o *rateLimit) defaultDebt(burst uint64) uint64 {
	return min(max(o.limit, burst), math.MaxInt64/debtTimes) * debtTimes
}

// checkMaxDebt refuses a bound on debts of units in flight, which never owe.
func (r *rateLimitReader) checkMaxDebt() {
	if f, ok := r.by.get("max_debt"); ok && r.algorithm == sluice.InFlight {
		r.errorAt(f.value, r.path, "max_debt and algorithm: in-flight are both given, but what has ended uses nothing; want max_debt deleted")
	}
}

// inUnits multiplies the numbers in requests_per_unit by scale. It returns false if a number then does not
// fit in an int.
func (r *rateLimitReader) inUnits() bool {
	o := &r.out
	o.limit = uint64(o.requests) * o.scale
	r.burst *= int64(o.scale)
	r.soft *= int64(o.scale)
	o.debt = o.defaultDebt(uint64(r.burst))
	if r.hasMaxDebt {
		o.debt = uint64(r.maxDebt) * o.scale
	}
	if max(o.limit, uint64(r.burst), uint64(r.soft)) < math.MaxInt {
		return true
	}
	r.errorAt(r.by.at("scale").value, r.path, "scale is %d, and a number times that is more than %d; want a smaller one", o.scale, math.MaxInt-1)
	return false
}

// maxHits is the most that one call counts for, beyond a limit that is larger itself.
const maxHits = 1 << 32

// bound makes hits no more than the most. All limits of the call may be above it.
func (w *work) bound() {
	most := uint64(maxHits)
	if w.limit > maxRequests {
		most += w.limit // soft is less
	}
	if w.second != nil {
		most += w.second.rule.limit
	}
	w.hits = min(w.hits, most)
}

// whole returns units as Status.Remaining has them: rounded down to whole Requests.
func (w *work) whole(units uint64) uint32 { return uint32(min(units/w.scale, math.MaxUint32)) }
