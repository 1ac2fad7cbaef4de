package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/rls/holdpb"
)

// These tests make the same calls by clients with other HTTP/2 stacks, each to a service of its own
// on a clock that stands. The answers must be those that Go's client gets.

const clientRules = `
domain: d
descriptors:
- {key: client, rate_limit: {unit: minute, requests_per_unit: 3, name: clients}}
- {key: client, value: vip, rate_limit: {unlimited: true}, metadata: {tier: gold}}
- {key: shadow, rate_limit: {unit: day, requests_per_unit: 1}, shadow_mode: true}
- {key: own, rate_limit: {period: 30s, requests_per_unit: 2, algorithm: sliding-log}}
- {key: load, rate_limit: {unit: day, requests_per_unit: 1000000}}
`

// call is a call of gRPC, not yet or already in bytes.
type call struct {
	method  string
	message []byte
}

// answer is what a client makes of a call's end: the message, or a code and a text.
type answer struct {
	code codes.Code
	data []byte
}

func newCall(t *testing.T, method string, m proto.Message) call {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return call{method, b}
}

func shouldRateLimit(t *testing.T, domain string, hits uint32, ds ...*common.RateLimitDescriptor) call {
	t.Helper()
	return newCall(t, pb.RateLimitService_ShouldRateLimit_FullMethodName, &pb.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: ds})
}

// someCalls has all kinds of calls: admitted and denied ones, ones that are refused, and messages
// of more than one frame and of more than a window of flow control, both ways.
func someCalls(t *testing.T) (out []call) {
	t.Helper()
	add := func(domain string, hits uint32, ds ...*common.RateLimitDescriptor) {
		out = append(out, shouldRateLimit(t, domain, hits, ds...))
	}
	for range 4 {
		add("d", 0, descriptor("client", "ann"))
	}
	add("d", 2, descriptor("client", "ben"), descriptor("client", "vip"), descriptor("own", "x"), descriptor("unknown", "x"))
	add("d", 2, descriptor("client", "ben"), descriptor("shadow", "x"), descriptor("own", "x"))
	override, look := descriptor("client", "cid"), descriptor("client", "ann")
	override.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 3}
	look.HitsAddend = wrapperspb.UInt64(0)
	add("d", 0, override, look)
	var many []*common.RateLimitDescriptor
	for i := range 256 {
		many = append(many, descriptor("client", fmt.Sprint(i, " ä \u2028 ", strings.Repeat("x", 200))))
	}
	add("d", 0, many...)
	long := strings.Repeat("x", 8<<10)
	add("d", 0, descriptor("client", long, "a", long, "b", long, "c", long, "d", long, "e", long, "f", long))
	add("elsewhere", 0, descriptor("client", "ann"))
	add("", 0, descriptor("client", "ann"))
	add("d", 0)
	add("d", 0, descriptor("client", strings.Repeat(long, 8)))
	add("d", 0, &common.RateLimitDescriptor{Limit: &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}})
	out = append(out,
		call{pb.RateLimitService_ShouldRateLimit_FullMethodName, []byte("\x12\xff")},
		call{"/envoy.service.ratelimit.v3.RateLimitService/None", nil},
		call{"/none.Service/None", []byte("x")},
		newCall(t, healthpb.Health_Check_FullMethodName, &healthpb.HealthCheckRequest{Service: "ratelimit"}),
		newCall(t, healthpb.Health_Check_FullMethodName, &healthpb.HealthCheckRequest{Service: "none"}),
	)
	add("d", 0, descriptor("client", "ann"))
	return append(out, someHolds(t)...)
}

