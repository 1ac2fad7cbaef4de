package policies

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/lag"
)

// Inline is the number of policies that are judged without an allocation: as many as sluice.TakeAll takes without one.
const Inline = 8

// NoLimit remains where nothing limits.
const NoLimit = math.MaxInt

// A Judgement is a request in the eyes of the policies that it is judged by. Charges has the charge of the entry of the same index,
// and States its decision. Its slices are the caller's space.
type Judgement[R, P any] struct {
	Entries []Entry[R, P]
	Charges []sluice.Charge   // the Key is zero where there is a Remote
	States  []sluice.Decision // of Limiters; nil once they are no longer how the keys stand
	Settles bool              // charges take reservations, since they may be given back
	ends    [kinds]int32      // where the entries of each kind end; small, as all of it is copied
	keyless bool              // the request is denied for the error of a Key
	counts  bool              // some policies count denials of others
	stand   *stand            // of a request that waits; nil for others
	inTurn  bool              // it is judged with a Queue, where a denial by a Limiter need not be the last word
}

// An Entry is a policy that judges a request.
type Entry[R, P any] struct {
	Policy      *Policy[R, P]
	Key         string
	Asked       *Asked // by a Remote
	charged     bool
	onDenial    int                 // what a policy that counts denials is charged for one
	final       int                 // the cost that Settle makes final
	reservation *sluice.Reservation // if it may be given back; nil of a Remote
}

// Lacking is the parts of a key that a request lacks.
type Lacking struct {
	err       error    // that the request is denied for, or else the first
	wouldDeny []string // the policies in shadow mode that would deny it
}

// An Outcome is the outcome of a request.
type Outcome uint8

// The outcomes.
const (
	Denied  Outcome = iota // for want of units
	Keyless                // denied for the error of a Key
	Failed                 // denied for the error of a Remote
	Gone                   // the client has ended it while it waited for its turn
	Admitted
)

// A Decision is the outcome of a request, in the words that the surfaces have in common.
type Decision struct {
	Outcome    Outcome
	Violated   []string
	WouldDeny  []string
	OverSoft   bool
	Remaining  int
	RetryAfter time.Duration
	Waited     time.Duration // for its turn in a Queue
	FarError   error
	KeyError   error
}

// Of returns the entries of a kind, and their charges.
func (j *Judgement[R, P]) Of(k Kind) ([]Entry[R, P], []sluice.Charge) {
	from, to := int32(0), j.ends[k]
	if k > 0 {
		from = j.ends[k-1]
	}
	return j.Entries[from:to], j.Charges[from:to]
}

