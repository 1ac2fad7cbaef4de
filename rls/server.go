package rls

import (
	"context"
	"errors"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// NewServer returns a server of gRPC on which the service answers. Its calls take less time than those
// of a server that the service has been registered on: their messages are read and written directly.
// Descriptors beyond the bounds of Options are counted before any is decoded, and large requests wait for each other: an answer is
// UNAVAILABLE where too many do. Others can be registered on it.
func (s *Service) NewServer(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}))...)
	server.RegisterService(&direct, s)
	s.registerHolds(server, true)
	return server
}

// generated is the handler that package pb has for ShouldRateLimit.
var generated = pb.RateLimitService_ServiceDesc.Methods[0].Handler

// direct is the service, with a handler of its own.
var direct = grpc.ServiceDesc{
	ServiceName: pb.RateLimitService_ServiceDesc.ServiceName,
	HandlerType: pb.RateLimitService_ServiceDesc.HandlerType,
	Methods:     []grpc.MethodDesc{{MethodName: pb.RateLimitService_ServiceDesc.Methods[0].MethodName, Handler: handle}},
	Metadata:    pb.RateLimitService_ServiceDesc.Metadata,
}

// handle is the handler of direct. Interceptors, and dynamic metadata, want the messages of package pb.
func handle(service any, ctx context.Context, read func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	s := service.(*Service)
	if s.options.Took != nil {
		defer s.took(time.Now())
	}
	var m message
	if err := s.readInTime(ctx, read, &m); err != nil {
		return nil, err
	}
	entered, err := s.enter(len(m.text))
	if err != nil {
		return nil, err
	}
	defer s.leave(entered)
	if interceptor != nil || s.options.DynamicMetadata {
		return generated(service, ctx, func(in any) error { return s.unpack(m.text, in.(proto.Message)) }, interceptor)
	}
	return s.answerWire(m.text)
}

// took tells Options.Took of a call that has begun at begin.
func (s *Service) took(begin time.Time) { s.options.Took(time.Since(begin)) }

// readInTime reads the message of a call, and ends the call if it does not come. A context with a deadline
// would do that too, and takes ten times as long.
func (s *Service) readInTime(ctx context.Context, read func(any) error, m any) error {
	if s.options.MessageTime < 0 {
		return read(m)
	}
	timer := time.AfterFunc(s.options.MessageTime, func() { endLate(ctx) })
	defer timer.Stop()
	return read(m)
}

// endLate ends a call, and so the wait for its message.
func endLate(ctx context.Context) {
	if stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error }); ok {
		_ = stream.WriteStatus(status.New(codes.DeadlineExceeded, "the message has not come in time"))
	}
}

// answerWire answers a request in the form of the wire, by a message in that form.
func (s *Service) answerWire(text string) (out *message, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, s.panicked(v)
		}
	}()
	w := s.scratch.Get().(*scratch)
	err = s.readWire(w, text)
	if errors.Is(err, errWire) || errors.Is(err, errUTF8) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := s.decide(w, err); err != nil {
		return nil, err
	}
	w.out = s.appendWire(w.out[:0], &w.resp)
	out = &message{data: append([]byte(nil), w.out...)}
	w.forget()
	s.scratch.Put(w)
	return out, nil
}

// message is one as it is on the wire: text of a request, data of an answer.
type message struct {
	text string
	data []byte
}

// codec reads and writes the messages of ShouldRateLimit, and leaves all other messages to the codec of package proto.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*message); ok {
		return mem.BufferSlice{mem.SliceBuffer(m.data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	var b strings.Builder
	b.Grow(data.Len())
	for _, part := range data {
		b.Write(part.ReadOnlyData())
	}
	m.text = b.String()
	return nil
}
