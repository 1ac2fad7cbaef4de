package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

// surfaceConfig is a Setup for a server.
func surfaceConfig(s *surfaces.Setup) (c grpclimit.Config) {
	c.Queue, c.MaxRetryAfter, c.RetryJitter = s.Queue, s.MaxRetryAfter, s.RetryJitter
	for _, p := range s.Policies {
		policy := grpclimit.Policy{Name: p.Name, Limiter: p.Limiter, Shadow: p.FarShadow, CountsDenialsOf: p.CountsDenialsOf, Key: func(context.Context, grpclimit.Call) (string, error) { return p.Key() }}
		if s.Functions["OnMissingHeader"] {
			byPeer := sluice.Must(grpclimit.ByPeer(s.Proxied()))
			policy.Key = func(ctx context.Context, call grpclimit.Call) (string, error) {
				if _, err := byPeer(ctx, call); err != nil {
					return "", err
				}
				return p.Key()
			}
		}
		if p.Remote != nil {
			policy.Limiter, policy.Remote = nil, p.Remote
		}
		if p.Brings != (sluice.Limit{}) {
			policy.Limit = func(context.Context, grpclimit.Call) (sluice.Limit, error) { return p.Brings, nil }
		}
		if s.Functions["Limit"] {
			policy.Limit = func(context.Context, grpclimit.Call) (sluice.Limit, error) { return sluice.Limit{}, s.Called("Limit") }
		}
		if s.Functions["Cost"] {
			policy.Cost = func(context.Context, grpclimit.Call) int { return p.Cost() }
		}
		if p.Final != nil {
			policy.Settle = func(context.Context, grpclimit.Call, codes.Code) int { return *p.Final }
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
		c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { _ = s.Called("Settle"); return s.Final }
	}
	return c
}

// cannotOverGRPC are the rows that no server of gRPC runs.
func cannotOverGRPC(more map[string]string) map[string]string {
	cannot := map[string]string{
		"error that nobody answers":                    "gRPC answers every error",
		"client gone and an error that nobody answers": "gRPC answers every error",
		"hijacked":                    "no connection can be taken over",
		"streaming after the handler": "a call ends with its handler",
		"timeout":                     "nobody gives up on a handler",
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
func recovered(s *surfaces.Setup, call func() error) error {
	defer s.Handler.Left()
	return recovering(call)
}

// recovering returns a panic as an error.
func recovering(call func() error) (err error) {
	defer func() {
		if recover() != nil {
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
	var limited *grpclimit.LimitError
	if errors.As(err, &limited) {
		return surfaces.Outcome{Denied: true, RetryAfter: limited.RetryAfter}
	}
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
func emptyCall(client testpb.TestServiceClient) func(context.Context) surfaces.Outcome {
	return func(ctx context.Context) surfaces.Outcome {
		_, err := client.EmptyCall(ctx, &testpb.Empty{})
		return outcome(err)
	}
}

// aroundStreams stands around the limit of streams.
func aroundStreams(s *surfaces.Setup) grpc.ServerOption {
	return grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return recovered(s, func() error { return handler(srv, ss) })
	})
}

// streamService has streams that begin when they have received or sent what is asked for.
func streamService(s *surfaces.Setup, first func(duplexServer) error) *service {
	return &service{duplex: func(stream duplexServer) error {
		if err := first(stream); err != nil {
			return err
		}
		switch s.Handler.Begin() {
		case surfaces.Answered:
			return surfaces.ErrAnswered
		case surfaces.Panics:
			panic(surfaces.Panic)
		case surfaces.Streams:
			closing := s.Handler.Closing()
			if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
			<-closing
		}
		return nil
	}}
}

type duplexServer = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]

// openStream opens streams of a server, sends a message and reads the stream to its end.
func openStream(s *surfaces.Setup, client testpb.TestServiceClient) func(context.Context) surfaces.Outcome {
	return func(ctx context.Context) surfaces.Outcome {
		stream, err := client.FullDuplexCall(ctx)
		if err != nil {
			return outcome(err)
		}
		_ = stream.Send(&testpb.StreamingOutputCallRequest{}) // of a stream that was denied, RecvMsg says so
		for {
			switch _, err := stream.Recv(); {
			case err == io.EOF:
				return surfaces.Outcome{}
			case err != nil:
				return outcome(err)
			}
			s.Handler.Seen()
		}
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
			return surfaces.Door{Call: emptyCall(dial(t, address))}, nil
		},
		Cannot: cannotOverGRPC(map[string]string{"streaming in the handler": "a unary call has one answer"}),
	}.Test(t)
}

// surfaceOfStreams counts streams, or their messages in one direction.
func surfaceOfStreams(per grpclimit.Per, first func(duplexServer) error, more map[string]string) surfaces.Surface {
	return surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			c := surfaceConfig(s)
			for i := range c.Policies {
				c.Policies[i].Per = per
			}
			judge, err := grpclimit.New(c)
			if err != nil {
				return surfaces.Door{}, err
			}
			address := serve(t, streamService(s, first), append([]grpc.ServerOption{aroundStreams(s)}, judge.ServerOptions()...)...)
			return surfaces.Door{Call: openStream(s, dial(t, address))}, nil
		},
		Cannot: cannotOverGRPC(more),
	}
}

