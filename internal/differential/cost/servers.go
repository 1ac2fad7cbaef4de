//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// kindVariable makes this program one of the servers that it measures.
const kindVariable = "SLUICE_COST_SERVER"

// The servers that this program can be.
const (
	emptyKind    = "empty"
	upstreamKind = "upstream"
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
	name    string
	address string
	pids    []int
	conns   []*grpc.ClientConn
}

// cpu is the processor time of all processes.
func (s *subject) cpu() (sum time.Duration, err error) {
	for _, pid := range s.pids {
		var t unix.Timespec
		// The clock of a process, as clock_getcpuclockid(3) makes it of its number.
		if err := unix.ClockGettime(int32(^uint32(pid)<<3|2), &t); err != nil {
			return 0, fmt.Errorf("%s: the processor time of %d: %w", s.name, pid, err)
		}
		sum += time.Duration(t.Nano())
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

// freePort is a port that nobody listens on now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
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
func (b *bench) self(kind string, environment ...string) (*subject, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pid, out, err := b.start(kind, append(environment, kindVariable+"="+kind, "GRPC_PORT="+port), program)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return &subject{name: kind, address: "127.0.0.1:" + port, pids: []int{pid}}, nil
}

// upstream starts envoyproxy/ratelimit, and a Redis for it.
func (b *bench) upstream(rules string) (*subject, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(b.dir, "redis.sock")
	redis, out, err := b.start("redis", nil, path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", b.dir)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if err := waitFor(func() error { _, err := os.Stat(socket); return err }); err != nil {
		return nil, err
	}
	ports := []string{}
	for range 2 {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "root", "config"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "root", "config", "a.yaml"), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	s, err := b.self(upstreamKind, "RUNTIME_ROOT="+filepath.Join(b.dir, "root"), "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=unix", "REDIS_URL="+socket, "USE_STATSD=false", "LOG_LEVEL=error", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1",
		"DEBUG_HOST=127.0.0.1", "PORT="+ports[0], "DEBUG_PORT="+ports[1])
	if err == nil {
		s.name, s.pids = "envoyproxy/ratelimit + Redis", append(s.pids, redis)
	}
	return s, err
}

// folder has the rules of a server.
func (b *bench) folder(name string) string {
	return filepath.Join(b.dir, strings.NewReplacer("/", "_", ",", "_", " ", "_").Replace(name))
}

// sluice starts `sluice serve`.
func (b *bench) sluice(name, program, rules string) (*subject, error) {
	dir := b.folder(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	const free = "127.0.0.1:0"
	pid, out, err := b.start(filepath.Base(dir), nil, program, "serve", "--rules", dir, "--grpc", free, "--http", free, "--debug", free, "--metrics", free)
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		log, _ := os.ReadFile(dir + ".log")
		return nil, fmt.Errorf("%s does not start: %w: %s", name, err, log)
	}
	_, rest, _ := strings.Cut(line, "grpc on ")
	address, _, ok := strings.Cut(rest, ",")
	if !ok {
		return nil, fmt.Errorf("%s says: %q", name, line)
	}
	return &subject{name: name, address: address, pids: []int{pid}}, nil
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
