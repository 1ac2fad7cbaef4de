package redislimit

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// A server is a private Redis, or Valkey, on loopback.
type server struct {
	cmd    *exec.Cmd
	addr   string
	binary string
	client *redis.Client
	done   chan struct{} // closed when it has ended
}

// binaries lists the servers to test with: redis-server, if there is one, and those that
// SLUICE_REDIS_SERVERS names, separated by colons.
var binaries = sync.OnceValue(func() (paths []string) {
	if path, err := exec.LookPath("redis-server"); err == nil {
		paths = append(paths, path)
	}
	for _, path := range filepath.SplitList(os.Getenv("SLUICE_REDIS_SERVERS")) {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
})

var (
	shared     = map[string]*server{} // by binary
	sharedLock sync.Mutex
)

func TestMain(m *testing.M) {
	if what := os.Getenv(replicaEnv); what != "" {
		if err := beReplica(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	depth.Waiting()
	code := m.Run()
	for _, s := range shared {
		s.kill()
	}
	os.Exit(code)
}

// start returns a server with options of its own. The caller kills it.
func start(tb testing.TB, binary string, options ...string) *server {
	tb.Helper()
	for range 50 { // another process may take the port first, or the one 10,000 above, of a cluster
		s := &server{binary: binary}
		s.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(tb)))
		if s.launch(tb, options...) {
			return s
		}
	}
	require.Fail(tb, "no server would start", "%s %v", binary, options)
	return nil
}

func freePort(tb testing.TB) int {
	port, err := servers.FreePort()
	require.NoError(tb, err)
	return port
}

// launch starts the server at its address, and reports whether it answers. Another server that
// took the port first answers, too, and is not the one.
func (s *server) launch(tb testing.TB, options ...string) bool {
	done := s.begin(tb, options...)
	own := fmt.Sprintf("process_id:%d\r\n", s.cmd.Process.Pid)
	for range 1000 {
		if s.client.Ping(ctx).Err() == nil && strings.Contains(s.client.Info(ctx, "server").Val(), own) {
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.kill()
	return false
}

// begin is launch without waiting. The channel is closed when the server has ended.
func (s *server) begin(tb testing.TB, options ...string) (done chan struct{}) {
	dir, err := os.MkdirTemp("", "redislimit") // tb.TempDir would be gone before a shared server
	require.NoError(tb, err)
	_, port, _ := net.SplitHostPort(s.addr)
	args := append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, options...)
	cmd := exec.Command(s.binary, args...)
	cmd.SysProcAttr = serverAttr()
	require.NoError(tb, cmd.Start())
	done = make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		_ = cmd.Wait()
		os.RemoveAll(dir)
		close(done)
	}()
	s.client = redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	return done
}

func (s *server) kill() {
	s.client.Close()
	_ = s.cmd.Process.Kill()
	<-s.done // it writes to its directory until then
}

// eachServer runs f against each kind of server there is, and skips if there is none.
func eachServer(t *testing.T, f func(t *testing.T, s *server)) {
	if len(binaries()) == 0 {
		t.Skip("there is no redis-server: apt-get install redis-server")
	}
	for _, binary := range binaries() {
		sharedLock.Lock()
		s := shared[binary]
		if s == nil {
			s = start(t, binary)
			shared[binary] = s
		}
		sharedLock.Unlock()
		t.Run(s.version(t), func(t *testing.T) { f(t, s) })
	}
}

// anyServer returns the first of them.
func anyServer(t testing.TB) (first *server) {
	if len(binaries()) == 0 {
		t.Skip("there is no redis-server: apt-get install redis-server")
	}
	sharedLock.Lock()
	defer sharedLock.Unlock()
	binary := binaries()[0]
	if shared[binary] == nil {
		shared[binary] = start(t, binary)
	}
	return shared[binary]
}

func (s *server) version(tb testing.TB) string {
	info, err := s.client.Info(context.Background(), "server").Result()
	require.NoError(tb, err)
	for _, field := range []string{"valkey_version:", "redis_version:"} {
		if _, rest, ok := strings.Cut(info, field); ok {
			version, _, _ := strings.Cut(rest, "\r\n")
			return strings.TrimSuffix(field, "_version:") + "=" + version
		}
	}
	return "unknown"
}

var prefixes int

// newPrefix returns one that no other test uses.
func newPrefix() string {
	sharedLock.Lock()
	defer sharedLock.Unlock()
	prefixes++
	return fmt.Sprintf("t%d", prefixes)
}

// newLimiter returns a limiter of c on s, with a prefix of its own if c has none.
func newLimiter(tb testing.TB, client redis.UniversalClient, c Config) *Limiter {
	tb.Helper()
	if c.Prefix == "" {
		c.Prefix = newPrefix()
	}
	l, err := New(client, c)
	require.NoError(tb, err)
	return l
}

// TestLaunch_PortTaken: a server whose port another one has is not started, though the other one answers.
func TestLaunch_PortTaken(t *testing.T) {
	t.Parallel()
	first := anyServer(t)
	second := &server{binary: first.binary, addr: first.addr}
	require.False(t, second.launch(t))
	second.client.Close()
}
