package surfaces

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/metrics"
)

// queues are the rows of surfaces that have calls wait in place of denying them.
var queues = []row{
	{"queue", queued},
	{"queue in flight", queuedInFlight},
	{"queue whose client goes", queuedAndGone},
}

// queue makes the run one with a queue, which has a place for 3 calls, 2 of them with one key.
func (r *run) queue() {
	r.clock()
	q, err := httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 3, MaxPerKey: 2, MaxWait: time.Hour})
	require.NoError(r, err)
	r.setup.Queue = q
}

// waiting returns how many calls wait.
func (r *run) waiting() (n uint64) {
	m := r.setup.Queue.Metrics("q")
	m.Read(func(d *metrics.Desc, v uint64, _ ...string) {
		if d.Name == "sluice.queue.waiting" {
			n = v
		}
	})
	return n
}

// waits makes a call that waits.
func (r *run) waits() *call {
	ctx, cancel := context.WithCancel(r.ctx)
	c := &call{cancel: cancel, done: make(chan Outcome, 1)}
	door, before := r.door, r.waiting()
	go func() { c.done <- door.Call(ctx) }()
	r.eventually(func() bool { return r.waiting() == before+1 }, "a call to wait")
	return c
}

// goes demands that a call that has waited runs.
func (r *run) goes(c *call) {
	r.await(r.setup.Handler.begun, "a call that waits to run")
	c.running = true
}

// half is the time after which a limit of 2 in a minute has room for another call.
const half = 30 * time.Second

// queued: calls over the limit wait, and run in order of arrival when there is room. A call without a place is denied, and its
// Retry-After has those in front in it.
func queued(r *run) {
	r.queue()
	last := r.policy("last", sluice.Config{Limit: sluice.PerMinute(2)})
	r.open(last)
	r.through(2)
	held := []*call{r.waits(), r.waits()}
	require.Equal(r, 3*half, r.refuse(1).RetryAfter)
	for range 4 {
		r.clock().Advance(half)
		r.goes(held[0])
		require.EqualValues(r, 1, r.waiting())
		ending{}.finish(r, held[:1])
		held = append(held[1:], r.waits())
	}
	require.Equal(r, 3*half, r.refuse(1).RetryAfter)
	for _, c := range held {
		r.clock().Advance(half)
		r.goes(c)
		ending{}.finish(r, []*call{c})
	}
	require.Zero(r, r.waiting())
	r.ran(8)
	r.remains(0, last)
}

// queuedInFlight: a call waits for another one to end.
func queuedInFlight(r *run) {
	r.queue()
	atOnce := r.atOnce()
	if !r.inFlight() {
		require.ErrorContains(r, r.start(atOnce), r.surface.Refuses)
		return
	}
	r.open(atOnce)
	held := r.hold(few)
	c := r.waits()
	h := r.setup.Handler
	h.end.Store(int32(Returns))
	h.one <- struct{}{}
	r.left(1)
	r.goes(c)
	r.remains(0, atOnce)
	for range 2 {
		_ = r.waits()
	}
	h.going.pass()
	r.left(few + 2)
	r.remains(few, atOnce)
	for _, c := range append(held, c) {
		r.end(c)
		require.NoError(r, c.Err)
		require.False(r, c.Denied)
	}
	r.ran(few + 3)
}

// queuedAndGone: the place of a call whose client goes is free at once, and those behind it move up.
func queuedAndGone(r *run) {
	r.queue()
	last := r.policy("last", sluice.Config{Limit: sluice.PerMinute(2)})
	r.open(last)
	r.through(2)
	for range 5 {
		first, second := r.waits(), r.waits()
		first.cancel()
		r.end(first)
		require.Error(r, first.Err)
		r.await(r.setup.Handler.left, "the limit to return from a call whose client has gone")
		require.EqualValues(r, 1, r.waiting())
		third := r.waits()
		for _, c := range []*call{second, third} {
			r.clock().Advance(half)
			r.goes(c)
			ending{}.finish(r, []*call{c})
		}
	}
	r.remains(0, last)
	r.ran(12)
}