// ofMessages are the rows that streams do not run whose messages are counted.
var ofMessages = map[string]string{
	"panics in Settle": "charges of messages are final",
	"settled: ":        "charges of messages are final",
}

func TestSurface_Streams(t *testing.T) {
	surfaceOfStreams(grpclimit.PerCall, func(duplexServer) error { return nil }, nil).Test(t)
}

func TestSurface_MessagesReceived(t *testing.T) {
	s := surfaceOfStreams(grpclimit.PerReceived, func(stream duplexServer) error { _, err := stream.Recv(); return err }, ofMessages)
	s.Refuses = "want PerCall"
	s.Test(t)
}

func TestSurface_MessagesSent(t *testing.T) {
	s := surfaceOfStreams(grpclimit.PerSent, func(stream duplexServer) error { return stream.Send(&testpb.StreamingOutputCallResponse{}) }, ofMessages)
	s.Cannot["streaming in the handler"] = "each message takes a unit of its own"
	s.Refuses = "want PerCall"
	s.Test(t)
}

func TestSurface_Limiter(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limiter, err := grpclimit.NewLimiter(surfaceConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			ask := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if err := limiter.Limit(ctx); err != nil {
					return nil, err
				}
				return handler(ctx, req)
			})
			svc := &service{empty: func(context.Context) error { return endCall(s) }}
			return surfaces.Door{Call: emptyCall(dial(t, serve(t, svc, aroundUnary(s), ask)))}, nil
		},
		Cannot: cannotOverGRPC(map[string]string{
			"streaming in the handler": "a unary call has one answer",
			"panics in Settle":         "a Limiter does not hear how calls end",
			"settled: ":                "a Limiter does not hear how calls end",
		}),
		Refuses: "the interceptors of New",
	}.Test(t)
}

// openClient makes calls of a server without a limit by a Client.
func openClient(t *testing.T, s *surfaces.Setup, svc *service) (client testpb.TestServiceClient, err error) {
	p := s.Policies[0]
	limit, err := grpclimit.NewClient(grpclimit.ClientConfig{
		Limiter:  p.Limiter,
		Key:      func(context.Context, grpclimit.Call) (string, error) { return p.Key() },
		Cost:     func(context.Context, grpclimit.Call) int { return p.Cost() },
		FailFast: true, // the limiters' clock does not run with real time
	})
	if err != nil {
		return nil, err
	}
	around := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return recovered(s, func() error { return invoker(ctx, method, req, reply, cc, opts...) })
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (cs grpc.ClientStream, err error) {
			err = recovered(s, func() (err error) { cs, err = streamer(ctx, desc, cc, method, opts...); return err })
			return cs, err
		}),
	}
	address := serve(t, svc, // which does not recover from panics by itself
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			err = recovering(func() (err error) { resp, err = handler(ctx, req); return err })
			return resp, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return recovering(func() error { return handler(srv, ss) })
		}))
	return dial(t, address, append(around, limit.DialOptions()...)...), nil
}

// cannotByClient are the rows that no Client runs.
func cannotByClient(more map[string]string) map[string]string {
	cannot := cannotOverGRPC(map[string]string{
		"settled: ":                   "there is no Settle",
		"panics in Settle":            "there is none",
		"panics in Skip":              "there is none",
		"panics in OnDecision":        "there is none",
		"panics in Limit":             "there is none",
		"remote":                      "a Client waits for Limiters of its own",
		"queue":                       "a Client waits by itself: see MaxWait",
		"hint of a denial":            "a Client knows when it may call",
		"panics in OnMissingHeader":   "a Client is nobody's server",
		"limit that calls bring":      "a Client knows its limit",
		"denials of another policy":   "a Client has one limit",
		"denied by the second policy": "a Client has one limit",
		"shadow whose Key fails":      "a call without a key is not sent",
	})
	for name, why := range more {
		cannot[name] = why
	}
	return cannot
}

func TestSurface_ClientUnary(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			client, err := openClient(t, s, &service{empty: func(context.Context) error { return endCall(s) }})
			return surfaces.Door{Call: emptyCall(client)}, err
		},
		Cannot: cannotByClient(map[string]string{"streaming in the handler": "a unary call has one answer"}),
		One:    true,
	}.Test(t)
}

func TestSurface_ClientStreams(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			client, err := openClient(t, s, streamService(s, func(duplexServer) error { return nil }))
			return surfaces.Door{Call: openStream(s, client)}, err
		},
		Cannot: cannotByClient(nil),
		One:    true,
	}.Test(t)
}
