package grpclimit_test

import (
	"context"
	"io"
	"testing"
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
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.PerHour(2), Clock: clock})
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
			require.Eventually(t, func() bool { return atOnce.Peek("k", 0).Remaining == n }, 10*time.Second, time.Millisecond)
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
		require.Equal(t, 8, all.Peek("k", 0).Remaining)

		cancel()
		left(1)
		_, _, err = empty(t, client)
		require.NoError(t, err)
		left(1)
		require.NoError(t, first.CloseSend())
		_, err = first.Recv()
		require.ErrorIs(t, err, io.EOF)
		left(2)
		require.Equal(t, map[bool]int{true: 10, false: 7}[settles], all.Peek("k", 0).Remaining)
	}
}

// TestInFlight_PanicsAndVerdicts: a call that panics has ended, too, and a Verdict ends once.
func TestInFlight_PanicsAndVerdicts(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.PerHour(2), Clock: newClock()})
	j := newJudge(t, grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: atOnce, Key: oneKey}}})
	assert.Panics(t, func() {
		_, _ = j.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: testpb.TestService_EmptyCall_FullMethodName}, func(context.Context, any) (any, error) {
			assert.Equal(t, 1, atOnce.Peek("k", 0).Remaining)
			panic("x")
		})
	})
	require.Equal(t, 2, atOnce.Peek("k", 0).Remaining)
	v, w := j.Decide(t.Context(), grpclimit.Call{}), j.Decide(t.Context(), grpclimit.Call{})
	require.Error(t, j.Decide(t.Context(), grpclimit.Call{}).Err())
	v.Settle(codes.OK)
	v.Settle(codes.OK)
	require.Equal(t, 1, atOnce.Peek("k", 0).Remaining)
	w.Settle(codes.Internal)
	require.Equal(t, 2, atOnce.Peek("k", 0).Remaining)
}

func TestInFlight_NotForMessages(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.PerHour(2)})
	for _, per := range []grpclimit.Per{grpclimit.PerReceived, grpclimit.PerSent} {
		_, err := grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: atOnce, Key: oneKey, Per: per}}})
		require.ErrorContains(t, err, "want PerCall")
	}
}
