package httprules

import (
	"net/http"
	"sync"
	"time"

	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rules"
)

// A held is a hold of an admitted request, which ends with it.
type held struct {
	engine *rules.Engine
	call   *call // is not reused: its request names the hold
	hold   rules.Hold
	every  time.Duration // it is prolonged so often

	mu    sync.Mutex
	ended bool
	timer *time.Timer
}

// parts is how often a hold is prolonged before it lapses, so that it outlives a prolongation that comes late.
const parts = 3

// soonest is the least time between two prolongations, so that a tiny Period does not take a processor, or Redis.
const soonest = 10 * time.Millisecond

// hold has the engine hold the charges of a request. rule is the one of units in flight whose units lapse first.
func (m *middleware) hold(w http.ResponseWriter, r *http.Request, c *call, rule *rules.Rule) (*held, httplimit.Decision) {
	c.req.Hits = 1 // which a settlement has to say
	h := &held{engine: m.Engine, call: c, hold: rules.Hold{Request: c.req, TTL: rule.Period()}}
	settled := false
	defer func() {
		if !settled { // OnDecision has panicked
			h.end()
		}
	}()
	err := m.Engine.Hold(&h.hold, &c.resp)
	h.every = max(h.hold.TTL/parts, soonest) // which is the engine's MaxHoldTTL at most
	if err != nil || c.resp.Code != rules.OK {
		settled = true // there is nothing to settle
	}
	d := m.decided(w, r, c, err)
	settled = true
	if !d.Allowed {
		return nil, d
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(h.every, h.prolong)
	return h, d
}

// serve calls the handler.
func (h *held) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	w, returned := httplimit.Follow(w, h.end)
	defer returned()
	next.ServeHTTP(w, r)
}

// prolong keeps the hold. A hold that has lapsed meanwhile, as while the machine was suspended, is not made again.
func (h *held) prolong() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	more := h.hold
	more.Request.Descriptors = append([]rules.Descriptor(nil), more.Request.Descriptors...)
	none := uint64(0)
	set, _ := h.engine.Set()
	for i := range more.Request.Descriptors {
		d := &more.Request.Descriptors[i]
		d.Entries, d.Hits = set.Named(more.Request.Domain, d.Entries), &none // counts for weights are hits, too
	}
	_ = h.engine.Extend(&more, &h.call.resp) // it is asked again soon
	h.timer.Reset(h.every)
}

// end settles the hold: units in flight are given back, and the rest has been used. A hold that cannot be settled lapses.
func (h *held) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	_ = h.engine.Settle(&h.hold)
}
