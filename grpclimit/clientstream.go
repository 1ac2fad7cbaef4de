package grpclimit

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-go/sluice/internal/inflight"
)

// A clientStream heeds the status at its end, and gives back the units in flight then. Its methods can be called
// concurrently as the methods of a grpc.ClientStream.
type clientStream struct {
	grpc.ClientStream
	client *Client
	hold   holdKey
	one    bool            // the server sends one message, and no stream
	held   *inflight.Lease // nil if nothing is to be given back

	mu     sync.Mutex
	ended  bool
	forget func() bool // the context
}

// endWith has the stream end with a context, too.
func (s *clientStream) endWith(ctx context.Context) {
	s.mu.Lock() // in case the context has ended
	defer s.mu.Unlock()
	if s.held != nil && !s.ended {
		s.forget = context.AfterFunc(ctx, s.over)
	}
}

// over gives back.
func (s *clientStream) over() {
	if s.held == nil {
		return
	}
	s.held.End()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.forget != nil {
		s.forget()
	}
}

// finished returns the function for grpc.OnFinish. An interceptor further in may finish streams of gRPC and open others for this
// stream; but not if the connection has been closed.
func (s *clientStream) finished(cc *grpc.ClientConn) func(error) {
	return func(error) {
		if cc.GetState() == connectivity.Shutdown {
			s.over()
		}
	}
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && err != io.EOF {
		s.client.heed(s.hold, err, s.Trailer())
	}
	if err != nil || s.one {
		s.over()
	}
	return err
}

// SendMsg implements grpc.ClientStream.
func (s *clientStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err != nil && err != io.EOF {
		s.over()
	}
	return err
}

// Header implements grpc.ClientStream.
func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		s.over()
	}
	return md, err
}
