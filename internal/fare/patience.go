package fare

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// DefaultMaxWait bounds the waits of calls without a MaxWait or a deadline.
const DefaultMaxWait = time.Minute

// The errors of waits that are not begun, besides context.DeadlineExceeded.
var (
	ErrMaxWait = errors.New("the wait is longer than what is left of MaxWait")
	ErrNever   = errors.New("no wait helps")
)

// Patience is how long one call waits at most, in all attempts.
type Patience struct {
	most   time.Duration
	waited time.Duration
}

// UpTo returns the patience of a call that has not waited yet. A maxWait of 0 stands for the deadline of the call's
// context, or DefaultMaxWait without one; sluice.Never for no bound.
func UpTo(maxWait time.Duration) Patience { return Patience{most: maxWait} }

// Left returns how long the call may still wait, and the error for a longer wait.
func (p *Patience) Left(ctx context.Context) (left time.Duration, why error) {
	deadline, ok := ctx.Deadline()
	left, why = sluice.Never-1, ErrNever
	switch {
	case p.most == sluice.Never:
	case p.most > 0:
		left, why = p.most-p.waited, ErrMaxWait
	case !ok:
		left, why = DefaultMaxWait-p.waited, ErrMaxWait
	}
	if ok {
		if d := time.Until(deadline) - 1; d < left { // a wait must end before it
			left, why = d, context.DeadlineExceeded
		}
	}
	return max(left, 0), why
}

// Pause returns after d, or as soon as event is closed or the context ends.
func (p *Patience) Pause(ctx context.Context, event <-chan struct{}, d time.Duration) {
	start := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-event:
	case <-timer.C:
	}
	p.waited += time.Since(start)
}

// A Refusal is why a call is not sent: the content of the LimitErrors.
type Refusal struct {
	Held       bool          // back, since the server has asked for that; else a limiter would not admit the call
	RetryAfter time.Duration // the wait that would have been needed, in real time, as far as is known
	Err        error         // why there was no waiting; nil for a call that does not wait
}

// Pay pays as soon as it can, and within the patience; with failFast now or never. A fare of limiters that are all in shadow mode is
// not waited for. If the context has
// ended, that is the reason of a Refusal, whatever it says.
func (f *Fare) Pay(ctx context.Context, p *Patience, failFast bool) (Ticket, *Refusal) {
	if failFast || f.free {
		t, wait, ok := f.take()
		if ok {
			return t, nil
		}
		return t, &Refusal{RetryAfter: wait}
	}
	left, why := p.Left(ctx)
	start := time.Now()
	t, wait, err := f.wait(ctx, left)
	p.waited += time.Since(start)
	switch {
	case err == nil:
		return t, nil
	case !errors.Is(err, sluice.ErrWouldExceedDeadline):
		why = err
	case wait == sluice.Never && why == ErrMaxWait:
		why = ErrNever
	}
	return t, &Refusal{RetryAfter: wait, Err: why}
}
