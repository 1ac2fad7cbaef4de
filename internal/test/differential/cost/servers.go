//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/sluice-go/sluice/internal/test/servers"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// kindVariable makes this program one of the servers that it measures.
const kindVariable = "SLUICE_COST_SERVER"

// The servers that this program can be.
const (
	emptyKind    = "empty"
	upstreamKind = "upstream"
	busyKind     = "busy"
)

// serve is the server. It does not return.
func serve(kind string) {
	switch kind {
	case emptyKind:
		server := grpc.NewServer()
		pb.RegisterRateLimitServiceServer(server, empty{})
		listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("GRPC_PORT"))
		if err == nil {
			err = server.Serve(listener)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case upstreamKind:
		r := runner.NewRunner(settings.NewSettings())
		r.Run()
		os.Exit(0)
	case busyKind:
		for n := 0; ; n++ { // it wants a processor, and nothing else
		}
	}
	fmt.Fprintf(os.Stderr, "%s=%s is none of the servers\n", kindVariable, kind)
	os.Exit(2)
}

// empty answers as many statuses as there are descriptors, the same ones each time, and looks at
// nothing.
type empty struct {
	pb.UnimplementedRateLimitServiceServer
}

var emptyStatus = &pb.RateLimitResponse_DescriptorStatus{
	Code:               pb.RateLimitResponse_OK,
	CurrentLimit:       &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 4_000_000_000, Unit: pb.RateLimitResponse_RateLimit_DAY},
	LimitRemaining:     3_999_999_999,
	DurationUntilReset: &durationpb.Duration{Seconds: 86_000},
}

func (empty) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	out := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	for range req.Descriptors {
		out.Statuses = append(out.Statuses, emptyStatus)
	}
	return out, nil
}

// A subject is a server that is measured: one process or more.
type subject struct {
	name      string
	addresses []string
	metrics   []string // addresses of sluice's metrics
	debug     []string // addresses of the profiles
	pids      []int
	conns     []*grpc.ClientConn
}

// cpu is the processor time of all processes.
func (s *subject) cpu() (sum time.Duration, err error) {
	for _, pid := range s.pids {
		t, err := processorTime(pid)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.name, err)
		}
		sum += t
	}
	return sum, nil
}

// A bench is everything that is running, and where it keeps its files.
type bench struct {
	dir     string
	program string // sluice of this tree
	ends    []func()
}

func (b *bench) close() {
	for i := len(b.ends) - 1; i >= 0; i-- {
		b.ends[i]()
	}
}

// freePort is servers.FreePort as text.
func freePort() (string, error) {
	port, err := servers.FreePort()
	return strconv.Itoa(port), err
}

// start starts a process that ends with this one, at the latest.
func (b *bench) start(name string, environment []string, args ...string) (pid int, stdout io.Reader, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return 0, nil, err
	}
	cmd.Stderr = log
	if stdout, err = cmd.StdoutPipe(); err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", name, err)
	}
	b.ends = append(b.ends, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return cmd.Process.Pid, stdout, nil
}

// self starts this program as a server.
func (b *bench) self(name, kind string, environment ...string) (*subject, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pid, out, err := b.start(filepath.Base(b.folder(name)), append(environment, kindVariable+"="+kind, "GRPC_PORT="+port), program)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return &subject{name: name, addresses: []string{"127.0.0.1:" + port}, pids: []int{pid}}, nil
}

// A store is a redis-server, as the two programs name it.
type store struct {
	server               *servers.Redis
	url, network, socket string // url is sluice's; network and socket are upstream's
}

// unixRedis starts a Redis on a socket, and tcpRedis one on a port.
func (b *bench) unixRedis(name string) (store, error) {
	s := store{network: "unix", socket: filepath.Join(b.dir, name+".sock")}
	s.url = "unix://" + s.socket
	return s, b.redis(&s, "--port", "0", "--unixsocket", s.socket)
}

func (b *bench) tcpRedis() (store, error) {
	s := store{network: "tcp"}
	if err := b.redis(&s); err != nil {
		return s, err
	}
	s.socket = s.server.Addr
	s.url = "redis://" + s.socket
	return s, nil
}

func (b *bench) redis(s *store, options ...string) error {
	path, err := servers.FindRedis()
	if err != nil {
		return err
	}
	if s.server, err = servers.NewRedis(path, options...); err != nil {
		return err
	}
	b.ends = append(b.ends, s.server.Kill)
	return nil
}

// upstreamAlone starts envoyproxy/ratelimit and a Redis for it, whose processor time is a part of its own.
func (b *bench) upstreamAlone(rules string) (*subject, error) {
	redis, err := b.unixRedis("redis")
	if err != nil {
		return nil, err
	}
	s, err := b.upstream(upstreamName, rules, redis)
	if err == nil {
		s.pids = append(s.pids, redis.server.PID())
	}
	return s, err
}

// upstream starts envoyproxy/ratelimit, which counts in a Redis.
func (b *bench) upstream(name, rules string, in store, environment ...string) (*subject, error) {
	ports := []string{}
	for range 2 {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	root := b.folder(name)
	if err := os.MkdirAll(filepath.Join(root, "config"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(root, "config", "a.yaml"), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	s, err := b.self(name, upstreamKind, append([]string{
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=" + in.network, "REDIS_URL=" + in.socket,
		"USE_STATSD=false", "LOG_LEVEL=error", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=" + ports[0], "DEBUG_PORT=" + ports[1],
	}, environment...)...)
	if err == nil {
		s.debug = []string{"127.0.0.1:" + ports[1]}
	}
	return s, err
}

// folder has the rules of a server.
func (b *bench) folder(name string) string {
	return filepath.Join(b.dir, strings.NewReplacer("/", "_", ",", "_", " ", "_").Replace(name))
}

// sluice starts `sluiced serve`.
func (b *bench) sluice(name, program, rules string, flags ...string) (*subject, error) {
	dir := b.folder(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	process, err := servers.NewSluiced(program, append([]string{"--rules", dir}, flags...)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.ends = append(b.ends, process.Kill)
	return &subject{name: name, addresses: []string{process.Addresses["grpc"]}, metrics: []string{process.Addresses["metrics"]}, debug: []string{process.Addresses["debug"]}, pids: []int{process.PID()}}, nil
}

// waitFor tries something until it works.
func waitFor(try func() error) (err error) {
	for range 500 {
		if err = try(); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.Join(errors.New("nothing for 10 s"), err)
}
