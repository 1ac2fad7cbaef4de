package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-go/sluice/grpclimit"
)

// limits is a connect.Interceptor that puts the policies of a Judge in front of handlers. It counts
// unary calls and the openings of streams.
type limits struct{ judge *grpclimit.Judge }

// WrapUnary implements connect.Interceptor.
func (l limits) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		if req.Spec().IsClient {
			return next(ctx, req)
		}
		call := grpclimit.Call{FullMethod: req.Spec().Procedure, Message: req.Any()}
		err = l.serve(ctx, call, req.Peer(), req.Header(), func() error {
			resp, err = next(ctx, req)
			return err
		})
		return resp, err
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (l limits) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		call := grpclimit.Call{FullMethod: conn.Spec().Procedure, Stream: true}
		return l.serve(ctx, call, conn.Peer(), conn.RequestHeader(), func() error { return next(ctx, conn) })
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (limits) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// serve calls a handler if the call is admitted, and settles its cost.
func (l limits) serve(ctx context.Context, call grpclimit.Call, p connect.Peer, h http.Header, handle func() error) error {
	v := l.judge.Decide(asGRPC(ctx, p, h), call)
	if err := v.Err(); err != nil {
		return refuse(err)
	}
	code := codes.Internal // of a handler that panics
	defer func() { v.Settle(code) }()
	err := handle()
	code = codes.OK
	if err != nil {
		code = codes.Code(connect.CodeOf(err))
	}
	return err
}

// freeIfInvalid is a Settle by which calls that are refused for their message cost nothing.
func freeIfInvalid(_ context.Context, _ grpclimit.Call, code codes.Code) int {
	if code == codes.InvalidArgument {
		return 0
	}
	return -1
}

// asGRPC returns a context in which the key functions of grpclimit find peer and metadata.
func asGRPC(ctx context.Context, p connect.Peer, h http.Header) context.Context {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		name = strings.ToLower(name)
		for _, value := range values {
			if strings.HasSuffix(name, "-bin") {
				if raw, err := connect.DecodeBinaryHeader(value); err == nil {
					value = string(raw)
				}
			}
			md.Append(name, value)
		}
	}
	ctx = metadata.NewIncomingContext(ctx, md)
	if at, err := netip.ParseAddrPort(p.Addr); err == nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(at)})
	}
	return ctx
}

// refuse makes a connect.Error of a denial, with its details and its trailer. Clients of gRPC do not
// retry it by themselves: for that they want trailers without headers, which net/http cannot send. A
// grpclimit.Client reads the pushback all the same.
func refuse(err error) error {
	var denied *grpclimit.DeniedError
	if !errors.As(err, &denied) {
		return err
	}
	s := denied.GRPCStatus()
	e := connect.NewError(connect.Code(s.Code()), errors.New(s.Message()))
	for _, packed := range s.Proto().GetDetails() {
		if detail, err := connect.NewErrorDetail(packed); err == nil {
			e.AddDetail(detail)
		}
	}
	for name, values := range denied.Trailer() {
		for _, value := range values {
			e.Meta().Add(name, value)
		}
	}
	return e
}
