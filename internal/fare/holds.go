package fare

import (
	"sync"
	"time"
)

// Holds knows until when whatever K names is held back, for as many as there is room for. It is safe for concurrent use.
type Holds[K comparable] struct {
	mu    sync.Mutex
	until map[K]time.Time
	most  int

	// soonest is not after the end of any hold. Before it full Holds have nothing to
	// drop, so that an endless supply of names cannot have them searched each time.
	soonest time.Time
}

// NewHolds returns Holds with room for most names.
func NewHolds[K comparable](most int) *Holds[K] {
	return &Holds[K]{until: make(map[K]time.Time), most: most}
}

// Hold holds k back until the given time, or longer if it already is. Where there is no room
// it has no effect on a new name.
func (h *Holds[K]) Hold(k K, until, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, known := h.until[k]
	if known && !until.After(old) {
		return
	}
	if !known && len(h.until) >= h.most && !h.dropEnded(now) {
		return
	}
	if len(h.until) == 0 || until.Before(h.soonest) {
		h.soonest = until
	}
	h.until[k] = until
}

// dropEnded drops the holds that have ended and reports whether there were any.
func (h *Holds[K]) dropEnded(now time.Time) bool {
	if now.Before(h.soonest) {
		return false
	}
	before := len(h.until)
	h.soonest = time.Time{}
	for k, until := range h.until {
		switch {
		case !now.Before(until):
			delete(h.until, k)
		case h.soonest.IsZero() || until.Before(h.soonest):
			h.soonest = until
		}
	}
	return len(h.until) < before
}

// Remaining returns how long k is still held back, 0 if it is not.
func (h *Holds[K]) Remaining(k K, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.until[k]
	switch {
	case !ok:
		return 0
	case !now.Before(until):
		delete(h.until, k)
		return 0
	}
	return until.Sub(now)
}

// Len returns how many names are kept.
func (h *Holds[K]) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.until)
}
