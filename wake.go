package sluice

import (
	"context"
	"sync"
	"sync/atomic"
)

// awaiting are the calls that wait for units of InFlight keys. These come back when another call gives them back, at
// no time that could be known before. So such a call listens first, and then asks for its units:
//
//	wait:     listens to k; asks, and is denied
//	release:  gives a unit of k back; wakes
//	wait:     sleeps, and wakes at once
//
// All calls that wait for the key are woken, and ask again.
type awaiting struct {
	n  atomic.Int64 // the listeners: a release reads this before it locks
	mu sync.Mutex   // guards the rest
	by map[uint64]map[*listener]struct{}
}

type listener struct{ wake context.CancelFunc }

// listen returns a context that is done with ctx, or when units of id may have come back; and the function that ends the
// listening.
func (w *awaiting) listen(ctx context.Context, id uint64) (woken context.Context, stop func()) {
	woken, cancel := context.WithCancel(ctx)
	e := &listener{cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[uint64]map[*listener]struct{}{}
	}
	if w.by[id] == nil {
		w.by[id] = map[*listener]struct{}{}
	}
	w.by[id][e] = struct{}{}
	w.n.Add(1)
	return woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.by[id], e)
		if len(w.by[id]) == 0 {
			delete(w.by, id)
		}
		w.n.Add(-1)
		cancel()
	}
}

// wake tells the calls that listen to id that units have come back.
func (w *awaiting) wake(id uint64) {
	if w.n.Load() != 0 {
		w.wakeAll(id)
	}
}

// wakeAll is wake where somebody listens.
func (w *awaiting) wakeAll(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.by[id] {
		e.wake()
	}
}
