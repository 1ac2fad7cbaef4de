// Package hint makes the wait that a denied client is told of from the wait that is true. The surfaces of httplimit, grpclimit and
// rules tell by it.
package hint

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	longest   = 365 * 24 * time.Hour // of Most, as of a MaxRetryAfter of clients
	maxJitter = time.Hour
)

// A Hint says how a wait is told. The zero value tells the wait itself.
type Hint struct {
	Most   time.Duration // longer waits are told as this; 0 for no bound
	Jitter time.Duration // a random number of Units, up to this, is added
	Unit   time.Duration // of Jitter

	// Draw returns a number from 0 to n-1. nil draws at random. It is called from many goroutines at once.
	Draw func(n uint64) uint64
}

// Of returns what is told of a wait: at most Most and Jitter, and no less than the wait, unless Most cuts that. The jitter comes
// last, so that clients whose waits are cut do not all come back together. Of sluice.Never nothing can be told but that.
func (h *Hint) Of(wait time.Duration) time.Duration {
	if wait == sluice.Never {
		return wait
	}
	if h.Most > 0 {
		wait = min(wait, h.Most)
	}
	if h.Jitter == 0 {
		return wait
	}
	draw := h.Draw
	if draw == nil {
		draw = rand.Uint64N
	}
	later := time.Duration(draw(uint64(h.Jitter/h.Unit)+1)) * h.Unit
	return wait + min(later, sluice.Never-1-wait)
}

// CheckMost returns why Most cannot be kept in Units, or an empty text.
func (h *Hint) CheckMost() string {
	if h.Most < 0 || h.Most > longest || h.Most%h.Unit != 0 {
		return fmt.Sprintf("%v cannot bound a wait; want whole %s, up to %v", h.Most, units[h.Unit], longest)
	}
	return ""
}

// CheckJitter returns why Jitter cannot be added, or an empty text.
func (h *Hint) CheckJitter() string {
	if h.Jitter < 0 || h.Jitter > maxJitter || h.Jitter%h.Unit != 0 {
		return fmt.Sprintf("%v cannot be added; want whole %s, from 0 to %v", h.Jitter, units[h.Unit], maxJitter)
	}
	return ""
}

var units = map[time.Duration]string{time.Second: "seconds", time.Millisecond: "milliseconds"}
