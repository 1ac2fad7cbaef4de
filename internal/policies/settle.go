package policies

import (
	"context"

	"github.com/sluice-go/sluice/internal/inflight"
)

// AsCharged is a final cost of charges that stay as they are.
const AsCharged = -1

// Settle makes each charge cost so much finally; a negative cost leaves it as it is. Units in flight are not among the charges once
// Lease or Release has taken them.
func (j *Judgement[R, P]) Settle(ctx context.Context, final int) {
	j.settleNear(final)
	if final >= 0 && (j.ends[Far] > j.ends[Local] || j.ends[FarShadow] > j.ends[LocalShadow]) {
		j.settleFar(ctx, final)
	}
}

// settleNear is Settle for the Limiters, so that they need not remember their charges.
func (j *Judgement[R, P]) settleNear(final int) {
	for i := range j.Entries {
		j.Entries[i].reservation.Settle(final)
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
