package policies

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice"
)

// Many requests at once, more than can run: none is turned away, none is forgotten, and never do more run than may.
func TestQueue_ManyAtOnce(t *testing.T) {
	const atOnce, clients, each = 3, 32, 60
	all := limiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(atOnce, time.Hour)})
	own := limiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
	d := newDesk(t, QueueTerms{2 * clients, 2, time.Hour},
		queuePolicy{Name: "own", Limiter: own, Key: byClient}, queuePolicy{Name: "all", Limiter: all, Key: byNothing, MaxPerKey: 2 * clients})
	var running, waited, most atomic.Int64
	var group sync.WaitGroup
	for i := range 2 * clients {
		group.Go(func() {
			r := &request{client: string(rune('A' + i%clients)), cost: 1}
			for range each {
				j := Judgement[*request, struct{}]{Settles: true}
				got := j.JudgeInTurn(t.Context(), j.Collect(d.list, r, nil), d.queue)
				if !assert.Equal(t, Admitted, got.Outcome, "%+v", got) {
					return
				}
				n := running.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				if got.Waited > 0 {
					waited.Add(1)
				}
				for range 50 { // others come meanwhile
					runtime.Gosched()
				}
				running.Add(-1)
				j.Release()
			}
		})
	}
	group.Wait()
	assert.LessOrEqual(t, most.Load(), int64(atOnce))
	assert.Greater(t, waited.Load(), int64(clients), "the queue was hardly ever needed")
	assert.Equal(t, atOnce, all.Key("").Peek(0).Remaining)
	d.fresh()
}
