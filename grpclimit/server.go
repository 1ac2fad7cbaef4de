package grpclimit

import (
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// SkipHealthAndReflection is the Skip of a Config without one: it returns true for the methods of
// grpc.health.v1.Health, and of grpc.reflection.v1 and v1alpha.ServerReflection.
func SkipHealthAndReflection(_ context.Context, call Call) bool {
	if !strings.HasPrefix(call.FullMethod, "/grpc.") {
		return false
	}
	service, _, ok := strings.Cut(call.FullMethod[1:], "/")
	if !ok {
		return false
	}
	switch service {
	case "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return true
	}
	return false
}

// ServerOptions returns the options that put the policies in front of all methods of a server,
// unary and streams. They chain the interceptors behind the interceptors of the options before them. Put them
// first: an interceptor in front works for denied calls, too, and if
// it sends or sets headers a denial has trailers besides, which clients take for a call that may
// have been processed.
func (j *Judge) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(j.Unary), grpc.ChainStreamInterceptor(j.Stream)}
}

// Unary is a grpc.UnaryServerInterceptor. Without Stream beside it, streams are not limited.
func (j *Judge) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := Call{FullMethod: info.FullMethod, Message: req}
	if j.config.Skip(ctx, call) {
		return handler(ctx, req)
	}
	d, rest := j.judge(ctx, call)
	if !d.Allowed {
		return nil, j.deny(ctx, d)
	}
	tellWait(ctx, &d)
	if rest != nil {
		return j.handleAndSettle(ctx, rest, handler)
	}
	return handler(ctx, req)
}

// handleAndSettle calls the handler of a call that is settled, also if the handler panics. It does not
// recover, so that the panic goes on as it is.
func (j *Judge) handleAndSettle(ctx context.Context, m *judgement, handler grpc.UnaryHandler) (resp any, err error) {
	code := codes.Internal
	defer func() { j.conclude(m, code) }()
	resp, err = handler(ctx, m.request.call.Message)
	code = codeOf(err)
	return resp, err
}

// deny sets the trailer of a call that is denied before its handler is called, and returns its
// error.
func (j *Judge) deny(ctx context.Context, d Decision) error {
	e := j.newDenied(d, false)
	_ = grpc.SetTrailer(ctx, e.Trailer()) // which the context of a call by other means than a server has no place for
	return e
}

// codeOf returns the code that a server of grpc-go makes of the error of a handler.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}

// Stream is a grpc.StreamServerInterceptor. Without Unary beside it, unary calls are not limited.
//
// A message that is denied ends the stream: the handler's RecvMsg or SendMsg returns a
// *DeniedError, as does every later one, and whatever the handler returns then, that is what the
// client sees. Such a client is told not to send the call again by itself.
func (j *Judge) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, call := ss.Context(), Call{FullMethod: info.FullMethod, Stream: true}
	if j.config.Skip(ctx, call) {
		return handler(srv, ss)
	}
	d, rest := j.judge(ctx, call)
	if !d.Allowed {
		return j.deny(ctx, d)
	}
	tellWait(ctx, &d)
	code := codes.Internal
	defer func() { j.conclude(rest, code) }()
	err := j.serve(srv, ss, call, handler)
	code = codeOf(err)
	return err
}

// serve calls the handler of a stream, with a stream whose messages are judged if some policy
// does that.
func (j *Judge) serve(srv any, ss grpc.ServerStream, call Call, handler grpc.StreamHandler) error {
	if len(j.received.list) == 0 && len(j.sent.list) == 0 {
		return handler(srv, ss)
	}
	limited := &limitedStream{ServerStream: ss, judge: j, call: call}
	err := handler(srv, limited)
	if e := limited.denied.Load(); e != nil {
		ss.SetTrailer(e.Trailer())
		return e
	}
	return err
}

// A limitedStream judges the messages of a stream.
type limitedStream struct {
	grpc.ServerStream
	judge  *Judge
	call   Call
	denied atomic.Pointer[DeniedError] // the first one
}

// RecvMsg implements grpc.ServerStream.
func (s *limitedStream) RecvMsg(m any) error {
	if e := s.denied.Load(); e != nil {
		return e
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.admit(PerReceived, m)
}

// SendMsg implements grpc.ServerStream.
func (s *limitedStream) SendMsg(m any) error {
	if err := s.admit(PerSent, m); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// admit returns nil if the message may pass.
func (s *limitedStream) admit(per Per, m any) error {
	if e := s.denied.Load(); e != nil {
		return e
	}
	call := s.call
	call.Per, call.Message = per, m
	d, _ := s.judge.judge(s.Context(), call)
	if d.Allowed {
		return nil
	}
	s.denied.CompareAndSwap(nil, s.judge.newDenied(d, true))
	return s.denied.Load()
}
