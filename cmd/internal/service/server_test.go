package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

func TestRun_Answers(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules), "--manual-clock", "--headers")
	conn := r.dial()
	resp := ask(t, conn, one("two", "x"))
	assert.Equal(t, pb.RateLimitResponse_OK, resp.OverallCode)
	assert.EqualValues(t, 1, resp.Statuses[0].LimitRemaining)
	assert.EqualValues(t, 60, resp.Statuses[0].DurationUntilReset.Seconds)
	assert.Equal(t, "RateLimit-Limit", resp.ResponseHeadersToAdd[0].Key)

	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "x"}]}]}`
	code, answer := r.send("POST", "http", "/json", body)
	assert.Equal(t, 200, code, answer)
	code, answer = r.send("POST", "http", "/json", body)
	assert.Equal(t, 429, code)
	assert.Contains(t, answer, "OVER_LIMIT")
	code, _ = r.send("POST", "http", "/json", `{"domain": ""}`)
	assert.Equal(t, 400, code)
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("two", "x")).OverallCode, "both ports count the same")

	code, answer = r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)
	assert.Equal(t, "OK", answer)
	_, answer = r.get("debug", "/rlconfig")
	assert.Contains(t, answer, "d.two: unit=MINUTE requests_per_unit=2")
	_, answer = r.get("debug", "/")
	assert.Contains(t, answer, "/rlconfig")
	code, _ = r.get("debug", "/debug/pprof/goroutine")
	assert.Equal(t, 200, code)
	_, answer = r.get("debug", "/stats")
	assert.Contains(t, answer, "ratelimit.service.rate_limit.d.two.total_hits: 4\n")
	assert.Contains(t, answer, "ratelimit.service.rate_limit.d.two.over_limit: 2\n")
	assert.Contains(t, answer, "ratelimit.service.config_load_success: 1\n")
	for _, service := range []string{"", "ratelimit"} {
		assert.Equal(t, healthpb.HealthCheckResponse_SERVING, health1(t, conn, service))
	}
}

func health1(t *testing.T, conn *grpc.ClientConn, service string) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	require.NoError(t, err)
	return resp.Status
}

func TestRun_ManualClock(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules), "--manual-clock")
	conn := r.dial()
	clock := func(body string) int {
		code, _ := r.send("POST", "debug", "/clock", body)
		return code
	}
	ask(t, conn, one("two", "x"))
	assert.Equal(t, 0, remaining(t, conn, "two"))
	assert.Equal(t, 204, clock("59999"))
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("two", "x")).OverallCode)
	assert.Equal(t, 204, clock("60000\n"), "a window ends")
	assert.Equal(t, 1, remaining(t, conn, "two"))
	assert.Equal(t, 204, clock("60000"), "the same time again")
	assert.Equal(t, 0, remaining(t, conn, "two"))
	for _, bad := range []string{"59999", "-1", "", "x", "1e9", "99999999999999999999", "60000.5", strings.Repeat("1", 100)} {
		code := clock(bad)
		assert.True(t, code >= 400 && code < 500, "%q: %d", bad, code)
	}
	code, _ := r.get("debug", "/clock")
	assert.NotEqual(t, 204, code)
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("two", "x")).OverallCode)

	without := start(t, "--rules", rulesFile(t, someRules))
	code, _ = without.send("POST", "debug", "/clock", "60000")
	assert.Equal(t, 404, code)
}

// TestRun_Drain goes through an end step by step.
func TestRun_Drain(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, someRules)
	r := start(t, "--rules", file, "--drain", "1h", "--manual-clock")
	conn := r.dial()
	ask(t, conn, one("two", "x"))
	r.signal(r.stop)
	servetest.Eventually(t, "unhealthy", func() bool { code, _ := r.get("http", "/healthcheck"); return code == 500 })
	for _, service := range []string{"", "ratelimit"} {
		assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, health1(t, conn, service))
	}
	assert.Equal(t, 0, remaining(t, conn, "two"), "calls are answered")

	write(t, file, someRules+"- {key: more}\n")
	servetest.Eventually(t, "new rules", func() bool { _, body := r.get("debug", "/rlconfig"); return strings.Contains(body, "generation 2") })
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 500, code, "a reload makes nothing healthy again")

	r.signal(r.stop) // has had enough
	require.NoError(t, r.ended())
}

func TestRun_DrainLastsItsTime(t *testing.T) {
	t.Parallel() // it mostly waits
	const drain = 300 * time.Millisecond
	r := start(t, "--rules", rulesFile(t, someRules), "--drain", drain.String())
	begin := time.Now()
	r.signal(r.stop)
	require.NoError(t, r.ended())
	assert.GreaterOrEqual(t, time.Since(begin), drain, "also if there is nothing to do")
}

// TestRun_EndLosesNothing: every call that the service counts is answered, and is in the state.
func TestRun_EndLosesNothing(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	// A socket, since nobody else can listen on it later and answer what the service does not.
	args := []string{"--rules", rulesFile(t, someRules), "--manual-clock", "--state", state, "--drain", "1h", "--uds", servetest.SocketName(t)}
	r := start(t, args...)
	var answered atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		conn := r.dial()
		clients.Go(func() {
			for {
				_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), one("day", "x"))
				if err != nil {
					assert.Equal(t, codes.Unavailable, status.Code(err), err)
					return
				}
				answered.Add(1)
			}
		})
	}
	servetest.Eventually(t, "load", func() bool { return answered.Load() > 100 })
	r.signal(r.stop)
	servetest.Eventually(t, "unhealthy", func() bool { code, _ := r.get("http", "/healthcheck"); return code == 500 })
	before := answered.Load()
	servetest.Eventually(t, "load while draining", func() bool { return answered.Load() > before+100 })
	r.signal(r.stop)
	clients.Wait()
	require.NoError(t, r.ended())

	again := start(t, args...)
	assert.Equal(t, 1_000_000-int(answered.Load())-1, remaining(t, again.dial(), "day"))
}

func TestRun_BadStarts(t *testing.T) {
	dir := t.TempDir()
	good := rulesFile(t, someRules)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	notPEM := write(t, filepath.Join(dir, "not.pem"), "x")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--rules", dir + "/none"}, []string{dir + "/none"}},
		{[]string{"--rules", rulesFile(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: moon}}\n- {value: x}\n")},
			[]string{"a.yaml:3:31: ", "a.yaml:4:3: "}},
		{[]string{"--rules", rulesFile(t, "domain: d\n---\n"), "--strict"}, []string{"a.yaml:2:1: warning: "}},
		{[]string{"--rules", good, "--http", busy.Addr().String()}, []string{"--http: ", busy.Addr().String()}},
		{[]string{"--rules", good, "--grpc", busy.Addr().String()}, []string{"--grpc: "}},
		{[]string{"--rules", good, "--state", dir + "/none/state"}, []string{"--state: ", dir + "/none/state"}},
		{[]string{"--rules", good, "--state", dir}, []string{"--state: ", "not a regular file"}},
		{[]string{"--rules", good, "--tls-cert", dir + "/cert", "--tls-key", dir + "/key"}, []string{"--tls-cert: open " + dir + "/cert: "}},
		{[]string{"--rules", good, "--tls-cert", notPEM, "--tls-key", dir + "/key"}, []string{"--tls-key: open " + dir + "/key: "}},
		{[]string{"--rules", good, "--tls-cert", notPEM, "--tls-key", notPEM, "--client-ca", dir + "/ca"}, []string{"--client-ca: open " + dir + "/ca: "}},
		{[]string{"--rules", good, "--tls-cert", notPEM, "--tls-key", notPEM}, []string{"--tls-cert " + notPEM + " and --tls-key " + notPEM + ": "}},
		{[]string{"--rules", good, "--uds", good}, []string{"--uds: ", good}},
	} {
		config := configure(t, c.args...)
		require.NoError(t, config.Check())
		err := Run(config, slog.New(slog.DiscardHandler), Hooks{Ready: func(map[string]net.Addr) { t.Error("it serves", c.args) }})
		require.Error(t, err, c.args)
		for _, want := range c.want {
			assert.Contains(t, err.Error(), want)
		}
	}
}

func TestRun_WithoutRules(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, "domain: [\n")
	r := start(t, "--rules", file, "--start-without-rules", "--healthy-with-rules")
	assert.Contains(t, r.log.String(), "starting without rules")
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 500, code)
	assert.Nil(t, ask(t, r.dial(), one("two", "x")).Statuses[0].CurrentLimit)
	write(t, file, someRules)
	servetest.Eventually(t, "healthy", func() bool { code, _ := r.get("http", "/healthcheck"); return code == 200 })
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
}

func TestRun_NoFileOfRules(t *testing.T) {
	t.Parallel() // it mostly waits
	empty, file := t.TempDir(), rulesFile(t, someRules)
	r := start(t, "--rules", file, "--rules", empty, "--manual-clock")
	assert.Equal(t, 1, remaining(t, r.dial(), "two"), "it has read a file")

	r = start(t, "--rules", empty, "--start-without-rules", "--manual-clock")
	conn := r.dial()
	assert.Nil(t, ask(t, conn, one("two", "x")).Statuses[0].CurrentLimit)
	write(t, filepath.Join(empty, "a.yaml"), someRules)
	r.waitFor("generation 2, ")
	assert.Equal(t, 1, remaining(t, conn, "two"))
}

func TestRun_UnixSocket(t *testing.T) {
	file := rulesFile(t, someRules)
	socket := servetest.SocketName(t)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	left.SetUnlinkOnClose(false)
	require.NoError(t, left.Close())

	r := start(t, "--rules", file, "--uds", socket, "--manual-clock")
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	err = Run(configure(t, "--rules", file, "--uds", socket), slog.New(slog.DiscardHandler), Hooks{})
	require.ErrorContains(t, err, "another process listens on it")
	assert.Equal(t, 0, remaining(t, r.dial(), "two"), "which goes on")
	r.end()
	_, err = os.Lstat(socket)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRun_Reflection(t *testing.T) {
	file := rulesFile(t, someRules)
	for _, on := range []bool{false, true} {
		r := start(t, "--rules", file, fmt.Sprintf("--reflection=%t", on))
		stream, err := reflectionpb.NewServerReflectionClient(r.dial()).ServerReflectionInfo(t.Context())
		require.NoError(t, err)
		_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}) // Recv tells
		resp, err := stream.Recv()
		if !on {
			require.Equal(t, codes.Unimplemented, status.Code(err))
			continue
		}
		require.NoError(t, err)
		assert.Contains(t, resp.String(), "envoy.service.ratelimit.v3.RateLimitService")
		require.NoError(t, stream.CloseSend())
		_, _ = stream.Recv()
	}
}

func TestRun_Bounds(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules), "--max-descriptors", "2", "--max-entries", "2", "--max-value", "10", "--max-message", "40")
	conn := r.dial()
	long := strings.Repeat("x", 10)
	for name, c := range map[string]struct {
		want codes.Code
		ds   []*common.RateLimitDescriptor
	}{
		"fits":             {codes.OK, []*common.RateLimitDescriptor{descriptor("two", long, "a", ""), descriptor("two", "")}},
		"descriptors":      {codes.InvalidArgument, []*common.RateLimitDescriptor{descriptor("two", ""), descriptor("two", ""), descriptor("two", "")}},
		"entries":          {codes.InvalidArgument, []*common.RateLimitDescriptor{descriptor("two", "", "a", "", "b", "")}},
		"value":            {codes.InvalidArgument, []*common.RateLimitDescriptor{descriptor("two", long+"x")}},
		"message":          {codes.InvalidArgument, []*common.RateLimitDescriptor{descriptor(long, long), descriptor(long, long)}},
		"bytes":            {codes.ResourceExhausted, []*common.RateLimitDescriptor{descriptor("two", strings.Repeat("x", 1<<20))}},
		"nothing":          {codes.Unknown, nil},
		"invalid override": {codes.InvalidArgument, []*common.RateLimitDescriptor{{Limit: &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}}}},
	} {
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: c.ds})
		assert.Equal(t, c.want, status.Code(err), "%s: %v", name, err)
	}
}

// TestRun_Garbage sends what is no protocol into every port; the service goes on.
func TestRun_Garbage(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules))
	for name, a := range r.addresses {
		for _, garbage := range []string{"", "\x00", "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff", strings.Repeat("\xff", 10_000)} {
			conn, err := net.Dial("tcp", a.String())
			require.NoError(t, err, name)
			_, _ = conn.Write([]byte(garbage))
			_ = conn.Close()
		}
	}
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)
	assert.NotContains(t, r.log.String(), "panic")
}
