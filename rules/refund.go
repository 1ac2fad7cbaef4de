package rules

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// A refund is first taken off what its key was denied. Hits that nothing has counted are thereby gone; those that
// the count of the present window holds leave it, as they do upstream. A refund does not say whether it is of an
// admitted call or of a denied one: those of denied calls come first, so that all refunds together give back what
// was admitted, and never more. Where another window has begun since, or the limiter does not count denied hits,
// or not all of them (count_denied of an algorithm other than fixed windows, block_for), nothing has counted them.

// The time for which denied hits wait for their refund, from the last denial of the key on, is the period of the
// limit, between these. A proxy ends a stream that is denied, so its refund comes at once; it comes late from
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

// denialID is the id that denied hits have: that of the entries, for the rule whatever limits it, and for overrides
// by unit.
func (w *work) denialID(st *Status) uint64 {
	if st.Rule != nil {
		return w.id
	}
	return w.id + uint64(st.Unit)*0x9E3779B97F4A7C15
}

// window names the window of a counter at now: another one has another name, also where the periods differ.
func (w *work) window(st *Status, now int64) uint64 {
	if !w.counts {
		return 0
	}
	period := int64(st.Period)
	return uint64(now-floorMod(now-w.offset, period)) + uint64(period)*0x9E3779B97F4A7C15
}

// giveBack gives n hits back, and answers how the key stands then.
func (e *Engine) giveBack(w *work, st *Status, now int64, n uint64) {
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
	look := w.key().Peek(0) // the refund was at the clock's time, and at now it would not look whole
	w.gaveBack(st, n, absorbed, 0, 0, &look)
}

// gaveBack answers for n hits that were to be given back, of which absorbed were not: by what a window holds,
// or as a limiter's key stands.
func (w *work) gaveBack(st *Status, n, absorbed uint64, left time.Duration, count uint64, look *sluice.Decision) {
	if n != 0 {
		w.series.refund(w.id, n, absorbed)
	}
	if w.counts {
		w.windowStatus(st, left, count, false)
		return
	}
	st.Remaining = uint32(min(uint64(look.Remaining), math.MaxUint32))
	st.ResetAfter = roundUp(look.ResetAfter)
}

func (w *work) key() sluice.Key { return w.limiter.KeyHash(w.id) }
