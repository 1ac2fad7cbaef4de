package rules

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
)

// answered fills in the status of a call that has been made.
func (w *work) answered(st *Status, c *call) {
	switch {
	case w.refund:
		w.gaveBack(st, c)
	case w.second != nil:
		w.bothStatus(st, c)
	case w.looks:
		w.looked(st, c)
	case w.counts:
		w.counted(st, c)
	default:
		w.limiterStatus(st, &c.decision, c.over)
	}
}

// counted fills in the status of a call of a window.
func (w *work) counted(st *Status, c *call) {
	before := w.limit
	if w.hits <= c.count && !c.full && !(c.over && c.none) {
		before = c.count - w.hits // under StopWhenOver hits that were not counted are placed as if they came last, as upstream does
	}
	w.windowStatus(st, c.decision.ResetAfter, c.count, c.over)
	h := hitsOf(w.hits, before, c.count, w.near, w.limit, st.Over)
	w.finish(st, &h)
}

// gaveBack fills in the status of a call that was to give hits back. The call says how many it has not, or to a second budget.
func (w *work) gaveBack(st *Status, c *call) {
	own, left := w.hits, uint64(c.decision.Remaining)
	if c.stopped {
		own = 0
	}
	if s := w.second; s != nil {
		if own -= s.hits; s.hits != 0 {
			s.series.refund(s.id, s.hits, 0)
		}
		left += uint64(s.decision.Remaining)
	}
	if own != 0 {
		w.series.refund(w.id, own, c.absorbed)
	}
	if w.counts {
		w.windowStatus(st, c.decision.ResetAfter, c.count, false)
		return
	}
	st.Remaining, st.ResetAfter = w.whole(left), roundUp(c.decision.ResetAfter)
}

// windowStatus fills in the numbers of a window whose count is now count.
func (w *work) windowStatus(st *Status, left time.Duration, count uint64, over bool) {
	st.Over = over
	st.ResetAfter = roundUp(left)
	if over {
		st.RetryAfter = left
		if w.limit == 0 || w.hits > w.limit {
			st.RetryAfter = sluice.Never
		}
		return
	}
	st.Remaining = w.whole(w.limit - min(count, w.limit))
}

// limiterStatus fills in the status for a rule with a limiter of its own.
func (w *work) limiterStatus(st *Status, d *sluice.Decision, over bool) {
	st.Over = over
	st.Remaining = w.whole(uint64(d.Remaining))
	st.ResetAfter = roundUp(d.ResetAfter)
	h := hits{total: w.hits}
	if over {
		st.RetryAfter = d.RetryAfter
		if st.Rule.inFlight() { // a call may end at any time
			st.RetryAfter = inflight.RetryAfter(d.RetryAfter)
			st.ResetAfter = min(st.ResetAfter, roundUp(st.RetryAfter))
		}
		h.over = w.hits
	} else {
		h.within = w.hits
		if after := w.limit - min(uint64(d.Remaining), w.limit); after > w.near {
			h.near = min(w.hits, after-w.near)
		}
	}
	w.finish(st, &h)
}

// finish sets the code and counts the hits.
func (w *work) finish(st *Status, h *hits) {
	if st.Over {
		if w.shadow {
			h.shadow = h.over
		} else {
			st.Code = OverLimit
		}
	}
	if w.hits != 0 {
		w.series.add(w.id, h)
	}
}

// countUnlimited counts the hits of unlimited rules, which no counter counts, in one series for each rule. A hold holds nothing of them, and is an estimate all the same.
func (resp *Response) countUnlimited(held bool) {
	for i := range resp.work {
		w := &resp.work[i]
		if w.hits == 0 || !resp.Statuses[i].unlimited() {
			continue
		}
		if w.refund && !held {
			w.series.refund(w.id, w.hits, 0)
			continue
		}
		w.series.pass(w.id, w.hits)
		if held && resp.Code == OK && !resp.WouldDeny {
			w.series.estimate(w.hits)
		}
	}
}

// conclude combines the statuses into one answer.
func (e *Engine) conclude(resp *Response) {
	if e.denies(resp) {
		e.deny(resp)
	}
}

// denies reports whether the statuses deny the call together, and finds the tightest.
func (e *Engine) denies(resp *Response) bool {
	quotas, quotasOver := 0, 0
	least := uint32(math.MaxUint32)
	denied := false
	for i := range resp.Statuses {
		st := &resp.Statuses[i]
		quota := e.config.Quota && !st.unlimited() || st.Rule != nil && st.Rule.quota && st.Limited
		over := st.Code == OverLimit
		if quota {
			quotas++
			if over {
				quotasOver++
			}
		}
		switch {
		case over && !quota:
			denied, resp.Tightest, least = true, i, 0
		case st.Limited && st.Remaining < least:
			resp.Tightest, least = i, st.Remaining
		}
	}
	return denied || quotas != 0 && quotasOver == quotas
}

// deny denies a call, unless Config.Shadow lets it pass.
func (e *Engine) deny(resp *Response) {
	if e.config.Shadow {
		resp.WouldDeny = true
		e.globalShadow.Add(1)
		return
	}
	resp.Code = OverLimit
}
