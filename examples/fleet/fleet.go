package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/internal/test/redistest"
)

// A fleet is everything that is running.
type fleet struct {
	dir      string // of the command and of its rules
	store    *redistest.Server
	replicas [replicas]replica
}

// start builds the command once, and starts the store and the replicas. The caller ends what is returned, with an error, too.
func start(ctx context.Context, server string) (_ *fleet, err error) {
	f := &fleet{}
	if f.dir, err = os.MkdirTemp("", "sluice-fleet-"); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", f.binary(), "github.com/sluice-go/sluice/cmd/sluiced")
	if out, err := build.CombinedOutput(); err != nil {
		return f, first(ctx, fmt.Errorf("go build: %w\n%s", err, out))
	}
	rules := fmt.Sprintf("domain: fleet\ndescriptors:\n- {key: service, rate_limit: {unit: second, requests_per_unit: %d}}\n", limit)
	if err := os.WriteFile(f.rules(), []byte(rules), 0o600); err != nil {
		return f, err
	}
	if f.store, err = redistest.New(server); err != nil {
		return f, err
	}
	for i := range f.replicas {
		if err := f.serve(ctx, i); err != nil {
			return f, err
		}
	}
	return f, nil
}

// first is the error of ctx, if it has ended, and else err.
func first(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (f *fleet) binary() string { return filepath.Join(f.dir, "sluiced"+exe) }
func (f *fleet) rules() string  { return filepath.Join(f.dir, "rules.yaml") }

// end ends all processes, and removes their files.
func (f *fleet) end() {
	for i := range f.replicas {
		f.replicas[i].kill()
	}
	if f.store != nil {
		f.store.Kill()
	}
	_ = os.RemoveAll(f.dir)
}

// A replica is a process of `sluiced serve`, or the place of one.
type replica struct {
	cmd    *exec.Cmd
	logged chan struct{} // closed when all that it has logged is read
	conn   *grpc.ClientConn
	client atomic.Pointer[pb.RateLimitServiceClient] // nil while it is not running

	mu    sync.Mutex
	mode  string
	local time.Time // when it was without the store, last
}

// The modes of a replica.
const (
	shared     = "shared"
	localShare = "local-share"
	down       = "down"
)

var grpcAddress = regexp.MustCompile(`grpc on ([^,\s]+)`)

// serve starts replica i, on free ports.
func (f *fleet) serve(ctx context.Context, i int) error {
	r := &f.replicas[i]
	const free = "127.0.0.1:0"
	// A busy machine takes longer than the 5 ms of the default now and then, and that is no outage.
	cmd := exec.Command(f.binary(), "serve", "--rules", f.rules(), "--redis", "redis://"+f.store.Addr, "--replicas", fmt.Sprint(replicas),
		"--store-budget", "300ms", "--grpc", free, "--http", free, "--debug", free, "--metrics", free)
	cmd.SysProcAttr = ending()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd, r.logged = cmd, make(chan struct{})
	r.set(shared)
	go r.read(log, r.logged)
	line, err := bufio.NewReader(out).ReadString('\n')
	address := grpcAddress.FindStringSubmatch(line)
	if err != nil || address == nil {
		r.kill()
		return first(ctx, fmt.Errorf("replica %d does not start; it says %q", i+1, line))
	}
	r.conn, err = grpc.NewClient(address[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	client := pb.NewRateLimitServiceClient(r.conn)
	r.client.Store(&client)
	return nil
}

// read follows the modes that the replica logs.
func (r *replica) read(log io.Reader, done chan struct{}) {
	defer close(done)
	for lines := bufio.NewScanner(log); lines.Scan(); {
		switch text := lines.Text(); {
		case strings.Contains(text, "the store does not answer"):
			r.set(localShare)
		case strings.Contains(text, "the store answers again"):
			r.set(shared)
		}
	}
}

// set changes the mode.
func (r *replica) set(mode string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mode == localShare {
		r.local = time.Now()
	}
	r.mode = mode
}

// modeSince is the mode now, and whether the replica has been without the store since a time.
func (r *replica) modeSince(at time.Time) (mode string, degraded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mode, r.mode == localShare || r.local.After(at)
}

// kill ends the replica at once, if it runs, and waits for that.
func (r *replica) kill() {
	if r.cmd == nil {
		return
	}
	r.client.Store(nil)
	_ = r.cmd.Process.Kill()
	<-r.logged
	_ = r.cmd.Wait()
	r.cmd = nil
	r.set(down)
	if r.conn != nil {
		_ = r.conn.Close()
	}
}