// Collect notes the charges of the request by each policy, in the place of the request before. A policy whose Key returns an error that
// matches passed is left out; a nil passed leaves out none. The compiler keeps the space of j on the caller's stack as long as Collect
// stores nothing in j but slices of that space. So Lacking, which goes on to the hooks, is no part of j.
func (j *Judgement[R, P]) Collect(ps []Policy[R, P], r R, passed error) (lacks Lacking) {
	j.ends, j.keyless, j.counts = [kinds]int32{}, false, false
	if n := len(ps); min(cap(j.Entries), cap(j.Charges), cap(j.States)) < n {
		j.Entries, j.Charges, j.States = make([]Entry[R, P], n), make([]sluice.Charge, n), make([]sluice.Decision, n)
	}
	j.Entries, j.Charges = j.Entries[:len(ps)], j.Charges[:len(ps)]
	n := 0
	for i := range ps {
		p := &ps[i]
		key, k, err := p.keys(r)
		if err != nil {
			none := passed != nil && errors.Is(err, passed)
			if !none && !p.shadows() {
				j.keyless, lacks = true, Lacking{err: err}
				break
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
		j.Entries[n] = Entry[R, P]{Policy: p, Key: key}
		if p.CountsDenialsOf != "" { // and is only looked at
			j.counts, j.Entries[n].onDenial, cost = true, cost, 0
		}
		j.Charges[n] = sluice.Charge{Key: k, Cost: cost}
		n++
		j.ends[p.Kind] = int32(n)
	}
	j.Entries, j.Charges, j.States = j.Entries[:n], j.Charges[:n], j.States[:n]
	for k := Far; k < kinds; k++ { // some may have no entries
		j.ends[k] = max(j.ends[k], j.ends[k-1])
	}
	return lacks
}

// Judge charges the request to all policies, or denies it.
func (j *Judgement[R, P]) Judge(ctx context.Context, lacks Lacking) Decision {
	d := Decision{Remaining: NoLimit, KeyError: lacks.err}
	if j.keyless {
		d.Outcome = Keyless
		return d
	}
	all, against := j.charge(Local)
	d.OverSoft, d.Remaining, d.RetryAfter = all.OverSoft, all.Remaining, all.RetryAfter
	if !all.Allowed {
		d.Violated = against
		if j.Settles {
			d.RetryAfter = j.retryAfter()
		}
		if d.RetryAfter = lag.Later(d.RetryAfter, j.lag()); j.counts && !j.inTurn {
			d = j.countDenials(ctx, d)
		}
		return d
	}
	d.Outcome, d.WouldDeny = Admitted, lacks.wouldDeny
	if j.ends[FarShadow] == j.ends[Local] {
		return d
	}
	return j.judgeFurther(ctx, d)
}

// judgeFurther is the part of Judge for policies that are not decided at once, or deny nothing. (It
// takes the Decision by value, so that Judge need not keep it in memory.)
func (j *Judgement[R, P]) judgeFurther(ctx context.Context, d Decision) Decision {
	j.stand.leave() // a Remote takes its time
	if j.ends[Far] > j.ends[Local] {
		if j.askFar(ctx, &d); d.Outcome != Admitted {
			if j.counts && d.Outcome == Denied {
				d = j.countDenials(ctx, d)
			}
			return d
		}
	}
	if j.ends[LocalShadow] > j.ends[Far] { // they do not keep each other from being charged
		_, against := j.charge(LocalShadow)
		d.WouldDeny = append(d.WouldDeny, against...)
	}
	if j.ends[FarShadow] > j.ends[LocalShadow] {
		j.askShadows(ctx, &d)
	}
	if j.counts && len(d.WouldDeny) > 0 {
		d = j.countDenials(ctx, d)
	}
	return d
}

// charge makes the charges of a kind, all or none, and names the policies that were against
// it. A single charge that is final needs none of TakeAll's care, and is decided in the same
// way by Take: some 145 instead of 220 ns for a whole request of HTTP (BenchmarkMiddleware).
func (j *Judgement[R, P]) charge(k Kind) (all sluice.AllDecision, against []string) {
	entries, charges := j.Of(k)
	states := j.States[int(j.ends[k])-len(entries) : j.ends[k]]
	if len(charges) != 1 || j.Settles {
		return chargeAll(entries, charges, states, j.Settles)
	}
	d := &states[0]
	*d = charges[0].Key.Take(charges[0].Cost)
	all = sluice.AllDecision{Allowed: d.Allowed, OverSoft: d.OverSoft, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
	if entries[0].charged = d.Allowed && !d.WouldDeny; !entries[0].charged {
		against = []string{entries[0].Policy.Name}
	}
	return all, against
}

// chargeAll is charge by TakeAll. The names are in the order in which the policies are
// judged. As all of entries are in shadow mode or none is, that is the order of
// the surface's configuration.
func chargeAll[R, P any](entries []Entry[R, P], charges []sluice.Charge, states []sluice.Decision, settles bool) (all sluice.AllDecision, against []string) {
	if settles {
		var few [Inline]*sluice.Reservation
		reservations := slices.Grow(few[:0], len(charges))[:len(charges)]
		all = sluice.TakeAllReservations(reservations, states, charges...)
		for i, r := range reservations {
			entries[i].reservation = r
		}
	} else {
		all = sluice.TakeAllReservations(nil, states, charges...)
	}
	for i := range states {
		e, admitted := &entries[i], states[i].Allowed && !states[i].WouldDeny
		if e.charged = all.Allowed && admitted; !admitted {
			against = append(against, e.Policy.Name)
		}
	}
	return all, against
}

// retryAfter returns the wait that a denial by the Limiters tells of.
func (j *Judgement[R, P]) retryAfter() (wait time.Duration) {
	entries, _ := j.Of(Local)
	for i := range entries {
		d := &j.States[i]
		switch {
		case d.Allowed:
		case entries[i].Policy.Holds:
			wait = max(wait, inflight.RetryAfter(d.RetryAfter))
		default:
			wait = max(wait, d.RetryAfter)
		}
	}
	return wait
}

// lag returns how far the clocks of the limiters that are enforced can be behind.
func (j *Judgement[R, P]) lag() (most time.Duration) {
	entries, _ := j.Of(Local)
	for i := range entries {
		most = max(most, entries[i].Policy.Lag)
	}
	return most
}

// remaining returns the least that remains of any policy that has been asked.
func (j *Judgement[R, P]) remaining() (least int) {
	entries, charges := j.Of(Local)
	least = NoLimit
	for i := range entries {
		least = min(least, charges[i].Key.Peek(0).Remaining)
	}
	entries, _ = j.Of(Far)
	for i := range entries {
		if a := entries[i].Asked; a != nil && !a.WouldDeny {
			least = min(least, a.Remaining)
		}
	}
	return least
}
