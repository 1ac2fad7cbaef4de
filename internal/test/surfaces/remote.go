package surfaces

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A Remote counts by the Limiter of its policy, unless it does not answer. It has the methods of a RemoteDebiter.
type Remote struct {
	p    *Policy
	away atomic.Bool
}

var errAway = errors.New("surfaces: the Remote does not answer")

// Take implements httplimit.Remote.
func (r *Remote) Take(_ context.Context, key string, cost int) (sluice.Decision, error) {
	_ = r.p.setup.Called("Remote")
	if r.away.Load() {
		return sluice.Decision{}, errAway
	}
	return r.p.Limiter.Take(key, cost), nil
}

// Refund implements httplimit.Remote.
func (r *Remote) Refund(_ context.Context, key string, cost int) error {
	r.p.Limiter.Key(key).Refund(cost)
	return nil
}

// Debit implements httplimit.RemoteDebiter.
func (r *Remote) Debit(_ context.Context, key string, cost int) (sluice.Decision, error) {
	return r.p.Limiter.Key(key).Debit(cost), nil
}

// far returns a policy with a Remote, of n units.
func (r *run) far(n int) *Policy {
	p := r.rate("far", n)
	p.Remote = &Remote{p: p}
	return p
}

// openFar starts the surface with a policy that has a Remote of 3 units, behind those that are judged before it is asked.
func (r *run) openFar() (all, atOnce, far *Policy) {
	r.clock()
	all, atOnce, far = r.rate("all", plenty), r.atOnce(), r.far(3)
	if r.inFlight() {
		r.open(all, atOnce, far)
	} else {
		r.open(all, far)
	}
	return all, atOnce, far
}

// remote: a call that a Remote denies takes nothing of the policies before it.
func remote(r *run) {
	all, atOnce, far := r.openFar()
	r.through(3)
	require.Positive(r, r.refuse(2).RetryAfter)
	r.remains(plenty-3, all)
	r.remains(0, far)
	r.remains(few, atOnce)
	r.clock().Advance(far.Config.Limit.Period)
	r.through(3)
	r.ran(6)
}

// remoteAway: while a Remote does not answer, calls fail, and take nothing; afterwards they run.
func remoteAway(r *run) {
	all, atOnce, far := r.openFar()
	far.Remote.away.Store(true)
	for range 2*few + 1 {
		c := r.call()
		require.False(r, c.running)
		require.False(r, c.Denied, "nobody knows whether it is over the limit")
		require.Error(r, c.Err)
	}
	r.remains(plenty, all)
	r.remains(few, atOnce)
	far.Remote.away.Store(false)
	r.through(3)
	r.refuse(1)
}

// remotePanics: charges before a Remote panics stay, as with a handler that does, and nothing stays in flight.
func remotePanics(r *run) {
	const times = 2*few + 1
	all, atOnce, _ := r.openFar()
	r.setup.arm.set("Remote")
	for range times {
		c := r.call()
		require.False(r, c.running)
		require.False(r, c.Denied)
		require.Error(r, c.Err)
	}
	require.Equal(r, times, r.setup.arm.count())
	r.setup.arm.set("")
	r.remains(plenty-times, all)
	r.remains(few, atOnce)
	r.through(3)
}

// remoteShadow: a Remote in shadow mode denies nobody, and whether it answers or not.
func remoteShadow(r *run) {
	r.clock()
	far, last := r.far(1), r.rate("last", 6)
	far.FarShadow = true
	r.open(far, last)
	r.through(2)
	r.remains(0, far)
	far.Remote.away.Store(true)
	r.through(4)
	r.refuse(1)
	r.remains(0, last)
}

// remoteSettled: a call that costs nothing gives back the charge of a Remote, and one that costs more is charged the rest.
func remoteSettled(r *run) {
	for _, final := range []int{0, 2, asCharged} {
		r.setup = nil
		r.clock()
		r.setup.Functions, r.setup.Final = map[string]bool{"Settle": true}, final
		far := r.far(plenty)
		r.open(far)
		r.through(3)
		each := final
		if final == asCharged {
			each = 1
		}
		r.remains(plenty-3*each, far)
	}
}

// brings: a limit that the call brings holds in place of the limiter's.
func brings(r *run) {
	r.clock()
	p := r.rate("all", plenty)
	p.Brings = sluice.PerHour(3)
	r.open(p)
	r.through(3)
	r.refuse(2)
	r.ran(3)
}
