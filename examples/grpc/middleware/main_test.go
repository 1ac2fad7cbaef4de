package main

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
)

type service struct {
	testpb.UnimplementedTestServiceServer
}

func (service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

func (service) FullDuplexCall(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return nil
}

// The interceptors of go-grpc-middleware, as it is: unary calls and streams have one budget, a denial
// says when to come back, and health checks are exempt.
func TestMiddleware(t *testing.T) {
	clock := sluice.NewManualClock(time.Unix(1_790_000_123, 0))
	server, err := newServer(clock)
	require.NoError(t, err)
	testpb.RegisterTestServiceServer(server, service{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := testpb.NewTestServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	unary := func() (metadata.MD, error) {
		var trailer metadata.MD
		_, err := client.EmptyCall(ctx, &testpb.Empty{}, grpc.Trailer(&trailer))
		return trailer, err
	}
	stream := func() (metadata.MD, error) {
		s, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		_, err = s.Recv()
		return s.Trailer(), err
	}
	for range 4 {
		_, err = unary()
		require.NoError(t, err)
	}
	_, err = stream()
	require.EqualError(t, err, "EOF")
	for _, call := range []func() (metadata.MD, error){unary, stream} {
		trailer, err := call()
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Contains(t, err.Error(), `quota exceeded: "per-client"; retry after 1s`)
		assert.Equal(t, []string{"1000"}, trailer.Get("grpc-retry-pushback-ms"))
	}
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	assert.NoError(t, err)
	clock.Advance(time.Second)
	_, err = unary()
	assert.NoError(t, err)
}
