package grpclimit_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// start is 23 s after a full minute.
var start = time.Unix(1_790_000_123, 456_789_012)

// patience is for what real processes and connections do.
const patience = time.Minute

func newClock() *sluice.ManualClock { return sluice.NewManualClock(start) }

func newLimiter(tb testing.TB, c sluice.Config) *sluice.Limiter {
	tb.Helper()
	l, err := sluice.New(c)
	require.NoError(tb, err)
	return l
}

// gcra is a limiter with a limit, on a clock.
func gcra(tb testing.TB, limit sluice.Limit, clock sluice.Clock) *sluice.Limiter {
	tb.Helper()
	return newLimiter(tb, sluice.Config{Limit: limit, Clock: clock})
}

func newJudge(tb testing.TB, c grpclimit.Config) *grpclimit.Judge {
	tb.Helper()
	j, err := grpclimit.New(c)
	require.NoError(tb, err)
	return j
}

func oneKey(context.Context, grpclimit.Call) (string, error) { return "k", nil }

// onePolicy is a Config with one policy, one key and one limit.
func onePolicy(tb testing.TB, limit sluice.Limit, clock sluice.Clock) grpclimit.Config {
	tb.Helper()
	return grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: gcra(tb, limit, clock), Key: oneKey}}}
}

// service is a TestService whose methods count their calls and do as a test says.
type service struct {
	testpb.UnimplementedTestServiceServer
	calls  atomic.Int64
	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	empty  func(context.Context) error
	duplex func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (s *service) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	s.calls.Add(1)
	if s.empty != nil {
		if err := s.empty(ctx); err != nil {
			return nil, err
		}
	}
	return &testpb.Empty{}, nil
}

func (s *service) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.unary != nil {
		return s.unary(ctx, req)
	}
	return &testpb.SimpleResponse{Payload: req.GetPayload()}, nil
}

// StreamingOutputCall sends as many messages as the request asks for.
func (s *service) StreamingOutputCall(req *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	s.calls.Add(1)
	for range req.GetResponseParameters() {
		if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
	return nil
}

// StreamingInputCall answers with the number of messages.
func (s *service) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	s.calls.Add(1)
	for n := int32(0); ; n++ {
		switch _, err := stream.Recv(); {
		case err == io.EOF:
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		case err != nil:
			return err
		}
	}
}

// FullDuplexCall echoes.
func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	s.calls.Add(1)
	if s.duplex != nil {
		return s.duplex(stream)
	}
	for {
		switch _, err := stream.Recv(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// serve lets a server of s listen on loopback until the test ends, and returns its address.
func serve(tb testing.TB, s *service, opts ...grpc.ServerOption) string {
	tb.Helper()
	server := grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(server, s)
	return listen(tb, server)
}

func listen(tb testing.TB, server *grpc.Server) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	go func() { _ = server.Serve(listener) }()
	tb.Cleanup(server.Stop)
	return listener.Addr().String()
}

// dial returns a client for an address.
func dial(tb testing.TB, address string, opts ...grpc.DialOption) testpb.TestServiceClient {
	tb.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	conn, err := grpc.NewClient(address, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// limited is a client for a server with the policies of c.
func limited(tb testing.TB, c grpclimit.Config, s *service) testpb.TestServiceClient {
	tb.Helper()
	return dial(tb, serve(tb, s, newJudge(tb, c).ServerOptions()...))
}

func timeout(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// empty makes an EmptyCall, and returns its error and what came with it.
func empty(tb testing.TB, client testpb.TestServiceClient, pairs ...string) (header, trailer metadata.MD, err error) {
	tb.Helper()
	ctx := metadata.AppendToOutgoingContext(timeout(tb), pairs...)
	_, err = client.EmptyCall(ctx, &testpb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return header, trailer, err
}

// requireDenied checks a denial by policies with a wait, and its pushback.
func requireDenied(tb testing.TB, err error, trailer metadata.MD, wait time.Duration, pushback string, policies ...string) {
	tb.Helper()
	s := status.Convert(err)
	require.Equal(tb, codes.ResourceExhausted, s.Code(), "%v", err)
	var names []string
	retry := time.Duration(-1)
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				names = append(names, v.GetSubject())
				assert.NotEmpty(tb, v.GetDescription())
			}
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		default:
			assert.Fail(tb, "an unknown detail", "%v", detail)
		}
	}
	assert.Equal(tb, policies, names)
	assert.Equal(tb, wait, retry)
	assert.Equal(tb, []string{pushback}, trailer.Get("grpc-retry-pushback-ms"))
}

// never is the wait of a denial without a RetryInfo.
const never = time.Duration(-1)
