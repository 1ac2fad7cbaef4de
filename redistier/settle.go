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

// A settler sends settlements that no caller waits for. There is one goroutine at most. Those that Redis does not answer go the way of all
// others: a hold is settled once, whatever the number of tries. See settleLater.
type settler struct {
	store *Store

	mu      sync.Mutex // guards the rest
	queue   []StoreCall
	running bool
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
	return s.settler.add(calls)
}

var errManySettlements = errors.New("redistier: as many settlements wait for Redis as StoreConfig.MaxKeys allows")

// add queues settlements.
func (q *settler) add(calls []StoreCall) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue)+len(calls) > q.store.maxKeys {
		return errManySettlements
	}
	q.queue = append(q.queue, calls...)
	if !q.running {
		q.running = true
		q.done.Go(q.run)
	}
	return nil
}

// take returns the next settlements, or none, and then the goroutine ends.
func (q *settler) take() []StoreCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.queue), maxAll)
	calls := append([]StoreCall(nil), q.queue[:n]...)
	q.queue = append(q.queue[:0], q.queue[n:]...)
	q.running = n > 0
	return calls
}

func (q *settler) run() {
	for calls := q.take(); len(calls) > 0; calls = q.take() {
		_ = q.store.do(context.Background(), calls, make([]StoreResult, len(calls)))
	}
}

// settleLater has Redis told of a settlement that it has not answered.
func (s *Store) settleLater(w *storeCall) (out StoreResult) {
	life := w.call.TTL
	if life == 0 {
		life = settleFor
	}
	if err := w.asked.lane.settlesLater(&w.takeCall.request, life); err != nil {
		return StoreResult{Err: err}
	}
	look := w.takeCall
	look.op, look.cost = opAdmit, 0
	out.Decision, out.Source, out.Err = s.fallback(w.asked, &look, w.subject)
	out.Count = s.shareCount(w)
	return out
}
