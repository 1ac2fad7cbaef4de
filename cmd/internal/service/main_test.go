package service

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/depth"
)

func TestMain(m *testing.M) {
	depth.Waiting()
	os.Exit(m.Run())
}

const someRules = `
domain: d
descriptors:
- {key: two, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 1000000}}
- {key: own, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: gcra, burst: 3}}
`

// running is a service that runs, and its log.
type running struct {
	*testing.T
	addresses    map[string]net.Addr
	stop, reload chan os.Signal
	done         chan error
	log          *servetest.Log
}

// configure reads a command line on top of one that opens ports of this machine only, whichever
// are free.
func configure(t testing.TB, args ...string) *Config {
	t.Helper()
	c := new(Config)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(f)
	const free = "127.0.0.1:0"
	args = append([]string{"--grpc", free, "--http", free, "--debug", free, "--metrics", free, "--drain", "0"}, args...)
	require.NoError(t, f.Parse(args))
	return c
}

// start runs the service until the test ends, and waits until it is healthy.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	return startLogging(t, func(h slog.Handler) slog.Handler { return h }, args...)
}

// startLogging is start with a log that wrap has a hand in.
func startLogging(t *testing.T, wrap func(slog.Handler) slog.Handler, args ...string) *running {
	t.Helper()
	c := configure(t, args...)
	require.NoError(t, c.Check())
	r := &running{T: t, stop: make(chan os.Signal), reload: make(chan os.Signal), done: make(chan error, 1), log: new(servetest.Log)}
	ready := make(chan map[string]net.Addr, 1)
	log := slog.New(wrap(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	go func() {
		r.done <- Run(c, log, Hooks{Stop: r.stop, Reload: r.reload, Ready: func(a map[string]net.Addr) { ready <- a }})
	}()
	select {
	case r.addresses = <-ready:
	case err := <-r.done:
		t.Fatalf("the service did not start: %v", err)
	}
	t.Cleanup(func() {
		close(r.stop)
		r.ended()
	})
	return r
}

// ended waits until the service has ended, and returns why. It can be called again.
func (r *running) ended() error {
	r.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(servetest.Patience):
		r.Fatal("the service does not end")
		return nil
	}
}

// end stops the service without a fault.
func (r *running) end() {
	r.Helper()
	r.signal(r.stop)
	require.NoError(r, r.ended())
}

func (r *running) signal(c chan<- os.Signal) {
	r.Helper()
	select {
	case c <- os.Interrupt:
	case <-time.After(servetest.Patience):
		r.Fatal("nobody takes the signal")
	}
}

// waitLog waits until the log has a text: what it says of the store comes beside the calls.
func (r *running) waitLog(text string) {
	r.Helper()
	servetest.Eventually(r.T, "the log has "+text, func() bool { return strings.Contains(r.log.String(), text) })
}

// dial connects to the gRPC service.
func (r *running) dial(options ...grpc.DialOption) *grpc.ClientConn {
	r.Helper()
	a := r.addresses["grpc"]
	target := "passthrough:///" + a.String()
	if a.Network() == "unix" {
		target = "unix:" + a.String()
	}
	if len(options) == 0 {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	conn, err := grpc.NewClient(target, options...)
	require.NoError(r, err)
	r.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client keeps no connection: a port may be another service's in the next test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get asks a port over HTTP.
func (r *running) get(port, path string) (code int, body string) {
	r.Helper()
	return r.send(http.MethodGet, port, path, "")
}

func (r *running) send(method, port, path, body string) (code int, answer string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), servetest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.addresses[port].String()+path, strings.NewReader(body))
	require.NoError(r, err)
	resp, err := client.Do(req)
	require.NoError(r, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	require.NoError(r, err)
	return resp.StatusCode, string(out)
}

// one is a request with one descriptor of one entry.
func one(key, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{descriptor(key, value)}}
}

func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// ask calls the service, which must answer.
func ask(t *testing.T, conn *grpc.ClientConn, req *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, req)
	require.NoError(t, err)
	return resp
}

// remaining asks, and returns what is left.
func remaining(t *testing.T, conn *grpc.ClientConn, key string) int {
	t.Helper()
	return int(ask(t, conn, one(key, "x")).Statuses[0].LimitRemaining)
}

// write makes a file by renaming, as editors and tools do.
func write(t testing.TB, name, content string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name+"~", []byte(content), 0o644))
	require.NoError(t, os.Rename(name+"~", name))
	return name
}

// rulesFile is a file with rules in a directory of the test's.
func rulesFile(t testing.TB, content string) string {
	return write(t, filepath.Join(t.TempDir(), "rules", "a.yaml"), content)
}
