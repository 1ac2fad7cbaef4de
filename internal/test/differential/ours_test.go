//go:build !386

package differential

import (
	"context"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rls"
	"github.com/sluice-go/sluice/rules"
)

// start is an arbitrary time in 2026, not aligned to anything.
var start = time.Unix(1_790_000_123, 456_789_012)

// ours is the service of this tree, on the clock of a test.
type ours struct {
	engine  *rules.Engine
	service *rls.Service
}

func newOurs(t testing.TB, clock sluice.Clock, m modes, set *rules.Set) *ours {
	if m.near == 0 {
		m.near = -1
	}
	engine, err := rules.New(set, rules.Config{
		Clock: clock, NearRatio: m.near, Shadow: m.shadow, Quota: m.quota, StopWhenOver: m.stop, MaxKeys: 1 << 16,
	})
	require.NoError(t, err)
	return &ours{engine, rls.New(engine, rls.Options{Headers: true, DynamicMetadata: true})}
}

func (o *ours) ask(req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return o.service.ShouldRateLimit(context.Background(), req)
}

// byPath is all lines of the statistics.
func (o *ours) byPath() map[string]hits {
	out := map[string]hits{}
	for _, s := range o.engine.Series() {
		path := s.Path
		if path == "override" || path == "other" {
			path = s.Domain + " " + path
		}
		out[path] = hits{s.Total, s.Within, s.Near, s.Over, s.Shadow}
	}
	return out
}
