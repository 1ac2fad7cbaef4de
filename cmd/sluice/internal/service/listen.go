package service

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Bounds of what a gRPC connection can make the process hold.
const (
	maxStreams = 10_000
	maxHeaders = 64 << 10
	maxBytes   = 1 << 20 // of a message on the wire; rls bounds the text in it
)

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
		l, err := p.listen()
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, fmt.Errorf("--%s: %w", p.name, err)
		}
		listeners[p.name] = l
	}
	return s.serve(listeners), nil
}

// serve serves on listeners, which are named as their flags, and returns their addresses.
func (s *server) serve(listeners map[string]net.Listener) map[string]net.Addr {
	handlers := map[string]http.Handler{"http": s.public(), "debug": s.debug(), "metrics": s.metrics.handler()}
	addresses := map[string]net.Addr{}
	for name, l := range listeners {
		addresses[name] = l.Addr()
		if name == "grpc" {
			go func() { s.ended(name, s.grpc.Serve(l)) }()
			continue
		}
		h := &http.Server{
			Handler: handlers[name], ErrorLog: s.strangers(name).errorLog(),
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaders,
		}
		// Bytes of strangers do not keep a panic of a handler out of the log: each has its own limit.
		watchRequests(h, s.strangers(name))
		s.http = append(s.http, h)
		go func() { s.ended(name, h.Serve(httpListener{l})) }()
	}
	return addresses
}

// ended is told why nothing is served on a port any more.
func (s *server) ended(name string, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.failed <- fmt.Errorf("serving --%s: %w", name, err)
	}
}

func (s *server) newGRPC() error {
	options := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionAgeGrace: s.config.ConnectionEnd}),
		// Proxies that look after idle connections more often than gRPC's default allows are no attackers.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxRecvMsgSize(maxBytes),
		// Goroutines that stay grow their stacks once, and not at each call. If all are busy, others help.
		grpc.NumStreamWorkers(uint32(8 * runtime.GOMAXPROCS(0))),
	}
	transport := insecure.NewCredentials()
	if s.config.TLSCert != "" {
		certs, err := newCertificates(s.config, func(err error) { s.log.Error("the certificates cannot be used, and the old ones stay", "error", err) })
		if err != nil {
			return err
		}
		transport = credentials.NewTLS(certs.server())
	}
	options = append(options, grpc.Creds(&greeted{transport, s.strangers("grpc")}))
	s.grpc = s.service.NewServer(options...)
	healthpb.RegisterHealthServer(s.grpc, s.health.Server())
	if s.config.Reflection {
		reflection.Register(s.grpc)
	}
	return nil
}

func (p port) listen() (net.Listener, error) {
	if p.network == "unix" {
		if err := removeSocket(p.address); err != nil {
			return nil, err
		}
	}
	return net.Listen(p.network, p.address)
}

// removeSocket removes a socket that a process has left behind: one that nobody listens on.
func removeSocket(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil // not there, or something that net.Listen complains about
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s: another process listens on it", path)
	}
	return os.Remove(path)
}
