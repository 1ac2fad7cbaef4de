package fleet

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/servers"
)

var builds string // where it is built, if it is

var built = sync.OnceValues(func() (_ string, err error) {
	if builds, err = os.MkdirTemp("", "sluice-fleet-"); err != nil {
		return "", err
	}
	return servers.BuildSluiced(builds)
})

// program returns the path of `sluice`, built once, for tests that run fleets in real time.
func program(t *testing.T) string {
	t.Helper()
	if os.Getenv("SLUICE_FLEET") == "" {
		t.Skip("this takes a minute of real time, and most of a machine: SLUICE_FLEET=1 runs it")
	}
	path, err := built()
	require.NoError(t, err)
	return path
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builds != "" {
		_ = os.RemoveAll(builds)
	}
	os.Exit(code)
}

// start starts a fleet of n services for a test.
func start(t *testing.T, rules string, n int, addr string, args ...string) *Fleet {
	t.Helper()
	f, err := New(program(t), rules, n, []string{"redis://" + addr}, args...)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// anyServer starts the server in the PATH.
func anyServer(t *testing.T, options ...string) *servers.Redis {
	t.Helper()
	return servers.StartRedis(t, options...)
}

// twice runs a test of what a busy machine can spoil once more, if it fails, and says how both ended.
func twice(t *testing.T, f func() error) {
	t.Helper()
	first := f()
	if first == nil {
		return
	}
	second := f()
	require.NoError(t, second, "the first time: %v", first)
	t.Logf("the first of two runs failed, the second did not: %v", first)
}
