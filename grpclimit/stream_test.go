package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

type duplex = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]

// echo sends n messages on a stream, reads as many, and returns how many came back and the error that ended it.
func echo(t *testing.T, client testpb.TestServiceClient, n int) (got int, stream grpc.ClientStream, err error) {
	t.Helper()
	s, err := client.FullDuplexCall(timeout(t))
	require.NoError(t, err)
	for range n {
		_ = s.Send(&testpb.StreamingOutputCallRequest{}) // Recv says why it fails
		if _, err := s.Recv(); err != nil {
			return got, s, err
		}
		got++
	}
	_ = s.CloseSend()
	_, err = s.Recv()
	return got, s, err
}

func TestStream_APolicyPerCallCountsOpenings(t *testing.T) {
	clock := newClock()
	s := &service{}
	client := limited(t, onePolicy(t, sluice.Per(2, 2*time.Second), clock), s)
	for range 2 {
		got, _, err := echo(t, client, 10)
		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, 10, got)
	}
	got, stream, err := echo(t, client, 10)
	assert.Zero(t, got)
	requireDenied(t, err, stream.Trailer(), time.Second, "1000", "p")
	header, _ := stream.Header()
	assert.Empty(t, header)
	assert.EqualValues(t, 2, s.calls.Load(), "the handler of a denied stream is not called")
}

func TestStream_MessagesReceived(t *testing.T) {
	clock := newClock()
	c := onePolicy(t, sluice.Per(5, 5*time.Second), clock)
	c.Policies[0].Per = grpclimit.PerReceived
	s := &service{}
	client := limited(t, c, s)
	got, _, err := echo(t, client, 3)
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, 3, got)
	got, stream, err := echo(t, client, 3)
	assert.Equal(t, 2, got)
	requireDenied(t, err, stream.Trailer(), time.Second, "-1", "p")
	got, stream, err = echo(t, client, 3)
	assert.Zero(t, got)
	requireDenied(t, err, stream.Trailer(), time.Second, "-1", "p")
	assert.EqualValues(t, 3, s.calls.Load(), "an opening is not counted")

	clock.Advance(5 * time.Second)
	in, err := client.StreamingInputCall(timeout(t))
	require.NoError(t, err)
	for range 4 {
		require.NoError(t, in.Send(&testpb.StreamingInputCallRequest{}))
	}
	resp, err := in.CloseAndRecv()
	require.NoError(t, err)
	assert.EqualValues(t, 4, resp.GetAggregatedPayloadSize())
	_, _, err = empty(t, client)
	require.NoError(t, err, "a unary call is a message")
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, time.Second, "1000", "p")
}

func TestStream_MessagesSent(t *testing.T) {
	clock := newClock()
	c := onePolicy(t, sluice.Per(5, 5*time.Second), clock)
	c.Policies[0].Per = grpclimit.PerSent
	c.Policies[0].Cost = func(_ context.Context, call grpclimit.Call) int {
		return 1 + len(call.Message.(*testpb.StreamingOutputCallResponse).GetPayload().GetBody())
	}
	client := limited(t, c, &service{})
	request := &testpb.StreamingOutputCallRequest{ResponseParameters: make([]*testpb.ResponseParameters, 7)}
	stream, err := client.StreamingOutputCall(timeout(t), request)
	require.NoError(t, err)
	for range 5 {
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	_, err = stream.Recv()
	requireDenied(t, err, stream.Trailer(), time.Second, "-1", "p")
	_, _, err = empty(t, client)
	assert.NoError(t, err, "the response of a unary call is not counted")
}

// Whatever a handler makes of a denial, its stream is over, and the client is told why.
func TestStream_ADenialIsTheEnd(t *testing.T) {
	for name, end := range map[string]func(error) error{
		"the handler returns it":         func(err error) error { return err },
		"the handler returns success":    func(error) error { return nil },
		"the handler returns another":    func(error) error { return status.Error(codes.Aborted, "gave up") },
		"the handler wraps it":           func(err error) error { return errors.Join(err) },
		"the handler takes it for a gap": func(error) error { return io.EOF },
	} {
		for _, per := range []grpclimit.Per{grpclimit.PerReceived, grpclimit.PerSent} {
			t.Run(name, func(t *testing.T) {
				clock := newClock()
				c := onePolicy(t, sluice.PerSecond(2), clock)
				c.Policies[0].Per = per
				var settled []codes.Code
				c.Settle = func(_ context.Context, _ grpclimit.Call, code codes.Code) int {
					settled = append(settled, code)
					return -1
				}
				c.Policies = append(c.Policies, grpclimit.Policy{Name: "calls", Limiter: gcra(t, sluice.PerSecond(2), clock), Key: oneKey})
				s := &service{duplex: func(stream duplex) error {
					for {
						_, err := stream.Recv()
						if err == nil {
							err = stream.Send(&testpb.StreamingOutputCallResponse{})
						}
						if err == nil {
							continue
						}
						clock.Advance(time.Minute) // there would be room again
						_, again := stream.Recv()
						assert.Equal(t, err, again)
						assert.Equal(t, err, stream.Send(&testpb.StreamingOutputCallResponse{}))
						var denied *grpclimit.DeniedError
						require.ErrorAs(t, err, &denied)
						assert.Equal(t, []string{"p"}, denied.Decision.Violated)
						return end(err)
					}
				}}
				got, stream, err := echo(t, limited(t, c, s), 3)
				assert.Equal(t, 2, got)
				requireDenied(t, err, stream.Trailer(), 500*time.Millisecond, "-1", "p")
				assert.Equal(t, []codes.Code{codes.ResourceExhausted}, settled)
			})
		}
	}
}

func TestStream_SettleByStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func() error
		want codes.Code
	}{
		"success": {func() error { return nil }, codes.OK},
		"failure": {func() error { return status.Error(codes.Aborted, "no") }, codes.Aborted},
		"a panic": {func() error { panic("oops") }, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			c := onePolicy(t, sluice.PerMinute(10), newClock())
			c.Settle = func(_ context.Context, call grpclimit.Call, code codes.Code) int {
				assert.True(t, call.Stream)
				if code == codes.OK {
					return 0
				}
				return 2
			}
			recovered := grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
				defer func() {
					if recover() != nil {
						err = status.Error(codes.Internal, "panic")
					}
				}()
				return handler(srv, ss)
			})
			s := &service{duplex: func(duplex) error { return tt.fail() }}
			client := dial(t, serve(t, s, append([]grpc.ServerOption{recovered}, newJudge(t, c).ServerOptions()...)...))
			_, _, err := echo(t, client, 0)
			want := 8
			if tt.want == codes.OK {
				want = 10
				assert.ErrorIs(t, err, io.EOF)
			} else {
				assert.Equal(t, tt.want, status.Code(err))
			}
			assert.Equal(t, want, c.Policies[0].Limiter.Key("k").Peek(0).Remaining)
		})
	}
}

// Messages of a stream that is skipped are not counted either.
func TestStream_SkipHoldsForItsMessages(t *testing.T) {
	asked := 0
	c := onePolicy(t, sluice.DenyAll, newClock())
	c.Policies[0].Per = grpclimit.PerReceived
	c.Skip = func(context.Context, grpclimit.Call) bool { asked++; return true }
	got, _, err := echo(t, limited(t, c, &service{}), 3)
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, 3, got)
	assert.Equal(t, 1, asked)
}
