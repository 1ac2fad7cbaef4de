package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

// exampleConn lets a server serve, and returns a connection to it.
func exampleConn(server *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	testpb.RegisterTestServiceServer(server, &service{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return sluice.Must(grpc.NewClient(listener.Addr().String(), opts...))
}

// Two calls at once for each client, and ten an hour.
func Example() {
	perClient := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(10).WithBurst(2)}))
	byPeer := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{})) // behind a proxy: name it here
	limit := sluice.Must(grpclimit.New(grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "per-client", Limiter: perClient, Key: byPeer}},
	}))
	server := grpc.NewServer(limit.ServerOptions()...) // unary calls and streams
	defer server.Stop()

	client := testpb.NewTestServiceClient(exampleConn(server))
	for range 3 {
		_, err := client.EmptyCall(context.Background(), &testpb.Empty{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// Streams: ten can be opened in a minute, and on all streams of a client together it can send
// three messages at once.
func Example_streams() {
	openings := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(10)}))
	messages := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3)}))
	byPeer := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))
	limit := sluice.Must(grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{
		{Name: "streams", Limiter: openings, Key: byPeer},
		{Name: "messages", Limiter: messages, Key: byPeer, Per: grpclimit.PerReceived},
	}}))
	server := grpc.NewServer(limit.ServerOptions()...)
	defer server.Stop()

	client := testpb.NewTestServiceClient(exampleConn(server))
	stream, err := client.FullDuplexCall(context.Background())
	for err == nil {
		_ = stream.Send(&testpb.StreamingOutputCallRequest{})
		if _, err = stream.Recv(); err == nil {
			fmt.Println("a message")
		}
	}
	fmt.Println(status.Convert(err).Code())
	// Output:
	// a message
	// a message
	// a message
	// ResourceExhausted
}

// A client that makes no more than a hundred calls a second, and leaves a server alone for as long as that asks.
func ExampleClient() {
	limit := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{
		Limiter:    sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(100)})),
		MaxRetries: 3,
		Idempotent: func(method string) bool { return method == testpb.TestService_EmptyCall_FullMethodName },
	}))
	server := grpc.NewServer()
	defer server.Stop()

	client := testpb.NewTestServiceClient(exampleConn(server, limit.DialOptions()...))
	_, err := client.EmptyCall(context.Background(), &testpb.Empty{})
	fmt.Println(status.Code(err))
	// Output: OK
}

// Behind proxies that write X-Forwarded-For.
func ExampleByPeer() {
	byPeer, err := grpclimit.ByPeer(httplimit.IPConfig{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Header:         "X-Forwarded-For",
	})
	fmt.Println(byPeer != nil, err)
	// Output: true <nil>
}

// Calls over the limit wait in place of being denied: up to 20 of a client, 1,000 of all, and for 5 seconds at most.
func ExampleConfig_queue() {
	perClient := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10).WithBurst(1)}))
	limit := sluice.Must(grpclimit.New(grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "per-client", Limiter: perClient, Key: sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))}},
		Queue:    sluice.Must(httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 1000, MaxPerKey: 20, MaxWait: 5 * time.Second})),
	}))
	_ = grpc.NewServer(limit.ServerOptions()...)
}

// Five logins of a user may fail in an hour.
func ExampleConfig_settle() {
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	limit := sluice.Must(grpclimit.New(grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "failed-logins", Limiter: failures, Key: sluice.Must(grpclimit.ByMetadata("user"))}},
		Skip:     func(_ context.Context, call grpclimit.Call) bool { return call.FullMethod != "/shop.Accounts/Login" },
		Settle: func(_ context.Context, _ grpclimit.Call, code codes.Code) int {
			if code == codes.Unauthenticated {
				return 1
			}
			return 0
		},
	}))
	_ = grpc.NewServer(limit.ServerOptions()...)
}
