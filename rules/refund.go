package rules

import (
	"time"

	"github.com/sluice-go/sluice"
)

// A refund is first subtracted from the denied hits of its key. Hits that were never counted are then settled. Hits that
// the count of the present window holds leave the count, as upstream. A refund does not say whether it is for an
// admitted call or for a denied one. The refunds of denied calls are taken to come first, so that all refunds together
// give back the admitted hits, and never more. Denied hits are not counted if another window has begun since, or if the
// limiter counts none or only some of them (count_denied of an algorithm other than fixed windows, block_for).

// Denied hits wait for their refund for the period of the limit, from the last denial of the key on, but for a
// time between these bounds. A proxy ends a denied stream, so its refund comes at once; it comes late from
// streams that a rule in shadow mode has let pass.
const (
	leastWait = time.Hour
	mostWait  = 24 * time.Hour
)

// deny notes hits that were denied: counted are in the count of the window, missing are not.
func (e *Engine) deny(w *work, st *Status, now int64, counted, missing uint64) {
	if counted|missing == 0 {
		return
	}
	wait := min(max(st.Period, leastWait), mostWait)
	e.denials.add(w.denialID(st), now, denial{counted: counted, missing: missing, window: w.window(st, now), until: addTime(now, int64(wait))})
}

// denialID is the id of denied hits: the id of the entries, for a rule of any limit; and for overrides an id for
// each unit.
func (w *work) denialID(st *Status) uint64 {
	if st.Rule != nil {
		return w.id
	}
	return w.id + uint64(st.Unit)*0x9E3779B97F4A7C15
}

// window names the window of a counter at now. Different windows have different names, even if their periods differ.
func (w *work) window(st *Status, now int64) uint64 {
	if !w.counts {
		return 0
	}
	period := int64(st.Period)
	return uint64(now-floorMod(now-w.offset, period)) + uint64(period)*0x9E3779B97F4A7C15
}

// giveBack gives n hits back, and fills in how the key stands then.
func (e *Engine) giveBack(w *work, st *Status, now int64, n uint64) {
	if w.second != nil {
		e.giveBackBoth(w, st, now, n)
		return
	}
	absorbed := uint64(0)
	if n != 0 {
		absorbed = e.denials.absorb(w.denialID(st), now, n, w.window(st, now))
		w.key().Refund(clampInt(n - absorbed))
	}
	if w.counts {
		look := w.key().TakeAt(now, 0)
		w.gaveBack(st, n, absorbed, w.left(st, now), uint64(w.most-look.Remaining), nil)
		return
	}
	look := w.key().Peek(0) // the refund was at the clock's time: at now the key would not look whole
	w.gaveBack(st, n, absorbed, 0, 0, &look)
}

// gaveBack fills in the status after n hits were to be given back, of which absorbed were not. It does so from the
// count of a window, or from the state of a limiter's key.
func (w *work) gaveBack(st *Status, n, absorbed uint64, left time.Duration, count uint64, look *sluice.Decision) {
	if n != 0 {
		w.series.refund(w.id, n, absorbed)
	}
	if w.counts {
		w.windowStatus(st, left, count, false)
		return
	}
	st.Remaining = w.whole(uint64(look.Remaining))
	st.ResetAfter = roundUp(look.ResetAfter)
}

func (w *work) key() sluice.Key { return w.limiter.KeyHash(w.id) }
