package rls

import (
	"context"
	"net"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// start is 23 s after a full minute.
var start = time.Unix(1_790_000_123, 456_789_012)

const someRules = `
domain: d
descriptors:
- {key: two, rate_limit: {unit: minute, requests_per_unit: 2, name: pair}}
- {key: ten, rate_limit: {unit: hour, requests_per_unit: 10}, metadata: {tier: {a: 1, b: x}, from: ten}}
- {key: five, rate_limit: {unit: week, requests_per_unit: 5}, metadata: {tier: {b: y, c: [2]}, from: five}}
- {key: free, rate_limit: {unlimited: true}, metadata: {from: free}}
- {key: odd, rate_limit: {period: 90s, requests_per_unit: 3}}
`

// world is a service on a clock that stands still.
type world struct {
	clock *sluice.ManualClock
	*Service
}

func newWorld(tb testing.TB, c rules.Config, o Options) *world {
	tb.Helper()
	set, err := rules.Load([]rules.File{{Name: "f", Data: []byte(someRules)}}, rules.Options{})
	require.NoError(tb, err)
	clock := sluice.NewManualClock(start)
	c.Clock = clock
	engine, err := rules.New(set, c)
	require.NoError(tb, err)
	return &world{clock, New(engine, o)}
}

// dial serves, and returns a connection.
func dial(tb testing.TB, s *Service, h *Health) *grpc.ClientConn {
	tb.Helper()
	server := s.NewServer()
	healthpb.RegisterHealthServer(server, h.Server())
	return connect(tb, server)
}

// connect lets a server serve on a pipe, and returns a connection to it.
func connect(tb testing.TB, server *grpc.Server) *grpc.ClientConn {
	tb.Helper()
	listener := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(listener) }()
	tb.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// one is a descriptor of key=value pairs.
func one(pairs ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func hits(d *common.RateLimitDescriptor, n uint64) *common.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func override(d *common.RateLimitDescriptor, n uint32, u typev3.RateLimitUnit) *common.RateLimitDescriptor {
	d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: u}
	return d
}

func request(ds ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "d", Descriptors: ds}
}

func (w *world) ask(tb testing.TB, ds ...*common.RateLimitDescriptor) *pb.RateLimitResponse {
	tb.Helper()
	resp, err := w.ShouldRateLimit(tb.Context(), request(ds...))
	require.NoError(tb, err)
	return resp
}
