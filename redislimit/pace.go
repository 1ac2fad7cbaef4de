package redislimit

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// terms are the terms of a limit's leases.
type terms struct {
	max   int64
	life  int64 // ns
	epoch int64 // ms
	ended atomic.Bool
}

// terms returns the terms of c.Lease, or nil if it lends nothing.
func (c *TierConfig) terms() *terms {
	if c.Lease.Max == 0 {
		return nil
	}
	life := c.Lease.Life
	return &terms{max: int64(c.Lease.Max), life: int64(life), epoch: ceilDiv(int64(life+2*c.Budget), int64(time.Millisecond))}
}

// largest returns the most units to ask for.
func (t *terms) largest(p *plan) int64 {
	if t == nil || t.ended.Load() || int64(p.limit.Period)/2 < t.life { // New refuses this, but SetLimit can bring it about
		return 0
	}
	return min(t.max, p.burst, int64(min(mulDiv(uint64(p.limit.Rate), uint64(t.life), uint64(p.limit.Period)), exact)))
}

// pause returns for how long, in ns, a process leaves Redis alone after it has found no unit there, or 0. A single
// unit is due at once, but each unit would take a call. The units that drain in a pause are a batch, for one call. The
// pause is too short for the bucket to run empty, which would lose units, and no caller waits for longer than life.
func (t *terms) pause(p *plan) int64 {
	if _, drains := p.shape.(bucket); !drains || t.largest(p) < minBatch {
		return 0
	}
	full := mulDiv(uint64(p.burst), uint64(p.limit.Period), uint64(p.limit.Rate))
	pause := min(t.life/8*7, int64(min(full, exact))/2)
	if mulDiv(uint64(pause), uint64(p.limit.Rate), uint64(p.limit.Period)) < minBatch {
		return 0
	}
	return pause
}

// minBatch is the least number of units that is worth a pause.
const minBatch = 4

// paces decides how long Redis is left alone after a reply that leaves no unit for other calls, or has denied calls.
func (ls *leases) paces(h *loan, g *group, r *reply) {
	denied, free := r.admitted < g.k, g.plan.shape.free(r.view)
	if !denied && (h.denials == 0 || free > 0) {
		if free >= product(2*minBatch, ls.replicas.Load()) {
			h.denials = 0
		} else if g.terms.pause(g.plan) == 0 {
			h.denials /= 2
		}
		return
	}
	sent := int64(g.batch.sent.Sub(ls.began))
	unit := max(int64(g.plan.limit.Period)/int64(g.plan.limit.Rate), 1)
	if pause := g.terms.pause(g.plan); pause > 0 {
		h.denials = min(max(1, 2*h.denials), pause/unit+1)
		pause = min(pause, h.denials*unit)
		g.pause = pause - rand.N(pause/8+1)
		h.paused = sent + g.pause
		return
	}
	if !denied {
		return
	}
	h.denials = min(max(1, 2*h.denials), ls.replicas.Load())
	units := product(2, h.denials)
	g.slack = rand.N(min(product(units, int64(g.plan.limit.Period)/int64(g.plan.limit.Rate)), g.terms.life/2) + 1)
}

// batchComes reports whether a call is under way, and not late, that is to bring the units drained in a pause.
func (h *loan) batchComes(now, wait int64) bool {
	h.shard.mu.Lock()
	defer h.shard.mu.Unlock()
	return h.asking && h.batch && now-h.asked < wait
}
