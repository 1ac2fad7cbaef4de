package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/metrics"
)

func newQueue(t *testing.T, c httplimit.QueueConfig) *httplimit.Queue {
	t.Helper()
	q, err := httplimit.NewQueue(c)
	require.NoError(t, err)
	return q
}

// awaitQueued waits until so many calls wait.
func awaitQueued(t *testing.T, q *httplimit.Queue, want uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting uint64
		q.Metrics("q").Read(func(d *metrics.Desc, v uint64, _ ...string) {
			if d.Name == "sluice.queue.waiting" {
				waiting = v
			}
		})
		return waiting == want
	}, patience, time.Millisecond)
}

// A call that passes after a wait has a trailer that says how long it was; one without a place is told the wait of those in
// front, too; one whose client goes ends with CANCELED, and its place is free.
func TestQueue_UnaryCalls(t *testing.T) {
	clock, q := newClock(), newQueue(t, httplimit.QueueConfig{MaxWaiting: 3, MaxPerKey: 2, MaxWait: time.Minute})
	told := make(chan grpclimit.Decision, 10)
	client := limited(t, grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerSecond(1), clock), Key: oneKey}}, Queue: q,
		OnDecision: func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { told <- d },
	}, &service{})
	type result struct {
		trailer metadata.MD
		err     error
	}
	call := func(ctx context.Context) <-chan result {
		done := make(chan result, 1)
		go func() {
			var r result
			_, r.err = client.EmptyCall(ctx, &testpb.Empty{}, grpc.Trailer(&r.trailer))
			done <- r
		}()
		return done
	}
	first := <-call(t.Context())
	require.NoError(t, first.err)
	require.Empty(t, first.trailer.Get("server-timing"))
	require.Zero(t, (<-told).Waited)

	ctx, cancel := context.WithCancel(t.Context())
	gone := call(ctx)
	awaitQueued(t, q, 1)
	behind := call(t.Context())
	awaitQueued(t, q, 2)
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, 3*time.Second, "3000", "p")
	require.Empty(t, trailer.Get("server-timing"))
	require.Zero(t, (<-told).Waited)
	cancel()
	require.Equal(t, codes.Canceled, status.Code((<-gone).err))
	d := <-told
	require.Equal(t, codes.Canceled, d.Code)
	require.Equal(t, []string{"p"}, d.Violated)
	require.Positive(t, d.Waited)
	awaitQueued(t, q, 1)
	clock.Advance(time.Second)
	r := <-behind
	require.NoError(t, r.err, "it has moved up")
	require.Len(t, r.trailer.Get("server-timing"), 1)
	require.Regexp(t, `^queue;dur=[0-9.]+$`, r.trailer.Get("server-timing")[0])
	require.Positive(t, (<-told).Waited)
	awaitQueued(t, q, 0)
}

// A call whose deadline comes before its turn is denied at once, and is told when that would have been.
func TestQueue_ADeadlineThatComesTooEarly(t *testing.T) {
	q := newQueue(t, httplimit.QueueConfig{MaxWaiting: 3, MaxPerKey: 2, MaxWait: time.Hour})
	client := limited(t, grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(1), newClock()), Key: oneKey}}, Queue: q,
	}, &service{})
	_, _, err := empty(t, client)
	require.NoError(t, err)
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, time.Minute, "60000", "p")
}

// Messages wait, too: the handler's RecvMsg takes as long.
func TestQueue_MessagesOfAStream(t *testing.T) {
	clock, q := newClock(), newQueue(t, httplimit.QueueConfig{MaxWaiting: 3, MaxPerKey: 1, MaxWait: time.Hour})
	client := limited(t, grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerSecond(1), clock), Key: oneKey, Per: grpclimit.PerReceived}}, Queue: q,
	}, &service{})
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
	}
	_, err = stream.Recv()
	require.NoError(t, err)
	for range 2 {
		awaitQueued(t, q, 1)
		clock.Advance(time.Second)
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err)
	awaitQueued(t, q, 0)
}

// Servers of HTTP and gRPC can share a Queue: their requests stand in one line for a key of one Limiter.
func TestQueue_OfTwoJudges(t *testing.T) {
	clock, q := newClock(), newQueue(t, httplimit.QueueConfig{MaxWaiting: 2, MaxPerKey: 2, MaxWait: time.Hour})
	c := grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerSecond(1), clock), Key: oneKey}}, Queue: q}
	one, two := newJudge(t, c), newJudge(t, c)
	require.True(t, one.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"}).Allowed)
	passed := make(chan int, 2)
	for i, j := range []*grpclimit.Judge{two, one} {
		go func() {
			if j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"}).Allowed {
				passed <- i
			}
		}()
		awaitQueued(t, q, uint64(i+1))
	}
	v := two.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"})
	assert.Equal(t, 3*time.Second, v.RetryAfter)
	for i := range 2 {
		clock.Advance(time.Second)
		require.Equal(t, i, <-passed)
	}
}

func TestQueue_ConfigErrors(t *testing.T) {
	p := grpclimit.Policy{Name: "p", Limiter: gcra(t, sluice.PerSecond(1), nil), Key: oneKey, MaxPerKey: 1}
	_, err := grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{p}})
	requireConfigError(t, err, "Config.Queue", `is nil, and the policy "p" has a MaxPerKey of 1`)
	p.MaxPerKey = 4
	_, err = grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{p}, Queue: newQueue(t, httplimit.QueueConfig{MaxWaiting: 3, MaxPerKey: 1, MaxWait: 1})})
	requireConfigError(t, err, "Config.Queue", "has 3 places")
}
