package sluice

import (
	"context"
	"errors"
	"time"
)

// Wait charges cost units to key, and returns when they are admitted; or it returns an
// error, having charged nothing. It fails at once, with an error of Reserve, if the cost
// can never be admitted or not before the context's deadline, and with the context's error
// when that is done first: a charge made for a turn to come is then given back, as by
// Reservation.Cancel, and the call counts as neither admitted nor denied. There is no
// goroutine.
//
// Where Reserve hands out turns, Wait takes one, in order of arrival. Under the other
// algorithms, and for a blocked key, it waits for what RetryAfter says and asks again; the
// order of those that wait is then not determined. So does a call that finds the key blocked when its turn
// begins: the block has taken the turn. A cost of 0 waits until one unit would be admitted.
//
// Time is the limiter's: with a ManualClock the wait ends when the clock has been moved far
// enough. With a clock of another kind it is asked again after as much real time as it says
// is left. The context's deadline is always one of real time.
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	return l.wait(ctx, l.made().hash.string(key), key, cost)
}

// Wait is Limiter.Wait for this key.
func (k Key) Wait(ctx context.Context, cost int) error { return k.lim.made().wait(ctx, k.id, "", cost) }

func (l *Limiter) wait(ctx context.Context, id uint64, name string, cost int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := l.await(ctx, id, cost)
	if err == nil || err == ctx.Err() {
		return err
	}
	if l.refuse(id, name, cost); l.shadow {
		return nil
	}
	return err
}

// errHasTurns says that a call is not admitted now, but could be given a turn.
var errHasTurns = errors.New("has turns")

// await is Wait without the work that a failure leaves.
func (l *Limiter) await(ctx context.Context, id uint64, cost int) error {
	for {
		now := max(l.now(), 0)
		wait, err := l.attempt(id, now, cost)
		if err == errHasTurns {
			if err = l.awaitTurn(ctx, id, cost); err == ErrBlocked {
				continue
			}
		}
		switch {
		case err != nil || wait == 0:
			return err
		case wait > patience(ctx) || l.shadow:
			return ErrWouldExceedDeadline
		}
		if err := l.sleepUntil(ctx, after(now, wait)); err != nil {
			return err
		}
	}
}

// patience is how long the caller can wait, less than Never.
func patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), 0)
	}
	return Never - 1
}

// awaitTurn takes a turn of a bucket and waits for it.
func (l *Limiter) awaitTurn(ctx context.Context, id uint64, cost int) error {
	r := &Reservation{lim: l.core, id: id, cost: cost}
	now := max(l.now(), 0)
	if err := l.tryReserve(r, now, patience(ctx)); err != nil {
		return err
	}
	if r.node.At > now && !l.shadow {
		if err := l.sleepUntil(ctx, uint64(r.node.At)); err != nil {
			r.Cancel()
			return err
		}
		if l.blocked(id) {
			r.Cancel()
			return ErrBlocked
		}
	}
	l.admit(id, cost)
	r.Settle(cost)
	return nil
}

// blocked reports whether id is blocked now.
func (l *Limiter) blocked(id uint64) bool { return l.core.blockNow(id) > uint64(max(l.now(), 0)) }

// attempt charges a call if it is admitted now, and need not queue. Otherwise it returns
// how long to wait before the next attempt, or that there are turns to wait for.
func (l *Limiter) attempt(id uint64, now int64, cost int) (wait time.Duration, err error) {
	l.act(id, (*Limiter).policyFor, func(p *policy, key state) uint64 {
		key.word, wait, err = p.attempt(key, now, cost)
		return key.word
	}, func(p *policy) (done bool) {
		wait = 0
		if err = p.never(cost); err != nil || p.unlimited() {
			return true
		}
		if cost == 0 {
			return l.core.fresh(id, p)
		}
		_, out := l.core.insert(p, id, now, cost, nil, gap{})
		if out == refused {
			err = ErrNoRoom
		}
		return out != retrying
	})
	if err == nil && wait == 0 {
		l.admit(id, cost)
	}
	return wait, err
}

func (p *policy) attempt(key state, now int64, cost int) (next uint64, wait time.Duration, err error) {
	if err = p.never(cost); err != nil {
		return key.word, 0, err
	}
	if p.unlimited() {
		return key.word, until(max(p.blockedUntil(key), uint64(now)), now), nil
	}
	key, at := p.admissible(key, now)
	if at > 0 {
		return key.word, until(at, now), nil
	}
	b := p.bucket()
	if b != nil {
		if s, queue := b.turns(); queue && b.full(key.word) > s.tick(now) {
			return key.word, 0, errHasTurns
		}
	}
	ok, _, wait, _ := p.judge(key, now, max(cost, 1), false)
	switch {
	case ok && cost == 0:
		return key.word, 0, nil
	case ok:
		return p.commit(key, now, cost), 0, nil
	case b != nil:
		return key.word, 0, errHasTurns
	}
	return key.word, wait, nil
}

// maxNap is how long a Wait leaves a clock alone, in the end, that stands still. Not tuned.
const maxNap = time.Millisecond

// sleepUntil returns when the limiter's clock has reached at.
func (l *Limiter) sleepUntil(ctx context.Context, at uint64) error {
	if clock, ok := l.clock.(*ManualClock); ok {
		return clock.sleepUntil(ctx, at)
	}
	last, nap := max(l.clock.Now(), 0), time.Duration(1)
	timer := time.NewTimer(until(at, last))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
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
