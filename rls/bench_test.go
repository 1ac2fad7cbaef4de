//go:build linux

package rls

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice/rules"
)

// serverVariable makes this binary one of the servers that BenchmarkServer asks.
const serverVariable = "SLUICE_BENCH_SERVER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(serverVariable); kind != "" {
		serveForever(kind)
	}
	os.Exit(m.Run())
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

// serveForever is the server: its address is the one line that it writes. It ends with its standard
// input.
func serveForever(kind string) {
	server := grpc.NewServer()
	if kind == "empty" {
		pb.RegisterRateLimitServiceServer(server, empty{})
	} else {
		set, err := rules.Load([]rules.File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{key: client, rate_limit: {unit: day, requests_per_unit: 4000000000}}]\n")}}, rules.Options{})
		fatal(err)
		engine, err := rules.New(set, rules.Config{})
		fatal(err)
		server = New(engine, Options{}).NewServer()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(err)
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	fmt.Println(listener.Addr())
	fatal(server.Serve(listener))
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// benchServer is a server in a process of its own, and a connection to it.
type benchServer struct {
	pid    int
	client pb.RateLimitServiceClient
}

func newBenchServer(b *testing.B, kind string) *benchServer {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverVariable+"="+kind)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(b, err)
	conn, err := grpc.NewClient(strings.TrimSpace(address), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return &benchServer{cmd.Process.Pid, pb.NewRateLimitServiceClient(conn)}
}

// ticks is the processor time of the server, in hundredths of a second.
func (s *benchServer) ticks(b *testing.B) (sum int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	for _, field := range strings.Fields(rest)[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		require.NoError(b, err)
		sum += n
	}
	return sum
}

// ask makes calls, 16 at a time.
func (s *benchServer) ask(b *testing.B, calls, descriptors int) {
	const callers = 16
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			req := &pb.RateLimitRequest{Domain: "d"}
			for i := range descriptors {
				req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
					Entries: []*common.RateLimitDescriptor_Entry{{Key: "client", Value: fmt.Sprint(caller, "-", i)}},
				})
			}
			for range calls / callers {
				if _, err := s.client.ShouldRateLimit(b.Context(), req); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// BenchmarkServer compares the processor time that the server takes for a call with that of a
// handler that does nothing: the median of interleaved rounds. The client is in another process.
func BenchmarkServer(b *testing.B) {
	const rounds = 5
	calls := 16_000
	if testing.Short() {
		calls = 800 // to see that it runs
	}
	for _, descriptors := range []int{1, 10} {
		b.Run(fmt.Sprintf("descriptors=%d", descriptors), func(b *testing.B) {
			servers := []*benchServer{newBenchServer(b, "empty"), newBenchServer(b, "rules")}
			times := make([][]int, len(servers))
			for _, s := range servers {
				s.ask(b, calls/4, descriptors)
			}
			for b.Loop() {
				for range rounds {
					for i, s := range servers {
						before := s.ticks(b)
						s.ask(b, calls, descriptors)
						times[i] = append(times[i], s.ticks(b)-before)
					}
				}
			}
			var median [2]float64
			for i := range times {
				slices.Sort(times[i])
				median[i] = float64(times[i][len(times[i])/2])
			}
			b.ReportMetric(median[0]*10_000/float64(calls), "empty-cpu-µs/call")
			b.ReportMetric(median[1]*10_000/float64(calls), "rules-cpu-µs/call")
			b.ReportMetric(median[1]/median[0], "ratio")
		})
	}
}
