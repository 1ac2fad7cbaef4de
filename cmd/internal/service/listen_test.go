package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestMessageBytes: no request that the flags admit is refused by its length on the wire.
func TestMessageBytes(t *testing.T) {
	for _, flags := range [][3]int{{64 << 10, 256, 64}, {40, 2, 2}, {2, 1, 1}, {1000, 1000, 1}, {1000, 1, 1000}, {600 << 10, 500, 4}} {
		text, descriptors, entries := flags[0], flags[1], flags[2]
		s, _ := still(t, someRules, "--max-message", fmt.Sprint(text), "--max-descriptors", fmt.Sprint(descriptors), "--max-entries", fmt.Sprint(entries))
		for _, long := range []int{0, 1, 2, 4, 128, 1000, 8 << 10} { // bytes of a value, as long as there is text
			req := &pb.RateLimitRequest{Domain: "d", HitsAddend: math.MaxUint32}
			left := text - len(req.Domain)
			for range descriptors {
				d := &common.RateLimitDescriptor{
					Limit:      &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: math.MaxInt32, Unit: envoytype.RateLimitUnit_YEAR},
					HitsAddend: wrapperspb.UInt64(math.MaxUint64), IsNegativeHits: true,
				}
				for range entries {
					n := min(long, left)
					d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: strings.Repeat("k", n/2), Value: strings.Repeat("v", n-n/2)})
					left -= n
				}
				req.Descriptors = append(req.Descriptors, d)
			}
			_, err := s.service.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			require.LessOrEqual(t, proto.Size(req), s.service.MessageBytes(), "%v of %d", flags, long)
			body, err := protojson.MarshalOptions{}.Marshal(req)
			require.NoError(t, err)
			body = bytes.ReplaceAll(body, []byte(" "), nil) // which package protojson adds at random
			answer := httptest.NewRecorder()
			s.service.JSON().ServeHTTP(answer, httptest.NewRequest("POST", "/json", bytes.NewReader(body)))
			require.Equal(t, 200, answer.Code, "%v of %d in JSON, %d bytes", flags, long, len(body))
		}
	}
}

// TestListen_UnreadAnswers: clients that do not read their answers keep no other from theirs, at once and later. Profiles
// may take longer than other answers. Time is the bubble's.
func TestListen_UnreadAnswers(t *testing.T) {
	s, _ := still(t, someRules)
	synctest.Test(t, func(t *testing.T) {
		listeners := map[string]net.Listener{"metrics": bufconn.Listen(1), "debug": bufconn.Listen(1 << 16)}
		s.serve(listeners)
		defer s.close()
		send := func(port, path string) net.Conn {
			conn, err := listeners[port].(*bufconn.Listener).Dial()
			require.NoError(t, err)
			_, err = fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
			require.NoError(t, err)
			synctest.Wait()
			return conn
		}
		status := func(port, path string) string {
			conn := send(port, path)
			defer conn.Close()
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			line, _, _ := strings.Cut(string(answer), "\r\n")
			return line
		}
		for range 10 {
			defer send("metrics", "/metrics").Close()
		}
		assert.Equal(t, "HTTP/1.0 200 OK", status("metrics", "/metrics"))
		time.Sleep(writeTime)
		synctest.Wait()
		assert.Equal(t, "HTTP/1.0 200 OK", status("metrics", "/metrics"))
		assert.Equal(t, "HTTP/1.0 200 OK", status("debug", "/debug/pprof/heap?seconds=300"))
	})
}

// dialPipe lets a service serve gRPC on a pipe, and connects to it.
func dialPipe(t *testing.T, s *server) *grpc.ClientConn {
	t.Helper()
	require.NoError(t, s.newGRPC())
	l := bufconn.Listen(1 << 16)
	go func() { _ = s.grpc.Serve(l) }()
	t.Cleanup(s.grpc.Stop)
	return dialOver(t, l)
}

// dialOver connects to a service that serves on l.
func dialOver(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestListen_StreamsEnd: streams that clients keep open do not hold the end up. Time is the bubble's.
func TestListen_StreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := still(t, someRules)
		conn := dialPipe(t, s)
		watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		begin := time.Now()
		s.stop()
		assert.Less(t, time.Since(begin), stopLimit)
		_, err = watch.Recv()
		assert.Equal(t, codes.Unavailable, status.Code(err), err)
		assert.ErrorContains(t, err, "the service ends")
	})
}

// TestListen_LateMessages: a call whose message does not come ends, whatever its own deadline is; so does a
// stream, but not one whose message has come. Time is the bubble's.
func TestListen_LateMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := still(t, someRules, "--reflection")
		s.health.Set(true)
		conn := dialPipe(t, s)
		watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		for _, c := range []struct {
			method         string
			deadline, want time.Duration
		}{
			{pb.RateLimitService_ShouldRateLimit_FullMethodName, 100 * time.Hour, messageTime},
			{pb.RateLimitService_ShouldRateLimit_FullMethodName, time.Second, time.Second},
			{healthpb.Health_Check_FullMethodName, 100 * time.Hour, messageTime},
			{healthpb.Health_Watch_FullMethodName, 100 * time.Hour, messageTime},
			{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", 100 * time.Hour, messageTime},
		} {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method)
			require.NoError(t, err)
			err = stream.RecvMsg(new(healthpb.HealthCheckResponse))
			cancel()
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "%s: %v", c.method, err)
			assert.Equal(t, c.want, time.Since(begin), c.method)
		}
		assert.Equal(t, 1, remaining(t, conn, "two"), "the connection goes on")

		resp, err := watch.Recv()
		require.NoError(t, err)
		assert.Equal(t, healthpb.HealthCheckResponse_SERVING, resp.Status)
		s.health.Set(false)
		resp, err = watch.Recv()
		require.NoError(t, err, "a stream lives")
		assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, resp.Status)
	})
}
