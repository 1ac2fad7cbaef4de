package httplimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lag"
)

// inline is the number of policies that are judged without an allocation, which is
// that of sluice.TakeAll.
const inline = 8

// usual is the number of policies for which less space is made ready.
const usual = 2

// A judgement is a request in the eyes of the policies that it is judged by. charges
// has what the entry of the same index asks for, and states what came of it.
type judgement struct {
	entries []entry
	charges []sluice.Charge   // the Key is zero where there is a Remote
	states  []sluice.Decision // of Limiters; nil once they are no longer how the keys stand
	settles bool              // what is charged may be given back
	ends    [kinds]int32      // where the entries of each kind end; small, as all of it is copied
	keyless bool              // the request is denied for the error of a Key
	denied  bool              // and nothing stays charged
	running **running         // what it holds of InFlight policies; nil if there are none
}

// lacking is what a request lacks that a Key needs.
type lacking struct {
	err       error    // that the request is denied for, or else the first
	wouldDeny []string // the policies in shadow mode that would deny it
}

type entry struct {
	policy  *policy
	key     string
	charged bool
	receipt *sluice.Reservation // if it may be given back; nil of a Remote
	asked   *asked              // by a Remote: see remote.go
}

// A kind of policies, in the order in which they are judged: first what is decided at once and
// may spare a question, and nothing in shadow mode for requests that are denied.
type kind int

const (
	local kind = iota
	remote
	localShadow
	remoteShadow
	kinds
)

const (
	statusDenied = http.StatusTooManyRequests
	statusFailed = http.StatusServiceUnavailable
)

// of returns the entries of a kind, and their charges.
func (j *judgement) of(k kind) ([]entry, []sluice.Charge) {
	from, to := int32(0), j.ends[k]
	if k > 0 {
		from = j.ends[k-1]
	}
	return j.entries[from:to], j.charges[from:to]
}

// collect appends to j what the request asks of each policy. (It takes and returns a value:
// what is stored through a pointer would be put on the heap. So would all that j refers
// to if what the request lacks, which goes on to the hooks, were a part of it.)
func (m *Judge) collect(j judgement, r *http.Request) (_ judgement, lacks lacking) {
	for i := range m.policies {
		p := &m.policies[i]
		key, k, err := p.keys(r)
		if err != nil {
			none := m.config.OnKeyError == KeyErrorSkip && errors.Is(err, ErrNoKey)
			if !none && !p.shadows() {
				j.keyless = true
				return j, lacking{err: err}
			}
			if !none {
				lacks.wouldDeny = append(lacks.wouldDeny, p.Name)
			}
			if lacks.err == nil {
				lacks.err = err
			}
			continue
		}
		cost := 1
		if p.Cost != nil {
			cost = p.Cost(r)
		}
		j.entries = append(j.entries, entry{policy: p, key: key})
		j.charges = append(j.charges, sluice.Charge{Key: k, Cost: cost})
		j.ends[p.kind] = int32(len(j.charges))
	}
	j.states = slices.Grow(j.states, len(j.charges))[:len(j.charges)]
	for k := remote; k < kinds; k++ { // some may have no entries
		j.ends[k] = max(j.ends[k], j.ends[k-1])
	}
	return j, lacks
}

// keys returns the key of a request, and the Limiter's handle of it, if there is a Limiter.
func (p *policy) keys(r *http.Request) (key string, k sluice.Key, err error) {
	if key, err = p.Key(r); err != nil || p.Remote != nil {
		return key, k, err
	}
	k = p.Limiter.Key(key)
	if p.Limit == nil {
		return key, k, nil
	}
	limit, err := p.Limit(r)
	if err == nil && limit != (sluice.Limit{}) {
		k, err = k.WithLimit(limit)
	}
	return key, k, err
}

