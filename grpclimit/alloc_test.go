//go:build !race

// The race detector allocates where the program does not.

package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

func TestUnary_AllocationsOfAnAdmittedCall(t *testing.T) {
	info := &grpc.UnaryServerInfo{FullMethod: testpb.TestService_EmptyCall_FullMethodName}
	for n := 1; n <= 8; n++ {
		c := many(t, n, grpclimit.ByMethod())
		c.OnDecision = func(_ context.Context, call grpclimit.Call, d grpclimit.Decision) { _ = d.Remaining }
		c.OnKeyError = grpclimit.KeyErrorSkip
		j := newJudge(t, c)
		served := 0
		handler := func(context.Context, any) (any, error) { served++; return nil, nil }
		var req any = &testpb.Empty{}
		allocs := testing.AllocsPerRun(100, func() { _, _ = j.Unary(context.Background(), req, info, handler) })
		assert.Equal(t, 101, served)
		assert.Zero(t, allocs, "%d policies", n)
	}
}

// Each key function by itself, of metadata as a client sends it. (A peer takes some in one call of 16.)
func TestKeys_Allocations(t *testing.T) {
	direct := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))
	from := func(address string, pairs ...string) context.Context {
		at, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(append(pairs, "user-agent", "x", "content-type", "application/grpc")...))
		return peer.NewContext(ctx, &peer.Peer{Addr: at, LocalAddr: at})
	}
	for name, tt := range map[string]struct {
		key  grpclimit.KeyFunc
		ctx  context.Context
		want float64
	}{
		"a method":              {grpclimit.ByMethod(), context.Background(), 0},
		"a peer":                {direct, from("192.0.2.1:1"), 0},
		"a client of a proxy":   {sluice.Must(grpclimit.ByPeer(trusted)), from("10.0.0.1:1", "x-forwarded-for", "192.0.2.1"), 2},
		"metadata":              {sluice.Must(grpclimit.ByMetadata("x-api-key")), from("192.0.2.1:1", "x-api-key", "ann"), 1},
		"a peer and its method": {sluice.Must(grpclimit.Join(direct, grpclimit.ByMethod())), from("192.0.2.1:1"), 1},
	} {
		call := grpclimit.Call{FullMethod: testpb.TestService_EmptyCall_FullMethodName}
		allocs := testing.AllocsPerRun(1000, func() {
			if _, err := tt.key(tt.ctx, call); err != nil {
				panic(err)
			}
		})
		assert.Equal(t, tt.want, allocs, name)
	}
}

// still is a stream whose messages come and go at once.
type still struct{ calm }

func (still) RecvMsg(any) error { return nil }
func (still) SendMsg(any) error { return nil }

func TestStream_AllocationsOfAdmittedMessages(t *testing.T) {
	c := many(t, 8, grpclimit.ByMethod())
	j := newJudge(t, c)
	info := &grpc.StreamServerInfo{FullMethod: testpb.TestService_FullDuplexCall_FullMethodName}
	handler := func(any, grpc.ServerStream) error { return nil }
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = j.Stream(nil, still{}, info, handler) }), "policies per call")

	for i := range c.Policies {
		c.Policies[i].Per = grpclimit.PerReceived + grpclimit.Per(i%2)
	}
	j = newJudge(t, c)
	assert.EqualValues(t, 1, testing.AllocsPerRun(100, func() { _ = j.Stream(nil, still{}, info, handler) }), "the limited stream")
	var m any = &testpb.Empty{}
	_ = j.Stream(nil, still{}, info, func(_ any, ss grpc.ServerStream) error {
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			assert.NoError(t, ss.RecvMsg(m))
			assert.NoError(t, ss.SendMsg(m))
		}))
		return nil
	})
}

// With Settle a call takes the reservations and the array for them, and nothing else.
func TestUnary_AllocationsWithSettle(t *testing.T) {
	info := &grpc.UnaryServerInfo{FullMethod: testpb.TestService_EmptyCall_FullMethodName}
	c := many(t, 2, grpclimit.ByMethod())
	c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { return 0 }
	j := newJudge(t, c)
	handler := func(context.Context, any) (any, error) { return nil, nil }
	var req any = &testpb.Empty{}
	reservations := testing.AllocsPerRun(100, func() {
		var all [2]*sluice.Reservation
		var each [2]sluice.Decision
		sluice.TakeAllReservations(all[:], each[:], sluice.Charge{Key: c.Policies[0].Limiter.Key("k"), Cost: 1}, sluice.Charge{Key: c.Policies[1].Limiter.Key("k"), Cost: 1})
		for _, r := range all {
			r.Settle(0)
		}
	})
	allocs := testing.AllocsPerRun(100, func() { _, _ = j.Unary(context.Background(), req, info, handler) })
	assert.Equal(t, reservations, allocs)
}