// someHolds has all calls about holds, with all of their answers.
func someHolds(t *testing.T) (out []call) {
	t.Helper()
	const ours, kuadrants = "/sluice.ratelimit.v1.HoldService/", "/kuadrant.service.ratelimit.v1.RateLimitService/"
	load := []*holdpb.Descriptor{{Entries: []*holdpb.Descriptor_Entry{{Key: "load", Value: "x"}}}}
	reserve := func(service, id string, amount uint64) {
		out = append(out, newCall(t, service+"Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: load, Amount: amount, IdempotencyKey: id}))
	}
	commit := func(service, id string, amount uint64) {
		out = append(out, newCall(t, service+"Commit", &holdpb.CommitRequest{Domain: "d", Descriptors: load, ReservationId: id, ActualAmount: amount}))
	}
	reserve(ours, "a", 600_000)
	reserve(ours, "a", 600_000)
	reserve(ours, "a", 1)
	reserve(kuadrants, "b", 400_001)
	out = append(out, newCall(t, ours+"Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: load, ReservationId: "a", Amount: 400_000}))
	out = append(out, newCall(t, ours+"Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: load, ReservationId: "a", Amount: 1}))
	commit(ours, "a", 10)
	commit(kuadrants, "a", 10)
	commit(kuadrants, "a", 11)
	reserve(kuadrants, "b", 999_990)
	out = append(out, newCall(t, ours+"Release", &holdpb.ReleaseRequest{Domain: "d", Descriptors: load, ReservationId: "b"}))
	out = append(out, newCall(t, ours+"Release", &holdpb.ReleaseRequest{Domain: "d", Descriptors: load, ReservationId: "c"}))
	reserve(ours, "no id", 1)
	return out
}

// stillService starts a service for one client.
func stillService(t *testing.T) *program {
	t.Helper()
	dir := servetest.Files(t, map[string]string{"a.yaml": clientRules})
	return startServe(t, nil, "--rules", dir, "--manual-clock", "--headers", "--dynamic-metadata")
}

// rawCodec passes bytes on as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// answersOfGo makes calls by Go's client.
func answersOfGo(t *testing.T, calls []call) (out []answer) {
	t.Helper()
	conn, err := grpc.NewClient(stillService(t).addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	for _, c := range calls {
		var data []byte
		err := conn.Invoke(ctx, c.method, c.message, &data, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			data = []byte(status.Convert(err).Message())
		}
		out = append(out, answer{status.Code(err), data})
	}
	return out
}

// same compares answers to a call. Fields of a map have no order on the wire.
func same(t *testing.T, c call, want, got answer, name string) {
	t.Helper()
	require.Equal(t, want.code, got.code, "%s: %s: %q", name, c.method, got.data)
	if want.code != codes.OK || c.method != pb.RateLimitService_ShouldRateLimit_FullMethodName {
		require.Equal(t, string(want.data), string(got.data), "%s: %s", name, c.method)
		return
	}
	a, b := new(pb.RateLimitResponse), new(pb.RateLimitResponse)
	require.NoError(t, proto.Unmarshal(want.data, a))
	require.NoError(t, proto.Unmarshal(got.data, b), name)
	require.NotEmpty(t, b.Statuses, name)
	require.Empty(t, b.ProtoReflect().GetUnknown(), name)
	if !proto.Equal(a, b) {
		t.Fatalf("%s:\n%v\n%s gets another answer:\n%v", name, a, name, b)
	}
}

// testClient makes all calls by a program that reads and writes lines, and compares.
func testClient(t *testing.T, name string, cmd *exec.Cmd) {
	t.Helper()
	calls := someCalls(t)
	want := answersOfGo(t, calls)
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	run := exec.CommandContext(ctx, cmd.Path, append(cmd.Args[1:], stillService(t).addresses["grpc"])...)
	run.Env = cmd.Env
	var in, stderr bytes.Buffer
	for _, c := range calls {
		fmt.Fprintf(&in, "%s %x\n", c.method, c.message)
	}
	run.Stdin, run.Stderr = &in, &stderr
	out, err := run.Output()
	require.NoError(t, err, stderr.String())
	got := lines(string(out))
	require.Len(t, got, len(calls), stderr.String())
	for i, line := range got {
		var a answer
		var code uint32
		number, text, _ := strings.Cut(line, " ")
		_, err := fmt.Sscan(number, &code)
		require.NoError(t, err, line)
		a.code = codes.Code(code)
		a.data, err = hex.DecodeString(text)
		require.NoError(t, err, line)
		same(t, calls[i], want[i], a, fmt.Sprintf("%s, call %d", name, i))
	}
}

// TestClient_CCore: gRPC's C core, as in Envoy's google_grpc and in Python, Ruby and PHP.
func TestClient_CCore(t *testing.T) {
	python := os.Getenv("SLUICE_GRPC_PYTHON")
	if python == "" {
		python = servetest.Installed(t, "python3", "install Python with grpcio, and name it in SLUICE_GRPC_PYTHON")
		if exec.Command(python, "-c", "import grpc").Run() != nil {
			t.Skip("there is no grpcio here: pip install grpcio, and name that python in SLUICE_GRPC_PYTHON")
		}
	}
	testClient(t, "C core", exec.Command(python, "testdata/clients/client.py"))
}

// TestClient_JavaScript: grpc-js, on Node's HTTP/2.
func TestClient_JavaScript(t *testing.T) {
	modules := os.Getenv("SLUICE_GRPC_JS")
	if modules == "" {
		t.Skip("there is no grpc-js here: npm install @grpc/grpc-js, and name the node_modules in SLUICE_GRPC_JS")
	}
	cmd := exec.Command(servetest.Installed(t, "node", "apt-get install nodejs"), "testdata/clients/client.js")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	testClient(t, "grpc-js", cmd)
}

// frame is a message as gRPC sends it, in a file.
func frame(t *testing.T, message []byte) string {
	t.Helper()
	b := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	name := filepath.Join(t.TempDir(), "frame")
	require.NoError(t, os.WriteFile(name, b, 0o600))
	return name
}

// grpcHeaders make a client of HTTP/2 one of gRPC.
var grpcHeaders = []string{"-H", "content-type: application/grpc", "-H", "te: trailers"}

var (
	statusLine  = regexp.MustCompile(`recv \(stream_id=\d+\) grpc-status: (\d+)`)
	messageLine = regexp.MustCompile(`recv \(stream_id=\d+\) grpc-message: (.*)`)
)

// nghttp makes calls by nghttp: with "-nv" to read the status and the text of each, without to read
// the message.
func nghttp(t *testing.T, calls []call, verbose bool) (out []answer) {
	t.Helper()
	path, address := servetest.Installed(t, "nghttp", "apt-get install nghttp2-client"), stillService(t).addresses["grpc"]
	for _, c := range calls {
		args := append([]string{"-d", frame(t, c.message), "http://" + address + c.method}, grpcHeaders...)
		if verbose {
			args = append(args, "-nv")
		}
		ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
		data, err := exec.CommandContext(ctx, path, args...).Output()
		cancel()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("nghttp: %v: %s", err, exit.Stderr)
		}
		require.NoError(t, err)
		a := answer{data: data}
		if verbose {
			m := statusLine.FindSubmatch(data)
			require.NotNil(t, m, "no grpc-status in:\n%s", data)
			_, err := fmt.Sscan(string(m[1]), &a.code)
			a.data = nil
			if m := messageLine.FindSubmatch(data); err == nil && m != nil {
				var text string
				text, err = url.PathUnescape(string(m[1]))
				a.data = []byte(text)
			}
			require.NoError(t, err)
		}
		out = append(out, a)
	}
	return out
}

// TestClient_NGHTTP2: Envoy's HTTP/2 library, and gRPC's frames by hand.
func TestClient_NGHTTP2(t *testing.T) {
	calls := someCalls(t)
	statuses, messages := nghttp(t, calls, true), nghttp(t, calls, false)
	for i, want := range answersOfGo(t, calls) {
		got := statuses[i]
		if got.code == codes.OK {
			require.GreaterOrEqual(t, len(messages[i].data), 5)
			head := messages[i].data[:5]
			got.data = messages[i].data[5:]
			require.Equal(t, binary.BigEndian.AppendUint32([]byte{0}, uint32(len(got.data))), head)
		}
		same(t, calls[i], want, got, fmt.Sprintf("nghttp, call %d", i))
	}
}

// TestClient_Load: h2load gets an answer to every call, and each is counted once.
func TestClient_Load(t *testing.T) {
	path, s := servetest.Installed(t, "h2load", "apt-get install nghttp2-client"), stillService(t)
	c := shouldRateLimit(t, "d", 0, descriptor("load", "x"))
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, append([]string{
		"-n", "5000", "-c", "4", "-m", "32", "-d", frame(t, c.message), "http://" + s.addresses["grpc"] + c.method,
	}, grpcHeaders...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "5000 done, 5000 succeeded, 0 failed, 0 errored, 0 timeout")
	assert.Contains(t, string(out), "status codes: 5000 2xx, 0 3xx, 0 4xx, 0 5xx")
	_, stdout, stderr := s.askFor("-d", "d", "load=x", "--hits", "0")
	assert.Contains(t, stdout, "995000 of 1000000 per day left", stderr)
}
