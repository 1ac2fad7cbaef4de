package httplimit

import (
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
)

// inline is the number of policies that are judged without an allocation, which is
// that of sluice.TakeAll.
const inline = 8

// A judgement is a request in the eyes of the policies that it is judged by. charges
// has what the entry of the same index asks for.
type judgement struct {
	entries  []entry
	charges  []sluice.Charge
	enforced int  // the first so many are not in shadow mode
	keyless  bool // the request is denied for the error of a Key
}

type entry struct {
	policy  *policy
	key     string
	charged bool
	due     int64 // when the charge has come back by itself: see settle.go
}

// collect appends to j what the request asks of each policy. keyErr is the error of a
// Key that the request is denied for, or else the first. (It takes and returns a value:
// what is stored through a pointer would be put on the heap. So would all that j refers
// to if the error, which goes on to the hooks, were a part of it.)
func (m *Judge) collect(j judgement, r *http.Request) (_ judgement, keyErr error) {
	for i := range m.policies {
		p := &m.policies[i]
		key, err := p.Key(r)
		switch {
		case err == nil:
		case m.config.OnKeyError == KeyErrorSkip && errors.Is(err, ErrNoKey):
			if keyErr == nil {
				keyErr = err
			}
			continue
		default:
			j.keyless = true
			return j, err
		}
		cost := 1
		if p.Cost != nil {
			cost = p.Cost(r)
		}
		j.entries = append(j.entries, entry{policy: p, key: key})
		j.charges = append(j.charges, sluice.Charge{Key: p.Limiter.Key(key), Cost: cost})
		if !p.conf.Shadow {
			j.enforced = len(j.charges)
		}
	}
	return j, keyErr
}

// judge charges the request to all policies, or denies it.
func (j *judgement) judge(keyErr error) Decision {
	d := Decision{Remaining: math.MaxInt, KeyError: keyErr}
	if j.keyless {
		d.Status = http.StatusBadRequest
		return d
	}
	all := takeAll(j.charges[:j.enforced])
	d.Allowed, d.OverSoft, d.Remaining, d.RetryAfter = all.Allowed, all.OverSoft, all.Remaining, all.RetryAfter
	if !d.Allowed {
		d.Status = http.StatusTooManyRequests
		d.Violated = j.violated(all.Denied)
		if d.RetryAfter != sluice.Never {
			d.RetryAfter = later(d.RetryAfter, j.lag())
		}
		return d
	}
	for i := range j.entries[:j.enforced] {
		j.entries[i].charged = true
	}
	d.WouldDeny = j.chargeShadow()
	return d
}

// takeAll is sluice.TakeAll. A single charge needs none of its care, and is decided in
// the same way by Take: some 145 instead of 220 ns for a whole request (BenchmarkMiddleware).
func takeAll(charges []sluice.Charge) sluice.AllDecision {
	if len(charges) != 1 {
		return sluice.TakeAll(charges...)
	}
	d := charges[0].Key.Take(charges[0].Cost)
	return sluice.AllDecision{Allowed: d.Allowed, OverSoft: d.OverSoft, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
}

// violated names the policies that deny the charges, which have not been made: that of
// the charge denied, and all others that would not have admitted theirs either.
func (j *judgement) violated(denied int) []string {
	var violated []*policy
	for i, c := range j.charges[:j.enforced] {
		if i == denied || !c.Key.Peek(j.total(i)).Allowed {
			violated = append(violated, j.entries[i].policy)
		}
	}
	return names(violated)
}

// chargeShadow charges the policies in shadow mode and names those that would have
// denied. One by one, TakeAll would not say which.
func (j *judgement) chargeShadow() []string {
	var denied []*policy
	for i := j.enforced; i < len(j.charges); i++ {
		e, c := &j.entries[i], j.charges[i]
		if first := j.sameKey(i); first < i {
			e.charged = j.entries[first].charged
		} else {
			e.charged = !c.Key.Take(j.total(i)).WouldDeny
		}
		if !e.charged {
			denied = append(denied, e.policy)
		}
	}
	return names(denied)
}

// sameKey returns the first charge for the key of charge i.
func (j *judgement) sameKey(i int) int {
	first := 0
	for j.charges[first].Key != j.charges[i].Key {
		first++
	}
	return first
}

// total returns what the request is charged for the key of charge i, added up as
// sluice.TakeAll does: a negative cost is not made up for by another, and a sum that
// is too large stays too large.
func (j *judgement) total(i int) int {
	sum := 0
	for _, c := range j.charges {
		switch {
		case c.Key != j.charges[i].Key:
		case sum < 0 || c.Cost < 0:
			sum = -1
		default:
			sum += min(c.Cost, math.MaxInt-sum)
		}
	}
	return sum
}

// lag returns how far the clocks of the policies that are enforced can be behind.
func (j *judgement) lag() (most time.Duration) {
	for i := range j.entries[:j.enforced] {
		most = max(most, j.entries[i].policy.lag)
	}
	return most
}

// explain returns what is to be charged.
func (j *judgement) explain() []PolicyCharge {
	list := make([]PolicyCharge, len(j.entries))
	for i := range j.entries {
		e := &j.entries[i]
		list[i] = PolicyCharge{Policy: e.policy.Name, Key: e.key, Cost: j.charges[i].Cost}
	}
	return list
}

// names returns the names, in the order in which the policies are judged. As all are in
// shadow mode or none is, that is the order of Config.Policies.
func names(policies []*policy) []string {
	if len(policies) == 0 {
		return nil
	}
	list := make([]string, len(policies))
	for i, p := range policies {
		list[i] = p.Name
	}
	return list
}
