package rls

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/rules"
)

// TestNewServer_LateMessage: a call whose message does not come ends, by each way to the engine, and others on
// the connection do not. Time is the bubble's.
func TestNewServer_LateMessage(t *testing.T) {
	const method = pb.RateLimitService_ShouldRateLimit_FullMethodName
	for name, c := range map[string]struct {
		options Options
		method  string
		want    time.Duration
	}{
		"default":  {Options{}, method, 10 * time.Second},
		"a minute": {Options{MessageTime: time.Minute}, method, time.Minute},
		"metadata": {Options{DynamicMetadata: true}, method, 10 * time.Second},
		"no bound": {Options{MessageTime: -1}, method, 100 * time.Hour},
		"hold":     {Options{}, "/" + holdService + "/Reserve", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, rules.Config{}, c.options)
			synctest.Test(t, func(t *testing.T) {
				conn := dial(t, w.Service, NewHealth())
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour) // which the server knows of, too
				defer cancel()
				begin := time.Now()
				stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, c.method)
				require.NoError(t, err)
				_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request(one("ten", "a")))
				require.NoError(t, err)
				err = stream.RecvMsg(new(pb.RateLimitResponse))
				require.Equal(t, codes.DeadlineExceeded, status.Code(err), err)
				require.Equal(t, c.want, time.Since(begin))
				_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(one("ten", "a")))
				require.NoError(t, err, "the connection goes on")
			})
		})
	}
}
