package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/internal/test/servers"
)

// A fleet is everything that is running.
type fleet struct {
	dir      string // of the command and of its rules
	binary   string
	store    *servers.Redis
	replicas [replicas]replica
}

// start builds the command once, and starts the store and the replicas. The caller ends the fleet, with an error, too.
func start(ctx context.Context, server string) (_ *fleet, err error) {
	f := &fleet{}
	if f.dir, err = os.MkdirTemp("", "sluice-fleet-"); err != nil {
		return nil, err
	}
	if f.binary, err = servers.BuildSluiced(f.dir); err != nil || ctx.Err() != nil {
		return f, first(ctx, err)
	}
	rules := fmt.Sprintf("domain: fleet\ndescriptors:\n- {key: service, rate_limit: {unit: second, requests_per_unit: %d}}\n", limit)
	if err := os.WriteFile(f.rules(), []byte(rules), 0o600); err != nil {
		return f, err
	}
	if f.store, err = servers.NewRedis(server); err != nil {
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

func (f *fleet) rules() string { return filepath.Join(f.dir, "rules.yaml") }

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
	process *servers.Sluiced
	conn    *grpc.ClientConn
	client  atomic.Pointer[pb.RateLimitServiceClient] // nil while it is not running

	mu    sync.Mutex
	lost  int       // times that it has lost the store, as far as it was asked
	local time.Time // when it was without the store, last
}

// The modes of a replica.
const (
	shared     = "shared"
	localShare = "local-share"
	down       = "down"
)

// serve starts replica i, on free ports.
func (f *fleet) serve(ctx context.Context, i int) error {
	r := &f.replicas[i]
	// A busy machine takes longer than the 5 ms of the default now and then, and that is no outage.
	process, err := servers.NewSluiced(f.binary, "--rules", f.rules(), "--redis", "redis://"+f.store.Addr, "--replicas", fmt.Sprint(replicas), "--store-budget", "300ms")
	if err != nil {
		return first(ctx, fmt.Errorf("replica %d: %w", i+1, err))
	}
	r.set(process)
	r.conn, err = grpc.NewClient(process.Addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	client := pb.NewRateLimitServiceClient(r.conn)
	r.client.Store(&client)
	return nil
}

// set changes the process, which is nil for none.
func (r *replica) set(process *servers.Sluiced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process, r.lost = process, 0
}

// modeSince is the mode now, and whether the replica has been without the store since a time.
func (r *replica) modeSince(at time.Time) (mode string, degraded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return down, r.local.After(at)
	}
	lost, found := r.process.Modes()
	if lost > r.lost || lost > found {
		r.local = time.Now()
	}
	r.lost = lost
	if lost > found {
		return localShare, true
	}
	return shared, r.local.After(at)
}

// kill ends the replica at once, if it runs, and waits for that.
func (r *replica) kill() {
	if r.process == nil {
		return
	}
	r.client.Store(nil)
	r.process.Kill()
	r.set(nil)
	if r.conn != nil {
		_ = r.conn.Close()
	}
}