// judge charges the request to all policies, or denies it.
func (j *judgement) judge(ctx context.Context, lacks lacking) Decision {
	d := Decision{Remaining: noLimit, KeyError: lacks.err}
	if j.keyless {
		d.Status = http.StatusBadRequest
		return d
	}
	all, against := j.charge(local)
	d.Allowed, d.OverSoft, d.Remaining, d.RetryAfter = all.Allowed, all.OverSoft, all.Remaining, all.RetryAfter
	if !d.Allowed {
		d.Status = statusDenied
		d.Violated = against
		if j.settles {
			d.RetryAfter = j.retryAfter()
		}
		d.RetryAfter = lag.Later(d.RetryAfter, j.lag())
		return d
	}
	d.WouldDeny = lacks.wouldDeny
	if j.ends[remoteShadow] == j.ends[local] {
		return d
	}
	return j.judgeFurther(ctx, d)
}

// judgeFurther is the part of judge for what is not decided at once, or denies nothing. (It
// takes the Decision by value, so that judge need not keep it in memory.)
func (j *judgement) judgeFurther(ctx context.Context, d Decision) Decision {
	if j.ends[remote] > j.ends[local] {
		if j.askRemotes(ctx, &d); !d.Allowed {
			return d
		}
	}
	if j.ends[localShadow] > j.ends[remote] { // they do not keep each other from being charged
		_, against := j.charge(localShadow)
		d.WouldDeny = append(d.WouldDeny, against...)
	}
	if j.ends[remoteShadow] > j.ends[localShadow] {
		j.askShadows(ctx, &d)
	}
	return d
}

// charge makes the charges of a kind, all or none, and names the policies that were against
// it. A single charge that is final needs none of TakeAll's care, and is decided in the same
// way by Take: some 145 instead of 220 ns for a whole request (BenchmarkMiddleware).
func (j *judgement) charge(k kind) (all sluice.AllDecision, against []string) {
	entries, charges := j.of(k)
	states := j.states[int(j.ends[k])-len(entries) : j.ends[k]]
	if len(charges) != 1 || j.settles {
		if all, against = chargeAll(entries, charges, states, j.settles); all.Allowed {
			j.run(k)
		}
		return all, against
	}
	d := &states[0]
	*d = charges[0].Key.Take(charges[0].Cost)
	all = sluice.AllDecision{Allowed: d.Allowed, OverSoft: d.OverSoft, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
	if entries[0].charged = d.Allowed && !d.WouldDeny; !entries[0].charged {
		against = []string{entries[0].policy.Name}
	}
	return all, against
}

// chargeAll is charge by TakeAll. The names are in the order in which the policies are
// judged. As all of entries are in shadow mode or none is, that is the order of
// Config.Policies.
func chargeAll(entries []entry, charges []sluice.Charge, states []sluice.Decision, settles bool) (all sluice.AllDecision, against []string) {
	if settles {
		var few [inline]*sluice.Reservation
		receipts := slices.Grow(few[:0], len(charges))[:len(charges)]
		all = sluice.TakeAllReceipts(receipts, states, charges...)
		for i, r := range receipts {
			entries[i].receipt = r
		}
	} else {
		all = sluice.TakeAllReceipts(nil, states, charges...)
	}
	for i := range states {
		e, admitted := &entries[i], states[i].Allowed && !states[i].WouldDeny
		if e.charged = all.Allowed && admitted; !admitted {
			against = append(against, e.policy.Name)
		}
	}
	return all, against
}

// remaining returns the least that remains of any policy that has been asked.
func (j *judgement) remaining() (least int) {
	entries, charges := j.of(local)
	least = noLimit
	for i := range entries {
		least = min(least, charges[i].Key.Peek(0).Remaining)
	}
	entries, _ = j.of(remote)
	for i := range entries {
		if a := entries[i].asked; a != nil && !a.WouldDeny {
			least = min(least, a.Remaining)
		}
	}
	return least
}

// lag returns how far the clocks of the limiters that are enforced can be behind.
func (j *judgement) lag() (most time.Duration) {
	entries, _ := j.of(local)
	for i := range entries {
		most = max(most, entries[i].policy.lag)
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
