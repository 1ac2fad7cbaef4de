package sluice

import (
	"context"
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/ends"
	"github.com/sluice-go/sluice/internal/ledger"
)

// A waiter is a call that waits for its turn. The turn moves up when units before it are given back. Each key's first waiter
// is told so, and when it has left, the next one, so that a caller who gives up costs the others no time:
//
//	A, B and C wait; B and C are cancelled: their ends go, and nobody is told
//	A:  leaves; D, which waits behind C, is the first now, and its turn has moved up: tells D
//	D:  asks for its turn again, as it is with the records locked, and sleeps until then
//
// A turn of a single key follows from the ends before it, so the ends of all that wait are right at any time. For the
// turn of several keys each key is held, and a waiter's holds move up only when it is told.
type waiter struct {
	wake  chan struct{}
	all   []*Reservation // whose time has to come
	seats []seat         // by limiter and id
	stays bool           // it waits for the turn of a key that it does not charge
}

// A seat is the place of a waiter among the reservations of a key.
type seat struct {
	lim   *Limiter
	id    uint64
	rec   *ledger.Record
	nodes []*ends.Node // that follow each other
}

func newWaiter() *waiter { return &waiter{wake: make(chan struct{}, 1)} }

// sit adds a seat, in the order of limiters and ids.
func (w *waiter) sit(s seat) {
	if len(s.nodes) == 0 {
		w.stays = true
		return
	}
	w.seats = append(w.seats, s)
}

// await returns when the turn begins, or the error of a context that ends before.
func (w *waiter) await(ctx context.Context) error {
	for i := 0; i < len(w.all); {
		r := w.all[i]
		switch err := r.lim.sleepUntil(ctx, w.wake, uint64(r.node.At)); err {
		case nil:
			i++
		case errMoved:
			w.moveUp()
			i = 0
		default:
			return err
		}
	}
	return nil
}

// moveUp moves the turn to the earliest time at which it can begin now, if that is sooner.
func (w *waiter) moveUp() {
	if w.stays {
		return
	}
	unlock, ok := w.lock()
	defer unlock()
	if !ok {
		return // a key has been dropped, or reset: the turn is a time that stays
	}
	delay, sooner := time.Duration(0), false
	for _, s := range w.seats {
		now := max(s.lim.now(), 0)
		delay = max(delay, until(s.rec.Turn(s.nodes...), now))
	}
	for _, s := range w.seats {
		sooner = sooner || after(max(s.lim.now(), 0), delay) < uint64(s.nodes[0].At)
	}
	if !sooner {
		return
	}
	for _, r := range w.all {
		r.node.At = min(r.node.At, int64(min(after(max(r.lim.now(), 0), delay), math.MaxInt64)))
	}
	for _, s := range w.seats {
		s.hold()
	}
}

// lock locks the records of all seats, if all still have their reservations.
func (w *waiter) lock() (unlock func(), ok bool) {
	n := 0
	for ; n < len(w.seats); n++ {
		s := &w.seats[n]
		if !s.rec.Lock() {
			break
		}
		if !s.nodes[0].Listed() {
			s.rec.Release()
			break
		}
	}
	return func() {
		for _, s := range w.seats[:n] {
			s.rec.Release()
		}
	}, n > 0 && n == len(w.seats)
}

// hold keeps the key's units from the turn on instead of from a later time, and gives back the time between.
func (s *seat) hold() {
	rec, ok, last := s.rec, true, s.rec.Full()
	if !rec.Hold(s.nodes...) {
		return
	}
	given := last - rec.Full()
	s.lim.update(s.id, func(p *policy, key state) uint64 {
		ok = rec.IsOf(p) && p.blockedUntil(key) == 0 && p.bucket().full(key.word) >= last
		if !ok || given == 0 {
			return key.word
		}
		return p.forward(key.word, max(s.lim.now(), 0), given)
	})
	if !ok {
		rec.Clear()
	}
}

// leave ends the waiting, when the turn has begun. The reservations are still to be settled.
func (w *waiter) leave() {
	for _, s := range w.seats {
		if s.rec.Lock() {
			if s.nodes[0].Listed() {
				s.rec.Begin(s.nodes...)
			}
			s.rec.Tell()
			s.rec.Release()
		}
	}
}

// nap returns when the limiter's clock has reached at, when ctx is done, or sooner when woken, a child of ctx, is done. The
// caller has charged nothing and goes on only without an error, which is of ctx: the context can have ended although the
// sleep ended well, and woken has an error of its own.
func (l *Limiter) nap(ctx, woken context.Context, at uint64) error {
	_ = l.sleepUntil(woken, nil, at)
	return ctx.Err()
}

// maxNap is the longest pause between two readings of a clock that stands still. Not tuned.
const maxNap = time.Millisecond

// sleepUntil returns when the limiter's clock has reached at, or errMoved when wake has something to receive.
func (l *Limiter) sleepUntil(ctx context.Context, wake <-chan struct{}, at uint64) error {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if clock, ok := l.clock.(*ManualClock); ok {
		return clock.sleepUntil(ctx, wake, at)
	}
	last, nap := max(l.clock.Now(), 0), time.Duration(1)
	timer := time.NewTimer(until(at, last))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
			return errMoved
		case <-timer.C:
		}
		now := max(l.clock.Now(), 0)
		left := until(at, now)
		if left <= 0 || l.timed {
			return nil
		}
		if nap = min(2*nap, maxNap); now != last { // a clock of the user's can be slow
			last, nap = now, 1
		}
		timer.Reset(max(left, nap))
	}
}
