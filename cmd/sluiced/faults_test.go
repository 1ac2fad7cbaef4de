package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

const loadRules = "domain: d\ndescriptors:\n- {key: load, rate_limit: {unit: day, requests_per_unit: 1000000000}}\n"

// load is clients that ask until they get no answer.
type load struct {
	sync.WaitGroup
	asked, answered atomic.Int64
}

func (p *program) load() *load {
	l := new(load)
	for range 4 {
		conn, err := grpc.NewClient("unix:"+p.addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(p, err)
		l.Go(func() {
			defer conn.Close()
			for {
				l.asked.Add(1)
				if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(p.Context(), &pb.RateLimitRequest{
					Domain: "d", Descriptors: []*common.RateLimitDescriptor{descriptor("load", "x")},
				}); err != nil {
					return
				}
				l.answered.Add(1)
			}
		})
	}
	p.Cleanup(func() { // whatever becomes of the test
		_ = p.cmd.Process.Kill()
		l.Wait()
	})
	return l
}

var leftPattern = regexp.MustCompile(`OK, (\d+) of`)

// counted is how many of the load's calls are in the counts.
func (p *program) counted() int64 {
	p.Helper()
	_, stdout, stderr := execute("ask", "--address", "unix:"+p.addresses["grpc"], "-d", "d", "load=x", "--hits", "0")
	m := leftPattern.FindStringSubmatch(stdout)
	require.NotNil(p, m, stdout+stderr)
	left, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(p, err)
	return 1_000_000_000 - left
}

// has counts the lines of the log with a text.
func (p *program) has(text string) int { return strings.Count(p.log.String(), text) }

// TestFault_Terminated: SIGTERM under load loses no count of a call that was answered, and counts no
// other.
func TestFault_Terminated(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"rules/a.yaml": loadRules})
	args := []string{
		"--rules", dir + "/rules", "--state", dir + "/state", "--manual-clock", "--log-level", "info", "--grpc=", "--uds", servetest.SocketName(t), "--drain", "0",
	}
	before := int64(0)
	for range 3 {
		p := startServe(t, nil, args...)
		require.Equal(t, before, p.counted())
		l := p.load()
		servetest.Eventually(t, "load", func() bool { return l.answered.Load() > 200 })
		require.Equal(t, 0, p.end(syscall.SIGTERM), p.log.String())
		l.Wait()
		before += l.answered.Load()
		assert.Equal(t, 1, p.has("msg=draining"))
		assert.Equal(t, 1, p.has("msg=stopped"))
		assert.Zero(t, p.has("level=WARN")+p.has("level=ERROR"), p.log.String())
	}
}

// TestFault_Killed: SIGKILL under load leaves a whole state, of a time since which nothing was written;
// and the next start takes no notice of what the last one left behind.
func TestFault_Killed(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"rules/a.yaml": loadRules})
	state := filepath.Join(dir, "state")
	args := []string{
		"--rules", dir + "/rules", "--state", state, "--state-every", "1ms", "--manual-clock", "--log-level", "info", "--grpc=", "--uds", servetest.SocketName(t),
	}
	asked, safe := int64(0), int64(0)
	for i := range 4 {
		p := startServe(t, nil, args...)
		counted := p.counted()
		require.GreaterOrEqual(t, counted, safe, "what was answered before the state was written")
		require.LessOrEqual(t, counted, asked)
		assert.Equal(t, min(i, 1), p.has(`msg="counts restored"`), p.log.String())
		assert.Zero(t, p.has("level=WARN")+p.has("level=ERROR"), p.log.String())
		l := p.load()
		servetest.Eventually(t, "load", func() bool { return l.answered.Load() > 200 })
		safe = counted + l.answered.Load()
		for range 2 { // the second one was begun after that
			var last os.FileInfo
			servetest.Eventually(t, "a state", func() bool {
				now, err := os.Stat(state)
				replaced := err == nil && last != nil && !os.SameFile(last, now)
				last = now
				return replaced
			})
		}
		p.end(syscall.SIGKILL)
		l.Wait()
		asked = counted + l.asked.Load()
	}
}

func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}
