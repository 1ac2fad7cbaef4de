package redistier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// settleFor is how long Redis is told of a settlement again and again, if the call has no TTL.
const settleFor = time.Minute

// A settler sends settlements that no caller waits for, and sends again those that Redis has not answered: a hold is settled
// once, whatever the number of tries. There is one goroutine at most.
type settler struct {
	store *Store

	mu      sync.Mutex // guards the rest
	queue   []StoreCall
	running bool
	timer   *time.Timer // set while settlements wait after a failure
	done    sync.WaitGroup
}

// Settle settles holds in the background, in one pipeline to each primary: it waits for nothing. What Redis does not answer
// is sent again, for the TTL of the call, or for a minute if that is 0: give it the TTL of the hold, since then the hold has
// lapsed. An error means that nothing is done: a call is invalid or no OpSettle, the Store is closed, or more than MaxKeys
// settlements wait. That a hold was not there is not reported; Do with OpSettle does that.
func (s *Store) Settle(calls []StoreCall) error {
	if err := s.checkCalls(calls, make([]StoreResult, len(calls))); err != nil {
		return err
	}
	for i := range calls {
		if calls[i].Op != OpSettle {
			return fmt.Errorf("redistier: call %d of Settle is %v; want only OpSettle", i, calls[i].Op)
		}
	}
	if s.closed.Load() {
		return ErrClosed
	}
	return s.settler.add(calls, true)
}

var errManySettlements = errors.New("redistier: as many settlements wait for Redis as StoreConfig.MaxKeys allows")

// add queues settlements. If they are not for now, they wait for a pause, since Redis has not answered.
func (q *settler) add(calls []StoreCall, now bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue)+len(calls) > q.store.maxKeys {
		return errManySettlements
	}
	for _, c := range calls {
		if c.until.IsZero() {
			life := c.TTL
			if life == 0 {
				life = settleFor
			}
			c.until = time.Now().Add(life)
		}
		q.queue = append(q.queue, c)
	}
	switch {
	case now && !q.running:
		q.running = true
		q.done.Go(q.run)
	case !now && q.timer == nil && !q.store.closed.Load():
		q.timer = time.AfterFunc(owedPause, q.again)
	}
	return nil
}

// again tries once more after a pause.
func (q *settler) again() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timer = nil
	if !q.running && len(q.queue) > 0 && !q.store.closed.Load() {
		q.running = true
		q.done.Go(q.run)
	}
}

// take returns settlements that are worth a try. It stops the goroutine if there are none, or they are to wait.
func (q *settler) take() (calls []StoreCall) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.queue), maxAll)
	now := time.Now()
	for _, c := range q.queue[:n] {
		if now.Before(c.until) {
			calls = append(calls, c)
		}
	}
	q.queue = append(q.queue[:0], q.queue[n:]...)
	if n == 0 || q.timer != nil {
		q.queue = append(calls, q.queue...)
		calls, q.running = nil, false
	}
	return calls
}

func (q *settler) run() {
	for calls := q.take(); len(calls) > 0; calls = q.take() {
		_ = q.store.do(context.Background(), calls, make([]StoreResult, len(calls)))
	}
}

// waits returns how many settlements wait.
func (q *settler) waits() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue)
}

// end tries what waits once more, and waits for that.
func (q *settler) end() {
	q.mu.Lock()
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	if !q.running && len(q.queue) > 0 {
		q.running = true
		q.done.Go(q.run)
	}
	q.mu.Unlock()
	q.done.Wait()
}
