package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/internal/surfaces"
)

// surfaceConfig is a Setup for a server.
func surfaceConfig(s *surfaces.Setup) (c grpclimit.Config) {
	for _, p := range s.Policies {
		policy := grpclimit.Policy{Name: p.Name, Limiter: p.Limiter, Key: func(context.Context, grpclimit.Call) (string, error) { return p.Key() }}
		if s.Functions["Cost"] {
			policy.Cost = func(context.Context, grpclimit.Call) int { return p.Cost() }
		}
		c.Policies = append(c.Policies, policy)
	}
	if s.Functions["Skip"] {
		c.Skip = func(context.Context, grpclimit.Call) bool { return s.Called("Skip") != nil }
	}
	if s.Functions["OnDecision"] {
		c.OnDecision = func(context.Context, grpclimit.Call, grpclimit.Decision) { _ = s.Called("OnDecision") }
	}
	if s.Functions["Settle"] {
		c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { _ = s.Called("Settle"); return -1 }
	}
	return c
}

// cannotOverGRPC are the rows that no server of gRPC runs.
func cannotOverGRPC(more map[string]string) map[string]string {
	cannot := map[string]string{
		"error that nobody answers":                     "gRPC answers every error",
		"client gone, and an error that nobody answers": "gRPC answers every error",
		"hijacked":                    "no connection can be taken over",
		"streaming after the handler": "a call ends with its handler",
		"timeout":                     "nobody gives up on a handler",
		"panics in Limit":             "there is none",
		"panics in Charges":           "a Transport has them",
		"panics in Client":            "httprules has it",
		"panics in PartitionKey":      "there is none",
		"panics in OnDenied":          "there is none",
	}
	for name, why := range more {
		cannot[name] = why
	}
	return cannot
}

// recovered recovers from panics around a limit.
func recovered(s *surfaces.Setup, call func() error) (err error) {
	defer s.Handler.Left()
	defer func() {
		if v := recover(); v != nil {
			err = status.Error(codes.Internal, "a panic")
		}
	}()
	return call()
}

// aroundUnary stands around the limit of unary calls.
func aroundUnary(s *surfaces.Setup) grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		err = recovered(s, func() (err error) { resp, err = handler(ctx, req); return err })
		return resp, err
	})
}

// endCall ends a call as it is told.
func endCall(s *surfaces.Setup) error {
	switch s.Handler.Begin() {
	case surfaces.Answered:
		return surfaces.ErrAnswered
	case surfaces.Panics:
		panic(surfaces.Panic)
	}
	return nil
}

// outcome is what a client sees of an error.
func outcome(err error) (o surfaces.Outcome) {
	st := status.Convert(err)
	if o.Denied = st.Code() == codes.ResourceExhausted; !o.Denied {
		o.Err = err
		return o
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			o.RetryAfter = info.GetRetryDelay().AsDuration()
		}
	}
	return o
}

// emptyCall makes unary calls of a server.
func emptyCall(t *testing.T, address string) func(context.Context) surfaces.Outcome {
	client := dial(t, address)
	return func(ctx context.Context) surfaces.Outcome {
		_, err := client.EmptyCall(ctx, &testpb.Empty{})
		return outcome(err)
	}
}

func TestSurface_Unary(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			judge, err := grpclimit.New(surfaceConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			svc := &service{empty: func(context.Context) error { return endCall(s) }}
			address := serve(t, svc, append([]grpc.ServerOption{aroundUnary(s)}, judge.ServerOptions()...)...)
			return surfaces.Door{Call: emptyCall(t, address)}, nil
		},
		Cannot: cannotOverGRPC(map[string]string{"streaming in the handler": "a unary call has one answer"}),
	}.Test(t)
}
