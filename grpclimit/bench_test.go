package grpclimit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

// perClientAndMethod is a Config with two policies of the usual kind, which admit all.
func perClientAndMethod(tb testing.TB) grpclimit.Config {
	tb.Helper()
	byPeer := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))
	return grpclimit.Config{Policies: []grpclimit.Policy{
		{Name: "per-client", Limiter: gcra(tb, sluice.Per(1<<30, time.Hour), nil), Key: byPeer},
		{Name: "per-method", Limiter: gcra(tb, sluice.Per(1<<30, time.Hour), nil), Key: sluice.Must(grpclimit.Join(byPeer, grpclimit.ByMethod()))},
	}}
}

// BenchmarkUnary_BesideABareCall makes calls over loopback, turn by turn to servers without
// interceptors, with a limit for each client, with one for each client and method beside it, and
// without again, by which to tell what of a ratio is noise. It reports the medians of the ratios in
// blocks of 100 turns.
func BenchmarkUnary_BesideABareCall(b *testing.B) {
	both, one := perClientAndMethod(b), perClientAndMethod(b)
	one.Policies = one.Policies[:1]
	var turns []func()
	for _, opts := range [][]grpc.ServerOption{nil, newJudge(b, one).ServerOptions(), newJudge(b, both).ServerOptions(), nil} {
		client := dial(b, serve(b, &service{}, opts...))
		turns = append(turns, func() {
			if _, err := client.EmptyCall(context.Background(), &testpb.Empty{}); err != nil {
				b.Fatal(err)
			}
		})
	}
	beside(b, turns, "bare", "one-policy", "two-policies", "bare-again")
}

// BenchmarkStream_BesideABareMessage is the same for a message there and back on an open stream, with a
// policy for each way.
func BenchmarkStream_BesideABareMessage(b *testing.B) {
	c := perClientAndMethod(b)
	c.Policies[0].Per, c.Policies[1].Per = grpclimit.PerReceived, grpclimit.PerSent
	var turns []func()
	for _, opts := range [][]grpc.ServerOption{nil, newJudge(b, c).ServerOptions(), nil} {
		stream, err := dial(b, serve(b, &service{}, opts...)).FullDuplexCall(context.Background())
		require.NoError(b, err)
		turns = append(turns, func() {
			err := stream.Send(&testpb.StreamingOutputCallRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	}
	beside(b, turns, "bare", "limited", "bare-again")
}

// beside takes the turns, and reports how long they take beside the first of them.
func beside(b *testing.B, turns []func(), names ...string) {
	const block = 100
	for range 1000 { // connections, buffers, the keys
		for _, turn := range turns {
			turn()
		}
	}
	took := make([][]time.Duration, len(turns))
	b.ResetTimer()
	for i := range b.N {
		for k := range turns {
			k = (k + i) % len(turns)
			at := time.Now()
			turns[k]()
			took[k] = append(took[k], time.Since(at))
		}
	}
	b.StopTimer()
	ratios := make([][]float64, len(turns))
	for from := 0; from < b.N; from += block {
		of := func(k int) float64 { return float64(median(slices.Clone(took[k][from:min(from+block, b.N)]))) }
		for k := range turns {
			ratios[k] = append(ratios[k], of(k)/of(0))
		}
	}
	b.ReportMetric(float64(median(took[0])), names[0]+"-ns")
	for k := 1; k < len(turns); k++ {
		b.ReportMetric(median(ratios[k]), names[k]+"/bare")
	}
}

func median[T time.Duration | float64](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// many is a Config with n policies, of all algorithms and one in shadow mode.
func many(tb testing.TB, n int, key grpclimit.KeyFunc) grpclimit.Config {
	tb.Helper()
	var c grpclimit.Config
	for i := range n {
		limit := sluice.Per(1<<16, time.Millisecond) // which no call reaches
		c.Policies = append(c.Policies, grpclimit.Policy{
			Name:    fmt.Sprint("policy ", i),
			Limiter: newLimiter(tb, sluice.Config{Limit: limit, Algorithm: sluice.Algorithm(i % 6), Shadow: i == 5}),
			Key:     key,
			Cost:    func(context.Context, grpclimit.Call) int { return 1 },
		})
	}
	return c
}

// BenchmarkInterceptor is the interceptor alone, without a server around it.
func BenchmarkInterceptor(b *testing.B) {
	info := &grpc.UnaryServerInfo{FullMethod: testpb.TestService_EmptyCall_FullMethodName}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	for n := 1; n <= 8; n *= 2 {
		b.Run(fmt.Sprintf("policies=%d", n), func(b *testing.B) {
			c := many(b, n, oneKey)
			j := newJudge(b, c)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = j.Unary(context.Background(), nil, info, handler)
			}
		})
	}
}
