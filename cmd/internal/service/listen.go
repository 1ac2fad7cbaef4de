package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// These bound what a gRPC connection can have under way, besides MessageBytes of package rls for each call; underWay bounds
// the sum of all connections. A call takes a stream for as long as it lasts, which is microseconds once its message has come.
const (
	maxStreams  = 500      // fewer than fill callsRoom before their messages come: streams that wait for the end of calls would keep these out
	maxMetadata = 16 << 10 // headers of a call
	maxUnread   = 64 << 10 // of a stream, besides the message that is waited for
	messageTime = 10 * time.Second
)

// maxHeaders bounds the headers of a request over HTTP: /check gets the headers of the proxy's client.
const maxHeaders = 64 << 10

// writeTime is how long an answer over HTTP may take, for clients that do not read it. Handlers of profiles add
// the time that the request asks for.
const writeTime = time.Minute

// listen opens all ports, and only then serves on them.
func (s *server) listen() (map[string]net.Addr, error) {
	if err := s.newGRPC(); err != nil {
		return nil, err
	}
	listeners := map[string]net.Listener{}
	for _, p := range s.config.ports() {
		if p.address == "" {
			continue
		}
		l, err := p.listen(s.config)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, fmt.Errorf("--%s: %w", p.flag(), err)
		}
		listeners[p.name] = l
	}
	return s.serve(listeners), nil
}

// serve serves on listeners, which have the names of their flags, and returns their addresses.
func (s *server) serve(listeners map[string]net.Listener) map[string]net.Addr {
	handlers := map[string]http.Handler{"http": s.public(), "debug": s.debug(), "metrics": s.metrics.handler()}
	addresses := map[string]net.Addr{}
	s.warnPlain()
	for name, l := range listeners {
		addresses[name] = l.Addr()
		if name == "grpc" {
			go func() { s.ended(name, s.grpc.Serve(l)) }()
			continue
		}
		if name == "http" && s.config.HTTPTLS {
			l = tls.NewListener(l, s.certificates.server(true))
		}
		h := &http.Server{
			Handler: handlers[name], ErrorLog: s.strangers(name).errorLog(),
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: writeTime,
			IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaders,
		}
		// Strangers cannot keep a panic of a handler out of the log: each has its own limit.
		watchRequests(h, s.strangers(name))
		s.http = append(s.http, h)
		go func() { s.ended(name, h.Serve(httpListener{l})) }()
	}
	return addresses
}

// ended is called with the error when a port is no longer served.
func (s *server) ended(name string, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.failed <- fmt.Errorf("serving the port %s: %w", name, err)
	}
}

func (s *server) newGRPC() error {
	options := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionAgeGrace: s.config.ConnectionEnd}),
		// Proxies may check idle connections more often than gRPC's default allows.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxMetadata), grpc.MaxRecvMsgSize(s.service.MessageBytes()),
		// Windows that gRPC chooses grow to 16 MiB for each stream, whether it is read or not. The window of a
		// connection may be larger: connections are always read.
		grpc.StaticStreamWindowSize(maxUnread), grpc.StaticConnWindowSize(1 << 20),
		grpc.InTapHandle(s.callInTime), grpc.StreamInterceptor(s.runStream),
		// Goroutines that stay grow their stacks once, not at each call. If all are busy, gRPC starts more.
		grpc.NumStreamWorkers(uint32(8 * runtime.GOMAXPROCS(0))),
	}
	s.underWay = newUnderWay(s.service.MessageBytes())
	transport := insecure.NewCredentials()
	if s.config.TLSCert != "" {
		var err error
		s.certificates, err = newCertificates(s.config, func(err error) { s.log.Error("the certificates cannot be used, and the old ones stay", "error", err) })
		if err != nil {
			return err
		}
		transport = credentials.NewTLS(s.certificates.server(false))
	}
	options = append(options, grpc.Creds(&greeted{transport, s.strangers("grpc"), s.underWay}))
	s.grpc = s.service.NewServer(options...)
	healthpb.RegisterHealthServer(s.grpc, s.health.Server())
	if s.config.Reflection {
		reflection.Register(s.grpc)
	}
	s.streams = streamsOf(s.grpc)
	return nil
}

// callInTime bounds the time of calls whose message may not come, except for calls that package rls or runStream
// end. gRPC calls it when a call begins, and cancels the context that it passes when the call ends.
func (s *server) callInTime(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName == pb.RateLimitService_ShouldRateLimit_FullMethodName || s.streams[info.FullMethodName] {
		return ctx, nil
	}
	ctx, cancel := context.WithTimeout(ctx, messageTime)
	_ = cancel
	return ctx, nil
}

// runStream is the interceptor of streams, such as health.Watch. It ends streams whose first message does not come.
// When the service ends it ends all streams, since they would delay the end. A handler ends with its stream.
func (s *server) runStream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	first := &firstMessage{ServerStream: stream, come: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- handler(service, first) }()
	timer := time.NewTimer(messageTime)
	defer timer.Stop()
	late := timer.C
	for come := first.come; ; {
		select {
		case <-come:
			come, late = nil, nil
		case err := <-ended:
			return err
		case <-late:
			return status.Error(codes.DeadlineExceeded, "the message has not come in time")
		case <-s.ending:
			return status.Error(codes.Unavailable, "the service ends")
		}
	}
}

// firstMessage is a stream that reports when its first message has come.
type firstMessage struct {
	grpc.ServerStream
	once sync.Once
	come chan struct{}
}

// RecvMsg implements grpc.ServerStream.
func (f *firstMessage) RecvMsg(m any) error {
	err := f.ServerStream.RecvMsg(m)
	if err == nil {
		f.once.Do(func() { close(f.come) })
	}
	return err
}

// streamsOf returns the methods of a server that are streams.
func streamsOf(g *grpc.Server) map[string]bool {
	out := map[string]bool{}
	for name, service := range g.GetServiceInfo() {
		for _, m := range service.Methods {
			if m.IsClientStream || m.IsServerStream {
				out["/"+name+"/"+m.Name] = true
			}
		}
	}
	return out
}

func (p port) listen(c *Config) (net.Listener, error) {
	if p.network == "unix" {
		if err := removeSocket(p.address); err != nil {
			return nil, err
		}
		mode, err := strconv.ParseUint(c.UDSMode, 8, 32)
		if err != nil {
			return nil, err
		}
		return listenUnix(p.address, os.FileMode(mode))
	}
	return net.Listen(p.network, p.address)
}

// removeSocket removes a socket that an earlier process has left behind, if no process listens on it.
func removeSocket(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil // it does not exist, or net.Listen will report it
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s: another process listens on it", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, syscall.EAGAIN): // its queue of waiting connections is full: a process listens
		return fmt.Errorf("%s: another process listens on it, and is busy", path)
	}
	return fmt.Errorf("%s is there, and may be another process's: %w", path, err)
}
