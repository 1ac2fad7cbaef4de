package policies

import (
	"context"
	"slices"

	"github.com/sluice-go/sluice/internal/inflight"
)

// AsCharged is a final cost of charges that stay as they are.
const AsCharged = -1

// AnySettles reports whether a policy has a Settle of its own.
func AnySettles[R, P any](ps []Policy[R, P]) bool {
	return slices.ContainsFunc(ps, func(p Policy[R, P]) bool { return p.Settle != nil })
}

// Settle makes each charge cost so much finally; a negative cost leaves it as it is. Units in flight are not among the charges once
// Lease or Release has taken them.
func (j *Judgement[R, P]) Settle(ctx context.Context, final int) {
	for i := range j.Entries {
		j.Entries[i].final = final
	}
	j.settle(ctx)
}

// SettleEach is Settle for a request that ends with the status: a policy with a Settle says itself what it costs there.
func (j *Judgement[R, P]) SettleEach(ctx context.Context, r R, status, final int) {
	for i := range j.Entries {
		e := &j.Entries[i]
		if e.final = final; e.Policy.Settle != nil && e.charged {
			e.final = e.Policy.Settle(r, status)
		}
	}
	j.settle(ctx)
}

// settle makes the final costs of the entries final.
func (j *Judgement[R, P]) settle(ctx context.Context) {
	far := false
	for i := range j.Entries {
		e := &j.Entries[i]
		if e.Policy.CountsDenialsOf != "" {
			e.final = AsCharged
		}
		e.reservation.Settle(e.final)
		far = far || e.Policy.Remote != nil && e.charged && e.final >= 0
	}
	if far {
		j.settleFar(ctx)
	}
}

// Holds reports whether InFlight policies have charged the request, and no Lease has their units.
func (j *Judgement[R, P]) Holds() bool {
	for i := range j.Entries {
		if e := &j.Entries[i]; e.Policy.Holds && e.reservation != nil {
			return true
		}
	}
	return false
}

// Lease moves the units in flight to a lease.
func (j *Judgement[R, P]) Lease(l *inflight.Lease) {
	for i := range j.Entries {
		if e := &j.Entries[i]; e.Policy.Holds {
			l.Add(j.Charges[i], e.reservation)
			e.reservation = nil
		}
	}
}

// Release gives the units in flight back that no lease has.
func (j *Judgement[R, P]) Release() {
	for i := range j.Entries {
		if e := &j.Entries[i]; e.Policy.Holds {
			e.reservation.Cancel()
			e.reservation = nil
		}
	}
}
