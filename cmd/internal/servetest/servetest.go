// Package servetest is what tests of the service share, in its package and of the command. Only tests use it.
package servetest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is how long a test waits for something that happens soon. It is never waited for in a test that
// passes.
const Patience = 2 * time.Minute

// Eventually waits until something holds.
func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never holds: %s", what)
		}
	}
}

// SocketName is a name for a unix socket. Those of t.TempDir can be too long.
func SocketName(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// Log can be read while it is written.
type Log struct {
	mutex sync.Mutex
	b     bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.b.Write(p)
}

// String returns what has been written so far.
func (l *Log) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.b.String()
}

// Problems returns the lines of warnings and errors.
func (l *Log) Problems() (out []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, line)
		}
	}
	return out
}
