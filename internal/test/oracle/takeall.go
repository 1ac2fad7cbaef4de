package oracle

import (
	"math"
	"math/big"
	"slices"
)

// Charge is one of the charges of TakeAll: Cost units to Key of Model at Now.
// Charges of one model have the same Now.
type Charge struct {
	Model *Model
	Key   string
	Now   int64
	Cost  int64
	Guess Decision // of Each: see Model.Guess
}

// AllDecision is the outcome of TakeAll.
type AllDecision struct {
	// Allowed is whether every charge passed. If not, nothing was charged.
	Allowed bool
	// Denied is the index of the first charge whose key denies, or -1.
	Denied int
	// Remaining is the least of the Remaining of the keys, math.MaxInt64 without any.
	Remaining int64
	// RetryAfter is the longest of the RetryAfter of the keys that deny.
	RetryAfter int64
	// Each is the decision on the key of each charge: that of a Take for the sum; or, if
	// that would pass and was not made, what there is to say of the key.
	Each []Decision
}

// TakeAll charges all or nothing. A key is asked once, for the sum of its charges;
// a negative one among them denies it for ever. A key that denies is punished, as Take
// punishes it, and the others are left alone. TakeAll by itself is not safe for
// concurrent use, since it asks first and charges then.
func TakeAll(charges []Charge) AllDecision {
	d := AllDecision{Allowed: true, Denied: -1, Remaining: math.MaxInt64, Each: make([]Decision, len(charges))}
	passes := make([]bool, len(charges))
	for i, c := range charges {
		passes[i] = c.Model.passes(c.Key, c.Now, together(charges, i))
		if !passes[i] {
			d.Allowed = false
			if d.Denied < 0 {
				d.Denied = i
			}
		}
	}
	for i, c := range charges {
		c.Model.Guess(c.Guess)
		switch at := first(charges, i); {
		case at < i:
			d.Each[i] = d.Each[at]
		case d.Allowed || !passes[i]: // made, or punished
			d.Each[i] = c.Model.Take(c.Key, c.Now, together(charges, i))
		default:
			d.Each[i] = c.Model.Peek(c.Key, c.Now, 0)
		}
		d.RetryAfter = max(d.RetryAfter, d.Each[i].RetryAfter)
		d.Remaining = min(d.Remaining, d.Each[i].Remaining)
	}
	return d
}

// sameKey finds charges for the key of c.
func (c Charge) sameKey(other Charge) bool { return c.Model == other.Model && c.Key == other.Key }

// first returns the first charge for the key of the i-th.
func first(charges []Charge, i int) int { return slices.IndexFunc(charges, charges[i].sameKey) }

// together returns the sum of the charges for the key of the i-th, -1 if one of
// them is negative, math.MaxInt64 if it is more than that.
func together(charges []Charge, i int) int64 {
	sum := new(big.Int)
	for _, c := range charges {
		if !charges[i].sameKey(c) {
			continue
		}
		if c.Cost < 0 {
			return -1
		}
		sum.Add(sum, big.NewInt(c.Cost))
	}
	if !sum.IsInt64() {
		return math.MaxInt64
	}
	return sum.Int64()
}
