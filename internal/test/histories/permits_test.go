package histories

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// permits are those of a history, for all clients. One is nil until it has been acquired.
type permits []atomic.Pointer[sluice.Permit]

func (ps permits) acquire(i int, k sluice.Key, cost int) bool {
	p, err := k.Acquire(cost)
	if err == nil {
		ps[i].Store(p)
	}
	return err == nil
}

// wideUnit makes limits that need two words of the counts.
const wideUnit = 1 << 20

// drawPermits draws a script of permits under InFlight, of one word or two. Clients release and renew each other's
// permits, and some of them again.
func drawPermits(seed uint64) script {
	rng := rand.New(rand.NewPCG(seed, seed))
	s := script{config: sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(burst, period), Shards: 1}, yields: rng.IntN(2) == 0}
	kinds := []kind{acquire, acquire, acquire, release, release, release, release, renew, renew, peek, take, refund, sweep}
	switch rng.IntN(5) {
	case 0:
		s.config.BlockFor = period / 2
	case 1:
		kinds = append(kinds, reset, block, unblock)
	case 2:
		kinds = append(kinds, setLimit, setKeyLimit, clearKeyLimit)
		s.brings = true
	}
	for range 2 + rng.IntN(3) {
		s.before = append(s.before, s.drawPermitCall(rng, []kind{acquire}))
	}
	s.drawClients(rng, func() call { return s.drawPermitCall(rng, kinds) })
	if rng.IntN(2) == 0 {
		s.steps[0] = drawSteps(rng, rng.IntN(len(s.before)))
		if s.config.BlockFor == 0 { // the time of a denial is that of its block
			s.steps[1] = drawSteps(rng, 1+rng.IntN(3))
		}
	}
	if rng.IntN(2) == 0 {
		s.widen()
	}
	return s
}

// drawPermitCall draws small costs, so that most calls are admitted and several permits share a window.
func (s *script) drawPermitCall(rng *rand.Rand, kinds []kind) call {
	c := s.drawCall(rng, kinds)
	switch c.kind {
	case acquire:
		if rng.IntN(4) > 0 {
			c.key, c.cost = keys[0], 1+rng.IntN(3)
		}
		c.permit = len(s.keyOf)
		s.keyOf = append(s.keyOf, c.key)
	case release, renew:
		c.permit = rng.IntN(len(s.keyOf))
		c.key = s.keyOf[c.permit]
	}
	return c
}

// widen multiplies all units, so that the layout is the wide one.
func (s *script) widen() {
	s.config.Limit.Rate *= wideUnit
	for _, calls := range append(slices.Clone(s.clients), s.before) {
		for i := range calls {
			c := &calls[i]
			if c.cost != math.MaxInt {
				c.cost *= wideUnit
			}
			c.limit.Rate *= wideUnit
			c.brings.limit.Rate *= wideUnit
		}
	}
}

// contest marks calls that lose against a Release of the same permit at the same time. The Release owns the
// permit before it gives the units back, and such a call may return before that. So it need not have an
// order with it.
func contest(history []porcupine.Operation) {
	for i, op := range history {
		in := op.Input.(input)
		if in.kind != release && in.kind != renew || op.Output.(result).ok {
			continue
		}
		in.contested = slices.ContainsFunc(history, func(o porcupine.Operation) bool {
			other := o.Input.(input)
			return o.Call != op.Call && other.kind == release && other.permit == in.permit && overlaps(op, []porcupine.Operation{o})
		})
		history[i].Input = in
	}
}

// TestHistories_OfPermitsHaveAnOrder is TestHistories_HaveAnOrder for the calls of InFlight.
func TestHistories_OfPermitsHaveAnOrder(t *testing.T) {
	passed, again, contested, late := 0, 0, 0, 0
	findOrders(t, drawPermits, func(history []porcupine.Operation) {
		owner, released := map[int]int{}, map[int]bool{}
		for _, op := range history {
			if in := op.Input.(input); in.kind == acquire {
				owner[in.permit] = op.ClientId
			} else if in.kind == release && op.Output.(result).ok {
				released[in.permit] = true
			}
		}
		for _, op := range history {
			in, ok := op.Input.(input), op.Output.(result).ok
			switch {
			case in.contested:
				contested++
			case in.kind == release && ok && op.ClientId != owner[in.permit]:
				passed++
			case in.kind == release && !ok && released[in.permit]:
				again++
			case in.kind == renew && !ok && !released[in.permit]:
				late++
			}
		}
	})
	t.Logf("%d permits released by another client, %d released again, %d at the same time, %d renewed too late", passed, again, contested, late)
	require.Positive(t, passed)
	require.Positive(t, again)
	require.Positive(t, late)
}
