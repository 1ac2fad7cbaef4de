package grpclimit_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// TestInFlight_StreamsAndCallsAtOnce: a stream counts until its handler has returned, also because its client has gone.
// A denial takes no unit of a rate beside it.
func TestInFlight_StreamsAndCallsAtOnce(t *testing.T) {
	for _, settles := range []bool{false, true} {
		clock := newClock()
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: clock})
		all := gcra(t, sluice.PerHour(10), clock)
		c := grpclimit.Config{Policies: []grpclimit.Policy{
			{Name: "all", Limiter: all, Key: oneKey}, {Name: "at-once", Limiter: atOnce, Key: oneKey},
		}}
		if settles {
			c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { return 0 }
		}
		client := limited(t, c, &service{})
		left := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool { return atOnce.Key("k").Peek(0).Remaining == n }, 10*time.Second, time.Millisecond)
		}
		open := func(ctx context.Context) testpb.TestService_FullDuplexCallClient {
			stream, err := client.FullDuplexCall(ctx)
			require.NoError(t, err)
			require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
			_, err = stream.Recv()
			require.NoError(t, err)
			return stream
		}
		first := open(timeout(t))
		ctx, cancel := context.WithCancel(timeout(t))
		open(ctx)
		left(0)
		_, trailer, err := empty(t, client)
		requireDenied(t, err, trailer, time.Second, "1000", "at-once")
		require.Equal(t, 8, all.Key("k").Peek(0).Remaining)

		cancel()
		left(1)
		_, _, err = empty(t, client)
		require.NoError(t, err)
		left(1)
		require.NoError(t, first.CloseSend())
		_, err = first.Recv()
		require.ErrorIs(t, err, io.EOF)
		left(2)
		require.Equal(t, map[bool]int{true: 10, false: 7}[settles], all.Key("k").Peek(0).Remaining)
	}
}

// TestInFlight_PanicsAndVerdicts: a call that panics has ended, too, and a Verdict ends once.
func TestInFlight_PanicsAndVerdicts(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: newClock()})
	j := newJudge(t, grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: atOnce, Key: oneKey}}})
	assert.Panics(t, func() {
		_, _ = j.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: testpb.TestService_EmptyCall_FullMethodName}, func(context.Context, any) (any, error) {
			assert.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
			panic("x")
		})
	})
	require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
	v, w := j.Decide(t.Context(), grpclimit.Call{}), j.Decide(t.Context(), grpclimit.Call{})
	require.Error(t, j.Decide(t.Context(), grpclimit.Call{}).Err())
	v.Settle(codes.OK)
	v.Settle(codes.OK)
	require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
	w.Settle(codes.Internal)
	require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
}

func TestInFlight_NotForMessages(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour)})
	for _, per := range []grpclimit.Per{grpclimit.PerReceived, grpclimit.PerSent} {
		_, err := grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: atOnce, Key: oneKey, Per: per}}})
		require.ErrorContains(t, err, "want PerCall")
	}
}

// TestInFlight_CallbacksThatPanic: a call whose callback panics, and is answered by an interceptor that recovers, gives
// everything back, as one whose handler panics.
func TestInFlight_CallbacksThatPanic(t *testing.T) {
	boom := func(c *grpclimit.Config) map[string]func() {
		return map[string]func(){
			"Skip": func() { c.Skip = func(context.Context, grpclimit.Call) bool { panic("x") } },
			"Key":  func() { c.Policies[1].Key = func(context.Context, grpclimit.Call) (string, error) { panic("x") } },
			"Cost": func() { c.Policies[1].Cost = func(context.Context, grpclimit.Call) int { panic("x") } },
			"OnDecision": func() {
				c.OnDecision = func(context.Context, grpclimit.Call, grpclimit.Decision) { panic("x") }
			},
			"Settle": func() { c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { panic("x") } },
		}
	}
	for name := range boom(nil) {
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: newClock()})
		shadow := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: newClock(), Shadow: true})
		rate := gcra(t, sluice.PerHour(100), newClock())
		settled := codes.OK
		c := grpclimit.Config{
			Policies: []grpclimit.Policy{{Name: "at-once", Limiter: atOnce, Key: oneKey}, {Name: "rate", Limiter: rate, Key: oneKey}, {Name: "shadow", Limiter: shadow, Key: oneKey}},
			Settle:   func(_ context.Context, _ grpclimit.Call, code codes.Code) int { settled = code; return 0 },
		}
		boom(&c)[name]()
		j := newJudge(t, c)
		for range 3 {
			assert.Panics(t, func() {
				_, _ = j.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, func(context.Context, any) (any, error) { return nil, nil })
			}, name)
			assert.Panics(t, func() {
				_ = j.Stream(nil, calm{}, &grpc.StreamServerInfo{FullMethod: "/s/m"}, func(any, grpc.ServerStream) error { return nil })
			}, name)
			assert.Panics(t, func() { j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"}).Settle(codes.OK) }, name)
		}
		assert.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining, name)
		assert.Equal(t, 2, shadow.Key("k").Peek(0).Remaining, name)
		if name == "OnDecision" {
			assert.Equal(t, codes.Internal, settled)
			assert.Equal(t, 100, rate.Key("k").Peek(0).Remaining, "Settle has been asked")
		}
	}
}

// TestInFlight_LongCalls: calls that run for longer than the limit's Period count until they end, and no longer.
func TestInFlight_LongCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, 400*time.Millisecond)})
		j := newJudge(t, grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: atOnce, Key: oneKey}}})
		end := make(chan struct{})
		var calls sync.WaitGroup
		run := func(serve func() error) {
			calls.Go(func() { assert.NoError(t, serve()) })
			synctest.Wait()
		}
		run(func() error {
			_, err := j.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, func(context.Context, any) (any, error) { <-end; return nil, nil })
			return err
		})
		run(func() error {
			return j.Stream(nil, calm{}, &grpc.StreamServerInfo{FullMethod: "/s/m"}, func(any, grpc.ServerStream) error { <-end; return nil })
		})
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			require.False(t, j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"}).Allowed)
		}
		close(end)
		calls.Wait()
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
		v := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"})
		time.Sleep(10 * time.Second)
		require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
		v.Settle(codes.OK)
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
	})
}

// calm is a stream that only has a context.
type calm struct{ grpc.ServerStream }

func (calm) Context() context.Context { return context.Background() }
